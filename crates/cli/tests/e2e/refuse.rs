//! A system that refuses calls, as a container's seccomp profile or an older kernel does: a filter
//! that the child installs for itself before it becomes another program.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// A system call, and the error it is to end with.
pub type Refused = (libc::c_long, libc::c_int);

/// What a system without io_uring says.
pub const NO_IO_URING: &[Refused] = &[(libc::SYS_io_uring_setup, libc::ENOSYS)];

/// Has the program started where `calls` end with their errors.
pub fn refuse(command: &mut Command, calls: &[Refused]) {
    let filter = filter(calls);
    // SAFETY: between fork and exec only two system calls are made, with memory that was allocated
    // before.
    unsafe { command.pre_exec(move || install(&filter)) };
}

/// The same if `WEIR_E2E_DRIVER` asks for it.
pub fn as_told(command: &mut Command) {
    match std::env::var("WEIR_E2E_DRIVER").as_deref() {
        Ok("threads") => refuse(command, NO_IO_URING),
        Ok("auto") | Err(_) => {}
        Ok(other) => panic!("WEIR_E2E_DRIVER={other}: it must be auto or threads"),
    }
}

fn filter(calls: &[Refused]) -> Vec<libc::sock_filter> {
    let step = |code: u32, k: u32, jt, jf| libc::sock_filter { code: code as u16, jt, jf, k };
    // The number of the call is the first word of what a filter sees.
    let mut filter = vec![step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0)];
    for &(call, code) in calls {
        filter.push(step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, call as u32, 0, 1));
        let answer = libc::SECCOMP_RET_ERRNO | code as u32;
        filter.push(step(libc::BPF_RET | libc::BPF_K, answer, 0, 0));
    }
    filter.push(step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0));
    filter
}

fn install(filter: &[libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: the program is valid for the call, which copies it.
    let installed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    if installed { Ok(()) } else { Err(io::Error::last_os_error()) }
}

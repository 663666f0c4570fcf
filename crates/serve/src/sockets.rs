//! Sockets: who may connect to one in the file system, when such a path may be taken over, and what
//! the kernel is told of each client.

use std::ffi::CString;
use std::fs::{self, Metadata};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// So long an address that is in use may be that of a server which was just killed.
const IN_USE_PATIENCE: Duration = Duration::from_secs(1);

/// Who may connect to a socket in the file system.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Access {
    /// Permissions: who may write may connect.
    pub mode: u32,
    /// The group it belongs to, if not that of the process.
    pub group: Option<u32>,
}

impl Access {
    /// Only the user whose process it is (and root).
    pub const OWNER: Access = Access { mode: 0o600, group: None };
}

/// How a server shows that it is there.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Speaks {
    /// It greets who connects.
    First,
    /// It answers this.
    WhenAsked(&'static str),
}

/// A socket in the file system that is ours. Its file goes with it.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode: a path that another server has taken over is not ours any more.
    file: Option<(u64, u64)>,
}

impl SocketFile {
    fn of(path: &Path) -> Self {
        let file = path.symlink_metadata().ok();
        Self { path: path.into(), file: file.map(|file| (file.dev(), file.ino())) }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let now = self.path.symlink_metadata().ok().map(|file| (file.dev(), file.ino()));
        if now.is_some() && now == self.file {
            // If it is gone meanwhile, so be it.
            fs::remove_file(&self.path).ok();
        }
    }
}

/// Listens at `address`, and tells where that is: port 0 has the system choose one.
pub fn listen_tcp(address: SocketAddr) -> io::Result<(OwnedFd, SocketAddr)> {
    let listener = bind_tcp(address)?;
    let bound = listener.local_addr()?;
    Ok((listener.into(), bound))
}

/// Listens at `address`. The kernel takes a moment to give up what a server had that was just killed, and requests of it were
/// under way: whoever starts it again at once is not to be told to choose another address.
pub fn bind_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let end = Instant::now() + IN_USE_PATIENCE;
    loop {
        match TcpListener::bind(address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(10));
            }
            bound => return bound,
        }
    }
}

/// Longest path of a socket, in bytes.
const SOCKET_BYTES_MAX: usize = 107;

/// Why a socket cannot have this path, if it is too long for one.
pub fn too_long(path: &Path) -> Option<String> {
    let is_long = path.as_os_str().len() > SOCKET_BYTES_MAX;
    is_long.then(|| format!("is longer than the {SOCKET_BYTES_MAX} bytes that the system allows"))
}

/// Listens at `path`. It takes the path over from a server of ours that is gone, never from one that
/// answers, and from nobody else.
///
/// # Errors
/// Why not, and what to do.
pub fn listen_unix(
    path: &Path,
    access: Access,
    speaks: Speaks,
) -> Result<(OwnedFd, SocketFile), String> {
    if let Ok(metadata) = path.symlink_metadata() {
        make_way(path, &metadata, speaks)?;
    }
    if let Some(why) = too_long(path) {
        return Err(format!("{why}: take a shorter path"));
    }
    let listener = bind(path).map_err(|error| {
        format!("cannot listen: {error}: does the folder exist, and may you write there?")
    })?;
    let file = SocketFile::of(path);
    open_to(path, access).map_err(|error| {
        let Access { mode, .. } = access;
        format!("its group and mode {mode:04o} cannot be set: {error}: are you in that group?")
    })?;
    Ok((listener, file))
}

/// Removes a socket that a server of ours has left behind.
fn make_way(path: &Path, metadata: &Metadata, speaks: Speaks) -> Result<(), String> {
    if !metadata.file_type().is_socket() {
        return Err("is there and is no socket: choose another path, or move the file away".into());
    }
    match answers(path, speaks) {
        Ok(Some(whose)) => {
            return Err(format!("the socket is in use by {whose}: stop it, or choose another"));
        }
        Ok(None) => {}
        Err(error) => return Err(format!("cannot tell if a server has this socket: {error}")),
    }
    // SAFETY: no memory is involved.
    let me = unsafe { libc::geteuid() };
    if metadata.uid() != me {
        let owner = metadata.uid();
        return Err(format!(
            "nobody answers there, and the socket is that of user {owner}: remove it if nobody \
             needs it, or choose another"
        ));
    }
    fs::remove_file(path).map_err(|error| format!("cannot remove the stale socket: {error}"))
}

/// Who is behind the socket, if anybody is. The kernel may go on accepting for a server that was killed
/// just now; that one never says a word.
fn answers(path: &Path, speaks: Speaks) -> io::Result<Option<String>> {
    let mut stream = match UnixStream::connect(path) {
        Ok(stream) => stream,
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Ok(None),
        Err(error) => return Err(error),
    };
    let owner = owner_of(&stream);
    // It may take the kernel seconds to tear down what a killed process had under way, its sockets last.
    if has_ended(owner) {
        return Ok(None);
    }
    // Else it may have been killed while it was asked.
    let alive = is_alive(&mut stream, speaks)? && !has_ended(owner);
    Ok(alive.then(|| described(owner)))
}

/// True if there is no such process any more, or only what nobody waited for.
fn has_ended(process: libc::pid_t) -> bool {
    // In another namespace of processes it has no number here.
    if process == 0 {
        return false;
    }
    // SAFETY: no memory is involved, and signal 0 is none.
    let lives = unsafe { libc::kill(process, 0) } == 0
        || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH);
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name before the state, in brackets, may have anything in it.
    let state = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    !lives || state.starts_with(['Z', 'X'])
}

/// The process that listens at the other end; 0 if it has no number here.
fn owner_of(stream: &UnixStream) -> libc::pid_t {
    // SAFETY: all zeroes are a value of it.
    let mut peer: libc::ucred = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&peer) as libc::socklen_t;
    let (fd, value) = (stream.as_raw_fd(), (&raw mut peer).cast());
    // SAFETY: the option's value is writable for its size. It stays 0 if that fails.
    unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, value, &raw mut len) };
    peer.pid
}

/// A process as its owner knows it.
fn described(process: libc::pid_t) -> String {
    // In another namespace of processes it has no number here, and the words of another user's may be secret.
    let words = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    let words = String::from_utf8_lossy(&words).replace('\0', " ");
    let words: String = words.chars().filter(|c| !c.is_control()).take(WORDS_SHOWN).collect();
    match (process, words.trim_end()) {
        (0, _) => "another server".into(),
        (pid, "") => format!("process {pid}"),
        (pid, words) => format!("process {pid} ({words})"),
    }
}

fn is_alive(stream: &mut UnixStream, speaks: Speaks) -> io::Result<bool> {
    stream.set_read_timeout(Some(GREETING_TIME))?;
    let gone = |error: &io::Error| {
        matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
    };
    if let Speaks::WhenAsked(question) = speaks
        && let Err(error) = stream.write_all(question.as_bytes())
    {
        return if gone(&error) { Ok(false) } else { Err(error) };
    }
    match stream.read(&mut [0]) {
        Ok(bytes) => Ok(bytes > 0),
        Err(error) if gone(&error) => Ok(false),
        // Silent, but alive: perhaps another kind of server.
        Err(_) => Ok(true),
    }
}

/// Characters of another program's command line that are told.
const WORDS_SHOWN: usize = 120;
/// How long a server may take to greet a client.
const GREETING_TIME: Duration = Duration::from_secs(2);

/// A listening socket at `path`, which only its owner may connect to.
fn bind(path: &Path) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: no memory is involved; the result is checked.
    let fd = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: an address of zeroes is one without a path.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.as_os_str().as_bytes();
    // One is left for the end of the text.
    if bytes.len() >= address.sun_path.len() || bytes.contains(&0) {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    let len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // The file is made with the mode of the socket, so nobody slips in before it is set.
    // SAFETY: the address is readable for its length.
    let done = unsafe {
        libc::fchmod(fd, Access::OWNER.mode) == 0
            && libc::bind(fd, (&raw const address).cast(), len) == 0
            && libc::listen(fd, BACKLOG) == 0
    };
    if done { Ok(socket) } else { Err(io::Error::last_os_error()) }
}

/// Clients that may wait in the kernel.
const BACKLOG: libc::c_int = 128;

fn open_to(path: &Path, access: Access) -> io::Result<()> {
    if access.group.is_some() {
        std::os::unix::fs::chown(path, None, access.group)?;
    }
    fs::set_permissions(path, fs::Permissions::from_mode(access.mode))
}

/// The number of a group, by its name or as a number; `None` if there is none.
pub fn group(name: &str) -> Option<u32> {
    if let Ok(number) = name.parse() {
        return Some(number);
    }
    let name = CString::new(name).ok()?;
    let mut text = vec![0 as libc::c_char; 64 << 10];
    // SAFETY: an entry of zeroes is valid, and is only read when it was filled.
    let mut entry: libc::group = unsafe { std::mem::zeroed() };
    let mut found = std::ptr::null_mut();
    // SAFETY: all are valid for their lengths and outlive the call.
    let result = unsafe {
        let (entry, found) = (&raw mut entry, &raw mut found);
        libc::getgrnam_r(name.as_ptr(), entry, text.as_mut_ptr(), text.len(), found)
    };
    (result == 0 && !found.is_null()).then_some(entry.gr_gid)
}

/// Tells the kernel how a client's socket is used. A TCP peer that does not answer the kernel for
/// `patience` is gone (0: never).
pub fn prepare(socket: &impl AsRawFd, patience: Duration) {
    let fd = socket.as_raw_fd();
    if domain(fd) == libc::AF_UNIX {
        // Replies to large reads should fit the socket, so that one send takes them. TCP finds its
        // own size, unless it is told one. The system may grant less.
        set(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, 1 << 20);
        return;
    }
    // Small replies must not wait for more.
    set(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
    if patience.is_zero() {
        return;
    }
    // A silent peer is asked after a half of that time, then three times; one that takes nothing of
    // what it is sent has as long.
    let seconds = |part: Duration| part.as_secs().clamp(1, 32_767) as libc::c_int;
    let ms = patience.as_millis().min(i32::MAX as u128) as libc::c_int;
    set(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1);
    set(fd, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, seconds(patience / 2));
    set(fd, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, seconds(patience / 6));
    set(fd, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 3);
    set(fd, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, ms);
}

/// The address that a TCP client has connected to.
pub fn local_address(socket: &OwnedFd) -> Option<SocketAddr> {
    let socket = socket.try_clone().ok()?;
    std::net::TcpStream::from(socket).local_addr().ok()
}

fn domain(fd: i32) -> libc::c_int {
    let mut domain: libc::c_int = 0;
    let mut len = size_of_val(&domain) as libc::socklen_t;
    let value = (&raw mut domain).cast();
    // SAFETY: the option's value is writable for its size. It stays 0 if that fails.
    unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_DOMAIN, value, &raw mut len) };
    domain
}

/// Sets an option. A socket that does not know it goes without.
fn set(fd: i32, level: libc::c_int, option: libc::c_int, value: libc::c_int) {
    let len = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the option's value is readable for its size.
    unsafe { libc::setsockopt(fd, level, option, (&raw const value).cast(), len) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    fn option(fd: i32, level: libc::c_int, option: libc::c_int) -> libc::c_int {
        let (mut value, mut len): (libc::c_int, libc::socklen_t) = (0, 4);
        // SAFETY: the option's value is writable for its size.
        let got =
            unsafe { libc::getsockopt(fd, level, option, (&raw mut value).cast(), &raw mut len) };
        assert_eq!(got, 0);
        value
    }

    #[test]
    fn a_tcp_peer_that_answers_nothing_is_found_to_be_gone_and_a_silent_one_may_be_for_ever() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connect = || TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (watched, unwatched) = (connect(), connect());
        prepare(&watched, Duration::from_secs(60));
        prepare(&unwatched, Duration::ZERO);
        let fd = watched.as_raw_fd();
        let tcp = |name| option(fd, libc::IPPROTO_TCP, name);
        assert_eq!(option(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE), 1);
        let asked = tcp(libc::TCP_KEEPIDLE) + tcp(libc::TCP_KEEPCNT) * tcp(libc::TCP_KEEPINTVL);
        assert_eq!((asked, tcp(libc::TCP_USER_TIMEOUT)), (60, 60_000));
        assert_eq!((tcp(libc::TCP_NODELAY), domain(fd)), (1, libc::AF_INET));
        assert_eq!(option(unwatched.as_raw_fd(), libc::SOL_SOCKET, libc::SO_KEEPALIVE), 0);
    }

    #[test]
    fn a_socket_of_a_process_that_has_ended_is_free_though_the_kernel_still_listens() {
        let path = std::env::temp_dir().join(format!("weir-ended-{}.sock", std::process::id()));
        fs::remove_file(&path).ok();
        let listener = bind(&path).unwrap();
        // SAFETY: the child calls nothing but what is safe after a fork.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // From now on the socket is the child's, which ends while its parent has it open.
            // SAFETY: no memory is involved.
            unsafe {
                libc::listen(listener.as_raw_fd(), BACKLOG);
                libc::_exit(0);
            }
        }
        // SAFETY: all zeroes are a value of it, which is writable.
        let waited = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let flags = libc::WEXITED | libc::WNOWAIT;
            libc::waitid(libc::P_PID, child as libc::id_t, &raw mut info, flags)
        };
        assert_eq!(waited, 0);
        assert_eq!(answers(&path, Speaks::First).unwrap(), None, "nobody has waited for it");
        // SAFETY: no memory is involved.
        assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
        let metadata = path.symlink_metadata().unwrap();
        make_way(&path, &metadata, Speaks::First).unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn a_path_that_is_too_long_for_a_socket_is_told_as_such() {
        let path = std::env::temp_dir().join("s".repeat(SOCKET_BYTES_MAX));
        let why = listen_unix(&path, Access::OWNER, Speaks::First).map(drop).expect_err("too long");
        assert!(why.contains("longer than the 107 bytes"), "{why}");
    }

    #[test]
    fn groups_are_known_by_name_and_number() {
        assert_eq!((group("root"), group("4711")), (Some(0), Some(4711)));
        for none in ["", "no such group", "ro\0ot", "-1"] {
            assert_eq!(group(none), None, "{none}");
        }
    }

    #[test]
    fn an_address_that_is_in_use_is_waited_for_a_moment_and_refused_then() {
        let before = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = before.local_addr().unwrap();
        let refused = listen_tcp(address).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
        // The server that had it was killed, and the kernel has not closed all of it yet.
        let ends = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(30));
            drop(before);
        });
        assert_eq!(listen_tcp(address).unwrap().1, address);
        ends.join().unwrap();
    }
}

//! Commands to the ublk driver: devices are made, shown, taken over and removed.

use super::abi::{self, Control as Command, Info, Parameters};
use crate::attach::AttachError;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the driver may take to notice that a server has gone, or a node to appear.
const PATIENCE: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_millis(50);

/// The way to the driver.
pub struct Control {
    file: File,
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
}

impl Control {
    /// Opens it.
    ///
    /// # Errors
    /// The kernel has no driver, or this user may not use it.
    pub fn open() -> Result<Self, AttachError> {
        let path = Path::new(abi::CONTROL);
        let file = File::options().read(true).write(true).open(path);
        let file = file.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => AttachError::NoDriver(NO_DRIVER),
            io::ErrorKind::PermissionDenied => AttachError::NotPermitted(abi::CONTROL),
            _ => AttachError::system(path, "open it")(error),
        })?;
        let ring = IoUring::builder().build(4);
        let ring = ring.map_err(AttachError::system(path, "set up an io_uring for it"))?;
        Ok(Self { file, ring })
    }

    /// Carries out one command, and waits for its end.
    fn command(&mut self, number: u32, command: Command) -> io::Result<()> {
        let file = types::Fd(self.file.as_raw_fd());
        let entry = opcode::UringCmd80::new(file, number).cmd(command.bytes()).build();
        // SAFETY: what the command's address leads to outlives this call, which waits for the end.
        unsafe { self.ring.submission().push(&entry) }.map_err(io::Error::other)?;
        loop {
            match self.ring.submit_and_wait(1) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
                Ok(_) => {}
            }
            if let Some(done) = self.ring.completion().next() {
                let result = done.result();
                return if result < 0 {
                    Err(io::Error::from_raw_os_error(-result))
                } else {
                    Ok(())
                };
            }
        }
    }

    /// What the driver can do.
    pub fn features(&mut self) -> io::Result<u64> {
        let mut features = 0u64;
        let address = &raw mut features as u64;
        self.command(abi::GET_FEATURES, Command { len: 8, address, ..Command::of(abi::ANY) })?;
        Ok(features)
    }

    /// Makes a device, and says which it is.
    pub fn add(&mut self, wanted: Info) -> io::Result<Info> {
        let mut info = wanted;
        let command = with_info(&mut info, Command::of(wanted.device));
        self.command(abi::ADD, command)?;
        Ok(info)
    }

    /// What a device is; `None` if there is none of this number.
    pub fn info(&mut self, device: u32) -> io::Result<Option<Info>> {
        let mut info = Info::default();
        let command = with_info(&mut info, Command::of(device));
        match self.command(abi::GET_INFO, command) {
            Ok(()) => Ok(Some(info)),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Says what the disk is like.
    pub fn set_parameters(&mut self, device: u32, mut parameters: Parameters) -> io::Result<()> {
        let (len, address) = (parameters.len as u16, &raw mut parameters as u64);
        self.command(abi::SET_PARAMETERS, Command { len, address, ..Command::of(device) })
    }

    /// Shows the disk, once all queues wait for requests.
    pub fn start(&mut self, device: u32) -> io::Result<()> {
        self.by_us(abi::START, device)
    }

    /// Begins to take over a device whose server has gone, once the driver has noticed.
    pub fn begin_recovery(&mut self, device: u32) -> io::Result<()> {
        let begun = Instant::now();
        loop {
            match self.command(abi::BEGIN_RECOVERY, Command::of(device)) {
                Err(error)
                    if error.raw_os_error() == Some(libc::EBUSY) && begun.elapsed() < PATIENCE =>
                {
                    std::thread::sleep(AGAIN);
                }
                result => return result,
            }
        }
    }

    /// All queues wait for requests again.
    pub fn end_recovery(&mut self, device: u32) -> io::Result<()> {
        self.by_us(abi::END_RECOVERY, device)
    }

    fn by_us(&mut self, number: u32, device: u32) -> io::Result<()> {
        let data = u64::from(std::process::id());
        self.command(number, Command { data, ..Command::of(device) })
    }

    /// The disk has so many sectors from now on.
    pub fn resize(&mut self, device: u32, sectors: u64) -> io::Result<()> {
        self.command(abi::UPDATE_SIZE, Command { data: sectors, ..Command::of(device) })
    }

    /// Takes the disk away, and removes its device. What is under way is finished before. With `force` who has the disk
    /// open, as a file system does that is mounted, is not waited for where the driver can do without.
    pub fn remove(&mut self, device: u32, force: bool) -> io::Result<()> {
        let gone = |result: io::Result<()>| match result {
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(()),
            result => result,
        };
        gone(self.command(abi::STOP, Command::of(device)))?;
        if force {
            match gone(self.command(abi::DELETE_LATER, Command::of(device))) {
                Err(error)
                    if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL)) => {}
                result => return result,
            }
        }
        gone(self.command(abi::DELETE, Command::of(device)))
    }
}

fn with_info(info: &mut Info, command: Command) -> Command {
    Command { len: size_of::<Info>() as u16, address: std::ptr::from_mut(info) as u64, ..command }
}

/// Opens the device through which requests come; its node may take a moment.
pub fn open_device(device: u32) -> Result<File, AttachError> {
    let path = format!("/dev/ublkc{device}");
    let path = Path::new(&path);
    let begun = Instant::now();
    loop {
        match File::options().read(true).write(true).open(path) {
            Ok(file) => return Ok(file),
            Err(_) if begun.elapsed() < PATIENCE => std::thread::sleep(AGAIN),
            Err(error) => return Err(AttachError::system(path, "open it")(error)),
        }
    }
}

/// Said where there is no driver.
const NO_DRIVER: &str = "the kernel here has no ublk driver: `modprobe ublk_drv` loads it where it is built (Linux 6.4 and \
                         newer; Debian 13, or 12 with the kernel of its backports); or use the kernel's NBD client: \
                         `weir attach --nbd`";

//! The socket by which a hypervisor says what is to be done: whole messages with the descriptors that they bring, and
//! answers. Nothing here waits: a message of which a part has come is kept until the rest is there.

use super::message::{BadMessage, HEAD_BYTES, Head, encode};
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Most descriptors that one message may bring; more than any has.
const FILES_MAX: usize = 16;

/// What has come.
pub enum Came {
    /// A message whole: its head, the rest, and what it brings.
    Message(Head, Vec<u8>, Vec<OwnedFd>),
    /// Not yet a whole one.
    Part,
    /// The other side has left.
    End,
}

/// Why nothing more can come.
#[derive(Debug)]
pub enum Lost {
    /// The system.
    System(io::Error),
    /// What came is no message.
    Message(BadMessage),
    /// It brings too many descriptors.
    Files,
}

/// See the head of this file.
pub struct Channel {
    socket: OwnedFd,
    /// Of the message that comes.
    bytes: Vec<u8>,
    files: Vec<OwnedFd>,
}

impl Channel {
    /// Over a socket.
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket, bytes: Vec::new(), files: Vec::new() }
    }

    /// Takes what is there of a message, and never of the one behind it, as descriptors come with a message's bytes.
    pub fn receive(&mut self) -> Result<Came, Lost> {
        loop {
            let head = match self.bytes.first_chunk::<HEAD_BYTES>() {
                Some(head) => Some(Head::decode(head).map_err(Lost::Message)?),
                None => None,
            };
            let whole = HEAD_BYTES + head.map_or(0, |head| head.bytes);
            if let Some(head) = head.filter(|_| self.bytes.len() == whole) {
                let body = self.bytes.split_off(HEAD_BYTES);
                self.bytes.clear();
                return Ok(Came::Message(head, body, std::mem::take(&mut self.files)));
            }
            let have = self.bytes.len();
            self.bytes.resize(whole, 0);
            let read = self.read(have);
            self.bytes.truncate(have + read.as_ref().map_or(0, |&read| read));
            match read {
                Ok(0) => return Ok(Came::End),
                Ok(_) if self.files.len() > FILES_MAX => return Err(Lost::Files),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Came::Part),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Lost::System(error)),
            }
        }
    }

    /// Reads to the bytes from `have` on, and takes descriptors that come with them.
    fn read(&mut self, have: usize) -> io::Result<usize> {
        let to = &mut self.bytes[have..];
        let mut vector = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
        // Room for the descriptors of a message, aligned as the heads before them are.
        let mut room = [0u64; 16];
        // SAFETY: a message header of zeroes is one without content.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &raw mut vector;
        message.msg_iovlen = 1;
        message.msg_control = room.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&room) as _;
        let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        // SAFETY: all that the header points to is writable for its length.
        let read = unsafe { libc::recvmsg(self.socket.as_raw_fd(), &raw mut message, flags) };
        if read < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has filled the room with whole heads, and descriptors that are new and ours.
        unsafe {
            let mut head = libc::CMSG_FIRSTHDR(&raw const message);
            while !head.is_null() {
                if (*head).cmsg_level == libc::SOL_SOCKET && (*head).cmsg_type == libc::SCM_RIGHTS {
                    let bytes = (*head).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                    let first = libc::CMSG_DATA(head).cast::<libc::c_int>();
                    for at in 0..bytes / size_of::<libc::c_int>() {
                        let fd = first.add(at).read_unaligned();
                        self.files.push(OwnedFd::from_raw_fd(fd));
                    }
                }
                head = libc::CMSG_NXTHDR(&raw const message, head);
            }
        }
        if message.msg_flags & libc::MSG_CTRUNC != 0 {
            let reason = "descriptors of a message are lost: it brings too many, or no more files may be open";
            return Err(io::Error::other(reason));
        }
        Ok(read as usize)
    }

    /// Sends an answer. The other side waits for it, so that there is room.
    pub fn answer(&self, request: u32, body: &[u8], file: Option<&OwnedFd>) -> io::Result<()> {
        send(&self.socket, &encode(request, true, body), file)
    }
}

impl AsRawFd for Channel {
    fn as_raw_fd(&self) -> i32 {
        self.socket.as_raw_fd()
    }
}

/// Sends all of this at once or not at all, perhaps with a descriptor.
pub fn send(socket: &OwnedFd, bytes: &[u8], file: Option<&OwnedFd>) -> io::Result<()> {
    let mut vector =
        libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut room = [0u64; 4];
    // SAFETY: a message header of zeroes is one without content.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut vector;
    message.msg_iovlen = 1;
    if let Some(file) = file {
        message.msg_control = room.as_mut_ptr().cast();
        // SAFETY: there is room for the head and one descriptor.
        unsafe {
            message.msg_controllen = libc::CMSG_SPACE(size_of::<libc::c_int>() as u32) as _;
            let head = libc::CMSG_FIRSTHDR(&raw const message);
            (*head).cmsg_level = libc::SOL_SOCKET;
            (*head).cmsg_type = libc::SCM_RIGHTS;
            (*head).cmsg_len = libc::CMSG_LEN(size_of::<libc::c_int>() as u32) as _;
            libc::CMSG_DATA(head).cast::<libc::c_int>().write_unaligned(file.as_raw_fd());
        }
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: all that the header points to is readable for its length.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) };
    match sent {
        sent if sent < 0 => Err(io::Error::last_os_error()),
        sent if sent as usize == bytes.len() => Ok(()),
        _ => Err(io::Error::from(io::ErrorKind::WriteZero)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::event::Event;
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    #[test]
    fn messages_come_byte_by_byte_with_what_they_bring() {
        let (mut other, ours) = UnixStream::pair().unwrap();
        let mut channel = Channel::new(ours.into());
        let (first, second) = (encode(2, false, &[7; 8]), encode(1, false, &[]));
        for &byte in &first {
            assert!(matches!(channel.receive().unwrap(), Came::Part));
            other.write_all(&[byte]).unwrap();
        }
        other.write_all(&second).unwrap();
        let Came::Message(head, body, files) = channel.receive().unwrap() else { panic!("part") };
        assert_eq!((head.request, &body[..], files.len()), (2, &[7; 8][..], 0));
        let Came::Message(head, body, _) = channel.receive().unwrap() else { panic!("part") };
        assert_eq!((head.request, body.len()), (1, 0));

        let event: OwnedFd = Event::new().unwrap().into();
        let socket = OwnedFd::from(other.try_clone().unwrap());
        send(&socket, &encode(12, false, &[1; 8]), Some(&event)).unwrap();
        let Came::Message(_, _, mut files) = channel.receive().unwrap() else { panic!("part") };
        let same = Event::of(files.pop().unwrap()).unwrap();
        same.signal();
        assert!(Event::of(event).unwrap().clear());
        channel.answer(1, &[5; 8], None).unwrap();
        other.write_all(&[0; 12]).unwrap();
        let lost = channel.receive();
        assert!(matches!(lost, Err(Lost::Message(BadMessage::Flags(0)))));
        let (other, ours) = UnixStream::pair().unwrap();
        drop(other);
        assert!(matches!(Channel::new(ours.into()).receive(), Ok(Came::End)));
    }
}

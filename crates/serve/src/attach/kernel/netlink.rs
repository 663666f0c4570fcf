//! Generic netlink, as far as the kernel's NBD client is told by it: a message of attributes, and its answer.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// What finds families by their names.
const CONTROLLER: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;

const HEAD_BYTES: usize = 16;
const COMMAND_BYTES: usize = 4;
const ATTRIBUTE_BYTES: usize = 4;
const ERROR: u16 = 2;
const REQUEST: u16 = 1;
const ACKNOWLEDGE: u16 = 4;
const NESTED: u16 = 1 << 15;
const ANSWER_BYTES_MAX: usize = 16 << 10;

/// Attributes of a message.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Attributes(Vec<u8>);

impl Attributes {
    /// With one more.
    pub fn with(mut self, kind: u16, value: &[u8]) -> Self {
        let len = (ATTRIBUTE_BYTES + value.len()) as u16;
        self.0.extend(len.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// With one more, which is text.
    pub fn with_text(self, kind: u16, text: &str) -> Self {
        self.with(kind, &[text.as_bytes(), &[0]].concat())
    }

    /// With one more, which holds others.
    pub fn with_nested(self, kind: u16, others: &Self) -> Self {
        self.with(kind | NESTED, &others.0)
    }
}

/// The value of an attribute among these bytes.
fn find(mut bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    while bytes.len() >= ATTRIBUTE_BYTES {
        let len = usize::from(u16::from_ne_bytes([bytes[0], bytes[1]]));
        let kind = u16::from_ne_bytes([bytes[2], bytes[3]]) & !NESTED;
        let value = bytes.get(ATTRIBUTE_BYTES..len)?;
        if kind == wanted {
            return Some(value);
        }
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    None
}

/// A message as it is sent.
fn message(family: u16, number: u32, command: u8, attributes: &Attributes) -> Vec<u8> {
    let len = HEAD_BYTES + COMMAND_BYTES + attributes.0.len();
    let mut bytes = Vec::with_capacity(len);
    bytes.extend((len as u32).to_ne_bytes());
    bytes.extend(family.to_ne_bytes());
    bytes.extend((REQUEST | ACKNOWLEDGE).to_ne_bytes());
    bytes.extend(number.to_ne_bytes());
    // The kernel knows which socket this is.
    bytes.extend(0u32.to_ne_bytes());
    bytes.extend([command, 1, 0, 0]);
    bytes.extend(&attributes.0);
    bytes
}

/// What one datagram of answers says: the attributes of an answer, if it has one, and the error or acknowledgement, if it
/// has that.
fn answers(mut bytes: &[u8], number: u32) -> (Option<Vec<u8>>, Option<io::Result<()>>) {
    let (mut told, mut ended) = (None, None);
    while bytes.len() >= HEAD_BYTES {
        let word = |at: usize| {
            u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let len = word(0) as usize;
        let kind = u16::from_ne_bytes([bytes[4], bytes[5]]);
        let Some(body) = bytes.get(HEAD_BYTES..len) else { break };
        if word(8) == number && kind == ERROR && body.len() >= 4 {
            let error = i32::from_ne_bytes([body[0], body[1], body[2], body[3]]);
            ended = Some(match error {
                0 => Ok(()),
                error => Err(io::Error::from_raw_os_error(-error)),
            });
        } else if word(8) == number && body.len() >= COMMAND_BYTES {
            told = Some(body[COMMAND_BYTES..].to_vec());
        }
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    (told, ended)
}

/// The way to one family of the kernel.
pub struct Family {
    socket: OwnedFd,
    id: u16,
    number: u32,
}

impl Family {
    /// The family of this name; `None` if the kernel has none.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn find(name: &str) -> io::Result<Option<Self>> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: no memory is involved; the result is checked.
        let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_GENERIC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else's.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut family = Self { socket, id: CONTROLLER, number: 0 };
        let wanted = Attributes::default().with_text(FAMILY_NAME, name);
        match family.ask(GET_FAMILY, &wanted) {
            Ok(told) => {
                let id = find(&told, FAMILY_ID).and_then(|id| id.try_into().ok());
                family.id = u16::from_ne_bytes(id.ok_or_else(odd)?);
                Ok(Some(family))
            }
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Carries out a command; the attributes of its answer, if there is one.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn ask(&mut self, command: u8, attributes: &Attributes) -> io::Result<Vec<u8>> {
        self.number += 1;
        let bytes = message(self.id, self.number, command, attributes);
        let socket = self.socket.as_raw_fd();
        // SAFETY: as many readable bytes as told.
        let sent = unsafe { libc::send(socket, bytes.as_ptr().cast(), bytes.len(), 0) };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        let (mut all, mut buffer) = (Vec::new(), vec![0u8; ANSWER_BYTES_MAX]);
        loop {
            // SAFETY: as many writable bytes as told.
            let received =
                unsafe { libc::recv(socket, buffer.as_mut_ptr().cast(), buffer.len(), 0) };
            let Ok(received) = usize::try_from(received) else {
                let error = io::Error::last_os_error();
                match error.kind() {
                    io::ErrorKind::Interrupted => continue,
                    _ => return Err(error),
                }
            };
            let (told, ended) = answers(&buffer[..received], self.number);
            all = told.unwrap_or(all);
            if let Some(ended) = ended {
                return ended.map(|()| all);
            }
        }
    }
}

fn odd() -> io::Error {
    io::Error::other("the kernel answers in no way that is known")
}

/// A number of four bytes among the attributes of an answer.
pub fn number_of(told: &[u8], kind: u16) -> Option<u32> {
    Some(u32::from_ne_bytes(find(told, kind)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_and_found_again() {
        let inner = Attributes::default().with(1, &7u32.to_ne_bytes());
        let all = Attributes::default().with_text(2, "nbd").with_nested(9, &inner).with(3, &[5]);
        assert_eq!(all.0.len(), 8 + 12 + 8);
        assert_eq!(find(&all.0, 2), Some(&b"nbd\0"[..]));
        assert_eq!(number_of(find(&all.0, 9).unwrap(), 1), Some(7));
        assert_eq!((find(&all.0, 3), find(&all.0, 4)), (Some(&[5][..]), None));
        // What is cut off, or says that it is shorter than its head, is not read beyond.
        for cut in 0..all.0.len() {
            find(&all.0[..cut], 3);
        }
        assert_eq!(find(&[0; 64], 3), None);
    }

    #[test]
    fn an_answer_is_that_of_its_message_and_ends_with_an_error_or_none() {
        let told = message(20, 5, 1, &Attributes::default().with(1, &9u32.to_ne_bytes()));
        let error = |number: u32, code: i32| {
            let mut bytes = message(ERROR, number, 0, &Attributes::default());
            bytes[HEAD_BYTES..].copy_from_slice(&code.to_ne_bytes());
            bytes
        };
        let (attributes, ended) = answers(&[told.clone(), error(5, 0)].concat(), 5);
        assert_eq!(number_of(&attributes.unwrap(), 1), Some(9));
        assert!(ended.unwrap().is_ok());
        let (_, ended) = answers(&error(5, -libc::EBUSY), 5);
        assert_eq!(ended.unwrap().unwrap_err().raw_os_error(), Some(libc::EBUSY));
        let (none, ended) = answers(&[told, error(4, -1)].concat(), 6);
        assert!(none.is_none() && ended.is_none(), "they are another message's");
        answers(&[0; 40], 1);
    }
}

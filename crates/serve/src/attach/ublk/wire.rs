//! What a queue needs of a connection, whatever that speaks: what requests are there, and what is heard.

use super::abi::Descriptor;
use std::io;

/// What the queue knows of a tag.
#[derive(Clone, Copy, Debug)]
pub struct Slot<A> {
    /// The request, while it is with us.
    pub asked: Option<A>,
    /// It was asked of a server at least once.
    pub sent: bool,
    /// Its place among all that came.
    pub came: u64,
    /// The driver waits for nothing of this tag any more.
    pub gone: bool,
}

impl<A> Default for Slot<A> {
    fn default() -> Self {
        Self { asked: None, sent: false, came: 0, gone: false }
    }
}

/// What an answer means.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Heard {
    /// The request of this tag has ended: bytes, or an error that is negative.
    Done(u16, i32),
    /// The server is stopping, so that another one will have to be asked.
    Leaves,
    /// This is no answer to anything that was asked.
    Nonsense,
}

/// Memory of a tag's data, by tag.
#[derive(Clone, Copy)]
pub struct Memory {
    /// Of the first tag.
    pub start: *mut u8,
    /// Of each.
    pub io_bytes: u32,
}

impl Memory {
    /// Where the data of a tag is.
    pub fn of(&self, tag: u16) -> *mut u8 {
        // The memory holds that of every tag.
        self.start.wrapping_add(usize::from(tag) * self.io_bytes as usize)
    }
}

/// A queue's connection, as far as what is said there goes: it does no I/O on it.
pub trait Wire {
    /// A request.
    type Asked: Copy;

    /// What a descriptor asks; `None` for what cannot be done.
    fn understand(&self, descriptor: &Descriptor) -> Option<Self::Asked>;

    /// What the driver is told with the end of a tag's last request, if there was one, when the next one is fetched.
    fn address(&mut self, tag: u16) -> u64;

    /// A request has come: takes its data into the memory of its tag, unless it is there.
    ///
    /// # Errors
    /// What the system refuses.
    fn take(&mut self, tag: u16, asked: &Self::Asked) -> io::Result<()>;

    /// A new connection: nothing of the one before counts.
    fn reset(&mut self);

    /// Asks for a request.
    fn ask(&mut self, tag: u16, asked: &Self::Asked);

    /// Asks again for one that the server before may have carried out, and has not answered.
    ///
    /// # Errors
    /// It must not be carried out twice: what the disk is told.
    fn ask_again(&mut self, tag: u16, slot: &Slot<Self::Asked>) -> Result<(), i32>;

    /// What to send now, if there is anything. It is sent, or given up, before this is called again.
    fn outgoing(&mut self) -> Option<*const libc::msghdr>;

    /// So many bytes of it are sent.
    fn sent(&mut self, bytes: usize);

    /// Where the next bytes are to be received, and how many.
    fn incoming(&mut self, slots: &[Slot<Self::Asked>]) -> (*mut u8, u32);

    /// So many bytes were received there.
    fn received(&mut self, bytes: u32, slots: &[Slot<Self::Asked>]);

    /// The next thing that was heard, if it is all there.
    fn hear(&mut self, slots: &[Slot<Self::Asked>]) -> Option<Heard>;
}

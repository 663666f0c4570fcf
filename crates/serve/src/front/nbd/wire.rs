//! Bytes in and out of fields: collecting messages from arbitrary pieces, and reading their fields
//! without ever trusting a length the client wrote.

/// Collects one message from the pieces in which it arrives.
///
/// Invariant: holds fewer bytes than the message needs, and never reserves for bytes that have not
/// come: a client pays for the memory it takes.
#[derive(Debug, Default)]
pub(super) struct Gather {
    held: Vec<u8>,
}

impl Gather {
    /// The next `N` bytes once they are there, and how many of `bytes` were consumed.
    pub(super) fn array<const N: usize>(&mut self, bytes: &[u8]) -> (usize, Option<[u8; N]>) {
        if self.held.is_empty()
            && let Some(array) = bytes.first_chunk::<N>()
        {
            return (N, Some(*array));
        }
        let (consumed, whole) = self.vector(N, bytes);
        let array = whole.map(|whole| {
            let mut array = [0; N];
            array.copy_from_slice(&whole);
            // Keep the allocation for the next header.
            self.held = whole;
            self.held.clear();
            array
        });
        (consumed, array)
    }

    /// The next `need` bytes once they are there, and how many of `bytes` were consumed.
    pub(super) fn vector(&mut self, need: usize, bytes: &[u8]) -> (usize, Option<Vec<u8>>) {
        assert!(self.held.len() <= need, "the message being collected has not changed");
        let consumed = bytes.len().min(need - self.held.len());
        self.held.extend_from_slice(&bytes[..consumed]);
        let whole = (self.held.len() == need).then(|| std::mem::take(&mut self.held));
        (consumed, whole)
    }

    /// Bytes held of an incomplete message.
    pub(super) fn held_bytes(&self) -> usize {
        self.held.len()
    }
}

/// Reads big-endian fields off the front of a message; `None` where the message is too short.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// A 32-bit length and as many bytes.
    pub(super) fn string(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.u32()?).ok()?;
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(head)
    }

    /// Nothing is left.
    pub(super) fn is_empty(self) -> bool {
        self.0.is_empty()
    }
}

/// `text` cut to at most `bytes_max` bytes, between characters.
pub(super) fn cut(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

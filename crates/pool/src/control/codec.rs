//! Bytes of what the control plane keeps, written and read field by field, little-endian.

/// Appends fields.
#[derive(Default)]
pub(super) struct Writer {
    pub bytes: Vec<u8>,
}

impl Writer {
    pub fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    pub fn u16(&mut self, value: u16) {
        self.bytes.extend(value.to_le_bytes());
    }

    pub fn u32(&mut self, value: u32) {
        self.bytes.extend(value.to_le_bytes());
    }

    pub fn u64(&mut self, value: u64) {
        self.bytes.extend(value.to_le_bytes());
    }

    pub fn u128(&mut self, value: u128) {
        self.bytes.extend(value.to_le_bytes());
    }

    /// A length in 4 bytes, then the bytes.
    pub fn slice(&mut self, value: &[u8]) {
        self.u32(u32::try_from(value.len()).expect("what is written is bounded"));
        self.bytes.extend(value);
    }
}

/// Takes fields off the front. `None`: the bytes end too early.
pub(super) struct Reader<'a> {
    pub bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(count)?;
        self.bytes = rest;
        Some(taken)
    }

    pub fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.take(2).map(|bytes| u16::from_le_bytes(bytes.try_into().expect("2 bytes")))
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.take(4).map(|bytes| u32::from_le_bytes(bytes.try_into().expect("4 bytes")))
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.take(8).map(|bytes| u64::from_le_bytes(bytes.try_into().expect("8 bytes")))
    }

    pub fn u128(&mut self) -> Option<u128> {
        self.take(16).map(|bytes| u128::from_le_bytes(bytes.try_into().expect("16 bytes")))
    }

    pub fn slice(&mut self) -> Option<&'a [u8]> {
        let length = self.u32()?;
        self.take(usize::try_from(length).ok()?)
    }

    pub fn text(&mut self) -> Option<String> {
        String::from_utf8(self.slice()?.to_vec()).ok()
    }
}

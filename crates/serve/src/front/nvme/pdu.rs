//! The PDUs of NVMe over TCP: their bytes, and what a header may say. Little-endian throughout.

pub use client::nvme::{u16_at, u32_at, u64_at};

/// Of a host: the first PDU.
pub const IC_REQ: u8 = 0x00;
/// The answer to it.
pub const IC_RESP: u8 = 0x01;
/// Of a host: it ends the connection and says why.
pub const H2C_TERM: u8 = 0x02;
/// We end the connection and say why.
pub const C2H_TERM: u8 = 0x03;
/// Of a host: a command, perhaps with its data.
pub const CAPSULE_CMD: u8 = 0x04;
/// A completion.
pub const CAPSULE_RESP: u8 = 0x05;
/// Of a host: data that we have asked for.
pub const H2C_DATA: u8 = 0x06;
/// Data of a read.
pub const C2H_DATA: u8 = 0x07;
/// We are ready for data of a write.
pub const R2T: u8 = 0x09;

/// Bytes that all PDUs begin with.
pub const COMMON_BYTES: usize = 8;
/// Bytes of a submission queue entry.
pub const SQE_BYTES: usize = 64;
/// Most data in a command capsule.
pub const IN_CAPSULE_BYTES: u32 = 8192;
/// Most data of one command, and of one H2CData.
pub const DATA_BYTES_MAX: u32 = 1 << 20;
/// Bytes of ICReq and ICResp.
const IC_BYTES: u8 = 128;

const FLAG_HEADER_DIGEST: u8 = 1 << 0;
const FLAG_DATA_DIGEST: u8 = 1 << 1;
/// The last data of a command.
pub const FLAG_LAST: u8 = 1 << 2;

/// Why a connection ends, as a termination request says it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Fault {
    /// Fatal error status.
    pub status: u16,
    /// Of what it is about, if it is a field of a header: its first byte.
    pub field: u32,
    /// For people.
    pub reason: &'static str,
}

impl Fault {
    /// A field of a header is wrong.
    pub const fn field(field: u32, reason: &'static str) -> Self {
        Self { status: 1, field, reason }
    }
    /// This PDU does not come now.
    pub const fn sequence(reason: &'static str) -> Self {
        Self { status: 2, field: 0, reason }
    }
    /// The digest of a header is not that of the header.
    pub const HEADER_DIGEST: Self =
        Self { status: 3, field: 0, reason: "the digest of a header is wrong" };
    /// Data lies outside what was asked for.
    pub const fn range(reason: &'static str) -> Self {
        Self { status: 4, field: 0, reason }
    }
    /// We do not know what the host wants.
    pub const fn unsupported(field: u32, reason: &'static str) -> Self {
        Self { status: 6, field, reason }
    }
}

/// What both sides have agreed on by ICReq and ICResp.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Agreed {
    /// Headers are followed by their CRC-32C.
    pub header_digest: bool,
    /// Data is.
    pub data_digest: bool,
    /// The data of our PDUs begins at a multiple of this; 0 stands for 4.
    pub data_align: usize,
}

/// The common header of a PDU that a host may send, checked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Common {
    /// Its type.
    pub kind: u8,
    /// [`FLAG_LAST`] or 0.
    pub flags: u8,
    /// Bytes before the digest of the header.
    pub header: usize,
    /// Bytes before the data: header, digest, padding.
    pub head: usize,
    /// Bytes of data.
    pub data: u32,
    /// A digest follows the data.
    pub digest: bool,
}

impl Common {
    /// Checks a common header by what is agreed; before that (`None`) only ICReq may come.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(
        bytes: &[u8; COMMON_BYTES],
        agreed: Option<&Agreed>,
        data_max: u32,
    ) -> Result<Self, Fault> {
        let [kind, flags, header, offset, ..] = *bytes;
        let plen = u32_at(bytes, 4);
        let fixed = match (kind, agreed) {
            (IC_REQ, None) => IC_BYTES,
            (IC_REQ, Some(_)) => return Err(Fault::sequence("a second ICReq")),
            (H2C_TERM, _) => 24,
            (_, None) => return Err(Fault::sequence("the first PDU is no ICReq")),
            (CAPSULE_CMD, _) => 72,
            (H2C_DATA, _) => 24,
            _ => return Err(Fault::field(0, "a type of PDU that no host sends")),
        };
        if header != fixed {
            return Err(Fault::field(2, "a header length that is not that of its type"));
        }
        let common = Self {
            kind,
            flags: flags & FLAG_LAST,
            header: header.into(),
            head: header.into(),
            data: 0,
            digest: false,
        };
        match kind {
            IC_REQ if plen != u32::from(IC_BYTES) => {
                Err(Fault::field(4, "an ICReq of another length"))
            }
            // What a termination request quotes is not looked at: the connection ends here.
            IC_REQ | H2C_TERM => Ok(common),
            _ => common.with_data(flags, offset, plen, agreed, data_max),
        }
    }

    fn with_data(
        mut self,
        flags: u8,
        offset: u8,
        plen: u32,
        agreed: Option<&Agreed>,
        data_max: u32,
    ) -> Result<Self, Fault> {
        let agreed = agreed.copied().unwrap_or_default();
        if (flags & FLAG_HEADER_DIGEST != 0) != agreed.header_digest {
            return Err(Fault::field(1, "a header digest against what was agreed on"));
        }
        self.head += if agreed.header_digest { 4 } else { 0 };
        let end = self.head as u32;
        if plen < end {
            return Err(Fault::field(4, "a length below that of the header"));
        }
        if plen == end {
            return if self.kind == CAPSULE_CMD {
                Ok(self)
            } else {
                Err(Fault::field(4, "no data"))
            };
        }
        if usize::from(offset) < self.head || !offset.is_multiple_of(4) {
            return Err(Fault::field(3, "an offset of data within the header or not aligned"));
        }
        self.digest = flags & FLAG_DATA_DIGEST != 0;
        if self.digest != agreed.data_digest {
            return Err(Fault::field(1, "a data digest against what was agreed on"));
        }
        self.head = offset.into();
        let tail = if self.digest { 4 } else { 0 };
        self.data = plen.saturating_sub(u32::from(offset) + tail);
        if self.data == 0 || self.data > data_max {
            return Err(Fault::field(4, "a length that lies, or is beyond the limit"));
        }
        Ok(self)
    }
}

/// What a host asks for in its ICReq. Beside what is agreed on: its answer.
///
/// # Errors
/// What cannot be.
pub fn initialize(head: &[u8], out: &mut Vec<u8>) -> Result<Agreed, Fault> {
    if u16_at(head, 8) != 0 {
        return Err(Fault::unsupported(8, "another version of the PDU format"));
    }
    let (align, digests) = (head[10], head[11]);
    if align > 31 || digests > 3 {
        return Err(Fault::field(if align > 31 { 10 } else { 11 }, "a reserved value in ICReq"));
    }
    let agreed = Agreed {
        header_digest: digests & 1 != 0,
        data_digest: digests & 2 != 0,
        data_align: (usize::from(align) + 1) * 4,
    };
    let start = out.len();
    out.extend_from_slice(&[IC_RESP, 0, IC_BYTES, 0]);
    out.extend_from_slice(&u32::from(IC_BYTES).to_le_bytes());
    // Format 0, no alignment of the data that comes.
    out.extend_from_slice(&[0, 0, 0, digests]);
    out.extend_from_slice(&DATA_BYTES_MAX.to_le_bytes());
    out.resize(start + usize::from(IC_BYTES), 0);
    Ok(agreed)
}

/// True if the digest behind a header is that of the header.
pub fn header_is_sound(head: &[u8], common: &Common, agreed: &Agreed) -> bool {
    let header = common.header;
    let checked = agreed.header_digest && matches!(common.kind, CAPSULE_CMD | H2C_DATA);
    !checked || u32_at(head, header) == flash::crc(&head[..header])
}

impl Agreed {
    /// Puts a header of 24 bytes, its digest and padding; `data` bytes are to follow.
    fn push(&self, out: &mut Vec<u8>, (kind, flags): (u8, u8), body: &[u8; 16], data: u32) {
        let start = out.len();
        let head: usize = 24 + if self.header_digest { 4 } else { 0 };
        let offset = if data > 0 { head.next_multiple_of(self.data_align.max(4)) } else { head };
        let digested = data > 0 && self.data_digest;
        let plen = offset as u32 + data + if digested { 4 } else { 0 };
        let flags = flags
            | if self.header_digest { FLAG_HEADER_DIGEST } else { 0 }
            | if digested { FLAG_DATA_DIGEST } else { 0 };
        out.extend_from_slice(&[kind, flags, 24, if data > 0 { offset as u8 } else { 0 }]);
        out.extend_from_slice(&plen.to_le_bytes());
        out.extend_from_slice(body);
        if self.header_digest {
            let digest = flash::crc(&out[start..]);
            out.extend_from_slice(&digest.to_le_bytes());
        }
        out.resize(start + offset, 0);
    }

    /// Puts a completion.
    pub fn push_response(&self, out: &mut Vec<u8>, completion: &[u8; 16]) {
        self.push(out, (CAPSULE_RESP, 0), completion, 0);
    }

    /// Puts the header of all the data of a command; it follows, and its digest.
    pub fn push_data_header(&self, out: &mut Vec<u8>, command: u16, bytes: u32) {
        let mut body = [0; 16];
        body[..2].copy_from_slice(&command.to_le_bytes());
        body[8..12].copy_from_slice(&bytes.to_le_bytes());
        self.push(out, (C2H_DATA, FLAG_LAST), &body, bytes);
    }

    /// Puts all the data of a command.
    pub fn push_data(&self, out: &mut Vec<u8>, command: u16, data: &[u8]) {
        self.push_data_header(out, command, data.len() as u32);
        out.extend_from_slice(data);
        self.push_data_digest(out, &mut std::iter::once(data));
    }

    /// Puts the digest of data, if there are digests.
    pub fn push_data_digest(&self, out: &mut Vec<u8>, data: &mut dyn Iterator<Item = &[u8]>) {
        if self.data_digest {
            out.extend_from_slice(&digest(data).to_le_bytes());
        }
    }

    /// Asks for all of the data of a command.
    pub fn push_ready(&self, out: &mut Vec<u8>, command: u16, tag: u16, bytes: u32) {
        let mut body = [0; 16];
        body[..2].copy_from_slice(&command.to_le_bytes());
        body[2..4].copy_from_slice(&tag.to_le_bytes());
        body[8..12].copy_from_slice(&bytes.to_le_bytes());
        self.push(out, (R2T, 0), &body, 0);
    }
}

/// Puts a termination request, with the header that it is about.
pub fn push_termination(out: &mut Vec<u8>, fault: &Fault, head: &[u8]) {
    let head = &head[..head.len().min(128)];
    out.extend_from_slice(&[C2H_TERM, 0, 24, 0]);
    out.extend_from_slice(&(24 + head.len() as u32).to_le_bytes());
    out.extend_from_slice(&fault.status.to_le_bytes());
    out.extend_from_slice(&fault.field.to_le_bytes());
    out.extend_from_slice(&[0; 10]);
    out.extend_from_slice(head);
}

/// CRC-32C of data in pieces.
pub fn digest(data: &mut dyn Iterator<Item = &[u8]>) -> u32 {
    data.fold(0, flash::crc_append)
}

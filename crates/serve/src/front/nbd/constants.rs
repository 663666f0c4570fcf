//! The numbers of the NBD protocol (fixed newstyle, compact headers), as in the public `proto.md`.
//! All integers travel big-endian.

/// "NBDMAGIC", the first eight bytes a server sends.
pub const MAGIC: u64 = 0x4e42_444d_4147_4943;
/// "IHAVEOPT", the second eight bytes, and the start of every option.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Start of every reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Start of every request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Start of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Start of a chunk of a structured reply.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Bytes of the server's greeting: two magics and the handshake flags.
pub const GREETING_BYTES: usize = 18;
/// Bytes of an option before its data: magic, option, length.
pub const OPTION_HEADER_BYTES: usize = 16;
/// Bytes of a request before its payload: magic, flags, command, cookie, offset, length.
pub const REQUEST_HEADER_BYTES: usize = 28;
/// Bytes of a simple reply before its data: magic, error, cookie.
pub const SIMPLE_REPLY_BYTES: usize = 16;
/// Bytes of a structured chunk before its payload: magic, flags, type, cookie, length.
pub const CHUNK_HEADER_BYTES: usize = 20;
/// Zeroes after the answer to `EXPORT_NAME`, unless both sides agreed to leave them out.
pub const EXPORT_NAME_PADDING: usize = 124;

/// The longest string the protocol allows: names, descriptions, messages.
pub const STRING_BYTES_MAX: usize = 4096;
/// The longest message we send; a screen line or three, well below [`STRING_BYTES_MAX`].
pub const MESSAGE_BYTES_MAX: usize = 1024;
const _: () = assert!(MESSAGE_BYTES_MAX <= STRING_BYTES_MAX);
/// The longest option we read through only to refuse it; the client of a longer one is dropped.
pub const DRAIN_BYTES_MAX: u32 = 1 << 20;
/// Of one answer to a block status request: 8 KiB.
pub use crate::volume::EXTENTS_MAX;

/// Handshake flag of the server, and of the client: options have replies.
pub const FLAG_FIXED_NEWSTYLE: u16 = 1 << 0;
/// Handshake flag of the server, and of the client: no padding after `EXPORT_NAME`.
pub const FLAG_NO_ZEROES: u16 = 1 << 1;

/// Choose an export, no reply but the export's size and flags.
pub const OPT_EXPORT_NAME: u32 = 1;
/// Give up.
pub const OPT_ABORT: u32 = 2;
/// List the exports.
pub const OPT_LIST: u32 = 3;
/// Go on with TLS.
pub const OPT_STARTTLS: u32 = 5;
/// Describe an export.
pub const OPT_INFO: u32 = 6;
/// Choose an export.
pub const OPT_GO: u32 = 7;
/// Use structured replies.
pub const OPT_STRUCTURED_REPLY: u32 = 8;
/// List the metadata contexts.
pub const OPT_LIST_META_CONTEXT: u32 = 9;
/// Choose metadata contexts.
pub const OPT_SET_META_CONTEXT: u32 = 10;
/// Use 64-bit requests: not supported here.
pub const OPT_EXTENDED_HEADERS: u32 = 11;

/// Done.
pub const REP_ACK: u32 = 1;
/// One export of a list.
pub const REP_SERVER: u32 = 2;
/// One fact about an export.
pub const REP_INFO: u32 = 3;
/// One metadata context.
pub const REP_META_CONTEXT: u32 = 4;
/// Unknown option.
pub const REP_ERR_UNSUP: u32 = (1 << 31) + 1;
/// The configuration forbids it.
pub const REP_ERR_POLICY: u32 = (1 << 31) + 2;
/// Malformed.
pub const REP_ERR_INVALID: u32 = (1 << 31) + 3;
/// TLS must come first.
pub const REP_ERR_TLS_REQD: u32 = (1 << 31) + 5;
/// No such export.
pub const REP_ERR_UNKNOWN: u32 = (1 << 31) + 6;
/// The server stops.
pub const REP_ERR_SHUTDOWN: u32 = (1 << 31) + 7;
/// Longer than the server reads.
pub const REP_ERR_TOO_BIG: u32 = (1 << 31) + 9;

/// Size and transmission flags.
pub const INFO_EXPORT: u16 = 0;
/// Canonical name.
pub const INFO_NAME: u16 = 1;
/// Description for people.
pub const INFO_DESCRIPTION: u16 = 2;
/// Minimum, preferred and maximum request size.
pub const INFO_BLOCK_SIZE: u16 = 3;

/// Transmission flag: the flags are valid.
pub const SEND_HAS_FLAGS: u16 = 1 << 0;
/// Transmission flag: writes are refused.
pub const SEND_READ_ONLY: u16 = 1 << 1;
/// Transmission flag: flush is understood.
pub const SEND_FLUSH: u16 = 1 << 2;
/// Transmission flag: FUA is understood.
pub const SEND_FUA: u16 = 1 << 3;
/// Transmission flag: trim is understood.
pub const SEND_TRIM: u16 = 1 << 5;
/// Transmission flag: write zeroes is understood.
pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
/// Transmission flag: "don't fragment" is understood.
pub const SEND_DF: u16 = 1 << 7;
/// Transmission flag: a flush on one connection covers all.
pub const SEND_CAN_MULTI_CONN: u16 = 1 << 8;
/// Transmission flag: cache is understood.
pub const SEND_CACHE: u16 = 1 << 10;
/// Transmission flag: write zeroes can be asked to be fast or to fail.
pub const SEND_FAST_ZERO: u16 = 1 << 11;

/// Read.
pub const CMD_READ: u16 = 0;
/// Write; the payload follows the header.
pub const CMD_WRITE: u16 = 1;
/// Disconnect; has no reply.
pub const CMD_DISC: u16 = 2;
/// Flush.
pub const CMD_FLUSH: u16 = 3;
/// Trim.
pub const CMD_TRIM: u16 = 4;
/// Read ahead.
pub const CMD_CACHE: u16 = 5;
/// Write zeroes.
pub const CMD_WRITE_ZEROES: u16 = 6;
/// Which parts hold data.
pub const CMD_BLOCK_STATUS: u16 = 7;

/// Reply when durable.
pub const CMD_FLAG_FUA: u16 = 1 << 0;
/// Zeroes must be allocated.
pub const CMD_FLAG_NO_HOLE: u16 = 1 << 1;
/// Answer a read with one chunk.
pub const CMD_FLAG_DF: u16 = 1 << 2;
/// Answer a block status with one extent.
pub const CMD_FLAG_REQ_ONE: u16 = 1 << 3;
/// Write zeroes faster than a write would be, or fail.
pub const CMD_FLAG_FAST_ZERO: u16 = 1 << 4;

/// The last chunk of a structured reply.
pub const CHUNK_FLAG_DONE: u16 = 1 << 0;
/// Chunk: nothing (success).
pub const CHUNK_NONE: u16 = 0;
/// Chunk: offset and data.
pub const CHUNK_OFFSET_DATA: u16 = 1;
/// Chunk: offset and length of zeroes.
pub const CHUNK_OFFSET_HOLE: u16 = 2;
/// Chunk: context id and extents.
pub const CHUNK_BLOCK_STATUS: u16 = 5;
/// Chunk: error and message.
pub const CHUNK_ERROR: u16 = (1 << 15) + 1;
/// Chunk: error, message and where.
pub const CHUNK_ERROR_OFFSET: u16 = (1 << 15) + 2;

/// The one metadata context we have.
pub const CONTEXT_NAME: &str = "base:allocation";
/// Its id on the wire: any number, the same in the choice and in the replies.
pub const CONTEXT_ID: u32 = 1;
/// Extent flag: not allocated.
pub const STATE_HOLE: u32 = 1 << 0;
/// Extent flag: reads as zeroes.
pub const STATE_ZERO: u32 = 1 << 1;

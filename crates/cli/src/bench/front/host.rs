//! The smallest host of NVMe over TCP that there can be: an admin queue, one queue for I/O, blocks of 4 KiB without
//! digests, writes in their capsules. It is strict: whatever it did not ask for, and a block that is not the one it
//! wrote there, is an error.

use super::pump::{BLOCK, DEPTH, Wire, content, wrong};
use std::io::{Read, Result, Write};
use std::net::TcpStream;

/// Of a command's capsule before its data.
const CAPSULE_BYTES: usize = 72;
/// Of all PDUs that come.
const HEAD_BYTES: usize = 24;

const KIND_CAPSULE: u8 = 4;
const KIND_RESPONSE: u8 = 5;
const KIND_DATA: u8 = 7;
const WRITE: u8 = 1;
const READ: u8 = 2;
const SET_FEATURES: u8 = 9;
const FABRICS: u8 = 0x7f;

/// A submission queue entry.
type Entry = [u8; 64];

/// See the head of this file.
pub struct Host {
    /// The controller is there as long as this is.
    _admin: TcpStream,
}

fn put(into: &mut [u8], at: usize, bytes: &[u8]) {
    into[at..at + bytes.len()].copy_from_slice(bytes);
}

fn entry(opcode: u8, id: u16) -> Entry {
    let mut entry = [0; 64];
    (entry[0], entry[1]) = (opcode, 0x40);
    put(&mut entry, 2, &id.to_le_bytes());
    entry
}

/// A command, and its data in the capsule.
fn push(out: &mut Vec<u8>, entry: &Entry, data: &[u8]) {
    let offset = if data.is_empty() { 0 } else { CAPSULE_BYTES as u8 };
    out.extend_from_slice(&[KIND_CAPSULE, 0, CAPSULE_BYTES as u8, offset]);
    out.extend_from_slice(&((CAPSULE_BYTES + data.len()) as u32).to_le_bytes());
    out.extend_from_slice(entry);
    out.extend_from_slice(data);
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

/// A connection that has agreed on plain PDUs.
fn open(address: &str) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let mut request = [0; 128];
    (request[2], request[4]) = (128, 128);
    stream.write_all(&request)?;
    let mut response = [0; 128];
    stream.read_exact(&mut response)?;
    if response[0] != 1 {
        return Err(wrong("the server does not agree on PDUs"));
    }
    Ok(stream)
}

/// Sends a command that brings no data back, and returns the result of its completion.
fn ask(stream: &mut TcpStream, entry: &Entry, data: &[u8]) -> Result<u64> {
    let mut out = Vec::new();
    push(&mut out, entry, data);
    stream.write_all(&out)?;
    let mut response = [0; HEAD_BYTES];
    stream.read_exact(&mut response)?;
    let status = u16_at(&response, 22) >> 1;
    if response[0] != KIND_RESPONSE || status != 0 {
        return Err(wrong(format!("command {:#x} ended with {status:#x}", entry[0])));
    }
    Ok(u64::from(u32_at(&response, 8)))
}

fn connect(stream: &mut TcpStream, nqn: &str, queue: u16, controller: u16) -> Result<u16> {
    let mut connect = entry(FABRICS, 0);
    (connect[4], connect[39]) = (1, 1);
    put(&mut connect, 32, &1024u32.to_le_bytes());
    put(&mut connect, 42, &queue.to_le_bytes());
    put(&mut connect, 44, &(2 * DEPTH).to_le_bytes());
    let mut data = [0; 1024];
    put(&mut data, 16, &controller.to_le_bytes());
    put(&mut data, 256, nqn.as_bytes());
    put(&mut data, 512, b"nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-000000000001");
    Ok(ask(stream, &connect, &data)? as u16)
}

impl Host {
    /// A host of the first namespace, and its queue.
    pub fn connect(address: &str, nqn: &str) -> Result<(TcpStream, Self)> {
        let mut admin = open(address)?;
        let controller = connect(&mut admin, nqn, 0, u16::MAX)?;
        let mut enable = entry(FABRICS, 1);
        enable[44] = 0x14;
        put(&mut enable, 48, &0x46_0001u64.to_le_bytes());
        ask(&mut admin, &enable, &[])?;
        let mut queues = entry(SET_FEATURES, 2);
        queues[40] = 7;
        ask(&mut admin, &queues, &[])?;
        let mut io = open(address)?;
        connect(&mut io, nqn, 1, controller)?;
        Ok((io, Self { _admin: admin }))
    }
}

impl Wire for Host {
    fn push(&self, out: &mut Vec<u8>, reads: bool, id: u16, block: u64) {
        let mut command = entry(if reads { READ } else { WRITE }, id);
        (command[4], command[39]) = (1, if reads { 0x5a } else { 0x01 });
        put(&mut command, 32, &(BLOCK as u32).to_le_bytes());
        put(&mut command, 40, &block.to_le_bytes());
        let data = content(block);
        push(out, &command, if reads { &[] } else { &data });
    }

    fn take(
        &self,
        bytes: &[u8],
        _: bool,
        block: &dyn Fn(u16) -> Option<u64>,
    ) -> Result<Option<(usize, Option<u16>)>> {
        if bytes.len() < HEAD_BYTES {
            return Ok(None);
        }
        let len = u32_at(bytes, 4) as usize;
        if !(HEAD_BYTES..=HEAD_BYTES + BLOCK).contains(&len) {
            return Err(wrong("a PDU of another length than asked for"));
        }
        let Some(pdu) = bytes.get(..len) else { return Ok(None) };
        match pdu[0] {
            KIND_DATA => {
                let block = block(u16_at(pdu, 8)).ok_or_else(|| wrong("data of no command"))?;
                match pdu[HEAD_BYTES..] == content(block) {
                    true => Ok(Some((len, None))),
                    false => Err(wrong(format!("block {block} holds something else"))),
                }
            }
            KIND_RESPONSE => {
                let (id, status) = (u16_at(pdu, 20), u16_at(pdu, 22) >> 1);
                if status != 0 || block(id).is_none() {
                    return Err(wrong(format!("command {id} ended with {status:#x}")));
                }
                Ok(Some((len, Some(id))))
            }
            kind => Err(wrong(format!("a PDU of type {kind}"))),
        }
    }
}

//! The smallest host of NVMe over TCP that there can be: an admin queue, one queue for I/O, blocks of 4 KiB without
//! digests, writes in their capsules. It is strict: whatever it did not ask for, and a block that is not the one it
//! wrote there, is an error.

use super::pump::{BLOCK, DEPTH, Wire, content, wrong};
use client::nvme::{self, HEAD_BYTES, u16_at, u32_at};
use client::{Address, Stream};
use std::io::Result;
use std::net::{SocketAddr, TcpStream};

/// See the head of this file.
pub struct Host {
    /// The controller is there as long as this is.
    _admin: Stream,
}

impl Host {
    /// A host of the first namespace, and its queue.
    pub fn connect(address: &str, nqn: &str) -> Result<(TcpStream, Self)> {
        let address: SocketAddr = address.parse().map_err(|_| wrong("no address"))?;
        let dial = || Stream::dial(&Address::Tcp(address.ip().to_string(), address.port()));
        let failed = |error: client::Error| wrong(error.to_string());
        let name = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-000000000001".into();
        let host = nvme::Host { nqn: name, id: 0 };
        let controller = nvme::Controller::open(&dial, &host, nqn).map_err(failed)?;
        let queue = controller.queue(&dial, (&host, nqn), 2 * DEPTH).map_err(failed)?;
        match queue {
            Stream::Tcp(queue) => Ok((queue, Self { _admin: controller.into_stream() })),
            Stream::Unix(_) => Err(wrong("no TCP")),
        }
    }
}

impl Wire for Host {
    fn push(&self, out: &mut Vec<u8>, reads: bool, id: u16, block: u64) {
        let command = nvme::entry(if reads { nvme::READ } else { nvme::WRITE }, id, 1);
        let command = nvme::with_first(nvme::with_data(command, BLOCK as u32, reads), block);
        let data = content(block);
        let data: &[u8] = if reads { &[] } else { &data };
        out.extend_from_slice(&nvme::capsule(&command, data.len() as u32));
        out.extend_from_slice(data);
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
            nvme::KIND_DATA_IN => {
                let block = block(u16_at(pdu, 8)).ok_or_else(|| wrong("data of no command"))?;
                match pdu[HEAD_BYTES..] == content(block) {
                    true => Ok(Some((len, None))),
                    false => Err(wrong(format!("block {block} holds something else"))),
                }
            }
            nvme::KIND_RESPONSE => {
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

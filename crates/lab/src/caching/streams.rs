//! Which writes belong to a long sequential stream: a few streams are remembered by where they end.

use super::config::CachingConfig;
use crate::target::Io;

/// Streams remembered: those that went on longest ago are forgotten.
const STREAMS_MAX: usize = 64;

#[derive(Clone, Copy, Debug)]
struct Stream {
    end: u64,
    bytes: u64,
    used: u64,
}

/// See the head of this file.
#[derive(Clone, Debug, Default)]
pub struct Streams {
    streams: Vec<Stream>,
    clock: u64,
}

impl Streams {
    /// Notes a write, and says whether it goes past the cache.
    pub fn goes_past(&mut self, io: &Io, config: &CachingConfig) -> bool {
        if config.past_bytes == 0 {
            return false;
        }
        self.clock += 1;
        let fresh = Stream { end: io.offset + io.bytes, bytes: io.bytes, used: self.clock };
        let known = self.streams.iter_mut().find(|stream| stream.end == io.offset);
        let stream = match known {
            Some(stream) => {
                *stream = Stream { bytes: stream.bytes + io.bytes, ..fresh };
                *stream
            }
            None => {
                if self.streams.len() < STREAMS_MAX {
                    self.streams.push(fresh);
                } else if let Some(oldest) = self.streams.iter_mut().min_by_key(|it| it.used) {
                    *oldest = fresh;
                }
                fresh
            }
        };
        stream.bytes >= config.past_bytes && io.bytes >= config.past_io_bytes
    }
}

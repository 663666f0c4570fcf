//! Looks at the generation of the device, which another server that opens it counts up: whoever lost the
//! device must neither write nor acknowledge any more.
//!
//! Invariants:
//! - no program or erase is queued when the last look that found us in charge began more than
//!   [`LOOK_HOLDS`] ago;
//! - who cannot look writes and promises nothing until it can, but reads;
//! - what is promised to a client is told to it only after a look that began when the promise was kept:
//!   had another server opened the device before, it would not have met what is promised;
//! - a server that takes over a device from one that may be alive waits for [`TAKE_OVER`] between
//!   counting up the generation and reading anything: by then the other one has found out, and what it
//!   still wrote is there.
//!
//! In a folder a look reads 12 bytes from the page cache. From a disk or a file on one it is a read of
//! one sector, past the page cache, by the ring; several replies share it.

use super::GENERATION_BYTES;
use super::file::decode_generation;
use crate::runtime::buffer::Buffer;
use crate::runtime::ring::{Done, Ring};
use flash::BLOCK_BYTES;
use std::fmt;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// How long a look holds.
pub const LOOK_HOLDS: Duration = Duration::from_millis(100);
/// How often to look if nothing else asks for it.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long another server may go on with what it began: more than twice as long as a look holds.
pub const TAKE_OVER: Duration = Duration::from_millis(250);

/// What the I/O of a look is called among the jobs of a medium.
pub const LOOK: u32 = u32::MAX;

/// Why this server has the device no more.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Lost {
    /// Another one has opened it, as the generation says, if that is sound.
    To(Option<u64>),
    /// Another client has opened the volume of a pool, with this generation or a later one.
    ToClient(u64),
    /// That, or it was deleted: its control plane could not be asked which.
    ToSomebody(u64),
    /// The volume of a pool was deleted while it was open.
    Deleted,
    /// Nobody knew whose the volume of a pool was, as its control plane was not reached in time, or it is another one's.
    Lease,
    /// That, or it was deleted: its control plane could not be asked which.
    LeaseOrDeleted,
    /// The volume of a pool has grown, and could not be opened anew.
    Unopened,
    /// The FTL of a volume of a pool found no way to go on writing.
    Failed,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::To(Some(generation)) => write!(
                f,
                "another server has opened the device with generation {generation}: this one writes \
                 and acknowledges nothing any more; let clients go to the other one"
            ),
            Self::ToClient(generation) => write!(
                f,
                "another client has opened the volume, with generation {generation}: this one writes and acknowledges \
                 nothing any more; end one of the two"
            ),
            Self::ToSomebody(generation) => write!(
                f,
                "another client has opened the volume, with generation {generation}, or it was deleted: the control plane, \
                 which knows, does not answer. This one writes and acknowledges nothing any more; end one of the two"
            ),
            Self::Deleted => f.write_str(
                "the volume was deleted from the pool while this client had it open, so that nothing is left to be served: \
                 do not start it again",
            ),
            Self::Lease => f.write_str(
                "the lease of the volume was lost: somebody else may have opened it, so this one writes and acknowledges \
                 nothing any more; start it again",
            ),
            Self::LeaseOrDeleted => f.write_str(
                "the lease of the volume was lost: somebody else may have opened it, or deleted it, so this one writes and \
                 acknowledges nothing any more; start it again",
            ),
            Self::Failed => f.write_str(
                "its FTL found no way to go on writing: this client ends, and the next one recovers all that was made durable; \
                 start it again",
            ),
            Self::Unopened => f.write_str(
                "the volume has grown, and could not be opened anew as the log tells: mend that, and start it again",
            ),
            Self::To(None) => f.write_str(
                "the generation of the device was overwritten, by another server or by somebody else: \
                 this one writes and acknowledges nothing any more",
            ),
        }
    }
}

/// Watches the generation for one shard.
pub struct Watch {
    file: File,
    at: u64,
    expected: [u8; GENERATION_BYTES],
    /// Where a read past the page cache goes; `None`: through the page cache, at once.
    sector: Option<Buffer>,
    /// When the look under way began.
    under_way: Option<Instant>,
    /// When the last look that found us in charge began.
    looked: Instant,
    /// When the last look of all ended.
    tried: Instant,
    /// The last look could not be made: nothing is written before one can.
    blind: bool,
    lost: Option<Lost>,
}

impl Watch {
    /// Of the generation in `file` at `at`, which is `expected`. With `direct` the file is open past the
    /// page cache.
    pub fn new(file: File, at: u64, expected: [u8; GENERATION_BYTES], direct: bool) -> Self {
        let sector = direct.then(|| Buffer::new(1));
        // The first who asks looks.
        let looked = Instant::now().checked_sub(LOOK_HOLDS * 2).unwrap_or_else(Instant::now);
        let tried = looked;
        Self {
            file,
            at,
            expected,
            sector,
            under_way: None,
            looked,
            tried,
            blind: false,
            lost: None,
        }
    }

    /// True if a look costs next to nothing.
    pub fn is_cheap(&self) -> bool {
        self.sector.is_none()
    }

    /// Why the device is no more ours, if it is not.
    pub fn lost(&self) -> Option<Lost> {
        self.lost
    }

    /// True if the last look found the device ours.
    pub fn is_ours(&self) -> bool {
        self.lost.is_none() && !self.blind
    }

    /// True if a program or an erase may be queued now.
    pub fn may_write(&mut self) -> bool {
        let old = self.looked.elapsed() > LOOK_HOLDS;
        // One that cannot look does not try at every program.
        if self.lost.is_none() && old && !(self.blind && self.tried.elapsed() < LOOK_EVERY) {
            self.look_now();
        }
        self.is_ours()
    }

    /// Looks, and waits for it. On a disk that is a read: only for whoever has not looked for long.
    pub fn look_now(&mut self) {
        let began = Instant::now();
        let mut few = [0; GENERATION_BYTES];
        let mut sector = self.sector.as_ref().map(|_| Buffer::new(1));
        let bytes = sector.as_mut().map_or(&mut few[..], |sector| sector.bytes_mut());
        let read = self.file.read_at(bytes, self.at).map_err(|e| e.raw_os_error().unwrap_or(0));
        let bytes: &[u8] = sector.as_ref().map_or(&few[..], |sector| sector.bytes());
        let outcome = outcome(&self.expected, read.map(|count| &bytes[..count]));
        self.looked_at(began, outcome);
    }

    /// Begins a look unless one is under way. True if it has ended already.
    pub fn look(&mut self, ring: &mut Ring) -> bool {
        let Some(sector) = &mut self.sector else {
            self.look_now();
            return true;
        };
        if self.under_way.is_none() {
            self.under_way = Some(Instant::now());
            let to = sector.bytes_mut().as_mut_ptr();
            ring.read(LOOK, self.file.as_raw_fd(), to, BLOCK_BYTES, self.at);
        }
        false
    }

    /// A look that the ring made has ended.
    pub fn ended(&mut self, done: Done) {
        let (Some(began), Some(sector)) = (self.under_way.take(), &self.sector) else { return };
        let read = usize::try_from(done.result).map_err(|_| -done.result);
        let outcome = outcome(&self.expected, read.map(|count| &sector.bytes()[..count]));
        self.looked_at(began, outcome);
    }

    /// True while the ring makes a look.
    pub fn is_looking(&self) -> bool {
        self.under_way.is_some()
    }

    /// How long until the next look is due.
    pub fn due_in(&self) -> Duration {
        LOOK_EVERY.saturating_sub(self.under_way.unwrap_or(self.tried).elapsed())
    }

    fn looked_at(&mut self, began: Instant, outcome: Result<Option<Lost>, i32>) {
        self.tried = began;
        match outcome {
            Ok(None) => (self.looked, self.blind) = (self.looked.max(began), false),
            Ok(Some(lost)) => {
                self.lost.get_or_insert(lost);
            }
            Err(code) if !std::mem::replace(&mut self.blind, true) => {
                let error = std::io::Error::from_raw_os_error(code);
                tracing::error!(
                    %error,
                    "the generation of the device cannot be read, so that nobody knows if another \
                     server has opened it: nothing is written or acknowledged until it can"
                );
            }
            Err(_) => {}
        }
    }
}

/// Counts what waits for a look that began after it: the first so many of a queue.
#[derive(Default)]
pub struct Looks {
    /// The look under way, or the next one, is for so many.
    looked_for: usize,
}

impl Looks {
    /// How many of `waiting` a look was for that has ended now; `None` while there is none. Begins one if need
    /// be. What it found is the watch's to tell.
    pub fn settle(&mut self, waiting: usize, watch: &mut Watch, ring: &mut Ring) -> Option<usize> {
        if watch.is_looking() {
            return None;
        }
        if self.looked_for == 0 {
            self.looked_for = waiting;
            if !watch.look(ring) {
                return None;
            }
        }
        Some(std::mem::take(&mut self.looked_for))
    }
}

/// What a look found; `Err` if it could not be made.
fn outcome(
    expected: &[u8; GENERATION_BYTES],
    read: Result<&[u8], i32>,
) -> Result<Option<Lost>, i32> {
    let found = read?;
    if found.starts_with(expected) {
        return Ok(None);
    }
    Ok(Some(Lost::To(found.get(..GENERATION_BYTES).and_then(decode_generation))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::medium::encode_generation;

    #[test]
    fn a_watch_tells_who_has_the_device_and_never_goes_back() {
        let path = std::env::temp_dir().join(format!("weir-watch-{}", std::process::id()));
        std::fs::write(&path, encode_generation(3)).unwrap();
        let open = || File::open(&path).unwrap();
        let mut watch = Watch::new(open(), 0, encode_generation(3), false);
        assert!(watch.may_write() && watch.is_cheap());
        assert!(watch.due_in() > Duration::ZERO);
        std::fs::write(&path, encode_generation(4)).unwrap();
        assert!(watch.may_write(), "the last look still holds");
        std::thread::sleep(LOOK_HOLDS + LOOK_HOLDS / 10);
        assert!(!watch.may_write());
        assert_eq!(watch.lost(), Some(Lost::To(Some(4))));
        std::fs::write(&path, encode_generation(3)).unwrap();
        watch.look_now();
        assert!(!watch.may_write(), "what was lost stays lost");
        for (bytes, lost) in
            [(&b"oops"[..], Lost::To(None)), (&[0; 12][..], Lost::To(None)), (b"", Lost::To(None))]
        {
            std::fs::write(&path, bytes).unwrap();
            let mut watch = Watch::new(open(), 0, encode_generation(3), false);
            assert!(!watch.may_write());
            assert_eq!(watch.lost(), Some(lost));
        }
        let folder = File::open(std::env::temp_dir()).unwrap();
        let mut watch = Watch::new(folder, 0, encode_generation(3), false);
        assert!(!watch.may_write());
        assert_eq!(watch.lost(), None, "who cannot look does not know");
        std::fs::remove_file(&path).ok();
    }

    #[test]
    fn a_look_by_the_ring_holds_from_when_it_began() {
        let path = std::env::temp_dir().join(format!("weir-look-{}", std::process::id()));
        let mut sector = encode_generation(9).to_vec();
        sector.resize(BLOCK_BYTES, 0);
        std::fs::write(&path, &sector).unwrap();
        let mut watch = Watch::new(File::open(&path).unwrap(), 0, encode_generation(9), true);
        let mut ring = Ring::new(4, crate::runtime::ring::DriverChoice::Auto).unwrap();
        let mut done = Vec::new();
        assert!(!watch.look(&mut ring) && watch.is_looking());
        while ring.under_way() > 0 {
            ring.enter(None, &mut done).unwrap();
        }
        assert_eq!(done[0].index, LOOK);
        watch.ended(done[0]);
        assert!(!watch.is_looking() && watch.may_write());
        std::fs::write(&path, encode_generation(10)).unwrap();
        watch.look(&mut ring);
        ring.enter(None, &mut done).unwrap();
        watch.ended(done[1]);
        assert_eq!(watch.lost(), Some(Lost::To(Some(10))));
        std::fs::remove_file(&path).ok();
    }
}

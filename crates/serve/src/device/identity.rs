//! Whose a file is. Every file of a device carries a *mark*: which device and shard it is of, what it
//! holds, and of which open for writing. So a file that is another device's or another shard's, or an
//! older copy, is refused by name before anything is written; what lies in it would be taken for an
//! empty or an older device.
//!
//! A mark, numbers little-endian; it stands twice, 512 bytes apart, and one sound copy is enough:
//!
//! | bytes | holds |
//! |---|---|
//! | 0..8 | `b"WEIRMARK"` |
//! | 8..12 | version, 1 |
//! | 12..16 | role: 1 generation, 2 data, 3 oob, 4 blocks |
//! | 16..32 | uuid of the device, or of the fast tier |
//! | 32..36 | shard |
//! | 40..48 | generation of the open |
//! | 48..52 | state: 0 opening, 1 open, 2 closed well |
//! | 56..64 | id of that open, drawn at random |
//! | 64..80 | role 1: boot id of the machine that opened it |
//! | 80..88, 88..96 | role 1: device number and inode of the lock |
//! | 96..100, 100..104 | role 1: CRC-32C of the uuid of the fast tier, 0 for none; and of the one to come |
//! | 124..128 | CRC-32C of the bytes before |
//!
//! The mark beside the generation is the *master*: what the others are compared with. An open for
//! writing marks the other files as *opening*, then the master as open, then the other files; nothing
//! else is written before. A clean stop marks the others as closed and then the master. So a file may
//! differ from its master by what a cut can leave: *closed* while the master is still open, *opening* the same
//! or the next open. Of a file that is *open* beside an older master more may be written than the master
//! knows: then the master is an older copy, and where all files say so with one voice ([`settle`]) they are
//! right. The id tells apart opens of one generation that began from copies of one device.

use super::{DeviceError, FastNote};
use crate::files;
use std::fs::File;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 8] = b"WEIRMARK";
const VERSION: u32 = 1;
const MARK_BYTES: usize = 128;
/// From the first copy of a mark to the second: another sector of any disk.
const COPY_AT: usize = 512;
/// What both copies take.
pub const MARKS_BYTES: usize = COPY_AT + MARK_BYTES;

/// What a file holds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub enum Role {
    Generation = 1,
    Data = 2,
    Oob = 3,
    Blocks = 4,
}

/// The files of a shard, in the order in which their sizes are told.
pub const SHARD_ROLES: [Role; 3] = [Role::Data, Role::Oob, Role::Blocks];

/// How far an open is.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
#[repr(u32)]
pub enum State {
    /// Not written to yet: of a file whose master may not count this open, of the master of a fast tier
    /// whose capacity tier may not.
    Opening = 0,
    /// Written to, perhaps.
    Open = 1,
    /// Stopped well, and not written to since.
    Closed = 2,
}

/// Who has opened a device, as far as that tells whether it is still there.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Opener {
    boot: u128,
    /// Device number and inode.
    lock: [u64; 2],
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Mark {
    pub uuid: u128,
    pub role: Role,
    pub shard: u32,
    pub generation: u64,
    pub state: State,
    pub open_id: u64,
    pub opener: Opener,
    /// Of the fast tier that the device has, and of that which it is about to have.
    pub tiers: [u32; 2],
}

impl Role {
    /// The name of its file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Generation => "generation",
            Self::Data => "data",
            Self::Oob => "oob",
            Self::Blocks => "blocks",
        }
    }

    fn of(number: u32) -> Option<Self> {
        [Self::Generation, Self::Data, Self::Oob, Self::Blocks]
            .into_iter()
            .find(|&role| role as u32 == number)
    }
}

impl Mark {
    /// The master of a device that was never opened.
    pub fn fresh(uuid: u128, generation: u64) -> Self {
        Self {
            uuid,
            role: Role::Generation,
            shard: 0,
            generation,
            state: State::Closed,
            open_id: 0,
            opener: Opener::default(),
            tiers: [0; 2],
        }
    }

    /// The same with this fast tier, or none.
    pub fn beside(self, note: Option<&FastNote>) -> Self {
        let sum = tier_sum(note.map(|note| note.uuid.as_str()));
        Self { tiers: [sum, sum], ..self }
    }

    /// That of another file of the same open.
    pub fn of(&self, role: Role, shard: u32) -> Self {
        Self { role, shard, opener: Opener::default(), tiers: [0; 2], ..*self }
    }

    /// What the other files are told before this master is written.
    pub fn ahead(&self) -> Self {
        let state = if self.state == State::Open { State::Opening } else { self.state };
        Self { state, ..*self }
    }

    /// The master of the open after this one.
    pub fn next(&self, opener: Opener) -> Result<Self, DeviceError> {
        let open_id = super::random_uuid()? as u64;
        let generation = self.generation + 1;
        Ok(Self { generation, state: State::Open, open_id, opener, ..*self })
    }

    fn age(&self) -> (u64, State) {
        (self.generation, self.state)
    }

    fn encode(&self) -> [u8; MARK_BYTES] {
        let mut bytes = [0; MARK_BYTES];
        let mut put = |at: usize, from: &[u8]| bytes[at..at + from.len()].copy_from_slice(from);
        put(0, MAGIC);
        put(8, &VERSION.to_le_bytes());
        put(12, &(self.role as u32).to_le_bytes());
        put(16, &self.uuid.to_le_bytes());
        put(32, &self.shard.to_le_bytes());
        put(40, &self.generation.to_le_bytes());
        put(48, &(self.state as u32).to_le_bytes());
        put(56, &self.open_id.to_le_bytes());
        put(64, &self.opener.boot.to_le_bytes());
        put(80, &self.opener.lock[0].to_le_bytes());
        put(88, &self.opener.lock[1].to_le_bytes());
        put(96, &self.tiers[0].to_le_bytes());
        put(100, &self.tiers[1].to_le_bytes());
        let crc = flash::crc(&bytes[..124]);
        bytes[124..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..MARK_BYTES)?;
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| bytes[at + i]));
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let wide = |at: usize| u128::from(long(at)) | u128::from(long(at + 8)) << 64;
        if bytes[..8] != *MAGIC || word(8) != VERSION || word(124) != flash::crc(&bytes[..124]) {
            return None;
        }
        let states = [State::Opening, State::Open, State::Closed];
        Some(Self {
            uuid: wide(16),
            role: Role::of(word(12))?,
            shard: word(32),
            generation: long(40),
            state: *states.get(word(48) as usize)?,
            open_id: long(56),
            opener: Opener { boot: wide(64), lock: [long(80), long(88)] },
            tiers: [word(96), word(100)],
        })
    }

    /// Both copies.
    pub fn encode_twice(&self) -> [u8; MARKS_BYTES] {
        let mut bytes = [0; MARKS_BYTES];
        let mark = self.encode();
        bytes[..MARK_BYTES].copy_from_slice(&mark);
        bytes[COPY_AT..].copy_from_slice(&mark);
        bytes
    }

    /// The mark in its two copies; the later one, if a cut has left two.
    pub fn decode_twice(bytes: &[u8]) -> Option<Self> {
        let copies = [Self::decode(bytes), bytes.get(COPY_AT..).and_then(Self::decode)];
        copies.into_iter().flatten().max_by_key(Self::age)
    }
}

/// What stands for the fast tier of this uuid in a master.
pub fn tier_sum(uuid: Option<&str>) -> u32 {
    // A sum of 0 would be that of none.
    uuid.map_or(0, |uuid| flash::crc(uuid.as_bytes()).max(1))
}

/// A file with a mark behind what it holds.
#[derive(Clone, Debug)]
pub struct Marked {
    path: PathBuf,
    role: Role,
    shard: u32,
    at: u64,
    /// Length of the file.
    bytes: u64,
}

impl Marked {
    /// The file of this role in the folder of a shard, of which it holds so many bytes.
    pub fn new(folder: &Path, role: Role, shard: u32, bytes: u64) -> Self {
        let at = bytes.next_multiple_of(4096);
        Self { path: folder.join(role.name()), role, shard, at, bytes: with_mark(bytes) }
    }

    /// Of a file that is becoming a longer one: which of the two it is, as far as its length and its mark tell. It may be
    /// longer already and have its mark where it was.
    pub fn growing(self, longer: Self) -> Result<Self, DeviceError> {
        let found = length(&self.path)?;
        if found == longer.bytes && longer.read(true, 0).is_err() {
            return Ok(Self { bytes: found, ..self });
        }
        Ok(if found == longer.bytes { longer } else { self })
    }

    /// Its mark. With `bound` it must have one; else it may be of a build without: then it holds `bare` bytes, and
    /// no more.
    fn read(&self, bound: bool, bare: u64) -> Result<Option<Mark>, DeviceError> {
        let found = length(&self.path)?;
        if !bound && found == bare {
            return Ok(None);
        }
        if found != self.bytes {
            let wanted = self.bytes;
            let reason = format!("has {found} bytes where the device needs {wanted}");
            let mend = if found > wanted { PUT_BACK_LARGER } else { PUT_BACK };
            return Err(DeviceError::invalid(&self.path, reason, mend));
        }
        let mut bytes = [0; MARKS_BYTES];
        let file = files::open(&self.path, File::options().read(true));
        let file = file.map_err(DeviceError::io(&self.path, "open"))?;
        file.read_exact_at(&mut bytes, self.at)
            .map_err(DeviceError::io(&self.path, "read whose it is"))?;
        match Mark::decode_twice(&bytes) {
            None if bound || bytes != [0; MARKS_BYTES] => {
                let reason =
                    format!("the mark that tells whose it is, at byte {}, is damaged", self.at);
                Err(DeviceError::invalid(&self.path, reason, PUT_BACK))
            }
            mark => Ok(mark),
        }
    }

    fn compare(&self, mark: &Mark, master: &Mark) -> Result<(), (String, &'static str)> {
        if mark.uuid != master.uuid {
            let reason = format!(
                "is of another device (its uuid is {:032x}, and this device's {:032x})",
                mark.uuid, master.uuid
            );
            return Err((reason, PUT_BACK));
        }
        if (mark.role, mark.shard) != (self.role, self.shard) {
            let (name, shard) = (mark.role.name(), mark.shard);
            let mend = "put each file back where it was";
            return Err((format!("is the file `{name}` of shard {shard}"), mend));
        }
        let (of, at) = (mark.generation, master.generation);
        let is_same_open = of == at && mark.open_id == master.open_id;
        let is_opening = is_same_open && master.ahead().state == mark.state;
        if mark.age() < master.age() && !is_opening {
            let reason = format!(
                "is an older copy: of open {of} of the device, which was opened {at} times"
            );
            return Err((reason, PUT_BACK_ALL));
        }
        if of > at + 1 || of == at + 1 && mark.state != State::Opening {
            let reason = format!(
                "is newer than the file `generation`: of open {of} of the device, which was opened \
                 {at} times as that file says"
            );
            return Err((reason, PUT_BACK_ALL));
        }
        if of == at && !is_same_open && master.state != State::Opening {
            let reason =
                format!("is of another copy of the device, which went its own way at open {at}");
            return Err((reason, PUT_BACK_ALL));
        }
        Ok(())
    }

    /// Writes its mark, durably.
    pub fn write(&self, master: &Mark) -> Result<(), DeviceError> {
        let failed = "mark whose it is";
        // Only what is written here need be durable, not all that the file holds.
        let file = files::open_with(&self.path, File::options().write(true), libc::O_DSYNC);
        let file = file.map_err(DeviceError::io(&self.path, failed))?;
        let bytes = master.of(self.role, self.shard).encode_twice();
        file.write_all_at(&bytes, self.at).map_err(DeviceError::io(&self.path, failed))
    }
}

pub const PUT_BACK: &str = "put back the file of this device, or restore the whole device from a backup; \
                        nothing was written";
const PUT_BACK_LARGER: &str = "put back the file of this device, or, if the device has become larger, the `device.toml` that \
                               it has had since; nothing was written";
const PUT_BACK_ALL: &str = "put back the files that were last in use, or older copies of all files of \
                            the device from one time; nothing was written";

/// The master that files and their bare sizes go by: `master`, or one more open of which all of them tell that
/// it was begun. `Err` if a file does not belong to it. With `bound` all of them have marks.
pub fn settle(files: &[(Marked, u64)], master: &Mark, bound: bool) -> Result<Mark, DeviceError> {
    let marks: Result<Vec<Option<Mark>>, _> =
        files.iter().map(|(file, bare)| file.read(bound, *bare)).collect();
    let marks = marks?;
    let later = marks.first().copied().flatten().filter(|first| {
        let open = Mark { role: Role::Generation, shard: 0, ..*first };
        let agrees = |mark: &Option<Mark>| {
            mark.is_some_and(|mark| Mark { role: Role::Generation, shard: 0, ..mark } == open)
        };
        first.age() == (master.generation + 1, State::Open) && marks.iter().all(agrees)
    });
    // Who had it open is not known.
    let settled = later.map_or(*master, |Mark { generation, open_id, state, .. }| Mark {
        generation,
        open_id,
        state,
        opener: Opener::default(),
        ..*master
    });
    for ((file, _), mark) in files.iter().zip(&marks) {
        if let Some(mark) = mark {
            let refused = file.compare(mark, &settled);
            refused.map_err(|(why, mend)| DeviceError::invalid(&file.path, why, mend))?;
        }
    }
    Ok(settled)
}

/// Length of a file that holds so many bytes, with its mark behind them.
pub fn with_mark(bytes: u64) -> u64 {
    bytes.next_multiple_of(4096) + MARKS_BYTES as u64
}

/// Where the files of a shard are, in a folder.
pub fn shard_folder(path: &Path, shard: u32) -> PathBuf {
    path.join(format!("shard-{shard}"))
}

/// `Err` if what stands there for the folder of a shard is none, or a link to one.
pub fn expect_own_folders(path: &Path, shards: u32) -> Result<(), DeviceError> {
    for folder in (0..shards).map(|shard| shard_folder(path, shard)) {
        // One that is missing is told by its files.
        if folder.symlink_metadata().is_ok_and(|it| !it.is_dir()) {
            let reason = "is no folder, or a link to one, where the device has a folder of its own";
            return Err(DeviceError::invalid(&folder, reason, PUT_BACK));
        }
    }
    Ok(())
}

/// The length of a file that must be there.
fn length(path: &Path) -> Result<u64, DeviceError> {
    let found = files::look(path).map_err(DeviceError::of_own(path, "open", PUT_BACK));
    Ok(found?.len())
}

impl Opener {
    /// This process, which holds this lock.
    pub fn new(lock: &File) -> Self {
        let identity = lock.metadata().map(|found| match found.file_type().is_block_device() {
            true => [found.rdev(), 0],
            false => [found.dev(), found.ino()],
        });
        // Without either the other one cannot be told dead, which is the safe side.
        Self {
            boot: crate::kept::boot_id().map_or(0, u128::from_le_bytes),
            lock: identity.unwrap_or([0; 2]),
        }
    }

    /// True if whoever `self` was is gone: it held the lock that `now` holds, under the same kernel.
    pub fn is_gone(&self, now: &Self) -> bool {
        self.boot != 0 && self.lock != [0; 2] && self == now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn master() -> Mark {
        let opener = Opener { boot: 77, lock: [3, 4] };
        Mark { open_id: 5, opener, tiers: [6, 7], ..Mark::fresh(0x1234, 9) }
    }

    #[test]
    fn a_mark_comes_back_from_either_copy_and_from_no_other_bytes() {
        let mark = master();
        let bytes = mark.encode_twice();
        assert_eq!(Mark::decode_twice(&bytes), Some(mark));
        for at in 0..MARK_BYTES {
            let mut one = bytes;
            one[at] ^= 1;
            assert_eq!(Mark::decode_twice(&one), Some(mark), "the copy is whole");
            one[COPY_AT + at] ^= 1;
            assert_eq!(Mark::decode_twice(&one), None, "byte {at} counts");
            assert_eq!(Mark::decode_twice(&bytes[..at]), None);
        }
        // A cut between the copies: the later one counts.
        let later = Mark { generation: 10, state: State::Open, ..mark };
        let mut torn = bytes;
        torn[COPY_AT..].copy_from_slice(&later.encode());
        assert_eq!(Mark::decode_twice(&torn), Some(later));
    }

    #[test]
    fn a_file_is_taken_only_in_the_states_that_a_cut_can_leave() {
        let marked = Marked::new(Path::new("dev"), Role::Oob, 1, 100);
        let open = Mark { state: State::Open, ..master() };
        let closed = Mark { state: State::Closed, ..master() };
        let of = |mark: Mark| mark.of(Role::Oob, 1);
        let aged = |generation, state| Mark { generation, state, ..of(open) };
        let taken = |mark: &Mark, master: &Mark| marked.compare(mark, master).is_ok();
        for (mark, beside_open, beside_closed) in [
            (aged(8, State::Open), false, false),
            (aged(8, State::Closed), false, false),
            (aged(9, State::Open), true, false),
            (aged(9, State::Closed), true, true),
            (aged(9, State::Opening), true, false),
            (Mark { open_id: 6, ..aged(9, State::Opening) }, false, false),
            (aged(10, State::Opening), true, true),
            (aged(10, State::Open), false, false),
            (aged(10, State::Closed), false, false),
            (aged(11, State::Open), false, false),
            (Mark { open_id: 6, ..aged(9, State::Closed) }, false, false),
            (Mark { open_id: 6, ..aged(10, State::Opening) }, true, true),
            (Mark { uuid: 1, ..of(open) }, false, false),
            (Mark { shard: 0, ..of(closed) }, false, false),
            (Mark { role: Role::Data, ..of(closed) }, false, false),
        ] {
            assert_eq!(taken(&mark, &open), beside_open, "{mark:?} beside an open master");
            assert_eq!(taken(&mark, &closed), beside_closed, "{mark:?} beside a closed one");
        }
    }

    #[test]
    fn an_opener_is_gone_only_if_its_very_lock_is_held_now() {
        let one = Opener { boot: 1, lock: [2, 3] };
        assert!(one.is_gone(&one));
        assert!(
            !one.is_gone(&Opener { boot: 2, ..one }),
            "another machine, or another start of it"
        );
        assert!(!one.is_gone(&Opener { lock: [2, 4], ..one }), "the lock was removed");
        let unknown = Opener::default();
        assert!(!unknown.is_gone(&unknown));
    }
}

//! What may be changed of a volume table, and where a volume gets its room.
//!
//! A volume that is made or grows takes the smallest stretch of free blocks that is enough, or else the largest ones
//! there are. A volume that grows takes what lies behind its end first. Nothing is moved: a table of stretches is all
//! that a fragmented device costs, and the map of the FTL stays as it is.

use super::{NAME_BYTES_MAX, NUMBER_MAX, Stretch, Table, Volume, blocks_of, encode};
use flash::BLOCK_BYTES;
use std::fmt;

/// Most stretches of a volume.
pub(super) const STRETCHES_MAX: usize = 64;

/// How much clients may ask of a volume; 0: as much as they like.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Limits {
    /// Requests a second.
    pub iops: u64,
    /// Bytes a second, of reads, writes and what writes zeroes.
    pub bytes_per_sec: u64,
    /// What was not asked for so many milliseconds may be asked at once; 0 for [`Limits::BURST_MS`].
    pub burst_ms: u64,
}

impl Limits {
    /// Unless something else is said.
    pub const BURST_MS: u64 = 100;
    /// The longest time of which may be made up.
    pub const BURST_MS_MAX: u64 = 60_000;
    /// Most requests a second that are a limit.
    pub const IOPS_MAX: u64 = 1 << 32;

    /// Most bytes a second that are.
    pub const BYTES_PER_SEC_MAX: u64 = 1 << 50;

    /// Nothing is limited.
    pub fn is_none(&self) -> bool {
        self.iops == 0 && self.bytes_per_sec == 0
    }

    /// Whether they can be kept.
    ///
    /// # Errors
    /// Which of `iops`, `bandwidth` and `burst` cannot, and why.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        if self.burst_ms > Self::BURST_MS_MAX {
            return Err(("burst", format!("must be at most {} s", Self::BURST_MS_MAX / 1000)));
        }
        if self.burst_ms > 0 && self.is_none() {
            return Err(("burst", "has no effect without iops or bandwidth".into()));
        }
        let most = [
            ("iops", self.iops, Self::IOPS_MAX),
            ("bandwidth", self.bytes_per_sec, Self::BYTES_PER_SEC_MAX),
        ];
        match most.into_iter().find(|(_, value, most)| value > most) {
            Some((key, value, most)) => Err((
                key,
                format!("{value} is more than any device does: at most {most}, 0 for none"),
            )),
            None => Ok(()),
        }
    }
}

/// The device that a table is of.
#[derive(Clone, Copy, Debug)]
pub struct TableLimits {
    /// Its logical blocks.
    pub device_blocks: u64,
}

/// What is wanted of a table.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Change {
    /// A new volume.
    Create {
        /// Its name.
        name: String,
        /// Its blocks.
        blocks: u64,
        /// By which NVMe hosts know it.
        uuid: u128,
        /// It refuses writes.
        read_only: bool,
    },
    /// A volume less.
    Delete {
        /// Which.
        name: String,
    },
    /// A volume of another size.
    Resize {
        /// Which.
        name: String,
        /// Its blocks from now on.
        blocks: u64,
        /// They may be fewer than they were: what is behind them is lost.
        shrink: bool,
    },
    /// A volume of another name.
    Rename {
        /// Which.
        from: String,
        /// What it is called from now on.
        to: String,
        /// By which NVMe hosts have known it, and go on so.
        uuid: u128,
    },
    /// Other limits.
    Limit {
        /// Of which volume.
        name: String,
        /// From now on.
        limits: Limits,
    },
    /// A volume that begins as a snapshot is, which takes more than another table ([`Table::with_clone`]).
    Clone {
        /// The whole name of the snapshot.
        of: String,
        /// What the volume is called.
        name: String,
        /// By which NVMe hosts know it.
        uuid: u128,
    },
    /// A new snapshot, which takes more than another table ([`Table::with_snapshot`]).
    Snapshot {
        /// Of which volume.
        volume: String,
        /// What it is called, behind the name of the volume.
        name: String,
        /// By which NVMe hosts know it.
        uuid: u128,
    },
}

/// Why a table cannot be changed so. Nothing has changed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ChangeError {
    /// There is no such volume, but these.
    Unknown(String, Vec<String>),
    /// There is one of that name.
    Exists(String),
    /// No volume may be called so.
    Name(String),
    /// No volume may have so many blocks.
    Size,
    /// So many blocks are wanted, so many free, and so many more will be soon.
    Room {
        /// Wanted.
        wanted: u64,
        /// Free.
        free: u64,
        /// Still being trimmed.
        leaving: u64,
    },
    /// It would be smaller, and nobody said that it may.
    Shrinks {
        /// Its blocks.
        from: u64,
        /// Those wanted.
        to: u64,
    },
    /// What is free lies in too many pieces.
    Scattered,
    /// The table has no room for more.
    Full,
    /// No snapshot may be called so.
    SnapshotName(String),
    /// A snapshot stays as it is.
    IsSnapshot(String),
    /// A volume of which there are snapshots is not deleted.
    HasSnapshots(String, Vec<String>),
    /// A volume is not cloned, but a snapshot is.
    IsVolume(String),
    /// A snapshot of which there are clones is not deleted.
    HasClones(String, Vec<String>),
    /// A clone does not become smaller.
    IsClone(String),
    /// No snapshot or clone can be had, for this reason.
    NoSnapshot(String),
}

/// Blocks, for people and configs.
pub fn size(blocks: u64) -> String {
    amount(blocks.saturating_mul(BLOCK_BYTES as u64))
}

/// Bytes, as a config has them.
pub fn amount(bytes: u64) -> String {
    match bytes {
        bytes if bytes.is_multiple_of(1 << 20) => format!("{}MiB", bytes >> 20),
        bytes if bytes.is_multiple_of(1 << 10) => format!("{}KiB", bytes >> 10),
        bytes => format!("{}KB", bytes / 1000),
    }
}

impl fmt::Display for ChangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(name, known) if known.is_empty() => {
                write!(f, "no volume is called {name:?}: there is none")
            }
            Self::Unknown(name, known) => {
                write!(f, "no volume is called {name:?}; there are {}", known.join(", "))
            }
            Self::Exists(name) => {
                write!(f, "there is a volume or snapshot called {name:?}: choose another name")
            }
            Self::Name(name) => write!(
                f,
                "{name:?}: a name has 1 to {NAME_BYTES_MAX} bytes, no / or ?, and no control characters"
            ),
            Self::Size => {
                f.write_str("a size is a multiple of 4096 bytes, and not 0: for example 8GiB")
            }
            Self::Room { wanted, free, leaving } => {
                write!(
                    f,
                    "{} are wanted, and {} of the device belong to no volume",
                    size(*wanted),
                    size(*free)
                )?;
                if *leaving > 0 {
                    write!(f, " ({} more are still being trimmed)", size(*leaving))?;
                }
                f.write_str(": choose a smaller size, or delete or shrink another volume")
            }
            Self::Shrinks { from, to } => write!(
                f,
                "from {} to {} all data behind the new end would be lost: say --shrink (\"shrink\": true) if that \
                 is meant",
                size(*from),
                size(*to)
            ),
            Self::Scattered => write!(
                f,
                "what is free lies in so many pieces that a volume would have more than {STRETCHES_MAX}: choose a \
                 smaller size, or delete a volume"
            ),
            Self::Full => write!(
                f,
                "the table of volumes is full ({} bytes): delete a volume or a snapshot, or choose shorter names",
                ftl::LABEL_BYTES_MAX
            ),
            Self::SnapshotName(name) => write!(
                f,
                "{name:?}: the name of a snapshot has 1 to {NAME_BYTES_MAX} bytes, no @, / or ?, and no control characters"
            ),
            Self::IsSnapshot(name) => write!(
                f,
                "{name:?} is a snapshot, which stays as it is: it can be read, and deleted"
            ),
            Self::HasSnapshots(name, those) => needed(f, name, ("snapshots", those)),
            Self::IsVolume(name) => write!(
                f,
                "{name:?} is a volume, and a clone is made of a snapshot: take one before (weir volume snapshot {name} \
                 NAME), and clone {name}@NAME"
            ),
            Self::HasClones(name, those) => needed(f, name, ("clones", those)),
            Self::IsClone(name) => write!(
                f,
                "{name:?} is a clone, which does not become smaller: copy it to a volume of the size that is wanted"
            ),
            Self::NoSnapshot(reason) => f.write_str(reason),
        }
    }
}

/// Something is not deleted because of others.
fn needed(f: &mut fmt::Formatter<'_>, name: &str, (kind, those): (&str, &[String])) -> fmt::Result {
    write!(f, "there are {kind} of {name:?}: delete {} before", those.join(", "))
}

impl std::error::Error for ChangeError {}

impl Table {
    /// The table after a change.
    ///
    /// # Errors
    /// Why it cannot be.
    pub fn with(&self, change: &Change, limits: TableLimits) -> Result<Self, ChangeError> {
        let mut next = Self { changed: true, ..self.clone() };
        let room = limits.device_blocks;
        match change {
            Change::Create { name, blocks, uuid, read_only } => {
                self.is_new(name)?;
                if self.next_number > NUMBER_MAX {
                    return Err(ChangeError::Full);
                }
                next.next_number += 1;
                next.volumes.push(Volume {
                    number: self.next_number,
                    name: name.clone(),
                    uuid: Some(*uuid),
                    stretches: self.find_room(*blocks, None, room)?,
                    read_only: *read_only,
                    limits: Limits::default(),
                    origin: None,
                });
            }
            Change::Delete { name } if let Some(snapshot) = self.snapshot(name) => {
                let clones = self.clones_of(snapshot);
                if !clones.is_empty() {
                    return Err(ChangeError::HasClones(name.clone(), clones));
                }
                next.snapshots.retain(|snapshot| self.name_of(snapshot) != *name);
                if next.snapshots.is_empty() {
                    next.device_blocks = 0;
                }
            }
            Change::Delete { name } => {
                let of = &self.volumes[self.find(name)?];
                let snapshots = self.snapshots_of(of);
                if !snapshots.is_empty() {
                    return Err(ChangeError::HasSnapshots(name.clone(), snapshots));
                }
                let gone = next.volumes.remove(self.find(name)?);
                next.leave(gone.stretches);
            }
            Change::Resize { name, blocks, shrink } => {
                next.resize((self.find(name)?, *blocks), *shrink, room)?;
            }
            Change::Rename { from, to, uuid } => {
                let at = self.find(from)?;
                if from != to {
                    self.is_new(to)?;
                }
                let volume = &mut next.volumes[at];
                volume.name.clone_from(to);
                volume.uuid.get_or_insert(*uuid);
                // Its snapshots are called otherwise, too.
                if let Some(other) = next
                    .snapshots_of(&next.volumes[at])
                    .into_iter()
                    .find(|name| next.volumes.iter().any(|volume| volume.name == *name))
                {
                    return Err(ChangeError::Exists(other));
                }
            }
            Change::Limit { name, limits } => next.volumes[self.find(name)?].limits = *limits,
            Change::Snapshot { .. } | Change::Clone { .. } => {
                let reason = "snapshots and clones are made by steps of their own".into();
                return Err(ChangeError::NoSnapshot(reason));
            }
        }
        match encode(&next) {
            Some(_) => Ok(next),
            None => Err(ChangeError::Full),
        }
    }

    /// The table once these stretches are trimmed.
    #[must_use]
    pub fn without(&self, trimmed: &[Stretch]) -> Self {
        let mut next = self.clone();
        next.leaving.retain(|stretch| !trimmed.contains(stretch));
        next
    }

    /// Where a volume of this name is.
    ///
    /// # Errors
    /// Nowhere.
    pub fn find(&self, name: &str) -> Result<usize, ChangeError> {
        if self.snapshot(name).is_some() {
            return Err(ChangeError::IsSnapshot(name.into()));
        }
        let found = self.volumes.iter().position(|volume| volume.name == name);
        found.ok_or_else(|| {
            let volumes = self.volumes.iter().map(|volume| volume.name.clone());
            let snapshots = self.snapshots.iter().map(|snapshot| self.name_of(snapshot));
            ChangeError::Unknown(name.into(), volumes.chain(snapshots).collect())
        })
    }

    pub(super) fn is_new(&self, name: &str) -> Result<(), ChangeError> {
        if name.is_empty() || !is_name(name) {
            return Err(ChangeError::Name(name.into()));
        }
        self.is_nobodys(name)
    }

    /// Neither a volume nor a snapshot is called so.
    pub(super) fn is_nobodys(&self, name: &str) -> Result<(), ChangeError> {
        match self.find(name) {
            Err(ChangeError::Unknown(..)) => Ok(()),
            _ => Err(ChangeError::Exists(name.into())),
        }
    }

    fn resize(
        &mut self,
        (at, blocks): (usize, u64),
        shrink: bool,
        room: u64,
    ) -> Result<(), ChangeError> {
        let from = self.volumes[at].blocks();
        if blocks >= from {
            let end = self.volumes[at].stretches.last().map(Stretch::end);
            let more = match blocks - from {
                0 => Vec::new(),
                more => self.find_room(more, end, room)?,
            };
            let stretches = &mut self.volumes[at].stretches;
            stretches.extend(more);
            merge(stretches);
            return if stretches.len() > STRETCHES_MAX {
                Err(ChangeError::Scattered)
            } else {
                Ok(())
            };
        }
        if blocks == 0 {
            return Err(ChangeError::Size);
        }
        if !shrink {
            return Err(ChangeError::Shrinks { from, to: blocks });
        }
        if self.volumes[at].origin.is_some() {
            // The FTL knows the blocks of a clone: another volume that got some of them would be in its way.
            return Err(ChangeError::IsClone(self.volumes[at].name.clone()));
        }
        let (mut kept, mut gone, mut left) = (Vec::new(), Vec::new(), blocks);
        for stretch in std::mem::take(&mut self.volumes[at].stretches) {
            let stays = stretch.blocks.min(left);
            left -= stays;
            kept.extend((stays > 0).then_some(Stretch { blocks: stays, ..stretch }));
            let (first, blocks) = (stretch.first + stays, stretch.blocks - stays);
            gone.extend((blocks > 0).then_some(Stretch { first, blocks }));
        }
        self.volumes[at].stretches = kept;
        self.leave(gone);
        Ok(())
    }

    /// These belong to nobody once they are trimmed. They are not merged with others: each is trimmed as it came.
    fn leave(&mut self, stretches: Vec<Stretch>) {
        self.leaving.extend(stretches);
    }

    /// Free blocks for a volume, those at `near` first.
    fn find_room(
        &self,
        wanted: u64,
        near: Option<u64>,
        device_blocks: u64,
    ) -> Result<Vec<Stretch>, ChangeError> {
        if wanted == 0 {
            return Err(ChangeError::Size);
        }
        let mut free = self.free(device_blocks);
        let sum = blocks_of(&free);
        if sum < wanted {
            let leaving = blocks_of(&self.leaving);
            return Err(ChangeError::Room { wanted, free: sum, leaving });
        }
        let (mut found, mut left) = (Vec::new(), wanted);
        let mut take = |stretch: Stretch| {
            let blocks = stretch.blocks.min(left);
            left -= blocks;
            found.extend((blocks > 0).then_some(Stretch { blocks, ..stretch }));
            left
        };
        if let Some(at) = free.iter().position(|stretch| Some(stretch.first) == near) {
            take(free.remove(at));
        }
        // The smallest that is enough, or the largest.
        loop {
            free.sort_unstable_by_key(|stretch| (stretch.blocks, stretch.first));
            let left = take(Stretch { first: 0, blocks: 0 });
            if left == 0 {
                break;
            }
            let enough = free.iter().position(|stretch| stretch.blocks >= left);
            let at = enough.unwrap_or(free.len() - 1);
            take(free.remove(at));
        }
        if found.len() > STRETCHES_MAX { Err(ChangeError::Scattered) } else { Ok(found) }
    }
}

/// A volume may be called so, but for the empty name, which means the first one.
pub fn is_name(name: &str) -> bool {
    let odd = |c: char| c.is_control() || ['/', '?'].contains(&c);
    name.len() <= NAME_BYTES_MAX && !name.contains(odd)
}

/// Makes one of each two that follow each other.
fn merge(stretches: &mut Vec<Stretch>) {
    stretches.dedup_by(|next, before| {
        let follows = before.end() == next.first;
        if follows {
            before.blocks += next.blocks;
        }
        follows
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: TableLimits = TableLimits { device_blocks: 1000 };

    fn create(name: &str, blocks: u64) -> Change {
        Change::Create { name: name.into(), blocks, uuid: 7, read_only: false }
    }

    fn resize(name: &str, blocks: u64, shrink: bool) -> Change {
        Change::Resize { name: name.into(), blocks, shrink }
    }

    fn delete(name: &str) -> Change {
        Change::Delete { name: name.into() }
    }

    fn changed(changes: &[Change]) -> Result<Table, ChangeError> {
        let empty = Table::made(Vec::new());
        changes.iter().try_fold(empty, |table, change| {
            let next = table.with(change, DEVICE)?;
            assert!(next.is_sound(), "{next:?}");
            Ok(next)
        })
    }

    fn stretches(table: &Table, name: &str) -> Vec<(u64, u64)> {
        let volume = &table.volumes[table.find(name).unwrap()];
        volume.stretches.iter().map(|stretch| (stretch.first, stretch.blocks)).collect()
    }

    #[test]
    fn a_volume_takes_the_smallest_room_that_is_enough_and_else_the_largest() {
        let mut table = changed(&[
            create("a", 100),
            create("b", 50),
            create("c", 100),
            create("d", 300),
            create("e", 50),
        ])
        .unwrap();
        for name in ["b", "d"] {
            table = table.with(&delete(name), DEVICE).unwrap();
        }
        table = table.without(&table.leaving.clone());
        // Free are 50 at 100, 300 at 250, 400 at 600.
        let of = |blocks| stretches(&table.with(&create("x", blocks), DEVICE).unwrap(), "x");
        assert_eq!(of(40), [(100, 40)]);
        assert_eq!(of(51), [(250, 51)]);
        assert_eq!(of(301), [(600, 301)]);
        assert_eq!(of(500), [(600, 400), (250, 100)]);
        assert_eq!(of(750), [(600, 400), (250, 300), (100, 50)]);
        let grown = table.with(&resize("c", 120, false), DEVICE).unwrap();
        assert_eq!(stretches(&grown, "c"), [(150, 120)], "what lies behind its end comes first");
        let far = table.with(&resize("a", 440, false), DEVICE).unwrap();
        assert_eq!(stretches(&far, "a"), [(0, 150), (250, 290)]);
    }

    #[test]
    fn what_a_volume_had_is_nobodys_until_it_is_trimmed() {
        let table = changed(&[create("a", 600), create("b", 400), delete("a")]).unwrap();
        let room = |table: &Table| table.with(&create("c", 1), DEVICE).map(|_| ());
        assert_eq!(room(&table), Err(ChangeError::Room { wanted: 1, free: 0, leaving: 600 }));
        let trimmed = table.without(&table.leaving.clone());
        assert_eq!((room(&trimmed), trimmed.leaving.len()), (Ok(()), 0));
        let shrunk = trimmed.with(&resize("b", 10, true), DEVICE).unwrap();
        assert_eq!(stretches(&shrunk, "b"), [(600, 10)]);
        assert_eq!(shrunk.leaving, [Stretch { first: 610, blocks: 390 }]);
    }

    #[test]
    fn what_cannot_be_is_refused_and_says_what_to_do() {
        let table = changed(&[create("a", 600)]).unwrap();
        let refused = |change: &Change| table.with(change, DEVICE).unwrap_err().to_string();
        let told = |change: &Change, wanted: &str| {
            let error = refused(change);
            assert!(error.contains(wanted), "{error}");
        };
        told(&create("a", 1), "choose another name");
        told(&create("", 1), "1 to 64 bytes");
        told(&create("x/y", 1), "no / or ?");
        told(&create("b", 0), "multiple of 4096");
        told(&create("b", 401), "1604KiB are wanted, and 1600KiB of the device");
        told(&create(&"é".repeat(33), 1), "64 bytes");
        told(&delete("b"), "no volume is called \"b\"; there are a");
        told(&resize("a", 599, false), "--shrink");
        told(&resize("a", 0, true), "not 0");
        told(&resize("a", u64::MAX, false), "are wanted");
        let rename =
            |from: &str, to: &str| Change::Rename { from: from.into(), to: to.into(), uuid: 1 };
        told(&rename("b", "c"), "no volume");
        told(&rename("a", "a?"), "no / or ?");
        assert_eq!(table.with(&rename("a", "a"), DEVICE).unwrap().volumes[0].name, "a");
    }

    #[test]
    fn a_table_holds_as_many_volumes_as_fit_the_label() {
        let mut table = Table::made(Vec::new());
        let many = TableLimits { device_blocks: 1 << 30 };
        let mut made = 0;
        let full = loop {
            match table.with(&create(&format!("volume-{made}"), 1 << 20), many) {
                Ok(next) => table = next,
                Err(error) => break error,
            }
            made += 1;
        };
        assert_eq!(full, ChangeError::Full);
        assert!((70..200).contains(&made), "{made}");
    }

    #[test]
    fn a_number_never_comes_back() {
        let table = changed(&[create("a", 1), delete("a"), create("a", 1)]).unwrap();
        assert_eq!((table.volumes[0].number, table.next_number), (2, 3));
    }
}

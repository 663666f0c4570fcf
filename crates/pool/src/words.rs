//! The words that all parts of the pool share.

/// A pool: all of whose parts know each other. Drawn when it is made.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct PoolId(pub u128);

/// What serves one drive. A machine with several drives runs several nodes.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct NodeId(pub u32);

/// What fails together: a machine, a rack. The members of a band are in different ones.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct DomainId(pub u32);

/// A volume of a pool.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct VolumeId(pub u32);

/// Counts the openings of a volume for writing: of two clients, the one with the larger number owns it.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct Generation(pub u64);

/// Who may use a volume on a node: nobody below this generation, and of it only this owner. The plane gives out a
/// generation once; but one that was restored from a copy knows nothing of the last ones, and gives them out again.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct Fenced {
    /// The least that counts.
    pub generation: Generation,
    /// Which opening of that generation; 0 where it did not say.
    pub owner: u64,
}

impl Fenced {
    /// The owner of a volume that is deleted: no opening has this number.
    pub const DELETED: u64 = u64::MAX;

    /// Whether an opening is another one of the same generation. Of a volume that is deleted every one is.
    pub fn is_anothers(self, by: Self) -> bool {
        let said = self.owner != 0 && by.owner != 0 || self.is_deleted();
        said && self.generation == by.generation && self.owner != by.owner
    }

    /// Nobody uses the volume any more: it is deleted.
    pub fn is_deleted(self) -> bool {
        self.owner == Self::DELETED
    }
}

/// Which bytes: the band of a volume at one of its lives. A band begins a new life each time it is opened, and
/// no life is used twice, so that what was left on a node that was away is never taken for what came later.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct BandName {
    /// Of this volume.
    pub volume: VolumeId,
    /// The block of the volume's geometry.
    pub band: u32,
    /// The generation that opened it in the upper 32 bits, a count of its openings in the lower.
    pub life: u64,
}

impl BandName {
    /// One number that sorts as volume, band and life do: bands are looked up by name for every command.
    fn order(&self) -> u128 {
        u128::from(self.volume.0) << 96 | u128::from(self.band) << 64 | u128::from(self.life)
    }
}

impl Ord for BandName {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.order().cmp(&other.order())
    }
}

impl PartialOrd for BandName {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl BandName {
    /// As the tag of a raw block.
    pub fn tag(self) -> u128 {
        u128::from(self.volume.0) << 96 | u128::from(self.band) << 64 | u128::from(self.life)
    }

    /// Of [`BandName::tag`].
    pub fn of_tag(tag: u128) -> Self {
        let (volume, band) = (VolumeId((tag >> 96) as u32), (tag >> 64) as u32);
        Self { volume, band, life: tag as u64 }
    }
}

/// What a node serves: the controller says so. Reads are never refused, nor are appends to bands that are open.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub enum Mode {
    /// Reads and writes.
    #[default]
    Mixed,
    /// No new bands are begun here.
    Reads,
    /// Reads go elsewhere if they can. A node does not know it: it serves as if both were wanted.
    Writes,
}

impl Mode {
    /// As it is kept and sent.
    pub fn number(self) -> u8 {
        match self {
            Self::Mixed => 0,
            Self::Reads => 1,
            Self::Writes => 2,
        }
    }

    /// Of [`Mode::number`]. One that a later version may know is as safe as can be: both.
    pub fn of_number(number: u8) -> Self {
        match number {
            1 => Self::Reads,
            2 => Self::Writes,
            _ => Self::Mixed,
        }
    }
}

/// Most copies of a band.
pub const MEMBERS_MAX: usize = 4;

/// The nodes that hold a band, all different.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Members {
    nodes: [NodeId; MEMBERS_MAX],
    count: u8,
}

impl Members {
    /// Of 1 to [`MEMBERS_MAX`] different nodes; `None` of any others.
    pub fn new(nodes: &[NodeId]) -> Option<Self> {
        let twice = (1..nodes.len()).any(|at| nodes[..at].contains(&nodes[at]));
        if nodes.is_empty() || nodes.len() > MEMBERS_MAX || twice {
            return None;
        }
        let mut members = Self { count: nodes.len() as u8, ..Self::default() };
        members.nodes[..nodes.len()].copy_from_slice(nodes);
        Some(members)
    }

    /// The nodes, in the order they were given.
    pub fn nodes(&self) -> &[NodeId] {
        &self.nodes[..usize::from(self.count)]
    }

    /// Whether `node` is one of them.
    pub fn has(&self, node: NodeId) -> bool {
        self.nodes().contains(&node)
    }
}

/// Of what a band of a volume is made: the same for all bands of a volume, for ever.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct BandShape {
    /// Pages: what one append fills.
    pub pages: u32,
    /// Slots of a page, at most 64.
    pub slots_per_page: u32,
}

impl BandShape {
    /// Slots of a band.
    pub fn slots(&self) -> u32 {
        self.pages * self.slots_per_page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_names_the_band_that_it_was_made_of() {
        let name = BandName { volume: VolumeId(7), band: u32::MAX, life: 3 << 32 | 9 };
        assert_eq!(BandName::of_tag(name.tag()), name);
    }

    #[test]
    fn members_are_different_and_few() {
        let [a, b] = [NodeId(1), NodeId(2)];
        assert_eq!(Members::new(&[]), None);
        assert_eq!(Members::new(&[a, b, a]), None);
        assert_eq!(Members::new(&[a; 5]), None);
        let members = Members::new(&[b, a]).expect("two different nodes");
        assert_eq!(members.nodes(), [b, a]);
        assert!(members.has(a) && !members.has(NodeId(0)));
    }
}

//! What the keys of the control plane hold (docs/formats.md, "In the control plane").
//!
//! Every value begins with a kind and a version and ends with a CRC-32C of its key and of all before: what was
//! damaged, is of a later version or stands at another place is told from what is sound, and refused.

use super::codec::{Reader, Writer};
use crate::words::{
    BandName, BandShape, DomainId, Generation, MEMBERS_MAX, Members, NodeId, PoolId, VolumeId,
};
use std::fmt;

/// The pool.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct PoolRecord {
    /// Drawn when the pool was made.
    pub pool: PoolId,
    /// Of everything in the control plane; another one is refused.
    pub format: u16,
}

/// Format of what this version keeps in the control plane.
pub const FORMAT: u16 = 1;

/// A node and what is meant to become of it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct NodeRecord {
    /// Which.
    pub node: NodeId,
    /// What it fails together with.
    pub domain: DomainId,
    /// Where it listens; opaque here.
    pub address: String,
    /// Of its drive.
    pub profile: String,
    /// Membership.
    pub state: NodeState,
}

/// What is meant to become of a node.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum NodeState {
    /// It takes and serves bands.
    #[default]
    In,
    /// It takes no bands any more; those that it has move away, and count until then.
    Draining,
    /// It is given up: what it has counts no more. Bands that had a member there are repaired.
    Out,
    /// As out, and this one has its place.
    ReplacedBy(NodeId),
}

impl NodeState {
    /// Whether copies there count as copies.
    pub fn counts(self) -> bool {
        matches!(self, Self::In | Self::Draining)
    }
}

/// A volume.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct VolumeRecord {
    /// Which.
    pub volume: VolumeId,
    /// What people call it.
    pub name: String,
    /// Logical blocks.
    pub blocks: u64,
    /// Copies of each band.
    pub replicas: u8,
    /// Of all its bands.
    pub shape: BandShape,
    /// Bands that its geometry has.
    pub bands: u32,
    /// Lanes that they are shared out to; 0 in records of older versions, which were never grown.
    pub lanes: u32,
    /// Physical capacity beyond the logical one, in percent of that; 0 in records of older versions, which tells nothing.
    pub op_percent: u32,
    /// What happens where fewer nodes than replicas can be written to.
    pub degraded: Degraded,
    /// It is being deleted: nobody opens it any more.
    pub is_deleted: bool,
    /// Nobody has looked whether nodes can hold all of it, and no room is kept for it.
    pub is_thin: bool,
}

/// What happens where fewer nodes than replicas can be written to.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Degraded {
    /// Writes wait.
    #[default]
    Pause,
    /// Writes go on with fewer members once that is recorded.
    GoOn,
}

/// Who owns a volume.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct OwnerRecord {
    /// Of the opening.
    pub generation: Generation,
    /// Of this opening alone; drawn by who opens.
    pub owner: u128,
    /// So long after this record was replaced, nobody uses the volume by an older one: the longest lease of
    /// this owner and of those that it did not wait out.
    pub lease_ns: u64,
    /// The owner is through: nobody need wait.
    pub released: bool,
}

/// Counts commits of a volume's registry, so that none takes effect twice.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TailRecord {
    /// Of whoever committed.
    pub generation: Generation,
    /// Its commits.
    pub sequence: u64,
    /// No later life of any band was registered: a node that has one knows of what the plane has lost. 0 in records
    /// of older versions, which tells nothing.
    pub life: u64,
}

/// A band that may be open, is in no checkpoint yet, or lacks a member.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct BandRecord {
    /// Which, and in which life.
    pub name: BandName,
    /// Its write set: an append is acknowledged when all of them have it that are not in `lacks`.
    pub members: Members,
    /// Bit `i`: member `i` need not have it, neither its pages nor its end.
    pub lacks: u8,
    /// It was decided that the band has so many pages.
    pub sealed: Option<u32>,
    /// A checkpoint of the FTL knows the band: the record stays only because a member is lacking.
    pub covered: bool,
}

impl BandRecord {
    /// The members that have all that was acknowledged.
    pub fn sound(&self) -> impl Iterator<Item = NodeId> + '_ {
        let nodes = self.members.nodes().iter().enumerate();
        nodes.filter(|(at, _)| self.lacks & 1 << at == 0).map(|(_, &node)| node)
    }

    /// Whether a member is known to lack something.
    pub fn is_lacking(&self, node: NodeId) -> bool {
        self.members.has(node) && !self.sound().any(|sound| sound == node)
    }

    /// With these members lacking, too.
    pub fn without(mut self, nodes: &[NodeId]) -> Self {
        for (at, node) in self.members.nodes().iter().enumerate() {
            self.lacks |= u8::from(nodes.contains(node)) << at;
        }
        self
    }
}

/// A node holds nothing any more that a volume needs: it need not be asked.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ClearRecord {
    /// The generation that saw to it.
    pub generation: Generation,
}

/// The drive of a node, so that no other one and no older copy of it is taken for what the node has acknowledged.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct DriveRecord {
    /// Which: opaque here, and no other drive's.
    pub drive: u128,
    /// Times that it was opened for writing.
    pub opens: u64,
    /// Nothing was written to it since the last time.
    pub is_closed: bool,
}

impl DriveRecord {
    /// Whether a drive that is found so may be the one of this record, as it was left.
    pub fn may_be(&self, found: &Self) -> bool {
        let is_later = found.opens > self.opens;
        let is_as_left = found.opens == self.opens && (found.is_closed || !self.is_closed);
        self.drive == found.drive && (is_later || is_as_left)
    }
}

/// Who the controller is.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ControllerRecord {
    /// Drawn by who was elected.
    pub controller: u128,
    /// The lease that it was elected under.
    pub lease: u64,
    /// Where it listens for reports; opaque here.
    pub address: String,
}

/// Where a pool was founded, in a plane that may be put back from a copy without a word.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct FoundedRecord {
    /// The pool.
    pub pool: PoolId,
    /// What the cluster called itself.
    pub cluster: u64,
}

/// What the controller wants of clients and nodes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WeightsRecord {
    /// Counts what one controller published.
    pub sequence: u64,
    /// Whoever reads them uses them so long, then goes back to what is safe.
    pub valid_ns: u64,
    /// By node.
    pub nodes: Vec<NodeWeight>,
}

/// What a node gets.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NodeWeight {
    /// Which.
    pub node: NodeId,
    /// Share of reads, relative.
    pub read: f64,
    /// Share of new bands, relative.
    pub write: f64,
    /// Opaque here: what the node serves now.
    pub mode: u8,
}

/// Why a value is not what its key should hold.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ValueError {
    /// The checksum does not fit: damaged, or written at another key.
    Unsound,
    /// It is of another kind.
    Kind(u8),
    /// It was written by a version that knows more.
    Version(u8),
    /// Its fields do not make sense, or there are too few or too many bytes.
    Fields,
}

impl fmt::Display for ValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsound => {
                f.write_str("is damaged: restore the control plane from a good member")
            }
            Self::Kind(kind) => {
                write!(f, "holds a value of kind {kind}, which does not belong there")
            }
            Self::Version(version) => {
                write!(f, "was written by a newer version (format {version}): update this one")
            }
            Self::Fields => f.write_str("holds fields that make no sense"),
        }
    }
}

/// A value with its own bytes.
pub trait Value: Sized {
    /// The first byte.
    const KIND: u8;
    #[doc(hidden)]
    fn write(&self, to: &mut Fields);
    #[doc(hidden)]
    fn read(from: &mut FieldsRead<'_>) -> Option<Self>;

    /// The bytes to put at `key`.
    fn encode(&self, key: &str) -> Vec<u8> {
        let mut to = Fields(Writer::default());
        to.0.u8(Self::KIND);
        to.0.u8(VERSION);
        self.write(&mut to);
        let mut bytes = to.0.bytes;
        let sum = flash::crc_append(flash::crc(key.as_bytes()), &bytes);
        bytes.extend(sum.to_le_bytes());
        bytes
    }

    /// What was put at `key`.
    fn decode(key: &str, bytes: &[u8]) -> Result<Self, ValueError> {
        let (body, sum) = bytes.split_last_chunk::<4>().ok_or(ValueError::Unsound)?;
        if flash::crc_append(flash::crc(key.as_bytes()), body) != u32::from_le_bytes(*sum) {
            return Err(ValueError::Unsound);
        }
        let mut from = FieldsRead(Reader { bytes: body });
        match (from.0.u8(), from.0.u8()) {
            (Some(kind), _) if kind != Self::KIND => return Err(ValueError::Kind(kind)),
            (_, Some(version)) if version != VERSION => return Err(ValueError::Version(version)),
            _ => {}
        }
        let value = Self::read(&mut from).ok_or(ValueError::Fields)?;
        if from.0.bytes.is_empty() { Ok(value) } else { Err(ValueError::Fields) }
    }
}

/// Where the fields of a value go.
pub struct Fields(Writer);

/// Where they come from.
pub struct FieldsRead<'a>(Reader<'a>);

impl Value for PoolRecord {
    const KIND: u8 = 1;

    fn write(&self, to: &mut Fields) {
        to.0.u128(self.pool.0);
        to.0.u16(self.format);
    }

    fn read(from: &mut FieldsRead<'_>) -> Option<Self> {
        Some(Self { pool: PoolId(from.0.u128()?), format: from.0.u16()? })
    }
}

impl Value for NodeRecord {
    const KIND: u8 = 2;

    fn write(&self, to: &mut Fields) {
        to.0.u32(self.node.0);
        to.0.u32(self.domain.0);
        to.0.slice(self.address.as_bytes());
        to.0.slice(self.profile.as_bytes());
        let (state, by) = match self.state {
            NodeState::In => (0, NodeId(0)),
            NodeState::Draining => (1, NodeId(0)),
            NodeState::Out => (2, NodeId(0)),
            NodeState::ReplacedBy(by) => (3, by),
        };
        to.0.u8(state);
        to.0.u32(by.0);
    }

    fn read(from: &mut FieldsRead<'_>) -> Option<Self> {
        let (node, domain) = (NodeId(from.0.u32()?), DomainId(from.0.u32()?));
        let (address, profile) = (from.0.text()?, from.0.text()?);
        let state = match (from.0.u8()?, from.0.u32()?) {
            (0, 0) => NodeState::In,
            (1, 0) => NodeState::Draining,
            (2, 0) => NodeState::Out,
            (3, by) => NodeState::ReplacedBy(NodeId(by)),
            _ => return None,
        };
        Some(Self { node, domain, address, profile, state })
    }
}

impl Value for VolumeRecord {
    const KIND: u8 = 3;

    fn write(&self, to: &mut Fields) {
        to.0.u32(self.volume.0);
        to.0.slice(self.name.as_bytes());
        to.0.u64(self.blocks);
        to.0.u8(self.replicas);
        to.0.u32(self.shape.pages);
        to.0.u32(self.shape.slots_per_page);
        to.0.u32(self.bands);
        let goes_on = self.degraded == Degraded::GoOn;
        let deleted = u8::from(self.is_deleted) << 1;
        to.0.u8(u8::from(goes_on) | deleted | u8::from(self.is_thin) << 2);
        to.0.u32(self.lanes);
        to.0.u32(self.op_percent);
    }

    fn read(from: &mut FieldsRead<'_>) -> Option<Self> {
        let volume = VolumeId(from.0.u32()?);
        let (name, blocks, replicas) = (from.0.text()?, from.0.u64()?, from.0.u8()?);
        let shape = BandShape { pages: from.0.u32()?, slots_per_page: from.0.u32()? };
        let bands = from.0.u32()?;
        let flags = from.0.u8()?;
        let degraded = if flags & 1 == 1 { Degraded::GoOn } else { Degraded::Pause };
        let (is_deleted, is_thin) = (flags & 2 == 2, flags & 4 == 4);
        let is_of_before = from.0.bytes.is_empty();
        let (lanes, op_percent) =
            if is_of_before { (0, 0) } else { (from.0.u32()?, from.0.u32()?) };
        let shared_out = lanes == 0 || bands.is_multiple_of(lanes);
        let copies = 1..=MEMBERS_MAX;
        let slots = 1..=64;
        let sound =
            copies.contains(&usize::from(replicas)) && slots.contains(&shape.slots_per_page);
        (sound && shared_out && shape.pages > 0 && flags < 8).then_some(Self {
            volume,
            name,
            blocks,
            replicas,
            shape,
            bands,
            lanes,
            op_percent,
            degraded,
            is_deleted,
            is_thin,
        })
    }
}

impl Value for OwnerRecord {
    const KIND: u8 = 4;

    fn write(&self, to: &mut Fields) {
        to.0.u64(self.generation.0);
        to.0.u128(self.owner);
        to.0.u64(self.lease_ns);
        to.0.u8(u8::from(self.released));
    }

    fn read(from: &mut FieldsRead<'_>) -> Option<Self> {
        let (generation, owner) = (Generation(from.0.u64()?), from.0.u128()?);
        let (lease_ns, released) = (from.0.u64()?, from.0.u8()?);
        (released < 2).then_some(Self { generation, owner, lease_ns, released: released == 1 })
    }
}

impl Value for TailRecord {
    const KIND: u8 = 5;

    fn write(&self, to: &mut Fields) {
        to.0.u64(self.generation.0);
        to.0.u64(self.sequence);
        to.0.u64(self.life);
    }

    fn read(from: &mut FieldsRead<'_>) -> Option<Self> {
        let (generation, sequence) = (Generation(from.0.u64()?), from.0.u64()?);
        let life = if from.0.bytes.is_empty() { 0 } else { from.0.u64()? };
        Some(Self { generation, sequence, life })
    }
}

impl Value for BandRecord {
    const KIND: u8 = 6;

    fn write(&self, to: &mut Fields) {
        to.0.u128(self.name.tag());
        to.0.u8(self.members.nodes().len() as u8);
        for node in self.members.nodes() {
            to.0.u32(node.0);
        }
        to.0.u8(self.lacks);
        to.0.u8(u8::from(self.sealed.is_some()) | u8::from(self.covered) << 1);
        to.0.u32(self.sealed.unwrap_or(0));
    }

    fn read(from: &mut FieldsRead<'_>) -> Option<Self> {
        let name = BandName::of_tag(from.0.u128()?);
        let count = from.0.u8()?;
        let nodes = (0..count).map(|_| from.0.u32().map(NodeId)).collect::<Option<Vec<_>>>()?;
        let members = Members::new(&nodes)?;
        let (lacks, flags, pages) = (from.0.u8()?, from.0.u8()?, from.0.u32()?);
        let sealed = (flags & 1 == 1).then_some(pages);
        let sound = u32::from(lacks) < 1 << count && flags < 4 && (sealed.is_some() || pages == 0);
        sound.then_some(Self { name, members, lacks, sealed, covered: flags & 2 == 2 })
    }
}

impl Value for ClearRecord {
    const KIND: u8 = 7;

    fn write(&self, to: &mut Fields) {
        to.0.u64(self.generation.0);
    }

    fn read(from: &mut FieldsRead<'_>) -> Option<Self> {
        Some(Self { generation: Generation(from.0.u64()?) })
    }
}

impl Value for DriveRecord {
    const KIND: u8 = 11;

    fn write(&self, to: &mut Fields) {
        to.0.u128(self.drive);
        to.0.u64(self.opens);
        to.0.u8(self.is_closed.into());
    }

    fn read(from: &mut FieldsRead<'_>) -> Option<Self> {
        let (drive, opens, closed) = (from.0.u128()?, from.0.u64()?, from.0.u8()?);
        (closed < 2).then_some(Self { drive, opens, is_closed: closed == 1 })
    }
}

impl Value for ControllerRecord {
    const KIND: u8 = 8;

    fn write(&self, to: &mut Fields) {
        to.0.u128(self.controller);
        to.0.u64(self.lease);
        to.0.slice(self.address.as_bytes());
    }

    fn read(from: &mut FieldsRead<'_>) -> Option<Self> {
        let (controller, lease) = (from.0.u128()?, from.0.u64()?);
        Some(Self { controller, lease, address: from.0.text()? })
    }
}

impl Value for FoundedRecord {
    const KIND: u8 = 10;

    fn write(&self, to: &mut Fields) {
        to.0.u128(self.pool.0);
        to.0.u64(self.cluster);
    }

    fn read(from: &mut FieldsRead<'_>) -> Option<Self> {
        Some(Self { pool: PoolId(from.0.u128()?), cluster: from.0.u64()? })
    }
}

impl Value for WeightsRecord {
    const KIND: u8 = 9;

    fn write(&self, to: &mut Fields) {
        to.0.u64(self.sequence);
        to.0.u64(self.valid_ns);
        to.0.u32(u32::try_from(self.nodes.len()).expect("a pool has fewer nodes"));
        for weight in &self.nodes {
            to.0.u32(weight.node.0);
            to.0.u64(weight.read.to_bits());
            to.0.u64(weight.write.to_bits());
            to.0.u8(weight.mode);
        }
    }

    fn read(from: &mut FieldsRead<'_>) -> Option<Self> {
        let (sequence, valid_ns, count) = (from.0.u64()?, from.0.u64()?, from.0.u32()?);
        let mut nodes = Vec::new();
        for _ in 0..count {
            let node = NodeId(from.0.u32()?);
            let (read, write) = (f64::from_bits(from.0.u64()?), f64::from_bits(from.0.u64()?));
            let sound = |weight: f64| weight.is_finite() && weight >= 0.0;
            if !sound(read) || !sound(write) {
                return None;
            }
            nodes.push(NodeWeight { node, read, write, mode: from.0.u8()? });
        }
        Some(Self { sequence, valid_ns, nodes })
    }
}

/// The second byte of every value.
const VERSION: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> NodeRecord {
        let (address, profile) = ("10.0.0.7:7000".to_owned(), "worn".to_owned());
        let state = NodeState::ReplacedBy(NodeId(9));
        NodeRecord { node: NodeId(7), domain: DomainId(2), address, profile, state }
    }

    fn band() -> BandRecord {
        let members = Members::new(&[NodeId(3), NodeId(1), NodeId(7)]).expect("different");
        let name = BandName { volume: VolumeId(1), band: 5, life: 6 << 32 | 7 };
        BandRecord { name, members, lacks: 0b100, sealed: Some(0), covered: true }
    }

    fn survives<V: Value + PartialEq + fmt::Debug>(value: &V) {
        let bytes = value.encode("there");
        assert_eq!(V::decode("there", &bytes).as_ref(), Ok(value));
        assert!(V::decode("elsewhere", &bytes).is_err(), "{value:?} was taken from another key");
        for at in 0..bytes.len() {
            assert!(V::decode("there", &bytes[..at]).is_err(), "{value:?} cut at {at}");
            let mut changed = bytes.clone();
            changed[at] ^= 0x10;
            assert!(V::decode("there", &changed).is_err(), "{value:?} changed at {at}");
        }
    }

    #[test]
    fn every_value_comes_back_and_no_change_of_its_bytes_goes_unseen() {
        survives(&PoolRecord { pool: PoolId(u128::MAX - 5), format: FORMAT });
        survives(&node());
        let shape = BandShape { pages: 512, slots_per_page: 4 };
        let (name, volume) = ("disk".to_owned(), VolumeId(1));
        let degraded = Degraded::GoOn;
        let is_deleted = true;
        survives(&VolumeRecord {
            volume,
            name,
            blocks: 9,
            replicas: 2,
            shape,
            bands: 8,
            lanes: 4,
            op_percent: 25,
            degraded,
            is_deleted,
            is_thin: true,
        });
        let generation = Generation(4);
        survives(&OwnerRecord { generation, owner: 77, lease_ns: 3, released: true });
        survives(&TailRecord { generation, sequence: 12, life: 1 << 40 });
        survives(&band());
        survives(&ClearRecord { generation });
        survives(&ControllerRecord { controller: 5, lease: 6, address: "10.0.0.1:7".to_owned() });
        survives(&FoundedRecord { pool: PoolId(5), cluster: 6 });
        let weight = NodeWeight { node: NodeId(2), read: 0.25, write: 0.0, mode: 1 };
        survives(&WeightsRecord { sequence: 1, valid_ns: 2, nodes: vec![weight; 3] });
    }

    #[test]
    fn bytes_of_values_stay_as_they_are() {
        let owner =
            OwnerRecord { generation: Generation(2), owner: 3, lease_ns: 4, released: false };
        let hex =
            |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(
            hex(owner.encode("k")),
            "04010200000000000000030000000000000000000000000000000400000000000000007a98f67a"
        );
        assert_eq!(
            hex(band().encode("k")),
            "06010700000006000000050000000100000003030000000100000007000000040300000000fec3da4f"
        );
    }

    #[test]
    fn a_later_version_and_another_kind_are_told_apart() {
        let mut later = band().encode("k");
        later.truncate(later.len() - 4);
        later[1] = VERSION + 1;
        later.extend(flash::crc_append(flash::crc(b"k"), &later).to_le_bytes());
        assert_eq!(BandRecord::decode("k", &later), Err(ValueError::Version(VERSION + 1)));
        assert_eq!(TailRecord::decode("k", &band().encode("k")), Err(ValueError::Kind(6)));
    }

    #[test]
    fn a_drive_is_itself_as_it_was_left_or_later() {
        let record = |opens, is_closed| DriveRecord { drive: 5, opens, is_closed };
        let (open, closed) = (record(7, false), record(7, true));
        assert_eq!(DriveRecord::decode("k", &closed.encode("k")), Ok(closed.clone()));
        assert!(open.may_be(&open) && closed.may_be(&closed));
        assert!(open.may_be(&closed), "its end was not told");
        assert!(!closed.may_be(&open), "a copy of while it was open");
        assert!(open.may_be(&record(8, false)) && closed.may_be(&record(8, true)));
        assert!(!open.may_be(&record(6, true)) && !closed.may_be(&record(6, true)), "older");
        assert!(!open.may_be(&DriveRecord { drive: 6, ..open.clone() }), "another");
    }

    #[test]
    fn a_lacking_member_is_not_sound() {
        let record = band();
        assert_eq!(record.sound().collect::<Vec<_>>(), [NodeId(3), NodeId(1)]);
        assert!(record.is_lacking(NodeId(7)) && !record.is_lacking(NodeId(8)));
        assert_eq!(record.without(&[NodeId(3)]).lacks, 0b101);
    }
}

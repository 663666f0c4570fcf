//! Where in the control plane things are. Numbers are hexadecimal of a fixed width, so the order of keys is that
//! of numbers. The driver puts a prefix for the pool before all of them.

use crate::words::{BandName, NodeId, VolumeId};

/// The pool itself: [`super::values::PoolRecord`].
pub const POOL: &str = "pool";
/// Where the pool was founded: [`super::values::FoundedRecord`]. Only in etcd.
pub const FOUNDED: &str = "founded";
/// Who the controller is: [`super::values::ControllerRecord`], under its lease.
pub const CONTROLLER: &str = "controller";
/// What it wants: [`super::values::WeightsRecord`], under its lease.
pub const WEIGHTS: &str = "weights";

/// A node: [`super::values::NodeRecord`].
pub fn node(node: NodeId) -> String {
    format!("node/{:08x}", node.0)
}

/// Of all nodes: the first key and the one behind the last.
pub fn nodes() -> (String, String) {
    ("node/".to_owned(), "node0".to_owned())
}

/// The drive of a node: [`super::values::DriveRecord`].
pub fn drive(node: NodeId) -> String {
    format!("drive/{:08x}", node.0)
}

/// A volume: [`super::values::VolumeRecord`].
pub fn volume(volume: VolumeId) -> String {
    format!("volume/{:08x}/record", volume.0)
}

/// Of all that belongs to all volumes.
pub fn volumes() -> (String, String) {
    ("volume/".to_owned(), "volume0".to_owned())
}

/// Who owns a volume: [`super::values::OwnerRecord`].
pub fn owner(volume: VolumeId) -> String {
    format!("volume/{:08x}/owner", volume.0)
}

/// Counts the commits of the registry of a volume: [`super::values::TailRecord`].
pub fn tail(volume: VolumeId) -> String {
    format!("volume/{:08x}/tail", volume.0)
}

/// A life of a band that may be open or lacks a member: [`super::values::BandRecord`].
pub fn band(name: BandName) -> String {
    format!("volume/{:08x}/band/{:08x}/{:016x}", name.volume.0, name.band, name.life)
}

/// Of all such bands of a volume.
pub fn bands(volume: VolumeId) -> (String, String) {
    (format!("volume/{:08x}/band/", volume.0), format!("volume/{:08x}/band0", volume.0))
}

/// A node that holds nothing any more which a volume needs: [`super::values::ClearRecord`].
pub fn clear(volume: VolumeId, node: NodeId) -> String {
    format!("volume/{:08x}/clear/{:08x}", volume.0, node.0)
}

/// Of all such nodes of a volume.
pub fn clears(volume: VolumeId) -> (String, String) {
    (format!("volume/{:08x}/clear/", volume.0), format!("volume/{:08x}/clear0", volume.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::contract::KEY_BYTES_MAX;

    #[test]
    fn ranges_hold_what_belongs_to_them_and_nothing_else() {
        let within = |key: &str, (from, to): (String, String)| *key >= *from && *key < *to;
        let (last, next) = (VolumeId(0xff), VolumeId(0x100));
        assert!(within(&node(NodeId(u32::MAX)), nodes()) && !within(POOL, nodes()));
        let name = |volume, band, life| BandName { volume, band, life };
        let (low, high) = (band(name(last, 0, 0)), band(name(last, u32::MAX, u64::MAX)));
        assert!(within(&low, bands(last)) && within(&high, bands(last)));
        assert!(
            !within(&band(name(next, 0, 0)), bands(last)) && !within(&owner(last), bands(last))
        );
        assert!(within(&clear(last, NodeId(3)), clears(last)) && within(&owner(next), volumes()));
        assert!(band(name(last, 9, u64::MAX)) < band(name(last, 10, 0)));
        assert!(low < high && high.len() <= KEY_BYTES_MAX);
    }
}

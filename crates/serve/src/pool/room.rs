//! What the nodes of a pool have room for, as the controller was told.

use super::PoolError;
use super::config::PlaneConfig;
use super::controller::{Asked, asked};
use super::plane::PlaneCalls;
use super::records;
use pool::control::values::{NodeRecord, NodeState, VolumeRecord};
use pool::controller::Explained;
use pool::room::Rooms;

/// The raw blocks of all nodes that take bands, and the volumes that there are; nothing if no controller is elected, or
/// one of these nodes has not told.
///
/// # Errors
/// The plane cannot be asked, or a record is unsound.
pub fn rooms(config: &PlaneConfig, calls: &mut PlaneCalls) -> Result<Option<Rooms>, PoolError> {
    let asked = asked(config, calls)?;
    let Some(explained) = asked.as_ref().and_then(Asked::explained) else { return Ok(None) };
    let nodes = records::nodes(calls)?;
    let volumes = records::volumes(calls)?;
    let volumes = volumes.iter().map(|found| &found.record);
    Ok(of(explained, nodes.iter().map(|found| &found.record), volumes))
}

fn of<'a>(
    explained: &Explained,
    nodes: impl Iterator<Item = &'a NodeRecord>,
    volumes: impl Iterator<Item = &'a VolumeRecord>,
) -> Option<Rooms> {
    let mut rooms = Rooms::default();
    for record in nodes.filter(|record| record.state == NodeState::In) {
        let (_, room) = explained.rooms.iter().find(|(node, _)| *node == record.node)?;
        rooms.add_node(record.domain, *room);
    }
    volumes.filter(|record| !record.is_deleted).for_each(|record| rooms.add_volume(record));
    Some(rooms)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pool::controller::Room;
    use pool::volume::{Wanted, plan};
    use pool::words::{DomainId, NodeId, VolumeId};

    #[test]
    fn only_nodes_that_are_in_count_and_each_of_them_must_have_told() {
        let node = |node: u32, state| NodeRecord {
            node: NodeId(node),
            domain: DomainId(node / 2),
            address: "10.0.0.1:1".into(),
            profile: "own".into(),
            state,
        };
        let nodes = [
            node(2, NodeState::In),
            node(3, NodeState::In),
            node(4, NodeState::Draining),
            node(6, NodeState::In),
        ];
        let room = |node| (NodeId(node), Room { bands: 100, used: 7, pages: 136 });
        let rooms = [2, 3, 4].map(room).to_vec();
        let mut explained = Explained { rooms, ..Explained::default() };
        let volume = plan(VolumeId(1), &Wanted::new("v", 1 << 10)).expect("it can be");
        let deleted = VolumeRecord { is_deleted: true, ..volume.clone() };
        let volumes = [volume, deleted];
        assert!(of(&explained, nodes.iter(), volumes.iter()).is_none(), "node 6 may have any room");
        explained.rooms.push(room(6));
        let rooms = of(&explained, nodes.iter(), volumes.iter()).expect("all have told");
        assert_eq!((rooms.raw_blocks(), rooms.domains(), rooms.used()), (300, 2, 21));
        assert_eq!(rooms.taken(), 2 * u64::from(volumes[0].bands));
    }
}

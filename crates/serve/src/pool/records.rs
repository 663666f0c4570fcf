//! What people change of a pool: which nodes belong to it, and which volumes there are. All of it is records in the
//! control plane, each changed only as it was looked at; nodes and clients see it there.

use super::PoolError;
use super::controller::OWN_PROFILE;
use super::plane::{CommitEnd, PlaneCalls};
use crate::device::{ChangeError, is_name};
use pool::control::contract::{CHANGES_MAX, Change, Check, Kept};
use pool::control::keys;
use pool::control::values::{
    DriveRecord, NodeRecord, NodeState, OwnerRecord, Value, ValueError, VolumeRecord,
};
use pool::volume::{Wanted, plan};
use pool::words::{DomainId, Generation, NodeId, VolumeId};
use std::collections::BTreeSet;

/// A record with the revision that it was found at.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Found<T> {
    /// It.
    pub record: T,
    /// Of its key.
    pub revision: u64,
}

/// All nodes, by number.
///
/// # Errors
/// The plane cannot be asked, or a record is unsound.
pub fn nodes(calls: &mut PlaneCalls) -> Result<Vec<Found<NodeRecord>>, PoolError> {
    let all = calls.range(keys::nodes())?;
    all.iter().map(|(key, kept)| found(key, kept)).collect()
}

/// All volumes, by number.
///
/// # Errors
/// As [`nodes`].
pub fn volumes(calls: &mut PlaneCalls) -> Result<Vec<Found<VolumeRecord>>, PoolError> {
    let all = calls.range(keys::volumes())?;
    let records = all.iter().filter(|(key, _)| key.ends_with("/record"));
    records.map(|(key, kept)| found(key, kept)).collect()
}

/// The volume of this name.
///
/// # Errors
/// There is none; or as [`nodes`].
pub fn volume(calls: &mut PlaneCalls, name: &str) -> Result<Found<VolumeRecord>, PoolError> {
    let all = volumes(calls)?;
    let names: Vec<&str> = all.iter().map(|found| &*found.record.name).collect();
    let there = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    let missing = refused(name, format!("there is no such volume; there are: {there}"));
    all.into_iter().find(|found| found.record.name == name).ok_or(missing)
}

/// What is said of a node that joins; what is not said stays as it was.
#[derive(Clone, Debug, Default)]
pub struct Joining {
    /// What it fails together with.
    pub domain: Option<DomainId>,
    /// Where it listens.
    pub address: Option<String>,
    /// The name of its drive's profile.
    pub profile: Option<String>,
}

/// A node is to belong to the pool: a new one, or one that is on its way out and is wanted after all. Said twice it
/// is done once. Gives what is on record from now on.
///
/// # Errors
/// It was given up, is there as another one, or is new and not all is said of it; or as [`nodes`].
pub fn join(
    calls: &mut PlaneCalls,
    node: NodeId,
    joining: Joining,
) -> Result<NodeRecord, PoolError> {
    let all = nodes(calls)?;
    let before = all.iter().find(|found| found.record.node == node).cloned();
    let others = all.iter().map(|found| &found.record).filter(|other| other.node != node);
    let record = joined(node, before.as_ref().map(|found| &found.record), joining)
        .and_then(|record| is_of_its_own(record, others))
        .map_err(|why| refused_node(node, &why))?;
    if before.as_ref().is_none_or(|found| found.record != record) {
        put_node(calls, &record, before.map_or(0, |found| found.revision))?;
    }
    Ok(record)
}

/// What a node becomes that is on record as `before`.
fn joined(
    node: NodeId,
    before: Option<&NodeRecord>,
    Joining { domain, address, profile }: Joining,
) -> Result<NodeRecord, String> {
    let state = NodeState::In;
    let Some(before) = before else {
        let (Some(domain), Some(address)) = (domain, address) else {
            return Err("is not known yet: say --domain and --address".to_owned());
        };
        let profile = profile.unwrap_or_else(|| OWN_PROFILE.to_owned());
        return Ok(NodeRecord { node, domain, address, profile, state });
    };
    if !before.state.counts() {
        return Err("was given up, and others have what it had: empty its drive and let it join under a new number"
            .to_owned());
    }
    // The domain decides where copies may lie: it stays what it was.
    if domain.is_some_and(|domain| domain != before.domain) {
        return Err(format!(
            "is in failure domain {}: drain it, then let it join under a new number",
            before.domain.0
        ));
    }
    let address = address.unwrap_or_else(|| before.address.clone());
    let profile = profile.unwrap_or_else(|| before.profile.clone());
    Ok(NodeRecord { node, domain: before.domain, address, profile, state })
}

/// Nobody else listens where a node does, which can be connected to.
fn is_of_its_own<'a>(
    record: NodeRecord,
    mut others: impl Iterator<Item = &'a NodeRecord>,
) -> Result<NodeRecord, String> {
    let address = &record.address;
    let parsed = address.parse::<std::net::SocketAddr>();
    if parsed.is_ok_and(|of| of.port() == 0 || of.ip().is_unspecified()) {
        return Err(format!(
            "cannot be reached at {address}: say the address and port at which others find it"
        ));
    }
    let there = others.find(|other| other.state.counts() && other.address == *address);
    match there.map(|other| other.node.0) {
        Some(other) => Err(format!("cannot be at {address}: node {other} is")),
        None => Ok(record),
    }
}

/// A node is to take no bands any more; those that it has move away.
///
/// # Errors
/// There is no such node, or it was given up; or as [`nodes`].
pub fn drain(calls: &mut PlaneCalls, node: NodeId) -> Result<(), PoolError> {
    let Found { record, revision } = node_known(calls, node)?;
    match record.state {
        NodeState::Draining => Ok(()),
        NodeState::In => {
            put_node(calls, &NodeRecord { state: NodeState::Draining, ..record }, revision)
        }
        NodeState::Out | NodeState::ReplacedBy(_) => {
            Err(refused_node(node, "was given up already"))
        }
    }
}

/// Volumes that have more copies than there are domains with nodes that take bands, with their copies, and those domains.
///
/// # Errors
/// As [`nodes`].
pub fn short_of_domains(calls: &mut PlaneCalls) -> Result<(Vec<(String, u8)>, usize), PoolError> {
    let nodes = nodes(calls)?.into_iter().map(|found| found.record);
    let takers = nodes.filter(|record| record.state == NodeState::In);
    let domains = takers.map(|record| record.domain).collect::<BTreeSet<_>>().len();
    let volumes = volumes(calls)?.into_iter().map(|found| found.record);
    let short = volumes.filter(|record| usize::from(record.replicas) > domains);
    Ok((short.map(|record| (record.name, record.replicas)).collect(), domains))
}

/// A node is given up: what it has counts no more, and is copied from others; to the node `by`, if one is to have
/// its place.
///
/// # Errors
/// There is no such node, or `by` is of no use; or as [`nodes`].
pub fn replace(calls: &mut PlaneCalls, node: NodeId, by: Option<NodeId>) -> Result<(), PoolError> {
    let Found { record, revision } = node_known(calls, node)?;
    let state = by.map_or(NodeState::Out, NodeState::ReplacedBy);
    if record.state == state {
        return Ok(());
    }
    if let Some(by) = by {
        let other = node_known(calls, by)?.record;
        if by == node || other.state != NodeState::In {
            return Err(refused_node(
                by,
                "cannot take its place: name a node that is in, and not the same",
            ));
        }
    }
    put_node(calls, &NodeRecord { state, ..record }, revision)
}

/// Another record of the drive of a node in place of that of this revision; its own.
///
/// # Errors
/// Another one is there; or as [`nodes`].
pub fn put_drive(
    calls: &mut PlaneCalls,
    node: NodeId,
    record: &DriveRecord,
    revision: u64,
) -> Result<u64, PoolError> {
    let what = format!("the drive of node {}", node.0);
    put(calls, &what, (keys::drive(node), record), revision)
}

/// Makes a volume.
///
/// # Errors
/// It cannot be, or there is one of this name; or as [`nodes`].
pub fn create(calls: &mut PlaneCalls, wanted: &Wanted) -> Result<VolumeRecord, PoolError> {
    if wanted.name.is_empty() || !is_name(&wanted.name) {
        return Err(refused("volume", ChangeError::Name(wanted.name.clone()).to_string()));
    }
    let all = calls.range(keys::volumes())?;
    for (key, kept) in all.iter().filter(|(key, _)| key.ends_with("/record")) {
        if found::<VolumeRecord>(key, kept)?.record.name == wanted.name {
            return Err(refused(
                &wanted.name,
                "there is a volume of this name: take another one".into(),
            ));
        }
    }
    // Of a volume that was deleted the owner stays, so that its number is not used again: nodes remember it.
    let used = all.iter().filter_map(|(key, _)| u32::from_str_radix(key.get(7..15)?, 16).ok());
    let next = used.max().map_or(Some(1), |last| last.checked_add(1));
    let next =
        next.ok_or_else(|| refused(&wanted.name, "numbers of volumes are used up".into()))?;
    let record = plan(VolumeId(next), wanted)
        .map_err(|reason| refused(&wanted.name, format!("cannot be made: {reason}")))?;
    let key = keys::volume(record.volume);
    let value = record.encode(&key);
    let checks = vec![Check { key: key.clone(), revision: 0 }];
    commit(calls, &wanted.name, checks, vec![Change::Put { key, value, lease: None }])?;
    Ok(record)
}

/// A volume grows to the size of this record, made of the one that was `found`. Who opens it next serves it so.
///
/// # Errors
/// It is being deleted, or was changed meanwhile; or as [`nodes`].
pub fn resize(
    calls: &mut PlaneCalls,
    found: &Found<VolumeRecord>,
    larger: &VolumeRecord,
) -> Result<(), PoolError> {
    let name = &found.record.name;
    if found.record.is_deleted {
        return Err(refused(name, "is being deleted".into()));
    }
    put(calls, name, (keys::volume(larger.volume), larger), found.revision).map(drop)
}

/// Deletes a volume, with all that the plane knows of it but the generation that was its last and how far its bands have
/// come: by these nodes prove that what they have of it is theirs to free. From the first step on nobody opens it; said again, what was begun is ended.
///
/// # Errors
/// A client may still have it open, and `is_forced` does not say to go on; or as [`nodes`].
pub fn delete(calls: &mut PlaneCalls, name: &str, is_forced: bool) -> Result<VolumeId, PoolError> {
    let Found { record, revision } = volume(calls, name)?;
    let (id, key) = (record.volume, keys::volume(record.volume));
    let revision = match record.is_deleted {
        true => revision,
        false => shut(calls, Found { record, revision }, is_forced)?,
    };
    let check = || Check { key: key.clone(), revision };
    for range in [keys::bands(id), keys::clears(id)] {
        let all = calls.range(range)?;
        for part in all.chunks(CHANGES_MAX) {
            let gone = part.iter().map(|(key, _)| Change::Delete { key: key.clone() }).collect();
            commit(calls, name, vec![check()], gone)?;
        }
    }
    // Last, so that what was begun can be ended by the same words.
    commit(calls, name, vec![check()], vec![Change::Delete { key: key.clone() }])?;
    Ok(id)
}

/// Raises the generation, so that no client can go on with a volume, and has no other one open it.
fn shut(
    calls: &mut PlaneCalls,
    Found { record, revision }: Found<VolumeRecord>,
    is_forced: bool,
) -> Result<u64, PoolError> {
    let (key, name) = (keys::owner(record.volume), record.name.clone());
    let kept = calls.get(key.clone())?;
    let before = kept.as_ref().map(|kept| found::<OwnerRecord>(&key, kept)).transpose()?;
    let (last, revision_owner) = match before {
        Some(Found { record, revision }) => (record, revision),
        None => (OwnerRecord { released: true, ..OwnerRecord::default() }, 0),
    };
    if !last.released && !is_forced {
        return Err(refused(
            &name,
            format!(
                "a client has it open as generation {}, or died with it: end that one, or add --force",
                last.generation.0
            ),
        ));
    }
    let generation = Generation(last.generation.0 + 1);
    let owner = OwnerRecord { generation, owner: 0, lease_ns: 0, released: true };
    let record_key = keys::volume(record.volume);
    let record = VolumeRecord { is_deleted: true, ..record };
    let put = |key: &str, value| Change::Put { key: key.to_owned(), value, lease: None };
    let changes = vec![put(&key, owner.encode(&key)), put(&record_key, record.encode(&record_key))];
    let checks = vec![Check { key, revision: revision_owner }, Check { key: record_key, revision }];
    commit(calls, &name, checks, changes)
}

fn node_found(
    calls: &mut PlaneCalls,
    node: NodeId,
) -> Result<Option<Found<NodeRecord>>, PoolError> {
    let key = keys::node(node);
    let kept = calls.get(key.clone())?;
    kept.as_ref().map(|kept| found(&key, kept)).transpose()
}

fn node_known(calls: &mut PlaneCalls, node: NodeId) -> Result<Found<NodeRecord>, PoolError> {
    let missing =
        || refused_node(node, "is not in the pool: `weir pool nodes` lists those that are");
    node_found(calls, node)?.ok_or_else(missing)
}

fn put_node(calls: &mut PlaneCalls, record: &NodeRecord, revision: u64) -> Result<(), PoolError> {
    let what = format!("node {}", record.node.0);
    put(calls, &what, (keys::node(record.node), record), revision).map(drop)
}

fn put(
    calls: &mut PlaneCalls,
    what: &str,
    (key, record): (String, &impl Value),
    revision: u64,
) -> Result<u64, PoolError> {
    let value = record.encode(&key);
    let checks = vec![Check { key: key.clone(), revision }];
    let changes = vec![Change::Put { key, value, lease: None }];
    commit(calls, what, checks, changes)
}

fn commit(
    calls: &mut PlaneCalls,
    what: &str,
    checks: Vec<Check>,
    changes: Vec<Change>,
) -> Result<u64, PoolError> {
    match calls.commit(checks, changes)? {
        CommitEnd::Committed(revision) => Ok(revision),
        CommitEnd::Not(_) => {
            Err(refused(what, "was changed by somebody else just now: look, and try again".into()))
        }
    }
}

/// What a key holds.
pub(super) fn found<T: Value>(key: &str, kept: &Kept) -> Result<Found<T>, PoolError> {
    let record = T::decode(key, &kept.value);
    let record = record.map_err(|error: ValueError| PoolError::Plane {
        place: format!("the control plane, {key}"),
        reason: error.to_string(),
    })?;
    Ok(Found { record, revision: kept.revision })
}

fn refused(what: &str, reason: String) -> PoolError {
    PoolError::Plane { place: what.to_owned(), reason }
}

fn refused_node(node: NodeId, reason: &str) -> PoolError {
    refused(&format!("node {}", node.0), reason.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::plane::tests::Served;
    use super::*;

    fn joining(domain: u32) -> Joining {
        let (domain, address) = (Some(DomainId(domain)), Some(format!("10.0.0.1:740{domain}")));
        Joining { domain, address, profile: None }
    }

    fn states(calls: &mut PlaneCalls) -> Vec<(u32, NodeState)> {
        let all = nodes(calls).expect("the plane answers");
        all.into_iter().map(|found| (found.record.node.0, found.record.state)).collect()
    }

    #[test]
    fn nodes_join_drain_and_are_replaced_and_what_makes_no_sense_is_refused() {
        let served = Served::new("records-nodes");
        let calls = &mut PlaneCalls::connect(&served.client()).expect("a thread");
        for node in 1..4 {
            join(calls, NodeId(node), joining(node)).expect("a new one");
        }
        join(calls, NodeId(1), joining(1)).expect("said twice");
        let address = Some("10.0.0.9:1".to_owned());
        join(calls, NodeId(1), Joining { address, ..Joining::default() }).expect("it moved");
        drain(calls, NodeId(1)).expect("it is in");
        drain(calls, NodeId(1)).expect("said twice");
        let back = join(calls, NodeId(1), Joining::default()).expect("it is wanted after all");
        assert_eq!(
            (&*back.address, &*back.profile, back.domain),
            ("10.0.0.9:1", "own", DomainId(1))
        );
        replace(calls, NodeId(2), Some(NodeId(3))).expect("one that is in");
        let now = [(1, NodeState::In), (2, NodeState::ReplacedBy(NodeId(3))), (3, NodeState::In)];
        assert_eq!(states(calls), now);
        let text = |result: Result<(), PoolError>| result.expect_err("no sense").to_string();
        for (node, joining, why) in [
            (1, joining(9), "failure domain 1"),
            (2, joining(2), "new number"),
            (8, Joining { domain: None, ..joining(8) }, "say --domain and --address"),
            (8, joining(3), "10.0.0.1:7403: node 3 is"),
            (8, Joining { address: Some("0.0.0.0:7408".to_owned()), ..joining(8) }, "be reached"),
        ] {
            let refused = text(join(calls, NodeId(node), joining).map(|_| ()));
            assert!(refused.contains(why), "{refused}");
        }
        assert!(text(drain(calls, NodeId(2))).contains("given up"));
        assert!(text(drain(calls, NodeId(7))).contains("weir pool nodes"));
        assert!(text(replace(calls, NodeId(1), Some(NodeId(1)))).contains("not the same"));
        assert!(text(replace(calls, NodeId(1), Some(NodeId(2)))).contains("that is in"));
        assert_eq!(states(calls), now, "nothing of that changed anything");
        replace(calls, NodeId(1), None).expect("it is given up");
        assert_eq!(states(calls)[0], (1, NodeState::Out));
        create(calls, &Wanted::new("data", 1 << 16)).expect("a new one");
        let short = short_of_domains(calls).expect("the plane answers");
        assert_eq!(short, (vec![("data".to_owned(), 2)], 1), "node 3 is left");
        join(calls, NodeId(4), joining(4)).expect("a new one");
        assert_eq!(short_of_domains(calls).expect("the plane answers"), (vec![], 2));
    }

    #[test]
    fn a_volume_is_resized_as_it_was_looked_at_and_not_while_it_is_deleted() {
        let served = Served::new("records-resize");
        let calls = &mut PlaneCalls::connect(&served.client()).expect("a thread");
        create(calls, &Wanted::new("data", 1 << 16)).expect("a new one");
        let before = volume(calls, "data").expect("it is there");
        let larger = pool::volume::grown(&before.record, 1 << 17).expect("it can be");
        resize(calls, &before, &larger).expect("nobody changed it");
        let after = volume(calls, "data").expect("it is there");
        assert_eq!(after.record, larger);
        let text = |result: Result<(), PoolError>| result.expect_err("no sense").to_string();
        assert!(text(resize(calls, &before, &larger)).contains("by somebody else"));
        shut(calls, after, true).expect("forced");
        let deleted = volume(calls, "data").expect("its record is there");
        assert!(text(resize(calls, &deleted, &larger)).contains("being deleted"));
    }

    #[test]
    fn a_volume_is_deleted_with_all_its_keys_and_its_number_is_not_used_again() {
        let served = Served::new("records-volumes");
        let calls = &mut PlaneCalls::connect(&served.client()).expect("a thread");
        let made = create(calls, &Wanted::new("data", 1 << 16)).expect("a new one");
        create(calls, &Wanted::new("other", 1 << 16)).expect("another one");
        for name in ["", "a\n\u{1b}[31mdata: all is well", "a/b"] {
            let error = create(calls, &Wanted::new(name, 1 << 16)).expect_err("it would be shown");
            let text = error.to_string();
            assert!(text.contains("no control characters") && !text.contains('\n'), "{text}");
        }
        let error = create(calls, &Wanted::new("data", 1 << 16)).expect_err("the name is taken");
        assert!(error.to_string().contains("of this name"), "{error}");
        let error = volume(calls, "none").expect_err("there is none").to_string();
        assert!(error.contains("data, other"), "{error}");
        // A client has it open, with more bands on record than fit one commit.
        let id = made.volume;
        let key = keys::owner(id);
        let open =
            OwnerRecord { generation: Generation(4), owner: 7, lease_ns: 1, released: false };
        let mut changes =
            vec![Change::Put { value: open.encode(&key), key: key.clone(), lease: None }];
        changes.push(Change::Put { key: keys::tail(id), value: vec![1], lease: None });
        for batch in 0..3u32 {
            for band in 0..100 {
                let name = pool::words::BandName { volume: id, band, life: batch.into() };
                changes.push(Change::Put { key: keys::band(name), value: vec![1], lease: None });
            }
            calls.commit(Vec::new(), std::mem::take(&mut changes)).expect("it answers");
        }
        let error = delete(calls, "data", false).expect_err("it is open").to_string();
        assert!(error.contains("generation 4") && error.contains("--force"), "{error}");
        assert_eq!(volumes(calls).expect("it answers").len(), 2);
        // The first step is taken, and whoever took it goes: nobody can open it, and the same words end it.
        let before = volume(calls, "data").expect("it is there");
        shut(calls, before, true).expect("forced");
        assert!(volume(calls, "data").expect("it is there").record.is_deleted);
        assert_eq!(delete(calls, "data", false).expect("it was begun"), id);
        let left = calls.range(keys::volumes()).expect("it answers");
        let left: Vec<&str> = left.iter().map(|(key, _)| &**key).collect();
        let stay = [&*key, &*keys::tail(id), &*keys::volume(VolumeId(2))];
        assert_eq!(left, stay, "by its generation and its last life nodes know what is deleted");
        let owner = calls.get(key.clone()).expect("it answers").expect("it stays");
        assert_eq!(found::<OwnerRecord>(&key, &owner).unwrap().record.generation, Generation(5));
        let again = create(calls, &Wanted::new("data", 1 << 16)).expect("the name is free");
        assert_eq!(again.volume, VolumeId(3));
    }
}

//! The fields of the body of a message, written and read in the same order: each pair of functions stands
//! together.

use super::super::codec::{Reader, Writer};
use super::super::contract::{
    CHANGES_MAX, Change, Check, KEY_BYTES_MAX, Kept, LeaseId, PlaneAnswer, PlaneAsk, PlaneAskId,
    PlaneRefusal, RANGE_MAX, VALUE_BYTES_MAX,
};
use super::super::lives::{LIVES_MAX, Life, PlaneFacts};
use super::{
    GROUPS_MAX, Hello, LIMITS_MAX, Message, NAME_BYTES_MAX, POLICY_BYTES_MAX, PROFILE_BYTES_MAX,
    Report, TOLD_MAX, within,
};
use crate::controller::solver::Demand;
use crate::controller::{Explained, Limit, NodeSeen, Redundancy, Room, VolumeSeen};
use crate::wire::WireError;
use crate::words::{Members, NodeId, PoolId, VolumeId};

/// The kind of a message, in its head.
pub(super) fn kind(message: &Message) -> u8 {
    match message {
        Message::Hello(_) => 1,
        Message::Ask { ask, .. } => match ask {
            PlaneAsk::Get { .. } => 2,
            PlaneAsk::Range { .. } => 3,
            PlaneAsk::Commit { .. } => 4,
            PlaneAsk::Watch { .. } => 5,
            PlaneAsk::Unwatch { .. } => 6,
            PlaneAsk::Grant { .. } => 7,
            PlaneAsk::Keep { .. } => 8,
            PlaneAsk::Revoke { .. } => 9,
        },
        Message::Answer { answer, .. } => match answer {
            PlaneAnswer::Value { .. } => 16,
            PlaneAnswer::Values { .. } => 17,
            PlaneAnswer::Committed { .. } => 18,
            PlaneAnswer::NotCommitted { .. } => 19,
            PlaneAnswer::Watching => 20,
            PlaneAnswer::Changed { .. } => 21,
            PlaneAnswer::Forgotten => 22,
            PlaneAnswer::Lease { .. } => 23,
            PlaneAnswer::NoLease => 24,
            PlaneAnswer::Done => 25,
            PlaneAnswer::Refused(_) => 26,
        },
        Message::Report(report) => match report {
            Report::Node { .. } => 32,
            Report::Profile { .. } => 33,
            Report::Volume { .. } => 34,
            Report::Held { .. } => 35,
        },
        Message::Explain => 36,
        Message::Explained(_) => 37,
    }
}

pub(super) fn write(to: &mut Writer, message: &Message) -> Result<(), WireError> {
    match message {
        Message::Hello(hello) => write_hello(to, hello),
        Message::Ask { ask, .. } => write_ask(to, ask),
        Message::Answer { answer, .. } => write_answer(to, answer),
        Message::Report(report) => write_report(to, report),
        Message::Explain => Ok(()),
        Message::Explained(explained) => write_explained(to, explained),
    }
}

pub(super) fn read(from: &mut Reader<'_>, kind: u8, id: u64) -> Result<Message, WireError> {
    let of = PlaneAskId(id);
    if id != 0 && !(2..=26).contains(&kind) {
        return Err(WireError::Field { what: "the id of a message that is no ask" });
    }
    match kind {
        1 => Ok(Message::Hello(read_hello(from)?)),
        2..=9 => Ok(Message::Ask { id: of, ask: read_ask(from, kind)? }),
        16..=26 => Ok(Message::Answer { id: of, answer: read_answer(from, kind)? }),
        32..=35 => Ok(Message::Report(read_report(from, kind)?)),
        36 => Ok(Message::Explain),
        37 => Ok(Message::Explained(read_explained(from)?)),
        found => Err(WireError::Kind { found }),
    }
}

/// What is not there is short.
fn need<T>(value: Option<T>, what: &'static str) -> Result<T, WireError> {
    value.ok_or(WireError::Short { what })
}

fn write_bytes(
    to: &mut Writer,
    what: &'static str,
    bytes: &[u8],
    max: usize,
) -> Result<(), WireError> {
    within(what, bytes.len(), max)?;
    to.slice(bytes);
    Ok(())
}

fn read_bytes<'a>(
    from: &mut Reader<'a>,
    what: &'static str,
    max: usize,
) -> Result<&'a [u8], WireError> {
    let length = need(from.u32(), what)? as usize;
    within(what, length, max)?;
    need(from.take(length), what)
}

fn read_text(from: &mut Reader<'_>, what: &'static str, max: usize) -> Result<String, WireError> {
    let bytes = read_bytes(from, what, max)?.to_vec();
    String::from_utf8(bytes).map_err(|_| WireError::Field { what })
}

fn write_count(
    to: &mut Writer,
    what: &'static str,
    count: usize,
    max: usize,
) -> Result<(), WireError> {
    within(what, count, max)?;
    to.u32(count as u32);
    Ok(())
}

fn read_count(from: &mut Reader<'_>, what: &'static str, max: usize) -> Result<usize, WireError> {
    let count = need(from.u32(), what)? as usize;
    within(what, count, max)?;
    Ok(count)
}

fn read_flag(from: &mut Reader<'_>, what: &'static str) -> Result<bool, WireError> {
    match need(from.u8(), what)? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(WireError::Field { what }),
    }
}

fn write_key(to: &mut Writer, key: &str) -> Result<(), WireError> {
    write_bytes(to, "bytes of a key", key.as_bytes(), KEY_BYTES_MAX + 1)
}

fn read_key(from: &mut Reader<'_>) -> Result<String, WireError> {
    read_text(from, "bytes of a key", KEY_BYTES_MAX + 1)
}

fn write_kept(to: &mut Writer, kept: Option<&Kept>) -> Result<(), WireError> {
    to.u8(u8::from(kept.is_some()));
    if let Some(kept) = kept {
        to.u64(kept.revision);
        write_bytes(to, "bytes of a value", &kept.value, VALUE_BYTES_MAX)?;
    }
    Ok(())
}

fn read_kept(from: &mut Reader<'_>) -> Result<Option<Kept>, WireError> {
    if !read_flag(from, "whether a key is there")? {
        return Ok(None);
    }
    let revision = need(from.u64(), "a revision")?;
    let value = read_bytes(from, "bytes of a value", VALUE_BYTES_MAX)?.to_vec();
    Ok(Some(Kept { value, revision }))
}

fn write_hello(to: &mut Writer, hello: &Hello) -> Result<(), WireError> {
    to.u128(hello.pool.0);
    write_bytes(to, "bytes of a name", hello.name.as_bytes(), NAME_BYTES_MAX)?;
    to.u8(u8::from(hello.plane.is_some()));
    if let Some(PlaneFacts { revision, lives }) = &hello.plane {
        within("starts of a plane", lives.len(), LIVES_MAX)?;
        to.u64(*revision);
        to.u32(lives.len() as u32);
        for life in lives {
            to.u64(life.stamp);
            to.u64(life.revision);
        }
    }
    Ok(())
}

fn read_hello(from: &mut Reader<'_>) -> Result<Hello, WireError> {
    let pool = PoolId(need(from.u128(), "the pool of a hello")?);
    let name = read_text(from, "bytes of a name", NAME_BYTES_MAX)?;
    let plane = if read_flag(from, "whether a plane answers")? {
        let what = "the facts of a plane";
        let revision = need(from.u64(), what)?;
        let count = read_count(from, "starts of a plane", LIVES_MAX)?;
        let life = |from: &mut Reader<'_>| {
            Ok(Life { stamp: need(from.u64(), what)?, revision: need(from.u64(), what)? })
        };
        let lives = (0..count).map(|_| life(from)).collect::<Result<_, WireError>>()?;
        Some(PlaneFacts { revision, lives })
    } else {
        None
    };
    Ok(Hello { pool, name, plane })
}

fn write_ask(to: &mut Writer, ask: &PlaneAsk) -> Result<(), WireError> {
    match ask {
        PlaneAsk::Get { key } => write_key(to, key)?,
        PlaneAsk::Range { from, to: end, limit } => {
            write_key(to, from)?;
            write_key(to, end)?;
            to.u32(*limit);
        }
        PlaneAsk::Commit { checks, changes } => {
            write_count(to, "checks of a commit", checks.len(), CHANGES_MAX)?;
            for check in checks {
                write_key(to, &check.key)?;
                to.u64(check.revision);
            }
            write_count(to, "changes of a commit", changes.len(), CHANGES_MAX)?;
            for change in changes {
                write_change(to, change)?;
            }
        }
        PlaneAsk::Watch { from, to: end, since } => {
            write_key(to, from)?;
            write_key(to, end)?;
            to.u64(*since);
        }
        PlaneAsk::Unwatch { watch } => to.u64(watch.0),
        PlaneAsk::Grant { ttl_ns } => to.u64(*ttl_ns),
        PlaneAsk::Keep { lease } | PlaneAsk::Revoke { lease } => to.u64(lease.0),
    }
    Ok(())
}

fn read_ask(from: &mut Reader<'_>, kind: u8) -> Result<PlaneAsk, WireError> {
    Ok(match kind {
        2 => PlaneAsk::Get { key: read_key(from)? },
        3 => PlaneAsk::Range {
            from: read_key(from)?,
            to: read_key(from)?,
            limit: need(from.u32(), "the limit of a range")?,
        },
        4 => read_commit(from)?,
        5 => PlaneAsk::Watch {
            from: read_key(from)?,
            to: read_key(from)?,
            since: need(from.u64(), "the revision of a watch")?,
        },
        6 => PlaneAsk::Unwatch { watch: PlaneAskId(need(from.u64(), "a watch")?) },
        7 => PlaneAsk::Grant { ttl_ns: need(from.u64(), "the time of a lease")? },
        8 => PlaneAsk::Keep { lease: LeaseId(need(from.u64(), "a lease")?) },
        9 => PlaneAsk::Revoke { lease: LeaseId(need(from.u64(), "a lease")?) },
        found => return Err(WireError::Kind { found }),
    })
}

fn read_commit(from: &mut Reader<'_>) -> Result<PlaneAsk, WireError> {
    let count = read_count(from, "checks of a commit", CHANGES_MAX)?;
    let mut checks = Vec::with_capacity(count);
    for _ in 0..count {
        checks.push(Check { key: read_key(from)?, revision: need(from.u64(), "a revision")? });
    }
    let count = read_count(from, "changes of a commit", CHANGES_MAX)?;
    let mut changes = Vec::with_capacity(count);
    for _ in 0..count {
        changes.push(read_change(from)?);
    }
    Ok(PlaneAsk::Commit { checks, changes })
}

/// Without a lease it is 0.
fn write_change(to: &mut Writer, change: &Change) -> Result<(), WireError> {
    write_key(to, change.key())?;
    match change {
        Change::Put { value, lease, .. } => {
            to.u8(1);
            write_bytes(to, "bytes of a value", value, VALUE_BYTES_MAX)?;
            to.u64(lease.map_or(0, |lease| lease.0));
        }
        Change::Delete { .. } => to.u8(0),
    }
    Ok(())
}

fn read_change(from: &mut Reader<'_>) -> Result<Change, WireError> {
    let key = read_key(from)?;
    if !read_flag(from, "whether a key is put")? {
        return Ok(Change::Delete { key });
    }
    let value = read_bytes(from, "bytes of a value", VALUE_BYTES_MAX)?.to_vec();
    let lease = need(from.u64(), "the lease of a key")?;
    Ok(Change::Put { key, value, lease: (lease != 0).then_some(LeaseId(lease)) })
}

fn write_answer(to: &mut Writer, answer: &PlaneAnswer) -> Result<(), WireError> {
    match answer {
        PlaneAnswer::Value { kept, revision } => {
            to.u64(*revision);
            write_kept(to, kept.as_ref())?;
        }
        PlaneAnswer::Values { kept, more, revision } => {
            to.u64(*revision);
            to.u8(u8::from(*more));
            write_count(to, "keys of an answer", kept.len(), RANGE_MAX as usize)?;
            for (key, kept) in kept {
                write_key(to, key)?;
                write_kept(to, Some(kept))?;
            }
        }
        PlaneAnswer::Committed { revision } => to.u64(*revision),
        PlaneAnswer::NotCommitted { found } => {
            write_count(to, "checks of a commit", found.len(), CHANGES_MAX)?;
            for found in found {
                write_kept(to, found.as_ref())?;
            }
        }
        PlaneAnswer::Changed { changes, revision } => {
            to.u64(*revision);
            write_count(to, "keys of an answer", changes.len(), CHANGED_MAX)?;
            for (key, kept) in changes {
                write_key(to, key)?;
                write_kept(to, kept.as_ref())?;
            }
        }
        PlaneAnswer::Lease { lease, ttl_ns } => {
            to.u64(lease.0);
            to.u64(*ttl_ns);
        }
        PlaneAnswer::Refused(refusal) => to.u8(match refusal {
            PlaneRefusal::Invalid => 0,
            PlaneRefusal::Full => 1,
            PlaneRefusal::Unavailable => 2,
        }),
        PlaneAnswer::Watching
        | PlaneAnswer::Forgotten
        | PlaneAnswer::NoLease
        | PlaneAnswer::Done => {}
    }
    Ok(())
}

fn read_answer(from: &mut Reader<'_>, kind: u8) -> Result<PlaneAnswer, WireError> {
    let revision = |from: &mut Reader<'_>| need(from.u64(), "the revision of an answer");
    Ok(match kind {
        16 => PlaneAnswer::Value { revision: revision(from)?, kept: read_kept(from)? },
        17 => {
            let (revision, more) = (revision(from)?, read_flag(from, "whether there are more")?);
            let count = read_count(from, "keys of an answer", RANGE_MAX as usize)?;
            let mut kept = Vec::with_capacity(count);
            for _ in 0..count {
                let key = read_key(from)?;
                let found = read_kept(from)?;
                kept.push((key, found.ok_or(WireError::Field { what: "a key of a range" })?));
            }
            PlaneAnswer::Values { kept, more, revision }
        }
        18 => PlaneAnswer::Committed { revision: revision(from)? },
        19 => {
            let count = read_count(from, "checks of a commit", CHANGES_MAX)?;
            let found = (0..count).map(|_| read_kept(from)).collect::<Result<Vec<_>, _>>()?;
            PlaneAnswer::NotCommitted { found }
        }
        20 => PlaneAnswer::Watching,
        21 => {
            let revision = revision(from)?;
            let count = read_count(from, "keys of an answer", CHANGED_MAX)?;
            let mut changes = Vec::new();
            for _ in 0..count {
                changes.push((read_key(from)?, read_kept(from)?));
            }
            PlaneAnswer::Changed { changes, revision }
        }
        22 => PlaneAnswer::Forgotten,
        23 => {
            let lease = LeaseId(need(from.u64(), "a lease")?);
            PlaneAnswer::Lease { lease, ttl_ns: need(from.u64(), "the time of a lease")? }
        }
        24 => PlaneAnswer::NoLease,
        25 => PlaneAnswer::Done,
        26 => PlaneAnswer::Refused(match need(from.u8(), "a refusal")? {
            0 => PlaneRefusal::Invalid,
            1 => PlaneRefusal::Full,
            2 => PlaneRefusal::Unavailable,
            _ => return Err(WireError::Field { what: "a refusal" }),
        }),
        found => return Err(WireError::Kind { found }),
    })
}

/// Most keys that one answer of a watch tells of. Where more changed at once, the connection ends, and with it the
/// watch: whoever watched reads the keys.
const CHANGED_MAX: usize = 1 << 16;

fn write_report(to: &mut Writer, report: &Report) -> Result<(), WireError> {
    match report {
        Report::Node { node, seen } => {
            to.u32(node.0);
            for value in [seen.reads, seen.writes, seen.rejected, seen.tail_us, seen.wear] {
                to.u64(value.to_bits());
            }
            to.u8(u8::from(seen.room.is_some()));
            seen.room.iter().for_each(|room| write_room(to, *room));
        }
        Report::Profile { node, text } => {
            to.u32(node.0);
            write_bytes(to, "bytes of a profile", text.as_bytes(), PROFILE_BYTES_MAX)?;
        }
        Report::Volume { volume, seen } => {
            to.u32(volume.0);
            for value in [seen.reads, seen.writes, seen.waf] {
                to.u64(value.to_bits());
            }
            to.u8(u8::from(seen.redundancy.is_some()));
            seen.redundancy.iter().for_each(|told| write_redundancy(to, told));
        }
        Report::Held { volume, groups } => {
            to.u32(volume.0);
            write_count(to, "sets of members", groups.len(), GROUPS_MAX)?;
            for (members, blocks) in groups {
                to.u8(members.nodes().len() as u8);
                members.nodes().iter().for_each(|node| to.u32(node.0));
                to.u64(*blocks);
            }
        }
    }
    Ok(())
}

fn read_report(from: &mut Reader<'_>, kind: u8) -> Result<Report, WireError> {
    let of = need(from.u32(), "whose report it is")?;
    let (node, volume) = (NodeId(of), VolumeId(of));
    Ok(match kind {
        32 => {
            let [reads, writes, rejected, tail_us, wear] = read_numbers(from)?;
            let has_room = read_flag(from, "whether a node tells of its room")?;
            let room = has_room.then(|| read_room(from)).transpose()?;
            Report::Node { node, seen: NodeSeen { reads, writes, rejected, tail_us, wear, room } }
        }
        33 => {
            let text = read_text(from, "bytes of a profile", PROFILE_BYTES_MAX)?;
            Report::Profile { node, text }
        }
        34 => {
            let [reads, writes, waf] = read_numbers(from)?;
            let is_told = read_flag(from, "whether a volume tells of its copies")?;
            let redundancy = is_told.then(|| read_redundancy(from)).transpose()?;
            Report::Volume { volume, seen: VolumeSeen { reads, writes, waf, redundancy } }
        }
        35 => {
            let count = read_count(from, "sets of members", GROUPS_MAX)?;
            let mut groups = Vec::new();
            for _ in 0..count {
                let members = read_members(from)?;
                groups.push((members, need(from.u64(), "blocks of a set of members")?));
            }
            Report::Held { volume, groups }
        }
        found => return Err(WireError::Kind { found }),
    })
}

fn write_room(to: &mut Writer, Room { bands, used, pages }: Room) {
    to.u32(bands);
    to.u32(used);
    to.u32(pages);
}

fn read_room(from: &mut Reader<'_>) -> Result<Room, WireError> {
    let what = "the room of a node";
    let mut one = || need(from.u32(), what);
    Ok(Room { bands: one()?, used: one()?, pages: one()? })
}

fn write_redundancy(to: &mut Writer, of: &Redundancy) {
    for count in [of.lacking, of.stuck, of.draining, of.spreading, of.away, of.bytes_left] {
        to.u64(count);
    }
    to.u8(u8::from(of.left_ns.is_some()));
    of.left_ns.iter().for_each(|ns| to.u64(*ns));
}

fn read_redundancy(from: &mut Reader<'_>) -> Result<Redundancy, WireError> {
    let what = "the copies of a volume";
    let mut counts = [0; 6];
    for count in &mut counts {
        *count = need(from.u64(), what)?;
    }
    let [lacking, stuck, draining, spreading, away, bytes_left] = counts;
    let goes_on = read_flag(from, "whether something is copied")?;
    let left_ns = goes_on.then(|| need(from.u64(), what)).transpose()?;
    Ok(Redundancy { lacking, stuck, draining, spreading, away, bytes_left, left_ns })
}

fn read_members(from: &mut Reader<'_>) -> Result<Members, WireError> {
    let what = "a set of members";
    let count = need(from.u8(), what)?;
    let nodes = (0..count).map(|_| from.u32().map(NodeId)).collect::<Option<Vec<_>>>();
    Members::new(&need(nodes, what)?).ok_or(WireError::Field { what })
}

fn read_numbers<const N: usize>(from: &mut Reader<'_>) -> Result<[f64; N], WireError> {
    let mut numbers = [0.0; N];
    for number in &mut numbers {
        *number = f64::from_bits(need(from.u64(), "a number of a report")?);
    }
    Ok(numbers)
}

fn write_explained(to: &mut Writer, of: &Explained) -> Result<(), WireError> {
    write_bytes(to, "bytes of a policy's name", of.policy.as_bytes(), POLICY_BYTES_MAX)?;
    let Demand { reads, writes } = of.demand;
    for value in [reads, writes, of.peak, of.cost, of.bound, of.reads_off, of.stuck] {
        to.u64(value.to_bits());
    }
    of.modes.iter().for_each(|&nodes| to.u32(nodes as u32));
    write_limits(to, &of.limits);
    let rooms = &of.rooms[..of.rooms.len().min(TOLD_MAX)];
    to.u32(rooms.len() as u32);
    for (node, room) in rooms {
        to.u32(node.0);
        write_room(to, *room);
    }
    let redundancy = &of.redundancy[..of.redundancy.len().min(TOLD_MAX)];
    to.u32(redundancy.len() as u32);
    for (volume, told) in redundancy {
        to.u32(volume.0);
        write_redundancy(to, told);
    }
    Ok(())
}

fn write_limits(to: &mut Writer, limits: &[Limit]) {
    // The first ones say enough.
    let limits = &limits[..limits.len().min(LIMITS_MAX)];
    to.u32(limits.len() as u32);
    for limit in limits {
        let (kind, of, value) = match *limit {
            Limit::Demand(part) => (0, 0, part.to_bits()),
            Limit::Domains(count) => (1, 0, count as u64),
            Limit::Gone(node) => (2, node.0, 0),
            Limit::Slow(node, times) => (3, node.0, times.to_bits()),
            Limit::Worn(node, part) => (4, node.0, part.to_bits()),
            Limit::Rejected(rate) => (5, 0, rate.to_bits()),
            Limit::Useless(node) => (6, node.0, 0),
            Limit::Unknown(node) => (7, node.0, 0),
            Limit::Full { node, bands, used } => {
                (8, node.0, u64::from(used) << 32 | u64::from(bands))
            }
        };
        to.u8(kind);
        to.u32(of);
        to.u64(value);
    }
}

fn read_explained(from: &mut Reader<'_>) -> Result<Explained, WireError> {
    let policy = read_text(from, "bytes of a policy's name", POLICY_BYTES_MAX)?;
    let [reads, writes, peak, cost, bound, reads_off, stuck] = read_numbers(from)?;
    let mut modes = [0; 3];
    for mode in &mut modes {
        *mode = need(from.u32(), "the modes of nodes")? as usize;
    }
    let count = read_count(from, "limits of a plan", LIMITS_MAX)?;
    let mut limits = Vec::new();
    for _ in 0..count {
        limits.push(read_limit(from)?);
    }
    let count = read_count(from, "nodes that tell of their room", TOLD_MAX)?;
    let mut rooms = Vec::new();
    for _ in 0..count {
        let node = NodeId(need(from.u32(), "a node that tells of its room")?);
        rooms.push((node, read_room(from)?));
    }
    let count = read_count(from, "volumes that tell of their copies", TOLD_MAX)?;
    let mut redundancy = Vec::new();
    for _ in 0..count {
        let volume = VolumeId(need(from.u32(), "a volume that tells of its copies")?);
        redundancy.push((volume, read_redundancy(from)?));
    }
    let demand = Demand { reads, writes };
    Ok(Explained {
        policy,
        demand,
        peak,
        cost,
        bound,
        modes,
        reads_off,
        stuck,
        limits,
        rooms,
        redundancy,
    })
}

fn read_limit(from: &mut Reader<'_>) -> Result<Limit, WireError> {
    let what = "a limit of a plan";
    let (kind, node) = (need(from.u8(), what)?, NodeId(need(from.u32(), what)?));
    let bits = need(from.u64(), what)?;
    let value = f64::from_bits(bits);
    Ok(match (kind, node.0, bits) {
        (0, 0, _) => Limit::Demand(value),
        (1, 0, _) => Limit::Domains(usize::try_from(bits).map_err(|_| WireError::Field { what })?),
        (2, _, 0) => Limit::Gone(node),
        (3, ..) => Limit::Slow(node, value),
        (4, ..) => Limit::Worn(node, value),
        (5, 0, _) => Limit::Rejected(value),
        (6, _, 0) => Limit::Useless(node),
        (7, _, 0) => Limit::Unknown(node),
        (8, ..) => Limit::Full { node, bands: bits as u32, used: (bits >> 32) as u32 },
        _ => return Err(WireError::Field { what }),
    })
}

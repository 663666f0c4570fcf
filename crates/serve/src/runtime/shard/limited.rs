//! Requests that wait until the limits of their volume let them in ([`crate::volume::Limiter`]).
//!
//! A request gets its place when it comes and holds up no other: of one connection, those of other volumes go on. Reads,
//! and writes whose data is still with the client, wait without memory; other writes wait with their data, of which a
//! volume has a bounded part here, and beyond that its connections are not read on.
//!
//! A client that gives up on what takes long, and with it on its whole connection ([`Patience::Returns`]), is told to
//! come again where the place is too far away. It keeps its place: who asks the same again within a while has it. A
//! connection that has not come for one of its places when it should have, and some, has given up all of them.
//!
//! Invariants:
//! - who waits counts among the requests of its connection, so that this stays until it is dealt with;
//! - nobody waits for a volume that is gone, that has no limits any more, or while the server stops;
//! - no client that returns waits here for longer than [`HOLD_NS`].

use super::connection::Ending;
use super::requests::Asked;
use super::{Life, Shard};
use crate::front::Patience;
use crate::runtime::data::Data;
use crate::volume::{Failure, Limiter, Request, limiter};
use flash::{Instant, SECOND};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// The part of the memory for requests that those which wait for one volume may hold.
const MEMORY_SHARE: usize = 8;
/// When to look again for memory that others have.
const MEMORY_AGAIN_NS: u64 = flash::MILLISECOND;
/// How long a client that returns is kept waiting: a third of what Linux gives a command of NVMe, by default, before it
/// resets the controller and with it all volumes.
const HOLD_NS: u64 = 10 * SECOND;
/// Places of one volume that are kept for clients that return: as many as four full queues of NVMe.
const KEPT_MAX: usize = 4096;
/// How much later than it was told to a client may come for its place.
const LATE_NS: u64 = 60 * SECOND;
/// How often who waits looks whether others have left the line, on other shards, too.
const LOOK_NS: u64 = SECOND;

/// A request that waits.
struct Waiting {
    connection: u32,
    asked: Asked,
    data: Option<Data>,
    /// Its place.
    at_ns: u64,
}

/// The place of a request whose client was told to come again.
#[derive(Clone, Copy)]
struct Kept {
    connection: u32,
    request: Request,
    at_ns: u64,
    /// How often it was told.
    told: u32,
    /// When it has come, if it comes at all.
    expected_ns: u64,
}

/// Of one volume.
struct Line {
    /// Whose places these are.
    limiter: Arc<Limiter>,
    /// In the order of their places.
    waiting: VecDeque<Waiting>,
    kept: Vec<Kept>,
    /// Of data.
    bytes: usize,
    /// Then the first who has a place here, and has not come, is late.
    late_at_ns: u64,
    /// How many had left the limiter's line when these places were given.
    seen_left: u64,
    /// Connections that are not read on until there are fewer.
    held: Vec<u32>,
    /// There was no memory for the first one; try again then.
    memory_at: Option<Instant>,
}

impl Line {
    fn new(limiter: Arc<Limiter>) -> Self {
        let (waiting, kept, held) = (VecDeque::new(), Vec::new(), Vec::new());
        let (late_at_ns, seen_left) = (u64::MAX, limiter.left());
        Self { limiter, waiting, kept, bytes: 0, late_at_ns, seen_left, held, memory_at: None }
    }

    /// The place that was kept for a request.
    fn kept(&mut self, connection: u32, request: &Request) -> Option<Kept> {
        let same = |kept: &Kept| kept.connection == connection && kept.request == *request;
        let at = self.kept.iter().position(same)?;
        Some(self.kept.swap_remove(at))
    }

    /// Keeps a place, if there is room for it.
    fn keep(&mut self, now_ns: u64, kept: Kept) {
        if self.kept.len() >= KEPT_MAX {
            self.give_up_late(now_ns);
        }
        if self.kept.len() >= KEPT_MAX {
            return self.limiter.leave(&kept.request);
        }
        self.late_at_ns = self.late_at_ns.min(kept.expected_ns);
        self.kept.push(kept);
    }

    /// Gives up all places of connections that are late for one.
    fn give_up_late(&mut self, now_ns: u64) {
        let late = self.kept.iter().filter(|kept| kept.expected_ns <= now_ns);
        let late: BTreeSet<u32> = late.map(|kept| kept.connection).collect();
        let leaves = |kept: &&Kept| late.contains(&kept.connection);
        self.kept.iter().filter(leaves).for_each(|kept| self.limiter.leave(&kept.request));
        self.kept.retain(|kept| !leaves(&kept));
        let expected = self.kept.iter().map(|kept| kept.expected_ns);
        self.late_at_ns = expected.min().unwrap_or(u64::MAX);
        if !late.is_empty() {
            self.limiter.tell_left();
        }
    }

    /// Those who wait get nearer when others have left.
    fn move_up(&mut self, now_ns: u64) {
        if now_ns >= self.late_at_ns {
            self.give_up_late(now_ns);
        }
        if self.limiter.left() != self.seen_left {
            let limiter = Arc::clone(&self.limiter);
            self.place_anew(now_ns, &limiter, None);
        }
    }

    fn insert(&mut self, waiting: Waiting) {
        self.bytes += waiting.data.as_ref().map_or(0, Data::bytes);
        let at = self.waiting.partition_point(|other| other.at_ns <= waiting.at_ns);
        self.waiting.insert(at, waiting);
    }

    /// Gives all who wait, but those of `gone`, places anew: of another limiter, or nearer ones as some have left.
    fn place_anew(&mut self, now_ns: u64, limiter: &Arc<Limiter>, gone: Option<u32>) {
        if gone.is_some() {
            self.limiter.tell_left();
        }
        self.seen_left = limiter.left();
        if Arc::ptr_eq(limiter, &self.limiter) {
            self.waiting.iter().for_each(|waiting| limiter.leave(&waiting.asked.request));
            let leaves = |kept: &&Kept| Some(kept.connection) == gone;
            self.kept.iter().filter(leaves).for_each(|kept| limiter.leave(&kept.request));
            self.kept.retain(|kept| !leaves(&kept));
        } else {
            // Who comes for these finds the new limits.
            self.kept.clear();
            self.late_at_ns = u64::MAX;
            self.limiter = Arc::clone(limiter);
        }
        let (mut first, rest): (VecDeque<_>, VecDeque<_>) =
            self.waiting.drain(..).partition(|waiting| Some(waiting.connection) == gone);
        first.iter_mut().for_each(|waiting| waiting.at_ns = 0);
        first.extend(rest.into_iter().map(|waiting| {
            let at_ns = limiter.place(now_ns, &waiting.asked.request);
            Waiting { at_ns, ..waiting }
        }));
        self.waiting = first;
    }

    fn has(&self, connection: u32) -> bool {
        self.waiting.iter().any(|waiting| waiting.connection == connection)
            || self.kept.iter().any(|kept| kept.connection == connection)
    }

    /// When to look at the first, or at who is late.
    fn opens_at(&self, now: Instant, now_ns: u64) -> Option<Instant> {
        let late = (self.late_at_ns < u64::MAX).then(|| self.late_at_ns.saturating_sub(now_ns));
        let late = late.map(|in_ns| now + in_ns);
        let Some(first) = self.waiting.front() else { return late };
        let opens = now + first.at_ns.saturating_sub(now_ns).min(LOOK_NS);
        Some(self.memory_at.unwrap_or(opens)).into_iter().chain(late).min()
    }
}

/// A request whose client comes again at once when it is told to, so that it is told late.
struct Leaving {
    at: Instant,
    connection: u32,
    asked: Asked,
    failure: Failure,
}

/// All that wait here.
pub struct Limited {
    lines: BTreeMap<usize, Line>,
    /// In the order of their instants.
    leaving: VecDeque<Leaving>,
    /// How often somebody was told to come again.
    pub put_off: u64,
    /// The clock that all shards have.
    origin: std::time::Instant,
}

impl Limited {
    /// Nobody waits yet; the clock begins where that of the other shards does.
    pub fn new(origin: std::time::Instant) -> Self {
        Self { lines: BTreeMap::new(), leaving: VecDeque::new(), put_off: 0, origin }
    }

    /// When somebody may be let in, or is told.
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        let now_ns = self.now_ns();
        let opens = self.lines.values().filter_map(|line| line.opens_at(now, now_ns)).min();
        let leaves = self.leaving.front().map(|leaving| leaving.at);
        opens.into_iter().chain(leaves).min()
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.leaving.len() + self.lines.values().map(|line| line.waiting.len()).sum::<usize>()
    }

    fn now_ns(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
    }
}

impl Shard {
    fn limiter(&self, volume: usize) -> Option<&Arc<Limiter>> {
        self.offered.get(volume).and_then(|volume| volume.limiter.as_ref())
    }

    /// Lets a request in; or has it wait, or its client come again: then `None`.
    pub(super) fn admit(
        &mut self,
        connection: u32,
        asked: Asked,
        data: Option<Data>,
    ) -> Option<(Asked, Option<Data>)> {
        let (volume, request) = (asked.request.volume, asked.request);
        let Some(limiter) = self.limiter(volume).cloned() else { return Some((asked, data)) };
        let front = &self.connections[connection].front;
        let counts = limiter::is_limited(request.kind) && !front.is_part(asked.ticket);
        if self.life != Life::Serving || asked.admitted || !counts {
            return Some((asked, data));
        }
        let patience = front.patience();
        let now_ns = self.limited.now_ns();
        let line = self.limited.lines.get_mut(&volume);
        let nobody_waits = line.as_ref().is_none_or(|line| line.waiting.is_empty());
        let kept = line.and_then(|line| line.kept(connection, &request));
        let place = kept.unwrap_or_else(|| {
            let at_ns = limiter.place(now_ns, &request);
            Kept { connection, request, at_ns, told: 0, expected_ns: 0 }
        });
        let asked = Asked { admitted: true, waits_since: self.now, ..asked };
        if nobody_waits && place.at_ns <= now_ns {
            return Some((asked, data));
        }
        let line = self.limited.lines.entry(volume).or_insert_with(|| Line::new(limiter));
        if let Patience::Returns { at_once } = patience
            && place.at_ns > now_ns + HOLD_NS
        {
            match self.connections[connection].front.comes_back_ns(place.at_ns - now_ns, place.told)
            {
                Some(away_ns) => {
                    let away_ns = if at_once { HOLD_NS } else { away_ns };
                    let expected_ns = now_ns + away_ns + LATE_NS;
                    line.keep(now_ns, Kept { told: place.told + 1, expected_ns, ..place });
                }
                None => {
                    line.limiter.leave(&request);
                    line.limiter.tell_left();
                }
            }
            self.put_off((connection, asked), data, (place, now_ns), at_once);
            return None;
        }
        if data.is_none() {
            self.connections[connection].front.waits(asked.ticket, true);
        }
        line.insert(Waiting { connection, asked, data, at_ns: place.at_ns });
        self.connections[connection].requests += 1;
        None
    }

    /// The client of a request whose place is kept is told to come again: now, or, if it would come at once, when it has
    /// waited as long as it may.
    fn put_off(
        &mut self,
        (connection, asked): (u32, Asked),
        data: Option<Data>,
        (place, now_ns): (Kept, u64),
        at_once: bool,
    ) {
        let failure = Failure::Later { wait_ns: place.at_ns - now_ns, before: place.told };
        self.limited.put_off += 1;
        if !at_once {
            return self.answer_unbegun(connection, asked.ticket, failure, data);
        }
        if data.is_none() {
            self.connections[connection].front.waits(asked.ticket, true);
        }
        data.into_iter().for_each(|data| self.pool.put(data, self.engine.frames()));
        let at = self.now + HOLD_NS;
        self.limited.leaving.push_back(Leaving { at, connection, asked, failure });
        self.connections[connection].requests += 1;
    }

    /// True if the data of a write must not be taken now: those that wait for its volume hold as much as they may.
    /// The connection goes on when they do not.
    pub(super) fn must_hold(&mut self, connection: u32, asked: &Asked) -> bool {
        let bytes_max = self.shared.buffer_bytes_max / MEMORY_SHARE;
        let Some(line) = self.limited.lines.get_mut(&asked.request.volume) else { return false };
        // One that returns has data in its capsules alone, which is little, and other volumes behind it.
        let waits = self.connections[connection].front.patience() == Patience::Endless;
        let holds = waits && line.bytes >= bytes_max && !asked.admitted;
        if holds && !line.held.contains(&connection) {
            line.held.push(connection);
        }
        holds
    }

    /// What waits of a connection that is gone need not, and makes room for others.
    pub(super) fn leave_lines(&mut self, connection: u32) {
        let now_ns = self.limited.now_ns();
        for line in self.limited.lines.values_mut().filter(|line| line.has(connection)) {
            let limiter = Arc::clone(&line.limiter);
            line.place_anew(now_ns, &limiter, Some(connection));
        }
    }

    /// Lets in those whose time has come, and those that wait for nothing any more.
    pub(super) fn admit_waiting(&mut self, now: Instant) {
        if self.limited.lines.is_empty() && self.limited.leaving.is_empty() {
            return;
        }
        self.now = self.now.max(now);
        self.send_away();
        let volumes: Vec<usize> = self.limited.lines.keys().copied().collect();
        let now_ns = self.limited.now_ns();
        for volume in volumes {
            if let Some(line) = self.limited.lines.get_mut(&volume) {
                line.move_up(now_ns);
            }
            while let Some(waiting) = self.next_admitted(volume) {
                self.let_in(waiting);
            }
            self.end_line(now, volume);
        }
    }

    /// One that has waited goes on, or is forgotten with its client.
    fn let_in(&mut self, (waiting, whole): (Waiting, bool)) {
        let Waiting { connection, mut asked, data, .. } = waiting;
        self.connections[connection].requests -= 1;
        asked.limited_ns = self.now - asked.waits_since;
        let client = &mut self.connections[connection];
        if client.ending == Ending::Gone {
            client.front.finish(asked.ticket);
            data.into_iter().for_each(|data| self.pool.put(data, self.engine.frames()));
            return self.mark_dirty(connection);
        }
        if whole {
            return self.dispatch(connection, asked, data);
        }
        client.front.waits(asked.ticket, false);
        self.with_memory(connection, asked, data);
    }

    /// Tells those to come again whose clients do so at once, when they have waited as long as they may.
    fn send_away(&mut self) {
        let open = self.life == Life::Serving;
        while let Some(first) = self.limited.leaving.front()
            && (first.at <= self.now || !open)
        {
            let Some(Leaving { connection, asked, failure, .. }) = self.limited.leaving.pop_front()
            else {
                return;
            };
            let client = &mut self.connections[connection];
            client.requests -= 1;
            if client.ending == Ending::Gone {
                client.front.finish(asked.ticket);
                self.mark_dirty(connection);
            } else {
                self.answer_unbegun(connection, asked.ticket, failure, None);
            }
        }
    }

    /// Who waits goes by the limits that volumes have now.
    pub(super) fn take_over_limits(&mut self) {
        let now_ns = self.limited.now_ns();
        for (volume, line) in &mut self.limited.lines {
            let limiter = self.offered.get(*volume).and_then(|volume| volume.limiter.as_ref());
            if let Some(limiter) = limiter.filter(|limiter| !Arc::ptr_eq(limiter, &line.limiter)) {
                line.place_anew(now_ns, limiter, None);
            }
        }
    }

    /// The next of a volume that need not wait any more, with its memory; and whether that holds what is to be written,
    /// or it needs none.
    fn next_admitted(&mut self, volume: usize) -> Option<(Waiting, bool)> {
        let now_ns = self.limited.now_ns();
        let is_limited = self.limiter(volume).is_some() && self.life == Life::Serving;
        let first = self.limited.lines.get(&volume)?.waiting.front()?;
        let (asked, whole) = (first.asked, first.data.is_some());
        let gone = self.connections[first.connection].ending == Ending::Gone;
        if is_limited && !gone && first.at_ns > now_ns {
            return None;
        }
        let mut data = None;
        if !gone && !whole && asked.request.buffer_blocks() > 0 {
            data = self.take_data(asked.request.buffer_blocks(), false, asked.request.kind);
            if data.is_none() && self.life == Life::Serving {
                // Others hold it, and wait for nobody.
                self.limited.lines.get_mut(&volume)?.memory_at = Some(self.now + MEMORY_AGAIN_NS);
                return None;
            }
            if data.is_none() {
                data = self.take_data(asked.request.buffer_blocks(), true, asked.request.kind);
            }
        }
        let line = self.limited.lines.get_mut(&volume)?;
        line.memory_at = None;
        let mut waiting = line.waiting.pop_front()?;
        line.bytes -= waiting.data.as_ref().map_or(0, Data::bytes);
        waiting.data = waiting.data.or(data);
        Some((waiting, whole))
    }

    /// Reads on where that was held up; a line in which nobody waits, and to which nobody will return, goes.
    fn end_line(&mut self, now: Instant, volume: usize) {
        let limited = self.limiter(volume).is_some();
        let Some(line) = self.limited.lines.get_mut(&volume) else { return };
        let bytes_max = self.shared.buffer_bytes_max / MEMORY_SHARE;
        let open = self.life == Life::Serving;
        let held = match line.bytes < bytes_max {
            true => std::mem::take(&mut line.held),
            false => Vec::new(),
        };
        let awaits = limited && !line.kept.is_empty();
        if line.waiting.is_empty() && line.held.is_empty() && !awaits {
            self.limited.lines.remove(&volume);
        }
        for connection in held.into_iter().filter(|_| open) {
            if self.connections.get(connection).is_some() {
                self.proceed(now, connection);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Limits;
    use crate::front::Ticket;
    use crate::volume::Kind;
    use flash::MILLISECOND;

    fn limiter(iops: u64) -> Arc<Limiter> {
        let limits = Limits { iops, bytes_per_sec: 0, burst_ms: 1 };
        Arc::new(Limiter::of(limits).unwrap())
    }

    fn request(block: u64) -> Request {
        Request { volume: 0, kind: Kind::Read, offset: block * 4096, len: 4096 }
    }

    /// A line in which the requests of `connections` wait, in this order.
    fn line(limiter: &Arc<Limiter>, connections: &[u32]) -> Line {
        let mut line = Line::new(Arc::clone(limiter));
        for (block, &connection) in (0..).zip(connections) {
            let (request, now) = (request(block), Instant(0));
            let at_ns = limiter.place(0, &request);
            let (admitted, limited_ns, waits_since) = (true, 0, now);
            let ticket = Ticket(0);
            let asked = Asked { ticket, request, at: now, admitted, limited_ns, waits_since };
            line.insert(Waiting { connection, asked, data: None, at_ns });
        }
        line
    }

    fn places_ms(line: &Line) -> Vec<(u32, u64)> {
        let place = |waiting: &Waiting| (waiting.connection, waiting.at_ns.div_ceil(MILLISECOND));
        line.waiting.iter().map(place).collect()
    }

    #[test]
    fn who_leaves_makes_room_for_those_behind() {
        let limiter = limiter(10);
        let mut line = line(&limiter, &[1, 2, 1, 1, 3]);
        assert_eq!(places_ms(&line), [(1, 0), (2, 99), (1, 199), (1, 299), (3, 399)]);
        line.place_anew(0, &limiter, Some(1));
        assert_eq!(places_ms(&line), [(1, 0), (1, 0), (1, 0), (2, 0), (3, 99)]);
        assert!(line.has(3) && !line.has(4));
    }

    #[test]
    fn other_limits_count_from_now_on() {
        let mut line = line(&limiter(1), &[1, 2, 3]);
        let kept =
            Kept { connection: 1, request: request(9), at_ns: 3, told: 1, expected_ns: SECOND };
        line.keep(0, kept);
        line.place_anew(0, &limiter(100), None);
        assert_eq!(places_ms(&line), [(1, 0), (2, 9), (3, 19)]);
        assert!(line.kept.is_empty());
    }

    #[test]
    fn a_place_is_kept_for_who_asks_the_same_again_and_only_once() {
        let limiter = limiter(1);
        let mut line = Line::new(Arc::clone(&limiter));
        let (at_ns, expected_ns) = (70 * SECOND, 40 * SECOND);
        let kept = Kept { connection: 1, request: request(9), at_ns, told: 1, expected_ns };
        line.keep(0, kept);
        assert!(line.kept(2, &request(9)).is_none() && line.kept(1, &request(8)).is_none());
        assert_eq!(line.kept(1, &request(9)).map(|kept| kept.at_ns), Some(70 * SECOND));
        assert!(line.kept(1, &request(9)).is_none());
        // As many as may be are kept; then those that nobody came for are forgotten.
        for block in 0..KEPT_MAX as u64 + 1 {
            line.keep(0, Kept { request: request(block), ..kept });
        }
        assert_eq!(line.kept.len(), KEPT_MAX);
        line.keep(expected_ns, Kept { connection: 2, expected_ns: 2 * expected_ns, ..kept });
        assert_eq!(line.kept.len(), 1);
    }

    #[test]
    fn a_connection_that_is_late_for_one_of_its_places_loses_all_and_others_move_up() {
        let limiter = limiter(1);
        let place = |line: &mut Line, connection: u32, block: u64, expected_ns: u64| {
            let request = request(block);
            let at_ns = limiter.place(0, &request);
            line.keep(0, Kept { connection, request, at_ns, told: 1, expected_ns });
        };
        let mut here = Line::new(Arc::clone(&limiter));
        for block in 0..100 {
            place(&mut here, 1, block, (20 + block) * SECOND);
        }
        place(&mut here, 2, 200, 60 * SECOND);
        // Somebody waits on another shard, behind all of them.
        let mut there = line(&limiter, &[7]);
        assert_eq!(places_ms(&there), [(7, 100_999)]);
        here.move_up(19 * SECOND);
        assert_eq!((here.kept.len(), here.late_at_ns), (101, 20 * SECOND));
        here.move_up(20 * SECOND);
        assert_eq!((here.kept.len(), here.late_at_ns), (1, 60 * SECOND));
        there.move_up(20 * SECOND);
        assert_eq!(places_ms(&there), [(7, 20_000)], "nothing is under way any more");
    }
}

//! What a drive puts before its flash: link, firmware and DRAM cache, as a target around another.
//!
//! An I/O is a *command*. It waits on the host while `queue_depth` others are open, travels for
//! `command_ns`, and is then worked on in *segments* of at most 64 KiB, cut at multiples of that. A
//! command has one segment at a time in the first of its stages, so commands share it in turns, and
//! as many as it likes in those after it:
//! - read: firmware (the command with the first segment, pages if they come from flash), the inner
//!   target unless all its blocks are in the cache, link;
//! - write without a cache: link, firmware (command and pages), inner target;
//! - write to raw units that take whole blocks only: the write goes inside as a whole with its first
//!   segment (one lane of flash is slower than the link, which stays ahead of it), and ends when both
//!   the flash and the link are done;
//! - write with a cache: room in the cache (first come, first served), link, firmware (command), and
//!   it is acknowledged with its last segment. Lines then leave in the order they came: firmware
//!   (pages) for one line at a time, inner target for up to `drain_depth`. Data for the very blocks
//!   of a line that has not begun to leave replaces it;
//! - flush, and erase: firmware (command), until every line written before it has left, inner target;
//!   a flush of a cache that survives power cuts ends with the firmware.
//!
//! Link directions and firmware serve in the order of asking and cannot be interrupted. What GC
//! relocated inside is charged to the firmware as `relocate_page_ns` says.
//!
//! Targets carry no data, so a read that finds only some of its blocks in the cache is timed as one
//! of the whole segment from flash, and a page's missing blocks are not read before a part is
//! written. A line that cannot be written inside fails the next flush.
//!
//! Invariants:
//! - events are handled in order of time, those of the inner target first, then of creation;
//! - a command that is open has a segment in some stage, waits for room, or waits for lines;
//! - lists and queues keep their memory, so that nothing is allocated once they have grown.

use super::cache::Lines;
use super::config::{FrontConfig, Link};
use super::placement::{FdpStatistics, Interface, Placement};
use super::serial::{Pool, Serial, transfer_ns};
use crate::driver::Failure;
use crate::target::{Done, Io, IoKind, Rules, Target, TargetCounts};
use flash::{Hint, Instant, RequestError, Slab};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Most bytes that pass a stage in one go: what a large command takes before a small one's turn.
const SEGMENT_BYTES: u64 = 64 << 10;

/// The inner target is asked what GC did after so many bytes written to it.
const LOOK_BYTES: u64 = 256 << 10;

/// See the head of this file.
pub struct Front<T> {
    inner: T,
    inner_bytes: u64,
    config: FrontConfig,
    now: Instant,
    /// Time, number, [`Event::pack`]: earliest first.
    events: BinaryHeap<Reverse<(u64, u64, u64)>>,
    event_last: u64,
    /// Events that are due when they are made, oldest first: after those of `events` for the same
    /// instant, which were made before.
    due: VecDeque<Event>,
    commands: Slab<Command>,
    segments: Slab<Segment>,
    /// Commands that the queue depth keeps on the host.
    waiting: VecDeque<u32>,
    /// Commands the device has taken.
    taken: u32,
    link_read: Serial,
    link_write: Serial,
    firmware: Pool,
    cache: Option<Lines>,
    /// Writes that wait for room in the cache.
    room_waiters: VecDeque<u32>,
    /// Flushes and erases that wait for the lines before a number.
    line_waiters: VecDeque<(u64, u32)>,
    draining: u32,
    /// A line passes the firmware.
    drain_in_firmware: bool,
    /// Bytes of a gathered stripe that have not begun to leave.
    stripe_left: u64,
    drain_error: Option<RequestError>,
    gc: Gc,
    /// Writes whose placement identifier named nothing.
    invalid_identifiers: u64,
    done: VecDeque<Done>,
}

#[derive(Clone, Copy, Debug)]
struct Command {
    token: u64,
    io: Io,
    /// First byte of the next segment.
    next: u64,
    segments_left: u32,
    result: Result<(), RequestError>,
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    command: u32,
    offset: u64,
    bytes: u64,
    /// All of it is in the cache.
    hit: bool,
}

/// What the firmware owes for relocations.
#[derive(Clone, Copy, Debug, Default)]
struct Gc {
    /// Bytes written inside since the last look.
    written: u64,
    /// Relocated in all, at the last look.
    seen: u64,
    /// Not charged yet.
    owed: u64,
}

/// What happens next to a command, a segment or a line.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// A command reached the device.
    Arrived(u32),
    /// The firmware is done with a segment of a read.
    ReadDecided(u32),
    /// A segment has left over the link.
    Out(u32),
    /// A segment has come in over the link.
    In(u32),
    /// The firmware is done with a segment of a write.
    WriteDecided(u32),
    /// The firmware is done with a flush or erase.
    Ordered(u32),
    /// The firmware is done with the next line to leave the cache.
    DrainDecided,
    /// A command that cannot be carried out.
    Refused(u32),
}

impl Event {
    fn pack(self) -> u64 {
        let (kind, index) = match self {
            Self::Arrived(index) => (0, index),
            Self::ReadDecided(index) => (1, index),
            Self::Out(index) => (2, index),
            Self::In(index) => (3, index),
            Self::WriteDecided(index) => (4, index),
            Self::Ordered(index) => (5, index),
            Self::DrainDecided => (6, 0),
            Self::Refused(index) => (7, index),
        };
        kind << 32 | u64::from(index)
    }

    fn unpack(packed: u64) -> Self {
        let index = packed as u32;
        match packed >> 32 {
            0 => Self::Arrived(index),
            1 => Self::ReadDecided(index),
            2 => Self::Out(index),
            3 => Self::In(index),
            4 => Self::WriteDecided(index),
            5 => Self::Ordered(index),
            6 => Self::DrainDecided,
            _ => Self::Refused(index),
        }
    }
}

/// Whose I/O the inner target ended: its token tells.
#[derive(Clone, Copy, Debug)]
enum Inside {
    Segment(u32),
    /// A flush or erase.
    Command(u32),
    /// A line of the cache.
    Line(u64),
}

impl Inside {
    fn token(self) -> u64 {
        match self {
            Self::Segment(index) => u64::from(index),
            Self::Command(index) => 1 << 62 | u64::from(index),
            Self::Line(number) => 1 << 63 | number,
        }
    }

    fn of(token: u64) -> Self {
        match token >> 62 {
            0 => Self::Segment(token as u32),
            1 => Self::Command(token as u32),
            _ => Self::Line(token & !(1 << 63)),
        }
    }
}

impl<T: Target> Front<T> {
    /// Puts the parts of `config` before `inner`. A cache holds at least two segments.
    pub fn new(inner: T, config: FrontConfig) -> Self {
        let cache = config.cache.as_ref().map(|cache| {
            assert!(cache.drain_depth > 0, "a cache that is never drained holds up its writers");
            Lines::new(cache.bytes.max(2 * SEGMENT_BYTES))
        });
        Self {
            inner_bytes: inner.bytes(),
            now: inner.now(),
            inner,
            events: BinaryHeap::new(),
            event_last: 0,
            due: VecDeque::new(),
            commands: Slab::default(),
            segments: Slab::default(),
            waiting: VecDeque::new(),
            taken: 0,
            link_read: Serial::default(),
            link_write: Serial::default(),
            firmware: Pool::new(config.firmware.cores),
            cache,
            room_waiters: VecDeque::new(),
            line_waiters: VecDeque::new(),
            draining: 0,
            drain_in_firmware: false,
            stripe_left: 0,
            drain_error: None,
            gc: Gc::default(),
            invalid_identifiers: 0,
            done: VecDeque::new(),
            config,
        }
    }

    /// The target inside.
    pub fn inner_mut(&mut self) -> &mut T {
        &mut self.inner
    }

    fn schedule(&mut self, at: Instant, event: Event) {
        if at == self.now {
            self.due.push_back(event);
            return;
        }
        self.event_last += 1;
        self.events.push(Reverse((at.0, self.event_last, event.pack())));
    }

    fn next_event(&self) -> Option<Instant> {
        if !self.due.is_empty() {
            return Some(self.now);
        }
        self.events.peek().map(|&Reverse((at, ..))| Instant(at))
    }

    /// The next event; there is one, and its time has come.
    fn take_event(&mut self) -> Option<Event> {
        let first = self.events.peek().is_some_and(|&Reverse((at, ..))| at <= self.now.0);
        if !first && let Some(event) = self.due.pop_front() {
            return Some(event);
        }
        self.events.pop().map(|Reverse((_, _, event))| Event::unpack(event))
    }

    /// The device takes a command.
    fn take(&mut self, command: u32) {
        self.taken += 1;
        let arrival = self.now + self.config.link.command_ns;
        self.schedule(arrival, Event::Arrived(command));
    }

    fn handle(&mut self, event: Event) -> Result<(), Failure> {
        match event {
            Event::Arrived(command) => self.arrived(command),
            Event::ReadDecided(segment) => self.read_decided(segment),
            Event::Out(segment) => {
                self.end_segment(segment, Ok(()));
                Ok(())
            }
            Event::In(segment) => {
                let command = self.segments[segment].command;
                self.write_decision(segment)?;
                self.write_segments(command)
            }
            Event::WriteDecided(segment) => self.write_decided(segment),
            Event::Ordered(command) => self.ordered(command),
            Event::DrainDecided => self.drain_decided(),
            Event::Refused(command) => {
                self.end_command(command);
                Ok(())
            }
        }
    }

    fn arrived(&mut self, command: u32) -> Result<(), Failure> {
        let io = self.commands[command].io;
        if !io.is_within(self.inner_bytes) {
            self.commands[command].result = Err(RequestError::OutOfRange);
            let decided = self.firmware.take(self.now, self.config.firmware.command_ns);
            self.schedule(decided, Event::Refused(command));
            return Ok(());
        }
        if io.kind == IoKind::Write {
            self.place(command);
        }
        let end = io.offset + io.bytes;
        let segments = end.div_ceil(SEGMENT_BYTES) - io.offset / SEGMENT_BYTES;
        // A whole write inside ends beside its segments.
        let whole = u32::from(self.config.whole_writes && io.kind == IoKind::Write);
        self.commands[command].segments_left = segments as u32 + whole;
        match io.kind {
            IoKind::Read => self.read_segments(command),
            IoKind::Write if self.cache.is_none() => self.write_segments(command),
            IoKind::Write if self.room_waiters.is_empty() => self.write_segments(command),
            IoKind::Write => {
                self.room_waiters.push_back(command);
                Ok(())
            }
            IoKind::Erase | IoKind::Flush => {
                let decided = self.firmware.take(self.now, self.config.firmware.command_ns);
                self.schedule(decided, Event::Ordered(command));
                Ok(())
            }
        }
    }

    /// The drive reads the placement identifier of a write.
    fn place(&mut self, command: u32) {
        let Some(placement) = self.config.placement else { return };
        let hint = &mut self.commands[command].io.hint;
        let handle = placement.handle(hint.handle);
        self.invalid_identifiers += u64::from(handle.is_none());
        // The command has no field for anything else that the client knows.
        *hint = Hint { handle: handle.unwrap_or(0), ..Hint::default() };
    }

    /// Bounds of the command's next segment; `None` after the last, with which it may have ended.
    fn peek_segment(&self, command: u32) -> Option<(u64, u64)> {
        let &Command { io, next, .. } = self.commands.get(command)?;
        let end = io.offset + io.bytes;
        let cut = (next - next % SEGMENT_BYTES + SEGMENT_BYTES).min(end);
        (next < end).then_some((next, cut - next))
    }

    fn take_segment(&mut self, command: u32) -> Option<(u32, Segment, bool)> {
        let (offset, bytes) = self.peek_segment(command)?;
        let first = offset == self.commands[command].io.offset;
        self.commands[command].next += bytes;
        let segment = Segment { command, offset, bytes, hit: false };
        Some((self.segments.insert(segment), segment, first))
    }

    fn read_segments(&mut self, command: u32) -> Result<(), Failure> {
        while let Some((index, Segment { offset, bytes, .. }, first)) = self.take_segment(command) {
            let hit = self.cache.as_ref().is_some_and(|cache| cache.covers(offset, bytes));
            self.segments[index].hit = hit;
            let firmware = &self.config.firmware;
            let command_ns = if first { firmware.command_ns } else { 0 };
            let pages = if hit { 0 } else { firmware.pages(offset, bytes) };
            let ns = command_ns + pages * firmware.read_page_ns;
            if ns > 0 {
                let decided = self.firmware.take(self.now, ns);
                self.schedule(decided, Event::ReadDecided(index));
                return Ok(());
            }
            self.fetch(index)?;
        }
        Ok(())
    }

    fn read_decided(&mut self, segment: u32) -> Result<(), Failure> {
        let command = self.segments[segment].command;
        self.fetch(segment)?;
        self.read_segments(command)
    }

    fn fetch(&mut self, segment: u32) -> Result<(), Failure> {
        let Segment { command, offset, bytes, hit } = self.segments[segment];
        if hit {
            self.send_out(segment);
            return Ok(());
        }
        let io = Io { offset, bytes, ..self.commands[command].io };
        self.inner.submit(self.now, Inside::Segment(segment).token(), io)
    }

    fn send_out(&mut self, segment: u32) {
        let Segment { bytes, .. } = self.segments[segment];
        let (ns, read) = (link_ns(&self.config.link, IoKind::Read, bytes), &mut self.link_read);
        if ns == 0 {
            self.end_segment(segment, Ok(()));
            return;
        }
        let out = read.take(self.now, ns);
        self.schedule(out, Event::Out(segment));
    }

    /// Sends in what there is room for. A command without room goes to the front of the waiters.
    fn write_segments(&mut self, command: u32) -> Result<(), Failure> {
        while let Some((offset, bytes)) = self.peek_segment(command) {
            if self.cache.as_mut().is_some_and(|cache| !cache.reserve(offset, bytes)) {
                self.room_waiters.push_front(command);
                return self.drain();
            }
            let (index, ..) = self.take_segment(command).expect("it was seen");
            let ns = link_ns(&self.config.link, IoKind::Write, bytes);
            if ns > 0 {
                let half_duplex = self.config.link.half_duplex;
                let link = if half_duplex { &mut self.link_read } else { &mut self.link_write };
                let inside = link.take(self.now, ns);
                self.schedule(inside, Event::In(index));
                return Ok(());
            }
            self.write_decision(index)?;
        }
        Ok(())
    }

    /// A segment of a write is in the device: the firmware looks at it.
    fn write_decision(&mut self, segment: u32) -> Result<(), Failure> {
        let Segment { command, offset, bytes, .. } = self.segments[segment];
        let firmware = &self.config.firmware;
        let first = offset == self.commands[command].io.offset;
        let command_ns = if first { firmware.command_ns } else { 0 };
        let pages = if self.cache.is_some() { 0 } else { firmware.pages(offset, bytes) };
        let ns = command_ns + pages * firmware.write_page_ns;
        if ns == 0 {
            return self.write_decided(segment);
        }
        let decided = self.firmware.take(self.now, ns);
        self.schedule(decided, Event::WriteDecided(segment));
        Ok(())
    }

    fn write_decided(&mut self, segment: u32) -> Result<(), Failure> {
        let Segment { command, offset, bytes, .. } = self.segments[segment];
        let io = Io { offset, bytes, ..self.commands[command].io };
        if self.config.whole_writes {
            let whole = self.commands[command].io;
            if offset == whole.offset {
                self.inner.submit(self.now, Inside::Command(command).token(), whole)?;
            }
            self.end_segment(segment, Ok(()));
            return Ok(());
        }
        let Some(cache) = &mut self.cache else {
            self.inner.submit(self.now, Inside::Segment(segment).token(), io)?;
            self.look_at_gc(bytes);
            return Ok(());
        };
        let is_new = cache.insert(offset, bytes, io.hint);
        self.end_segment(segment, Ok(()));
        if is_new { self.drain() } else { self.admit() }
    }

    /// A flush or erase: what was written before comes first.
    fn ordered(&mut self, command: u32) -> Result<(), Failure> {
        let is_safe = self.config.cache.as_ref().is_some_and(|cache| cache.power_safe);
        match &self.cache {
            Some(_) if is_safe && self.commands[command].io.kind == IoKind::Flush => {
                let failed = self.drain_error.take().map_or(Ok(()), Err);
                self.commands[command].result = failed;
                self.end_command(command);
                Ok(())
            }
            Some(cache) if cache.drained_below() < cache.made() => {
                self.line_waiters.push_back((cache.made(), command));
                self.drain()
            }
            _ => self.pass_on(command),
        }
    }

    fn pass_on(&mut self, command: u32) -> Result<(), Failure> {
        let io = self.commands[command].io;
        if io.kind == IoKind::Flush
            && let Some(error) = self.drain_error.take()
        {
            self.commands[command].result = Err(error);
        }
        self.inner.submit(self.now, Inside::Command(command).token(), io)
    }

    /// Sends lines on their way to flash.
    fn drain(&mut self) -> Result<(), Failure> {
        let (Some(cache), Some(rules)) = (&mut self.cache, &self.config.cache) else {
            return Ok(());
        };
        if self.drain_in_firmware || self.draining >= rules.drain_depth {
            return Ok(());
        }
        let is_awaited = !self.room_waiters.is_empty() || !self.line_waiters.is_empty();
        if self.stripe_left == 0 && cache.resting() < rules.gather_bytes && !is_awaited {
            return Ok(());
        }
        let Some(number) = cache.peek_next() else { return Ok(()) };
        if self.stripe_left == 0 {
            self.stripe_left = rules.gather_bytes;
        }
        let line = cache.line(number);
        self.stripe_left = self.stripe_left.saturating_sub(line.bytes);
        let firmware = &self.config.firmware;
        let ns = firmware.pages(line.offset, line.bytes) * firmware.write_page_ns;
        self.drain_in_firmware = true;
        let decided = if ns > 0 { self.firmware.take(self.now, ns) } else { self.now };
        self.schedule(decided, Event::DrainDecided);
        Ok(())
    }

    fn drain_decided(&mut self) -> Result<(), Failure> {
        self.drain_in_firmware = false;
        let cache = self.cache.as_mut().expect("only a cache drains");
        let number = cache.take_next().expect("it was seen");
        let line = *cache.line(number);
        let io =
            Io { kind: IoKind::Write, offset: line.offset, bytes: line.bytes, hint: line.hint };
        self.draining += 1;
        self.inner.submit(self.now, Inside::Line(number).token(), io)?;
        self.look_at_gc(line.bytes);
        self.drain()
    }

    fn drained(&mut self, number: u64, result: Result<(), RequestError>) -> Result<(), Failure> {
        self.draining -= 1;
        self.drain_error = self.drain_error.or(result.err());
        let cache = self.cache.as_mut().expect("only a cache drains");
        cache.drained(number);
        let below = cache.drained_below();
        while let Some((_, command)) = self.line_waiters.pop_front_if(|(until, _)| *until <= below)
        {
            self.pass_on(command)?;
        }
        self.drain()?;
        self.admit()
    }

    /// There may be room in the cache for those who wait for it.
    fn admit(&mut self) -> Result<(), Failure> {
        while let Some(command) = self.room_waiters.pop_front() {
            let before = self.commands[command].next;
            self.write_segments(command)?;
            if self.commands[command].next == before {
                break;
            }
        }
        Ok(())
    }

    /// Charges what GC relocated meanwhile.
    fn look_at_gc(&mut self, written: u64) {
        let firmware = &self.config.firmware;
        self.gc.written += written;
        if firmware.relocate_page_ns == 0 || self.gc.written < LOOK_BYTES {
            return;
        }
        self.gc.written = 0;
        let relocated = self.inner.counts().bytes_relocated;
        self.gc.owed += relocated - self.gc.seen;
        self.gc.seen = relocated;
        if self.gc.owed < firmware.relocate_burst_bytes {
            return;
        }
        let pages = self.gc.owed / u64::from(firmware.page_bytes);
        self.gc.owed -= pages * u64::from(firmware.page_bytes);
        self.firmware.take_all(self.now, pages * firmware.relocate_page_ns);
    }

    fn end_segment(&mut self, segment: u32, result: Result<(), RequestError>) {
        let command = self.segments.remove(segment).command;
        self.end_part(command, result);
    }

    fn end_part(&mut self, index: u32, result: Result<(), RequestError>) {
        let command = &mut self.commands[index];
        command.result = command.result.and(result);
        command.segments_left -= 1;
        if command.segments_left == 0 {
            self.end_command(index);
        }
    }

    fn end_command(&mut self, command: u32) {
        let Command { token, result, .. } = self.commands.remove(command);
        self.done.push_back(Done { token, result, at: self.now });
        self.taken -= 1;
        if let Some(next) = self.waiting.pop_front() {
            self.take(next);
        }
    }

    /// Takes what the inner target has ended.
    fn collect(&mut self) -> Result<(), Failure> {
        while let Some(Done { token, result, .. }) = self.inner.take_done() {
            match Inside::of(token) {
                Inside::Segment(segment) => {
                    let command = self.segments[segment].command;
                    let is_read = self.commands[command].io.kind == IoKind::Read;
                    match result {
                        Ok(()) if is_read => self.send_out(segment),
                        _ => self.end_segment(segment, result),
                    }
                }
                Inside::Command(command) if self.commands[command].io.kind == IoKind::Write => {
                    self.end_part(command, result);
                }
                Inside::Command(command) => {
                    let entry = &mut self.commands[command];
                    entry.result = entry.result.and(result);
                    self.end_command(command);
                }
                Inside::Line(number) => self.drained(number, result)?,
            }
        }
        Ok(())
    }
}

impl<T: Target> Target for Front<T> {
    fn bytes(&self) -> u64 {
        self.inner_bytes
    }

    fn flash_bytes(&self) -> u64 {
        self.inner.flash_bytes()
    }

    fn rules(&self) -> Rules {
        self.inner.rules()
    }

    fn lanes(&self) -> u32 {
        if self.config.hides_units { 1 } else { self.inner.lanes() }
    }

    fn now(&self) -> Instant {
        self.now
    }

    fn foresee(&self, ios: &[Io]) {
        self.inner.foresee(ios);
    }

    fn submit(&mut self, now: Instant, token: u64, io: Io) -> Result<(), Failure> {
        self.advance(now)?;
        let command = Command { token, io, next: io.offset, segments_left: 0, result: Ok(()) };
        let command = self.commands.insert(command);
        let depth = self.config.link.queue_depth;
        if depth > 0 && self.taken >= depth {
            self.waiting.push_back(command);
        } else {
            self.take(command);
        }
        self.advance(now)
    }

    fn deadline(&self) -> Option<Instant> {
        if !self.done.is_empty() {
            return Some(self.now);
        }
        self.next_event().into_iter().chain(self.inner.deadline()).min()
    }

    fn advance(&mut self, now: Instant) -> Result<(), Failure> {
        loop {
            self.collect()?;
            let (own, inner) = (self.next_event(), self.inner.deadline());
            let next = own.into_iter().chain(inner).min();
            let Some(next) = next.filter(|&next| next <= now) else { break };
            self.now = self.now.max(next);
            if inner.is_some_and(|inner| inner <= self.now) {
                self.inner.advance(self.now)?;
            } else if let Some(event) = self.take_event() {
                self.handle(event)?;
            }
        }
        // "Whenever" moves nothing on.
        if now != Instant(u64::MAX) {
            self.now = self.now.max(now);
        }
        Ok(())
    }

    fn take_done(&mut self) -> Option<Done> {
        self.done.pop_front()
    }

    fn counts(&self) -> TargetCounts {
        self.inner.counts()
    }

    fn counter(&self, name: &str) -> u64 {
        self.inner.counter(name)
    }

    fn erase_count_max(&self) -> u32 {
        self.inner.erase_count_max()
    }

    fn queue_at(&self, offset: u64) -> u32 {
        let own = self.waiting.len() as u32;
        own + if self.config.hides_units { self.taken } else { self.inner.queue_at(offset) }
    }

    fn placement(&self) -> Option<Placement> {
        self.config.placement
    }

    fn fdp(&self) -> Option<FdpStatistics> {
        let placement = self.config.placement.filter(|it| it.interface == Interface::Fdp)?;
        let changes = self.inner.counter("bands_opened");
        Some(FdpStatistics::of(&placement, self.counts(), changes, self.invalid_identifiers))
    }
}

/// How long a transfer keeps the link.
fn link_ns(link: &Link, kind: IoKind, bytes: u64) -> u64 {
    let (own, other) = match kind {
        IoKind::Read => (link.read_bytes_per_s, link.write_bytes_per_s),
        _ => (link.write_bytes_per_s, link.read_bytes_per_s),
    };
    transfer_ns(bytes, if own == 0.0 && link.half_duplex { other } else { own })
}

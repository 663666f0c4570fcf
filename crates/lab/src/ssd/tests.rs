//! Each part alone against arithmetic.

use super::{Array, Cache, Firmware, Front, FrontConfig, Link};
use crate::driver::Failure;
use crate::load::{Client, Pace, Seen, Window, run};
use crate::target::{Done, Io, IoKind, Target, TargetCounts};
use crate::workload::Pattern;
use flash::{Hint, Instant, MICROSECOND, MILLISECOND, Random, RequestError, SECOND};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// Flash of `lanes` servers of 64 KiB each in turn, `ns` an I/O.
struct Flash {
    now: Instant,
    ns: u64,
    free_at: Vec<u64>,
    running: BTreeMap<(u64, u64), u64>,
    done: VecDeque<Done>,
    taken: Rc<RefCell<Vec<(u64, Io)>>>,
    fails: bool,
    relocated_per_byte: u64,
    written: u64,
}

const FLASH_BYTES: u64 = 1 << 30;

fn flash(lanes: usize, ns: u64) -> Flash {
    Flash {
        now: Instant(0),
        ns,
        free_at: vec![0; lanes],
        running: BTreeMap::new(),
        done: VecDeque::new(),
        taken: Rc::default(),
        fails: false,
        relocated_per_byte: 0,
        written: 0,
    }
}

impl Target for Flash {
    fn bytes(&self) -> u64 {
        FLASH_BYTES
    }
    fn flash_bytes(&self) -> u64 {
        FLASH_BYTES
    }
    fn lanes(&self) -> u32 {
        self.free_at.len() as u32
    }
    fn now(&self) -> Instant {
        self.now
    }
    fn submit(&mut self, now: Instant, token: u64, io: Io) -> Result<(), Failure> {
        self.now = now;
        assert!(io.offset + io.bytes <= FLASH_BYTES);
        let lane = (io.offset / (64 << 10)) as usize % self.free_at.len();
        self.free_at[lane] = now.0.max(self.free_at[lane]) + self.ns;
        let number = self.taken.borrow().len() as u64;
        self.running.insert((self.free_at[lane], number), token);
        self.taken.borrow_mut().push((now.0, io));
        self.written += if io.kind == IoKind::Write { io.bytes } else { 0 };
        Ok(())
    }
    fn deadline(&self) -> Option<Instant> {
        self.running.first_key_value().map(|(&(at, _), _)| Instant(at))
    }
    fn advance(&mut self, now: Instant) -> Result<(), Failure> {
        self.now = self.now.max(now);
        while let Some(entry) = self.running.first_entry().filter(|entry| entry.key().0 <= now.0) {
            let ((at, _), token) = entry.remove_entry();
            let result = if self.fails { Err(RequestError::NoSpace) } else { Ok(()) };
            self.done.push_back(Done { token, result, at: Instant(at) });
        }
        Ok(())
    }
    fn take_done(&mut self) -> Option<Done> {
        self.done.pop_front()
    }
    fn counts(&self) -> TargetCounts {
        TargetCounts {
            bytes_relocated: self.written * self.relocated_per_byte,
            ..TargetCounts::default()
        }
    }
    fn counter(&self, _: &str) -> u64 {
        self.taken.borrow().len() as u64
    }
    fn erase_count_max(&self) -> u32 {
        3
    }
    fn queue_at(&self, _: u64) -> u32 {
        self.running.len() as u32
    }
}

fn io(kind: IoKind, offset: u64, bytes: u64) -> Io {
    Io { kind, offset, bytes, hint: Hint::default() }
}

const SECOND_LONG: Window = Window { warmup_ns: SECOND / 10, measure_ns: SECOND };

fn seen(target: &mut dyn Target, client: Client) -> Seen {
    run(target, &[client], SECOND_LONG, 1).expect("nothing fails").remove(0)
}

/// Submits all at 0 and says when each ended, by token.
fn ends(target: &mut dyn Target, ios: &[Io]) -> Vec<u64> {
    for (token, io) in (0..).zip(ios) {
        target.submit(Instant(0), token, *io).expect("takes it");
    }
    let mut ends = vec![None; ios.len()];
    let mut last = Instant(0);
    while ends.iter().any(Option::is_none) {
        let next = target.deadline().expect("something is in flight");
        target.advance(next).expect("no failure");
        while let Some(done) = target.take_done() {
            assert!(done.at >= last && done.at <= next, "ends come in order of time");
            last = done.at;
            assert_eq!(done.result, Ok(()));
            assert!(ends[done.token as usize].replace(done.at.0).is_none(), "ends once");
        }
    }
    ends.into_iter().flatten().collect()
}

fn near(value: f64, expected: f64, tolerance: f64) {
    assert!((value / expected - 1.0).abs() <= tolerance, "{value} is not {expected}");
}

#[test]
fn a_front_without_parts_changes_nothing() {
    let ios = [io(IoKind::Read, 0, 4096), io(IoKind::Write, 65536, 512), io(IoKind::Flush, 0, 0)];
    let mut front = Front::new(flash(4, 1000), FrontConfig::default());
    assert_eq!(ends(&mut front, &ios), ends(&mut flash(4, 1000), &ios));
    assert_eq!(front.lanes(), 4);
}

#[test]
fn the_link_caps_each_direction_to_the_byte() {
    for (half_duplex, expected) in [(false, (1.6e9, 1.4e9)), (true, (0.75e9, 0.75e9))] {
        let link = Link {
            read_bytes_per_s: 1.6e9,
            write_bytes_per_s: 1.4e9,
            half_duplex,
            ..Link::default()
        };
        let config = FrontConfig { link, ..FrontConfig::default() };
        let mut front = Front::new(flash(64, 10 * MICROSECOND), config);
        let client = |reads| Client {
            reads,
            bytes: 64 << 10,
            pace: Pace::Depth(64),
            pattern: Pattern::Sequential,
            ..Client::default()
        };
        let both = [client(1.0), client(0.0)];
        let seen = run(&mut front, &both, SECOND_LONG, 1).expect("nothing fails");
        near(seen[0].bytes_read, expected.0, 0.01);
        near(seen[1].bytes_written, expected.1, 0.01);
    }
}

#[test]
fn a_large_read_leaves_while_its_rest_is_still_read() {
    let link = Link { read_bytes_per_s: 1e9, ..Link::default() };
    let config = FrontConfig { link, ..FrontConfig::default() };
    let mut front = Front::new(flash(4, 50 * MICROSECOND), config);
    // 128 segments of 64 KiB over 4 lanes: 32 rounds of 50 us, hidden behind 8.39 ms of link.
    let end = ends(&mut front, &[io(IoKind::Read, 0, 8 << 20)])[0];
    near(end as f64, (8u64 << 20) as f64 + 50e3, 0.001);
}

#[test]
fn commands_beyond_the_queue_depth_wait_on_the_host() {
    let link = Link { queue_depth: 32, command_ns: 3 * MICROSECOND, ..Link::default() };
    let config = FrontConfig { link, hides_units: true, ..FrontConfig::default() };
    let inner = flash(1024, MILLISECOND);
    let taken = inner.taken.clone();
    let mut front = Front::new(inner, config);
    let ios: Vec<Io> = (0..64).map(|i| io(IoKind::Read, i << 16, 4096)).collect();
    let ends = ends(&mut front, &ios);
    assert!(ends[..32].iter().all(|&end| end == 1_003_000), "{ends:?}");
    assert!(ends[32..].iter().all(|&end| end == 2_006_000), "{ends:?}");
    assert_eq!(taken.borrow().iter().filter(|(at, _)| *at == 3000).count(), 32);
    assert_eq!((front.lanes(), front.queue_at(0)), (1, 0));
}

#[test]
fn firmware_serves_one_command_after_the_other_and_cores_share_the_work() {
    for cores in [1, 3] {
        let firmware = Firmware {
            cores,
            command_ns: 2_100,
            read_page_ns: 6_850,
            write_page_ns: 12_200,
            ..Firmware::default()
        };
        let config = FrontConfig { firmware, ..FrontConfig::default() };
        for (reads, page_ns) in [(1.0, 6_850.0), (0.0, 12_200.0)] {
            for pages in [1u32, 2, 8, 1024] {
                let mut front = Front::new(flash(512, MICROSECOND), config.clone());
                let bytes = u64::from(pages) * 8192;
                let pace = Pace::Depth(if pages < 1024 { 32 } else { 4 });
                let client = Client { reads, bytes, pace, ..Client::default() };
                let seen = seen(&mut front, client);
                let command = 2_100.0 + f64::from(pages) * page_ns;
                let rate = f64::from(cores) * bytes as f64 * 1e9 / command;
                near(seen.bytes_read + seen.bytes_written, rate, 0.05);
                if pages < 1024 {
                    near(seen.bytes_read + seen.bytes_written, rate, 0.002);
                }
            }
        }
    }
}

#[test]
fn a_small_read_waits_for_one_segment_of_a_large_one_not_for_all() {
    let firmware = Firmware { read_page_ns: 10_000, ..Firmware::default() };
    let config = FrontConfig { firmware, ..FrontConfig::default() };
    let mut front = Front::new(flash(512, 0), config);
    let ends = ends(&mut front, &[io(IoKind::Read, 0, 8 << 20), io(IoKind::Read, 16 << 20, 4096)]);
    assert_eq!(ends, [1024 * 10_000 + 10_000, 80_000 + 10_000]);
}

fn cached(bytes: u64) -> FrontConfig {
    FrontConfig {
        link: Link {
            read_bytes_per_s: 2e9,
            write_bytes_per_s: 1e9,
            command_ns: 5_000,
            ..Link::default()
        },
        cache: Some(Cache { bytes, drain_depth: 16, gather_bytes: 0, power_safe: false }),
        hides_units: true,
        ..FrontConfig::default()
    }
}

#[test]
fn the_cache_acknowledges_at_the_speed_of_the_link_until_it_is_full() {
    let mut front = Front::new(flash(1, 10 * MILLISECOND), cached(8 << 20));
    let ios = [io(IoKind::Write, 0, 4 << 20), io(IoKind::Write, 4 << 20, 16 << 20)];
    let ends = ends(&mut front, &ios);
    // Both share the link in turns.
    near(ends[0] as f64, 5e3 + 2.0 * (4u64 << 20) as f64, 0.02);
    // 20 MiB less 8 MiB of cache had to go to flash first, 64 KiB each 10 ms.
    near(ends[1] as f64, 192.0 * 10e6, 0.01);
}

#[test]
fn writes_go_on_at_the_rate_at_which_the_cache_is_drained() {
    let mut front = Front::new(flash(4, MILLISECOND), cached(4 << 20));
    let client = Client { bytes: 64 << 10, pace: Pace::Depth(4), ..Client::default() };
    let seen = seen(&mut front, Client { pattern: Pattern::Sequential, ..client });
    near(seen.bytes_written, 4.0 * 65536.0 * 1000.0, 0.01);
}

#[test]
fn reads_of_what_is_in_the_cache_do_not_go_to_flash() {
    let inner = flash(1, SECOND);
    let taken = inner.taken.clone();
    let mut front = Front::new(inner, cached(8 << 20));
    assert_eq!(ends(&mut front, &[io(IoKind::Write, 8192, 65536)]), [5_000 + 65_536]);
    front.submit(Instant(100_000), 9, io(IoKind::Read, 12288, 8192)).expect("takes it");
    front.advance(Instant(MILLISECOND)).expect("no failure");
    let done = front.take_done().expect("it hits");
    assert_eq!((done.token, done.at.0), (9, 100_000 + 5_000 + 4_096));
    assert!(taken.borrow().iter().all(|(_, io)| io.kind == IoKind::Write));
    // Half of this one is not there.
    front.submit(Instant(MILLISECOND), 10, io(IoKind::Read, 4096, 8192)).expect("takes it");
    front.advance(Instant(2 * MILLISECOND)).expect("no failure");
    assert_eq!(taken.borrow().last().expect("it went in").1.kind, IoKind::Read);
}

#[test]
fn data_for_the_blocks_of_a_waiting_line_replaces_it() {
    let inner = flash(1, MILLISECOND);
    let taken = inner.taken.clone();
    let mut config = cached(1 << 20);
    config.cache = config.cache.map(|cache| Cache { bytes: 1 << 20, drain_depth: 1, ..cache });
    let mut front = Front::new(inner, config);
    let ios: Vec<Io> = (0..1000).map(|i| io(IoKind::Write, i % 10 * 4096, 4096)).collect();
    ends(&mut front, &ios);
    front.advance(Instant(SECOND)).expect("no failure");
    let written = taken.borrow().len();
    assert!((10..40).contains(&written), "{written} of 1000 writes reached flash");
}

#[test]
fn a_cache_that_gathers_sends_a_stripe_when_it_is_whole_or_awaited() {
    let inner = flash(16, MILLISECOND);
    let taken = inner.taken.clone();
    let mut config = cached(1 << 20);
    config.cache = config.cache.map(|cache| Cache { gather_bytes: 64 << 10, ..cache });
    let mut front = Front::new(inner, config);
    let write = |front: &mut Front<_>, number: u64| {
        let at = Instant(number * MILLISECOND);
        front.submit(at, number, io(IoKind::Write, number << 20, 4096)).expect("takes it");
        front.advance(at + (MILLISECOND - 1)).expect("no failure");
        taken.borrow().len()
    };
    for number in 0..15 {
        assert_eq!(write(&mut front, number), 0, "{number}: a sixteenth of a stripe is missing");
    }
    assert_eq!(write(&mut front, 15), 16, "the stripe is whole");
    assert_eq!(write(&mut front, 16), 16, "and the next one begins");
    let at = Instant(20 * MILLISECOND);
    front.submit(at, 99, io(IoKind::Flush, 0, 0)).expect("takes it");
    front.advance(Instant(SECOND)).expect("no failure");
    let kinds: Vec<IoKind> = taken.borrow()[16..].iter().map(|(_, io)| io.kind).collect();
    assert_eq!(kinds, [IoKind::Write, IoKind::Flush], "a flush waits for what is not a stripe");
}

#[test]
fn a_flush_and_an_erase_wait_for_what_was_written_before() {
    let inner = flash(1, MILLISECOND);
    let taken = inner.taken.clone();
    let mut front = Front::new(inner, cached(8 << 20));
    for i in 0..4 {
        front.submit(Instant(0), i, io(IoKind::Write, i << 16, 65536)).expect("takes it");
    }
    front.advance(Instant(500_000)).expect("no failure");
    assert_eq!(std::iter::from_fn(|| front.take_done()).count(), 4, "all are acknowledged");
    front.submit(Instant(500_000), 4, io(IoKind::Flush, 0, 0)).expect("takes it");
    front.submit(Instant(500_000), 5, io(IoKind::Erase, 0, 65536)).expect("takes it");
    front.advance(Instant(SECOND)).expect("no failure");
    let kinds: Vec<IoKind> = taken.borrow().iter().map(|(_, io)| io.kind).collect();
    assert_eq!(kinds[..4], [IoKind::Write; 4]);
    assert_eq!(kinds[4..], [IoKind::Flush, IoKind::Erase]);
    assert!(front.take_done().is_some_and(|done| done.at.0 > 5 * MILLISECOND));
}

#[test]
fn a_line_that_cannot_be_written_fails_the_next_flush_once() {
    let mut inner = flash(1, 1000);
    inner.fails = true;
    let mut front = Front::new(inner, cached(1 << 20));
    front.submit(Instant(0), 1, io(IoKind::Write, 0, 4096)).expect("takes it");
    front.advance(Instant(MILLISECOND)).expect("no failure");
    assert_eq!(front.take_done().expect("acknowledged").result, Ok(()));
    front.inner_mut().fails = false;
    for (ms, expected) in [(1, Err(RequestError::NoSpace)), (2, Ok(()))] {
        front.submit(Instant(ms * MILLISECOND), 2, io(IoKind::Flush, 0, 0)).expect("takes it");
        front.advance(Instant((ms + 1) * MILLISECOND)).expect("no failure");
        assert_eq!(front.take_done().expect("it ended").result, expected);
    }
}

#[test]
fn relocations_take_the_firmware_in_bursts() {
    let mut inner = flash(64, 1000);
    inner.relocated_per_byte = 2;
    let firmware = Firmware {
        write_page_ns: 1_000,
        relocate_page_ns: 2_000,
        relocate_burst_bytes: 32 << 20,
        ..Firmware::default()
    };
    let mut front = Front::new(inner, FrontConfig { firmware, ..FrontConfig::default() });
    let client = Client { bytes: 8192, pattern: Pattern::Sequential, ..Client::default() };
    let seen = seen(&mut front, client);
    // A page costs itself, two relocated ones, and the flash nobody else uses meanwhile.
    near(seen.bytes_written, 8192.0 * 1e9 / (1_000.0 + 2.0 * 2_000.0 + 1_000.0), 0.02);
    let burst = (32u64 << 20) / 8192 * 2_000;
    near(seen.writes.max_ns() as f64, burst as f64, 0.02);
}

#[test]
fn an_io_beyond_the_end_or_of_nothing_is_refused() {
    let mut array = Array::new(vec![flash(1, 1), flash(1, 1)], 4096).expect("two members");
    let mut front = Front::new(flash(1, 1), cached(1 << 20));
    for target in [&mut array as &mut dyn Target, &mut front] {
        let end = target.bytes();
        let bad = [(end, 4096), (0, 0), (u64::MAX, 4096), (end - 4096, 8192)];
        for (ms, (offset, bytes)) in (1..).zip(bad) {
            let now = Instant(ms * MILLISECOND);
            target.submit(now, 1, io(IoKind::Write, offset, bytes)).expect("takes it");
            target.advance(now + MICROSECOND * 10).expect("no failure");
            let done = target.take_done().expect("it ended");
            assert_eq!(done.result, Err(RequestError::OutOfRange));
        }
    }
}

#[test]
fn the_same_ios_end_at_the_same_instants() {
    let outcome = |seed| {
        let mut config = cached(2 << 20);
        config.link.queue_depth = 32;
        config.firmware =
            Firmware { cores: 2, command_ns: 700, read_page_ns: 900, ..Firmware::default() };
        let mut random = Random::new(seed);
        let ios: Vec<Io> = (0..3000)
            .map(|_| {
                let kinds = [IoKind::Read, IoKind::Write, IoKind::Write, IoKind::Flush];
                let kind = kinds[random.below(4) as usize];
                let bytes = 512 << random.below(10);
                io(kind, random.below(FLASH_BYTES / 512 - 1024) * 512, bytes)
            })
            .collect();
        let members = (0..3).map(|_| Front::new(flash(3, 20_000), config.clone())).collect();
        ends(&mut Array::new(members, 65536).expect("three members"), &ios)
    };
    for seed in 0..4 {
        assert_eq!(outcome(seed), outcome(seed), "seed {seed}");
    }
}

#[test]
fn an_array_covers_every_byte_once_whatever_the_chunk() {
    for chunk in [4096, 12288, 65536, 0] {
        let mut random = Random::new(chunk);
        for _ in 0..300 {
            let members: Vec<Flash> = (0..5).map(|_| flash(1, 1)).collect();
            let taken: Vec<_> = members.iter().map(|member| member.taken.clone()).collect();
            let mut array = Array::new(members, chunk).expect("five members");
            let bytes = random.below(1 << 20) + 1;
            let offset = random.below(array.bytes() - bytes);
            array.submit(Instant(0), 1, io(IoKind::Read, offset, bytes)).expect("takes it");
            let mut found = 0;
            for (member, taken) in taken.iter().enumerate() {
                let taken = taken.borrow();
                assert!(taken.len() <= 1, "one I/O a member");
                for (_, piece) in taken.iter() {
                    found += piece.bytes;
                    let (first, last) = (piece.offset, piece.offset + piece.bytes - 1);
                    let places = [offset, offset + bytes - 1].map(|at| array.place(at));
                    for (at, place) in places {
                        assert!(at != member || (first..=last).contains(&place), "chunk {chunk}");
                    }
                }
            }
            assert_eq!(found, bytes, "chunk {chunk}");
        }
    }
    assert!(Array::<Flash>::new(Vec::new(), 0).is_err_and(|why| why.contains("at least 1")));
    assert!(Array::new(vec![flash(1, 1)], 1 << 40).is_err_and(|why| why.contains("use less")));
}

//! Clients against a target whose times are known.

use super::{Client, Gather, Pace, Place, Window, run};
use crate::driver::Failure;
use crate::target::{Done, Io, IoKind, Target, TargetCounts};
use crate::workload::Pattern;
use flash::Instant;
use std::collections::BTreeMap;

/// Serves each lane in order, 1 ms an I/O.
#[derive(Default)]
struct Lanes {
    free_at: BTreeMap<u64, u64>,
    running: BTreeMap<(u64, u64), u64>,
    done: Vec<Done>,
    taken: Vec<(u64, Io)>,
    now: u64,
}

const LANES: u64 = 4;
const LANE_BYTES: u64 = 16 << 20;
const IO_NS: u64 = 1_000_000;

impl Target for Lanes {
    fn bytes(&self) -> u64 {
        LANES * LANE_BYTES
    }
    fn flash_bytes(&self) -> u64 {
        self.bytes()
    }
    fn lanes(&self) -> u32 {
        LANES as u32
    }
    fn now(&self) -> Instant {
        Instant(self.now)
    }
    fn submit(&mut self, now: Instant, token: u64, io: Io) -> Result<(), Failure> {
        assert!(io.offset + io.bytes <= self.bytes());
        let free = self.free_at.entry(io.offset / LANE_BYTES).or_default();
        *free = now.0.max(*free) + IO_NS;
        self.running.insert((*free, self.taken.len() as u64), token);
        self.taken.push((now.0, io));
        Ok(())
    }
    fn deadline(&self) -> Option<Instant> {
        self.running.first_key_value().map(|(&(at, _), _)| Instant(at))
    }
    fn advance(&mut self, now: Instant) -> Result<(), Failure> {
        self.now = self.now.max(now.0);
        while let Some(entry) = self.running.first_entry().filter(|entry| entry.key().0 <= now.0) {
            let ((at, _), token) = entry.remove_entry();
            self.done.push(Done { token, result: Ok(()), at: Instant(at) });
        }
        Ok(())
    }
    fn take_done(&mut self) -> Option<Done> {
        if self.done.is_empty() { None } else { Some(self.done.remove(0)) }
    }
    fn counts(&self) -> TargetCounts {
        TargetCounts::default()
    }
    fn counter(&self, _: &str) -> u64 {
        0
    }
    fn erase_count_max(&self) -> u32 {
        0
    }
    fn queue_at(&self, _: u64) -> u32 {
        0
    }
}

const WINDOW: Window = Window { warmup_ns: 100_000_000, measure_ns: 1_000_000_000 };

fn seen(client: Client) -> (super::Seen, Lanes) {
    let mut target = Lanes::default();
    let mut seen = run(&mut target, &[client], WINDOW, 1).expect("the target never fails");
    assert!(target.running.is_empty(), "the target was left with I/Os in flight");
    (seen.remove(0), target)
}

#[test]
fn synchronous_threads_on_lanes_of_their_own_never_wait() {
    let (seen, _) =
        seen(Client { threads: 4, reads: 1.0, place: Place::Lane, ..Client::default() });
    assert_eq!(seen.per_second(seen.reads_done).round(), 4000.0);
    assert_eq!((seen.reads.min_ns() + 500) / 1000, 1000);
    assert_eq!((seen.reads.max_ns() + 500) / 1000, 1000);
    assert_eq!(seen.writes_done, 0.0);
}

#[test]
fn a_queue_on_one_lane_shows_in_the_latency_and_not_in_the_rate() {
    let (seen, _) = seen(Client { pace: Pace::Depth(8), span: 0.25, ..Client::default() });
    assert_eq!(seen.per_second(seen.writes_done).round(), 1000.0);
    assert!((seen.writes.mean_ns() / 8e6 - 1.0).abs() < 0.01, "{}", seen.writes.mean_ns());
    assert_eq!(seen.unfinished.count(), 8);
}

#[test]
fn a_batch_lasts_as_long_as_its_fullest_lane() {
    let (seen, target) = seen(Client {
        pace: Pace::Batch(8),
        pattern: Pattern::Sequential,
        place: Place::Interleaved,
        bytes: 8 << 20,
        ..Client::default()
    });
    // 8 over 4 lanes: two each.
    assert!((seen.batches.mean_ns() / 2e6 - 1.0).abs() < 0.01, "{}", seen.batches.mean_ns());
    let lanes = target.taken[..8].iter().map(|(_, io)| io.offset / LANE_BYTES);
    assert_eq!(lanes.collect::<Vec<_>>(), [0, 1, 2, 3, 0, 1, 2, 3]);
}

#[test]
fn an_open_loop_keeps_its_rate_whatever_the_target_does() {
    let (seen, target) =
        seen(Client { pace: Pace::Rate(20_000.0), threads: 3, ..Client::default() });
    let submitted = target.taken.len() as f64 / 1.1;
    assert!((submitted / 20_000.0 - 1.0).abs() < 0.02, "{submitted} a second");
    assert!(seen.unfinished.count() > 10_000, "four lanes serve 4000 a second");
    assert!(seen.unfinished.max_ns() > 500_000_000);
}

#[test]
fn a_cap_holds() {
    let cap = 409_600.0;
    let (seen, _) = seen(Client { threads: 8, cap_bytes_per_s: cap, ..Client::default() });
    let rate = seen.per_second(seen.bytes_written);
    assert!((rate / cap - 1.0).abs() < 0.02, "{rate} bytes a second");
}

#[test]
fn a_thread_that_thinks_pauses_so_long_on_average_after_each_io_or_batch() {
    let (think_ns, pattern, place) = (9_000_000, Pattern::Sequential, Place::Interleaved);
    let window = Window { measure_ns: 50_000_000_000, ..WINDOW };
    for (pace, ios) in [(Pace::Depth(1), 1.0), (Pace::Batch(LANES as u32), LANES as f64)] {
        let client = Client { pace, pattern, place, think_ns, ..Client::default() };
        let mut target = Lanes::default();
        let seen = run(&mut target, &[client], window, 1).expect("the target never fails");
        let rounds = seen[0].per_second(seen[0].writes_done) / ios;
        assert!((rounds / 100.0 - 1.0).abs() < 0.05, "{pace:?}, seed 1: {rounds} a second");
        // Its pauses are no part of what an I/O or a batch takes.
        let longest = seen[0].writes.max_ns().max(seen[0].batches.max_ns());
        assert!(longest < IO_NS * 1001 / 1000, "{pace:?}: {longest} ns");
    }
    let unheard = Client { pace: Pace::Depth(2), think_ns, ..Client::default() };
    assert!(unheard.validate().expect_err("two in flight").contains("only with depth = 1"));
}

#[test]
fn an_erase_precedes_each_write_and_its_time_counts() {
    let (seen, target) = seen(Client { erase_first: true, ..Client::default() });
    assert!((seen.writes.mean_ns() / 2e6 - 1.0).abs() < 0.01, "{}", seen.writes.mean_ns());
    for pair in target.taken.chunks_exact(2) {
        assert_eq!((pair[0].1.kind, pair[1].1.kind), (IoKind::Erase, IoKind::Write));
        assert_eq!(pair[0].1.offset, pair[1].1.offset);
    }
}

#[test]
fn a_client_with_an_end_ends_and_its_time_is_known() {
    let client = Client { ios_max: 10, ..Client::default() };
    let mut target = Lanes::default();
    let window = Window { warmup_ns: 0, ..WINDOW };
    let seen = run(&mut target, &[client], window, 1).expect("the target never fails");
    assert_eq!((seen[0].writes_done, seen[0].unfinished.count()), (10.0, 0));
    assert_eq!(seen[0].measured_ns, 10 * IO_NS);
}

#[test]
fn shares_do_not_overlap_and_stay_within_the_span() {
    let (_, target) =
        seen(Client { threads: 3, place: Place::Share, span: 0.5, ..Client::default() });
    let half = LANES * LANE_BYTES / 2;
    assert!(target.taken.iter().all(|(_, io)| io.offset < half));
    let first = &target.taken[..3];
    let share = half / 3 / 4096 * 4096;
    for (index, (_, io)) in (0..).zip(first) {
        assert!((index * share..(index + 1) * share).contains(&io.offset));
    }
}

#[test]
fn reads_and_writes_that_are_apart_use_a_half_each() {
    let whole = [Place::Whole, Place::Share];
    let lane = [Place::Lane, Place::Interleaved, Place::InterleavedShare];
    for place in whole.into_iter().chain(lane) {
        let client = Client { threads: 3, reads: 0.5, place, apart: true, ..Client::default() };
        let (_, target) = seen(client);
        let space = match place {
            Place::Lane | Place::Interleaved | Place::InterleavedShare => LANE_BYTES,
            Place::Share => LANES * LANE_BYTES / 3 / 4096 / 2 * 2 * 4096,
            Place::Whole => LANES * LANE_BYTES,
        };
        for (_, io) in &target.taken {
            let second = io.offset % space >= space / 2;
            assert_eq!(second, io.kind == IoKind::Write, "{place:?}: {io:?}");
        }
        let reads = target.taken.iter().filter(|(_, io)| io.kind == IoKind::Read).count();
        assert!((1..target.taken.len()).contains(&reads), "{place:?}");
    }
}

#[test]
fn a_device_too_small_for_the_workload_is_refused() {
    let mut target = Lanes::default();
    let client = Client { bytes: 1 << 30, ..Client::default() };
    let error = run(&mut target, &[client], WINDOW, 1).expect_err("1 GiB of 64 MiB");
    assert!(error.to_string().contains("too small for the workload"), "{error}");
}

#[test]
fn gathered_writes_go_down_together_when_an_io_is_full_or_the_first_has_waited() {
    let gather = |wait_ns| Some(Gather { bytes: 4096, wait_ns });
    let client = |rate, wait_ns| Client {
        pace: Pace::Rate(rate),
        bytes: 400,
        gather: gather(wait_ns),
        ..Client::default()
    };
    // Ten find room: at 10,000 a second an I/O is full after a millisecond, long before the wait is over.
    let (full, target) = seen(client(10_000.0, 1_000_000_000));
    let ios = target.taken.len() as f64;
    assert!(target.taken.iter().all(|(_, io)| io.bytes == 4096 && io.kind == IoKind::Write));
    assert!((1030.0..1170.0).contains(&ios), "1.1 s of them: {ios}");
    assert!((9_500.0..10_500.0).contains(&full.writes_done), "{}", full.writes_done);
    assert!((full.bytes_written / full.writes_done - 400.0).abs() < 1e-6);
    // The first waits for nine others, on average 0.45 ms, and the I/O takes one and more.
    assert!((1.4e6..3.5e6).contains(&full.writes.mean_ns()), "{}", full.writes.mean_ns());

    // At 100 a second nobody else comes in time: each goes down alone after a millisecond.
    let (alone, target) = seen(client(100.0, 1_000_000));
    assert!(target.taken.len() > 80, "{}", target.taken.len());
    assert_eq!(alone.writes.quantile_ns(0.5) / 10_000, 200, "1 ms of waiting and 1 ms of work");
    let whole = alone.writes.count() + alone.unfinished.count();
    assert!((75..125).contains(&whole), "{whole}");
}

#[test]
fn writes_that_wait_for_others_when_time_is_up_are_unfinished() {
    let gather = Some(Gather { bytes: 1 << 20, wait_ns: 10_000_000_000 });
    let (seen, target) =
        seen(Client { pace: Pace::Rate(1_000.0), bytes: 100, gather, ..Client::default() });
    assert_eq!((target.taken.len(), seen.writes.count()), (0, 0));
    assert!((850..1150).contains(&seen.unfinished.count()), "{}", seen.unfinished.count());
}

#[test]
fn only_writes_at_a_rate_can_be_gathered() {
    let gather = Some(Gather { bytes: 4096, wait_ns: 1 });
    let rate = Client { pace: Pace::Rate(10.0), bytes: 100, gather, ..Client::default() };
    assert_eq!(rate.validate(), Ok(()));
    for wrong in [
        Client { bytes: 5000, ..rate.clone() },
        Client { reads: 0.5, ..rate.clone() },
        Client { pace: Pace::Depth(1), ..rate.clone() },
        Client { gather: Some(Gather { wait_ns: 0, bytes: 4096 }), ..rate.clone() },
    ] {
        let why = wrong.validate().expect_err("it cannot be");
        assert!(why.starts_with("client \"client\": gather"), "{why}");
    }
}

//! Tenants on a target of no substance: what they do, and that they do it again.

use super::{Kind, Part, Tenants, Until, parts};
use crate::driver::Failure;
use crate::load::Window;
use crate::target::{Done, Io, IoKind, Target, TargetCounts};
use flash::Instant;
use std::collections::VecDeque;

/// Ends everything after a fixed time, and remembers it.
struct Recorder {
    bytes: u64,
    now: u64,
    running: VecDeque<(u64, u64)>,
    done: VecDeque<Done>,
    ios: Vec<Io>,
    written: u64,
}

const LATENCY_NS: u64 = 100_000;

impl Recorder {
    fn new(bytes: u64) -> Self {
        let (running, done) = Default::default();
        Self { bytes, now: 0, running, done, ios: Vec::new(), written: 0 }
    }
}

impl Target for Recorder {
    fn bytes(&self) -> u64 {
        self.bytes
    }
    fn flash_bytes(&self) -> u64 {
        self.bytes
    }
    fn now(&self) -> Instant {
        Instant(self.now)
    }
    fn submit(&mut self, now: Instant, token: u64, io: Io) -> Result<(), Failure> {
        self.now = now.0;
        self.written += if io.kind == IoKind::Write { io.bytes } else { 0 };
        self.ios.push(io);
        self.running.push_back((self.now + LATENCY_NS, token));
        Ok(())
    }
    fn deadline(&self) -> Option<Instant> {
        self.running.front().map(|&(at, _)| Instant(at))
    }
    fn advance(&mut self, now: Instant) -> Result<(), Failure> {
        self.now = self.now.max(now.0);
        while let Some((at, token)) = self.running.pop_front_if(|(at, _)| *at <= now.0) {
            self.done.push_back(Done { token, result: Ok(()), at: Instant(at) });
        }
        Ok(())
    }
    fn take_done(&mut self) -> Option<Done> {
        self.done.pop_front()
    }
    fn counts(&self) -> TargetCounts {
        TargetCounts { bytes_written: self.written, ..TargetCounts::default() }
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

const MIB: u64 = 1 << 20;

fn four(last: Kind, bytes: u64, seed: u64) -> Tenants {
    let part = |name: &str, kind| Part {
        name: name.into(),
        kind,
        share: 0.25,
        depth: 0,
        // All about as fast as the target.
        think_ns: Some(10_000),
        profiled: true,
    };
    let list = [
        part("mysql", Kind::Mysql),
        part("cassandra 1", Kind::Cassandra { trims: true }),
        part("cassandra 2", Kind::Cassandra { trims: false }),
        part("last", last),
    ];
    parts(&list, bytes, seed, &mut |_| Err("no trace".into())).expect("they fit")
}

#[test]
fn tenants_stay_within_their_parts_and_do_the_same_again() {
    let run = |seed| {
        let mut recorder = Recorder::new(1024 * MIB);
        let mut tenants = four(Kind::Log, recorder.bytes, seed);
        tenants.fill(&mut recorder).expect("fills");
        // Stopped, measured by time, and gone on with.
        tenants.run(&mut recorder, Until::Written(600 * MIB)).expect("runs");
        let window = Window { warmup_ns: 1_000_000, measure_ns: 50_000_000 };
        let seen = tenants.run(&mut recorder, Until::Time(window)).expect("runs");
        assert!(seen.iter().all(|seen| seen.transactions.count() > 0), "seed {seed}");
        for tenant in 0..4u64 {
            let (first, end) = (tenant * 256 * MIB, (tenant + 1) * 256 * MIB);
            let starts = |io: &&Io| io.kind != IoKind::Flush && (first..end).contains(&io.offset);
            let ios: Vec<&Io> = recorder.ios.iter().filter(starts).collect();
            assert!(!ios.is_empty(), "tenant {tenant}, seed {seed}");
            assert!(
                ios.iter().all(|io| io.offset + io.bytes <= end),
                "tenant {tenant}, seed {seed}"
            );
        }
        recorder.ios
    };
    let ios = run(7);
    assert_eq!(ios, run(7));
    assert_ne!(ios, run(8));
}

#[test]
fn only_a_store_that_trims_trims_and_what_it_trimmed_is_written_again() {
    let mut recorder = Recorder::new(1024 * MIB);
    let mut tenants = four(Kind::Mysql, recorder.bytes, 3);
    tenants.fill(&mut recorder).expect("fills");
    tenants.run(&mut recorder, Until::Written(1500 * MIB)).expect("runs");
    let figures = |index: usize| tenants.list()[index].profile().expect("kept").figures();
    assert!(figures(1).trimmed > 0.2, "{:?}", figures(1));
    assert_eq!(figures(2).trimmed, 0.0);
    assert_eq!(figures(0).trimmed, 0.0);
    // Doublewrite buffer and log: some hundredths of the space take a third of the writes.
    assert!(figures(0).top[1] > 0.3, "{:?}", figures(0));
}

#[test]
fn a_part_that_is_too_small_for_its_tenant_is_refused() {
    let list = [Part {
        name: "shop".into(),
        kind: Kind::Postgresql,
        share: 0.5,
        depth: 0,
        think_ns: None,
        profiled: false,
    }];
    let refused = parts(&list, 1024 * MIB, 1, &mut |_| Err("no trace".into()));
    let error = refused.err().expect("it has 512 MiB of 1156");
    assert!(error.contains("shop") && error.contains("share of the device"), "{error}");
}

//! What is told of latencies is what was recorded.

use super::*;
use flash::MICROSECOND;

fn timed(volume: usize, kind: Kind, at: [u64; 3]) -> Timed {
    let request = Request { volume, kind, offset: 0, len: 4096 };
    let [asked, begun, done] = at.map(Instant);
    Timed { request, asked, begun, done, limited_ns: 0, failed: false, waited: None, spent: None }
}

#[test]
fn the_stages_of_a_request_add_up_to_its_whole_and_only_what_happened_is_there() {
    let mut latencies = Latencies::default();
    latencies.record(&timed(2, Kind::Read, [1000, 3000, 9000]), Instant(10_000));
    assert_eq!(latencies.volumes.len(), 1);
    let series = latencies.volumes[&2][Op::Read as usize].as_ref().unwrap();
    assert_eq!((series.sum_ns, series.bytes, series.errors), (9000, 4096, 0));
    let stage = |stage: usize| latencies.stages[stage][Op::Read as usize].as_ref().unwrap().sum_ns;
    assert_eq!([stage(0), stage(1), stage(2)], [2000, 6000, 1000]);
    assert!(latencies.volumes[&2][Op::Write as usize].is_none());
}

#[test]
fn what_a_core_tells_of_the_time_is_kept_and_what_took_none_counts_too() {
    let mut latencies = Latencies::default();
    let mut timed = timed(0, Kind::Read, [0, 0, 90_000]);
    timed.spent = Some(Spent { queue_ns: 20_000, medium_ns: 70_000, ..Spent::default() });
    latencies.record(&timed, Instant(90_000));
    timed.spent = Some(Spent { medium_ns: 50_000, ..Spent::default() });
    latencies.record(&timed, Instant(90_000));
    let of = |stage: &str| {
        let at = STAGES.iter().position(|&name| name == stage).unwrap();
        let series = latencies.stages[at][Op::Read as usize].as_ref().unwrap();
        (Summary::of(series), series.sum_ns)
    };
    assert_eq!(of("medium").1, 120_000);
    let (queue, sum_ns) = of("queue");
    assert_eq!((queue.count, sum_ns), (2, 20_000));
    assert!(queue.percentiles_ns[0] < LEAST_NS, "half of them did not wait: {queue:?}");
    assert!(queue.max_ns.abs_diff(20_000) < 200, "{queue:?}");
    assert_eq!(of("safety").0.max_ns, 0);
    timed.spent = None;
    latencies.record(&timed, Instant(90_000));
    let count = |stage: usize| latencies.stages[stage][Op::Read as usize].as_ref().unwrap().count();
    assert_eq!([count(1), count(3)], [3, 2], "where no core tells, nothing is counted");
}

#[test]
fn the_steps_are_those_of_an_hdr_histogram() {
    let mut random = flash::Random::new(5);
    let mut own = Series::default();
    let mut histogram = Series::default().histogram();
    let edges = (0..STEPS).flat_map(|at| [begin_of(at), begin_of(at + 1) - 1]);
    let drawn = (0..10_000).map(|_| random.next_u64() >> (random.below(42) + 22));
    for ns in edges.chain(drawn.collect::<Vec<_>>()).filter(|&ns| ns <= MOST_NS) {
        assert!(begin_of(step(ns)) <= ns && ns < begin_of(step(ns) + 1), "{ns}");
        own.record(ns);
        histogram.record(ns).unwrap();
    }
    assert_eq!(own.histogram(), histogram);
    own.record(2 * MOST_NS);
    assert_eq!((own.count(), own.max_ns), (histogram.len() + 1, 2 * MOST_NS));
}

#[test]
fn what_asks_nothing_of_the_flash_is_not_counted() {
    let mut latencies = Latencies::default();
    latencies.record(&timed(0, Kind::Cache, [0, 1, 2]), Instant(3));
    latencies.record(&timed(0, Kind::Extents, [0, 1, 2]), Instant(3));
    assert!(latencies.volumes.is_empty());
}

#[test]
fn percentiles_are_within_a_step_of_what_was_recorded() {
    let mut series = Series::default();
    (1..=10_000).for_each(|n| series.record(n * MICROSECOND));
    let summary = Summary::of(&series);
    assert_eq!(summary.count, 10_000);
    assert!((summary.mean_ns - 5_000_500.0).abs() < 1.0, "{summary:?}");
    let expected = [5000, 9000, 9900, 9990, 9999].map(|us| us as f64 * MICROSECOND as f64);
    for (found, expected) in summary.percentiles_ns.into_iter().zip(expected) {
        let off = (found as f64 - expected).abs() / expected;
        assert!(off < 0.01, "{found} for {expected}");
    }
}

#[test]
fn a_classic_histogram_counts_everything_below_its_bounds_once() {
    let mut series = Series::default();
    for ns in [5 * MICROSECOND, 20 * MICROSECOND, 700 * MICROSECOND, 20 * flash::SECOND] {
        series.record(ns);
    }
    let counts = within(&series);
    let below = |bound: u64| {
        let at = BOUNDS_NS.iter().position(|&ns| ns == bound).unwrap();
        counts[at]
    };
    assert_eq!(below(10 * MICROSECOND), 1);
    assert_eq!(below(25 * MICROSECOND), 2);
    assert_eq!(below(500 * MICROSECOND), 2);
    assert_eq!(below(1000 * MICROSECOND), 3);
    assert_eq!(below(10 * flash::SECOND), 3, "the fourth is longer than the last bound");
    assert!(counts.is_sorted());
}

#[test]
fn what_two_shards_counted_is_counted_together() {
    let mut latencies = Latencies::default();
    latencies.record(&timed(0, Kind::Read, [0, 0, 100]), Instant(100));
    latencies.record(&timed(1, Kind::Flush, [0, 0, 5000]), Instant(6000));
    let mut twice = Latencies::default();
    twice.add(&latencies);
    twice.add(&latencies);
    let whole = twice.whole();
    assert_eq!(whole[Op::Read as usize].as_ref().unwrap().count(), 2);
    assert_eq!(whole[Op::Flush as usize].as_ref().unwrap().sum_ns, 12_000);
    assert_eq!(twice.stages[2][Op::Flush as usize].as_ref().unwrap().sum_ns, 2000);
}

#[test]
fn what_a_volume_was_asked_that_is_gone_counts_among_all_and_under_no_name() {
    let mut latencies = Latencies::default();
    for volume in [0, 7, 7] {
        latencies.record(&timed(volume, Kind::Read, [0, 0, 100]), Instant(100));
    }
    latencies.keep(|volume| volume == 0);
    let count = |by_op: &ByOp| by_op[Op::Read as usize].as_ref().unwrap().count();
    assert_eq!(
        (latencies.volumes.len(), count(&latencies.gone), count(&latencies.whole())),
        (1, 2, 3)
    );
    let mut sum = latencies.clone();
    sum.add(&latencies);
    assert_eq!(count(&sum.whole()), 6);
}

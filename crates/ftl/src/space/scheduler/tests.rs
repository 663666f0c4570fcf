//! The scheduler alone: bands, queues and commands, without pages, requests or a map.

use super::*;
use crate::policy::erase_by_name;
use crate::space::small_geometry;
use flash::Health;

struct Bench {
    scheduler: Scheduler,
    bands: Bands,
    policy: Box<dyn ErasePolicy>,
    outputs: VecDeque<Output>,
    now: Instant,
}

fn geometry() -> Geometry {
    Geometry { pages_per_block: 4, suspend: true, ..small_geometry() }
}

impl Bench {
    fn new(geometry: Geometry, settings: &Settings) -> Self {
        Self {
            scheduler: Scheduler::new(geometry, &Health::default(), settings),
            bands: Bands::new(&geometry),
            policy: erase_by_name("idle").unwrap(),
            outputs: VecDeque::new(),
            now: Instant(0),
        }
    }

    /// These bands are dirty, all others are full.
    fn dirty(mut self, blocks: &[u32]) -> Self {
        for block in self.bands.ids() {
            let dirty = blocks.contains(&block.0);
            self.bands[block].state = if dirty { BandState::Dirty } else { BandState::Full };
        }
        self.bands.index_all();
        self
    }

    fn read(&mut self, purpose: ReadPurpose, slot: u32) -> u32 {
        let read = self.scheduler.reads.take();
        self.scheduler.reads[read] =
            ReadOp { purpose, slot: SlotId(slot), count: 1, since: self.now, ..ReadOp::default() };
        self.scheduler.queue_read(0, read, self.now);
        read
    }

    /// What goes to unit 0 in its turn, by its first letter: r, R (urgent), p or e.
    fn turn(&mut self, erases: Erases, may_program: impl Fn(u32) -> bool) -> String {
        let mut turn = Turn {
            now: self.now,
            erases,
            destage_is_spaced: false,
            policy: &mut *self.policy,
            bands: &mut self.bands,
            outputs: &mut self.outputs,
        };
        let program = |page| may_program(page).then_some((SlotId(4 * page), 4));
        self.scheduler.dispatch(0, &mut turn, program);
        let letter = |output| match output {
            Output::Command(Command::Read { urgent, .. }) => {
                if urgent {
                    'R'
                } else {
                    'r'
                }
            }
            Output::Command(Command::Program { .. }) => 'p',
            Output::Command(Command::Erase { .. }) => 'e',
            other => panic!("not a command of a unit: {other:?}"),
        };
        self.outputs.drain(..).map(letter).collect()
    }
}

#[test]
fn host_reads_go_before_reads_of_our_own_and_those_before_programs() {
    let mut bench = Bench::new(geometry(), &Settings::default());
    bench.scheduler.queue_program(0, 0);
    let own = bench.read(ReadPurpose::Scrub, 1);
    let hosts = bench.read(ReadPurpose::Host(0), 2);
    let mut turn = Turn {
        now: bench.now,
        erases: Erases::Never,
        destage_is_spaced: false,
        policy: &mut *bench.policy,
        bands: &mut bench.bands,
        outputs: &mut bench.outputs,
    };
    bench.scheduler.dispatch(0, &mut turn, |_| Some((SlotId(0), 4)));
    let tags: Vec<u32> = bench.outputs.iter().map(tag).collect();
    assert_eq!(tags, [TAG_READ | hosts, TAG_READ | own, TAG_PROGRAM]);
    assert!(!bench.scheduler.no_work_runs());
}

fn tag(output: &Output) -> u32 {
    match output {
        Output::Command(Command::Read { tag, .. } | Command::Program { tag, .. }) => tag.0,
        other => panic!("neither a read nor a program: {other:?}"),
    }
}

#[test]
fn a_program_that_may_not_begin_is_passed_by_the_next_that_may() {
    let mut bench = Bench::new(geometry(), &Settings::default());
    bench.scheduler.queue_program(0, 7);
    bench.scheduler.queue_program(0, 8);
    assert_eq!(bench.turn(Erases::Never, |_| false), "");
    assert_eq!(bench.turn(Erases::Never, |page| page == 8), "p");
    assert!(bench.scheduler.unqueue_program(0, 7), "it waits still");
    assert!(!bench.scheduler.unqueue_program(0, 8), "it runs");
}

#[test]
fn a_host_read_suspends_what_runs_as_often_as_the_settings_allow() {
    let settings = Settings { suspensions_max: 1, ..Settings::default() };
    let mut bench = Bench::new(geometry(), &settings);
    bench.scheduler.queue_program(0, 0);
    assert_eq!(bench.turn(Erases::Never, |_| true), "p");
    bench.read(ReadPurpose::Host(0), 1);
    bench.read(ReadPurpose::Host(1), 2);
    assert_eq!(bench.turn(Erases::Never, |_| true), "Rr");
}

#[test]
fn programs_that_run_are_known_in_their_order_and_since_when() {
    let mut bench = Bench::new(geometry(), &Settings::default());
    bench.scheduler.queue_program(0, 7);
    assert_eq!(bench.turn(Erases::Never, |_| true), "p");
    bench.now = Instant(500);
    bench.scheduler.queue_program(0, 8);
    assert_eq!(bench.turn(Erases::Never, |_| true), "p");
    assert_eq!(bench.scheduler[0].pages_running, [(7, Instant(0)), (8, Instant(500))]);
    assert_eq!(bench.scheduler.program_ended(0, 8, Instant(900)), Instant(500));
    assert_eq!(bench.scheduler[0].pages_running, [(7, Instant(0))]);
    assert_eq!(bench.scheduler[0].slots_programmed, 8);
}

#[test]
fn erases_begin_as_far_as_they_are_permitted() {
    for (erases, expected) in [
        (Erases::Never, ""),
        (Erases::Chosen, ""),
        (Erases::WhereNoneIsClean, "e"),
        (Erases::All, "e"),
    ] {
        let mut bench = Bench::new(geometry(), &Settings::default()).dirty(&[0]);
        // A host read waits, and no policy erases before it has ended.
        bench.scheduler[0].reads_running = 1;
        let block = BlockId(0);
        assert!(bench.bands.clean(0).is_empty());
        assert_eq!(bench.turn(erases, |_| true), expected, "{erases:?}");
        assert_eq!(bench.bands[block].state == BandState::Erasing, expected == "e");
        assert_eq!(bench.scheduler.counts.erases_forced, u64::from(expected == "e"));
    }
}

#[test]
fn one_erase_runs_on_a_unit_at_a_time_and_its_end_is_counted_as_quiet() {
    let mut bench = Bench::new(geometry(), &Settings::default()).dirty(&[0, 1]);
    assert_eq!(bench.turn(Erases::All, |_| true), "e");
    assert!(!bench.scheduler.are_quiet());
    bench.now = Instant(5_000_000);
    bench.scheduler.ended(0, Job::Erase, bench.now);
    assert!(bench.scheduler.are_quiet());
    assert_eq!(bench.scheduler[0].busy_ns, 5_000_000);
    assert_eq!(bench.scheduler.costs().erase_ns, 6_250_000, "learned, with a quarter to be safe");
}

#[test]
fn with_a_service_level_work_waits_while_host_reads_run_but_not_for_ever() {
    let settings = Settings { read_slo_ns: 1_000_000, ..Settings::default() };
    let mut bench = Bench::new(geometry(), &settings);
    let read = bench.read(ReadPurpose::Host(0), 1);
    assert_eq!(bench.turn(Erases::Chosen, |_| true), "r");
    bench.scheduler.queue_program(0, 0);
    assert_eq!(bench.turn(Erases::Chosen, |_| true), "", "the host reads");
    bench.now = Instant(4 * bench.scheduler.costs().program_ns);
    assert_eq!(bench.turn(Erases::Chosen, |_| true), "p", "it has waited long enough");
    let op = bench.scheduler.read_ended(0, read, bench.now);
    bench.scheduler.note_slow(0, &op, bench.now);
    assert_eq!(bench.scheduler.counts.over_slo, [1, 0, 0, 0, 0]);
}

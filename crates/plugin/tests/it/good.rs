//! The modules that ship do what the built-in policies do, to the bit.

use crate::shipped;
use flash::{BlockId, Instant, Random};
use ftl::Switch;
use ftl::policy::{BandView, CHUNK_BANDS, Chosen, CostBenefit, FullBands, VictimPolicy};
use lab::streams::{StreamRun, StreamWaf};
use plugin::{Kind, Module};

fn run() -> StreamRun {
    StreamRun { bands: 256, overwrites: 4.0, ..StreamRun::default() }.scaled(8)
}

/// The run with a policy of `module` for its only decision.
fn with_module(run: &StreamRun, module: &Module) -> StreamWaf {
    let decision = module.kinds()[0].decision();
    let (name, by, now) = (module.policy_name(), "the test", Instant(0));
    let (waf, status) = run
        .measure_and_look("none", |ftl| {
            let shapes = ftl.stream_shapes(decision)?;
            let chosen = shapes.iter().map(|&shape| module.make(decision, shape));
            let chosen = chosen.collect::<Result<_, _>>()?;
            ftl.switch_policy(Switch { now, decision, name: &name, by, chosen }).map(drop)
        })
        .unwrap();
    assert_eq!(status.switches.len(), 1, "{:?}", status.switches);
    assert_eq!(status.policies.of(decision), name);
    waf
}

/// The same with a built-in policy.
fn with_built_in(run: &StreamRun, decision: &str, name: &str) -> StreamWaf {
    let put = |ftl: &mut ftl::Ftl| ftl.set_policy(decision, name);
    run.measure_and_look("none", put).unwrap().0
}

#[test]
fn greedy_as_a_module_takes_the_same_run_as_the_built_in_one() {
    let run = StreamRun { victim: "greedy".into(), ..run() };
    let (module, native) =
        (with_module(&run, &shipped("greedy")), with_built_in(&run, "victim", "greedy"));
    assert_eq!(module, native);
    let fifo = with_built_in(&run, "victim", "fifo");
    assert_ne!(fifo.trace_hash, native.trace_hash);
}

#[test]
fn sfr_as_a_module_takes_the_same_run_as_the_built_in_one() {
    let run = run();
    let (module, native) =
        (with_module(&run, &shipped("sfr")), with_built_in(&run, "stream", "sfr"));
    // A module's memory is pages of 64 KiB.
    assert!(native.memory_bytes < module.memory_bytes);
    assert_eq!(module, StreamWaf { memory_bytes: module.memory_bytes, ..native.clone() });
    assert_ne!(native.trace_hash, with_built_in(&run, "stream", "none").trace_hash);
}

#[test]
fn least_work_and_even_wear_take_the_same_run_as_the_built_in_ones() {
    let run = run();
    for (module, decision, name) in
        [("least-work", "unit", "weighted-queue"), ("even-wear", "wear", "static")]
    {
        let native = with_built_in(&run, decision, name);
        assert_eq!(with_module(&run, &shipped(module)), native, "{module}");
    }
}

#[test]
fn a_module_is_of_the_kind_it_was_written_for() {
    for (name, kind) in [
        ("greedy", Kind::Victim),
        ("sfr", Kind::Stream),
        ("least-work", Kind::Unit),
        ("even-wear", Kind::Wear),
        ("quiet-erase", Kind::Erase),
    ] {
        let module = shipped(name);
        assert_eq!(module.kinds(), [kind], "{name}");
        let other = if kind == Kind::Victim { "stream" } else { "victim" };
        let shape = ftl::policy::stream::Shape { blocks: 1, handles: 1 };
        let error = module.make(other, shape).unwrap_err();
        assert!(error.contains(&format!("wasm:{name} decides {kind}")), "{error}");
    }
}

#[test]
fn a_module_that_erases_when_it_is_quiet_breaks_nothing() {
    let run = run();
    assert!(with_module(&run, &shipped("quiet-erase")).waf >= 1.0);
}

/// Keeps a copy of the view as a module does, and compares it with the whole view each time.
#[derive(Default)]
struct Copying {
    /// Block, unit, erases, and when it was opened.
    copy: Vec<[u64; 4]>,
    moves: u64,
    kept: u64,
}

impl VictimPolicy for Copying {
    fn name(&self) -> &'static str {
        "copying"
    }

    fn pick(&mut self, bands: &dyn FullBands, random: &mut Random) -> Option<BlockId> {
        let views: Vec<BandView> = (0..bands.len()).map(|index| bands.band(index)).collect();
        let entry = |view: &BandView| {
            let opened = bands.pages() - view.age_pages;
            [view.block.0.into(), view.unit.into(), view.erase_count.into(), opened]
        };
        let whole: Vec<[u64; 4]> = views.iter().map(entry).collect();
        self.copy.resize(whole.len(), [0; 4]);
        for (chunk, (old, new)) in
            self.copy.chunks_mut(CHUNK_BANDS).zip(whole.chunks(CHUNK_BANDS)).enumerate()
        {
            if bands.moved_since(chunk, self.moves) {
                old.copy_from_slice(new);
            } else {
                self.kept += 1;
            }
        }
        assert!(self.copy == whole, "after {} moves", bands.moves());
        let valid: Vec<u32> = views.iter().map(|view| view.slots_valid).collect();
        assert_eq!(bands.columns().slots_valid, &valid[..]);
        self.moves = bands.moves();
        assert!(self.kept > 0 || self.moves < 3000, "some chunks stay as they are");
        CostBenefit.pick(bands, random)
    }
}

#[test]
fn what_is_said_to_be_the_same_since_the_last_victim_is_the_same() {
    let run = run();
    let put = |ftl: &mut ftl::Ftl| {
        let chosen = vec![Chosen::Victim(Box::new(Copying::default()))];
        let (now, decision, name, by) = (Instant(0), "victim", "copying", "the test");
        ftl.switch_policy(Switch { now, decision, name, by, chosen }).map(drop)
    };
    let (waf, _) = run.measure_and_look("none", put).unwrap();
    assert_eq!(waf, with_built_in(&run, "victim", "cost-benefit"));
}

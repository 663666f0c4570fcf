//! What a policy costs each time it decides, built in or a WebAssembly module: processor time of one
//! question, on views like those that the FTL shows. `weir plugin test` measures a user's module with
//! the same code.

use super::{Figure, Goal, Request, cpu_ns, streams};
use flash::{BlockId, Instant, Random};
use ftl::policy::stream::Shape;
use ftl::policy::{
    BandView, CHUNK_BANDS, Chosen, Columns, Costs, EraseView, FullBands, PageView, Purpose,
    UnitView, catalogue,
};
use plugin::{Kind, Module};

/// Full bands of the device.
const BANDS: u32 = 10_000;
/// Its units.
const UNITS: u32 = 16;
/// Slots of a band.
const SLOTS: u32 = 512;
/// Pages appended on it.
const PAGES: u64 = 1 << 40;
/// Free bands of a unit.
const FREE: usize = 32;
/// Bands that come or go between two victims.
const MOVES: usize = 3;

/// Calls timed at a time: short, so that the least of many is undisturbed.
const CALLS: u32 = 20;
const RUNS: u32 = 100;

/// A module of plugins/.
macro_rules! module {
    ($name:literal) => {
        (
            $name,
            include_bytes!(concat!("../../../../plugins/", $name, "/", $name, ".wasm")) as &[u8],
        )
    };
}

pub const MODULES: [(&str, &[u8]); 5] = [
    module!("greedy"),
    module!("sfr"),
    module!("least-work"),
    module!("even-wear"),
    module!("quiet-erase"),
];

/// What a call costs.
pub struct Cost {
    /// Which call, on what.
    pub call: String,
    /// Processor time.
    pub ns: f64,
}

/// Built-in policies.
pub fn built_in(request: &mut Request<'_>) {
    let decisions = ["victim", "wear", "erase", "unit"];
    for entry in decisions.iter().flat_map(|decision| catalogue::of(decision)) {
        let figure = format!("policy-{}-{}-ns", entry.decision, entry.name);
        if !request.wants(&figure) {
            continue;
        }
        let shape = Shape { blocks: 1, handles: 1 };
        let measured = Chosen::by_name(entry.decision, entry.name, shape).and_then(of);
        tell(request, figure, entry.decision, measured, 1.0);
    }
}

/// WebAssembly modules.
pub fn modules(request: &mut Request<'_>) {
    for (name, code) in MODULES {
        let module = Module::load(name, code).map_err(|error| error.to_string());
        let decision = module.as_ref().map_or("victim", |module| module.kinds()[0].decision());
        let figure = format!("plugin-{decision}-{name}-ns");
        if !request.wants(&figure) {
            continue;
        }
        let measured = module.and_then(|module| of_module(&module, module.kinds()[0]));
        tell(request, figure, decision, measured, 4.0);
    }
}

/// `share`: how much more than a built-in policy it may cost.
fn tell(
    request: &mut Request<'_>,
    figure: String,
    decision: &str,
    measured: Result<Cost, String>,
    share: f64,
) {
    // A victim is chosen once for hundreds of writes, and so may cost that much more.
    let goal = Goal::AtMost(if decision == "victim" { 20_000.0 } else { 50.0 * share });
    (request.sink)(match measured {
        Ok(cost) => Figure::new(figure, cost.ns, "ns/call", goal)
            .note(format!("{}; least of {RUNS}", cost.call)),
        Err(why) => Figure::missing(figure, "ns/call", goal, &why),
    });
}

/// What a call of `module` for `kind` costs.
pub fn of_module(module: &Module, kind: Kind) -> Result<Cost, String> {
    module.make(kind.decision(), Shape { blocks: streams::BLOCKS, handles: 8 }).and_then(of)
}

fn of(chosen: Chosen) -> Result<Cost, String> {
    let mut chosen = chosen;
    let mut views = Views::new();
    if let Chosen::Stream(policy) = &mut chosen {
        let ns = streams::cost(&mut **policy, 2, streams::BATCH);
        let fault = policy.fault();
        let call = "a block that is written, on a volume of 1 TiB".to_owned();
        return fault.map_or(Ok(Cost { call, ns }), |fault| Err(fault.reason));
    }
    let mut least = f64::MAX;
    let mut sum = 0u64;
    for _ in 0..RUNS {
        let mut spent = 0;
        for _ in 0..CALLS {
            views.change();
            let begun = cpu_ns();
            sum = sum.wrapping_add(views.ask(&mut chosen));
            spent += cpu_ns() - begun;
        }
        least = least.min(spent as f64 / f64::from(CALLS));
    }
    std::hint::black_box(sum);
    let (call, repeated) = views.described(&chosen);
    // The clock itself takes longer than a short call: those are repeated between two looks at it.
    Ok(Cost { call, ns: least / f64::from(repeated) })
}

/// What policies are shown, as it changes from one question to the next.
struct Views {
    bands: Bands,
    random: Random,
    counts: Vec<u32>,
    units: Vec<UnitView>,
}

struct Bands {
    views: Vec<BandView>,
    blocks: Vec<BlockId>,
    valid: Vec<u32>,
    opened: Vec<u64>,
    moved: Vec<u64>,
    moves: u64,
}

impl FullBands for Bands {
    fn columns(&self) -> Columns<'_> {
        Columns { blocks: &self.blocks, slots_valid: &self.valid, opened: &self.opened }
    }

    fn slots(&self) -> u32 {
        SLOTS
    }

    fn band(&self, index: usize) -> BandView {
        BandView { slots_valid: self.valid[index], ..self.views[index] }
    }

    fn pages(&self) -> u64 {
        PAGES
    }

    fn units(&self) -> u32 {
        UNITS
    }

    fn moves(&self) -> u64 {
        self.moves
    }

    fn moved_since(&self, chunk: usize, moves: u64) -> bool {
        self.moved[chunk] > moves
    }
}

/// Calls between two looks at the clock, of a decision that takes nanoseconds.
const REPEATED: u32 = 1000;

impl Views {
    fn new() -> Self {
        let mut random = Random::new(1);
        let mut below = |bound: u64| random.below(bound) as u32;
        let views: Vec<BandView> = (0..BANDS)
            .map(|block| BandView {
                block: BlockId(block),
                unit: block % UNITS,
                slots_valid: 0,
                age_pages: below(1 << 24).into(),
                erase_count: below(3000),
            })
            .collect();
        let valid = (0..BANDS).map(|_| below(SLOTS.into())).collect();
        let units = (0..UNITS).map(|unit| UnitView {
            unit,
            appends_waiting: below(8),
            reads_waiting: below(8),
            bands_free: below(100),
            erases_running: below(2),
            victims: below(2),
            open: true,
            weight: ftl::policy::WEIGHT_FULL,
        });
        let units = units.collect();
        let counts = (0..FREE).map(|_| below(3000)).collect();
        let moved = vec![1; (BANDS as usize).div_ceil(CHUNK_BANDS)];
        let blocks = views.iter().map(|view| view.block).collect();
        let opened = views.iter().map(|view| PAGES - view.age_pages).collect();
        let bands = Bands { views, blocks, valid, opened, moved, moves: 1 };
        Self { bands, random, counts, units }
    }

    /// Blocks were overwritten, a band was filled and one reclaimed.
    fn change(&mut self) {
        for _ in 0..SLOTS {
            let index = self.random.below(BANDS.into()) as usize;
            let valid = &mut self.bands.valid[index];
            *valid = if *valid == 0 { SLOTS } else { *valid - 1 };
        }
        for _ in 0..MOVES {
            self.bands.moves += 1;
            let index = self.random.below(BANDS.into()) as usize;
            self.bands.moved[index / CHUNK_BANDS] = self.bands.moves;
            self.bands.views[index].erase_count += 1;
        }
    }

    fn ask(&mut self, chosen: &mut Chosen) -> u64 {
        let costs = Costs { read_ns: 60_000, program_ns: 600_000, erase_ns: 3_000_000 };
        let mut sum = 0;
        match chosen {
            Chosen::Victim(policy) => {
                sum += policy.pick(&self.bands, &mut self.random).map_or(0, |block| block.0.into());
            }
            Chosen::Wear(policy) => {
                for _ in 0..REPEATED {
                    sum += policy.pick_free(&self.counts, Purpose::Host) as u64;
                }
            }
            Chosen::Erase(policy) => {
                for index in 0..REPEATED {
                    let view = EraseView {
                        reads_waiting: index % 3,
                        appends_waiting: index % 2,
                        quiet_since: Instant(0),
                        now: Instant(u64::from(index) << 12),
                        idle_ns: 2_000_000,
                        bands_clean: index % 4,
                        asked: 0,
                    };
                    sum += u64::from(policy.erase_now(&view));
                }
            }
            Chosen::Unit(policy) => {
                for index in 0..REPEATED {
                    let last = index % UNITS;
                    let page = PageView { last, apart: false, index, units: UNITS, costs };
                    sum += policy.pick(&self.units, &page) as u64;
                }
            }
            Chosen::Stream(_) | Chosen::Profile(_) => {}
        }
        sum
    }

    /// The question in words, and how often one `ask` puts it.
    fn described(&self, chosen: &Chosen) -> (String, u32) {
        match chosen {
            Chosen::Victim(_) => (format!("a victim of {BANDS} bands"), 1),
            Chosen::Wear(_) => (format!("one of {FREE} free bands"), REPEATED),
            Chosen::Erase(_) => ("whether to erase".into(), REPEATED),
            Chosen::Unit(_) => (format!("one of {UNITS} units for a page"), REPEATED),
            Chosen::Stream(_) => ("a block that is written".into(), 1),
            Chosen::Profile(_) => ("what the load is".into(), 1),
        }
    }
}

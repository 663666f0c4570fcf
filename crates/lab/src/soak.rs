//! The model test: very many random operations on a small device with GC, wear, bad blocks and
//! faults, with power cuts, clean remounts and policy switches among them, every read held against
//! the model.
//!
//! Invariant: the seed and the options decide the whole run; its trace hash proves it.

use crate::checker::counter;
use crate::device::{Manner, Small};
use crate::driver::{Failure, Sim, State, Step};
use crate::host::{Host, HostCounts};
use crate::model::Model;
use crate::workload::{Arrival, Generator, Pattern, Workload, fast_shares};
use flash::{Hint, Instant, MICROSECOND, Pairing, Random, SECOND};
use ftl::{FormatOptions, PolicyNames, Settings};
use nand::Faults;
use std::collections::BTreeSet;

/// What to run.
#[derive(Clone, Debug)]
pub struct SoakOptions {
    /// The device.
    pub device: Small,
    /// What goes wrong by itself.
    pub faults: Faults,
    /// Settings of the FTL.
    pub settings: Settings,
    /// Share of the largest logical space that the device offers.
    pub fill: f64,
    /// Host operations.
    pub operations: u64,
    /// Operations in flight.
    pub depth: u32,
    /// Mean operations between two power cuts; 0 for none.
    pub operations_per_cut: u64,
    /// Mean operations between two clean remounts; 0 for none.
    pub operations_per_remount: u64,
    /// Mean operations between two switches of a policy at run time; 0 for none.
    pub operations_per_switch: u64,
    /// Mean operations between two asks of the application for erases and wear moves; 0 for none.
    pub operations_per_ask: u64,
    /// The faults may destroy data: an error is then a legal answer, wrong data never is.
    pub data_may_be_lost: bool,
    /// So much fails that writes may be refused at any time, or the whole device give up.
    pub may_give_up: bool,
    /// Volumes with a share of the fast tier each.
    pub volumes: u32,
}

impl SoakOptions {
    /// A device without faults under these policies.
    pub fn quiet(policies: PolicyNames, seed: u64) -> Self {
        let device = Small {
            manner: Manner::Nand(Pairing::None),
            units: 4,
            blocks_per_unit: 16,
            pages_per_block: 16,
            slots_per_page: 2,
            open_blocks_max: 0,
        };
        let settings = Settings {
            handles: 2,
            append_wait_ns: 20 * MICROSECOND,
            idle_ns: 100 * MICROSECOND,
            relocation_blocks: 128,
            // Programs take 31 us and erases 83: too little for an erase with odd seeds.
            read_slo_ns: [200, 60, 0, 1][seed as usize % 4] * MICROSECOND,
            policies,
            seed,
            ..Settings::default()
        };
        Self {
            device,
            faults: Faults::default(),
            settings,
            fill: 0.9,
            operations: 20_000,
            depth: 8,
            operations_per_cut: 4_000,
            operations_per_remount: 6_000,
            operations_per_switch: 0,
            operations_per_ask: 100,
            data_may_be_lost: false,
            may_give_up: false,
            volumes: 1,
        }
    }
}

/// What a run came to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SoakReport {
    /// What the host saw.
    pub counts: HostCounts,
    /// Power cuts survived.
    pub cuts: u64,
    /// Clean remounts.
    pub remounts: u64,
    /// Policy switches.
    pub switches: u64,
    /// Switches of mappings that were refused, for want of memory.
    pub mappings_refused: u64,
    /// Combines the trace hashes of all mounts.
    pub trace_hash: u64,
    /// Virtual time at the end.
    pub virtual_ns: u64,
    /// Highest erase count of a block.
    pub erase_count_max: u32,
    /// Pieces of the map that were loaded from flash.
    pub map_pieces_loaded: u64,
    /// The run ended early because damage had hit what a mount cannot do without.
    pub mount_refused: bool,
    /// The run ended early because pages of the map and of data were lost: the device is read-only.
    pub read_only: bool,
    /// So many blocks have failed that writes were refused; reads went on to the end.
    pub worn_out: bool,
}

/// No request of so few takes so long, in media time: programs take 31 us and erases 83.
const PATIENCE_NS: u64 = SECOND;

struct Soak<'a> {
    options: &'a SoakOptions,
    random: Random,
    report: SoakReport,
}

/// Runs one seed.
pub fn run_model(seed: u64, options: &SoakOptions) -> Result<SoakReport, Failure> {
    let medium = options.device.build(options.faults.clone()).map_err(Failure)?;
    let geometry = *medium.geometry();
    let max = ftl::logical_blocks_max(&geometry, &medium.health(), &options.settings);
    let logical_blocks = (f64::from(max) * options.fill) as u32;
    let format = FormatOptions { logical_blocks, uuid: u128::from(seed) + 1, label: Vec::new() };
    let mut options = options.clone();
    options.settings.fast_shares = fast_shares(logical_blocks, options.volumes);
    let options = &options;
    let mut sim = Sim::format(medium, format, options.settings.clone(), Instant(0))?;
    sim.run_until_ready()?;
    sim.set_patience(PATIENCE_NS);
    let durable_at_reply = geometry.keeps_every_acknowledged_write();
    let mut model = Model::new(logical_blocks, durable_at_reply);
    if options.data_may_be_lost {
        model.tolerate_unreadable();
    }
    let mut soak = Soak { options, random: Random::new(seed), report: SoakReport::default() };
    let mut host = Host::new(sim, model);
    (host.full_is_legal, host.refusals_are_legal) = (options.may_give_up, options.may_give_up);
    soak.run(
        &mut host,
        &mut generator(seed, options.depth, logical_blocks)?.among(options.volumes),
    )?;
    if !soak.report.mount_refused {
        host.read_back()?;
        soak.end_mount(&host)?;
    }
    let refused = host.counts.no_space + host.counts.refused > 0;
    soak.report.worn_out = refused && host.is_worn_out();
    soak.report.virtual_ns = host.sim.now().0;
    soak.report.counts = host.counts;
    Ok(soak.report)
}

fn generator(seed: u64, depth: u32, logical_blocks: u32) -> Result<Generator, Failure> {
    let patterns = [
        Pattern::Uniform,
        Pattern::Zipf { theta: 0.99 },
        Pattern::HotCold { fraction: 0.2, share: 0.8 },
        Pattern::Sequential,
    ];
    let workload = Workload {
        reads: 0.25,
        trims: 0.05,
        flushes: 0.03,
        fua: 0.05,
        atomic: 0.2,
        sizes: vec![(1, 6.0), (2, 2.0), (4, 1.0), (16, 0.5)],
        pattern: patterns[(seed % 4) as usize],
        arrival: Arrival::Closed { depth },
    };
    Generator::new(workload, logical_blocks, seed).map_err(Failure)
}

impl Soak<'_> {
    fn one_in(&mut self, mean: u64) -> bool {
        mean > 0 && self.random.below(mean) == 0
    }

    fn run(&mut self, host: &mut Host, generator: &mut Generator) -> Result<(), Failure> {
        let mut submitted = 0;
        while submitted < self.options.operations || host.sim.in_flight() > 0 {
            while submitted < self.options.operations && host.sim.in_flight() < self.options.depth {
                let handle = self.random.below(4) as u8;
                host.submit(generator.draw(), Hint { handle, ..Hint::default() });
                submitted += 1;
                self.disturb(host)?;
                if self.report.mount_refused || self.report.read_only {
                    return Ok(());
                }
            }
            let step = host.sim.step(Instant(u64::MAX))?;
            host.collect()?;
            if step == Step::Idle && host.sim.in_flight() > 0 {
                return Err(host.sim.stuck());
            }
        }
        Ok(())
    }

    fn disturb(&mut self, host: &mut Host) -> Result<(), Failure> {
        if self.one_in(self.options.operations_per_switch) {
            self.switch_policy(host)?;
        }
        if self.one_in(self.options.operations_per_ask) {
            let unit = self.random.below(u64::from(self.options.device.units)) as u32;
            let bands = 1 + self.random.below(4) as u32;
            // A unit that is gone refuses, and says so.
            let _ = host.sim.ftl_mut().ask_erase(unit, bands);
            let _ = host.sim.ftl_mut().ask_wear_move(unit, bands / 4);
        }
        if self.one_in(self.options.operations_per_cut) {
            // Somewhere in the midst of what was submitted.
            for _ in 0..self.random.below(20) {
                host.sim.step(Instant(u64::MAX))?;
                host.collect()?;
            }
            self.cut(host)?;
        }
        if self.one_in(self.options.operations_per_remount) {
            self.remount(host)?;
        }
        Ok(())
    }

    fn switch_policy(&mut self, host: &mut Host) -> Result<(), Failure> {
        let decisions = [
            ("victim", ftl::policy::VICTIMS),
            ("wear", ftl::policy::WEARS),
            ("erase", ftl::policy::ERASES),
            ("unit", ftl::policy::UNITS),
            ("stream", ftl::policy::stream::STREAMS),
            ("profile", ftl::policy::profile::PROFILES),
            ("mapping", ftl::MAPPINGS),
        ];
        // Where the whole map is in DRAM there is nothing to switch.
        let is_cached = host.sim.settings().map_bytes > 0;
        let count = decisions.len() - usize::from(!is_cached);
        let (decision, names) = decisions[self.random.below(count as u64) as usize];
        if decision == "mapping" {
            return self.switch_mapping(host);
        }
        let name = names[self.random.below(names.len() as u64) as usize];
        self.report.switches += 1;
        host.sim.ftl_mut().set_policy(decision, name).map_err(Failure)
    }

    /// Maps one of the volumes, or all, in another way. Too many by page are refused.
    fn switch_mapping(&mut self, host: &mut Host) -> Result<(), Failure> {
        let volumes = host.sim.settings().map_volumes.len() as u64;
        let decision = match self.random.below(volumes + 1) {
            0 => "mapping".into(),
            number => format!("mapping/{}", number - 1),
        };
        let name = ftl::MAPPINGS[self.random.below(2) as usize];
        match host.sim.ftl_mut().set_policy(&decision, name) {
            Ok(()) => self.report.switches += 1,
            Err(why) if why.contains("map_memory") => self.report.mappings_refused += 1,
            Err(why) => return Err(Failure(why)),
        }
        Ok(())
    }

    /// What is checked whenever an FTL's life ends.
    fn end_mount(&mut self, host: &Host) -> Result<(), Failure> {
        let status = host.sim.ftl().status();
        host.sim.verify()?;
        let trace = host.sim.trace_hash();
        self.report.trace_hash = self.report.trace_hash.rotate_left(7) ^ trace;
        self.report.map_pieces_loaded += counter(&status, "map_pieces_loaded").unwrap_or(0);
        let most = status.units.iter().map(|unit| unit.erase_count_max).max().unwrap_or(0);
        self.report.erase_count_max = self.report.erase_count_max.max(most);
        if let Some(invalid) = counter(&status, "policy_invalid").filter(|&count| count > 0) {
            return Err(Failure(format!("a built-in policy gave {invalid} invalid answers")));
        }
        Ok(())
    }

    /// Goes on with a new mount. False if it was refused, and may be.
    fn replace(&mut self, host: &mut Host, mut sim: Sim) -> Result<bool, Failure> {
        let ready = sim.run_until_ready().map(|_| ());
        let refused = matches!(sim.state(), State::Refused(_)) && self.options.data_may_be_lost;
        self.report.mount_refused = refused;
        sim.set_patience(PATIENCE_NS);
        host.sim = sim;
        self.report.read_only = self.options.data_may_be_lost && host.read_only();
        if refused { Ok(false) } else { ready.map(|()| true) }
    }

    fn cut(&mut self, host: &mut Host) -> Result<(), Failure> {
        self.end_mount(host)?;
        self.report.cuts += 1;
        let mut medium = host.sim.medium().clone();
        medium.power_cut_by_chance(&mut self.random);
        let sim = Sim::mount(medium, self.options.settings.clone(), host.sim.now())?;
        if !self.replace(host, sim)? {
            return Ok(());
        }
        host.settle()
    }

    fn remount(&mut self, host: &mut Host) -> Result<(), Failure> {
        host.drain()?;
        if !host.sim.stop()? {
            if host.is_worn_out() || self.options.may_give_up {
                // No room is left for a last checkpoint.
                return self.cut(host);
            }
            return Err(Failure("the shutdown left data volatile".into()));
        }
        self.end_mount(host)?;
        self.report.remounts += 1;
        host.model.shut_down();
        let medium = host.sim.medium().clone();
        let sim = Sim::mount(medium, self.options.settings.clone(), host.sim.now())?;
        if !self.replace(host, sim)? {
            return Ok(());
        }
        match host.sim.state() {
            State::Ready(report) if report.clean => host.read_back(),
            other => Err(Failure(format!("the mount after a clean shutdown says {other:?}"))),
        }
    }
}

/// Runs one seed twice; the two must not differ in any output.
pub fn run_model_twice(seed: u64, options: &SoakOptions) -> Result<SoakReport, Failure> {
    let first = run_model(seed, options)?;
    let second = run_model(seed, options)?;
    if first != second {
        return Err(Failure(format!("not deterministic: {first:?}, then {second:?}")));
    }
    Ok(first)
}

/// Combinations of built-in policies in which every two policies of different decisions meet: what
/// goes wrong by combination goes wrong by two, and all combinations of all would be hundreds.
pub fn policy_combinations() -> Vec<PolicyNames> {
    let lists = [
        ftl::policy::VICTIMS,
        ftl::policy::WEARS,
        ftl::policy::ERASES,
        ftl::policy::UNITS,
        ftl::policy::stream::STREAMS,
    ];
    let mut met = BTreeSet::new();
    let mut combinations = Vec::new();
    let all: usize = lists.iter().map(|names| names.len()).product();
    // First an order in which neighbours differ in every decision, so that few are needed; then the
    // plain one, which misses none.
    for (number, step) in (0..all).map(|number| (number, number)).chain((0..all).map(|n| (n, 0))) {
        let mut rest = number;
        let mut choice = [0; 5];
        for (at, names) in lists.iter().enumerate() {
            choice[at] = (rest + at * step) % names.len();
            rest /= names.len();
        }
        let pairs = (0..5).flat_map(|a| (a + 1..5).map(move |b| (a, b)));
        let pairs: Vec<_> = pairs.map(|(a, b)| (a, choice[a], b, choice[b])).collect();
        if pairs.iter().filter(|&&pair| met.insert(pair)).count() > 0 {
            let [victim, wear, erase, unit, stream] =
                std::array::from_fn(|at| lists[at][choice[at]].into());
            let names = PolicyNames { victim, wear, erase, unit, stream, ..Default::default() };
            combinations.push(names);
        }
    }
    combinations
}

#[cfg(test)]
mod tests {
    use super::policy_combinations;

    #[test]
    fn every_two_policies_of_different_decisions_meet() {
        let combinations = policy_combinations();
        let lists =
            [ftl::policy::VICTIMS, ftl::policy::WEARS, ftl::policy::ERASES, ftl::policy::UNITS];
        let chosen = |names: &ftl::PolicyNames| {
            [names.victim.clone(), names.wear.clone(), names.erase.clone(), names.unit.clone()]
        };
        for (a, b) in (0..4).flat_map(|a| (a + 1..4).map(move |b| (a, b))) {
            for (first, second) in
                lists[a].iter().flat_map(|x| lists[b].iter().map(move |y| (x, y)))
            {
                let mut all = combinations.iter().map(chosen);
                let met = all.any(|names| names[a] == *first && names[b] == *second);
                assert!(met, "{first} never meets {second}");
            }
        }
        println!("{} combinations", combinations.len());
        assert!(combinations.len() < 100, "{} combinations take too long", combinations.len());
    }
}

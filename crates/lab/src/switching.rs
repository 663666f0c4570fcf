//! A device whose policies are switched while clients keep it busy: what its I/Os take beside those of
//! the same load without a switch.
//!
//! A switch takes no virtual time, as nothing in the core does: what is seen here is what it makes
//! the device do. The processor time of one is measured elsewhere.

use crate::driver::{Failure, Sim};
use crate::load::{self, Client, Latency, Pace, Seen, Window};
use crate::target::{Done, Io, SimTarget, Target, TargetCounts};
use flash::{Instant, SECOND};
use ftl::policy::Chosen;
use ftl::{FormatOptions, Ftl, Settings, Switch};
use nand::{Faults, Layout};
use std::collections::BTreeMap;

/// The device, its load, and the switches.
#[derive(Clone, Debug)]
pub struct SwitchRun {
    /// Its flash.
    pub profile: &'static str,
    /// Its dies.
    pub layout: Layout,
    /// Logical by physical capacity.
    pub utilization: f64,
    /// How I/Os of 4 KiB come.
    pub pace: Pace,
    /// Share of reads.
    pub reads: f64,
    /// Measured, in virtual time.
    pub measure_ns: u64,
    /// Decision and policy in charge from the beginning, while the device is aged, too.
    pub steady: Option<(&'static str, &'static str)>,
    /// Between two switches; 0 for none.
    pub every_ns: u64,
    /// Decisions and policies, put in charge in turn.
    pub switches: Vec<(&'static str, &'static str)>,
}

/// What was seen.
#[derive(Clone, Debug)]
pub struct SwitchSeen {
    /// Of all I/Os.
    pub seen: Seen,
    /// Latencies of the I/Os that were in flight at a switch.
    pub beside: Latency,
    /// Of all others.
    pub apart: Latency,
    /// Switches that took place.
    pub switches: u64,
    /// Slots programmed for any reason, by slots written.
    pub waf: f64,
}

impl SwitchRun {
    /// Fills and ages the device, and runs the load on it.
    ///
    /// # Errors
    /// No such profile or policy, or an I/O failed.
    pub fn measure(&self) -> Result<SwitchSeen, Failure> {
        let mut target = Switching {
            inner: self.device()?,
            run: self,
            next: None,
            switched: 0,
            in_flight: BTreeMap::new(),
            beside: Latency::default(),
            apart: Latency::default(),
        };
        let client = Client { pace: self.pace, reads: self.reads, ..Client::default() };
        let before = target.inner.counts();
        target.next = (self.every_ns > 0).then(|| target.now() + self.every_ns);
        let window = Window { warmup_ns: 0, measure_ns: self.measure_ns };
        let seen = load::run(&mut target, &[client], window, 2)?.remove(0);
        if let Some(error) = &seen.first_error {
            return Err(Failure(format!("{} I/Os failed: {error:?}", seen.errors)));
        }
        let after = target.inner.counts();
        let written = (after.bytes_written - before.bytes_written).max(1) as f64;
        let waf = (after.bytes_programmed - before.bytes_programmed) as f64 / written;
        let Switching { beside, apart, switched: switches, .. } = target;
        Ok(SwitchSeen { seen, beside, apart, switches, waf })
    }

    /// The device before the load: every block written once in order, and once more at random.
    ///
    /// # Errors
    /// No such profile or policy, or an I/O failed.
    pub fn device(&self) -> Result<SimTarget, Failure> {
        let medium = crate::device::nand_of(self.profile, &self.layout, Faults::default(), |_| {});
        let medium = medium.map_err(Failure)?;
        let logical_blocks = (medium.geometry().slots() as f64 * self.utilization) as u32;
        let options = FormatOptions { logical_blocks, uuid: 1, label: Vec::new() };
        let mut sim = Sim::format(medium, options, Settings::default(), Instant(0))?;
        sim.run_until_ready()?;
        if let Some((decision, name)) = self.steady {
            sim.ftl_mut().set_policy(decision, name).map_err(Failure)?;
        }
        let mut target = SimTarget::new(sim);
        let fill = Client::filling(logical_blocks.into());
        let age =
            Client { pace: Pace::Depth(64), ios_max: logical_blocks.into(), ..Client::default() };
        for client in [fill, age] {
            load::run(&mut target, &[client], Window::WHENEVER, 1)?;
        }
        Ok(target)
    }
}

/// Processor time of a switch, the longest of some, on an empty device of so many TiB: what the thread
/// that serves it cannot serve meanwhile. Policies are made and dropped beside it, as in the server.
///
/// # Errors
/// No such decision or policy.
pub fn cost(
    tib: f64,
    switches: &[(&'static str, &'static str)],
    cpu_ns: fn() -> u64,
) -> Result<u64, Failure> {
    const TIMES: u32 = 5;
    let (channels, dies_per_channel) = (16, 4);
    let profile = nand::Profile::builtin("tlc").ok_or_else(|| Failure("no profile tlc".into()))?;
    let block = profile.page_bytes * profile.planes * profile.pages_per_block;
    let blocks = tib * (1u64 << 40) as f64 / f64::from(channels * dies_per_channel * block);
    let layout = Layout { channels, dies_per_channel, blocks_per_plane: blocks as u32 };
    let medium = crate::device::nand_of("tlc", &layout, Faults::default(), |_| {});
    let medium = medium.map_err(Failure)?;
    let logical_blocks = (medium.geometry().slots() as f64 * 0.9) as u32;
    let mut sim = crate::figures::format(medium, logical_blocks, &Settings::default())?;
    let mut longest = 0;
    for &(decision, name) in switches {
        let mut least = u64::MAX;
        for _ in 0..TIMES {
            least = least.min(cost_of_one(sim.ftl_mut(), decision, name, cpu_ns).map_err(Failure)?);
        }
        // Whoever else uses the processor makes some longer, and not what a switch does.
        longest = longest.max(least);
    }
    Ok(longest)
}

fn cost_of_one(
    ftl: &mut Ftl,
    decision: &str,
    name: &str,
    cpu_ns: fn() -> u64,
) -> Result<u64, String> {
    let shapes = ftl.stream_shapes(decision)?;
    let chosen = shapes.iter().map(|&shape| Chosen::by_name(decision, name, shape));
    let chosen = chosen.collect::<Result<Vec<_>, _>>()?;
    let begun = cpu_ns();
    let switch = Switch { now: Instant(0), decision, name, by: "the bench", chosen };
    let before = ftl.switch_policy(switch)?;
    while ftl.poll().is_some() {}
    let spent = cpu_ns() - begun;
    drop(before);
    Ok(spent)
}

/// A target that switches its policies as time goes by.
struct Switching<'a> {
    inner: SimTarget,
    run: &'a SwitchRun,
    next: Option<Instant>,
    switched: u64,
    /// By token: when each I/O came, and whether it saw a switch.
    in_flight: BTreeMap<u64, (Instant, bool)>,
    beside: Latency,
    apart: Latency,
}

impl Switching<'_> {
    fn switch(&mut self) -> Result<(), Failure> {
        let switches = &self.run.switches;
        let (decision, name) = switches[self.switched as usize % switches.len()];
        self.switched += 1;
        self.inner.sim_mut().ftl_mut().set_policy(decision, name).map_err(Failure)?;
        self.in_flight.values_mut().for_each(|entry| entry.1 = true);
        Ok(())
    }
}

impl Target for Switching<'_> {
    fn bytes(&self) -> u64 {
        self.inner.bytes()
    }

    fn flash_bytes(&self) -> u64 {
        self.inner.flash_bytes()
    }

    fn now(&self) -> Instant {
        self.inner.now()
    }

    fn submit(&mut self, now: Instant, token: u64, io: Io) -> Result<(), Failure> {
        self.advance(now)?;
        self.in_flight.insert(token, (now, false));
        self.inner.submit(now, token, io)
    }

    fn deadline(&self) -> Option<Instant> {
        self.inner.deadline().into_iter().chain(self.next).min()
    }

    fn advance(&mut self, now: Instant) -> Result<(), Failure> {
        while let Some(at) = self.next.filter(|&at| at <= now) {
            self.inner.advance(at)?;
            self.switch()?;
            self.next = Some(at + self.run.every_ns);
        }
        self.inner.advance(now)
    }

    fn take_done(&mut self) -> Option<Done> {
        let done = self.inner.take_done()?;
        if let Some((submitted, saw_a_switch)) = self.in_flight.remove(&done.token) {
            let latency = if saw_a_switch { &mut self.beside } else { &mut self.apart };
            latency.add(done.at - submitted);
        }
        Some(done)
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
        self.inner.queue_at(offset)
    }
}

impl Default for SwitchRun {
    /// 16 dies of MLC flash at 80 %, reads and writes of 4 KiB, no switch.
    fn default() -> Self {
        Self {
            profile: "mlc-25nm",
            layout: Layout { channels: 4, dies_per_channel: 4, blocks_per_plane: 96 },
            utilization: 0.8,
            pace: Pace::Depth(64),
            reads: 0.5,
            measure_ns: 10 * SECOND,
            steady: None,
            every_ns: 0,
            switches: Vec::new(),
        }
    }
}

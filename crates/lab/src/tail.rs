//! How long reads take beside writes: Presscall's sweep on a part of a TSSD. The device is filled
//! sequentially and overwritten at random until steady; then synchronous random readers run beside
//! random writers whose bandwidth is capped.
//!
//! Invariants:
//! - Every measurement begins from the same medium, mounted anew, so that two settings differ in
//!   nothing else.
//! - Readers and caps are those of a whole TSSD; they are scaled to the part that is simulated, so
//!   that each unit sees the same load.

use crate::device::nand_of;
use crate::driver::{Failure, Sim};
use crate::load::{self, Client, Pace, Window};
use crate::medium::SimMedium;
use crate::target::{SimTarget, Target};
use crate::workload::Pattern;
use flash::{Instant, MICROSECOND, MILLISECOND, SECOND};
use ftl::{FormatOptions, Settings};
use nand::{Faults, Layout};

/// Channels of a whole TSSD.
pub const TSSD_CHANNELS: u32 = 51;

/// The part of a TSSD that is simulated, and its state.
#[derive(Clone, Debug)]
pub struct TailDevice {
    /// Channels, of 51.
    pub channels: u32,
    /// Dies of each channel: 4 on a TSSD.
    pub dies_per_channel: u32,
    /// Blocks of each die.
    pub blocks_per_unit: u32,
    /// Share of the flash that holds data.
    pub utilization: f64,
    /// Random overwrites before the measurement, as a share of the logical space.
    pub overwrites: f64,
    /// Program and erase can be suspended. The flash of TSSD cannot.
    pub suspend: bool,
    /// Seed of everything drawn.
    pub seed: u64,
}

impl Default for TailDevice {
    fn default() -> Self {
        Self {
            channels: 8,
            dies_per_channel: 4,
            blocks_per_unit: 384,
            utilization: 0.95,
            overwrites: 1.0,
            suspend: false,
            seed: 1,
        }
    }
}

/// What runs on it.
#[derive(Clone, Debug)]
pub struct TailLoad {
    /// Synchronous 4 KiB random readers of a whole TSSD.
    pub readers: u32,
    /// 4 KiB random writers of a whole TSSD.
    pub writers: u32,
    /// Bytes a second that these write at most, on a whole TSSD.
    pub cap_bytes_per_s: f64,
    /// Not counted: what the mount left behind passes.
    pub warmup_ns: u64,
    /// Counted.
    pub measure_ns: u64,
}

impl Default for TailLoad {
    fn default() -> Self {
        Self {
            readers: 32,
            writers: 64,
            cap_bytes_per_s: 10e6,
            warmup_ns: SECOND / 2,
            measure_ns: 4 * SECOND,
        }
    }
}

/// What was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct TailReport {
    /// Mean of the reads.
    pub mean_ns: f64,
    /// Of 1000 reads, 999 took no longer.
    pub p999_ns: u64,
    /// The longest read, ended or not.
    pub max_ns: u64,
    /// Reads that count.
    pub reads: u64,
    /// Bytes a second written, of a whole TSSD.
    pub written_per_s: f64,
    /// The longest write.
    pub write_max_ns: u64,
    /// Slots programmed by slots written.
    pub waf: f64,
    /// The mean that no scheduler of this flash goes below at this load: a read alone, and the wait
    /// for the rest of the one program or erase that it meets, if these never overlap.
    pub mean_bound_ns: f64,
    /// Counters of the FTL over the measurement that tell of slow reads.
    pub slow: Vec<(&'static str, u64)>,
}

impl TailDevice {
    fn units(&self) -> u32 {
        self.channels * self.dies_per_channel
    }

    /// Of a whole TSSD.
    fn share(&self) -> f64 {
        f64::from(self.channels) / f64::from(TSSD_CHANNELS)
    }

    fn medium(&self) -> Result<SimMedium, Failure> {
        let layout = Layout {
            channels: self.channels,
            dies_per_channel: self.dies_per_channel,
            blocks_per_plane: self.blocks_per_unit,
        };
        let suspend = self.suspend;
        let medium = nand_of("mlc-50nm", &layout, Faults::default(), |profile| {
            profile.planes = 1;
            if suspend {
                // As tlc's: MQSim's times.
                profile.suspend_program_ns = 100 * MICROSECOND;
                profile.suspend_erase_ns = 400 * MICROSECOND;
            }
        });
        medium.map_err(Failure)
    }

    /// The device, filled and overwritten, shut down cleanly.
    pub fn precondition(&self, settings: &Settings) -> Result<SimMedium, Failure> {
        let medium = self.medium()?;
        let max = ftl::logical_blocks_max(medium.geometry(), &medium.health(), settings);
        let logical_blocks = (medium.geometry().slots() as f64 * self.utilization) as u32;
        if logical_blocks > max {
            return Err(Failure(format!(
                "utilization {}: a device of {} units of {} blocks can offer {:.3} at most",
                self.utilization,
                self.units(),
                self.blocks_per_unit,
                f64::from(max) / medium.geometry().slots() as f64
            )));
        }
        let options = FormatOptions { logical_blocks, uuid: 1, label: Vec::new() };
        let mut sim = Sim::format(medium, options, settings.clone(), Instant(0))?;
        sim.run_until_ready()?;
        let mut target = SimTarget::new(sim);
        let depth = 4 * self.units();
        let fill = Client {
            name: "fill".into(),
            pace: Pace::Depth(depth / 16),
            bytes: 512 << 10,
            pattern: Pattern::Sequential,
            ios_max: u64::from(logical_blocks / 128),
            ..Client::default()
        };
        self.run_to_end(&mut target, fill)?;
        let overwrite = Client {
            name: "overwrite".into(),
            pace: Pace::Depth(depth),
            ios_max: (f64::from(logical_blocks) * self.overwrites) as u64,
            ..Client::default()
        };
        if overwrite.ios_max > 0 {
            self.run_to_end(&mut target, overwrite)?;
        }
        target.into_sim().shutdown()
    }

    fn run_to_end(&self, target: &mut SimTarget, client: Client) -> Result<(), Failure> {
        let seen = load::run(target, &[client], Window::WHENEVER, self.seed)?;
        match seen[0].first_error {
            Some(error) => Err(Failure(format!("{} writes failed: {error:?}", seen[0].errors))),
            None => Ok(()),
        }
    }

    /// Mounts what [`TailDevice::precondition`] made, runs `load` on it and measures.
    pub fn measure(
        &self,
        medium: &SimMedium,
        settings: &Settings,
        load: &TailLoad,
    ) -> Result<TailReport, Failure> {
        let mut sim = Sim::mount(medium.clone(), settings.clone(), Instant(0))?;
        sim.run_until_ready()?;
        let mut target = SimTarget::new(sim);
        let scaled = |count: u32| ((f64::from(count) * self.share()).round() as u32).max(1);
        let reader = Client {
            name: "readers".into(),
            threads: scaled(load.readers),
            reads: 1.0,
            ..Client::default()
        };
        let writer = Client {
            name: "writers".into(),
            threads: scaled(load.writers),
            cap_bytes_per_s: load.cap_bytes_per_s * self.share(),
            ..Client::default()
        };
        let clients = [reader.clone(), writer];
        let clients = if load.cap_bytes_per_s > 0.0 { &clients[..] } else { &clients[..1] };
        // Before the measurement, so that the counters are those of the steady state.
        let warmup = Window { warmup_ns: 0, measure_ns: load.warmup_ns };
        load::run(&mut target, clients, warmup, self.seed)?;
        target.sim_mut().run_until_answered()?;
        target.advance(target.sim().now())?;
        while target.take_done().is_some() {}
        let (counts, slow) = (target.counts(), slow_counters(&target));
        let window = Window { warmup_ns: 0, measure_ns: load.measure_ns };
        let seen = load::run(&mut target, clients, window, self.seed + 1)?;
        let after = target.counts();
        let written = (after.bytes_written - counts.bytes_written) as f64;
        let programmed = (after.bytes_programmed - counts.bytes_programmed) as f64;
        let erased = (after.erases - counts.erases) as f64;
        let writes = seen.get(1);
        Ok(TailReport {
            mean_ns: seen[0].reads.mean_ns(),
            p999_ns: seen[0].reads.quantile_ns(0.999),
            max_ns: seen[0].reads.max_ns().max(seen[0].unfinished.max_ns()),
            reads: seen[0].reads.count(),
            written_per_s: writes.map_or(0.0, |seen| seen.per_second(seen.bytes_written))
                / self.share(),
            write_max_ns: writes
                .map_or(0, |seen| seen.writes.max_ns().max(seen.unfinished.max_ns())),
            waf: if written > 0.0 { programmed / written } else { 0.0 },
            mean_bound_ns: self.bound(programmed / 4096.0, erased, load.measure_ns as f64),
            slow: (slow_counters(&target).iter().zip(&slow))
                .map(|(after, before)| (after.0, after.1 - before.1))
                .collect(),
        })
    }

    /// A read alone, and what is left of the program or erase that a random instant falls into.
    fn bound(&self, programs: f64, erases: f64, time_ns: f64) -> f64 {
        const BUS_NS: f64 = 4314.0 * 25.0;
        const READ_NS: f64 = 50e3 + BUS_NS;
        if self.suspend {
            return READ_NS;
        }
        let by_unit = 1.0 / f64::from(self.units()) / time_ns;
        let program_ns = 900e3 + BUS_NS;
        let rest = programs * program_ns * program_ns / 2.0 + erases * 3.5e6 * 3.5e6 / 2.0;
        READ_NS + rest * by_unit
    }
}

/// What the FTL counts of slow reads.
fn slow_counters(target: &SimTarget) -> Vec<(&'static str, u64)> {
    let status = target.sim().ftl().status();
    let slow = status.counters.into_iter();
    slow.filter(|(name, _)| {
        name.starts_with("reads_over") || name.starts_with("slo_") || *name == "erases_forced"
    })
    .collect()
}

impl std::fmt::Display for TailReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ms = |ns: f64| ns / MILLISECOND as f64;
        write!(
            f,
            "{:7.2} MB/s  WAF {:5.2}  reads {:8}  mean {:6.3} (bound {:6.3})  p99.9 {:6.3}  max \
             {:6.3}  write max {:7.3} ms",
            self.written_per_s / 1e6,
            self.waf,
            self.reads,
            ms(self.mean_ns),
            ms(self.mean_bound_ns),
            ms(self.p999_ns as f64),
            ms(self.max_ns as f64),
            ms(self.write_max_ns as f64),
        )?;
        for (name, count) in self.slow.iter().filter(|(_, count)| *count > 0) {
            write!(f, "  {name} {count}")?;
        }
        Ok(())
    }
}

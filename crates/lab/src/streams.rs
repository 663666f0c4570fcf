//! What streams gain: write amplification of a load under each stream policy, on the production FTL
//! and a device whose programs take no time, and how near that comes to perfect knowledge.
//!
//! The *oracle* is a stream policy that knows the future: the list of writes is drawn beforehand, so
//! the time at which each will be overwritten is known; it sorts by the logarithm of the time that is
//! left, what the host writes and what GC moves alike. No server can have it.

use crate::device::nand_of;
use crate::driver::{Failure, Sim};
use crate::figures::{WafCounters, drive_ops, format};
use crate::workload::{Action, Generator, Op, Pattern, Workload};
use flash::Hint;
use ftl::policy::stream::{Handles, MoveView, StreamPolicy, WriteView};
use ftl::{Ftl, PolicyNames, Settings, Status};
use nand::{Faults, Layout};

/// Requests in flight.
const DEPTH: u32 = 32;

/// A device and how it is written.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamRun {
    /// Logical capacity in bands.
    pub bands: u32,
    /// Blocks of a band.
    pub slots_per_band: u32,
    /// Physical above logical capacity, in percent, beside two checkpoints.
    pub op_percent: f64,
    /// How many times the capacity is written; the second half counts.
    pub overwrites: f64,
    /// Where.
    pub pattern: Pattern,
    /// The victim policy.
    pub victim: String,
    /// Seed of the writes.
    pub seed: u64,
}

impl Default for StreamRun {
    /// 4 GiB in bands of 2 MiB, 10 % over-provisioning, written 8 times over.
    fn default() -> Self {
        Self {
            bands: 2048,
            slots_per_band: 512,
            op_percent: 10.0,
            overwrites: 8.0,
            pattern: Pattern::Zipf { theta: 1.0 },
            victim: "cost-benefit".into(),
            seed: 2,
        }
    }
}

/// What was measured over the second half of the writes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StreamWaf {
    /// Slots written for the host or relocated, by slots written for the host.
    pub waf: f64,
    /// All slots programmed, checkpoints and padding included, by slots written for the host.
    pub waf_all: f64,
    /// Physical over logical capacity in slots that GC could use at the end.
    pub alpha: f64,
    /// Bands of all handles together.
    pub handles: u32,
    /// Share of the moves that found no band of their handle.
    pub fallbacks: f64,
    /// Of everything that the FTL was told and said.
    pub trace_hash: u64,
}

impl StreamRun {
    /// The same, smaller by `factor` in every size that matters: bands, and so chunks.
    pub fn scaled(&self, factor: u32) -> Self {
        Self { slots_per_band: (self.slots_per_band / factor).max(16), ..self.clone() }
    }

    /// Logical blocks.
    pub fn logical_blocks(&self) -> u32 {
        self.bands * self.slots_per_band
    }

    /// Measures `stream`: a stream policy by its name, or `oracle`.
    ///
    /// # Errors
    /// An unknown policy, or a failure of the FTL.
    pub fn measure(&self, stream: &str) -> Result<StreamWaf, Failure> {
        self.measure_and_look(stream, |_| Ok(())).map(|(waf, _)| waf)
    }

    /// The same; `put` may put policies of its own in charge before the first write. The status is
    /// that after the last write.
    ///
    /// # Errors
    /// An unknown policy, what `put` says, or a failure of the FTL.
    pub fn measure_and_look(
        &self,
        stream: &str,
        put: impl FnOnce(&mut Ftl) -> Result<(), String>,
    ) -> Result<(StreamWaf, Status), Failure> {
        let writes = self.writes()?;
        let mut sim = self.device(if stream == "oracle" { "none" } else { stream })?;
        let mut next = 0;
        let fill = u64::from(self.logical_blocks());
        if stream == "oracle" {
            sim.ftl_mut().set_stream_policy(Box::new(Oracle::new(self, &writes)));
        }
        put(sim.ftl_mut()).map_err(Failure)?;
        let mut draw = || {
            let lba = writes[next];
            next += 1;
            let action = Action::Write { fua: false, atomic: false };
            (Op { action, lba, blocks: 1 }, self.hint(lba))
        };
        let counted = (writes.len() as u64 - fill) / 2;
        drive_ops(&mut sim, DEPTH, writes.len() as u64 - counted, &mut draw)?;
        let before = WafCounters::of(&sim)?;
        drive_ops(&mut sim, DEPTH, counted, &mut draw)?;
        let after = WafCounters::of(&sim)?;
        let since = |of: fn(&WafCounters) -> u64| (of(&after) - of(&before)) as f64;
        let host = since(|counters| counters.host);
        let moved = since(|counters| counters.relocated);
        let bands = sim.ftl().bands();
        let used = bands.iter().filter(|band| matches!(band.state, "full" | "open"));
        let usable: u64 = used.map(|band| u64::from(band.slots_written)).sum();
        let status = sim.ftl().status();
        let streams = &status.streams;
        let waf = StreamWaf {
            waf: 1.0 + moved / host,
            waf_all: since(|counters| counters.programmed) / host,
            alpha: usable as f64 / f64::from(self.logical_blocks()),
            handles: streams.iter().map(|s| u32::from(s.handles_host + s.handles_moved)).sum(),
            fallbacks: since(|counters| counters.fallbacks) / moved.max(1.0),
            trace_hash: sim.trace_hash(),
        };
        Ok((waf, status))
    }

    /// Every block once, in order; then what the pattern draws.
    fn writes(&self) -> Result<Vec<u32>, Failure> {
        let blocks = self.logical_blocks();
        let workload = Workload { pattern: self.pattern, ..Workload::default() };
        let mut generator = Generator::new(workload, blocks, self.seed).map_err(Failure)?;
        let count = (f64::from(blocks) * self.overwrites) as usize;
        Ok((0..blocks).chain((0..count).map(|_| generator.draw().lba)).collect())
    }

    /// What a host says that knows which part of its data is hot.
    fn hint(&self, lba: u32) -> Hint {
        match self.pattern {
            Pattern::HotCold { fraction, .. } => {
                let hot = f64::from(self.logical_blocks()) * fraction;
                Hint { handle: u8::from(f64::from(lba) >= hot.floor()), ..Hint::default() }
            }
            _ => Hint::default(),
        }
    }

    /// The device, formatted, with a stream policy by its name.
    ///
    /// # Errors
    /// An unknown policy, or a failure of the FTL.
    pub fn device(&self, stream: &str) -> Result<Sim, Failure> {
        let policies = PolicyNames {
            victim: self.victim.clone(),
            wear: "none".into(),
            stream: stream.into(),
            ..PolicyNames::default()
        };
        let settings = Settings { policies, ..Settings::default() };
        let physical = (f64::from(self.bands) * (1.0 + self.op_percent / 100.0)).ceil() as u32;
        // A checkpoint is the map, 4 bytes a block, and some.
        let checkpoint = self.logical_blocks().div_ceil(1024).div_ceil(self.slots_per_band) + 1;
        let blocks_per_plane = physical + 2 * checkpoint;
        let layout = Layout { channels: 1, dies_per_channel: 1, blocks_per_plane };
        let medium = nand_of("instant", &layout, Faults::default(), |profile| {
            profile.pages_per_block = self.slots_per_band;
        });
        format(medium.map_err(Failure)?, self.logical_blocks(), &settings)
    }
}

/// See the head of this file. Time is the number of the write.
struct Oracle {
    /// When what each write puts down is overwritten; `NEVER` if it is not.
    deaths: Vec<u32>,
    now: u32,
    /// The same of what each logical block holds now.
    death_of: Vec<u32>,
    /// The time that is left of the first class.
    unit: u32,
}

const NEVER: u32 = u32::MAX;
/// Classes: what is left doubles from one to the next.
const CLASSES: u8 = 12;

impl Oracle {
    fn new(run: &StreamRun, writes: &[u32]) -> Self {
        let mut next = vec![NEVER; run.logical_blocks() as usize];
        let mut deaths = vec![NEVER; writes.len()];
        for (at, &lba) in writes.iter().enumerate().rev() {
            deaths[at] = std::mem::replace(&mut next[lba as usize], at as u32);
        }
        let death_of = vec![NEVER; next.len()];
        // The last class but one ends beyond the capacity.
        let unit = (run.logical_blocks() >> (CLASSES - 3)).max(1);
        Self { deaths, now: 0, death_of, unit }
    }

    fn class(&self, death: u32, classes: u8) -> u8 {
        let left = death.saturating_sub(self.now);
        let class = if death == NEVER { 31 } else { (left / self.unit + 1).ilog2() };
        (class as u8).min(classes - 1)
    }
}

impl StreamPolicy for Oracle {
    fn name(&self) -> &'static str {
        "oracle"
    }

    fn handles(&self) -> Handles {
        Handles { host: CLASSES, moved: CLASSES }
    }

    fn place_write(&mut self, write: &WriteView) -> u8 {
        let death = self.deaths[self.now as usize];
        self.now += 1;
        self.death_of[write.lba as usize] = death;
        self.class(death, write.handles.host)
    }

    fn place_move(&mut self, moved: &MoveView) -> u8 {
        self.class(self.death_of[moved.lba as usize], moved.handles.moved)
    }
}

//! What streams gain: write amplification of a load under each stream policy, on the production FTL
//! and a device whose programs take no time, and how near that comes to perfect knowledge.
//!
//! A load is a list of [`Change`]s: drawn from a pattern ([`StreamRun`]) or recorded
//! ([`crate::advise`]). The volume is written whole first; then the list is gone through, again and
//! again if it is short, in rounds that say when the device no longer changes.
//!
//! The *oracle* is a stream policy that knows the future: the list is known beforehand, so
//! the time at which each block will be overwritten or trimmed is, too; it sorts by the logarithm of
//! the time that is left, what the host writes and what GC moves alike. No server can have it.

use crate::device::nand_of;
use crate::driver::{Failure, REQUEST_BLOCKS_MAX, Sim};
use crate::figures::{WafCounters, drive_ops, format};
use crate::replay::precondition::agree;
use crate::workload::{Action, Generator, Op, Pattern, Workload};
use flash::Hint;
use ftl::policy::stream::{HANDLES_MAX, Handles, MoveView, StreamPolicy, WriteView};
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

/// What was measured over the last round, or over as many changes if it ended between two.
#[derive(Clone, Debug, PartialEq)]
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
    /// Bytes of the stream policy's tables.
    pub memory_bytes: u64,
    /// `waf` of each whole round, and of what counts if that ended between two.
    pub rounds: Vec<f64>,
    /// It no longer changed in write amplification and free bands, see [`Rounds`].
    pub steady: bool,
    /// Of everything that the FTL was told and said.
    pub trace_hash: u64,
}

/// What a [`Change`] does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ChangeKind {
    /// Writes the blocks.
    Write,
    /// Trims them.
    Trim,
}

/// A change of a volume.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Change {
    /// First logical block.
    pub lba: u32,
    /// Logical blocks, from 1 to [`REQUEST_BLOCKS_MAX`].
    pub blocks: u16,
    /// What it does.
    pub kind: ChangeKind,
    /// What the host says: [`Hint::handle`].
    pub handle: u8,
}

const _: () = assert!(REQUEST_BLOCKS_MAX <= u16::MAX as u32);

/// A load: what is changed once every block was written.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Changes {
    /// Logical blocks of the volume.
    pub logical_blocks: u32,
    /// What the host says of each logical block when the volume is filled.
    pub fill_handles: Vec<u8>,
    /// In order; at least one write.
    pub list: Vec<Change>,
}

impl Changes {
    /// Blocks that the list writes.
    pub fn blocks_written(&self) -> u64 {
        let writes = self.list.iter().filter(|change| change.kind == ChangeKind::Write);
        writes.map(|change| u64::from(change.blocks)).sum()
    }
}

/// How long a load runs. The device has come to a steady state when a part of a round costs what the same
/// changes did a round before; what counts is then the round that ends with this part. The end of
/// the warm-up is as the last part of a round, as far as it goes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Rounds {
    /// Changes before the first round,
    pub warm: u64,
    /// and of a round.
    pub each: u64,
    /// Parts of a round; at least 1.
    pub parts: u32,
    /// At least so many rounds,
    pub least: u32,
    /// and at most so many until it is steady.
    pub most: u32,
}

/// A device that takes no time.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamDevice {
    /// Blocks of a band.
    pub slots_per_band: u32,
    /// Physical above logical capacity, in percent, beside two checkpoints.
    pub op_percent: f64,
    /// The victim policy.
    pub victim: String,
    /// Slots appended between two checkpoints; 0 for the FTL's own choice.
    pub checkpoint_slots: u64,
    /// Seed of the policies that draw.
    pub seed: u64,
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
        let changes = self.changes()?;
        let half = changes.list.len() as u64 / 2;
        let rounds = Rounds { warm: half, each: half, parts: 1, least: 1, most: 1 };
        let mut sim = self.stream_device().open(&changes, stream)?;
        put(sim.ftl_mut()).map_err(Failure)?;
        let waf = run(&mut sim, &changes, rounds, &mut |_| {})?;
        Ok((waf, sim.ftl().status()))
    }

    /// The device, formatted, with a stream policy by its name.
    ///
    /// # Errors
    /// An unknown policy, or a failure of the FTL.
    pub fn device(&self, stream: &str) -> Result<Sim, Failure> {
        self.stream_device().format(self.logical_blocks(), stream)
    }

    fn stream_device(&self) -> StreamDevice {
        StreamDevice {
            slots_per_band: self.slots_per_band,
            op_percent: self.op_percent,
            victim: self.victim.clone(),
            checkpoint_slots: 0,
            seed: 1,
        }
    }

    /// What the pattern draws.
    fn changes(&self) -> Result<Changes, Failure> {
        let logical_blocks = self.logical_blocks();
        let workload = Workload { pattern: self.pattern, ..Workload::default() };
        let mut generator = Generator::new(workload, logical_blocks, self.seed).map_err(Failure)?;
        let count = (f64::from(logical_blocks) * self.overwrites) as usize;
        let change =
            |lba| Change { lba, blocks: 1, kind: ChangeKind::Write, handle: self.hint(lba) };
        let list = (0..count).map(|_| change(generator.draw().lba)).collect();
        let fill_handles = (0..logical_blocks).map(|lba| self.hint(lba)).collect();
        Ok(Changes { logical_blocks, fill_handles, list })
    }

    /// What a host says that knows which part of its data is hot.
    fn hint(&self, lba: u32) -> u8 {
        match self.pattern {
            Pattern::HotCold { fraction, .. } => {
                let hot = f64::from(self.logical_blocks()) * fraction;
                u8::from(f64::from(lba) >= hot.floor())
            }
            _ => 0,
        }
    }
}

impl StreamDevice {
    /// Measures `stream`, a stream policy by its name or `oracle`, maybe with a number of classes
    /// (`oracle:6`), under `changes`. `progress` is
    /// told now and then how many blocks were written since it was told last.
    ///
    /// # Errors
    /// An unknown policy, or a failure of the FTL.
    pub fn measure(
        &self,
        changes: &Changes,
        stream: &str,
        rounds: Rounds,
        progress: &mut dyn FnMut(u64),
    ) -> Result<StreamWaf, Failure> {
        let mut sim = self.open(changes, stream)?;
        run(&mut sim, changes, rounds, progress)
    }

    /// The device before the first write.
    fn open(&self, changes: &Changes, stream: &str) -> Result<Sim, Failure> {
        let classes = oracle_classes(stream)?;
        let name = if classes.is_some() { "none" } else { stream };
        let mut sim = self.format(changes.logical_blocks, name)?;
        if let Some(classes) = classes {
            sim.ftl_mut().set_stream_policy(Box::new(Oracle::new(changes, classes)));
        }
        Ok(sim)
    }

    fn format(&self, logical_blocks: u32, stream: &str) -> Result<Sim, Failure> {
        let policies = PolicyNames {
            victim: self.victim.clone(),
            wear: "none".into(),
            stream: stream.into(),
            ..PolicyNames::default()
        };
        let (checkpoint_slots, seed) = (self.checkpoint_slots, self.seed);
        let settings = Settings { policies, checkpoint_slots, seed, ..Settings::default() };
        let bands = f64::from(logical_blocks) / f64::from(self.slots_per_band);
        let physical = (bands * (1.0 + self.op_percent / 100.0)).ceil() as u32;
        // A checkpoint is the map, 4 bytes a block, and some.
        let checkpoint = logical_blocks.div_ceil(1024).div_ceil(self.slots_per_band) + 1;
        let blocks_per_plane = physical + 2 * checkpoint;
        let layout = Layout { channels: 1, dies_per_channel: 1, blocks_per_plane };
        let medium = nand_of("instant", &layout, Faults::default(), |profile| {
            profile.pages_per_block = self.slots_per_band;
        });
        format(medium.map_err(Failure)?, logical_blocks, &settings)
    }
}

/// Fills the device and drives `changes` through it.
fn run(
    sim: &mut Sim,
    changes: &Changes,
    rounds: Rounds,
    progress: &mut dyn FnMut(u64),
) -> Result<StreamWaf, Failure> {
    let mut load = Load { changes, filled: 0, next: 0, written: 0 };
    load.drive(sim, u64::from(changes.logical_blocks), progress)?;
    let parts = rounds.parts as usize;
    let length = |part: usize| {
        let begin = |part: usize| rounds.each * part as u64 / u64::from(rounds.parts);
        begin(part + 1) - begin(part)
    };
    let last = length(parts - 1).min(rounds.warm);
    load.drive(sim, rounds.warm - last, progress)?;
    let warm = load.part(sim, last, progress)?;
    let mut seen: Vec<Part> = Vec::new();
    loop {
        let at = seen.len();
        let part = load.part(sim, length(at % parts), progress)?;
        let before = match at.checked_sub(parts) {
            Some(before) => Some(&seen[before]),
            None => (at + 1 == parts).then_some(&warm),
        };
        let steady = before.is_some_and(|before| before.agrees(&part));
        seen.push(part);
        let least = rounds.least as usize * parts;
        if seen.len() >= rounds.most as usize * parts || steady && seen.len() >= least {
            return Ok(result(sim, changes, &seen, parts, steady));
        }
    }
}

/// What follows from all parts that were gone through.
fn result(sim: &Sim, changes: &Changes, seen: &[Part], parts: usize, steady: bool) -> StreamWaf {
    let counted = Part::sum(&seen[seen.len() - parts..]);
    let mut rounds: Vec<f64> =
        seen.chunks_exact(parts).map(|round| Part::sum(round).waf()).collect();
    if !seen.len().is_multiple_of(parts) {
        rounds.push(counted.waf());
    }
    let used = sim.ftl().bands().into_iter();
    let used = used.filter(|band| matches!(band.state, "full" | "open"));
    let usable: u64 = used.map(|band| u64::from(band.slots_written)).sum();
    let streams = sim.ftl().status().streams;
    let handles = streams.iter().map(|s| u32::from(s.handles_host + s.handles_moved)).sum();
    StreamWaf {
        waf: counted.waf(),
        waf_all: counted.programmed as f64 / counted.host(),
        fallbacks: counted.fallbacks as f64 / (counted.relocated as f64).max(1.0),
        alpha: usable as f64 / f64::from(changes.logical_blocks),
        handles,
        memory_bytes: streams.iter().map(|s| s.memory_bytes).sum(),
        rounds,
        steady,
        trace_hash: sim.trace_hash(),
    }
}

/// What a part of a round cost, in slots, and the bands that were free at its end.
#[derive(Clone, Copy, Debug, Default)]
struct Part {
    written: u64,
    relocated: u64,
    programmed: u64,
    fallbacks: u64,
    bands_free: u64,
}

impl Part {
    fn sum(parts: &[Self]) -> Self {
        parts.iter().fold(Self::default(), |sum, part| Self {
            written: sum.written + part.written,
            relocated: sum.relocated + part.relocated,
            programmed: sum.programmed + part.programmed,
            fallbacks: sum.fallbacks + part.fallbacks,
            bands_free: part.bands_free,
        })
    }

    fn host(&self) -> f64 {
        self.written.max(1) as f64
    }

    fn waf(&self) -> f64 {
        1.0 + self.relocated as f64 / self.host()
    }

    fn agrees(&self, later: &Self) -> bool {
        agree((self.waf(), self.bands_free), (later.waf(), later.bands_free))
    }
}

/// Changes between two tellings of progress.
const STEP: u64 = 1 << 16;

/// Every block once, in order; then the changes, again and again.
struct Load<'a> {
    changes: &'a Changes,
    filled: u32,
    next: usize,
    written: u64,
}

impl Load<'_> {
    /// So many changes, and what they cost.
    fn part(
        &mut self,
        sim: &mut Sim,
        count: u64,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Part, Failure> {
        let before = WafCounters::of(sim)?;
        self.drive(sim, count, progress)?;
        let after = WafCounters::of(sim)?;
        Ok(Part {
            written: after.host - before.host,
            relocated: after.relocated - before.relocated,
            programmed: after.programmed - before.programmed,
            fallbacks: after.fallbacks - before.fallbacks,
            bands_free: sim.ftl().counter("bands_free"),
        })
    }

    fn drive(
        &mut self,
        sim: &mut Sim,
        mut count: u64,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), Failure> {
        while count > 0 {
            let step = count.min(STEP);
            drive_ops(sim, DEPTH, step, || self.draw())?;
            progress(std::mem::take(&mut self.written));
            count -= step;
        }
        Ok(())
    }

    fn draw(&mut self) -> (Op, Hint) {
        let change = if self.filled < self.changes.logical_blocks {
            self.filled += 1;
            let (lba, kind) = (self.filled - 1, ChangeKind::Write);
            let handle = self.changes.fill_handles[lba as usize];
            Change { lba, blocks: 1, kind, handle }
        } else {
            let change = self.changes.list[self.next];
            self.next = (self.next + 1) % self.changes.list.len();
            change
        };
        let blocks = u32::from(change.blocks);
        let action = match change.kind {
            ChangeKind::Write => Action::Write { fua: false, atomic: false },
            ChangeKind::Trim => Action::Trim { fua: false },
        };
        if change.kind == ChangeKind::Write {
            self.written += u64::from(blocks);
        }
        let hint = Hint { handle: change.handle, ..Hint::default() };
        (Op { action, lba: change.lba, blocks }, hint)
    }
}

/// See the head of this file. Time is the number of the block written, counted from the first one
/// of the volume.
struct Oracle {
    /// Of each block that the list writes, in order: which of them is the next of the same logical
    /// block, round the list's end.
    next: Vec<u32>,
    /// Likewise: how long the data lives, in blocks written.
    lives: Vec<u32>,
    /// Of each logical block: which of them comes next.
    cursor: Vec<u32>,
    /// What each logical block holds now dies then; `NEVER` if it does not.
    death_of: Vec<u64>,
    now: u64,
    /// The time that is left of the first class.
    unit: u64,
    /// For the host and for GC.
    classes: u8,
}

const NEVER: u64 = u64::MAX;
/// No block of the list.
const NONE: u32 = u32::MAX;
/// Classes, unless said otherwise: what is left doubles from one to the next.
const CLASSES: u8 = 12;

/// The classes of `oracle` and `oracle:6`; `None` if it is another stream policy.
fn oracle_classes(stream: &str) -> Result<Option<u8>, Failure> {
    let Some(rest) = stream.strip_prefix("oracle") else { return Ok(None) };
    let Some(classes) = rest.strip_prefix(':') else { return Ok(Some(CLASSES)) };
    let number = classes.parse().ok().filter(|classes| (4..=HANDLES_MAX).contains(classes));
    let wrong = format!("stream {stream:?}: the oracle has 4 to {HANDLES_MAX} classes");
    number.map(Some).ok_or(Failure(wrong))
}

impl Oracle {
    fn new(changes: &Changes, classes: u8) -> Self {
        let logical = changes.logical_blocks as usize;
        let (mut first, mut first_death) = (vec![NONE; logical], vec![NEVER; logical]);
        let mut at = 0u32;
        for change in &changes.list {
            for lba in range(change) {
                first_death[lba] = first_death[lba].min(u64::from(at));
                if change.kind == ChangeKind::Write {
                    if first[lba] == NONE {
                        first[lba] = at;
                    }
                    at += 1;
                }
            }
        }
        let (mut next, mut lives) = (vec![NONE; at as usize], vec![0; at as usize]);
        let length = u64::from(at);
        let (mut later, mut death) = (first.clone(), first_death.clone());
        death.iter_mut().filter(|at| **at != NEVER).for_each(|at| *at += length);
        for change in changes.list.iter().rev() {
            for lba in range(change).rev() {
                if change.kind == ChangeKind::Write {
                    at -= 1;
                    next[at as usize] = std::mem::replace(&mut later[lba], at);
                    lives[at as usize] = (death[lba] - u64::from(at)) as u32;
                }
                death[lba] = u64::from(at);
            }
        }
        let fill = u64::from(changes.logical_blocks);
        first_death.iter_mut().filter(|at| **at != NEVER).for_each(|at| *at += fill);
        // The last class but one ends beyond the capacity.
        let unit = (fill >> (classes - 3)).max(1);
        Self { next, lives, cursor: first, death_of: first_death, now: 0, unit, classes }
    }

    fn class(&self, death: u64, classes: u8) -> u8 {
        let left = death.saturating_sub(self.now);
        let class = if death == NEVER { 63 } else { (left / self.unit + 1).ilog2() };
        (class as u8).min(classes - 1)
    }
}

fn range(change: &Change) -> std::ops::Range<usize> {
    change.lba as usize..change.lba as usize + usize::from(change.blocks)
}

impl StreamPolicy for Oracle {
    fn name(&self) -> &'static str {
        "oracle"
    }

    fn handles(&self) -> Handles {
        Handles { host: self.classes, moved: self.classes }
    }

    fn place_write(&mut self, write: &WriteView) -> u8 {
        let lba = write.lba as usize;
        // While the volume is filled, what each block will hold is dead when the list says so.
        if self.now >= self.death_of.len() as u64 {
            let at = self.cursor[lba] as usize;
            self.cursor[lba] = self.next[at];
            self.death_of[lba] = self.now + u64::from(self.lives[at]);
        }
        self.now += 1;
        self.class(self.death_of[lba], write.handles.host)
    }

    fn place_move(&mut self, moved: &MoveView) -> u8 {
        self.class(self.death_of[moved.lba as usize], moved.handles.moved)
    }
}

#[cfg(test)]
mod tests {
    use super::{Change, ChangeKind, Changes, NEVER, Oracle};

    fn change(lba: u32, blocks: u16, kind: ChangeKind) -> Change {
        Change { lba, blocks, kind, handle: 0 }
    }

    #[test]
    fn the_oracle_knows_when_data_dies_by_overwrite_or_trim_also_beyond_the_end_of_the_list() {
        use ChangeKind::{Trim, Write};
        // Writes 0: block 1; 1 and 2: blocks 1, 2; then block 2 is trimmed; 3: block 0.
        let list =
            vec![change(1, 1, Write), change(1, 2, Write), change(2, 1, Trim), change(0, 1, Write)];
        let oracle =
            Oracle::new(&Changes { logical_blocks: 4, fill_handles: vec![0; 4], list }, 12);
        assert_eq!(oracle.next, [1, 0, 2, 3], "round the end");
        assert_eq!(oracle.lives, [1, 3, 1, 4]);
        assert_eq!(oracle.cursor[..3], [3, 0, 2]);
        assert_eq!(oracle.death_of, [4 + 3, 4, 4 + 2, NEVER], "of what fills the volume");
    }
}

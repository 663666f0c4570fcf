//! What a shard runs above its medium: the FTL, or raw units. Both are driven as [`Core`] says; this
//! picks one by the device's mode, and tells what the front ends want to know of either.

use super::message::UnitBlocks;
use flash::{BLOCK_BYTES, BlockId, Geometry, Health, Instant, Lba, SlotWrite, Tag};
use ftl::policy::stream::Shape;
use ftl::policy::{Chosen, UnitWeights};
use ftl::raw::{LaneStatus, Lanes, RawFormat, RawSettings, RawUnits};
use ftl::{Core, FormatOptions, Ftl, Input, Output, Settings, Status, Switch, Waits};

/// The FTL or raw units.
pub enum AnyCore {
    /// Logical blocks.
    Block(Box<Ftl>),
    /// Lanes of raw blocks.
    Raw(Box<RawUnits>),
}

/// What a core is mounted with.
#[derive(Clone, Debug)]
pub enum CoreSettings {
    /// Of the FTL.
    Block(Box<Settings>),
    /// Of raw units.
    Raw(RawSettings),
}

/// How a medium is formatted.
#[derive(Clone, Debug)]
pub enum CoreFormat {
    /// For the FTL.
    Block(FormatOptions),
    /// As raw units.
    Raw(RawFormat),
}

/// State of a core.
#[derive(Clone, Debug)]
pub enum CoreStatus {
    /// Of the FTL.
    Block(Box<Status>),
    /// Of raw units.
    Raw(RawStatus),
}

/// State of raw units.
#[derive(Clone, Debug)]
pub struct RawStatus {
    /// "running", "read-only" and so on.
    pub phase: &'static str,
    /// The shape of the address space.
    pub shape: RawShape,
    /// Counters since the mount.
    pub counters: Vec<(&'static str, u64)>,
    /// Each lane.
    pub units: Vec<LaneStatus>,
}

/// The shape of raw units.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RawShape {
    /// Lanes and what is in them.
    pub lanes: Lanes,
    /// Bytes of a program page.
    pub page_bytes: u32,
    /// Reads start and end at multiples of this many bytes.
    pub granule_bytes: u32,
}

impl RawShape {
    /// Bytes of a raw block.
    pub fn raw_block_bytes(&self) -> u64 {
        u64::from(self.lanes.slots) * BLOCK_BYTES as u64
    }
}

impl CoreSettings {
    /// The same, with or without leave to write.
    pub fn with_read_only(mut self, on: bool) -> Self {
        match &mut self {
            Self::Block(settings) => settings.read_only = on,
            Self::Raw(settings) => settings.read_only = on,
        }
        self
    }

    /// The same for a device that is to have so many logical blocks in each shard, should it be about to grow.
    pub fn with_blocks_min(mut self, logical_blocks: u32) -> Self {
        if let Self::Block(settings) = &mut self {
            settings.logical_blocks_min = logical_blocks;
        }
        self
    }

    /// The logical blocks that the device is to have at least.
    pub fn blocks_min(&self) -> u32 {
        match self {
            Self::Block(settings) => settings.logical_blocks_min,
            Self::Raw(_) => 0,
        }
    }

    /// Those of one of so many shards: what is said for the device is shared among them.
    pub fn of_shard(mut self, shards: usize) -> Self {
        if let Self::Block(settings) = &mut self {
            settings.map_bytes = settings.map_bytes.div_ceil(shards as u64);
        }
        self
    }

    /// Reads start and end at multiples of this many blocks.
    pub fn granule(&self) -> u32 {
        match self {
            Self::Block(_) => 1,
            Self::Raw(settings) => settings.read_granule,
        }
    }

    /// Blocks that the core relocates at a time.
    pub fn relocation_blocks(&self) -> u32 {
        match self {
            Self::Block(settings) => settings.relocation_blocks,
            Self::Raw(_) => 0,
        }
    }
}

/// Why no part of a map may leave that takes `whole` bytes: it works in `least` bytes, or more, where one may.
fn none_may_leave(least: u64, whole: u64) -> String {
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let (least_mib, whole_mib) = (mib(least), mib(whole));
    if least_mib >= whole_mib {
        return format!(
            "mapping = cached: the whole map is in DRAM, and stays there: this device's takes {whole_mib} MiB, and to \
             keep a part of it takes {least_mib} MiB, so that nothing is saved, whatever [ftl] map_memory says"
        );
    }
    format!(
        "mapping = cached: the whole map is in DRAM, and no part of it may leave; say [ftl] map_memory in the config, \
         for this device from \"{least_mib}MiB\" to less than \"{whole_mib}MiB\", and start again"
    )
}

impl AnyCore {
    /// Formats the medium, or mounts what is on it.
    ///
    /// # Errors
    /// What settings or format ask for that cannot be.
    pub fn start(
        geometry: Geometry,
        health: &Health,
        format: Option<CoreFormat>,
        settings: CoreSettings,
    ) -> Result<Self, String> {
        Ok(match (settings, format) {
            (CoreSettings::Block(settings), None) => {
                Self::Block(Box::new(Ftl::mount(geometry, health, *settings)?))
            }
            (CoreSettings::Block(settings), Some(CoreFormat::Block(format))) => {
                Self::Block(Box::new(Ftl::format(geometry, health, format, *settings)?))
            }
            (CoreSettings::Raw(settings), None) => {
                Self::Raw(Box::new(RawUnits::mount(geometry, health, settings)?))
            }
            (CoreSettings::Raw(settings), Some(CoreFormat::Raw(format))) => {
                Self::Raw(Box::new(RawUnits::format(geometry, health, format, settings)?))
            }
            _ => unreachable!("a device is formatted in the mode it is served in"),
        })
    }

    /// How much places are wanted, where the core chooses units for what it writes.
    pub fn set_unit_weights(&mut self, weights: &UnitWeights) {
        if let Self::Block(ftl) = self {
            ftl.set_unit_weights(weights);
        }
    }

    /// Empties a block that the medium cannot mend, where the core may move what it holds.
    pub fn ask_refresh(&mut self, block: BlockId) {
        if let Self::Block(ftl) = self {
            ftl.ask_refresh(block);
        }
    }

    /// Looks at what is in flight, and tells `tell` for each of these requests what it waits for.
    pub fn look(&self, ids: impl Iterator<Item = u32>, mut tell: impl FnMut(u32, Waits)) {
        match self {
            Self::Block(ftl) => {
                let look = ftl.look();
                ids.for_each(|id| tell(id, look.waits_for(id.into())));
            }
            Self::Raw(raw) => ids.for_each(|id| tell(id, raw.waits_for(id.into()))),
        }
    }

    /// What the request of this id waits for, in words.
    pub fn waits_for(&self, id: u32) -> String {
        let mut told = String::new();
        self.look(std::iter::once(id), |_, waits| {
            told = match waits {
                Waits::Other => format!("{waits}: {}", self.explain()),
                _ => waits.to_string(),
            };
        });
        told
    }

    /// Nothing is written any more; only reads are served.
    pub fn has_failed(&self) -> bool {
        match self {
            Self::Block(ftl) => ftl.has_failed(),
            Self::Raw(raw) => raw.has_failed(),
        }
    }

    /// When there was last no room below.
    pub fn room_refused_at(&self) -> Option<Instant> {
        match self {
            Self::Block(ftl) => ftl.room_refused_at(),
            Self::Raw(raw) => raw.room_refused_at(),
        }
    }

    /// Slots that were programmed so far.
    pub fn slots_programmed(&self) -> u64 {
        match self {
            Self::Block(ftl) => ftl.slots_programmed(),
            Self::Raw(raw) => raw.slots_programmed(),
        }
    }

    /// The host may only read.
    pub fn is_read_only(&self) -> bool {
        match self {
            Self::Block(ftl) => ftl.is_read_only(),
            Self::Raw(raw) => raw.is_read_only(),
        }
    }

    /// What it does and waits for, in words.
    pub fn explain(&self) -> String {
        match self {
            Self::Block(ftl) => ftl.explain(),
            Self::Raw(raw) => raw.explain(),
        }
    }

    /// What the medium failed to do, in words for who owns it.
    pub fn say_failures(&self) -> String {
        let counters = match self {
            Self::Block(ftl) => ftl.status().counters,
            Self::Raw(raw) => raw.counter_list(),
        };
        const OF_FAILURES: [&str; 4] =
            ["programs_failed", "erases_failed", "units_gone", "medium_failures"];
        let failed = counters.into_iter().filter(|(name, n)| OF_FAILURES.contains(name) && *n > 0);
        let failed: Vec<String> = failed.map(|(name, n)| format!("{name} {n}")).collect();
        match failed.is_empty() {
            true => "no room, or no answer; at level debug the log tells all of its state".into(),
            false => format!("the medium failed ({})", failed.join(", ")),
        }
    }

    /// The FTL, unless these are raw units.
    pub fn ftl(&self) -> Option<&Ftl> {
        match self {
            Self::Block(ftl) => Some(ftl),
            Self::Raw(_) => None,
        }
    }

    /// The numbers of its snapshots and clones.
    pub fn snapshots(&self) -> Vec<u32> {
        let all = self.ftl().map(Ftl::snapshots).unwrap_or_default();
        let clones = self.ftl().map(Ftl::clones).unwrap_or_default();
        let clones = clones.iter().map(|(number, _)| *number);
        all.iter().map(|snapshot| snapshot.number).chain(clones).collect()
    }

    /// The raw units, if these are.
    pub fn raw(&self) -> Option<&RawUnits> {
        match self {
            Self::Block(_) => None,
            Self::Raw(raw) => Some(raw),
        }
    }

    /// Tags the next write of the raw block at `lba`; without raw units it does nothing.
    pub fn tag(&mut self, lba: Lba, tag: u128) {
        if let Self::Raw(raw) = self {
            raw.tag(lba, tag);
        }
    }

    /// Takes one event.
    pub fn handle(&mut self, now: Instant, input: Input<'_>) {
        match self {
            Self::Block(ftl) => ftl.handle(now, input),
            Self::Raw(raw) => raw.handle(now, input),
        }
    }

    /// What to do next.
    pub fn poll(&mut self) -> Option<Output> {
        match self {
            Self::Block(ftl) => ftl.poll(),
            Self::Raw(raw) => raw.poll(),
        }
    }

    /// When to give [`Input::Deadline`].
    pub fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Block(ftl) => ftl.deadline(),
            Self::Raw(raw) => raw.deadline(),
        }
    }

    /// The slots of a program command.
    pub fn program(&self, tag: Tag) -> &[SlotWrite] {
        match self {
            Self::Block(ftl) => ftl.program(tag),
            Self::Raw(raw) => raw.program(tag),
        }
    }

    /// Whether `lba` holds data, and how many of at most `blocks` blocks from there are alike.
    pub fn mapped_run(&self, lba: Lba, blocks: u32) -> (bool, u32) {
        match self {
            Self::Block(ftl) => ftl.mapped_run(lba, blocks),
            Self::Raw(raw) => written_run(raw, lba, blocks),
        }
    }

    /// The raw blocks of a unit that hold something; `None` if there is no such unit.
    pub fn raw_blocks(&self, unit: u32) -> Option<UnitBlocks> {
        let raw = self.raw()?;
        let Lanes { lanes, raw_blocks, slots, .. } = raw.lanes();
        if unit >= lanes {
            return None;
        }
        let first = unit * raw_blocks;
        let state = |index: u32| raw.raw_block(Lba((first + index) * slots));
        let blocks = (0..raw_blocks).filter_map(|index| Some((index, state(index)?)));
        Some(blocks.filter(|(_, block)| block.state != "erased").collect())
    }

    /// What the policies of `decision` are made for, if the one called `name` can be put in charge.
    ///
    /// # Errors
    /// An unknown decision, none to make, or why not.
    pub fn check_switch(
        &self,
        decision: &str,
        name: &str,
        (geometry, shards): (&Geometry, usize),
    ) -> Result<Vec<Shape>, String> {
        let of_map = decision.split('/').next() == Some("mapping");
        match self {
            // It is only refused where the whole map is in DRAM.
            Self::Block(ftl) if of_map && name == "cached" => {
                let shards = shards as u64;
                let piece_blocks = Settings::default().map_piece_blocks;
                let least = ftl::map_bytes_min(geometry, piece_blocks) * shards;
                let counters = ftl.status().counters;
                let blocks = counters.iter().find(|(name, _)| *name == "logical_blocks");
                let whole = blocks.map_or(0, |(_, blocks)| blocks * 4 * shards);
                ftl.check_switch(decision, name).map_err(|_| none_may_leave(least, whole))
            }
            Self::Block(ftl) => ftl.check_switch(decision, name),
            Self::Raw(_) => Err(RAW_DECIDES.into()),
        }
    }

    /// Switches a policy; returns those that were in charge.
    ///
    /// # Errors
    /// They do not fit the decision, or there is none to make.
    pub fn switch_policy(&mut self, switch: Switch<'_>) -> Result<Vec<Chosen>, String> {
        match self {
            Self::Block(ftl) => ftl.switch_policy(switch),
            Self::Raw(_) => Err(RAW_DECIDES.into()),
        }
    }

    /// Blocks that went from the fast tier to the capacity tier so far.
    pub fn slots_destaged(&self) -> u64 {
        self.ftl().map_or(0, Ftl::slots_destaged)
    }

    /// Policies that broke and were replaced so far.
    pub fn policies_broken(&self) -> u64 {
        self.ftl().map_or(0, Ftl::policies_broken)
    }

    /// The state, with that of each unit.
    pub fn status(&self, geometry: &Geometry, granule: u32) -> CoreStatus {
        match self {
            Self::Block(ftl) => CoreStatus::Block(Box::new(ftl.status())),
            Self::Raw(raw) => CoreStatus::Raw(RawStatus {
                phase: raw.phase(),
                shape: raw_shape(raw, geometry, granule),
                counters: raw.counter_list(),
                units: (0..raw.lanes().lanes).map(|lane| raw.lane_status(lane)).collect(),
            }),
        }
    }
}

const RAW_DECIDES: &str = "raw units decide nothing that a policy could: their host does, by what it \
                           writes and erases where";

/// The shape of raw units whose reads have a granule of so many blocks.
pub fn raw_shape(raw: &RawUnits, geometry: &Geometry, granule: u32) -> RawShape {
    let block = BLOCK_BYTES as u32;
    RawShape {
        lanes: raw.lanes(),
        page_bytes: geometry.slots_per_page * block,
        granule_bytes: granule * block,
    }
}

/// See [`AnyCore::mapped_run`]: raw blocks are written from their start.
fn written_run(raw: &RawUnits, lba: Lba, blocks: u32) -> (bool, u32) {
    let slots = raw.lanes().slots;
    let run_at = |at: u32| {
        let written = raw.raw_block(Lba(at)).map_or(0, |block| block.blocks_written);
        let inside = at % slots;
        match inside < written {
            true => (true, written - inside),
            false => (false, slots - inside),
        }
    };
    let (written, mut run) = run_at(lba.0);
    while run < blocks {
        let (next, more) = run_at(lba.0 + run);
        if next != written {
            break;
        }
        run += more;
    }
    (written, run.min(blocks))
}

impl CoreStatus {
    /// Counters by name.
    pub fn counters(&self) -> &[(&'static str, u64)] {
        match self {
            Self::Block(status) => &status.counters,
            Self::Raw(status) => &status.counters,
        }
    }

    /// One of [`Self::counters`]; 0 if there is none of that name.
    pub fn counter(&self, name: &str) -> u64 {
        self.counters().iter().find(|(known, _)| *known == name).map_or(0, |(_, value)| *value)
    }

    /// Bytes that were read from and programmed on each unit, then those written by each handle of each stream
    /// policy, the host's first: what rates are told of. Nothing of raw units.
    pub fn moved_bytes(&self) -> Vec<u64> {
        let Self::Block(status) = self else { return Vec::new() };
        let units = status.units.iter().flat_map(|unit| [unit.slots_read, unit.slots_programmed]);
        let streams = status.streams.iter();
        let handles =
            streams.flat_map(|stream| stream.slots_host.iter().chain(&stream.slots_moved));
        units.chain(handles.copied()).map(|slots| slots * BLOCK_BYTES as u64).collect()
    }

    /// How many units there are; of raw units, lanes.
    pub fn units(&self) -> usize {
        match self {
            Self::Block(status) => status.units.len(),
            Self::Raw(status) => status.units.len(),
        }
    }

    /// "running", "read-only" and so on.
    pub fn phase(&self) -> &'static str {
        match self {
            Self::Block(status) => status.phase,
            Self::Raw(status) => status.phase,
        }
    }

    /// Of raw units, if these are.
    pub fn raw(&self) -> Option<&RawStatus> {
        match self {
            Self::Block(_) => None,
            Self::Raw(status) => Some(status),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::none_may_leave;

    #[test]
    fn an_amount_is_named_only_where_one_is_possible() {
        let large = none_may_leave(100 << 20, 1 << 30);
        assert!(large.contains("from \"100MiB\" to less than \"1024MiB\""), "{large}");
        let small = none_may_leave(3 << 20, 1 << 16);
        assert!(small.contains("nothing is saved") && !small.contains("start again"), "{small}");
    }
}

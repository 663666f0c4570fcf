//! What the FTL tells about itself: counters since the mount, gauges of now.

use crate::api::Rebuilt;
use crate::log::streams::StreamStatus;
use crate::map::Cached;
use crate::map::volumes::MapStatus;
use crate::policy::PolicyNames;
use crate::space::bands::BandState;
use crate::space::read_slo::Way;
use crate::space::scheduler::{Counts, Unit};
use crate::tier::destage::TierStatus;
use crate::whole::Ftl;
use crate::whole::Phase;
use crate::whole::switch::PolicyChange;
use flash::{BlockId, Instant, Lba};

/// Counters since the mount. All slots are 4 KiB.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters {
    pub host_reads: u64,
    pub host_writes: u64,
    pub host_blocks_read: u64,
    pub host_blocks_written: u64,
    pub host_blocks_trimmed: u64,
    pub host_flushes: u64,
    pub host_errors: u64,
    pub writes_throttled: u64,
    pub writes_behind_destage: u64,
    pub writes_refused: u64,
    pub slots_programmed: u64,
    pub slots_relocated: u64,
    pub slots_upkeep: u64,
    pub slots_padded: u64,
    pub pages_padded: u64,
    pub slots_moved_closing: u64,
    pub slots_checkpointed: u64,
    pub slots_corrected: u64,
    pub reads_unreadable: u64,
    pub programs_failed: u64,
    pub erases: u64,
    pub bands_opened: u64,
    pub bands_opened_host: u64,
    pub bands_retired: u64,
    /// Went before all that came before what superseded them was durable, see `log::failing`.
    pub bands_let_go: u64,
    pub blocks_poisoned: u64,
    /// What the mount found, see [`crate::api::MountReport`].
    pub slots_damaged: u64,
    pub blocks_lost: u64,
    pub blocks_refused: u64,
    pub blocks_stale_max: u64,
    pub units_gone: u64,
    pub victims: u64,
    pub refreshes: u64,
    pub wear_moves: u64,
    pub pages_scrubbed: u64,
    pub scrub_errors: u64,
    pub checkpoints: u64,
    pub checkpoints_aborted: u64,
    pub medium_flushes: u64,
    pub medium_failures: u64,
    pub policy_invalid: u64,
    pub policy_switches: u64,
    pub policies_trapped: u64,
    pub policies_out_of_time: u64,
    pub policies_out_of_memory: u64,
    pub policies_out_of_range: u64,
    pub wear_moves_asked: u64,
    pub static_fallbacks: u64,
    pub stream_fallbacks: u64,
    pub slots_since_checkpoint: u64,
    pub host_blocks_read_fast: u64,
    pub slots_programmed_fast: u64,
    pub slots_destaged: u64,
    pub slots_dropped: u64,
    pub slots_kept: u64,
    pub bands_destaged: u64,
    pub requests_spilled: u64,
    pub map_chunks_streamed: u64,
    /// What was rebuilt by the mount, and after it.
    pub rebuilt: Option<Rebuilt>,
    pub rebuilt_late: Option<Rebuilt>,
    /// Checkpoints when the clean one was asked for.
    pub clean_checkpoint_at: Option<u64>,
}

impl Counters {
    fn rebuilds(&self) -> impl Iterator<Item = &Rebuilt> {
        self.rebuilt.iter().chain(&self.rebuilt_late)
    }

    fn damage(&self) -> [(&'static str, u64); 4] {
        let refused: u64 = self.rebuilds().map(|rebuilt| rebuilt.blocks_refused).sum();
        let stale_max: u64 = self.rebuilds().map(|rebuilt| rebuilt.blocks_stale_max).sum();
        [
            ("slots_damaged", self.slots_damaged),
            ("blocks_lost", self.blocks_lost),
            ("blocks_refused", self.blocks_refused + refused),
            ("blocks_stale_max", self.blocks_stale_max + stale_max),
        ]
    }
}

/// Counters and gauges.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status {
    /// By stable snake_case name, in a stable order.
    pub counters: Vec<(&'static str, u64)>,
    /// One entry a unit.
    pub units: Vec<UnitStatus>,
    /// Policies in force.
    pub policies: PolicyNames,
    /// The stream policy of each of [`crate::config::Settings::volumes`], and of the rest of the device.
    pub streams: Vec<StreamStatus>,
    /// How each of [`crate::config::Settings::map_volumes`] is mapped.
    pub mappings: Vec<MapStatus>,
    /// The last switches of policies, oldest first.
    pub switches: Vec<PolicyChange>,
    /// What cannot be as the settings say, and why; and what had to be rebuilt after the mount.
    pub warnings: Vec<String>,
    /// Of the fast tier, on a device that has one.
    pub tier: Option<TierStatus>,
    /// "running", "read-only", "stopping", "failed" and so on.
    pub phase: &'static str,
}

/// One unit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UnitStatus {
    /// It is of the fast tier.
    pub fast: bool,
    /// Slots that it has, whatever they hold.
    pub slots: u64,
    /// Slots whose reads were begun since the mount, for whatever reason.
    pub slots_read: u64,
    /// Slots whose programs were.
    pub slots_programmed: u64,
    /// Erases that were.
    pub erases: u64,
    /// Host reads waiting or running.
    pub reads_queued: u32,
    /// Programs waiting or running.
    pub appends_queued: u32,
    /// Commands at the medium.
    pub commands_running: u32,
    /// Time with a command running, since the mount.
    pub busy_ns: u64,
    /// Free bands.
    pub bands_free: u32,
    /// Bands out of use.
    pub bands_retired: u32,
    /// Slots that hold valid data.
    pub slots_valid: u64,
    /// Slots of full bands that hold none: what GC could gain.
    pub slots_reclaimable: u64,
    /// Lowest erase count of a usable band.
    pub erase_count_min: u32,
    /// Highest erase count of a usable band.
    pub erase_count_max: u32,
    /// The unit no longer answers.
    pub gone: bool,
    /// Host reads that took longer than the service level.
    pub reads_over_slo: u64,
    /// Why the last of them did.
    pub slow_reason: &'static str,
    /// What the unit did last beyond host requests, and why.
    pub last_reason: &'static str,
}

/// What waits for or runs on one unit.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct UnitQueue {
    /// Host reads.
    pub reads: u32,
    /// Programs.
    pub appends: u32,
    /// Erases.
    pub erases: u32,
    /// Emptied bands that wait for an erase.
    pub bands_to_erase: u32,
}

/// The last look at a unit's busy time, for [`Ftl::busy_fraction`].
#[derive(Clone, Copy, Debug, Default)]
pub struct BusyMark {
    at: Instant,
    busy_ns: u64,
}

/// One band.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BandStatus {
    /// Which.
    pub block: BlockId,
    /// "clean", "erasing", "dirty", "open", "uncounted", "full", "victim", "draining", "checkpoint", "retired".
    pub state: &'static str,
    /// It has failed, or is bad from the start: nothing is appended to it any more.
    pub bad: bool,
    /// Slots that hold valid data.
    pub slots_valid: u32,
    /// Slots appended since the erase, as far as known.
    pub slots_written: u32,
    /// Erases.
    pub erase_count: u32,
}

impl Ftl {
    /// Counters and gauges.
    pub fn status(&self) -> Status {
        Status {
            counters: self.counter_list(),
            units: (0..self.geometry.units).map(|unit| self.unit_status(unit)).collect(),
            policies: self.policies.names.clone(),
            streams: self.streams.status(&self.points),
            mappings: self.mapping_status(),
            switches: self.switches.recent(),
            warnings: self.warnings(),
            tier: self.tier_status(),
            phase: phase_name(self.phase),
        }
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = self.units.slo_warnings();
        warnings.extend(self.damage_warning());
        warnings.extend(self.spare.warning(self.blocks_held()));
        warnings.extend(self.snapshots_warning());
        let damage = self.counters.rebuilds().filter(|rebuilt| rebuilt.is_damage());
        warnings.extend(damage.map(Rebuilt::to_string));
        warnings
    }

    fn damage_warning(&self) -> Option<String> {
        let c = &self.counters;
        let (damaged, lost) = (c.slots_damaged, c.blocks_lost);
        let (refused, stale_max) = (c.blocks_refused, c.blocks_stale_max);
        let none = damaged + lost + refused + stale_max == 0;
        (!none).then(|| crate::api::say_damage(damaged, lost, refused, stale_max))
    }

    /// Every band.
    pub fn bands(&self) -> Vec<BandStatus> {
        self.bands.ids().map(|block| self.band_status(block)).collect()
    }

    /// Bands of the last complete checkpoint.
    pub fn checkpoint_bands(&self) -> &[BlockId] {
        &self.checkpoint.bands
    }

    /// Bytes of DRAM that mapping takes: the map, and the bands' validity.
    pub fn map_bytes(&self) -> u64 {
        self.map.memory_bytes() + self.bands.memory_bytes()
    }

    /// Whole checkpoints that were written since the mount or format.
    pub fn checkpoints(&self) -> u64 {
        self.counters.checkpoints
    }

    /// One counter of [`Status::counters`] without the rest; 0 for an unknown name.
    pub fn counter(&self, name: &str) -> u64 {
        self.counter_list().iter().find(|entry| entry.0 == name).map_or(0, |entry| entry.1)
    }

    /// Slots that were programmed since the mount.
    pub fn slots_programmed(&self) -> u64 {
        self.counters.slots_programmed
    }

    /// What the FTL waits for, in words: for a test or an operator who finds it stuck.
    pub fn explain(&self) -> String {
        let mut bands = std::collections::BTreeMap::new();
        for block in self.bands.ids() {
            *bands.entry(state_name(self.bands[block].state)).or_insert(0u32) += 1;
        }
        format!(
            "phase {}, bands {bands:?}, free {} of low {} and floor {}, credit {}; {} writes, {} \
             moves, {} commits, {} waiters, {} victims, {} wanted; checkpoint {:?}; safe below {}, \
             durable below {}, next {}; flush running {:?}; units quiet {}; append points {:?}, {:?}, draining {:?}; fast tier: free {}, {:?}; \
             units (running, programs, reads, others) {:?}; {:?}; {} pieces loaded now",
            phase_name(self.phase),
            self.bands.free,
            self.bands_free_low(),
            self.host_floor(),
            self.reclaim.credit,
            self.host.writes.len(),
            self.moves.len(),
            self.host.commits.len(),
            self.host.waiters.len(),
            self.reclaim.victims.len(),
            self.reclaim.wanted.len(),
            self.checkpoint,
            self.durable.safe_below(),
            self.durable.durable_below(),
            self.durable.next(),
            self.flush.running,
            self.units.are_quiet(),
            self.opens
                .indices()
                .filter(|&open| self.opens[open].live)
                .map(|open| (&self.opens[open], self.bands[self.opens[open].block].slots_written))
                .collect::<Vec<_>>(),
            self.durable,
            self.bands.draining.iter().map(|&block| &self.bands[block]).collect::<Vec<_>>(),
            self.bands.free_fast,
            self.tier,
            self.units
                .iter()
                .map(|unit| (
                    unit.running,
                    unit.programs.len(),
                    unit.reads.len(),
                    unit.reads_low.len()
                ))
                .collect::<Vec<_>>(),
            self.reclaim.search,
            self.loads_running(),
        )
    }

    fn band_status(&self, block: BlockId) -> BandStatus {
        let band = &self.bands[block];
        BandStatus {
            block,
            state: state_name(band.state),
            bad: band.failing || band.state == BandState::Retired,
            slots_valid: band.slots_valid,
            slots_written: band.slots_written,
            erase_count: band.erase_count,
        }
    }

    /// Commands waiting for or running on the unit that serves a read of `lba` now; 0 if nothing is
    /// mapped there. Cheap enough to ask for every request: it is how a client picks a replica.
    pub fn queue_at(&self, lba: Lba) -> u32 {
        let Some(entry) = self.map.peek(lba.0) else { return self.base_queue(lba.0) };
        if !crate::format::is_slot(entry) {
            return 0;
        }
        let unit = &self.units[self.bands.unit_of_slot(flash::SlotId(entry)) as usize];
        unit.reads_waiting() + unit.appends_waiting()
    }

    /// What waits on the unit that a look at the map goes to, before anything is known of the block.
    fn base_queue(&self, lba: u32) -> u32 {
        let Some(cached) = self.map.cached().filter(|_| lba < self.map.blocks()) else { return 0 };
        let piece = cached.piece(lba);
        if !cached.needs_base(piece) {
            return 0;
        }
        let slot = self.base_slot(cached.chunk_of(piece));
        let unit = &self.units[self.bands.unit_of_slot(slot) as usize];
        unit.reads_waiting() + unit.appends_waiting()
    }

    /// What waits for or runs on `unit`; nothing for a unit that does not exist. Cheap enough to ask
    /// for every request.
    pub fn unit_queue(&self, unit: u32) -> UnitQueue {
        let Some(state) = self.units.get(unit) else { return UnitQueue::default() };
        UnitQueue {
            reads: state.reads_waiting(),
            appends: state.appends_waiting(),
            erases: state.erases_running,
            bands_to_erase: self.bands.dirty(unit).len() as u32,
        }
    }

    /// Share of the time since the last call with this `mark` in which `unit` had a command
    /// running. The first call counts from instant 0 on.
    pub fn busy_fraction(&self, unit: u32, now: Instant, mark: &mut BusyMark) -> f64 {
        let busy_ns = self.units.get(unit).map_or(0, |state| busy_ns(state, now));
        let before = std::mem::replace(mark, BusyMark { at: now, busy_ns });
        let elapsed = now.0.saturating_sub(before.at.0);
        if elapsed == 0 { 0.0 } else { (busy_ns - before.busy_ns) as f64 / elapsed as f64 }
    }

    /// One unit, without a walk over its bands. All zero for a unit that does not exist.
    pub fn unit_status(&self, unit: u32) -> UnitStatus {
        let Some(state) = self.units.get(unit) else { return UnitStatus::default() };
        let sums = self.bands.sums(unit);
        let fast = self.geometry.is_fast_unit(unit);
        let of_kind = (self.geometry.fast.blocks_per_unit, self.geometry.blocks_per_unit);
        let blocks = if fast { of_kind.0 } else { of_kind.1 };
        UnitStatus {
            fast,
            slots: u64::from(blocks) * u64::from(self.geometry.slots_per_block()),
            slots_read: state.slots_read,
            slots_programmed: state.slots_programmed,
            erases: state.erases,
            reads_queued: state.reads_waiting(),
            appends_queued: state.appends_waiting(),
            commands_running: state.running,
            busy_ns: busy_ns(state, self.now),
            bands_free: sums.bands_free,
            // Of a fast unit, which is shorter, the rest is retired from the start: it is not there.
            bands_retired: sums.bands_retired - (self.geometry.blocks_per_unit - blocks),
            slots_valid: sums.slots_valid,
            slots_reclaimable: sums.slots_reclaimable,
            erase_count_min: sums.erase_count_min(),
            erase_count_max: sums.erase_count_max(),
            gone: state.gone,
            reads_over_slo: state.reads_over_slo,
            slow_reason: state.slow_reason,
            last_reason: state.last_reason,
        }
    }

    fn counter_list(&self) -> Vec<(&'static str, u64)> {
        let c = &self.counters;
        let units = &self.units.counts;
        let mut list = vec![
            ("logical_blocks", u64::from(self.map.blocks())),
            ("blocks_mapped", self.blocks_mapped),
            ("blocks_shadowed", self.shadows.held()),
            ("bands_free", u64::from(self.bands.free)),
            ("bands_free_low", u64::from(self.bands_free_low())),
            ("generation", self.generation),
            ("map_bytes", self.map_bytes()),
            ("requests_running", self.host.requests.in_use() as u64),
            ("host_reads", c.host_reads),
            ("host_writes", c.host_writes),
            ("host_blocks_read", c.host_blocks_read),
            ("host_blocks_written", c.host_blocks_written),
            ("host_blocks_trimmed", c.host_blocks_trimmed),
            ("host_flushes", c.host_flushes),
            ("host_errors", c.host_errors),
            ("writes_throttled", c.writes_throttled),
            ("writes_behind_destage", c.writes_behind_destage),
            ("writes_refused", c.writes_refused),
            ("slots_programmed", c.slots_programmed),
            ("slots_relocated", c.slots_relocated),
            ("slots_upkeep", c.slots_upkeep),
            ("slots_padded", c.slots_padded),
            ("pages_padded", c.pages_padded),
            ("slots_moved_closing", c.slots_moved_closing),
            ("slots_checkpointed", c.slots_checkpointed),
            ("slots_corrected", c.slots_corrected),
            ("reads_unreadable", c.reads_unreadable),
            ("programs_failed", c.programs_failed),
            ("erases", c.erases),
            ("erases_forced", units.erases_forced),
            ("bands_opened", c.bands_opened),
            ("bands_retired", c.bands_retired),
            ("bands_let_go", c.bands_let_go),
            ("blocks_poisoned", c.blocks_poisoned),
            ("units_gone", c.units_gone),
            ("victims", c.victims),
            ("refreshes", c.refreshes),
            ("wear_moves", c.wear_moves),
            ("pages_scrubbed", c.pages_scrubbed),
            ("scrub_errors", c.scrub_errors),
            ("checkpoints", c.checkpoints),
            ("checkpoints_aborted", c.checkpoints_aborted),
            ("medium_flushes", c.medium_flushes),
            ("medium_failures", c.medium_failures),
            ("policy_invalid", c.policy_invalid),
            ("policy_switches", c.policy_switches),
            ("policies_trapped", c.policies_trapped),
            ("policies_out_of_time", c.policies_out_of_time),
            ("policies_out_of_memory", c.policies_out_of_memory),
            ("policies_out_of_range", c.policies_out_of_range),
            ("erases_asked", units.erases_asked),
            ("wear_moves_asked", c.wear_moves_asked),
            ("static_fallbacks", c.static_fallbacks),
            ("stream_fallbacks", c.stream_fallbacks),
            ("stream_bytes", self.streams.memory_bytes()),
        ];
        list.extend(read_slo_counters(units));
        list.extend(c.damage().into_iter().chain(self.spare.counters()));
        if let Some(cached) = self.map.cached() {
            list.extend(self.cached_counters(cached));
        }
        let tiered = self.geometry.is_tiered().then(|| self.tier_counters());
        list.extend(tiered.into_iter().flatten());
        list
    }

    /// What only a map of which a part is in DRAM has to tell.
    fn cached_counters(&self, cached: &Cached) -> [(&'static str, u64); 11] {
        let residency = &self.host.residency;
        [
            ("map_hits", residency.hits),
            ("map_misses", residency.misses),
            ("map_pieces_loaded", residency.loaded),
            ("map_pieces_evicted", cached.evictions),
            ("map_reads_repeated", residency.retried),
            ("map_pieces_lost", residency.lost),
            ("map_chunks_streamed", self.counters.map_chunks_streamed),
            ("map_chunks_uncounted", u64::from(self.chunks_uncounted())),
            ("map_chunks_rebuilt", self.rebuilt_late().map_or(0, |of| u64::from(of.chunks))),
            ("map_changes_bytes", cached.changes_bytes()),
            ("map_changes_bytes_max", cached.changes_bytes_max()),
        ]
    }

    /// What only a two-tier device has to tell.
    fn tier_counters(&self) -> [(&'static str, u64); 9] {
        let c = &self.counters;
        [
            ("fast_bands", u64::from(self.geometry.fast_blocks())),
            ("fast_bands_free", u64::from(self.bands.free_fast)),
            ("fast_slots_programmed", c.slots_programmed_fast),
            ("fast_host_blocks_read", c.host_blocks_read_fast),
            ("fast_bands_destaged", c.bands_destaged),
            ("slots_destaged", c.slots_destaged),
            ("slots_dropped", c.slots_dropped),
            ("slots_kept", c.slots_kept),
            ("requests_spilled", c.requests_spilled),
        ]
    }
}

fn busy_ns(unit: &Unit, now: Instant) -> u64 {
    let running = if unit.running > 0 { now.0.saturating_sub(unit.busy_since.0) } else { 0 };
    unit.busy_ns + running
}

fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Formatting => "formatting",
        Phase::Mounting => "mounting",
        Phase::Running => "running",
        Phase::ReadOnly => "read-only",
        Phase::Stopping => "stopping",
        Phase::Stopped => "stopped",
        Phase::Failed => "failed",
    }
}

fn state_name(state: BandState) -> &'static str {
    match state {
        BandState::Clean => "clean",
        BandState::Erasing => "erasing",
        BandState::Dirty => "dirty",
        BandState::Open => "open",
        BandState::Uncounted => "uncounted",
        BandState::Full => "full",
        BandState::Victim => "victim",
        BandState::Draining => "draining",
        BandState::Checkpoint => "checkpoint",
        BandState::Retired => "retired",
    }
}

/// Host reads that took longer than the service level, by what was in the way, and what was begun although
/// a read might.
fn read_slo_counters(units: &Counts) -> [(&'static str, u64); 7] {
    [
        ("reads_over_slo", units.over_slo.iter().sum()),
        ("reads_over_slo_program", units.over_slo[Way::Program as usize]),
        ("reads_over_slo_erase", units.over_slo[Way::Erase as usize]),
        ("reads_over_slo_reads", units.over_slo[Way::Reads as usize]),
        ("reads_over_slo_suspended", units.over_slo[Way::Suspended as usize]),
        ("reads_over_slo_in_flight", units.over_slo[Way::InFlight as usize]),
        ("slo_breaches_allowed", units.slo_breaches_space),
    ]
}

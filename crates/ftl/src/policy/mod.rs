//! Decisions, apart from the mechanism that carries them out. A policy sees a read-only view and
//! answers with data; it can be slow or unwise, but it cannot lose anything: an answer that is not
//! possible is counted (`policy_invalid`) and replaced by the default's. A policy that comes from
//! outside ([`Chosen`]) may break; it says so ([`Fault`]) and is replaced as a whole.
//!
//! To add one: a file here, a line in its `by_name` and one in the [`catalogue`].

mod age_adaptive;
pub mod catalogue;
mod chosen;
mod cost_benefit;
mod d_choices;
mod erase;
mod fifo;
mod greedy;
pub mod profile;
pub mod replica;
pub mod stream;
mod unit;
mod wear;

use flash::{BlockId, Instant, Random};
use profile::Profile;
use std::mem::replace;
use std::ops::Range;
pub(crate) use unit::spread;

pub use age_adaptive::AgeAdaptive;
pub use chosen::{Chosen, Fault, FaultKind};
pub use cost_benefit::CostBenefit;
pub use d_choices::DChoices;
pub use erase::{Asked as EraseAsked, Eager, Idle, ReadFirst};
pub use fifo::Fifo;
pub use greedy::Greedy;
pub use unit::{CompactionAware, RoundRobin, ShortestQueue, StaticUnit, WeightedQueue};
pub use wear::{Asked as WearAsked, Dynamic, Rejuvenation, Static, Unlevelled};

/// A full band, as a victim policy sees it.
#[derive(Clone, Copy, Debug)]
pub struct BandView {
    /// Which band.
    pub block: BlockId,
    /// The unit it lies on.
    pub unit: u32,
    /// Slots that must be relocated before it can be erased.
    pub slots_valid: u32,
    /// Pages appended on the device since this band was opened.
    pub age_pages: u64,
    /// Erases of the band.
    pub erase_count: u32,
}

/// What a policy looks at that looks at all full bands: arrays side by side, a band at the same index
/// in each. A view of each band would be built from all over the memory, for thousands of bands.
#[derive(Clone, Copy, Debug)]
pub struct Columns<'a> {
    /// [`BandView::block`].
    pub blocks: &'a [BlockId],
    /// [`BandView::slots_valid`].
    pub slots_valid: &'a [u32],
    /// When each was opened, in pages appended on the device: [`BandView::age_pages`] before
    /// [`FullBands::pages`].
    pub opened: &'a [u64],
}

impl<'a> Columns<'a> {
    /// The bands in a range of places.
    #[must_use]
    pub fn part(&self, places: Range<usize>) -> Self {
        Self {
            blocks: &self.blocks[places.clone()],
            slots_valid: &self.slots_valid[places.clone()],
            opened: &self.opened[places],
        }
    }
}

/// The full bands.
pub trait FullBands {
    /// All of them, in no particular but a reproducible order.
    fn columns(&self) -> Columns<'_>;
    /// Slots of a band.
    fn slots(&self) -> u32;
    /// The band at `index` of the columns.
    fn band(&self, index: usize) -> BandView;
    /// How many.
    fn len(&self) -> usize {
        self.columns().blocks.len()
    }
    /// True if there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The band with the fewest valid slots, the first in address among equals.
    fn fewest_valid(&self) -> Option<BlockId> {
        let Columns { blocks, slots_valid, .. } = self.columns();
        // The least first, as a scan of one column is a few instructions; then who has so few.
        let least = slots_valid.iter().min()?;
        let chunks = blocks.chunks(64).zip(slots_valid.chunks(64));
        let hits = chunks.filter(|(_, valid)| valid.contains(least));
        let equals = hits.flat_map(|(blocks, valid)| blocks.iter().zip(valid));
        equals.filter(|&(_, valid)| valid == least).map(|(&block, _)| block).min()
    }
    /// Pages appended on the device so far: what [`BandView::age_pages`] is counted from.
    fn pages(&self) -> u64 {
        0
    }
    /// Units of the device.
    fn units(&self) -> u32 {
        1
    }
    /// Bands that `unit` has to be opened, now or soon; 2 for more.
    fn supply(&self, _unit: u32) -> u32 {
        2
    }
    /// Counts what changed which bands there are, and where; see [`FullBands::moved_since`].
    fn moves(&self) -> u64 {
        0
    }
    /// False if the bands of this chunk of [`CHUNK_BANDS`] are the same as at `moves`, in the same
    /// places. Then all of their views is the same but `slots_valid`, and `age_pages` as time goes.
    fn moved_since(&self, _chunk: usize, _moves: u64) -> bool {
        true
    }
}

/// Bands of a [`Columns`] that a scan passes by together if none of them is any better: a comparison of
/// each with a bound, and nothing else, is what a compiler makes vectors of.
const SCAN_BANDS: usize = 64;

/// Bands whose places are told apart in [`FullBands::moved_since`].
pub const CHUNK_BANDS: usize = 64;

/// Chooses which band to reclaim.
pub trait VictimPolicy: Send {
    /// Its name in configs.
    fn name(&self) -> &'static str;
    /// What broke it since it was asked last; only a policy from outside breaks.
    fn fault(&mut self) -> Option<Fault> {
        None
    }
    /// The band to reclaim next; `None` for none.
    fn pick(&mut self, bands: &dyn FullBands, random: &mut Random) -> Option<BlockId>;
}

/// What a band is opened for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Purpose {
    /// Data from the host.
    Host,
    /// Data of the host on its way from the fast tier to the capacity tier.
    Destage,
    /// Data that stayed valid until its band was reclaimed: colder than the host's.
    Relocate,
    /// A checkpoint, which lives for one interval.
    Checkpoint,
}

/// Spreads erases over the bands.
pub trait WearPolicy: Send {
    /// Its name in configs.
    fn name(&self) -> &'static str;
    /// What broke it since it was asked last; only a policy from outside breaks.
    fn fault(&mut self) -> Option<Fault> {
        None
    }
    /// Index of the free band to open; `erase_counts` has at least one.
    fn pick_free(&mut self, erase_counts: &[u32], purpose: Purpose) -> usize;
    /// True if the data of the least worn full band should move, to free that band for use.
    fn move_wanted(&mut self, view: &WearView) -> bool;
}

/// How far wear has spread.
#[derive(Clone, Copy, Debug)]
pub struct WearView {
    /// Erases of the least worn full band.
    pub erase_count_least_full: u32,
    /// Erases of the most worn band.
    pub erase_count_most: u32,
    /// Erases that a band is made for.
    pub endurance: u32,
}

impl WearView {
    fn spread(&self) -> u32 {
        self.erase_count_most.saturating_sub(self.erase_count_least_full)
    }
}

/// A unit with a band to erase.
#[derive(Clone, Copy, Debug)]
pub struct EraseView {
    /// Host reads waiting for the unit or running on it.
    pub reads_waiting: u32,
    /// Appends waiting for the unit or running on it.
    pub appends_waiting: u32,
    /// When the unit's last command ended.
    pub quiet_since: Instant,
    /// The instant of the question.
    pub now: Instant,
    /// What the settings call idle.
    pub idle_ns: u64,
    /// Bands of this unit that are erased and ready.
    pub bands_clean: u32,
    /// Bands of this unit that the application asked to erase, see [`crate::whole::Ftl::ask_erase`].
    pub asked: u32,
}

/// Chooses when to erase. The mechanism erases all the same when space demands it.
pub trait ErasePolicy: Send {
    /// Its name in configs.
    fn name(&self) -> &'static str;
    /// What broke it since it was asked last; only a policy from outside breaks.
    fn fault(&mut self) -> Option<Fault> {
        None
    }
    /// Erase now?
    fn erase_now(&mut self, view: &EraseView) -> bool;
    /// Whether its answer may change by the passing of time alone.
    fn waits_for_time(&self) -> bool {
        true
    }
}

/// A unit that can take a page.
#[derive(Clone, Copy, Debug)]
pub struct UnitView {
    /// Which unit.
    pub unit: u32,
    /// Appends waiting for the unit or running on it.
    pub appends_waiting: u32,
    /// Host reads waiting for the unit or running on it.
    pub reads_waiting: u32,
    /// Bands of the unit that are free.
    pub bands_free: u32,
    /// Erases running on it.
    pub erases_running: u32,
    /// Bands of the unit that GC is emptying.
    pub victims: u32,
    /// The handle has a band open here.
    pub open: bool,
    /// How much the band is wanted that the page would go to, up to [`WEIGHT_FULL`]; 0 only if all that are listed
    /// have 0.
    pub weight: u16,
}

/// The weight of what nobody has given one, see [`UnitWeights`].
pub const WEIGHT_FULL: u16 = 256;

/// How much places for new pages are wanted, from 0 to [`WEIGHT_FULL`], by who knows more of the medium than the
/// FTL does: in a pool the bands of one unit lie on other nodes each.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct UnitWeights {
    /// By unit, of the band that would be opened there next. Units beyond the end have the full weight.
    pub next: Vec<u16>,
    /// Of bands that are open, in the order of their blocks. One that is not here has the weight of its unit.
    pub open: Vec<(BlockId, u16)>,
}

impl Default for UnitView {
    fn default() -> Self {
        Self {
            unit: 0,
            appends_waiting: 0,
            reads_waiting: 0,
            bands_free: 0,
            erases_running: 0,
            victims: 0,
            open: false,
            weight: WEIGHT_FULL,
        }
    }
}

/// How long commands take on this medium, as far as learned.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// A read.
    pub read_ns: u64,
    /// A program.
    pub program_ns: u64,
    /// An erase.
    pub erase_ns: u64,
}

/// A page that looks for a unit.
#[derive(Clone, Copy, Debug)]
pub struct PageView {
    /// The unit of the handle's last page.
    pub last: u32,
    /// Among equals another unit than that is better: a page vouches for the one before, and should not be lost with it. Not where
    /// pages share cells, and each band that is begun has to be closed for a flush.
    pub apart: bool,
    /// Its first logical block, counted in pages.
    pub index: u32,
    /// Units of the device.
    pub units: u32,
    /// For a policy that weighs what waits.
    pub costs: Costs,
}

/// Chooses the unit for the next page of a placement handle.
pub trait UnitPolicy: Send {
    /// Its name in configs.
    fn name(&self) -> &'static str;
    /// What broke it since it was asked last; only a policy from outside breaks.
    fn fault(&mut self) -> Option<Fault> {
        None
    }
    /// Index into `units`, which has at least one.
    fn pick(&mut self, units: &[UnitView], page: &PageView) -> usize;
    /// The only unit for this page, for as long as it has room: the page waits for its queue rather
    /// than go elsewhere. `None` if `pick` is free to choose.
    fn home(&self, _: &PageView) -> Option<u32> {
        None
    }
}

/// Names of the policies in force.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PolicyNames {
    /// One of [`VICTIMS`].
    pub victim: String,
    /// One of [`WEARS`].
    pub wear: String,
    /// One of [`ERASES`].
    pub erase: String,
    /// One of [`UNITS`].
    pub unit: String,
    /// One of [`stream::STREAMS`], for all that has none of its own.
    pub stream: String,
    /// One of [`profile::PROFILES`]: who decides what no policy was named for.
    pub profile: String,
}

/// The decisions that have a policy.
pub const DECISIONS: &[&str] = &["victim", "wear", "erase", "unit", "stream", "profile"];
/// Names of the victim policies. `d-choices` and `age-adaptive` take a number: `d-choices:5`.
pub const VICTIMS: &[&str] = &["greedy", "cost-benefit", "age-adaptive", "d-choices", "fifo"];
/// Names of the wear policies.
pub const WEARS: &[&str] = &["none", "dynamic", "static", "rejuvenation", "asked"];
/// Names of the erase policies.
pub const ERASES: &[&str] = &["eager", "idle", "read-first", "asked"];
/// Names of the unit policies.
pub const UNITS: &[&str] =
    &["shortest-queue", "weighted-queue", "compaction-aware", "round-robin", "static"];

impl Default for PolicyNames {
    fn default() -> Self {
        Self {
            victim: "greedy".into(),
            wear: "static".into(),
            erase: "read-first".into(),
            unit: "shortest-queue".into(),
            stream: "none".into(),
            profile: "none".into(),
        }
    }
}

impl PolicyNames {
    /// `Err` names the decision, the value, and the names that exist.
    pub fn validate(&self) -> Result<(), String> {
        victim_by_name(&self.victim)?;
        wear_by_name(&self.wear)?;
        erase_by_name(&self.erase)?;
        unit_by_name(&self.unit)?;
        Profile::by_name(&self.profile)?;
        stream::by_name(&self.stream, stream::Shape { blocks: 1, handles: 1 }).map(|_| ())
    }

    /// That of one of [`DECISIONS`].
    pub fn of(&self, decision: &str) -> &str {
        match decision {
            "victim" => &self.victim,
            "wear" => &self.wear,
            "erase" => &self.erase,
            "unit" => &self.unit,
            "profile" => &self.profile,
            _ => &self.stream,
        }
    }

    /// The same, to change it.
    pub fn of_mut(&mut self, decision: &str) -> &mut String {
        match decision {
            "victim" => &mut self.victim,
            "wear" => &mut self.wear,
            "erase" => &mut self.erase,
            "unit" => &mut self.unit,
            "profile" => &mut self.profile,
            _ => &mut self.stream,
        }
    }
}

pub(crate) struct Policies {
    pub victim: Box<dyn VictimPolicy>,
    pub wear: Box<dyn WearPolicy>,
    pub erase: Box<dyn ErasePolicy>,
    pub unit: Box<dyn UnitPolicy>,
    pub profile: Profile,
    pub names: PolicyNames,
}

impl Policies {
    pub fn new(names: PolicyNames) -> Result<Self, String> {
        Ok(Self {
            victim: victim_by_name(&names.victim)?,
            wear: wear_by_name(&names.wear)?,
            erase: erase_by_name(&names.erase)?,
            unit: unit_by_name(&names.unit)?,
            profile: Profile::by_name(&names.profile)?,
            names,
        })
    }

    /// Puts `chosen` in charge of its decision, under `name`; returns who was.
    pub fn put(&mut self, name: &str, chosen: Chosen) -> Chosen {
        let decision = chosen.decision();
        *self.names.of_mut(decision) = name.into();
        match chosen {
            Chosen::Victim(policy) => Chosen::Victim(replace(&mut self.victim, policy)),
            Chosen::Wear(policy) => Chosen::Wear(replace(&mut self.wear, policy)),
            Chosen::Erase(policy) => Chosen::Erase(replace(&mut self.erase, policy)),
            Chosen::Unit(policy) => Chosen::Unit(replace(&mut self.unit, policy)),
            Chosen::Profile(profile) => Chosen::Profile(replace(&mut self.profile, profile)),
            Chosen::Stream(_) => unreachable!("streams are kept by volume"),
        }
    }
}

fn victim_by_name(name: &str) -> Result<Box<dyn VictimPolicy>, String> {
    let (base, number) = split(name);
    Ok(match base {
        "d-choices" => Box::new(DChoices { choices: whole(name, number, (1, 1024), 10)? }),
        "greedy" => plain(name, number, Box::new(Greedy))?,
        "cost-benefit" => plain(name, number, Box::new(CostBenefit))?,
        "age-adaptive" => Box::new(AgeAdaptive::of(whole(name, number, (0, 1024), 0)?)),
        "fifo" => plain(name, number, Box::new(Fifo))?,
        _ => return Err(unknown("victim", name, VICTIMS)),
    })
}

fn wear_by_name(name: &str) -> Result<Box<dyn WearPolicy>, String> {
    let (base, number) = split(name);
    Ok(match base {
        "static" => Box::new(Static { spread_max: whole(name, number, (2, u32::MAX), 32)? }),
        "rejuvenation" => Box::new(Rejuvenation { percent: whole(name, number, (1, 50), 10)? }),
        "none" => plain(name, number, Box::new(Unlevelled))?,
        "dynamic" => plain(name, number, Box::new(Dynamic))?,
        "asked" => plain(name, number, Box::new(WearAsked))?,
        _ => return Err(unknown("wear", name, WEARS)),
    })
}

pub(crate) fn erase_by_name(name: &str) -> Result<Box<dyn ErasePolicy>, String> {
    let (base, number) = split(name);
    Ok(match base {
        "eager" => plain(name, number, Box::new(Eager))?,
        "idle" => plain(name, number, Box::new(Idle))?,
        "read-first" => plain(name, number, Box::new(ReadFirst))?,
        "asked" => plain(name, number, Box::new(EraseAsked))?,
        _ => return Err(unknown("erase", name, ERASES)),
    })
}

fn unit_by_name(name: &str) -> Result<Box<dyn UnitPolicy>, String> {
    let (base, number) = split(name);
    Ok(match base {
        "shortest-queue" => plain(name, number, Box::<ShortestQueue>::default())?,
        "weighted-queue" => plain(name, number, Box::new(WeightedQueue))?,
        "compaction-aware" => plain(name, number, Box::new(CompactionAware))?,
        "round-robin" => plain(name, number, Box::new(RoundRobin))?,
        "static" => plain(name, number, Box::new(StaticUnit))?,
        _ => return Err(unknown("unit", name, UNITS)),
    })
}

/// A name and what stands behind its colon.
fn split(name: &str) -> (&str, Option<&str>) {
    name.split_once(':').map_or((name, None), |(base, number)| (base, Some(number)))
}

/// The number behind a name.
fn whole(
    name: &str,
    number: Option<&str>,
    (min, max): (u32, u32),
    default: u32,
) -> Result<u32, String> {
    let Some(number) = number else { return Ok(default) };
    number.parse().ok().filter(|number| (min..=max).contains(number)).ok_or_else(|| {
        format!(
            "policy {name:?}: {number:?} must be a whole number from {min} to {max}, as {default} is"
        )
    })
}

/// `policy`, which takes no parameter.
fn plain<T>(name: &str, number: Option<&str>, policy: T) -> Result<T, String> {
    match number {
        None => Ok(policy),
        Some(_) => Err(format!("policy {name:?}: it takes no parameter")),
    }
}

pub(crate) fn unknown_decision(decision: &str) -> String {
    let known = DECISIONS.join(", ");
    format!("no decision is called {decision:?}; there are {known}, mapping")
}

fn unknown(decision: &str, name: &str, known: &[&str]) -> String {
    format!("no {decision} policy is called {name:?}; there are {}", known.join(", "))
}

#[cfg(test)]
mod tests;

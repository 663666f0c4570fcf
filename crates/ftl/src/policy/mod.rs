//! Decisions, apart from the mechanism that carries them out. A policy sees a read-only view and
//! answers with data; it can be slow or unwise, but it cannot lose anything: an answer that is not
//! possible is counted (`policy_invalid`) and replaced by the default's.
//!
//! To add one: a file here and a line in its `by_name`.

mod cost_benefit;
mod d_choices;
mod erase;
mod fifo;
mod greedy;
pub mod replica;
pub mod stream;
mod unit;
mod wear;

use flash::{BlockId, Instant, Random};

pub use cost_benefit::CostBenefit;
pub use d_choices::DChoices;
pub use erase::{Asked as EraseAsked, Eager, Idle, ReadFirst};
pub use fifo::Fifo;
pub use greedy::Greedy;
pub use unit::{RoundRobin, ShortestQueue, StaticUnit, WeightedQueue};
pub use wear::{Asked as WearAsked, Dynamic, Static, Unlevelled};

/// A full band, as a victim policy sees it.
#[derive(Clone, Copy, Debug)]
pub struct BandView {
    /// Which band.
    pub block: BlockId,
    /// Slots that must be relocated before it can be erased.
    pub slots_valid: u32,
    /// Slots of the band.
    pub slots: u32,
    /// Pages appended on the device since this band was opened.
    pub age_pages: u64,
    /// Erases of the band.
    pub erase_count: u32,
}

/// The full bands.
pub trait FullBands {
    /// How many.
    fn len(&self) -> usize;
    /// True if there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The band at `index`, in no particular but a reproducible order.
    fn band(&self, index: usize) -> BandView;
    /// The band with the fewest valid slots, the first in address among equals.
    fn fewest_valid(&self) -> Option<BlockId> {
        (0..self.len())
            .map(|index| self.band(index))
            .min_by_key(|band| (band.slots_valid, band.block))
            .map(|band| band.block)
    }
}

/// Chooses which band to reclaim.
pub trait VictimPolicy: Send {
    /// Its name in configs.
    fn name(&self) -> &'static str;
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
    /// Index of the free band to open; `erase_counts` has at least one.
    fn pick_free(&mut self, erase_counts: &[u32], purpose: Purpose) -> usize;
    /// True if the data of the least worn full band should move, to free that band for use.
    fn move_wanted(&mut self, erase_count_least_full: u32, erase_count_most: u32) -> bool;
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
    /// Bands of this unit that the application asked to erase, see [`crate::Ftl::ask_erase`].
    pub asked: u32,
}

/// Chooses when to erase. The mechanism erases all the same when space demands it.
pub trait ErasePolicy: Send {
    /// Its name in configs.
    fn name(&self) -> &'static str;
    /// Erase now?
    fn erase_now(&mut self, view: &EraseView) -> bool;
    /// Whether its answer may change by the passing of time alone.
    fn waits_for_time(&self) -> bool {
        true
    }
}

/// A unit that can take a page.
#[derive(Clone, Copy, Debug, Default)]
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
    /// The handle has a band open here.
    pub open: bool,
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
}

/// Names of the victim policies. `d-choices` and `static` take a number: `d-choices:5`.
pub const VICTIMS: &[&str] = &["greedy", "cost-benefit", "d-choices", "fifo"];
/// Names of the wear policies.
pub const WEARS: &[&str] = &["none", "dynamic", "static", "asked"];
/// Names of the erase policies.
pub const ERASES: &[&str] = &["eager", "idle", "read-first", "asked"];
/// Names of the unit policies.
pub const UNITS: &[&str] = &["shortest-queue", "weighted-queue", "round-robin", "static"];

impl Default for PolicyNames {
    fn default() -> Self {
        Self {
            victim: "greedy".into(),
            wear: "static".into(),
            erase: "read-first".into(),
            unit: "shortest-queue".into(),
            stream: "none".into(),
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
        stream::by_name(&self.stream, stream::Shape { blocks: 1, handles: 1 }).map(|_| ())
    }
}

pub(crate) struct Policies {
    pub victim: Box<dyn VictimPolicy>,
    pub wear: Box<dyn WearPolicy>,
    pub erase: Box<dyn ErasePolicy>,
    pub unit: Box<dyn UnitPolicy>,
    pub names: PolicyNames,
}

impl Policies {
    pub fn new(names: PolicyNames) -> Result<Self, String> {
        Ok(Self {
            victim: victim_by_name(&names.victim)?,
            wear: wear_by_name(&names.wear)?,
            erase: erase_by_name(&names.erase)?,
            unit: unit_by_name(&names.unit)?,
            names,
        })
    }

    /// Puts the policy `name` in charge of `decision`.
    pub fn switch(&mut self, decision: &str, name: &str) -> Result<(), String> {
        match decision {
            "victim" => self.victim = victim_by_name(name)?,
            "wear" => self.wear = wear_by_name(name)?,
            "erase" => self.erase = erase_by_name(name)?,
            "unit" => self.unit = unit_by_name(name)?,
            _ => {
                return Err(format!(
                    "no decision is called {decision:?}; there are victim, wear, erase, unit, stream"
                ));
            }
        }
        let slot = match decision {
            "victim" => &mut self.names.victim,
            "wear" => &mut self.names.wear,
            "erase" => &mut self.names.erase,
            _ => &mut self.names.unit,
        };
        *slot = name.to_string();
        Ok(())
    }
}

fn victim_by_name(name: &str) -> Result<Box<dyn VictimPolicy>, String> {
    let (base, number) = split(name)?;
    Ok(match base {
        "greedy" => Box::new(Greedy),
        "cost-benefit" => Box::new(CostBenefit),
        "d-choices" => Box::new(DChoices { choices: number.unwrap_or(10).clamp(1, 1024) }),
        "fifo" => Box::new(Fifo),
        _ => return Err(unknown("victim", name, VICTIMS)),
    })
}

fn wear_by_name(name: &str) -> Result<Box<dyn WearPolicy>, String> {
    let (base, number) = split(name)?;
    Ok(match base {
        "none" => Box::new(Unlevelled),
        "dynamic" => Box::new(Dynamic),
        "static" => Box::new(Static { spread_max: number.unwrap_or(32).max(2) }),
        "asked" => Box::new(WearAsked),
        _ => return Err(unknown("wear", name, WEARS)),
    })
}

fn erase_by_name(name: &str) -> Result<Box<dyn ErasePolicy>, String> {
    Ok(match name {
        "eager" => Box::new(Eager),
        "idle" => Box::new(Idle),
        "read-first" => Box::new(ReadFirst),
        "asked" => Box::new(EraseAsked),
        _ => return Err(unknown("erase", name, ERASES)),
    })
}

fn unit_by_name(name: &str) -> Result<Box<dyn UnitPolicy>, String> {
    Ok(match name {
        "shortest-queue" => Box::new(ShortestQueue),
        "weighted-queue" => Box::new(WeightedQueue),
        "round-robin" => Box::new(RoundRobin),
        "static" => Box::new(StaticUnit),
        _ => return Err(unknown("unit", name, UNITS)),
    })
}

fn split(name: &str) -> Result<(&str, Option<u32>), String> {
    let Some((base, number)) = name.split_once(':') else { return Ok((name, None)) };
    match number.parse() {
        Ok(number) => Ok((base, Some(number))),
        Err(_) => Err(format!("policy {name:?}: {number:?} is not a whole number")),
    }
}

fn unknown(decision: &str, name: &str, known: &[&str]) -> String {
    format!("no {decision} policy is called {name:?}; there are {}", known.join(", "))
}

#[cfg(test)]
mod tests;

//! Tries a module before it is taken: on small and large views drawn from a fixed seed, each answer
//! must be possible, and the same view must get the same answer, from the same instance and from
//! another. Streams may learn, so there two instances that see the same must answer alike.

use crate::{Kind, Module};
use flash::{BlockId, Hint, Instant, Lifetime, Random};
use ftl::policy::stream::{Handles, MoveView, Origin, Shape, StreamPolicy, WriteView};
use ftl::policy::{
    BandView, Chosen, Columns, Costs, EraseView, Fault, FullBands, PageView, Purpose, UnitView,
    WearView,
};
use std::fmt::Debug;

const SEED: u64 = 1;
const UNITS: u32 = 16;
const SLOTS: u32 = 512;
const PAGES: u64 = 1 << 40;
const ROUNDS: usize = 8;

/// `Err` tells what is wrong.
pub fn check(module: &Module, kind: Kind) -> Result<(), String> {
    let mut random = Random::new(SEED);
    if kind == Kind::Stream {
        for blocks in [1, 5000, 1 << 22] {
            streams(module, &mut random, Shape { blocks, handles: 4 })?;
        }
        return Ok(());
    }
    let mut old = module.made(kind, SHAPE)?;
    for size in [1, 2, 63, 65, 1000] {
        for _ in 0..ROUNDS {
            let view = View::drawn(&mut random, size);
            let first = view.ask(&mut old)?;
            let again = view.ask(&mut old)?;
            alike(&first, &again)?;
            let new = view.ask(&mut module.made(kind, SHAPE)?)?;
            alike(&first, &new)?;
        }
    }
    Ok(())
}

const SHAPE: Shape = Shape { blocks: 1, handles: 1 };

fn alike<T: Debug + PartialEq>(one: &T, other: &T) -> Result<(), String> {
    if one == other {
        return Ok(());
    }
    Err(format!(
        "it answered {one:?} and {other:?} for the same view: what it answers must follow from what it \
         is shown"
    ))
}

/// `Err` if it broke.
fn sound(fault: Option<Fault>) -> Result<(), String> {
    fault.map_or(Ok(()), |fault| Err(fault.reason))
}

/// What any policy but that of a stream could be shown.
struct View {
    bands: Bands,
    counts: Vec<u32>,
    units: Vec<UnitView>,
    page: PageView,
    erase: EraseView,
}

#[derive(Default)]
struct Bands {
    views: Vec<BandView>,
    blocks: Vec<BlockId>,
    slots_valid: Vec<u32>,
    opened: Vec<u64>,
}

impl Bands {
    fn push(&mut self, view: BandView) {
        self.blocks.push(view.block);
        self.slots_valid.push(view.slots_valid);
        self.opened.push(PAGES - view.age_pages);
        self.views.push(view);
    }
}

impl FullBands for Bands {
    fn columns(&self) -> Columns<'_> {
        let Self { blocks, slots_valid, opened, .. } = self;
        Columns { blocks, slots_valid, opened }
    }

    fn slots(&self) -> u32 {
        SLOTS
    }

    fn band(&self, index: usize) -> BandView {
        self.views[index]
    }

    fn pages(&self) -> u64 {
        PAGES
    }

    fn units(&self) -> u32 {
        UNITS
    }

    fn supply(&self, unit: u32) -> u32 {
        unit % 3
    }
}

impl View {
    fn drawn(random: &mut Random, size: u32) -> Self {
        let mut below = |bound: u64| random.below(bound) as u32;
        let mut bands = Bands::default();
        (0..size).for_each(|block| {
            bands.push(BandView {
                block: BlockId(block),
                unit: block % UNITS,
                slots_valid: below(u64::from(SLOTS) + 1),
                age_pages: u64::from(below(1 << 30)),
                erase_count: below(5000),
            });
        });
        let units = (0..size.min(UNITS)).map(|unit| UnitView {
            unit,
            appends_waiting: below(9),
            reads_waiting: below(9),
            bands_free: below(100),
            erases_running: below(2),
            victims: below(2),
            open: below(2) == 1,
            weight: ftl::policy::WEIGHT_FULL,
        });
        let units = units.collect();
        let costs = Costs { read_ns: 60_000, program_ns: 600_000, erase_ns: 3_000_000 };
        Self {
            counts: bands.views.iter().map(|band| band.erase_count).collect(),
            bands,
            units,
            page: PageView {
                last: below(UNITS.into()),
                apart: below(2) == 0,
                index: below(1 << 30),
                units: UNITS,
                costs,
            },
            erase: EraseView {
                reads_waiting: below(3),
                appends_waiting: below(3),
                quiet_since: Instant(u64::from(below(1 << 30))),
                now: Instant(1 << 30),
                idle_ns: 2_000_000,
                bands_clean: below(4),
                asked: below(2),
            },
        }
    }

    /// What `policy` answers, as numbers.
    fn ask(&self, policy: &mut Chosen) -> Result<Vec<usize>, String> {
        Ok(match policy {
            Chosen::Victim(policy) => {
                // A victim policy of a module draws nothing.
                let picked = policy.pick(&self.bands, &mut Random::new(SEED));
                sound(policy.fault())?;
                picked.into_iter().map(|block| block.0 as usize).collect()
            }
            Chosen::Erase(policy) => {
                let answer = policy.erase_now(&self.erase);
                sound(policy.fault())?;
                vec![answer.into()]
            }
            Chosen::Unit(policy) => {
                let answer = policy.pick(&self.units, &self.page);
                sound(policy.fault())?;
                vec![answer]
            }
            Chosen::Wear(policy) => {
                let mut answers = Vec::new();
                for purpose in
                    [Purpose::Host, Purpose::Relocate, Purpose::Checkpoint, Purpose::Destage]
                {
                    answers.push(policy.pick_free(&self.counts, purpose));
                }
                let wear = WearView {
                    erase_count_least_full: self.counts[0],
                    erase_count_most: 5000,
                    endurance: 6000,
                };
                answers.push(policy.move_wanted(&wear).into());
                sound(policy.fault())?;
                answers
            }
            Chosen::Stream(_) | Chosen::Profile(_) => Vec::new(),
        })
    }
}

/// Two instances that see the same, over some thousand blocks.
fn streams(module: &Module, random: &mut Random, shape: Shape) -> Result<(), String> {
    let make = || match module.made(Kind::Stream, shape)? {
        Chosen::Stream(policy) => Ok::<_, String>(policy),
        _ => Err("it makes no stream policy".into()),
    };
    let (mut one, mut other) = (make()?, make()?);
    let wanted = one.handles();
    let most = |random: &mut Random, handles: u8| 1 + random.below(handles.into()) as u8;
    let fewer = Handles { host: most(random, wanted.host), moved: most(random, wanted.moved) };
    for now in 1..4000 {
        let handles = if now < 2000 { wanted } else { fewer };
        let event = Event::drawn(random, shape.blocks, now, handles);
        let (first, second) = (event.tell(&mut *one), event.tell(&mut *other));
        sound(one.fault())?;
        sound(other.fault())?;
        alike(&first, &second)?;
    }
    Ok(())
}

/// What a stream policy is asked or told.
enum Event {
    Write(WriteView),
    Move(MoveView),
    Trim(u32, u32),
    Reclaimed(Origin, u64),
}

impl Event {
    fn drawn(random: &mut Random, blocks: u32, now: u64, handles: Handles) -> Self {
        let lba = random.below(blocks.into()) as u32;
        let from = match random.below(3) {
            0 => Origin::Host(random.below(handles.host.into()) as u8),
            1 => Origin::Moved(random.below(handles.moved.into()) as u8),
            _ => Origin::Unknown,
        };
        match random.below(20) {
            0 => Self::Trim(lba, 1 + random.below((blocks - lba).into()) as u32),
            1 => Self::Reclaimed(from, random.below(1 << 30)),
            2..=5 => Self::Move(MoveView { lba, now, age: random.below(1 << 40), from, handles }),
            _ => {
                let lifetime = Lifetime::from_linux(random.below(6) as u8);
                let hint = Hint { handle: random.below(256) as u8, lifetime };
                let age = random.chance(0.5).then(|| random.below(1 << 30));
                let continues = random.chance(0.3);
                Self::Write(WriteView { lba, continues, hint, now, age, handles })
            }
        }
    }

    fn tell(&self, policy: &mut dyn StreamPolicy) -> Option<u8> {
        match self {
            Self::Write(view) => Some(policy.place_write(view)),
            Self::Move(view) => Some(policy.place_move(view)),
            Self::Trim(first, blocks) => {
                policy.trimmed(*first, *blocks);
                None
            }
            Self::Reclaimed(from, lifetime) => {
                policy.reclaimed(*from, *lifetime);
                None
            }
        }
    }
}

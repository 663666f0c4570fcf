//! Pages that rot while the power is off: whatever pages they are, the device mounts, and what it shows
//! is right, or an error; unless its owner wants what may be stale, too.
//!
//! Invariants:
//! - The rot of one page of the checkpoint costs nothing: its copy or the parity makes up for it.
//! - If more rot, what is not certain is refused, and the device is read-only. To its owner it shows every
//!   block, and the only ones that differ are those that it says may be stale: they come back from a
//!   trim, or from an atomic write that a power cut had undone. It goes on from there.
//! - If a page of data rots besides, the report says so.
//! - A recovery that is cut off and done again shows the same.

use crate::crash::{CrashOptions, generator};
use crate::driver::{Failure, Sim, Step};
use crate::host::Host;
use crate::medium::{Content, SimMedium, stamp_crc};
use crate::model::{Model, ZERO};
use crate::workload::{Action, Op};
use flash::{BlockId, Geometry, Hint, Instant, Random, RequestError, SlotId};
use ftl::FormatOptions;
use ftl::format::{Header, Kind, decode_header, uuid_crc};
use nand::Faults;

const UUID: u128 = 11;

/// What was tried.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct RotReport {
    /// Images with one rotten page, or a few.
    pub images: u64,
    /// Of them: rebuilt from every band.
    pub rebuilt: u64,
    /// Of them: read-only, unless their owner wants what may be stale.
    pub read_only: u64,
    /// Blocks that came back from a trim, or from an atomic write that was undone.
    pub stale: u64,
}

/// A device without power, and what it shows if nothing rots.
struct Image {
    medium: SimMedium,
    now: Instant,
    observed: Vec<Option<u64>>,
    /// Pages of the checkpoint, by their first slot, with what their first slot holds.
    checkpoint: Vec<(SlotId, Kind)>,
    /// Other programmed pages.
    others: Vec<SlotId>,
}

struct Tester<'a> {
    options: &'a CrashOptions,
    random: Random,
    report: RotReport,
}

/// Ages a device, and lets every page of it rot, one at a time, and then some together.
pub fn survive_rot(seed: u64, options: &CrashOptions) -> Result<RotReport, Failure> {
    let random = Random::new(seed ^ 0x726f_7400);
    let mut tester = Tester { options, random, report: RotReport::default() };
    let image = tester.age(seed)?;
    for &(page, kind) in &image.checkpoint {
        let context = |Failure(why)| Failure(format!("{kind:?} in slot {} rots: {why}", page.0));
        tester.checkpoint_page(&image, page, kind).map_err(context)?;
    }
    for &page in &image.others {
        let context = |Failure(why)| Failure(format!("slot {} rots: {why}", page.0));
        tester.other_page(&image, page).map_err(context)?;
    }
    let context = |Failure(why)| Failure(format!("footers rot: {why}"));
    tester.footers(&image).map_err(context)?;
    for _ in 0..8 {
        tester.map_and_data(&image)?;
    }
    Ok(tester.report)
}

/// The same for the pages of the checkpoint only, alone and several together: for larger devices.
pub fn survive_map_rot(seed: u64, options: &CrashOptions) -> Result<RotReport, Failure> {
    let random = Random::new(seed ^ 0x726f_7400);
    let mut tester = Tester { options, random, report: RotReport::default() };
    let image = tester.age(seed)?;
    let maps = image.checkpoint.iter().filter(|(_, kind)| *kind == Kind::Map);
    let maps: Vec<_> = maps.map(|&(page, _)| page).collect();
    for &(page, kind) in &image.checkpoint {
        let context = |Failure(why)| Failure(format!("{kind:?} in slot {} rots: {why}", page.0));
        tester.checkpoint_page(&image, page, kind).map_err(context)?;
    }
    for _ in 0..8 {
        let some: Vec<_> = maps.iter().copied().filter(|_| tester.random.chance(0.5)).collect();
        let context = |Failure(why)| Failure(format!("slots {some:?} rot: {why}"));
        let sim = tester.rotten(&image, &some).map_err(context)?;
        tester.nothing_lost(&image, &some, sim).map_err(context)?;
        let context = |Failure(why)| Failure(format!("slots {some:?} rot when it serves: {why}"));
        tester.rots_when_ready(&image, &some).map_err(context)?;
        tester.map_and_data(&image)?;
    }
    for unit in 0..image.medium.geometry().units {
        let context = |Failure(why)| Failure(format!("unit {unit} is lost: {why}"));
        tester.unit_goes(&image, unit).map_err(context)?;
    }
    Ok(tester.report)
}

impl Tester<'_> {
    /// As an owner who wants what may be stale, too.
    fn mount(&self, medium: SimMedium, now: Instant) -> Result<Sim, Failure> {
        self.mount_as(medium, now, true)
    }

    fn mount_as(&self, medium: SimMedium, now: Instant, salvage: bool) -> Result<Sim, Failure> {
        let settings = ftl::Settings { salvage, ..self.options.settings.clone() };
        let mut sim = Sim::mount(medium, settings, now)?;
        self.options.plant.apply(sim.ftl_mut());
        Ok(sim)
    }

    /// A device that has lived through operations of every kind, and a power cut or two.
    fn age(&mut self, seed: u64) -> Result<Image, Failure> {
        let medium = self.options.device.build(Faults::default()).map_err(Failure)?;
        let geometry = *medium.geometry();
        let settings = self.options.settings.clone();
        let max = ftl::logical_blocks_max(&geometry, &medium.health(), &settings);
        let logical_blocks = (f64::from(max) * self.options.fill) as u32;
        let format = FormatOptions { logical_blocks, uuid: UUID, label: b"rot".to_vec() };
        let mut sim = Sim::format(medium, format, settings, Instant(0))?;
        self.options.plant.apply(sim.ftl_mut());
        sim.run_until_ready()?;
        let durable_at_reply = geometry.keeps_every_acknowledged_write();
        let mut host = Host::new(sim, Model::new(logical_blocks, durable_at_reply));
        let mut generator = generator(seed, self.options.depth, logical_blocks);
        for _ in 0..2 {
            for _ in 0..120 {
                host.submit(generator.draw(), Hint::default());
                if self.random.chance(0.3) {
                    host.drain()?;
                }
            }
            self.cut(&mut host)?;
        }
        let flush = Op { action: Action::Flush, lba: 0, blocks: 0 };
        host.submit(flush, Hint::default());
        host.drain()?;
        self.image(host, logical_blocks)
    }

    /// A power cut, and the recovery from it.
    fn cut(&mut self, host: &mut Host) -> Result<(), Failure> {
        let mut medium = host.sim.medium().clone();
        medium.power_cut_by_chance(&mut self.random);
        let mut sim = self.mount(medium, host.sim.now())?;
        sim.run_until_ready()?;
        host.sim = sim;
        host.settle()
    }

    /// Ends the device's life by a shutdown or a power cut and notes what it shows.
    fn image(&mut self, host: Host, logical_blocks: u32) -> Result<Image, Failure> {
        let now = host.sim.now();
        let mut medium =
            if self.random.chance(0.5) { host.sim.shutdown()? } else { host.sim.into_medium() };
        // After a shutdown, too: an erase that no flush covers may still be lost.
        medium.power_cut_by_chance(&mut self.random);
        let mut sim = self.mount(medium.clone(), now)?;
        sim.run_until_ready()?;
        let bands = sim.ftl().checkpoint_bands().to_vec();
        let observed = sim.read_all(logical_blocks)?;
        let (mut checkpoint, mut others) = (Vec::new(), Vec::new());
        let geometry = *medium.geometry();
        for block in (0..geometry.blocks()).map(BlockId) {
            for slot in pages_of(&geometry, block) {
                match header_of(&medium, slot) {
                    Some(header) if bands.contains(&block) => checkpoint.push((slot, header.kind)),
                    None if bands.contains(&block) => {}
                    _ if medium.peek(slot).is_some() => others.push(slot),
                    _ => {}
                }
            }
        }
        Ok(Image { medium, now, observed, checkpoint, others })
    }

    /// Mounts the image with these pages rotten. Where the rest of the map is looked at when the host is
    /// served, every other one is read meanwhile; it must show the same as later.
    fn rotten(&mut self, image: &Image, pages: &[SlotId]) -> Result<Sim, Failure> {
        self.report.images += 1;
        let mut sim = self.mount(image.with_rotten(pages), image.now)?;
        sim.run_until_ready()?;
        let blocks = image.observed.len() as u32;
        let early = sim.ftl().is_counting() && self.random.chance(0.5);
        let early = early.then(|| sim.read_all(blocks)).transpose()?;
        let rebuilt = sim.rebuilt()?;
        if let Some(early) = early
            && let later = sim.read_all(blocks)?
            && let Some(lba) = early.iter().zip(&later).position(|(early, later)| early != later)
        {
            let (early, later) = (early[lba], later[lba]);
            return Err(Failure(format!("block {lba} showed {early:?}, and later {later:?}")));
        }
        if rebuilt.is_some() {
            self.report.rebuilt += 1;
            let context =
                |Failure(why)| Failure(format!("without leave to show stale blocks: {why}"));
            self.refuses(image, pages).map_err(context)?;
        }
        Ok(sim)
    }

    /// Nobody has said that stale blocks may be shown.
    fn refuses(&mut self, image: &Image, pages: &[SlotId]) -> Result<(), Failure> {
        let mut sim = self.mount_as(image.with_rotten(pages), image.now, false)?;
        let rebuilt = sim.rebuilt()?;
        let observed = sim.read_all(image.observed.len() as u32)?;
        let differs =
            |(before, after): (&Option<u64>, &Option<u64>)| after.is_some() && before != after;
        // What of a page of data is told from one that the power cut has torn, `missed` knows.
        let of_checkpoint = |&page: &SlotId| {
            header_of(&image.medium, page).is_some_and(|header| header.kind.is_of_checkpoint())
        };
        if pages.iter().all(of_checkpoint)
            && let Some(lba) = image.observed.iter().zip(&observed).position(differs)
        {
            let (before, after) = (image.observed[lba], observed[lba]);
            return Err(Failure(format!("block {lba} showed {before:?} and shows {after:?}")));
        }
        let read_only = rebuilt.is_some_and(|rebuilt| rebuilt.blocks_refused > 0);
        self.report.read_only += u64::from(read_only);
        let wanted = if read_only { Err(RequestError::Failed) } else { Ok(()) };
        self.write(&mut sim, 0, 1 << 62, wanted)
    }

    fn write(
        &self,
        sim: &mut Sim,
        lba: u32,
        stamp: u64,
        wanted: Result<(), RequestError>,
    ) -> Result<(), Failure> {
        sim.write(0, lba, &[stamp], (true, false), Hint::default());
        sim.run_until_answered()?;
        let finished = sim.take_finished().expect("it was answered");
        if finished.result != wanted {
            return Err(Failure(format!("a write gave {:?}", finished.result)));
        }
        sim.release(finished);
        Ok(())
    }

    fn checkpoint_page(&mut self, image: &Image, page: SlotId, kind: Kind) -> Result<(), Failure> {
        let mut sim = self.rotten(image, &[page])?;
        if let Some(rebuilt) = sim.rebuilt()? {
            return Err(Failure(format!("others make up for {kind:?}, and yet {rebuilt:?}")));
        }
        self.nothing_lost(image, &[page], sim)
    }

    /// Both footers of the checkpoint, which its content makes up for; then the map as well, and those
    /// of older ones: every band has to tell what it holds.
    fn footers(&mut self, image: &Image) -> Result<(), Failure> {
        let of_kind = |wanted: Kind| {
            let pages = image.checkpoint.iter().filter(move |(_, kind)| *kind == wanted);
            pages.map(|&(page, _)| page)
        };
        let mut pages: Vec<_> = of_kind(Kind::Footer).collect();
        let mut sim = self.rotten(image, &pages)?;
        if let Some(rebuilt) = sim.rebuilt()? {
            return Err(Failure(format!("the map is whole, and yet {rebuilt:?}")));
        }
        self.nothing_lost(image, &pages, sim)?;
        pages.extend(of_kind(Kind::Map).chain(of_kind(Kind::Parity)));
        let gone = |&page: &SlotId| {
            let kind = header_of(&image.medium, page).map(|header| header.kind);
            matches!(kind, Some(Kind::Footer | Kind::Map | Kind::Parity))
        };
        pages.extend(image.others.iter().copied().filter(gone));
        let mut sim = self.rotten(image, &pages)?;
        if sim.rebuilt()?.is_none() {
            return Err(Failure("no map is whole, and yet nothing was rebuilt".into()));
        }
        self.nothing_lost(image, &pages, sim)
    }

    /// Checks a device of which only pages of the checkpoint rotted.
    fn nothing_lost(
        &mut self,
        image: &Image,
        pages: &[SlotId],
        mut sim: Sim,
    ) -> Result<(), Failure> {
        let observed = sim.read_all(image.observed.len() as u32)?;
        let rebuilt = sim.rebuilt()?;
        // A power cut can tear pages of a file in any order: then data may well be missing.
        let torn = !sim.medium().geometry().durable_at_completion;
        if rebuilt.is_some_and(|rebuilt| rebuilt.pages_lost > 0 && torn) {
            never_wrong(&observed)?;
            return self.live_on(sim, observed);
        }
        let stale = only_stale(&image.observed, &observed)?;
        self.report.stale += stale;
        match rebuilt {
            Some(rebuilt) if rebuilt.pages_lost == 0 && stale <= rebuilt.blocks_stale_max => {}
            None if stale == 0 => {}
            _ => return Err(Failure(format!("{stale} blocks are stale, and {rebuilt:?}"))),
        }
        self.again(image, pages, &observed)?;
        self.live_on(sim, observed)
    }

    /// Cuts the recovery, or what follows it, and recovers again.
    fn again(
        &mut self,
        image: &Image,
        pages: &[SlotId],
        observed: &[Option<u64>],
    ) -> Result<(), Failure> {
        let mut sim = self.mount(image.with_rotten(pages), image.now)?;
        for _ in 0..self.random.below(200) {
            if sim.step(Instant(u64::MAX))? == Step::Idle {
                break;
            }
        }
        let mut medium = sim.medium().clone();
        medium.power_cut_by_chance(&mut self.random);
        let mut sim = self.mount(medium, sim.now())?;
        sim.run_until_ready()?;
        let second = sim.read_all(observed.len() as u32)?;
        if sim.rebuilt()?.is_some_and(|rebuilt| rebuilt.blocks_stale_max > 0) {
            // The first one may have had some of the lost map in DRAM.
            return only_stale(&image.observed, &second).map(|_| ());
        }
        let mut pairs = observed.iter().zip(&second);
        if let Some(lba) = pairs.position(|(first, second)| first != second) {
            return Err(Failure(format!(
                "block {lba} showed {:?} and shows {:?} after a second recovery: {:?}",
                observed[lba],
                second[lba],
                sim.state()
            )));
        }
        Ok(())
    }

    /// A rebuilt device works on.
    fn live_on(&mut self, mut sim: Sim, mut observed: Vec<Option<u64>>) -> Result<(), Failure> {
        for lba in 0..observed.len().min(6) {
            let stamp = 1 << 62 | lba as u64;
            self.write(&mut sim, lba as u32, stamp, Ok(()))?;
            observed[lba] = Some(stamp);
        }
        let now = sim.now();
        let mut sim = self.mount(sim.shutdown()?, now)?;
        let report = sim.run_until_ready()?.clone();
        let rebuilt = sim.rebuilt()?;
        if rebuilt.is_some() || !report.clean {
            let what =
                format!("after a clean shutdown the mount says {report:?}, then {rebuilt:?}");
            return Err(Failure(what));
        }
        if sim.read_all(observed.len() as u32)? != observed {
            return Err(Failure("a rebuilt device lost what was written since".into()));
        }
        Ok(())
    }

    /// Pages of the map rot when the host is served already.
    fn rots_when_ready(&mut self, image: &Image, pages: &[SlotId]) -> Result<(), Failure> {
        let mut sim = self.mount(image.medium.clone(), image.now)?;
        sim.run_until_ready()?;
        pages.iter().for_each(|&page| sim.medium_mut().rot(page));
        let observed = sim.read_all(image.observed.len() as u32)?;
        sim.rebuilt()?;
        if sim.ftl().counter("map_pieces_lost") == 0 {
            return self.nothing_lost(image, pages, sim);
        }
        // They had been counted: then nothing wrong is shown, and the next mount makes up for them.
        let blocks = image.observed.iter().zip(&observed).enumerate();
        for (lba, (before, after)) in blocks.filter(|(_, (_, after))| after.is_some()) {
            if before != after {
                return Err(Failure(format!("block {lba} showed {before:?}, now {after:?}")));
            }
        }
        let mut medium = sim.medium().clone();
        medium.power_cut_by_chance(&mut self.random);
        let mut sim = self.mount(medium, sim.now())?;
        sim.run_until_ready()?;
        self.nothing_lost(image, pages, sim)
    }

    /// A unit stops answering when the host is served, and with it a part of the map, of what it points to,
    /// or of both: nothing wrong is shown, and what is shown stays.
    fn unit_goes(&mut self, image: &Image, unit: u32) -> Result<(), Failure> {
        let mut sim = self.mount(image.medium.clone(), image.now)?;
        sim.run_until_ready()?;
        sim.kill_unit(unit);
        let blocks = image.observed.len() as u32;
        let early = sim.read_all(blocks)?;
        sim.run_until_counted()?;
        let later = sim.read_all(blocks)?;
        never_wrong(&early)?;
        match (0..blocks as usize).find(|&lba| early[lba] != later[lba]) {
            Some(lba) => {
                let (early, later) = (early[lba], later[lba]);
                Err(Failure(format!("block {lba} showed {early:?}, and later {later:?}")))
            }
            None => sim.verify(),
        }
    }

    /// A page that is not the checkpoint's: its blocks are lost, and no block is wrong.
    fn other_page(&mut self, image: &Image, page: SlotId) -> Result<(), Failure> {
        let mut sim = self.rotten(image, &[page])?;
        if let Some(rebuilt) = sim.rebuilt()? {
            return Err(Failure(format!("a whole checkpoint, and yet {rebuilt:?}")));
        }
        let observed = sim.read_all(image.observed.len() as u32)?;
        never_wrong(&observed)
    }

    /// A page of the map, and one of data that no power cut explains.
    fn map_and_data(&mut self, image: &Image) -> Result<(), Failure> {
        let maps = image.checkpoint.iter().filter(|(_, kind)| *kind == Kind::Map);
        let maps: Vec<_> = maps.map(|&(page, _)| page).collect();
        let geometry = *image.medium.geometry();
        let inner = |&&page: &&SlotId| {
            let (index, pages) = (geometry.page_in_block(page), geometry.pages_per_block);
            let partner = geometry.pairing.last_partner(index, pages);
            header_of(&image.medium, page).is_some_and(|header| {
                // Of the same life of the band: an erase may have been lost.
                let later = |slot: SlotId| {
                    geometry.page_in_block(slot) > partner
                        && header_of(&image.medium, slot)
                            .is_some_and(|later| later.order > header.order)
                };
                let mut pages = pages_of(&geometry, geometry.block_of(page));
                let first = pages.next().and_then(|first| header_of(&image.medium, first));
                header.kind == Kind::Data
                    && first.is_some_and(|first| first.order <= header.order)
                    && pages.any(later)
            })
        };
        let data: Vec<_> = image.others.iter().filter(inner).copied().collect();
        // A power cut that tore the footers left the older checkpoint whole, too.
        let footer = image.checkpoint.iter().any(|(_, kind)| *kind == Kind::Footer);
        if maps.is_empty() || data.is_empty() || !footer {
            return Ok(());
        }
        let mut pages = vec![
            maps[self.random.below(maps.len() as u64) as usize],
            data[self.random.below(data.len() as u64) as usize],
        ];
        let parity = image.checkpoint.iter().filter(|(_, kind)| *kind == Kind::Parity);
        pages.extend(parity.map(|&(page, _)| page));
        let context =
            |Failure(why)| Failure(format!("slots {} and {} rot: {why}", pages[0].0, pages[1].0));
        let mut sim = self.rotten(image, &pages)?;
        let observed = sim.read_all(image.observed.len() as u32)?;
        never_wrong(&observed).map_err(context)?;
        match sim.rebuilt()? {
            Some(rebuilt) if rebuilt.pages_lost > 0 => self.live_on(sim, observed).map_err(context),
            rebuilt => Err(context(Failure(format!("data is missing, and {rebuilt:?}")))),
        }
    }
}

impl Image {
    fn with_rotten(&self, pages: &[SlotId]) -> SimMedium {
        let mut medium = self.medium.clone();
        pages.iter().for_each(|&page| medium.rot(page));
        medium
    }
}

fn pages_of(geometry: &Geometry, block: BlockId) -> impl Iterator<Item = SlotId> + use<> {
    let geometry = *geometry;
    (0..geometry.pages_per_block).map(move |page| geometry.slot(block, page, 0))
}

/// What the slot's OOB says, if the slot is sound.
fn header_of(medium: &SimMedium, slot: SlotId) -> Option<Header> {
    let (oob, content) = medium.peek(slot).filter(|_| medium.is_readable(slot))?;
    let crc = match content {
        Content::Stamp(stamp) => stamp_crc(stamp),
        Content::Meta(bytes) => flash::crc(&bytes[..]),
        Content::Empty => flash::crc(&[0; flash::BLOCK_BYTES]),
    };
    let header = decode_header(&oob, slot, uuid_crc(UUID))?;
    (header.payload_crc == crc).then_some(header)
}

/// Every block shows an own version, or zeroes, or an error.
fn never_wrong(observed: &[Option<u64>]) -> Result<(), Failure> {
    for (lba, stamp) in (0..).zip(observed) {
        let own = stamp.is_none_or(|stamp| stamp == ZERO || stamp as u32 == lba);
        if !own {
            return Err(Failure(format!("block {lba} shows {stamp:?}")));
        }
    }
    Ok(())
}

/// How many blocks differ from what the device would show. Fails if one does that may not.
fn only_stale(sound: &[Option<u64>], observed: &[Option<u64>]) -> Result<u64, Failure> {
    never_wrong(observed)?;
    let mut stale = 0;
    for (lba, (&before, &after)) in sound.iter().zip(observed).enumerate() {
        if before == after {
            continue;
        }
        let (Some(old), Some(new)) = (before, after) else {
            return Err(Failure(format!("block {lba} showed {before:?} and shows {after:?}")));
        };
        let undone = new >> 32 > old >> 32;
        if old != ZERO && !undone {
            return Err(Failure(format!(
                "block {lba} goes back from version {} to {}",
                old >> 32,
                new >> 32
            )));
        }
        stale += 1;
    }
    Ok(stale)
}

//! The map on flash rots while the device runs on a part of it in DRAM: what cannot be told any more
//! is refused, nothing wrong is shown, and the next mount has everything that was acknowledged.

use crate::checker::verify_valid;
use crate::crash::CrashOptions;
use crate::driver::{Failure, Sim};
use crate::host::Host;
use crate::medium::Content;
use crate::model::Model;
use crate::workload::{Arrival, Generator, Pattern, Workload};
use flash::{Geometry, Hint, Instant, Random, SlotId};
use ftl::FormatOptions;
use ftl::format::{Kind, decode_header, uuid_crc};
use nand::Faults;

const UUID: u128 = 13;

/// What came of it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct LostMapReport {
    /// Pieces that were missed while the device ran.
    pub pieces_lost: u64,
    /// Slots that parity made up for while the device ran.
    pub mended: u64,
    /// Requests that were refused for it.
    pub refused: u64,
    /// The next mount, whose owner wanted all of it, made up for what was lost of the map, by parity or
    /// from every band.
    pub made_up: u64,
}

/// Runs one seed. The device must keep what it programmed.
pub fn survive_lost_map(seed: u64, options: &CrashOptions) -> Result<LostMapReport, Failure> {
    let mut random = Random::new(seed ^ 0x6c6f_7374);
    let mut host = begin(options)?;
    let mut generator = generator(&host, seed)?;
    run(&mut host, &mut generator, 300)?;
    // Without parity nothing makes up for it.
    let kinds: &[Kind] = if random.chance(0.5) { &[Kind::Map, Kind::Parity] } else { &[Kind::Map] };
    rot_map(&mut host.sim, kinds);
    host.model.tolerate_unreadable();
    host.refusals_are_legal = true;
    // With some of its pieces there and some not.
    run(&mut host, &mut generator, 60)?;
    host.read_back()?;
    let pieces_lost = host.sim.ftl().counter("map_pieces_lost");
    let mended = host.sim.ftl().counter("slots_damaged");
    let refused = host.counts.unreadable + host.counts.refused;
    if refused > 0 && pieces_lost == 0 {
        return Err(Failure(format!("{refused} requests were refused, and no piece was lost")));
    }

    let mut medium = host.sim.medium().clone();
    medium.power_cut_by_chance(&mut random);
    let settings = ftl::Settings { salvage: true, ..options.settings.clone() };
    let mut sim = Sim::mount(medium, settings, host.sim.now())?;
    let rebuilt = sim.rebuilt()?;
    // None if a checkpoint was on its way that needed nothing of what rotted.
    if rebuilt.is_some_and(|rebuilt| rebuilt.pages_lost > 0) {
        return Err(Failure(format!("{pieces_lost} pieces were lost, and then {rebuilt:?}")));
    }
    let observed = sim.read_all(host.model.logical_blocks())?;
    let made_up = rebuilt.is_some() || sim.ftl().counter("slots_damaged") > 0;
    let made_up = u64::from(made_up);
    host.model.check_recovered(&observed).map_err(Failure)?;
    if let Some(lba) = observed.iter().position(Option::is_none) {
        return Err(Failure(format!("block {lba} is unreadable after the mount")));
    }
    host.model.settle(&observed);
    sim.verify()?;
    verify_valid(&mut sim, host.model.logical_blocks())?;
    let mut again = Host::new(sim, host.model);
    run(&mut again, &mut generator, 60)?;
    again.read_back()?;
    again.sim.verify()?;
    Ok(LostMapReport { pieces_lost, mended, refused, made_up })
}

fn begin(options: &CrashOptions) -> Result<Host, Failure> {
    let medium = options.device.build(Faults::default()).map_err(Failure)?;
    let geometry = *medium.geometry();
    let settings = options.settings.clone();
    let max = ftl::logical_blocks_max(&geometry, &medium.health(), &settings);
    let logical_blocks = (f64::from(max) * options.fill) as u32;
    let format = FormatOptions { logical_blocks, uuid: UUID, label: Vec::new() };
    let mut sim = Sim::format(medium, format, settings, Instant(0))?;
    sim.run_until_ready()?;
    let durable_at_reply = geometry.keeps_every_acknowledged_write();
    Ok(Host::new(sim, Model::new(logical_blocks, durable_at_reply)))
}

/// No trims, and no atomic writes: a rebuild may bring back what these undid.
fn generator(host: &Host, seed: u64) -> Result<Generator, Failure> {
    let workload = Workload {
        reads: 0.3,
        flushes: 0.1,
        fua: 0.2,
        sizes: vec![(1, 4.0), (3, 1.0), (20, 0.5)],
        pattern: Pattern::HotCold { fraction: 0.3, share: 0.5 },
        arrival: Arrival::Closed { depth: 4 },
        ..Workload::default()
    };
    Generator::new(workload, host.model.logical_blocks(), seed).map_err(Failure)
}

fn run(host: &mut Host, generator: &mut Generator, operations: u32) -> Result<(), Failure> {
    for operation in 0..operations {
        host.submit(generator.draw(), Hint::default());
        if operation % 4 == 3 {
            host.drain()?;
        }
    }
    host.drain()
}

/// Every page of the last checkpoint that holds one of these rots.
fn rot_map(sim: &mut Sim, kinds: &[Kind]) {
    let geometry = *sim.medium().geometry();
    let bands = sim.ftl().checkpoint_bands().to_vec();
    let pages = bands.iter().flat_map(|&block| {
        (0..geometry.pages_per_block).map(move |page| geometry.slot(block, page, 0))
    });
    for page in pages.collect::<Vec<_>>() {
        if holds(sim, &geometry, page, kinds) {
            sim.medium_mut().rot(page);
        }
    }
}

fn holds(sim: &Sim, geometry: &Geometry, page: SlotId, kinds: &[Kind]) -> bool {
    (page.0..page.0 + geometry.slots_per_page).map(SlotId).any(|slot| {
        let found = sim.medium().peek(slot);
        let header = found.filter(|(_, content)| matches!(content, Content::Meta(_)));
        let header = header.and_then(|(oob, _)| decode_header(&oob, slot, uuid_crc(UUID)));
        header.is_some_and(|header| kinds.contains(&header.kind))
    })
}

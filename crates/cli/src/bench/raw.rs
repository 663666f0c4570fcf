//! The emulated flash against arithmetic: bandwidth with every die busy, and the latency of a read
//! on an idle device, for each profile. The figure is the error in percent; it should be none.

use super::{Figure, Goal, Request, measured};
use flash::{BLOCK_BYTES, Command, Geometry, Instant, Tag};
use nand::{Faults, Layout, Nand, Profile};

const LAYOUT: Layout = Layout { channels: 4, dies_per_channel: 2, blocks_per_plane: 32 };
const GOAL: Goal = Goal::AtMost(1.0);

pub fn identities(request: &mut Request<'_>) {
    for name in Profile::builtin_names() {
        // Without delays there is no bandwidth to hold it to.
        let Some(profile) = Profile::builtin(name).filter(|profile| !profile.is_instant()) else {
            continue;
        };
        let bandwidth = format!("raw-bandwidth-{name}");
        if request.wants(&bandwidth) {
            let figure = bandwidth_error(&profile)
                .map(|(error, note)| Figure::new(&*bandwidth, error, "% error", GOAL).note(note));
            (request.sink)(measured(&bandwidth, "% error", GOAL, figure));
        }
        let latency = format!("raw-latency-{name}");
        if request.wants(&latency) {
            let figure = latency_error(&profile)
                .map(|(error, note)| Figure::new(&*latency, error, "% error", GOAL).note(note));
            (request.sink)(measured(&latency, "% error", GOAL, figure));
        }
    }
}

/// How far a measured value is from the computed one, in percent.
fn error_percent(found: f64, expected: f64) -> f64 {
    ((found / expected - 1.0) * 100.0).abs()
}

fn bandwidth_error(profile: &Profile) -> Result<(f64, String), String> {
    let mut device = Device::new(profile)?;
    let geometry = device.nand.geometry();
    let (pages, slots) = (geometry.pages_per_block, geometry.slots_per_page);
    let all = pages * geometry.blocks_per_unit;
    let page = |unit: u32, step: u32| {
        let block = geometry.block(unit, step / pages % geometry.blocks_per_unit);
        geometry.slot(block, step % pages, 0)
    };
    let page_bytes = f64::from(slots) * BLOCK_BYTES as f64;
    let programs = device.rate(all, |tag, unit, step| Command::Program {
        tag,
        slot: page(unit, step),
        count: slots,
    })? * page_bytes;
    let reads = device.rate(all, |tag, unit, step| Command::Read {
        tag,
        slot: page(unit, step),
        count: slots,
        into: None,
        urgent: false,
    })? * page_bytes;
    let erases = device.rate(geometry.blocks_per_unit, |tag, unit, step| Command::Erase {
        tag,
        block: geometry.block(unit, step),
    })? * page_bytes
        * f64::from(pages);
    let errors = [
        error_percent(programs, profile.raw_program_bandwidth(&LAYOUT)),
        error_percent(reads, profile.raw_read_bandwidth(&LAYOUT)),
        error_percent(erases, profile.raw_erase_bandwidth(&LAYOUT)),
    ];
    let worst = errors.into_iter().fold(0.0, f64::max);
    let note = format!(
        "4 channels of 2 dies: program {:.1}, read {:.1} MB/s",
        programs / 1e6,
        reads / 1e6
    );
    Ok((worst, note))
}

/// The mean latency over a block's pages of a read of one slot, nothing else running.
fn latency_error(profile: &Profile) -> Result<(f64, String), String> {
    let mut device = Device::new(profile)?;
    let geometry = device.nand.geometry();
    let block = geometry.block(0, 0);
    let mut sum = 0;
    for page in 0..geometry.pages_per_block {
        let slot = geometry.slot(block, page, 0);
        device.one(Command::Program { tag: Tag(0), slot, count: geometry.slots_per_page })?;
        let read = Command::Read { tag: Tag(0), slot, count: 1, into: None, urgent: false };
        sum += device.one(read)?;
    }
    let mean = sum as f64 / f64::from(geometry.pages_per_block);
    let expected = profile.read_latency_ns(BLOCK_BYTES as u64) as f64;
    Ok((error_percent(mean, expected), format!("4 KiB read in {:.1} us", mean / 1e3)))
}

struct Device {
    nand: Nand,
    now: Instant,
}

impl Device {
    fn new(profile: &Profile) -> Result<Self, String> {
        let nand = Nand::new(profile, &LAYOUT, Faults::default())?;
        Ok(Self { nand, now: Instant(0) })
    }

    /// One command on an idle device: how long it took.
    fn one(&mut self, command: Command) -> Result<u64, String> {
        let begun = self.now;
        self.nand.handle(begun, command).map_err(|illegal| illegal.to_string())?;
        while let Some(at) = self.nand.deadline() {
            self.now = at;
            if self.nand.poll(at).is_some() {
                break;
            }
        }
        Ok(self.now - begun)
    }

    /// Commands per second of all units, each given `steps`, as many at once as it takes. The
    /// first and the last twentieth are left out: there not every die is busy.
    fn rate(
        &mut self,
        steps: u32,
        command: impl Fn(Tag, u32, u32) -> Command,
    ) -> Result<f64, String> {
        let Geometry { units, queue_depth, .. } = self.nand.geometry();
        let mut given = vec![0; units as usize];
        let mut running = vec![0; units as usize];
        let whole = u64::from(steps) * u64::from(units);
        let (from, to) = (whole / 20, whole - whole / 20);
        let (mut ended, mut from_at) = (0, self.now);
        let mut rate = 0.0;
        loop {
            for unit in 0..units as usize {
                while running[unit] < queue_depth && given[unit] < steps {
                    let command = command(Tag(unit as u32), unit as u32, given[unit]);
                    self.nand.handle(self.now, command).map_err(|illegal| illegal.to_string())?;
                    given[unit] += 1;
                    running[unit] += 1;
                }
            }
            let Some(at) = self.nand.deadline() else { return Ok(rate) };
            self.now = at;
            while let Some(outcome) = self.nand.poll(self.now) {
                running[unit_of(&outcome)] -= 1;
                ended += 1;
                if ended == from {
                    from_at = self.now;
                }
                if ended == to {
                    rate = (to - from) as f64 * 1e9 / (self.now - from_at) as f64;
                }
            }
        }
    }
}

/// Each command is named after its unit.
fn unit_of(outcome: &nand::Outcome) -> usize {
    match *outcome {
        nand::Outcome::Read { tag, .. }
        | nand::Outcome::Program { tag, .. }
        | nand::Outcome::Erase { tag, .. }
        | nand::Outcome::Finish { tag }
        | nand::Outcome::Flush { tag, .. } => tag.0 as usize,
    }
}

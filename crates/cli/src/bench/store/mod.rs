//! RocksDB of `weir store` on SDF's flash, in the shapes of SDF's Figures 10 to 14: values of 512 KiB, batches of them got at
//! random, scans, puts with real compaction. 44 channels of it in real time are more than a small machine can move, so
//! the clock of the flash is slowed [`DILATE`] times (`weir serve --dilate`): bandwidths and times of values are in the flash's
//! own time. What of a processor's time that needed is told beside them: near all of it, and the machine was the bound.
//!
//! Beside a figure of batches stands what the flash could do at most for the same requests, with the SSTs where they lie: less
//! than its whole bandwidth, as values that are drawn meet on channels by chance.
//!
//! The conventional drive is the same engine and the same flash behind Weir's own block FTL as firmware has it: greedy, one
//! stream, 28 % over-provisioning, a block volume of which each SST takes an extent of 8 MiB that is trimmed when it is
//! deleted (`weir store serve --tables`). It stands for a file system on such a drive; it is not SDF's Gen3 itself.

mod plugin;
mod served;

use super::{Figure, Goal, Request};
use crate::output::Progress;
use flash::Random;
use served::{Drive, Load, Served};
use std::time::Duration;

const GROUP: &str = "store";
const GBS: &str = "GB/s";
/// The clock of the flash is slowed so many times.
const DILATE: u32 = 20;
const CHANNELS: usize = 44;
const VALUE_BYTES: usize = 512 << 10;
/// Raw blocks of an SST where they are to be full.
const DENSE_BLOCKS: u32 = 8;
/// Read at a time from a channel: a page with its spare bytes at 40 MB/s.
const CHANNEL_GB: f64 = 0.0379;
/// The whole flash, written with erases (SDF's Table 4).
const WRITE_GB: f64 = 0.96;
/// Threads of a scanning client, which reads one slice (SDF's Figure 13).
const SCANNERS: u64 = 6;

/// Clients that each wait for a batch before they ask for the next, how many values they ask for at a time, and what SDF's
/// Figures 10 to 12 have there, as an independent model of them says.
const GETS: [(u64, usize, f64); 8] = [
    (1, 1, 0.038),
    (1, 8, 0.197),
    (1, 16, 0.276),
    (1, 32, 0.380),
    (1, 44, 0.432),
    (4, 44, 1.070),
    (8, 44, 1.304),
    (16, 8, f64::NAN),
];
const SCANS: [u64; 4] = [1, 4, 8, 16];
const GOAL_GETS: f64 = 0.95;
const GOAL_WRITES: f64 = 0.90;

/// All figures of the group.
pub fn figures(request: &mut Request<'_>) {
    let mut progress = Progress::new(GROUP);
    let seconds = if request.quick { 6 } else { 20 };
    let raw = measure(Drive::Raw, seconds, request, &mut progress);
    let beside = measure(Drive::Conventional, seconds, request, &mut progress);
    progress.clear();
    if let Some(why) = &beside.failed {
        eprintln!("store: the conventional drive: {why}");
    }
    for name in names() {
        if request.wants(&name) {
            (request.sink)(figure(&name, &raw, &beside));
        }
    }
    if request.wants("store-plugin-cpu") {
        progress.tell("reads of 4 KiB by the plug-in's store");
        let goal = Goal::AtMost(5.0);
        let figure = plugin::cost()
            .map(|(us, note)| Figure::new("store-plugin-cpu", us, "us/read", goal).note(note));
        (request.sink)(super::measured("store-plugin-cpu", "us/read", goal, figure));
    }
}

fn gets_name(clients: u64, batch: usize) -> String {
    format!("store-gets-{clients}x{batch}")
}

fn scan_name(clients: u64) -> String {
    format!("store-scan-{clients}x{SCANNERS}")
}

fn names() -> Vec<String> {
    let gets = GETS.iter().map(|&(clients, batch, _)| gets_name(clients, batch));
    let rest = ["store-writes", "store-get-p99-compaction", "store-waf", "store-capacity"];
    gets.chain(SCANS.iter().map(|&clients| scan_name(clients)))
        .chain(rest.map(Into::into))
        .collect()
}

/// What a drive did.
#[derive(Default)]
struct Measured {
    loads: Vec<(String, Load)>,
    /// Raw blocks with something in them, of each channel.
    weights: Vec<u32>,
    /// Milliseconds of the flash's time that one of a hundred gets took longer than.
    p99_alone: f64,
    p99_beside: f64,
    /// Bytes that clients put while SSTs were written.
    put_gb: f64,
    /// Bytes of raw blocks that were put meanwhile.
    block_gb: f64,
    waf: Option<f64>,
    /// Bytes of SSTs for each byte of the raw blocks that they lie in; where SSTs have [`DENSE_BLOCKS`].
    filled: f64,
    filled_dense: f64,
    /// Why what is missing was not measured.
    failed: Option<String>,
}

impl Measured {
    fn load(&self, name: &str) -> Option<&Load> {
        self.loads.iter().find(|(of, _)| of == name).map(|(_, load)| load)
    }
}

/// What is measured before something fails is kept.
fn measure(drive: Drive, seconds: u64, request: &Request<'_>, progress: &mut Progress) -> Measured {
    let mut measured = Measured::default();
    measured.failed = measure_all(drive, seconds, request, (&mut measured, progress)).err();
    measured
}

fn measure_all(
    drive: Drive,
    seconds: u64,
    request: &Request<'_>,
    (measured, progress): (&mut Measured, &mut Progress),
) -> Result<(), String> {
    let folder = served::folder();
    let values = if request.quick { 1200 } else { 4000 };
    progress.tell(&format!("{drive}: 44 channels are made, and values put"));
    // As quickly as the flash is; only what is measured is slowed.
    let filling = Served::start(&folder.0, drive, (1, 1), values)?;
    filling.fill()?;
    measured.filled = filling.filled()?;
    drop(filling);
    let served = Served::start(&folder.0, drive, (DILATE, 1), values)?;
    let time = Duration::from_secs(seconds);
    measured.weights = served.weights()?;
    for (clients, batch, _) in GETS {
        let name = gets_name(clients, batch);
        // The conventional drive is asked the ends of the row.
        if request.wants(&name) && (drive == Drive::Raw || [1, 44].contains(&batch)) {
            progress.tell(&format!("{drive}: {name}"));
            measured.loads.push((name, served.gets((clients, batch), time)?.0));
        }
    }
    for clients in SCANS {
        let name = scan_name(clients);
        if request.wants(&name) && (drive == Drive::Raw || [4, 16].contains(&clients)) {
            progress.tell(&format!("{drive}: {name}"));
            measured.loads.push((name, served.scans(clients, SCANNERS, time)?));
        }
    }
    if ["store-writes", "store-get-p99-compaction", "store-waf"]
        .iter()
        .any(|name| request.wants(name))
    {
        progress.tell(&format!("{drive}: gets alone, then beside puts with compaction"));
        let (_, alone) = served.gets((8, 1), time)?;
        let beside = served.gets_beside_puts(2 * time)?;
        measured.loads.push(("store-writes".into(), beside.load));
        (measured.p99_alone, measured.p99_beside) = (p99_ms(alone), p99_ms(beside.took));
        (measured.put_gb, measured.block_gb) = (beside.put_gb, beside.block_gb);
        measured.waf = served.waf()?;
    }
    if request.wants("store-capacity") && drive == Drive::Raw {
        progress.tell(&format!("{drive}: SSTs of {DENSE_BLOCKS} raw blocks"));
        drop(served);
        let dense = Served::start(&folder.0, drive, (1, DENSE_BLOCKS), values)?;
        dense.compact()?;
        measured.filled_dense = dense.filled()?;
    }
    Ok(())
}

/// A figure of what was measured, with its goal, and what else there is to know.
fn figure(name: &str, raw: &Measured, beside: &Measured) -> Figure {
    let unmeasured = |unit, goal| {
        let failed = [raw, beside].into_iter().find_map(|drive| drive.failed.as_deref());
        let why = failed.unwrap_or("it did not come to that");
        Figure::missing(name, unit, goal, why)
    };
    let gets = GETS.iter().find(|&&(clients, batch, _)| gets_name(clients, batch) == name);
    match (name, gets, raw.load(name)) {
        (_, Some(&(clients, batch, sdf)), load) => {
            let ideal = ideal(clients, batch, &raw.weights);
            let goal = Goal::AtLeast(ideal * GOAL_GETS);
            let Some(load) = load else { return unmeasured(GBS, goal) };
            let share = load.gb / ideal * 100.0;
            let sdf = if sdf.is_nan() { String::new() } else { format!("; SDF's about {sdf}") };
            let note = format!("{share:.0} % of {ideal:.3}, which the flash can at most{sdf}");
            Figure::new(name, load.gb, GBS, goal).note(noted(&note, load, beside.load(name)))
        }
        ("store-writes", _, load) => {
            let goal = Goal::AtLeast(WRITE_GB * GOAL_WRITES);
            let Some(load) = load else { return unmeasured(GBS, goal) };
            let note = format!(
                "whole SSTs, for puts of {:.3}; raw blocks, of compactions under way too, {:.3} of {WRITE_GB}",
                raw.put_gb, raw.block_gb
            );
            Figure::new(name, load.gb, GBS, goal).note(noted(&note, load, beside.load(name)))
        }
        ("store-get-p99-compaction", ..) => {
            let goal = Goal::AtLeast(3.0);
            if raw.p99_beside == 0.0 || beside.p99_beside == 0.0 {
                return unmeasured("x better", goal);
            }
            let note = format!(
                "{:.0} ms against {:.0} of the conventional drive; without puts {:.0} and {:.0}; in the flash's time",
                raw.p99_beside, beside.p99_beside, raw.p99_alone, beside.p99_alone
            );
            let better = beside.p99_beside / raw.p99_beside;
            Figure::new(name, better, "x better", goal).note(note)
        }
        ("store-waf", ..) => {
            let goal = Goal::Near(1.0, 0.01);
            let Some(waf) = raw.waf else { return unmeasured("x", goal) };
            let conventional = beside.waf.map_or("none".into(), |waf| format!("{waf:.2}"));
            Figure::new(name, waf, "x", goal)
                .note(format!("of the flash; conventional: {conventional}, with trims"))
        }
        ("store-capacity", ..) => {
            let goal = Goal::AtLeast(98.5);
            if raw.filled_dense == 0.0 {
                return unmeasured("%", goal);
            }
            let note = format!(
                "of the raw blocks that SSTs lie in, with SSTs of {DENSE_BLOCKS}; {:.0} % with SSTs of one, which end behind \
                 the value that reaches seven eighths",
                raw.filled * 100.0
            );
            Figure::new(name, raw.filled_dense * 100.0, "%", goal).note(note)
        }
        (_, _, load) => {
            let clients = SCANS.into_iter().find(|&clients| scan_name(clients) == name);
            let ideal = ideal(clients.unwrap_or(1) * SCANNERS, 1, &raw.weights);
            let goal = Goal::AtLeast(ideal * GOAL_GETS);
            let Some(load) = load else { return unmeasured(GBS, goal) };
            let share = load.gb / ideal * 100.0;
            let note = format!(
                "{share:.0} % of {ideal:.3}, which the flash can at most for as many threads"
            );
            Figure::new(name, load.gb, GBS, goal).note(noted(&note, load, beside.load(name)))
        }
    }
}

fn noted(note: &str, load: &Load, beside: Option<&Load>) -> String {
    let conventional =
        beside.map_or(String::new(), |load| format!("; conventional {:.3}", load.gb));
    format!(
        "{note}{conventional}; clock slowed {DILATE} times, {:.2} of {} processors",
        load.processors,
        super::cores()
    )
}

/// Bandwidth of clients that each ask for a batch of values on channels that are drawn, as many as lie there, and wait for
/// all of it: channels serve in order, each alone.
fn ideal(clients: u64, batch: usize, weights: &[u32]) -> f64 {
    let took = VALUE_BYTES as f64 / 1e9 / CHANNEL_GB;
    let even = [1; CHANNELS];
    let weights = if weights.iter().sum::<u32>() == 0 { &even[..] } else { weights };
    let places: Vec<usize> = (0..weights.len())
        .flat_map(|channel| std::iter::repeat_n(channel, weights[channel] as usize))
        .collect();
    let mut random = Random::new(1);
    let mut free = vec![0.0_f64; weights.len()];
    let mut ready = vec![0.0_f64; clients as usize];
    let rounds = 400 * clients;
    for _ in 0..rounds {
        let next = ready.iter_mut().min_by(|one, other| one.total_cmp(other));
        let Some(next) = next else { return 0.0 };
        let mut end = *next;
        for _ in 0..batch {
            let channel = &mut free[places[random.below(places.len() as u64) as usize]];
            *channel = channel.max(*next) + took;
            end = end.max(*channel);
        }
        *next = end;
    }
    let end = ready.into_iter().fold(0.0, f64::max);
    (rounds * batch as u64 * VALUE_BYTES as u64) as f64 / end / 1e9
}

fn p99_ms(mut took: Vec<f64>) -> f64 {
    took.sort_by(f64::total_cmp);
    let at = took.len() * 99 / 100;
    took.get(at).map_or(0.0, |seconds| seconds * 1e3 / f64::from(DILATE))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole flash, read (SDF's Table 4).
    const READ_GB: f64 = 1.669;

    #[test]
    fn what_the_flash_can_at_most_grows_with_clients_and_batches_up_to_all_of_it() {
        let of = GETS.map(|(clients, batch, _)| ideal(clients, batch, &[3; CHANNELS]));
        // One value at a time: one channel.
        assert!((of[0] - CHANNEL_GB).abs() < 0.001, "{of:?}");
        assert!(of[0] < of[1] && of[1] < of[2] && of[2] < of[3] && of[3] < of[4], "{of:?}");
        assert!(of[4] < of[5] && of[5] < of[6] && of[6] < READ_GB, "{of:?}");
        // An independent model of SDF's Figures 10 and 11 says so too.
        for ((_, _, sdf), ours) in GETS.into_iter().zip(of).take(7) {
            assert!((ours / sdf - 1.0).abs() < 0.12, "{ours} {sdf}");
        }
        let all_on_one = ideal(1, 44, &[0, 7, 0]);
        assert!((all_on_one - CHANNEL_GB).abs() < 0.001, "{all_on_one}");
    }

    #[test]
    fn a_figure_that_was_not_measured_is_there_with_its_reason() {
        let none = Measured { failed: Some("the flash is gone".into()), ..Measured::default() };
        for name in names() {
            let figure = figure(&name, &none, &none);
            assert!(figure.value.is_none() && figure.note == "the flash is gone", "{name}");
        }
    }
}

//! The constants of a device file with which a device does what a drive did.

use super::part::Part;
use super::rig::{Agreement, Rig};
use crate::fit::{Effort, Knob, search};
use pool::profile::Profile;

/// Flash of a device that is measured: enough that GC hardly works, as in drives that were written once and
/// profiled, and little enough to be filled in a second.
pub const FLASH_BYTES: u64 = 6 << 30;

/// Keys of a device file that are looked for, with their bounds: what no data sheet tells of a drive. Those that
/// a file does not have, or has at 0, stay as they are.
const KNOBS: [(&str, Knob); 10] = [
    ("layout.dies_per_channel", whole(1.0, 32.0)),
    ("profile_changes.read_ns", whole(10e3, 120e3)),
    ("profile_changes.program_ns", whole(100e3, 8e6)),
    ("profile_changes.suspend_program_ns", whole(1e3, 2e6)),
    ("cache.gather_bytes", whole(4096.0, 4194304.0)),
    ("link.queue_depth", whole(4.0, 1024.0)),
    ("link.command_ns", whole(1e3, 30e3)),
    ("link.read_bytes_per_s", whole(1e7, 1e11)),
    ("firmware.command_ns", whole(500.0, 20e3)),
    ("firmware.write_page_ns", whole(500.0, 40e3)),
];

const fn whole(least: f64, most: f64) -> Knob {
    Knob { least, most, whole: true }
}

/// What was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Fitted {
    /// The device with these constants.
    pub part: Part,
    /// Of that device.
    pub agreement: Agreement,
    /// How many devices were measured.
    pub tries: u32,
}

/// A device that was tried.
#[derive(Clone, Debug, PartialEq)]
pub struct Tried<'a> {
    /// Keys of the device file and their values.
    pub keys: &'a [(&'static str, f64)],
    /// How far it is from the drive, or why there is no such device.
    pub error: &'a Result<f64, String>,
}

/// A part of a device beside a drive, with so much flash.
///
/// # Errors
/// Why it cannot be built, or what failed inside.
pub fn beside(
    part: &Part,
    flash_bytes: u64,
    profile: &Profile,
    seed: u64,
) -> Result<Agreement, String> {
    let target = part.build(flash_bytes, seed)?;
    let mut rig = Rig::new(target, part.count(), seed).map_err(|failure| failure.0)?;
    rig.beside(profile).map_err(|failure| failure.0)
}

/// The constants with which a device does what the drive did, looked for from those of its file on. `told` hears
/// of each device that was tried.
///
/// # Errors
/// As of [`beside`] for the device that was given; another one that cannot be built only loses.
pub fn fit(
    part: &Part,
    flash_bytes: u64,
    profile: &Profile,
    effort: Effort,
    seed: u64,
    told: &mut dyn FnMut(Tried<'_>),
) -> Result<Fitted, String> {
    let has = |(key, knob): &(&'static str, Knob)| {
        let value = part.value(key).filter(|value| *value > 0.0)?;
        Some((*key, *knob, value))
    };
    let known: Vec<(&str, Knob, f64)> = KNOBS.iter().filter_map(has).collect();
    let knobs: Vec<Knob> = known.iter().map(|(_, knob, _)| *knob).collect();
    let start: Vec<f64> = known.iter().map(|(_, _, value)| *value).collect();
    let with = |at: &[f64]| -> Vec<(&'static str, f64)> {
        known.iter().zip(at).map(|((key, ..), value)| (*key, *value)).collect()
    };
    let mut first = true;
    let found = search(&knobs, &start, effort, |at| {
        let keys = with(at);
        let agreement = beside(&part.with(&keys), flash_bytes, profile, seed);
        let error = agreement.map(|agreement| agreement.error());
        told(Tried { keys: &keys, error: &error });
        match (error, std::mem::take(&mut first)) {
            (Err(why), true) => Err(why),
            (error, _) => Ok(error.unwrap_or(f64::NAN)),
        }
    })?;
    let part = part.with(&with(&found.at));
    let agreement = beside(&part, flash_bytes, profile, seed)?;
    Ok(Fitted { part, agreement, tries: found.tries })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device_file::{DeviceSpec, Scale};
    use crate::drives::Share;

    /// The table of all drives in docs/drives.md.
    const DOCS: &str = include_str!("../../../../docs/drives.md");

    fn drive(name: &str) -> (Part, Profile) {
        let text = DeviceSpec::builtin_text(name).expect("it is listed");
        (Part::of(text).expect("it is right"), Profile::builtin(name).expect("it is listed"))
    }

    /// What the docs say is farthest off: peaks, latencies without load and at half of it, in percent.
    fn told(name: &str) -> Vec<f64> {
        let begin = format!("| `{name}` |");
        let row = DOCS.lines().find(|line| line.starts_with(&begin)).expect("each drive has a row");
        let cells = row[begin.len()..].split('|').filter_map(|cell| cell.trim().parse().ok());
        cells.collect()
    }

    #[test]
    fn two_drives_are_as_far_from_their_profiles_as_the_docs_say() {
        for name in ["s39wna0kc02077", "sdm000015a60"] {
            let (part, profile) = drive(name);
            let agreement = beside(&part, FLASH_BYTES, &profile, 1).expect("it can be measured");
            let figures: [fn(&Share) -> f64; 3] =
                [Share::peak_off, |share| share.unloaded.off(), |share| share.half.off()];
            let told = told(name);
            assert_eq!(told.len(), figures.len(), "{name}");
            for (figure, told) in figures.into_iter().zip(told) {
                let worst = agreement.worst(figure);
                assert!(
                    (worst - told).abs() < 1.5,
                    "{name}, seed 1: {worst} % instead of {told} %"
                );
            }
        }
    }

    #[test]
    fn every_drive_has_a_row_in_the_docs() {
        Profile::names().for_each(|name| assert_eq!(told(name).len(), 3, "{name}"));
    }

    #[test]
    fn a_part_at_its_share_of_the_load_does_what_the_array_does() {
        let (part, _) = drive("sdm000015a60");
        let flash_bytes = 2 << 30;
        let spec = DeviceSpec::parse(&part.file().to_string()).expect("it is right");
        let share = 8.0 * flash_bytes as f64 / spec.figures().raw_bytes;
        let array =
            spec.build(Scale::Share(share), &nand::Faults::default(), 1).expect("it can be built");
        let mut array = Rig::new(array, 1, 1).expect("it is filled");
        let one = part.build(flash_bytes, 1).expect("it can be built");
        let mut one = Rig::new(one, part.count(), 1).expect("it is filled");
        for (writes_percent, iops) in [(0.0, 600e3), (50.0, 300e3)] {
            let mean = |rig: &mut Rig| {
                let latencies = rig.latencies(writes_percent, iops).expect("it is measured");
                latencies.mean_ns() / 1e3
            };
            let (array, one) = (mean(&mut array), mean(&mut one));
            let off = one / array - 1.0;
            assert!(off.abs() < 0.08, "{writes_percent} %, seed 1: {one} and {array} us");
        }
    }

    #[test]
    fn a_search_comes_nearer_to_the_drive_and_a_device_that_cannot_be_only_loses() {
        let (part, mut profile) = drive("sdm000015a60");
        profile.curves.truncate(1);
        let slow = part.with(&[("profile_changes.read_ns", 90_000.0)]);
        let effort = Effort { step: 1.3, step_least: 1.1, tries_max: 8 };
        let mut errors = Vec::new();
        let mut told = |tried: Tried<'_>| errors.push(tried.error.clone());
        let fitted =
            fit(&slow, 1 << 30, &profile, effort, 1, &mut told).expect("it can be measured");
        let first = errors[0].clone().expect("the first can be measured");
        assert!(fitted.agreement.error() < 0.7 * first, "seed 1: {first}, {:?}", fitted.agreement);
        assert!(errors.len() >= 8 && fitted.tries as usize == errors.len());
        let none = fit(&slow, 1 << 20, &profile, effort, 1, &mut |_| ());
        assert!(none.expect_err("a device without room").contains("too small"));
    }
}

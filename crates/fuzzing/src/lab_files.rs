//! The lab's files: any text is an experiment or a device, or an error with a message, never a panic;
//! and what follows from a device by arithmetic are numbers.

use lab::device_file::DeviceSpec;
use lab::experiment::Experiment;

/// Runs the target on one input.
pub fn run(text: &str) {
    match DeviceSpec::parse(text) {
        Ok(device) => assert!(!device.figures().usable_bytes.is_nan()),
        Err(error) => assert!(!error.to_string().is_empty(), "an error says what is wrong"),
    }
    match Experiment::parse(text) {
        Ok(experiment) => assert!(!experiment.points().is_empty(), "a case has a point"),
        Err(error) => assert!(!error.to_string().is_empty(), "an error says what is wrong"),
    }
}

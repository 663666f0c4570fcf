//! The lab's files: any text is an experiment or a device, or an error with a message, never a panic;
//! and what follows from a device by arithmetic are numbers.
#![no_main]

use lab::device_file::DeviceSpec;
use lab::experiment::Experiment;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match DeviceSpec::parse(text) {
        Ok(device) => assert!(!device.figures().usable_bytes.is_nan()),
        Err(error) => assert!(!error.to_string().is_empty(), "an error says what is wrong"),
    }
    match Experiment::parse(text) {
        Ok(experiment) => assert!(!experiment.points().is_empty(), "a case has a point"),
        Err(error) => assert!(!error.to_string().is_empty(), "an error says what is wrong"),
    }
});

//! `weir volume` at the device of a test.

use crate::scratch::Scratch;
use crate::tools::{said, weir};
use std::process::Output;

/// Runs it, whatever comes of it.
pub fn try_volume(scratch: &Scratch, args: &[&str]) -> Output {
    let data = scratch.data();
    weir(&[&["volume"], args, &["--data", data.to_str().expect("UTF-8")]].concat())
}

/// What it says; it must end well.
pub fn volume(scratch: &Scratch, args: &[&str]) -> String {
    let output = try_volume(scratch, args);
    assert!(output.status.success(), "{args:?}: {}", said(&output));
    said(&output)
}

/// It must refuse, in these words among others.
pub fn refused(scratch: &Scratch, args: &[&str], wanted: &str) {
    let output = try_volume(scratch, args);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {text}");
    assert!(text.contains(wanted), "{args:?}: {text}");
}

//! The server's TOML config: any text is either a config or an error with a message, never a panic.

use std::path::Path;

/// Runs the target on one input.
pub fn run(text: &str) {
    if let Err(error) = serve::config::Config::parse(text, Path::new("/base")) {
        assert!(!error.to_string().is_empty(), "an error says what is wrong");
    }
}

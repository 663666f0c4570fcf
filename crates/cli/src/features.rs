//! What this build of `weir` was made with and without. `./x run` leaves out what serving a device does
//! not need and what takes longest to build; where somebody asks for it, he is told so and how to get it.

/// How to get all of it.
pub const MEND: &str =
    "`./x weir` makes a build that has it, and so does `cargo build --release -p cli`";

/// For `weir --version`: the version, then what is in and what is not.
pub const VERSION: &str =
    match (cfg!(feature = "certs"), plugin::BUILT_IN, lab::report::PNG_BUILT_IN) {
        (true, true, true) => concat!(env!("CARGO_PKG_VERSION"), "\nwith certs, plugins, png"),
        (true, true, false) => {
            concat!(env!("CARGO_PKG_VERSION"), "\nwith certs, plugins, without png")
        }
        (true, false, true) => {
            concat!(env!("CARGO_PKG_VERSION"), "\nwith certs, png, without plugins")
        }
        (true, false, false) => {
            concat!(env!("CARGO_PKG_VERSION"), "\nwith certs, without plugins, png")
        }
        (false, true, true) => {
            concat!(env!("CARGO_PKG_VERSION"), "\nwith plugins, png, without certs")
        }
        (false, true, false) => {
            concat!(env!("CARGO_PKG_VERSION"), "\nwith plugins, without certs, png")
        }
        (false, false, true) => {
            concat!(env!("CARGO_PKG_VERSION"), "\nwith png, without certs, plugins")
        }
        (false, false, false) => {
            concat!(env!("CARGO_PKG_VERSION"), "\nwithout certs, plugins, png")
        }
    };

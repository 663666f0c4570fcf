//! `weir plugin`: policies of the user's own, as WebAssembly. `new` writes a crate to begin with,
//! `test` checks a module and runs it in the lab against the built-in policies.

mod new;
mod test;

use crate::{End, Failure};

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    weir plugin new mine --kind victim\n  \
    (cd mine && cargo build --release --target wasm32-unknown-unknown)\n  \
    weir plugin test mine/target/wasm32-unknown-unknown/release/mine.wasm\n  \
    weir plugin test mine.wasm --trace pgbench.csv.gz --json\n  \
    weir ctl policy load mine.wasm && weir ctl policy set all victim=wasm:mine\n\n\
    docs/policies.md tells what a policy sees and may answer.")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Write a small Rust crate that makes a policy
    #[command(after_help = "Examples:\n  \
        weir plugin new mine                         a victim policy, in ./mine\n  \
        weir plugin new apart --kind stream --into policies/apart")]
    New(new::Args),
    /// Check a module, and measure it in the lab beside the built-in policies
    #[command(after_help = "Examples:\n  \
        weir plugin test mine.wasm\n  \
        weir plugin test mine.wasm --trace pgbench.csv.gz --json")]
    Test(test::Args),
}

pub fn run(args: &Args) -> Result<End, Failure> {
    match &args.command {
        Command::New(args) => new::run(args),
        Command::Test(args) => test::run(args),
    }
}

//! `weir pool`: the parts of a pool as processes, and what people change of it.

mod certs;
mod parts;
mod records;
mod status;
mod top;
pub mod up;
mod upkeep;

use crate::output::print;
use crate::{End, Failure};
use serve::pool::PoolError;
use serve::pool::config::PartConfig;
use serve::pool::plane::PlaneCalls;
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    weir pool up\n      a whole pool on this machine, to try it\n  \
    weir pool certs certs plane controller node-1 admin\n      an authority and certificates: each part \
    shows its own\n  \
    weir pool plane --config plane.toml\n      the control plane, for as long as etcd is not it\n  \
    weir pool join 1 --domain 1 --address 10.0.0.1:7402 --config admin.toml\n  \
    weir pool controller --config controller.toml\n  \
    weir pool volume create data --size 1TiB --config admin.toml\n  \
    weir pool status --config admin.toml\n\n\
    docs/pool.md tells how a pool is set up.")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Try it: a whole pool on this machine, with a volume on NBD, in one command
    Up(up::Args),
    /// Kill the process of a node of `weir pool up`
    #[command(after_help = "Examples:\n  \
        weir pool kill 3                 it is started again in a while\n  \
        weir pool kill 3 --data weir-pool")]
    Kill(up::Kill),
    /// Slow a node of `weir pool up` down
    #[command(after_help = "Examples:\n  \
        weir pool slow 2 50   its answers come 50 ms later\n  \
        weir pool slow 2 0    as before")]
    Slow(up::Slow),
    /// Have a drive of `weir pool up` pass for worn
    #[command(after_help = "Examples:\n  \
        weir pool wear 1 90   it passes for nearly worn out\n  \
        weir pool wear 1 0    as it is")]
    Wear(up::Wear),
    /// Serve a drive as a node of the pool, until a signal
    #[command(after_help = "Examples:\n  \
        weir pool node --config node-1.toml")]
    Node(Part),
    /// Serve a volume of the pool to NBD clients, until a signal
    #[command(after_help = "Examples:\n  \
        weir pool client --config client.toml")]
    Client(parts::Client),
    /// Ask a node or a client on this machine how it does
    #[command(after_help = "Examples:\n  \
        weir pool ask weir-pool/node-1.sock status\n  \
        weir pool ask weir-pool/client.sock scrub now")]
    Ask(parts::Ask),
    /// Make the authority of a new pool, and certificates of its parts
    Certs(certs::Args),
    /// Serve Weir's own control plane, until a signal
    #[command(after_help = "Examples:\n  \
        weir pool plane --config plane.toml")]
    Plane(Part),
    /// Found the pool in the etcd cluster that its config names, instead of Weir's own control plane
    #[command(after_help = "Examples:\n  \
        weir pool found --config admin.toml")]
    Found(Part),
    /// Plan where reads and writes go, until a signal
    #[command(after_help = "Examples:\n  \
        weir pool controller --config controller.toml")]
    Controller(Part),
    /// Have a node belong to the pool
    #[command(after_help = "Examples:\n  \
        weir pool join 1 --domain 1 --address 10.0.0.1:7402 --config admin.toml")]
    Join(records::Join),
    /// Have a node take no bands any more: those that it has move away
    #[command(after_help = "Examples:\n  \
        weir pool drain 3 --config admin.toml")]
    Drain(records::Drain),
    /// Give a node up: what it had is copied from others
    #[command(after_help = "Examples:\n  \
        weir pool replace 3 --by 4 --config admin.toml      node 4 takes its place\n  \
        weir pool replace 3 --by none --config admin.toml   what it had goes to any")]
    Replace(records::Replace),
    /// List the nodes
    #[command(after_help = "Examples:\n  \
        weir pool nodes --config admin.toml\n  \
        weir pool nodes --config admin.toml --json | jq '.[].address'")]
    Nodes(Asks),
    /// Make, list and delete volumes
    #[command(subcommand)]
    #[command(after_help = "Examples:\n  \
        weir pool volume create data --size 1TiB --config admin.toml\n  \
        weir pool volume list --config admin.toml")]
    Volume(records::Volume),
    /// Show the whole of a pool: nodes, volumes with their owners, the controller and its plan
    #[command(after_help = "Examples:\n  \
        weir pool status --config admin.toml\n  \
        weir pool status --config weir-pool/admin.toml --json | jq .controller")]
    Status(Asks),
    /// Show the same every second, with what parts on this machine do
    Top(top::Args),
    /// Have all copies of a volume read and compared, or tell how far that is
    Scrub(upkeep::Scrub),
    /// Have the bands of a volume spread more evenly over the nodes
    Rebalance(upkeep::Rebalance),
}

/// A part of the pool.
#[derive(clap::Args)]
struct Part {
    /// The config of this part (docs/pool.md)
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

/// Somebody who asks the control plane.
#[derive(clap::Args)]
struct Asks {
    #[command(flatten)]
    part: Part,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Part {
    fn load(&self) -> Result<PartConfig, Failure> {
        PartConfig::load(&self.config).map_err(failure)
    }

    fn calls(&self) -> Result<PlaneCalls, Failure> {
        let config = self.load()?;
        config.plane().and_then(|plane| PlaneCalls::connect(&plane)).map_err(failure)
    }
}

pub fn run(args: &Args) -> Result<End, Failure> {
    match &args.command {
        Command::Up(args) => up::up(args),
        Command::Kill(args) => up::kill(args),
        Command::Slow(args) => up::slow(args),
        Command::Wear(args) => up::wear(args),
        Command::Node(part) => parts::node(part),
        Command::Client(args) => parts::client(args),
        Command::Ask(args) => parts::ask(args),
        Command::Certs(args) => certs::run(args),
        Command::Plane(part) => plane(part),
        Command::Found(part) => found(part),
        Command::Controller(part) => controller(part),
        Command::Join(args) => records::join(args),
        Command::Drain(args) => records::drain(args),
        Command::Replace(args) => records::replace(args),
        Command::Nodes(asks) => records::nodes(asks),
        Command::Volume(args) => records::volume(args),
        Command::Status(asks) => status::run(asks),
        Command::Top(args) => top::run(args),
        Command::Scrub(args) => upkeep::scrub(args),
        Command::Rebalance(args) => upkeep::rebalance(args),
    }
}

fn plane(part: &Part) -> Result<End, Failure> {
    let config = part.load()?;
    let ready = |address| {
        print(&format!(
            "control plane of pool {:032x}, its log in {}\nready {address}\n",
            config.pool.0,
            config.plane.data.display()
        ));
    };
    serve::pool::plane::server::run(&config, ready).map_err(failure)?;
    Ok(End::Good)
}

fn found(part: &Part) -> Result<End, Failure> {
    let config = part.load()?;
    config.plane().and_then(|plane| serve::pool::plane::found(&plane)).map_err(failure)?;
    print(&format!("pool {:032x} is founded in {}\n", config.pool.0, config.plane.at));
    Ok(End::Good)
}

fn controller(part: &Part) -> Result<End, Failure> {
    let config = part.load()?;
    let ready = |address| {
        print(&format!(
            "candidate for the controller of pool {:032x}\nready {address}\n",
            config.pool.0
        ));
    };
    serve::pool::controller::run(&config, ready).map_err(failure)?;
    Ok(End::Good)
}

fn failure(error: PoolError) -> Failure {
    error.to_string()
}

//! `weir pool node`, `weir pool client` and `weir pool ask`: the parts that serve data, and what they answer.

use super::{Part, failure};
use crate::output::{print_json, say};
use crate::serve::greeting;
use crate::{End, Failure};
use serve::pool::parts::{self, NodeConfig, VolumeConfig};
use std::path::PathBuf;

#[derive(clap::Args)]
pub struct Ask {
    /// The socket of the part: `control` in its config
    socket: PathBuf,
    /// `status`; of a node `slow MS` and `wear PERCENT`, too; of a client `go-on`, `scrub now|idle|never`, `spread PERCENT`
    #[arg(default_value = "status", num_args = 1..=2)]
    question: Vec<String>,
}

pub fn node(part: &Part) -> Result<End, Failure> {
    let config = NodeConfig::load(&part.config).map_err(failure)?;
    let ready = |address| {
        let place = match &config.server.device.kind {
            serve::device::Kind::Memory { .. } => "in memory".into(),
            serve::device::Kind::Nand { path, .. } | serve::device::Kind::File { path } => {
                format!("in {}", path.display())
            }
        };
        let (node, pool) = (config.node.0, config.part.pool.0);
        say(&format!("node {node} of pool {pool:032x}, its drive {place}\nready {address}\n"));
    };
    parts::run_node(&config, ready).map_err(failure)?;
    Ok(End::Good)
}

#[derive(clap::Args)]
pub struct Client {
    #[command(flatten)]
    part: Part,
    /// After the loss of nodes: have the blocks that are refused because they may be older than what was written last, as
    /// they were found, and write again. For this one start
    #[arg(long)]
    salvage: bool,
}

pub fn client(args: &Client) -> Result<End, Failure> {
    let mut config = VolumeConfig::load(&args.part.config).map_err(failure)?;
    config.server.ftl.salvage = args.salvage;
    let tls = config.server.nbd.tls.is_some();
    parts::run_volume(&config, |ready| say(&greeting(ready, tls))).map_err(failure)?;
    Ok(End::Good)
}

pub fn ask(args: &Ask) -> Result<End, Failure> {
    print_json(&parts::ask(&args.socket, &args.question.join(" ")).map_err(failure)?);
    Ok(End::Good)
}

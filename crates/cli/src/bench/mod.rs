//! placeholder
use crate::{End, Failure};
#[derive(clap::Args)]
pub struct Args {}
pub fn run(_: &Args) -> Result<End, Failure> { Ok(End::Good) }
pub fn cores() -> usize { 2 }

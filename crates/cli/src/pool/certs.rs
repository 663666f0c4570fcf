//! `weir pool certs`: the authority of a pool and certificates of its parts.

use crate::{End, Failure};
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    weir pool certs certs plane controller node-1 node-2 node-3 admin\n  \
    weir pool certs certs node-4                one more, of the same authority\n\n\
    The folder keeps authority.key: whoever has it can join the pool. Give a part only authority.pem and its \
    own two files. Nothing is ever overwritten.")]
pub struct Args {
    /// Where they go; the authority that is there is used again
    folder: PathBuf,
    /// A part of the pool: its files are PART.pem and PART.key
    #[arg(required = true)]
    part: Vec<String>,
}

#[cfg(feature = "certs")]
pub fn run(args: &Args) -> Result<End, Failure> {
    use crate::output::print;
    use pool::words::PoolId;
    use serve::pool::certs;
    use std::fmt::Write;
    let parts: Vec<&str> = args.part.iter().map(String::as_str).collect();
    let drawn = PoolId(serve::pool::drawn().map_err(super::failure)?);
    let made = certs::make(&args.folder, drawn, &parts).map_err(super::failure)?;
    let mut text = String::new();
    if made.authority_is_new {
        writeln!(text, "a new pool: {:032x}", made.pool.0).expect("memory");
    }
    for files in &made.parts {
        write!(
            text,
            "\n[pool]\nid = \"{:032x}\"\nauthority = {:?}\ncertificate = {:?}\nkey = {:?}\n",
            made.pool.0,
            files.authority.display().to_string(),
            files.certificate.display().to_string(),
            files.key.display().to_string()
        )
        .expect("memory");
    }
    print(&text);
    Ok(End::Good)
}

#[cfg(not(feature = "certs"))]
pub fn run(args: &Args) -> Result<End, Failure> {
    Err(format!(
        "{}: this build of weir makes no certificates for {}: {}",
        args.folder.display(),
        args.part.join(", "),
        crate::features::MEND
    ))
}

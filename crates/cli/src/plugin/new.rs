//! `weir plugin new`: the crates of plugins/ are the templates, so what is handed out is what is
//! tested.

use crate::output::print;
use crate::{End, Failure};
use std::fs;
use std::path::PathBuf;

#[derive(clap::Args)]
pub struct Args {
    /// What it is called: letters a-z, digits and -
    name: String,
    /// The decision it makes
    #[arg(long, value_name = "KIND", default_value = "victim",
        value_parser = ["victim", "stream", "unit", "wear", "erase"])]
    kind: String,
    /// The folder to make it in [default: its name]
    #[arg(long, value_name = "DIR")]
    into: Option<PathBuf>,
}

/// A crate of plugins/: its name, manifest and source.
struct Template {
    name: &'static str,
    manifest: &'static str,
    source: &'static str,
}

macro_rules! template {
    ($name:literal) => {
        Template {
            name: $name,
            manifest: include_str!(concat!("../../../../plugins/", $name, "/Cargo.toml")),
            source: include_str!(concat!("../../../../plugins/", $name, "/src/lib.rs")),
        }
    };
}

const CARGO_CONFIG: &str = include_str!("../../../../plugins/greedy/.cargo/config.toml");

fn template(kind: &str) -> Template {
    match kind {
        "stream" => template!("sfr"),
        "unit" => template!("least-work"),
        "wear" => template!("even-wear"),
        "erase" => template!("quiet-erase"),
        _ => template!("greedy"),
    }
}

pub fn run(args: &Args) -> Result<End, Failure> {
    let name = &args.name;
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let begins = name.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase());
    if !begins || name.len() > plugin::NAME_BYTES_MAX || !name.bytes().all(plain) {
        return Err(format!(
            "{name}: must begin with a letter and have up to {} of a-z, 0-9 and -, for example mine",
            plugin::NAME_BYTES_MAX
        ));
    }
    let folder = args.into.clone().unwrap_or_else(|| name.into());
    let shown = folder.display();
    if folder.exists() {
        return Err(format!("{shown}: is there already: choose another name, or --into DIR"));
    }
    let template = template(&args.kind);
    let readme = readme(name, &args.kind);
    let quoted = |name: &str| format!("name = \"{name}\"");
    let manifest = template.manifest.replace(&quoted(template.name), &quoted(name));
    for (file, text) in [
        ("Cargo.toml", manifest.as_str()),
        ("src/lib.rs", template.source),
        (".cargo/config.toml", CARGO_CONFIG),
        (".gitignore", "target/\n"),
        ("README.md", &readme),
    ] {
        let path = folder.join(file);
        let written = fs::create_dir_all(path.parent().unwrap_or(&folder))
            .and_then(|()| fs::write(&path, text));
        written.map_err(|error| format!("{}: {error}", path.display()))?;
    }
    print(&format!("made {shown}: change src/lib.rs, then\n\n{}", commands(name, &args.kind)));
    Ok(End::Good)
}

fn commands(name: &str, kind: &str) -> String {
    let file = format!("target/wasm32-unknown-unknown/release/{}.wasm", name.replace('-', "_"));
    format!(
        "    rustup target add wasm32-unknown-unknown    # once\n    \
         cargo test                                  # the decision, on this machine\n    \
         cargo build --release --target wasm32-unknown-unknown\n    \
         weir plugin test {file}\n    \
         weir ctl policy load {file} --name {name}\n    \
         weir ctl policy set all {kind}=wasm:{name}\n"
    )
}

fn readme(name: &str, kind: &str) -> String {
    format!(
        "# {name}\n\n\
         A {kind} policy for Weir. `src/lib.rs` begins with what it decides from; the rest is the \
         interface.\n\n\
         {}\n\
         The rules: no imports; memory is taken only where the host asks for room; a call has a bound \
         on its time; every answer is one of those that are possible, and follows from what was shown. \
         A policy that breaks one of them is refused, or replaced by the default, and `weir status` \
         says why.\n",
        commands(name, kind)
    )
}

#[cfg(test)]
mod tests {
    use super::template;

    #[test]
    fn a_template_is_a_crate_of_its_name_for_its_kind() {
        for (kind, function) in [
            ("victim", "fn victim_pick("),
            ("stream", "fn stream_write("),
            ("unit", "fn unit_pick("),
            ("wear", "fn wear_pick("),
            ("erase", "fn erase_now("),
        ] {
            let template = template(kind);
            assert!(template.source.contains(function), "{kind}");
            assert!(template.manifest.contains(&format!("name = \"{}\"", template.name)), "{kind}");
        }
    }
}

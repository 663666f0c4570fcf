//! `weir rocksdb`: starts a program that uses RocksDB, so that it has its files in a store on raw units. The
//! program is not changed: RocksDB's file system is loaded before it (docs/store.md).

use crate::{End, Failure};
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use store::remote::Addresses;

/// What `./x rocksdb` makes.
const PLUGIN: &str = "libweir_rocksdb.so";

/// Start a program with RocksDB on raw units, unchanged
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    weir serve --raw --gang 2 --channels 2 --erase background --data weir-units\n  \
    weir serve --capacity 1GiB --data weir-small --http none\n  \
    weir rocksdb -- db_bench --db=/bench --benchmarks=fillrandom,readrandom\n  \
    weir rocksdb -- ldb --db=/bench checkconsistency\n\n\
    The two servers go on beside it. SSTs are raw blocks by ID on the units; logs, manifests and what is where lie on \
    the small volume, which may be any block volume of Weir's. What the program calls /bench is within the store.")]
pub struct Args {
    #[command(flatten)]
    parts: Parts,
    /// Only for what the program opens as weir://, not for what it opens without naming a file system
    #[arg(long)]
    only_uri: bool,
    /// Make a store on an empty small volume though the units hold raw blocks of others
    #[arg(long)]
    new: bool,
    /// The file system for RocksDB, if it is not beside this binary; `./x rocksdb` builds it
    #[arg(long, value_name = "FILE", env = "WEIR_ROCKSDB_PLUGIN")]
    plugin: Option<PathBuf>,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// The two servers that a store lies on.
#[derive(clap::Args)]
pub struct Parts {
    /// The raw units: the folder of the device that is served, or its NBD address
    #[arg(long, value_name = "PLACE", default_value = "weir-units")]
    units: String,
    /// The small volume: the folder of a device whose volume is `default`, or the volume's NBD address
    #[arg(long, value_name = "PLACE", default_value = "weir-small")]
    small: String,
    /// A block volume for SSTs in place of raw units, of any drive: a folder of a device whose volume is `default`, or an NBD
    /// address. The drive collects garbage then
    #[arg(long, value_name = "PLACE", conflicts_with_all = ["units", "control"])]
    tables: Option<String>,
    /// With an address in --units: the HTTP of that server, its control socket or IP address and port
    #[arg(long, value_name = "PLACE")]
    control: Option<String>,
    /// With an address in --control: the file that holds that server's token
    #[arg(long, value_name = "FILE", requires = "control")]
    token_file: Option<PathBuf>,
}

impl Parts {
    /// Where they are served.
    pub fn addresses(&self) -> Result<Addresses, Failure> {
        let units = match &self.tables {
            Some(tables) => served("--tables", tables, "default")?,
            None => served("--units", &self.units, "")?,
        };
        let volume = served("--small", &self.small, "default")?;
        if self.tables.is_some() {
            return Ok(Addresses { units, control: String::new(), token: None, volume });
        }
        let control = match (&self.control, is_address(&self.units)) {
            (Some(control), _) if control.is_empty() => {
                return Err(
                    "--control '': names nothing: give the control socket, or IP address and port"
                        .into(),
                );
            }
            (Some(control), _) => control.clone(),
            (None, false) => text(&crate::device::control_of(&absolute(Path::new(&self.units))?))?,
            (None, true) => {
                return Err(format!(
                    "--units {}: is an address: name the HTTP of that server too, with --control",
                    self.units
                ));
            }
        };
        let token = match &self.token_file {
            None => None,
            Some(file) => {
                let token = serve::files::read_named_text(file).map_err(|error| {
                    format!(
                        "--token-file {}: {error}: name the server's http.token_file",
                        file.display()
                    )
                })?;
                let token = token.trim();
                if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
                    return Err(format!(
                        "--token-file {}: must hold one line, the token of the server's http.token_file",
                        file.display()
                    ));
                }
                Some(token.to_owned())
            }
        };
        Ok(Addresses { units, control, token, volume })
    }
}

/// Becomes the program.
pub fn run(args: &Args) -> Result<End, Failure> {
    let plugin = built(PLUGIN, ("--plugin", args.plugin.as_deref()))?;
    let Addresses { units, control, token, volume } = args.parts.addresses()?;
    let mut preload = plugin.into_os_string();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    let (program, words) = args.program.split_first().ok_or("name a program behind --")?;
    let mut command = Command::new(program);
    command.args(words).env("LD_PRELOAD", preload);
    command.env("WEIR_STORE_UNITS", units).env("WEIR_STORE_VOLUME", volume);
    command.env("WEIR_STORE_CONTROL", control).env("WEIR_STORE_TOKEN", token.unwrap_or_default());
    command.env("WEIR_STORE_DEFAULT", if args.only_uri { "" } else { "1" });
    command.env("WEIR_STORE_NEW", if args.new { "1" } else { "" });
    let error = command.exec();
    let shown = program.to_string_lossy();
    let mend = match error.kind() {
        ErrorKind::NotFound => "install it (db_bench and ldb are in Debian's rocksdb-tools)",
        _ => "is it a program?",
    };
    Err(format!("{shown}: {error}: {mend}"))
}

fn is_address(place: &str) -> bool {
    place.contains("://")
}

/// The NBD address of what is served in a folder; an address is one already.
fn served(option: &str, place: &str, export: &str) -> Result<String, Failure> {
    if place.is_empty() {
        return Err(format!(
            "{option} '': names nothing: give the folder of a device that is served, or its NBD address"
        ));
    }
    if is_address(place) {
        client::parse(place).map_err(|why| format!("{option} {why}"))?;
        return Ok(place.into());
    }
    let socket = absolute(Path::new(place))?.join("nbd.sock");
    if !socket.exists() {
        let how = if export.is_empty() { "serve --raw" } else { "serve" };
        return Err(format!(
            "{option} {place}: nobody serves a device there: start `weir {how} --data {place}`, or name \
             another folder or an NBD address"
        ));
    }
    Ok(format!("nbd+unix:///{export}?socket={}", text(&socket)?))
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn text(path: &Path) -> Result<String, Failure> {
    let text = path.to_str().map(Into::into);
    text.ok_or_else(|| format!("{}: a path here must be UTF-8", path.display()))
}

/// What `./x rocksdb` built: as an option names it, else where a build or a package leaves it.
pub fn built(file: &str, (option, named): (&str, Option<&Path>)) -> Result<PathBuf, Failure> {
    if let Some(named) = named {
        let there = named.is_file().then(|| absolute(named));
        let missing =
            || format!("{option} {}: no such file: `./x rocksdb` builds it", named.display());
        return there.ok_or_else(missing)?;
    }
    let binary = std::env::current_exe().map_err(|error| format!("where weir is: {error}"))?;
    let folder = binary.parent().unwrap_or(Path::new("/"));
    let above = folder.parent().unwrap_or(folder);
    let places = [folder.to_owned(), above.join("rocksdb"), above.join("lib").join("weir")];
    let places = places.map(|place| place.join(file));
    places.iter().find(|place| place.is_file()).cloned().ok_or_else(|| {
        format!(
            "{file}: not beside {}: `./x rocksdb` builds it, for the RocksDB of this machine; or name it with \
             {option}",
            binary.display()
        )
    })
}

//! The folder of a pool on one machine: certificates, and a config for each part.

use crate::Failure;
use pool::volume::Wanted;
use pool::words::DomainId;
use serde_json::{Value, json};
use serve::pool::records::Joining;
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};

/// The volume that is served.
pub const VOLUME: &str = "data";

/// Lies beside what is made, until all of it is.
const MAKING: &str = "making";

/// A band is a raw block of the smallest of the drives: of those that are emulated, and of files and disks.
const BAND_BYTES: u64 = 29 * 15 * 4096;
const BAND_BYTES_OF_FILES: u64 = 62 * 15 * 4096;
const LARGE_BAND_BYTES: u64 = 8 << 20;

/// What the drives are.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Drives {
    /// Emulated flash.
    Emulated,
    /// In memory, and take no time; with bands of the usual 8 MiB, else such as fit the smallest emulated drive.
    Memory { large_bands: bool },
    /// Files or disks, from the first node's on.
    At(Vec<PathBuf>),
}

/// What was asked for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Layout {
    pub nodes: u32,
    pub ssds: u32,
    pub bytes: u64,
    pub replicas: u8,
    pub drives: Drives,
}

impl Layout {
    /// Bytes of each drive: room for each copy with what is beside it on half of them, as some may be away.
    pub fn drive_bytes(&self) -> u64 {
        let copies = self.bytes.saturating_mul(4 * u64::from(self.replicas));
        (copies / u64::from(self.nodes * self.ssds)).max(256 << 20)
    }
}

/// Emulated drives that take turns: all unlike.
const DRIVES: [(&str, u32, u32, u32, &str); 4] = [
    ("slc", 4, 8, 8, "SLC, 32 dies on 4 buses"),
    ("slc", 8, 8, 8, "SLC, 64 dies on 8 buses"),
    ("optane", 4, 2, 2, "3D XPoint, 8 dies"),
    ("slc", 2, 8, 8, "SLC, 16 dies on 2 buses"),
];

/// A node of it.
#[derive(Clone, Debug)]
pub struct Node {
    pub number: u32,
    pub domain: u32,
    pub port: u16,
    pub what: String,
}

impl Node {
    /// What the control plane is told of it.
    pub fn joining(&self) -> Joining {
        let address = Some(format!("127.0.0.1:{}", self.port));
        Joining { domain: Some(DomainId(self.domain)), address, profile: None }
    }
}

/// See the head of this file.
pub struct Made {
    folder: PathBuf,
    layout: Layout,
    nodes: Vec<Node>,
    /// Locked for as long as it runs: nobody else starts parts there.
    _up: fs::File,
}

impl Made {
    /// Makes the folder, or goes on with one that was made the same way.
    pub fn make_or_open(folder: &Path, layout: Layout) -> Result<Self, Failure> {
        let note = folder.join("layout.json");
        if note.exists() {
            return Self::open(folder, layout, &note);
        }
        let making = folder.join(MAKING);
        if making.exists() {
            // Whoever made it was stopped before anything ran there, if nobody is at it.
            lock(&making, "is making it")?;
            fs::remove_dir_all(folder).map_err(failed(folder))?;
        }
        if folder.exists() && fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some())
        {
            return Err(format!(
                "{}: holds something that `weir pool up` has not made: name another folder by --data",
                folder.display()
            ));
        }
        fs::create_dir_all(folder).map_err(failed(folder))?;
        let _lock = lock(&making, "is making it")?;
        let numbers = 1..=layout.nodes * layout.ssds;
        let nodes = numbers.map(|number| Ok(node(number, &layout, free_port()?)));
        let nodes = nodes.collect::<Result<Vec<Node>, Failure>>()?;
        let made = Self { folder: folder.into(), layout, nodes, _up: up(folder)? };
        made.write()?;
        // Last: without it nothing here counts.
        write(&note, &made.note().to_string())?;
        fs::remove_file(&making).map_err(failed(&making))?;
        Ok(made)
    }

    fn open(folder: &Path, layout: Layout, note: &Path) -> Result<Self, Failure> {
        let text = fs::read_to_string(note).map_err(failed(note))?;
        let found: Value = serde_json::from_str(&text)
            .map_err(|error| format!("{}: {error}: remove {}", note.display(), folder.display()))?;
        let ports = found["ports"].as_array().cloned().unwrap_or_default();
        let ports = ports.iter().filter_map(|port| port.as_u64()?.try_into().ok());
        let nodes: Vec<Node> =
            ports.zip(1..).map(|(port, number)| node(number, &layout, port)).collect();
        let made = Self { folder: folder.into(), layout, nodes, _up: up(folder)? };
        if made.note() != found {
            return Err(format!(
                "{}: was made with {}: say the same (and move drives back to where they were), or remove it (`rm -r`), \
                 with all that its volume holds, and begin anew",
                folder.display(),
                described(&found)
            ));
        }
        Ok(made)
    }

    fn note(&self) -> Value {
        let Layout { nodes, ssds, bytes, replicas, ref drives } = self.layout;
        let memory = matches!(drives, Drives::Memory { .. });
        let ports: Vec<u16> = self.nodes.iter().map(|node| node.port).collect();
        let mut note = json!({
            "nodes": nodes, "ssds": ssds, "bytes": bytes, "replicas": replicas, "memory": memory,
            "ports": ports,
        });
        if let Drives::At(paths) = drives {
            note["drives"] = paths.iter().map(|path| path.display().to_string()).collect();
        }
        note
    }

    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The config of a part.
    pub fn config(&self, part: &str) -> PathBuf {
        self.folder.join(format!("{part}.toml"))
    }

    pub fn config_of(&self, node: u32) -> PathBuf {
        self.config(&format!("node-{node}"))
    }

    /// The volume.
    pub fn wanted(&self) -> Wanted {
        let blocks = self.layout.bytes / flash::BLOCK_BYTES as u64;
        Wanted {
            replicas: self.layout.replicas,
            band_bytes: match self.layout.drives {
                Drives::Emulated | Drives::Memory { large_bands: false } => BAND_BYTES,
                Drives::Memory { large_bands: true } => LARGE_BAND_BYTES,
                Drives::At(_) => BAND_BYTES_OF_FILES,
            },
            ..Wanted::new(VOLUME, blocks)
        }
    }

    fn write(&self) -> Result<(), Failure> {
        let mut parts =
            vec!["plane".to_owned(), "controller".into(), "client".into(), "admin".into()];
        parts.extend(self.nodes.iter().map(|node| format!("node-{}", node.number)));
        let pool = certificates(&self.folder, &parts)?;
        let port = free_port()?;
        for part in &parts {
            let own = match part.as_str() {
                "plane" => "".into(),
                "controller" => "[controller]\nlisten = \"127.0.0.1:0\"\n".into(),
                "client" => format!(
                    "[client]\nvolume = \"{VOLUME}\"\nname = \"client\"\ncontrol = \"client.sock\"\n\
                     [nbd]\nunix = \"nbd.sock\"\n[http]\naddress = \"127.0.0.1:0\"\n\
                     [control]\nunix = \"control.sock\"\n"
                ),
                _ => String::new(),
            };
            let head = format!(
                "[pool]\nid = \"{pool}\"\nauthority = \"certs/authority.pem\"\n\
                 certificate = \"certs/{part}.pem\"\nkey = \"certs/{part}.key\"\n\
                 [plane]\naddress = \"127.0.0.1:{port}\"\ndata = \"plane\"\n"
            );
            write(&self.config(part), &(head + &own))?;
        }
        for node in &self.nodes {
            self.write_node(node, &pool, port)?;
        }
        Ok(())
    }

    fn write_node(&self, node: &Node, pool: &str, plane: u16) -> Result<(), Failure> {
        let (device, gang) = device(&self.layout.drives, node.number);
        let room = self.layout.drive_bytes();
        let (number, port) = (node.number, node.port);
        let text = format!(
            "[pool]\nid = \"{pool}\"\nauthority = \"certs/authority.pem\"\n\
             certificate = \"certs/node-{number}.pem\"\nkey = \"certs/node-{number}.key\"\n\
             [plane]\naddress = \"127.0.0.1:{plane}\"\n\
             [node]\nid = {number}\nlisten = \"127.0.0.1:{port}\"\ncontrol = \"node-{number}.sock\"\n\
             [device]\nmode = \"raw\"\n{device}capacity = \"{}MiB\"\n\
             [raw]\ngang = {gang}\n",
            room.div_ceil(1 << 20)
        );
        write(&self.config_of(number), &text)
    }
}

/// What the drive of a node is, as keys of `[device]`, and the dies that make a unit of it.
fn device(drives: &Drives, number: u32) -> (String, u32) {
    match drives {
        Drives::At(paths) => {
            // A string of JSON is one of TOML.
            let path = Value::from(paths[number as usize - 1].display().to_string());
            (format!("kind = \"file\"\npath = {path}\nchannels = 4\n"), 1)
        }
        Drives::Memory { large_bands } => {
            // Two bands' blocks at a time.
            let units_of_band = if *large_bands { 10 } else { 2 };
            let text = format!(
                "kind = \"memory\"\nprofile = \"instant\"\nchannels = {}\ndies_per_channel = 1\n",
                2 * units_of_band
            );
            (text, units_of_band)
        }
        Drives::Emulated => {
            let (profile, channels, dies, gang, _) = drive(number);
            let text = format!(
                "kind = \"nand\"\nprofile = \"{profile}\"\npath = \"drive-{number}\"\n\
                 channels = {channels}\ndies_per_channel = {dies}\n"
            );
            (text, gang)
        }
    }
}

fn drive(number: u32) -> (&'static str, u32, u32, u32, &'static str) {
    DRIVES[(number - 1) as usize % DRIVES.len()]
}

fn node(number: u32, layout: &Layout, port: u16) -> Node {
    let what = match &layout.drives {
        Drives::At(paths) => paths[number as usize - 1].display().to_string(),
        Drives::Memory { .. } => "memory, takes no time".into(),
        Drives::Emulated => drive(number).4.into(),
    };
    Node { number, domain: (number - 1) / layout.ssds + 1, port, what }
}

/// A port that the system does not give to anybody else so soon.
fn free_port() -> Result<u16, Failure> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let address = listener.and_then(|listener| listener.local_addr());
    address.map(|address| address.port()).map_err(|error| format!("no port is free: {error}"))
}

#[cfg(feature = "certs")]
fn certificates(folder: &Path, parts: &[String]) -> Result<String, Failure> {
    let names: Vec<&str> = parts.iter().map(String::as_str).collect();
    let drawn = pool::words::PoolId(serve::pool::drawn().map_err(super::failure)?);
    let made = serve::pool::certs::make(&folder.join("certs"), drawn, &names);
    Ok(format!("{:032x}", made.map_err(super::failure)?.pool.0))
}

#[cfg(not(feature = "certs"))]
fn certificates(folder: &Path, _parts: &[String]) -> Result<String, Failure> {
    Err(format!(
        "{}: this build of weir makes no certificates: {}",
        folder.display(),
        crate::features::MEND
    ))
}

fn described(note: &Value) -> String {
    format!(
        "--nodes {} --ssds {} --size {} --replicas {}{}{}",
        note["nodes"],
        note["ssds"],
        crate::size::bytes(note["bytes"].as_u64().unwrap_or(0)),
        note["replicas"],
        if note["memory"] == true { " --memory" } else { "" },
        if note["drives"].is_array() {
            format!(", and with the drives {}", note["drives"])
        } else {
            String::new()
        }
    )
}

/// Makes sure that nobody else runs the pool of the folder.
fn up(folder: &Path) -> Result<fs::File, Failure> {
    lock(&folder.join("up.lock"), "runs there")
}

/// Makes sure that nobody else does this in the same folder.
fn lock(path: &Path, doing: &str) -> Result<fs::File, Failure> {
    let file = fs::File::create(path).map_err(failed(path))?;
    let busy = |_| {
        let folder = path.parent().unwrap_or(path).display();
        format!(
            "{folder}: another `weir pool up` {doing}: wait, or choose another folder by --data"
        )
    };
    file.try_lock().map_err(busy)?;
    Ok(file)
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    serve::files::write(path, text.as_bytes()).map_err(failed(path))
}

fn failed(path: &Path) -> impl Fn(std::io::Error) -> Failure + '_ {
    move |error| format!("{}: {error}: choose another folder by --data", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_whose_making_was_cut_off_is_made_anew_unless_somebody_is_at_it() {
        let folder = std::env::temp_dir().join(format!("weir-made-{}", std::process::id()));
        let drives = Drives::Memory { large_bands: false };
        let layout = Layout { nodes: 2, ssds: 1, bytes: 64 << 20, replicas: 2, drives };
        let open = || Made::make_or_open(&folder, layout.clone());
        let make = || open().map(|made| made.nodes().len());
        fs::create_dir_all(folder.join("certs")).expect("a folder");
        assert!(make().expect_err("it is somebody else's").contains("has not made"));
        let at_it = lock(&folder.join(MAKING), "is making it").expect("nobody is");
        assert!(make().expect_err("it is being made").contains("another `weir pool up`"));
        drop(at_it);
        assert_eq!(make(), Ok(2));
        assert_eq!(make(), Ok(2), "it goes on with what is there");
        let runs = open().expect("it is there");
        assert!(make().expect_err("parts run there").contains("runs there"));
        drop(runs);
        assert_eq!(make(), Ok(2), "it has ended");
        fs::remove_dir_all(&folder).expect("it is there");
    }
}

//! `weir pool join`, `drain`, `replace`, `nodes` and `volume`: records in the control plane.

use super::{Asks, Part, failure};
use crate::output::{print, print_json, table};
use crate::{End, Failure};
use flash::BLOCK_BYTES;
use pool::control::values::{Degraded, NodeRecord, NodeState, VolumeRecord};
use pool::profile::Profile;
use pool::room::Rooms;
use pool::volume::{BAND_BYTES, PAGE_SLOTS, Wanted, grown, plan};
use pool::words::{DomainId, NodeId, VolumeId};
use serde_json::{Value, json};
use serve::pool::config::PlaneConfig;
use serve::pool::controller::OWN_PROFILE;
use serve::pool::plane::PlaneCalls;
use serve::pool::records::Joining;
use serve::pool::{records, room, status};
use std::collections::BTreeSet;

#[derive(clap::Args)]
pub struct Join {
    /// The number of the node
    node: u32,
    /// What it fails together with, by number: copies of a band lie in different ones. Of a node that is known it
    /// stays as it is
    #[arg(long, value_name = "N")]
    domain: Option<u32>,
    /// Where it listens: an IP address and a port; if not said, where it did
    #[arg(long, value_name = "ADDR")]
    address: Option<std::net::SocketAddr>,
    /// What its drive can do: `own` (a new node's) for what the node measured, or one of the published profiles
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    #[command(flatten)]
    part: Part,
}

#[derive(clap::Args)]
pub struct Drain {
    /// The number of the node
    node: u32,
    #[command(flatten)]
    part: Part,
}

#[derive(clap::Args)]
pub struct Replace {
    /// The number of the node that is given up
    node: u32,
    /// The node that takes its place, or `none`: what it had goes to any
    #[arg(long, value_name = "NODE")]
    by: String,
    #[command(flatten)]
    part: Part,
}

#[derive(clap::Subcommand)]
pub enum Volume {
    /// Make a volume
    #[command(after_help = "Examples:\n  \
        weir pool volume create data --size 1TiB --config admin.toml\n  \
        weir pool volume create fast --size 100GiB --replicas 3 --config admin.toml\n  \
        weir pool volume create data --size 2TiB --thin --config admin.toml   more nodes will join")]
    Create(Create),
    /// Make a volume larger
    #[command(after_help = "Examples:\n  \
        weir pool volume resize data 2TiB --config admin.toml\n  \
        weir pool volume resize data 8TiB --thin --config admin.toml   more nodes will join\n\n\
        What it holds stays where it is. A client that serves it opens it anew within a second or so: requests\n\
        wait meanwhile, and connections stay.")]
    Resize(Resize),
    /// List the volumes
    #[command(after_help = "Examples:\n  \
        weir pool volume list --config admin.toml --json")]
    List(Asks),
    /// Delete a volume; it cannot be brought back
    #[command(after_help = "Examples:\n  \
        weir pool volume delete data --config admin.toml")]
    Delete(Delete),
}

#[derive(clap::Args)]
pub struct Create {
    /// What it is called
    name: String,
    /// Its size, such as 1TiB
    #[arg(long, value_name = "SIZE")]
    size: String,
    /// Copies of each block, in different failure domains
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=4))]
    replicas: u8,
    /// What the FTL has beyond the size, in percent of it
    #[arg(long, value_name = "PERCENT", default_value_t = 25, value_parser = clap::value_parser!(u32).range(5..=400))]
    op: u32,
    /// The size of a band: what is placed and freed as a whole
    #[arg(long, value_name = "SIZE", default_value = "8MiB")]
    band: String,
    /// Go on writing with fewer copies than `--replicas` where nodes are missing, instead of waiting for them
    #[arg(long)]
    go_on: bool,
    /// Keep no room for it, whether the nodes that are there can hold all of it or not: more will join before it is full
    #[arg(long)]
    thin: bool,
    #[command(flatten)]
    asks: Asks,
}

#[derive(clap::Args)]
pub struct Resize {
    /// What it is called
    name: String,
    /// Its size from now on, larger than it was; such as 2TiB
    size: String,
    /// Keep no room for it from now on, whether the nodes that are there can hold all of it or not: more will join before
    /// it is full
    #[arg(long)]
    thin: bool,
    #[command(flatten)]
    asks: Asks,
}

#[derive(clap::Args)]
pub struct Delete {
    /// What it is called
    name: String,
    /// Although a client may have it open: what it writes from now on is lost
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    part: Part,
}

pub fn join(args: &Join) -> Result<End, Failure> {
    let is_known = |name: &String| *name == OWN_PROFILE || Profile::builtin(name).is_some();
    if let Some(name) = args.profile.as_ref().filter(|name| !is_known(name)) {
        let names: Vec<&str> = Profile::names().collect();
        return Err(format!(
            "--profile {name}: there is no such profile; take {OWN_PROFILE} or one of {}",
            names.join(", ")
        ));
    }
    let joining = Joining {
        domain: args.domain.map(DomainId),
        address: args.address.map(|address| address.to_string()),
        profile: args.profile.clone(),
    };
    let mut calls = args.part.calls()?;
    let record = records::join(&mut calls, NodeId(args.node), joining).map_err(failure)?;
    print(&format!("node {} is in, at {}\n", args.node, record.address));
    Ok(End::Good)
}

pub fn drain(args: &Drain) -> Result<End, Failure> {
    let mut calls = args.part.calls()?;
    records::drain(&mut calls, NodeId(args.node)).map_err(failure)?;
    print(&format!("node {} takes no bands any more\n", args.node));
    say_what_waits(&mut calls)
}

/// Says which volumes have too few nodes now.
fn say_what_waits(calls: &mut PlaneCalls) -> Result<End, Failure> {
    let (short, domains) = records::short_of_domains(calls).map_err(failure)?;
    for (name, copies) in short {
        print(&format!(
            "volume {name} has {copies} copies, and nodes that take bands are in {domains} failure domains: its writes \
             wait, or go on with fewer copies where it was made with --go-on, until more nodes join\n"
        ));
    }
    Ok(End::Good)
}

pub fn replace(args: &Replace) -> Result<End, Failure> {
    let by = match args.by.as_str() {
        "none" => None,
        number => Some(NodeId(number.parse().map_err(|_| {
            format!("--by {number}: the number of a node, or none; for example: --by 7")
        })?)),
    };
    let mut calls = args.part.calls()?;
    records::replace(&mut calls, NodeId(args.node), by).map_err(failure)?;
    print(&format!("node {} is given up: what it has counts no more\n", args.node));
    say_what_waits(&mut calls)
}

pub fn nodes(asks: &Asks) -> Result<End, Failure> {
    let all = records::nodes(&mut asks.part.calls()?).map_err(failure)?;
    let all: Vec<Value> = all.iter().map(|found| status::node(&found.record)).collect();
    match asks.json {
        true => print_json(&json!(all)),
        false => print(&nodes_text(&all)),
    }
    Ok(End::Good)
}

/// One row a node, with its room where somebody asked for that.
pub fn nodes_text(nodes: &[Value]) -> String {
    let has_room = nodes.iter().any(|of| of.get("room").is_some());
    let heads = ["  node", "domain", "state", "address", "profile"].map(str::to_owned);
    let mut rows = vec![heads.to_vec()];
    for of in nodes {
        let word = |key: &str| of[key].as_str().unwrap_or_default().to_owned();
        let by = of["replaced_by"].as_u64().map_or(String::new(), |by| format!(" by {by}"));
        let state = format!("{}{by}", word("state"));
        let node = format!("  {}", of["node"]);
        rows.push(vec![node, of["domain"].to_string(), state, word("address"), word("profile")]);
    }
    if has_room {
        rows[0].push("room".to_owned());
        rows[1..].iter_mut().zip(nodes).for_each(|(row, of)| row.push(room_text(of)));
    }
    table(&rows)
}

/// Raw blocks of a node that hold bands, and all of them.
pub fn room_text(node: &Value) -> String {
    match &node["room"] {
        Value::Object(room) => format!("{} of {}", room["bands_used"], room["bands"]),
        _ => "-".to_owned(),
    }
}

pub fn volume(command: &Volume) -> Result<End, Failure> {
    match command {
        Volume::Create(args) => create(args),
        Volume::Resize(args) => resize(args),
        Volume::List(asks) => list(asks),
        Volume::Delete(args) => {
            let mut calls = args.part.calls()?;
            records::delete(&mut calls, &args.name, args.force).map_err(failure)?;
            print(&format!("volume {} is deleted\n", args.name));
            Ok(End::Good)
        }
    }
}

/// What `option` says is a size.
pub fn bytes(option: &str, text: &str) -> Result<u64, Failure> {
    let example = "a number with KiB, MiB, GiB or TiB; for example: 1TiB";
    let bytes = flash::quantity::bytes(text);
    let bytes = bytes.ok_or_else(|| format!("{option} {text}: must be {example}"))?;
    if !bytes.is_multiple_of(BLOCK_BYTES as u64) {
        return Err(format!("{option} {text}: must be a multiple of 4KiB; for example: 1TiB"));
    }
    Ok(bytes)
}

fn create(args: &Create) -> Result<End, Failure> {
    let size = bytes("--size", &args.size)?;
    let mut wanted = Wanted::new(&*args.name, size / BLOCK_BYTES as u64);
    wanted.replicas = args.replicas;
    wanted.op_percent = args.op;
    wanted.band_bytes = bytes("--band", &args.band)?;
    wanted.degraded = if args.go_on { Degraded::GoOn } else { Degraded::Pause };
    let plane = args.asks.part.load()?.plane().map_err(failure)?;
    let mut calls = PlaneCalls::connect(&plane).map_err(failure)?;
    let nodes = records::nodes(&mut calls).map_err(failure)?;
    let domains = nodes.iter().map(|found| &found.record);
    if let Some(why) = too_few_domains(domains, args.replicas).filter(|_| !args.go_on) {
        return Err(format!("volume {}: {why}", args.name));
    }
    let rooms = rooms_for(&args.name, args.thin, &plane, &mut calls)?;
    if let Some(why) = rooms.and_then(|rooms| too_little_room(&rooms, &wanted)) {
        return Err(format!("volume {}: {why}", args.name));
    }
    wanted.is_thin = args.thin;
    let made = records::create(&mut calls, &wanted).map_err(failure)?;
    let made = status::volume_record(&made);
    match args.asks.json {
        true => print_json(&made),
        false => print(&format!(
            "volume {}: {} in {} bands, {} copies\n",
            args.name,
            crate::size::bytes(size),
            made["bands"],
            args.replicas
        )),
    }
    Ok(End::Good)
}

fn resize(args: &Resize) -> Result<End, Failure> {
    let size = bytes("SIZE", &args.size)?;
    let plane = args.asks.part.load()?.plane().map_err(failure)?;
    let mut calls = PlaneCalls::connect(&plane).map_err(failure)?;
    let found = records::volume(&mut calls, &args.name).map_err(failure)?;
    let refused = |why: String| format!("volume {}: {why}", args.name);
    let mut larger = grown(&found.record, size / BLOCK_BYTES as u64).map_err(refused)?;
    larger.is_thin |= args.thin;
    let rooms = rooms_for(&args.name, larger.is_thin, &plane, &mut calls)?;
    let more = VolumeRecord { bands: larger.bands - found.record.bands, ..larger.clone() };
    if let Some(rooms) = rooms.filter(|rooms| !rooms.holds(&more)) {
        let unfit = too_small_raw_blocks(&rooms, &more).unwrap_or_default();
        return Err(refused(format!(
            "{} bands more in {} copies, and {}{unfit}: take a smaller size, let more nodes join (`weir pool join`), or say \
             --thin, if they will before it is full",
            more.bands,
            more.replicas,
            room_there(&rooms)
        )));
    }
    if larger != found.record {
        records::resize(&mut calls, &found, &larger).map_err(failure)?;
    }
    match args.asks.json {
        true => print_json(&status::volume_record(&larger)),
        false => print(&format!(
            "volume {}: {} in {} bands; its client serves that in a few seconds\n",
            args.name,
            crate::size::bytes(size),
            larger.bands
        )),
    }
    Ok(End::Good)
}

/// What a volume has to fit in; nothing if it is thin, or nobody knows: then it is told, and the volume made, as a pool may be
/// made before its nodes run.
fn rooms_for(
    volume: &str,
    is_thin: bool,
    plane: &PlaneConfig,
    calls: &mut PlaneCalls,
) -> Result<Option<Rooms>, Failure> {
    if is_thin {
        return Ok(None);
    }
    let rooms = room::rooms(plane, calls).map_err(failure)?;
    if rooms.is_none() {
        eprintln!(
            "note: volume {volume}: whether its bands fit was not checked: the controller does not run, or does not know how \
             much room some node has that is in (`weir pool status` shows the room of each): start them, or give a node up \
             that never comes (`weir pool replace NODE --by none`)"
        );
    }
    Ok(rooms)
}

/// What nodes have, and volumes may take of it.
fn room_there(rooms: &Rooms) -> String {
    format!(
        "nodes that take bands have {} raw blocks in {} failure domains, of which {} are kept for volumes that exist and \
         {} hold something (what a volume had that was just deleted is free in some ten seconds)",
        rooms.raw_blocks(),
        rooms.domains(),
        rooms.taken(),
        rooms.used()
    )
}

/// Nodes that hold none of the volume's bands, if there are some.
fn too_small_raw_blocks(rooms: &Rooms, record: &VolumeRecord) -> Option<String> {
    let unfit = rooms.too_small_for(record);
    (unfit > 0).then(|| format!("; the raw blocks of {unfit} of them are too small for its bands"))
}

/// Why no block could be written, if all copies have to be.
fn too_few_domains<'a>(
    nodes: impl Iterator<Item = &'a NodeRecord>,
    replicas: u8,
) -> Option<String> {
    let takes = nodes.filter(|node| node.state == NodeState::In);
    let domains: BTreeSet<u32> = takes.map(|node| node.domain.0).collect();
    if domains.len() >= usize::from(replicas) {
        return None;
    }
    let there: Vec<String> = domains.iter().map(u32::to_string).collect();
    let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
    Some(format!(
        "{replicas} copies lie in as many failure domains, and nodes that take bands are in {}: {there}: let nodes of \
         other domains join first (`weir pool join`), take fewer copies by --replicas, or say --go-on: it then begins \
         with fewer",
        domains.len()
    ))
}

/// Why it could not be filled with what is there. What can be no volume at all is left to whoever makes it.
fn too_little_room(rooms: &Rooms, wanted: &Wanted) -> Option<String> {
    let record = plan(VolumeId(0), wanted).ok().filter(|record| !rooms.holds(record))?;
    let pages_max = rooms.pages_max(record.replicas);
    if pages_max < record.shape.pages {
        return Some(too_long(pages_max, &record));
    }
    let unfit = too_small_raw_blocks(rooms, &record).unwrap_or_default();
    let most = rooms.blocks_max(wanted) * BLOCK_BYTES as u64;
    let most = most - most % (1 << 20);
    let fits = match most {
        0 => "nothing more fits".to_owned(),
        most => format!("--size {} would fit", crate::size::config_text(most)),
    };
    Some(format!(
        "{} bands in {} copies, and {}{unfit}: {fits}: take a smaller --size, fewer copies by --replicas, let more nodes join \
         (`weir pool join`), or say --thin, if they will before it is full",
        record.bands,
        record.replicas,
        room_there(rooms)
    ))
}

/// Why not one band finds places for its copies.
fn too_long(pages_max: u32, record: &VolumeRecord) -> String {
    let bytes = |pages: u32| u64::from(pages) * u64::from(PAGE_SLOTS) * BLOCK_BYTES as u64;
    let shorter = match bytes(pages_max) {
        most if most < BAND_BYTES.0 => "and shorter ones there are not".to_owned(),
        most => format!("take --band {}", crate::size::config_text(most >> 10 << 10)),
    };
    format!(
        "{} copies of bands of {} with their headers fit the raw blocks of nodes in too few failure domains: {shorter}, \
         fewer copies by --replicas, or let nodes join whose drives have larger raw blocks (a larger raw.gang)",
        record.replicas,
        crate::size::bytes(bytes(record.shape.pages))
    )
}

fn list(asks: &Asks) -> Result<End, Failure> {
    let all = records::volumes(&mut asks.part.calls()?).map_err(failure)?;
    let all: Vec<Value> = all.iter().map(|found| status::volume_record(&found.record)).collect();
    match asks.json {
        true => print_json(&json!(all)),
        false => print(&volumes_text(&all, false)),
    }
    Ok(End::Good)
}

/// One row a volume, and who owns it if that was asked.
pub fn volumes_text(volumes: &[Value], has_owners: bool) -> String {
    let heads =
        ["  volume", "size", "copies", "bands", "if nodes lack", "owner"].map(str::to_owned);
    let columns = heads.len() - usize::from(!has_owners);
    let row = |of: &Value| {
        let owner = match &of["owner"]["generation"] {
            Value::Number(generation) if of["owner"]["released"] == true => {
                format!("none since generation {generation}")
            }
            Value::Number(generation) => format!("generation {generation}"),
            _ => of["owner"]["error"].as_str().unwrap_or("-").to_owned(),
        };
        vec![
            format!("  {}", of["name"].as_str().unwrap_or_default()),
            format!(
                "{}{}",
                crate::size::bytes(of["bytes"].as_u64().unwrap_or(0)),
                if of["thin"] == true { ", thin" } else { "" }
            ),
            of["replicas"].to_string(),
            of["bands"].to_string(),
            of["degraded"].as_str().unwrap_or_default().to_owned(),
            owner,
        ]
    };
    let mut rows: Vec<Vec<String>> =
        [heads.to_vec()].into_iter().chain(volumes.iter().map(row)).collect();
    rows.iter_mut().for_each(|row| row.truncate(columns));
    table(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pool::controller::Room;

    #[test]
    fn a_volume_with_more_copies_than_domains_is_refused_with_what_to_do() {
        let node = |node: u32, domain: u32, state| NodeRecord {
            node: NodeId(node),
            domain: DomainId(domain),
            address: "10.0.0.1:1".into(),
            profile: OWN_PROFILE.into(),
            state,
        };
        let all = [
            node(1, 1, NodeState::In),
            node(2, 1, NodeState::In),
            node(3, 2, NodeState::In),
            node(4, 3, NodeState::Draining),
            node(5, 4, NodeState::Out),
        ];
        for (count, replicas, said) in [
            (0, 1, Some("are in 0: none")),
            (2, 2, Some("are in 1: 1")),
            (5, 3, Some("are in 2: 1, 2")),
            (2, 1, None),
            (5, 2, None),
        ] {
            let why = too_few_domains(all[..count].iter(), replicas);
            assert_eq!(why.is_some(), said.is_some(), "{count} {replicas}: {why:?}");
            let Some((why, said)) = why.zip(said) else { continue };
            assert!(why.contains(said) && why.contains("--replicas"), "{why}");
        }
    }

    #[test]
    fn a_volume_that_nodes_cannot_hold_is_refused_with_what_would_fit_and_what_to_do() {
        let of_nodes = |used, pages| {
            let mut rooms = Rooms::default();
            let room = Room { bands: 1000, used, pages };
            (0..3).for_each(|domain| rooms.add_node(DomainId(domain), room));
            rooms
        };
        let mut rooms = of_nodes(0, 136);
        let wanted = Wanted::new("data", 1 << 20);
        assert_eq!(too_little_room(&rooms, &wanted), None, "4 GiB are 700 bands or so");
        rooms.add_volume(&plan(VolumeId(1), &wanted).expect("it can be"));
        let why = too_little_room(&rooms, &Wanted { blocks: 1 << 21, ..wanted.clone() });
        let why = why.expect("8 GiB are too much beside it");
        for part in
            ["3000 raw blocks in 3 failure domains", "MiB would fit", "--thin", "--replicas"]
        {
            assert!(why.contains(part), "{part}: {why}");
        }
        let size = why.split("--size ").nth(1).and_then(|rest| rest.split(' ').next());
        let blocks = bytes("--size", size.expect("a size")).expect("one") / BLOCK_BYTES as u64;
        assert_eq!(too_little_room(&rooms, &Wanted { blocks, ..wanted.clone() }), None, "{why}");
        let large = Wanted { blocks: 1 << 22, ..wanted.clone() };
        let thin = plan(VolumeId(2), &Wanted { is_thin: true, ..large.clone() });
        rooms.add_volume(&thin.expect("it can be"));
        assert_eq!(too_little_room(&rooms, &wanted), None, "nothing is kept for a thin one");
        rooms.add_volume(&plan(VolumeId(3), &large).expect("it can be"));
        for rooms in [rooms, of_nodes(1000, 136)] {
            let why = too_little_room(&rooms, &wanted).expect("all is kept, or used");
            assert!(why.contains("nothing more fits"), "{why}");
        }
        let why = too_little_room(&of_nodes(0, 64), &wanted).expect("raw blocks are too small");
        assert!(why.contains("bands of 8.0 MiB") && why.contains("take --band 3840KiB"), "{why}");
        let band_bytes = 3840 << 10;
        assert_eq!(
            too_little_room(&of_nodes(0, 64), &Wanted { band_bytes, ..wanted.clone() }),
            None
        );
        let why = too_little_room(&of_nodes(0, 16), &wanted).expect("raw blocks are too small");
        assert!(why.contains("shorter ones there are not") && why.contains("raw.gang"), "{why}");
        let mut one = of_nodes(0, 64);
        one.add_node(DomainId(1), Room { bands: 1000, used: 0, pages: 136 });
        assert!(
            too_little_room(&one, &wanted).is_some_and(|why| why.contains("--band")),
            "one domain"
        );
        one.add_node(DomainId(2), Room { bands: 10, used: 0, pages: 136 });
        let why = too_little_room(&one, &wanted).expect("the second one is small");
        assert!(why.contains("the raw blocks of 3 of them are too small"), "{why}");
    }
}

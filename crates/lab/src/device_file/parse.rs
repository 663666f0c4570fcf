//! Reads a device file, key by key.

use super::{Caching, DeviceSpec, Fast, Flash, FtlChoice, Inside, Members, RawChoice};
use crate::caching::CachingConfig;
use crate::ssd::{Cache, Firmware, FrontConfig, IndirectionConfig, Interface, Link, Placement};
use ftl::policy::DECISIONS;
use ftl::policy::stream::{self, HANDLES_MAX};
use ftl::{PolicyNames, Settings};
use nand::{KeyError, Keys, Layout, Profile};

const RATE_MAX: f64 = 1e12;
const BYTES_MAX: u64 = 1 << 44;

pub(super) fn device(toml_text: &str) -> Result<DeviceSpec, KeyError> {
    let whole = with_like(toml_text)?;
    let text = whole.as_deref().unwrap_or(toml_text);
    let mut keys = Keys::parse("device", text, "kind = \"ssd\"")?;
    let name = keys.text("name", "\"my-ssd\"")?;
    let description = keys.text_or("description", "\"a conventional SSD\"")?;
    let source = keys.text_or("source", "\"its data sheet\"")?;
    let kind = keys.text("kind", "\"ssd\"")?;
    let placement = placement(&mut keys, &kind)?;
    let inside = match kind.as_str() {
        "ftl" | "ssd" => {
            let mut flash = flash(&mut keys)?;
            flash.fast = fast(&mut keys, &flash.layout)?;
            Inside::Ftl(flash, Box::new(ftl_choice(&mut keys, placement.as_ref())?))
        }
        "raw" => Inside::Raw(flash(&mut keys)?, raw_choice(&mut keys)?),
        "array" => Inside::Array(members(&mut keys, text)?),
        "pool" => Inside::Pool(Box::new(super::pool::choice(&mut keys)?)),
        _ => {
            let reason =
                "must be \"ftl\" (the host sees the units), \"ssd\" (it does not), \"raw\", \
                          \"array\" or \"pool\""
                    .to_string();
            return Err(keys.refuse("kind", format!("{kind:?}"), reason, "\"ssd\""));
        }
    };
    let front = FrontConfig {
        link: link(&mut keys)?,
        firmware: firmware(&mut keys)?,
        cache: cache(&mut keys)?,
        hides_units: kind == "ssd",
        whole_writes: matches!(&inside, Inside::Raw(_, raw) if raw.write == "block"),
        placement: placement.as_ref().map(|(placement, _)| *placement),
    };
    let host_streams = host(&mut keys, &kind, placement.is_some())?;
    let indirection = indirection(&mut keys, &kind)?;
    let caching = caching(&mut keys, &kind)?;
    keys.refuse_unknown()?;
    Ok(DeviceSpec { name, description, source, inside, front, indirection, caching, host_streams })
}

/// The whole file if it says that it is like a built-in one: the keys of that, changed by its own.
pub(super) fn with_like(toml_text: &str) -> Result<Option<String>, KeyError> {
    let mut keys = Keys::parse("device", toml_text, "kind = \"ssd\"")?;
    if !keys.has("like") {
        return Ok(None);
    }
    let name = keys.text("like", "\"qlc-ssd\"")?;
    let Some(mut table) = super::builtin_table(&name).filter(|table| !table.contains_key("like"))
    else {
        let reason = format!(
            "no built-in device that is not like another; there are {}",
            super::NAMES.join(", ")
        );
        return Err(keys.refuse("like", format!("{name:?}"), reason, "\"qlc-ssd\""));
    };
    let mut own: toml::Table = toml_text.parse().expect("it was parsed");
    own.remove("like");
    super::merge(&mut table, &own);
    Ok(Some(table.to_string()))
}

/// The table `indirection`, if it is there.
fn indirection(keys: &mut Keys, kind: &str) -> Result<Option<IndirectionConfig>, KeyError> {
    let Some(mut table) = keys.table("indirection", "unit_bytes = 65_536")? else {
        return Ok(None);
    };
    only_ssd(keys, kind, "a coarse map is firmware's")?;
    let unit_bytes = table.large("unit_bytes", 1 << 24, "65_536")?;
    if unit_bytes == 0 || !unit_bytes.is_multiple_of(4096) {
        let reason = "must be whole blocks of 4096 bytes".into();
        return Err(table.refuse("unit_bytes", unit_bytes, reason, "65_536"));
    }
    let buffer_bytes = table.large("buffer_bytes", BYTES_MAX, "67_108_864")?;
    if buffer_bytes < unit_bytes {
        let reason = "must hold a unit at least".into();
        return Err(table.refuse("buffer_bytes", buffer_bytes, reason, "67_108_864"));
    }
    let merge_ns = table.time_or_0("merge_ns")?;
    table.refuse_unknown()?;
    Ok(Some(IndirectionConfig { unit_bytes, buffer_bytes, merge_ns }))
}

fn only_ssd(keys: &Keys, kind: &str, why: &str) -> Result<(), KeyError> {
    if kind == "ssd" {
        return Ok(());
    }
    let reason = format!("{why}: only a device of kind \"ssd\" has one");
    Err(keys.refuse("kind", format!("{kind:?}"), reason, "\"ssd\""))
}

/// The table `caching`, if it is there.
fn caching(keys: &mut Keys, kind: &str) -> Result<Option<Caching>, KeyError> {
    let Some(mut table) = keys.table("caching", "share = 0.05")? else { return Ok(None) };
    only_ssd(keys, kind, "a cache stands before a drive")?;
    let profile = profile(&mut table, "\"optane\"")?;
    let fast = Fast {
        profile,
        units: table.integer("units", 1, 2048, "8")?,
        share: table.number("share", 0.0001, 1.0, "0.05")?,
    };
    let clean_above = table.number_or("clean_above", 0.0, 99.0, 10.0)?;
    let config = CachingConfig {
        cores: table.integer_or("cores", 1, 1024, 1)?,
        command_ns: table.time_or_0("command_ns")?,
        line_ns: table.time_or_0("line_ns")?,
        clean_above,
        clean_full: table.number_or("clean_full", clean_above, 100.0, 90.0_f64.max(clean_above))?,
        clean_depth: table.integer_or("clean_depth", 1, 1 << 16, 64)?,
        clean_bytes: table.large_or("clean_bytes", 1 << 24, 65_536)?,
        past_bytes: table.large_or("past_bytes", BYTES_MAX, 0)?,
        past_io_bytes: table.large_or("past_io_bytes", BYTES_MAX, 0)?,
    };
    if config.clean_bytes == 0 || !config.clean_bytes.is_multiple_of(4096) {
        let reason = "must be whole blocks of 4096 bytes".into();
        return Err(table.refuse("clean_bytes", config.clean_bytes, reason, "65_536"));
    }
    table.refuse_unknown()?;
    Ok(Some(Caching { fast, config }))
}

fn flash(keys: &mut Keys) -> Result<Flash, KeyError> {
    let profile = profile(keys, "\"mlc-25nm\"")?;
    let mut keys = required(keys, "layout", "channels = 44")?;
    let layout = Layout {
        channels: keys.integer("channels", 1, 4096, "44")?,
        dies_per_channel: keys.integer("dies_per_channel", 1, 4096, "2")?,
        blocks_per_plane: keys.integer("blocks_per_plane", 1, 1 << 24, "2048")?,
    };
    if layout.channels * layout.dies_per_channel > 4096 {
        let reason = format!("{} channels of it are more than 4096 dies", layout.channels);
        return Err(keys.refuse("dies_per_channel", layout.dies_per_channel, reason, "2"));
    }
    keys.refuse_unknown()?;
    Ok(Flash { profile, layout, fast: None })
}

/// The key `profile`, a name or all keys of one, changed by the table `profile_changes`.
fn profile(keys: &mut Keys, example: &str) -> Result<Profile, KeyError> {
    if keys.has_table("profile") {
        let own = keys.table("profile", "page_bytes = 16384")?.expect("it is there");
        let changes = keys.table("profile_changes", "planes = 1")?;
        return Profile::of_keys(own, changes);
    }
    let name = keys.text("profile", example)?;
    let unknown = |keys: &Keys| {
        let reason = format!("no such profile; there are {}", Profile::builtin_names().join(", "));
        keys.refuse("profile", format!("{name:?}"), reason, example)
    };
    match keys.table("profile_changes", "planes = 1")? {
        None => Profile::builtin(&name).ok_or_else(|| unknown(keys)),
        Some(changes) => Profile::builtin_changed(&name, changes).ok_or_else(|| unknown(keys))?,
    }
}

/// The table `fast`, if it is there.
fn fast(keys: &mut Keys, layout: &Layout) -> Result<Option<Fast>, KeyError> {
    let Some(mut keys) = keys.table("fast", "share = 0.05")? else { return Ok(None) };
    let profile = profile(&mut keys, "\"optane\"")?;
    let units = keys.integer("units", 1, 2048, "8")?;
    let share = keys.number("share", 0.0001, 1.0, "0.05")?;
    keys.refuse_unknown()?;
    let slow = f64::from(layout.channels * layout.dies_per_channel);
    if share > f64::from(units) / slow {
        let reason = format!(
            "{units} units hold at most {:.4} of the flash, as none has more blocks than a die",
            f64::from(units) / slow
        );
        return Err(keys.refuse("share", share, reason, "0.01"));
    }
    Ok(Some(Fast { profile, units, share }))
}

/// A table that must be there.
pub(super) fn required(
    keys: &mut Keys,
    key: &str,
    example: &'static str,
) -> Result<Keys, KeyError> {
    let found = keys.table(key, example)?;
    found.ok_or_else(|| {
        let mut error = keys.refuse(key, "", "this table is missing".into(), "");
        error.example = format!("{key} = {{ {example} }}");
        error
    })
}

fn ftl_choice(
    keys: &mut Keys,
    placement: Option<&(Placement, Isolation)>,
) -> Result<FtlChoice, KeyError> {
    let mut keys = required(keys, "ftl", "over_provisioning = 0.07")?;
    if placement.is_some() && keys.has("stream") {
        let reason =
            "the placement identifiers of [placement] decide it; remove one of them".into();
        return Err(keys.refuse("stream", "", reason, "\"none\""));
    }
    let utilization = if keys.has("over_provisioning") {
        if keys.has("utilization") {
            let reason = "over_provisioning says it already; remove one of them".into();
            return Err(keys.refuse("utilization", "", reason, "0.95"));
        }
        1.0 / (1.0 + keys.number("over_provisioning", 0.0, 100.0, "0.07")?)
    } else {
        keys.number("utilization", 0.0001, 1.0, "0.95")?
    };
    let mut settings = settings(&mut keys)?;
    if let Some((placement, isolation)) = placement {
        let handles = placement.handles_inside();
        let moved = match isolation {
            Isolation::Mixed => 0,
            Isolation::Initial => 1,
            Isolation::Persistent => handles,
        };
        settings.policies.stream = format!("hint:handles={handles},moved={moved}");
    }
    keys.refuse_unknown()?;
    Ok(FtlChoice { utilization, settings })
}

/// What a drive's GC keeps apart.
enum Isolation {
    /// Nothing: what it moves goes with what the host writes of no stream, or to handle 0.
    Mixed,
    /// What it moves from what the host writes.
    Initial,
    /// That, by handle.
    Persistent,
}

/// What write commands may say, and what the drive's GC keeps apart.
fn placement(keys: &mut Keys, kind: &str) -> Result<Option<(Placement, Isolation)>, KeyError> {
    let Some(mut placement) = keys.table("placement", "interface = \"fdp\"")? else {
        return Ok(None);
    };
    if kind != "ssd" {
        let reason =
            "only a device of kind \"ssd\" takes placement identifiers; what the host FTL \
                      of others sorts by is [ftl] stream"
                .into();
        return Err(keys.refuse("kind", format!("{kind:?}"), reason, "\"ssd\""));
    }
    let interface = match one_of(&mut placement, "interface", &["fdp", "streams"])?.as_str() {
        "fdp" => Interface::Fdp,
        _ => Interface::Streams,
    };
    // Of the FTL's 16 handles, one serves writes of no stream.
    let most = u32::from(HANDLES_MAX) - u32::from(interface == Interface::Streams);
    let handles = placement.integer_or("handles", 1, most, 8)? as u8;
    let names = ["initial", "persistent", "mixed"];
    let isolation = match one_of(&mut placement, "isolation", &names)?.as_str() {
        "mixed" => Isolation::Mixed,
        "persistent" => Isolation::Persistent,
        _ => Isolation::Initial,
    };
    placement.refuse_unknown()?;
    Ok(Some((Placement { interface, handles, unit_bytes: 0 }, isolation)))
}

/// The stream policy in the host's driver.
fn host(keys: &mut Keys, kind: &str, placement: bool) -> Result<Option<String>, KeyError> {
    let Some(mut host) = keys.table("host", "streams = \"sfr\"")? else { return Ok(None) };
    let example = "\"sfr:handles=8\"";
    let streams = host.text("streams", example)?;
    let refuse = |reason| Err(host.refuse("streams", format!("{streams:?}"), reason, example));
    if streams == "none" {
        host.refuse_unknown()?;
        return Ok(None);
    }
    if !placement {
        return refuse(format!(
            "a device of kind {kind:?} without [placement] takes none; give it one, or set [ftl] \
             stream of a host FTL"
        ));
    }
    if let Err(reason) = stream::by_name(&streams, stream::Shape { blocks: 1, handles: 1 }) {
        return refuse(reason);
    }
    host.refuse_unknown()?;
    Ok(Some(streams))
}

pub(super) fn settings(keys: &mut Keys) -> Result<Settings, KeyError> {
    let default = Settings::default();
    let time_or = |keys: &mut Keys, key: &str, default: u64| {
        if keys.has(key) { keys.time(key, &default.to_string()) } else { Ok(default) }
    };
    Ok(Settings {
        handles: keys.integer_or("handles", 1, 16, u32::from(default.handles))? as u8,
        stripe_units: keys.integer_or("stripe_units", 0, 4096, default.stripe_units)?,
        append_wait_ns: time_or(keys, "append_wait_ns", default.append_wait_ns)?,
        bands_free_low: keys.integer_or("bands_free_low", 0, 1 << 30, default.bands_free_low)?,
        checkpoint_slots: keys.large_or("checkpoint_slots", 1 << 40, default.checkpoint_slots)?,
        scrub_period_ns: keys.large_or("scrub_period_ns", 1 << 60, default.scrub_period_ns)?,
        refresh_bits: keys.integer_or("refresh_bits", 1, 4096, default.refresh_bits)?,
        suspensions_max: keys.integer_or("suspensions_max", 0, 1000, default.suspensions_max)?,
        read_slo_ns: time_or(keys, "read_slo", default.read_slo_ns)?,
        idle_ns: time_or(keys, "idle_ns", default.idle_ns)?,
        bands_ahead: keys.integer_or("bands_ahead", 0, 1 << 20, default.bands_ahead)?,
        programs_max: keys.integer_or("programs_max", 0, 256, default.programs_max)?,
        victims_max: keys.integer_or("victims_max", 0, 4096, default.victims_max)?,
        relocation_blocks: keys.integer_or(
            "relocation_blocks",
            2,
            1 << 20,
            default.relocation_blocks,
        )?,
        destage_above: keys.integer_or("destage_above", 0, 95, default.destage_above.into())? as u8,
        map_bytes: keys.large_or("map_bytes", 1 << 44, default.map_bytes)?,
        map_piece_blocks: keys.integer_or("map_piece_blocks", 8, 1024, default.map_piece_blocks)?,
        policies: policies(keys)?,
        ..default
    })
}

fn policies(keys: &mut Keys) -> Result<PolicyNames, KeyError> {
    let mut names = PolicyNames::default();
    for decision in DECISIONS {
        if !keys.has(decision) {
            continue;
        }
        let default = format!("{:?}", names.of(decision));
        let name = keys.text(decision, &default)?;
        let mut tried = PolicyNames::default();
        tried.of_mut(decision).clone_from(&name);
        tried
            .validate()
            .map_err(|reason| keys.refuse(decision, format!("{name:?}"), reason, &default))?;
        *names.of_mut(decision) = name;
    }
    Ok(names)
}

fn raw_choice(keys: &mut Keys) -> Result<RawChoice, KeyError> {
    let mut keys = required(keys, "raw", "gang = 2")?;
    let choice = RawChoice {
        gang: keys.integer("gang", 1, 4096, "2")?,
        spare: keys.number("spare", 0.0, 0.5, "0.01")?,
        write: one_of(&mut keys, "write", &["block", "page"])?,
        erase: one_of(&mut keys, "erase", &["now", "background"])?,
        read_granule: keys.integer_or("read_granule", 1, 64, 1)?,
        suspensions_max: keys.integer_or("suspensions_max", 0, 1000, 4)?,
        idle_ns: keys.large_or("idle_ns", 10_000_000_000, 2_000_000)?,
    };
    keys.refuse_unknown()?;
    Ok(choice)
}

/// One of some words; the first if it is not there.
pub(super) fn one_of(keys: &mut Keys, key: &str, words: &[&str]) -> Result<String, KeyError> {
    let example = format!("{:?}", words[0]);
    if !keys.has(key) {
        return Ok(words[0].into());
    }
    let word = keys.text(key, &example)?;
    if !words.contains(&word.as_str()) {
        let reason = format!("must be one of {}", words.join(", "));
        return Err(keys.refuse(key, format!("{word:?}"), reason, &example));
    }
    Ok(word)
}

fn members(keys: &mut Keys, toml_text: &str) -> Result<Members, KeyError> {
    let mut keys = required(keys, "array", "member = \"ts8-2\"")?;
    let name = keys.text("member", "\"ts8-2\"")?;
    let Some(member) = super::NAMES.contains(&name.as_str()).then_some(&name) else {
        let reason = format!("no such device; there are {}", super::NAMES.join(", "));
        return Err(keys.refuse("member", format!("{name:?}"), reason, "\"ts8-2\""));
    };
    let count = keys.integer("count", 1, 1024, "11")?;
    let chunk_bytes = keys.large("chunk_bytes", BYTES_MAX, "65536")?;
    if !chunk_bytes.is_multiple_of(4096) {
        let reason = "must be whole blocks of 4096 bytes, or 0 for one after the other".into();
        return Err(keys.refuse("chunk_bytes", chunk_bytes, reason, "65536"));
    }
    let example = "link = { queue_depth = 16 }";
    let is_changed = keys.table("member_changes", example)?.is_some();
    keys.refuse_unknown()?;
    let changes = if is_changed { member_changes(toml_text) } else { toml::Table::new() };
    let member = DeviceSpec::builtin_with(member, &changes).map_err(|why| {
        let said = changes.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        keys.refuse("member_changes", said, why, example)
    })?;
    if member.kind() == "array" {
        let reason = "is an array itself; name a single device".into();
        return Err(keys.refuse("member", format!("{name:?}"), reason, "\"ts8-2\""));
    }
    Ok(Members { member: Box::new(member), count, chunk_bytes })
}

/// The table `array.member_changes` of a file that has one.
fn member_changes(toml_text: &str) -> toml::Table {
    let file: toml::Table = toml_text.parse().expect("it was parsed");
    let changes = file["array"]["member_changes"].as_table();
    changes.expect("it was seen to be a table").clone()
}

fn link(keys: &mut Keys) -> Result<Link, KeyError> {
    let Some(mut keys) = keys.table("link", "read_bytes_per_s = 1.61e9")? else {
        return Ok(Link::default());
    };
    let link = Link {
        read_bytes_per_s: keys.number_or("read_bytes_per_s", 0.0, RATE_MAX, 0.0)?,
        write_bytes_per_s: keys.number_or("write_bytes_per_s", 0.0, RATE_MAX, 0.0)?,
        half_duplex: keys.flag_or_false("half_duplex")?,
        command_ns: keys.time_or_0("command_ns")?,
        queue_depth: keys.integer_or("queue_depth", 0, 1 << 20, 0)?,
    };
    keys.refuse_unknown()?;
    Ok(link)
}

fn firmware(keys: &mut Keys) -> Result<Firmware, KeyError> {
    let Some(mut keys) = keys.table("firmware", "command_ns = 10_000")? else {
        return Ok(Firmware::default());
    };
    let firmware = Firmware {
        cores: keys.integer_or("cores", 1, 1024, 1)?,
        command_ns: keys.time_or_0("command_ns")?,
        page_bytes: keys.integer_or("page_bytes", 512, 1 << 20, 8192)?,
        read_page_ns: keys.time_or_0("read_page_ns")?,
        write_page_ns: keys.time_or_0("write_page_ns")?,
        relocate_page_ns: keys.time_or_0("relocate_page_ns")?,
        relocate_burst_bytes: keys.large_or("relocate_burst_bytes", BYTES_MAX, 0)?,
    };
    keys.refuse_unknown()?;
    Ok(firmware)
}

fn cache(keys: &mut Keys) -> Result<Option<Cache>, KeyError> {
    let Some(mut keys) = keys.table("cache", "bytes = 1_073_741_824")? else {
        return Ok(None);
    };
    let bytes = keys.large("bytes", BYTES_MAX, "1_073_741_824")?;
    if bytes < CACHE_BYTES_MIN {
        let reason = format!("must be at least {CACHE_BYTES_MIN}; remove [cache] for none");
        return Err(keys.refuse("bytes", bytes, reason, "1_073_741_824"));
    }
    let cache = Cache {
        bytes,
        drain_depth: keys.integer_or("drain_depth", 1, 1 << 20, 128)?,
        gather_bytes: keys.large_or("gather_bytes", bytes, 0)?,
        power_safe: keys.flag_or_false("power_safe")?,
    };
    keys.refuse_unknown()?;
    Ok(Some(cache))
}

/// A scaled cache has at least so much.
pub(super) const CACHE_BYTES_MIN: u64 = 1 << 20;

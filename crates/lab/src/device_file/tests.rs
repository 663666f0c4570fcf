//! Device files: what parses, what is refused, and the bandwidths of the built-in devices.

use super::{DeviceSpec, Inside, NAMES, Scale, TEXTS};
use crate::load::{Client, Pace, Seen, Window, run};
use crate::target::{Io, IoKind, Target, TargetCounts};
use crate::tenant::{Kind, Part, Until, parts};
use crate::workload::Pattern;
use flash::{Hint, SECOND};
use nand::Faults;

fn builtin(name: &str) -> DeviceSpec {
    DeviceSpec::builtin(name).expect("it is listed")
}

/// Blocks of a plane at which a built-in device is small and works.
fn small(spec: &DeviceSpec) -> Scale {
    Scale::BlocksPerPlane(match spec.name.as_str() {
        "tssd" => 128,
        // The spare 1 % must hold two blocks of lane records.
        "sdf" => 400,
        _ => 16,
    })
}

fn build(spec: &DeviceSpec) -> Box<dyn Target> {
    spec.build(small(spec), &Faults::default(), 1).unwrap_or_else(|why| panic!("{why}"))
}

#[test]
fn every_builtin_device_parses_names_itself_and_builds_small() {
    for name in DeviceSpec::names() {
        let spec = builtin(name);
        assert_eq!(&spec.name, name);
        assert!(!spec.source.is_empty() && !spec.description.is_empty(), "{name}");
        let target = build(&spec);
        assert!(target.bytes() > 64 << 20, "{name}");
        assert!(target.deadline().is_none_or(|at| at > target.now()), "{name} is quiet");
    }
    assert!(DeviceSpec::builtin("gen4").is_none());
}

#[test]
fn the_fitted_drives_parse_name_themselves_and_consist_of_parts() {
    for name in DeviceSpec::drive_names() {
        let spec = builtin(name);
        assert_eq!((spec.name.as_str(), spec.kind()), (name, "array"));
        assert!(!spec.source.is_empty() && !spec.description.is_empty(), "{name}");
        let Inside::Array(members) = &spec.inside else { panic!("{name} is no array") };
        assert_eq!((members.count, members.chunk_bytes), (8, 4096), "{name}");
    }
    assert!(DeviceSpec::drive_names().eq(crate::drives::Profile::names()));
}

#[test]
fn changes_of_a_member_are_those_of_its_file() {
    let text = TEXTS[NAMES.iter().position(|&name| name == "ts8-2-x11").expect("listed")];
    let text = format!("{text}member_changes = {{ link = {{ queue_depth = 9 }} }}\n");
    let spec = DeviceSpec::parse(&text).expect("it is right");
    let Inside::Array(members) = &spec.inside else { panic!("it is an array") };
    assert_eq!(members.member.front.link.queue_depth, 9);
    assert_eq!(members.member.inside, builtin("ts8-2").inside);
}

#[test]
fn the_builtin_devices_have_the_capacity_that_was_sold() {
    for (name, units, gigabytes) in [
        ("sdf", 44, 748.4),
        ("tssd", 204, 1664.0),
        ("gen3", 176, 581.5),
        ("intel-320", 40, 300.0),
        ("ts8-2-x11", 440, 3300.0),
        ("fusion-io", 100, 640.0),
        ("mqsim-default", 128, 514.0),
    ] {
        let figures = builtin(name).figures();
        assert_eq!(figures.units, units, "{name}");
        let close = (figures.usable_bytes / 1e9 / gigabytes - 1.0).abs() < 0.005;
        assert!(close, "{name}: {}", figures.usable_bytes);
    }
    let sdf = builtin("sdf").figures();
    assert!((sdf.flash_read / 1.669e9 - 1.0).abs() < 0.001);
    assert_eq!((sdf.read_max, sdf.write_max), (1.61e9, sdf.flash_program));
    assert!((builtin("gen3").figures().flash_program / sdf.flash_program - 1.0).abs() < 0.001);
}

#[test]
fn an_error_names_key_value_reason_and_example() {
    let gen3 = TEXTS[NAMES.iter().position(|&name| name == "gen3").expect("listed")];
    let array = TEXTS[NAMES.iter().position(|&name| name == "ts8-2-x11").expect("listed")];
    let sdf = TEXTS[0];
    let cases = [
        (gen3, "kind = \"ssd\"", "kind = \"hdd\"", "kind = \"hdd\": must be \"ftl\""),
        (gen3, "kind = \"ssd\"", "", "kind: this key is missing"),
        (gen3, "name = \"gen3\"", "name = \"\\u001b[31m\"", "must have no control characters"),
        (gen3, "kind = \"ssd\"", "kind = \"ssd\"\ncolour = 3", "colour = 3: no such key"),
        (gen3, "\"mlc-25nm\"", "\"plc\"", "profile = \"plc\": no such profile; there are"),
        (gen3, "planes = 1", "plains = 1", "profile_changes.plains = 1: no such key"),
        (gen3, "planes = 1", "planes = 0", "profile_changes.planes = 0: must be a whole number"),
        (
            gen3,
            "[layout]",
            "[layouts]",
            "layout: this table is missing; for example: layout = { channels = 44 }",
        ),
        (gen3, "channels = 44", "channels = 4000", "layout.dies_per_channel = 4: 4000 channels"),
        (gen3, "over_provisioning = 0.30", "utilization = 1.5", "ftl.utilization = 1.5: must be"),
        (gen3, "[ftl]", "[ftl]\nutilization = 0.5", "ftl.utilization: over_provisioning says it"),
        (gen3, "[ftl]", "[ftl]\nhandles = 17", "ftl.handles = 17: must be a whole number"),
        (gen3, "unit = \"round-robin\"", "unit = \"dice\"", "ftl.unit = \"dice\": no unit policy"),
        (gen3, "queue_depth = 256", "queue_dept = 1", "link.queue_dept = 1: no such key"),
        (gen3, "1.61e9", "\"fast\"", "link.read_bytes_per_s = \"fast\": must be a number"),
        (gen3, "page_bytes = 8192", "page_bytes = 1", "firmware.page_bytes = 1: must be"),
        (gen3, "bytes = 1_073_741_824", "bytes = 4096", "cache.bytes = 4096: must be at least"),
        (gen3, "[cache]", "cache = 1\n[cash]", "cache"),
        (sdf, "write = \"block\"", "write = \"byte\"", "raw.write = \"byte\": must be one of"),
        (sdf, "spare = 0.01", "spare = 0.9", "raw.spare = 0.9: must be a number from 0 to 0.5"),
        (array, "\"ts8-2\"", "\"ts9\"", "array.member = \"ts9\": no such device; there are sdf"),
        (array, "chunk_bytes = 65536", "chunk_bytes = 1000", "array.chunk_bytes = 1000: must be"),
        (
            array,
            "count = 11",
            "count = 11\nmember_changes.link.depth = 1",
            "member_changes = [link] depth = 1: device: link.depth",
        ),
        (
            array,
            "count = 11",
            "count = 11\nmember_changes = 1",
            "array.member_changes = 1: must be",
        ),
        (array, "count = 11", "count = 0", "array.count = 0: must be a whole number"),
    ];
    for (text, from, to, expected) in cases {
        assert!(text.contains(from), "{from}");
        // The head of a file names things too: change the last place.
        let at =
            text.rfind(&format!("\n{from}")).map_or_else(|| text.rfind(from), |at| Some(at + 1));
        let at = at.expect("it is there");
        let changed = format!("{}{to}{}", &text[..at], &text[at + from.len()..]);
        let message = DeviceSpec::parse(&changed).expect_err(to).to_string();
        assert!(message.contains(expected), "{from} -> {to}: {message}");
        assert!(message.starts_with("device: ") || message.starts_with("profile: "), "{message}");
        assert!(message.contains("for example: "), "{message}");
    }
}

#[test]
fn all_that_is_wrong_with_a_device_is_told_at_once_but_for_what_stands_on_its_kind() {
    let own = "name = \"mine\"\nkind = \"ssd\"\nprofile = \"tcl\"\n[link]\ndept = 3\n[layout]\nchannels = 0\n";
    let message = DeviceSpec::parse(own).unwrap_err().to_string();
    for key in [
        "profile = \"tcl\"",
        "layout.channels = 0",
        "layout.dies_per_channel",
        "ftl: this table",
        "link.dept",
    ] {
        assert!(message.contains(&format!("\n  device: {key}")), "{key}: {message}");
    }
    let message = DeviceSpec::parse(&own.replace("\"ssd\"", "\"sdd\"")).unwrap_err().to_string();
    assert!(
        message.starts_with("device: kind = \"sdd\"") && message.lines().count() == 1,
        "{message}"
    );
}

#[test]
fn a_device_without_its_kind_is_not_taken_for_a_kind_of_flash() {
    let read =
        |_: &str| Ok("name = \"mine\"\nprofile = \"tlc\"\n[layout]\nchannels = 4\n".to_owned());
    let table = DeviceSpec::whole_table("mine.toml", &read).expect("its keys are looked at later");
    let message = DeviceSpec::of_table(table, &toml::Table::new()).unwrap_err();
    assert!(message.starts_with("device: kind: this key is missing"), "{message}");
}

#[test]
fn a_scale_shrinks_capacity_and_cache_and_a_device_too_small_says_what_would_do() {
    let gen3 = builtin("gen3");
    let share = Scale::Share(32.0 / 2048.0);
    let small = gen3.build(share, &Faults::default(), 1).map(|target| target.bytes());
    let same = gen3.build(Scale::BlocksPerPlane(32), &Faults::default(), 1);
    assert_eq!(small, same.map(|target| target.bytes()));
    let intel = builtin("intel-320");
    let why = intel.build(Scale::BlocksPerPlane(1), &Faults::default(), 1).err();
    let why = why.expect("40 bands at 87 % are too few");
    assert!(why.starts_with("device \"intel-320\": too small: with 1 blocks a plane"), "{why}");
    let works = why.rsplit("; ").next().and_then(|mend| mend.split(' ').next()?.parse().ok());
    let works = Scale::BlocksPerPlane(works.expect("it names a size"));
    intel.build(works, &Faults::default(), 1).map(drop).expect("it said so");
    for bad in [Scale::Share(0.0), Scale::Share(f64::NAN), Scale::BlocksPerPlane(0)] {
        assert!(gen3.build(bad, &Faults::default(), 1).is_err(), "{bad:?}");
    }
}

/// Runs one client for so many seconds of device time.
fn seen(target: &mut dyn Target, seconds: f64, client: Client) -> Seen {
    let window = Window { warmup_ns: SECOND / 10, measure_ns: (seconds * 1e9) as u64 };
    run(target, &[client], window, 1).expect("nothing fails").remove(0)
}

/// Lets what the device does by itself come to an end.
fn settle(target: &mut dyn Target) {
    let end = target.now() + 10 * SECOND;
    target.advance(end).expect("no failure");
}

fn near(what: &str, value: f64, expected: f64, tolerance: f64) {
    assert!((value / expected - 1.0).abs() <= tolerance, "{what}: {value}, not {expected}");
}

/// Table 4 of the SDF paper: one asynchronous thread. Writes on a fresh device, where there is no GC
/// yet; then reads of what they left. GB/s.
fn table_4(name: &str, reads: [(u64, f64); 4], write: f64, depth: u32) {
    let mut target = build(&builtin(name));
    let span = Client {
        bytes: 8 << 20,
        pace: Pace::Depth(4),
        pattern: Pattern::Sequential,
        span: 0.9,
        ..Client::default()
    };
    let written = seen(&mut *target, 3.0, span);
    near(name, written.per_second(written.bytes_written) / 1e9, write, 0.05);
    settle(&mut *target);
    for (kib, expected) in reads {
        let (depth, seconds) = if kib < 1024 { (depth, 0.3) } else { (4, 2.0) };
        let pace = Pace::Depth(depth);
        let client = Client { reads: 1.0, bytes: kib << 10, pace, span: 0.15, ..Client::default() };
        let read = seen(&mut *target, seconds, client);
        assert_eq!(read.errors, 0);
        let rate = read.per_second(read.bytes_read) / 1e9;
        near(&format!("{name} {kib} KiB"), rate, expected, 0.05);
    }
}

#[test]
fn gen3_has_the_bandwidths_of_table_4() {
    let reads = [(8, 0.92), (16, 1.02), (64, 1.15), (8192, 1.20)];
    table_4("gen3", reads, 0.67, 256);
}

#[test]
fn the_intel_320_has_the_bandwidths_of_table_4() {
    let reads = [(8, 0.17), (16, 0.20), (64, 0.22), (8192, 0.22)];
    table_4("intel-320", reads, 0.13, 32);
}

#[test]
fn the_scale_for_a_size_is_the_least_that_has_it() {
    for (name, bytes) in [("tssd", 20 << 30), ("ts8-2-x11", 40 << 30), ("sdf", 40 << 30)] {
        let spec = builtin(name);
        let Ok(Scale::BlocksPerPlane(blocks)) = spec.scale_for(bytes, 1) else {
            panic!("{name} has that much");
        };
        let built = |blocks| spec.build(Scale::BlocksPerPlane(blocks), &Faults::default(), 1);
        assert!(built(blocks).unwrap().bytes() >= bytes, "{name}");
        assert!(built(blocks - 1).is_ok_and(|target| target.bytes() < bytes), "{name}");
        assert_eq!(spec.scale_for(bytes, 500), Ok(Scale::BlocksPerPlane(500)), "{name}");
        assert!(spec.scale_for(1 << 43, 1).unwrap_err().contains("in full"), "{name}");
    }
}

#[test]
fn raw_units_that_name_no_spare_keep_back_what_bad_blocks_take() {
    let set = "raw.spare = 0\nlayout.channels = 4".parse().unwrap();
    let spec = DeviceSpec::builtin_with("sdf", &set).unwrap();
    let share = |factory_bad| {
        let faults = Faults { factory_bad, ..Faults::default() };
        let target = spec.build(Scale::BlocksPerPlane(400), &faults, 1).unwrap();
        target.bytes() as f64 / target.flash_bytes() as f64
    };
    assert_eq!(share(0.0), 398.0 / 400.0);
    assert!((0.9..0.97).contains(&share(0.02)), "{}", share(0.02));
}

/// The drive `name`, small, with some keys set.
fn small_drive(name: &str, set: &str) -> Result<Box<dyn Target>, String> {
    let set = format!(
        "[layout]\nchannels = 2\ndies_per_channel = 1\n[profile_changes]\nplanes = 1\n\
         pages_per_block = 12\n[ftl]\nover_provisioning = 0.28\n{set}"
    );
    let table = set.parse().expect("it is TOML");
    let spec = DeviceSpec::builtin_with(name, &table)?;
    spec.build(Scale::BlocksPerPlane(704), &Faults::default(), 1)
}

/// Logs of several lifetimes, until the drive was written over four times; its write amplification
/// then, and what it counted.
fn waf_of_logs(drive: &mut dyn Target) -> (f64, TargetCounts) {
    let part = |(number, share): (usize, f64)| Part {
        name: format!("log {number}"),
        kind: Kind::Log,
        share,
        depth: 0,
        think_ns: None,
        profiled: false,
    };
    let shares = [0.4, 0.25, 0.15, 0.09, 0.05, 0.03];
    let list: Vec<Part> = shares.into_iter().enumerate().map(part).collect();
    let mut tenants = parts(&list, drive.bytes(), 1, &mut |_| Err("none".into())).expect("fit");
    tenants.fill(drive).expect("fills");
    let bytes = drive.bytes();
    tenants.run(drive, Until::Written(3 * bytes)).expect("runs");
    let before = drive.counts();
    tenants.run(drive, Until::Written(bytes)).expect("runs");
    let after = drive.counts();
    let relocated = after.bytes_relocated - before.bytes_relocated;
    (1.0 + relocated as f64 / (after.bytes_written - before.bytes_written) as f64, after)
}

#[test]
fn a_detector_before_a_drive_with_streams_saves_relocations_and_does_so_again() {
    let sfr = "[host]\nstreams = \"sfr:chunk=32KiB,decay=256MiB,base=1.5\"";
    for name in ["multi-stream", "fdp"] {
        let run = |set| waf_of_logs(&mut *small_drive(name, set).expect("builds"));
        let (without, _) = run("");
        let (with, counts) = run(sfr);
        assert!(with < without - 0.2, "{name}: {with:.3} with streams, {without:.3} without");
        assert_eq!((with, counts), run(sfr), "{name}");
    }
}

#[test]
fn fdp_statistics_say_what_was_written_moved_and_named_wrongly() {
    let mut drive = small_drive("fdp", "").expect("builds");
    let block = flash::BLOCK_BYTES as u64;
    for token in 0..64u64 {
        // Identifiers 8 and 9 name no handle of 8.
        let hint = Hint { handle: (token % 10) as u8, ..Hint::default() };
        let io = Io { kind: IoKind::Write, offset: token * block, bytes: block, hint };
        drive.submit(drive.now(), token, io).expect("takes it");
    }
    let mut ended = 0;
    while let Some(next) = drive.deadline() {
        drive.advance(next).expect("no failure");
        while let Some(done) = drive.take_done() {
            assert_eq!(done.result, Ok(()), "placement is never a reason to fail");
            ended += 1;
        }
    }
    assert_eq!(ended, 64);
    let fdp = drive.fdp().expect("it is an FDP drive");
    assert_eq!((fdp.host_bytes_written, fdp.invalid_identifiers), (64 * block, 12));
    assert!(fdp.media_bytes_written >= fdp.host_bytes_written && fdp.unit_changes >= 8, "{fdp:?}");
    assert!(small_drive("multi-stream", "").expect("builds").fdp().is_none());
}

#[test]
fn what_is_wrong_with_placement_is_named() {
    let wrong = [
        ("fdp", "[placement]\ninterface = \"zns\"", "interface"),
        ("fdp", "[placement]\nhandles = 17", "handles"),
        ("multi-stream", "[placement]\nhandles = 16", "handles"),
        ("fdp", "[placement]\nisolation = \"none\"", "isolation"),
        ("fdp", "[placement]\nunits = 3", "units"),
        ("fdp", "[host]\nstreams = \"srf\"", "srf"),
        ("fdp", "[host]\nstream = \"sfr\"", "streams"),
        ("intel-320", "[host]\nstreams = \"sfr\"", "placement"),
        ("open-channel", "[placement]\nhandles = 4", "kind"),
    ];
    for (name, set, named) in wrong {
        let table = set.parse().expect("it is TOML");
        let error = DeviceSpec::builtin_with(name, &table).expect_err(set);
        assert!(error.contains(named), "{set}: {error}");
    }
    let table = "[ftl]\nstream = \"sfr\"".parse().expect("it is TOML");
    let error = DeviceSpec::builtin_with("fdp", &table).expect_err("both say it");
    assert!(error.contains("[placement]"), "{error}");
}

#[test]
fn a_drive_that_cannot_keep_its_handles_apart_is_not_built() {
    let set = "[ftl]\nover_provisioning = 0.12\n[layout]\nchannels = 2\ndies_per_channel = 1\n\
               [placement]\nhandles = 16";
    let spec = DeviceSpec::builtin_with("fdp", &set.parse().expect("TOML")).expect("parses");
    let built = spec.build(Scale::BlocksPerPlane(80), &Faults::default(), 1);
    let error = built.err().expect("too few spare blocks");
    assert!(error.contains("handles") || error.contains("too small"), "{error}");
}

#[test]
fn what_is_wrong_with_a_pool_is_named() {
    let wrong = [
        ("[pool]\ndrives = [\"sdm\"]", "pool.drives = \"sdm\""),
        ("[pool]\ndrives = []", "pool.drives"),
        ("[pool]\npolicy = \"best\"", "solver"),
        ("[pool]\nquantile = \"p95\"", "p99"),
        ("[pool]\nreplicas = 5", "1 to 4"),
        ("[pool]\ndomains = 1\nreplicas = 2", "1 to 1"),
        ("[pool]\nhedging = \"twice\"", "quantile"),
        ("[event]\nnode = 7\ntrouble = \"lost\"\nafter = 1.0", "7 drives"),
        ("[event]\nnode = 0\ntrouble = \"ill\"", "slow"),
        ("[ftl]\nutilization = 2.0", "utilization"),
    ];
    for (set, named) in wrong {
        let table = set.parse().expect("it is TOML");
        let error = DeviceSpec::builtin_with("pool-unlike", &table).expect_err(set);
        assert!(error.contains(named), "{set}: {error}");
    }
}

#[test]
fn a_pool_loses_a_node_when_it_was_written_so_often_and_no_io_fails() {
    let set = "[pool]\nlanes = 14\nbands_per_lane = 12\n[event]\nnode = 3\ntrouble = \"lost\"\nafter = 1.5";
    let spec = DeviceSpec::builtin_with("pool-unlike", &set.parse().expect("TOML")).expect("right");
    let mut pool = spec.build(Scale::FULL, &Faults::default(), 1).expect("it builds");
    let blocks = pool.bytes() / 4096;
    run(&mut *pool, &[Client::filling(blocks)], Window::WHENEVER, 1).expect("no failure");
    let depth = |depth| Client { pace: Pace::Depth(depth), reads: 0.5, ..Client::default() };
    let window = Window { warmup_ns: 0, measure_ns: SECOND };
    let seen = run(&mut *pool, &[depth(32)], window, 2).expect("no failure");
    let (written, errors) = (seen[0].writes_done, seen[0].errors);
    assert!(written > blocks as f64, "{written} writes of {blocks} blocks: the node was not lost");
    assert_eq!((errors, seen[0].unfinished.count() <= 32), (0, true));
    assert!(seen[0].ios().max_ns() > 4_000_000, "nobody knows of a lost node at once");
    let bound = |waf| pool.bound(0.9e6, 0.1e6, waf).expect("it is a pool");
    assert!(bound(1.0) > bound(1.5) && (4.2e6..4.9e6).contains(&bound(1.0)), "{}", bound(1.0));
}

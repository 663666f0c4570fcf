//! What a config may say, and how it is told that it is wrong.

use super::*;
use ftl::StreamVolume;

fn errors(text: &str) -> Vec<ConfigError> {
    Config::parse(text, Path::new("/base")).unwrap_err().0
}

#[test]
fn an_empty_file_is_a_config() {
    let config = Config::parse("", Path::new("/base")).unwrap();
    assert!(
        matches!(&config.device.kind, Kind::Nand { path, .. } if path == Path::new("/base/weir-data"))
    );
    assert_eq!(config.nbd.listen, [Listen::Unix("/base/weir.sock".into(), Access::OWNER)]);
    assert_eq!(config.device.volumes.len(), 1);
    let http = config.http.unwrap();
    assert!(http.address.ip().is_loopback() && http.token_file.is_none());
    let control = config.control.unwrap();
    assert_eq!((control.path, control.access), ("/base/control.sock".into(), Access::OWNER));
}

#[test]
fn all_errors_are_told_at_once_with_key_value_reason_and_example() {
    let found = errors(
        "[device]\nkind = \"tape\"\nprofile = \"slcc\"\nop_percent = 0\nshards = 3\nchannels = 4\n\
         [device.faults]\nfactory_bad = 2\n[[volume]]\nname = \"a/b\"\nsize = \"8 GB of them\"\n\
         [[volume]]\nsize = \"1000KB\"\n[nbd]\ntls = \"required\"\ntcp = \"localhost\"\nbusy_poll = \"1s\"\n\
         [http]\naddress = 5\n[ftl]\nappend_wait = \"soon\"\nhandels = 2\n",
    );
    let keys: Vec<&str> = found.iter().map(|error| error.key.as_str()).collect();
    assert_eq!(
        keys,
        [
            "volume[0].name",
            "volume[0].size",
            "volume[1].name",
            "volume[1].size",
            "device.kind",
            "device.profile",
            "device.op_percent",
            "device.channels",
            "device.faults.factory_bad",
            "nbd.tcp",
            "nbd.tls_certificate",
            "nbd.busy_poll",
            "http.address",
            "ftl.append_wait",
            "ftl.handels",
        ],
        "{found:#?}"
    );
    assert!(found.iter().all(|e| !e.reason.is_empty() && !e.example.is_empty()), "{found:#?}");
    let unknown = found.last().unwrap().to_string();
    assert!(unknown.contains("ftl.handels = 2") && unknown.ends_with("handles = ..."), "{unknown}");
}

#[test]
fn what_is_not_toml_is_told_with_its_line() {
    let found = errors("[device]\npath = \n");
    assert!(found[0].reason.contains("line 2"), "{found:?}");
}

#[test]
fn sections_reach_the_settings() {
    let config = Config::parse(
        "[device]\nkind = \"memory\"\nshards = 2\n[[volume]]\nname = \"a\"\nsize = \"64MiB\"\n\
         read_only = true\n[ftl]\nhandles = 4\nappend_wait = \"1ms\"\n[http]\nenabled = false\n\
         [nbd]\nbusy_poll = \"20us\"\n",
        Path::new("."),
    )
    .unwrap();
    assert!(matches!(config.device.kind, Kind::Memory { .. }));
    let volume = VolumeOptions { name: "a".into(), blocks: 16384, read_only: true };
    assert_eq!(config.device.volumes, [volume]);
    assert_eq!((config.ftl.handles, config.ftl.append_wait_ns), (4, 1_000_000));
    assert_eq!((config.device.channels, config.http), (4, None));
    assert_eq!(config.nbd.busy_poll_ns, 20_000);
}

#[test]
fn the_memory_of_the_map_and_who_keeps_its_own_reach_the_settings() {
    let parse = |text: &str| Config::parse(text, Path::new("."));
    let text = "[[volume]]\nname = \"a\"\nsize = \"64MiB\"\n[[volume]]\nname = \"b\"\n\
                size = \"32MiB\"\nmapping = \"page\"\n[ftl]\nmap_memory = \"3MiB\"\n";
    let config = parse(text).unwrap();
    assert_eq!((config.ftl.map_bytes, config.ftl.map_piece_blocks), (3 << 20, 1024));
    let by_page = |config: &Config| {
        let volumes = config.ftl.map_volumes.iter().filter(|volume| volume.page);
        volumes.map(|volume| volume.blocks.clone()).collect::<Vec<_>>()
    };
    assert_eq!(by_page(&config), std::slice::from_ref(&(16384..24576)));
    let config = parse(&format!("{text}[device]\nshards = 2\n")).unwrap();
    assert_eq!(by_page(&config), std::slice::from_ref(&(8192..12288)));
    let found = errors(&text.replace("page", "block"));
    assert_eq!(found[0].key, "volume[1].mapping");
}

#[test]
fn streams_of_a_volume_reach_the_settings_as_its_part_of_a_shard() {
    let parse = |text: &str| Config::parse(text, Path::new("."));
    let volumes = "[[volume]]\nname = \"a\"\nsize = \"64MiB\"\n[[volume]]\nname = \"b\"\n\
                   size = \"32MiB\"\n";
    let text =
        |shards| format!("{volumes}streams = \"sfr:handles=4\"\n[device]\nshards = {shards}\n");
    let volume =
        |first, blocks, stream: &str| StreamVolume { first, blocks, stream: stream.into() };
    let config = parse(&text(1)).unwrap();
    let of_one = [volume(0, 16384, "none"), volume(16384, 8192, "sfr:handles=4")];
    assert_eq!(config.ftl.volumes, of_one);
    let config = parse(&text(2)).unwrap();
    assert_eq!(config.ftl.volumes, [volume(0, 8192, "none"), volume(8192, 4096, "sfr:handles=4")]);
    // Nothing to tell apart.
    let config = parse(&format!("{volumes}[ftl.policy]\nstream = \"sepbit\"\n")).unwrap();
    assert_eq!((config.ftl.policies.stream.as_str(), config.ftl.volumes.len()), ("sepbit", 0));
    let found = errors(&format!("{volumes}streams = \"sfr:handels=4\"\n"));
    assert_eq!(found[0].key, "volume[1].streams");
    assert!(found[0].reason.contains("there are handles, chunk, decay, base"), "{found:?}");
}

/// A config but for the sections of parts of a pool, whose keys are held against those that there are.
fn without_parts(text: &str) -> toml::Table {
    let mut table: toml::Table = text.parse().expect("documents show TOML");
    for (section, known) in parts_of_a_pool() {
        let Some(shown) = table.remove(section) else { continue };
        for key in shown.as_table().expect("a section").keys() {
            assert!(known.contains(key), "[{section}] has {known:?}, not {key}:\n{text}");
        }
    }
    table
}

/// The sections of parts of a pool, with their keys: the refusal of one that does not exist lists them.
fn parts_of_a_pool() -> Vec<(&'static str, Vec<String>)> {
    use crate::pool::config::PartConfig;
    use crate::pool::parts::{NodeConfig, VolumeConfig};
    let base = Path::new("/base");
    let keys = |section: &'static str| {
        let text = format!("[{section}]\nno_such_key = 1\n");
        let errors = match section {
            "node" => NodeConfig::parse(&text, base).map(drop),
            "client" => VolumeConfig::parse(&text, base).map(drop),
            _ => PartConfig::parse(&text, base).map(drop),
        };
        let ConfigErrors(errors) = errors.expect_err("there is no such key");
        let own = errors.iter().find(|error| error.key == format!("{section}.no_such_key"));
        let known = own.and_then(|error| error.reason.split("known here: ").nth(1));
        let known = known.expect("a list of keys").split(", ").map(Into::into).collect();
        (section, known)
    };
    ["pool", "plane", "controller", "node", "client"].map(keys).to_vec()
}

#[test]
fn the_document_tells_every_key_of_the_parts_of_a_pool() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/config.md");
    let text = std::fs::read_to_string(path).unwrap();
    let block = text.split("```toml\n").find(|block| block.starts_with("[pool]"));
    let block = block.and_then(|block| block.split("```").next()).expect("it is told");
    let told: toml::Table = block.parse().unwrap();
    for (section, mut known) in parts_of_a_pool() {
        known.sort_unstable();
        let mut keys: Vec<&String> = told[section].as_table().unwrap().keys().collect();
        keys.sort_unstable();
        assert_eq!(keys, known.iter().collect::<Vec<_>>(), "[{section}]");
    }
}

#[test]
fn every_config_in_the_documents_is_one() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut folders = vec![root.join("docs"), root.clone()];
    let mut documents = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap().map(Result::unwrap) {
            let path = entry.path();
            match path.extension() {
                Some(extension) if extension == "md" => documents.push(path),
                None if path.is_dir() && folder != root => folders.push(path),
                _ => {}
            }
        }
    }
    let mut found = 0;
    for document in documents {
        let text = std::fs::read_to_string(&document).unwrap();
        for block in text.split("```toml\n").skip(1) {
            let block = block.split("```").next().unwrap();
            found += 1;
            let rest = without_parts(block);
            if let Err(errors) = Config::parse(&rest.to_string(), &root) {
                panic!("{}: {errors}:\n{block}", document.display());
            }
        }
    }
    assert!(found > 0, "README.md shows a config");
}

#[test]
fn a_file_is_not_described_as_emulated_flash() {
    let found = errors("[device]\nkind = \"file\"\nprofile = \"tlc\"\ndies_per_channel = 2\n");
    let keys: Vec<&str> = found.iter().map(|error| error.key.as_str()).collect();
    assert_eq!(keys, ["device.profile", "device.dies_per_channel"], "{found:#?}");
}

#[test]
fn the_document_tells_every_key_with_its_default() {
    let text =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/config.md"));
    let text = text.unwrap();
    let blocks = text.split("```toml\n").skip(1).map(|block| block.split("```").next().unwrap());
    let blocks = blocks.filter(|block| !block.starts_with("[pool]"));
    // The other mode has a block of its own.
    let (raw, block): (Vec<&str>, Vec<&str>) = blocks.partition(|it| it.contains("[raw]"));
    let told: toml::Table = block.concat().parse().unwrap();
    let raw: toml::Table = raw.concat().parse().unwrap();
    let keys = |table: &toml::Value| -> Vec<String> {
        let mut keys: Vec<String> = table.as_table().unwrap().keys().cloned().collect();
        keys.sort_unstable();
        keys
    };
    for (section, table) in [
        ("device", &told["device"]),
        ("raw", &raw["raw"]),
        ("device.faults", &told["device"]["faults"]),
        ("device.fast", &told["device"]["fast"]),
        ("[volume]", &told["volume"][0]),
        ("nbd", &told["nbd"]),
        ("http", &told["http"]),
        ("control", &told["control"]),
        ("runtime", &told["runtime"]),
        ("ftl", &told["ftl"]),
        ("ftl.policy", &told["ftl"]["policy"]),
        ("[plugin]", &told["plugin"][0]),
    ] {
        // The refusal of a key that does not exist lists those that do.
        let found = errors(&format!("[{section}]\nno_such_key = 1\n"));
        let known = found.iter().find_map(|e| e.reason.split("known here: ").nth(1));
        let mut known: Vec<&str> = known.expect("a list of keys").split(", ").collect();
        known.sort_unstable();
        assert_eq!(keys(table), known, "[{section}]");
    }
    let silent = Config::parse("[device]\nmode = \"raw\"\n", Path::new("/base")).unwrap();
    let mut raw = Config::parse(&raw.to_string(), Path::new("/base")).unwrap();
    // Found for each device, so the document can only show one.
    raw.device.raw.as_mut().unwrap().spare = None;
    assert_eq!(raw.device, silent.device);
    let mut told = Config::parse(&told.to_string(), Path::new("/base")).unwrap();
    let silent = Config::parse("", Path::new("/base")).unwrap();
    // Of the volumes, which the document gives other sizes.
    assert!(told.ftl.map_volumes.iter().all(|volume| !volume.page));
    told.ftl.map_volumes = silent.ftl.map_volumes.clone();
    assert_eq!(told.ftl, silent.ftl);
    // A device has a fast tier only if it is told to.
    let device = DeviceOptions {
        volumes: silent.device.volumes,
        blocks_min: silent.device.blocks_min,
        fast: None,
        ..told.device
    };
    assert_eq!(device, DeviceOptions { volumes: device.volumes.clone(), ..silent.device });
    // There is a token only if its file is named.
    let http = HttpConfig { token_file: None, ..told.http.unwrap() };
    assert_eq!(Some(http), silent.http);
    assert_eq!(told.driver, silent.driver);
    // Places and groups are examples.
    let (control, default) = (told.control.unwrap(), silent.control.unwrap());
    let access = |access: Access| Access { group: None, ..access };
    assert_eq!(access(control.access), default.access);
    assert_eq!(control.clients_max, default.clients_max);
    let nbd = NbdConfig { listen: silent.nbd.listen.clone(), ..told.nbd };
    assert_eq!(nbd, silent.nbd);
}

#[test]
fn what_has_no_meaning_in_a_mode_is_refused_by_name() {
    let keys = |text: &str| -> Vec<String> {
        let mut keys: Vec<String> = errors(text).into_iter().map(|error| error.key).collect();
        keys.sort_unstable();
        keys
    };
    assert_eq!(keys("[raw]\ngang = 2\n"), ["[raw]"]);
    assert_eq!(
        keys(
            "[device]\nmode = \"raw\"\nkind = \"file\"\nshards = 2\nop_percent = 7\n\
             [[volume]]\nname = \"a\"\nsize = \"1MiB\"\n"
        ),
        ["[[volume]]", "device.op_percent", "device.shards"]
    );
    let wrong = "[device]\nmode = \"raw\"\n[raw]\nwrite = \"half\"\nread_granule = \"12KiB\"\n";
    assert_eq!(keys(wrong), ["raw.read_granule", "raw.write"]);
}

#[test]
fn raw_units_are_mounted_as_both_sections_say() {
    let text = "[device]\nmode = \"raw\"\ncapacity = \"64MiB\"\n[raw]\ngang = 2\nwrite = \"page\"\n\
                erase = \"background\"\nread_granule = \"8KiB\"\n[ftl]\nidle = \"5ms\"\n";
    let config = Config::parse(text, Path::new(".")).unwrap();
    let raw = config.device.raw.unwrap();
    assert_eq!((raw.gang, raw.spare, raw.blocks), (2, None, 16_384));
    let settings = ftl::raw::RawSettings {
        write: ftl::raw::WriteUnit::Page,
        erase: ftl::raw::EraseTime::Background,
        read_granule: 2,
        idle_ns: 5_000_000,
        ..ftl::raw::RawSettings::default()
    };
    assert_eq!(raw.settings, settings);
    assert!(config.device.volumes.is_empty());
}

#[test]
fn bounds_of_zones_follow_from_one_another_or_are_refused() {
    let bounds = |text: &str| {
        let text = format!("[device]\nmode = \"raw\"\n[raw]\n{text}");
        let config = Config::parse(&text, Path::new("."));
        config.map(|config| {
            let settings = config.device.raw.unwrap().settings;
            (settings.zones_open_max, settings.zones_active_max)
        })
    };
    assert_eq!(bounds("").unwrap(), (0, 0));
    assert_eq!(bounds("zones_active_max = 3\n").unwrap(), (3, 3));
    assert_eq!(bounds("zones_open_max = 2\n").unwrap(), (2, 0));
    assert_eq!(bounds("zones_open_max = 2\nzones_active_max = 3\n").unwrap(), (2, 3));
    assert!(bounds("zones_open_max = 4\nzones_active_max = 3\n").is_err());
}

#[test]
fn policies_of_modules_are_chosen_for_the_start_and_their_modules_must_be_named() {
    let text = "[[plugin]]\nname = \"mine\"\nfile = \"mine.wasm\"\n\
                [[volume]]\nname = \"a\"\nsize = \"1MiB\"\n\
                [[volume]]\nname = \"b\"\nsize = \"1MiB\"\nstreams = \"wasm:mine\"\n\
                [ftl.policy]\nvictim = \"wasm:mine\"\n";
    let config = Config::parse(text, Path::new("/base")).unwrap();
    assert_eq!(config.plugins[0].file, Path::new("/base/mine.wasm"));
    let chosen: Vec<(&str, &str)> =
        config.chosen.iter().map(|(decision, name)| (decision.as_str(), name.as_str())).collect();
    assert_eq!(chosen, [("victim", "wasm:mine"), ("stream/b", "wasm:mine")]);
    // Until the module decides, and if it breaks, the default does.
    assert_eq!(config.ftl.policies, ftl::PolicyNames::default());
    let streams: Vec<&str> = config.ftl.volumes.iter().map(|one| one.stream.as_str()).collect();
    assert_eq!(streams, ["none", "none"]);
    // That of the device is for the volumes that do not say otherwise.
    let wide = format!("{text}stream = \"wasm:mine\"\n")
        .replace("streams = \"wasm:mine\"", "streams = \"sfr\"");
    let config = Config::parse(&wide, Path::new("/base")).unwrap();
    let chosen: Vec<&str> = config.chosen.iter().map(|(decision, _)| decision.as_str()).collect();
    assert_eq!(chosen, ["victim", "stream/a"]);
    for (wrong, said) in [
        ("[ftl.policy]\nvictim = \"wasm:mine\"\n", "there are none"),
        ("[[plugin]]\nname = \"mine\"\n", "is missing"),
        (
            "[[plugin]]\nname = \"x\"\nfile = \"x\"\n[[plugin]]\nname = \"x\"\nfile = \"x\"\n",
            "another plugin",
        ),
    ] {
        let found = errors(wrong);
        assert!(found.iter().any(|error| error.reason.contains(said)), "{wrong}: {found:#?}");
    }
}

#[test]
fn a_fast_tier_may_be_a_path_or_a_section() {
    let parse = |text: &str| Config::parse(text, Path::new("/base")).unwrap();
    let fast = |text: &str| parse(text).device.fast.unwrap();
    let short = fast("[device]\nfast = \"quick\"\nshards = 2\nchannels = 4\n");
    assert!(matches!(&short.kind, Kind::Nand { path, profile } if path == Path::new("/base/quick")
        && profile.name == "optane"));
    assert_eq!((short.bytes, short.units), (None, 4));
    let long = "[device]\npath = \"dev\"\n[device.fast]\ncapacity = \"1GiB\"\nunits = 3\n";
    let long = fast(long);
    assert!(
        matches!(&long.kind, Kind::Nand { path, .. } if path == Path::new("/base/dev-fast")),
        "beside the device: {long:?}"
    );
    assert_eq!((long.bytes, long.units), (Some(1 << 30), 3));
    let memory = fast("[device]\nkind = \"memory\"\n[device.fast]\n");
    assert!(matches!(memory.kind, Kind::Memory { .. }), "as the device is: {memory:?}");
    assert!(parse("").device.fast.is_none());
    let found = errors(
        "[device]\nshards = 2\nchannels = 4\n[device.fast]\nkind = \"file\"\nprofile = \"slc\"\nunits = 3\n\
         size = \"1GiB\"\ncapacity = \"0GiB\"\n",
    );
    let keys: Vec<&str> = found.iter().map(|error| error.key.as_str()).collect();
    let fast = "device.fast.";
    let expected = ["profile", "capacity", "units", "size"].map(|key| format!("{fast}{key}"));
    assert_eq!(keys, expected, "{found:#?}");
}

#[test]
fn nvme_is_served_where_it_is_told_to_and_by_name_to_whom() {
    let volume = "[[volume]]\nname = \"v\"\nsize = \"4MiB\"\nnvme_hosts = [\"nqn.me\"]\n";
    let text = format!("{volume}[nvme]\ntcp = \"127.0.0.1:4420\"\nhosts = [\"nqn.a\"]\n");
    let nvme = Config::parse(&text, Path::new("/base")).unwrap().nvme.unwrap();
    assert_eq!(nvme.discovery.map(|address| address.port()), Some(8009));
    assert_eq!((&nvme.hosts[..], &nvme.nqn), (&["nqn.a".to_owned()][..], &None));
    assert_eq!(nvme.volume_hosts["v"], ["nqn.me"]);
    let silent = Config::parse(&format!("{volume}[nvme]\ndiscovery = \"none\"\n"), Path::new("/"));
    assert_eq!(silent.unwrap().nvme, None, "without an address it is not served");
    let wrong = errors(
        "[[volume]]\nname = \"v\"\nsize = \"4MiB\"\nnvme_hosts = [\"me\"]\n\
         [nvme]\ntcp = \"10.0.0.1:4420\"\ndiscovery = \"nowhere\"\nnqn = \"weir\"\nhosts = [\"\"]\n",
    );
    let keys: Vec<&str> = wrong.iter().map(|error| error.key.as_str()).collect();
    let expected = ["volume[0].nvme_hosts", "nvme.discovery", "nvme.nqn", "nvme.hosts", "nvme.tcp"];
    assert_eq!(keys, expected);
    assert!(wrong[4].reason.contains("--tcp-plain"), "{}", wrong[4].reason);
}

#[test]
fn volumes_have_shares_of_the_fast_tier_by_their_weights() {
    let text = "[[volume]]\nname = \"a\"\nsize = \"64MiB\"\nfast_share = 3\n[[volume]]\nname = \"b\"\n\
                size = \"32MiB\"\n";
    let shares = Config::parse(text, Path::new(".")).unwrap().ftl.fast_shares;
    let share = |first, blocks, weight| ftl::FastShare { first, blocks, weight };
    assert_eq!(shares, [share(0, 16384, 3), share(16384, 8192, 1)]);
    let alone = "[[volume]]\nname = \"a\"\nsize = \"64MiB\"\n";
    assert!(Config::parse(alone, Path::new(".")).unwrap().ftl.fast_shares.is_empty());
}

#[test]
fn kept_memory_is_on_unless_it_is_off_or_elsewhere() {
    use crate::kept::{KeptOptions, KeptPlace};
    let parse = |text: &str| Config::parse(&format!("[device]\n{text}"), Path::new("/base"));
    let kept = |text: &str| parse(text).unwrap().device.kept;
    assert_eq!(kept(""), KeptOptions { place: KeptPlace::Auto, bytes_max: None });
    assert_eq!(kept("kept_memory = \"off\"").place, KeptPlace::Off);
    let at = kept("kept_memory = \"mine\"\nkept_memory_max = \"8MiB\"");
    assert_eq!(at.place, KeptPlace::At("/base/mine".into()));
    assert_eq!(at.bytes_max, Some(8 << 20));
    let wrong = parse("kind = \"memory\"\nkept_memory = \"mine\"").unwrap_err();
    assert!(wrong.to_string().contains("device.kept_memory"), "{wrong}");
}

#[test]
fn volumes_are_disks_of_guests_where_they_say_so_and_each_at_a_socket_of_its_own() {
    let volume = |name: &str, more: &str| {
        format!("[[volume]]\nname = \"{name}\"\nsize = \"4MiB\"\n{more}\n")
    };
    let text = volume("a", "vhost = \"a.vhost\"\nvhost_mode = \"0660\"") + &volume("b", "");
    let guests = Config::parse(&text, Path::new("/base")).unwrap().guests;
    let access = Access { mode: 0o660, group: None };
    assert_eq!(guests, [GuestConfig { volume: "a".into(), path: "/base/a.vhost".into(), access }]);
    let long = format!("vhost = \"{}\"", "x".repeat(120));
    let wrong = errors(
        &[
            volume("a", "vhost = \"s\""),
            volume("b", "vhost = \"s\"\nvhost_mode = \"0777\""),
            volume("c", &long),
            volume("d", "vhost_group = \"no such group\""),
        ]
        .concat(),
    );
    let keys: Vec<&str> = wrong.iter().map(|error| error.key.as_str()).collect();
    let expected =
        ["volume[1].vhost_mode", "volume[1].vhost", "volume[2].vhost", "volume[3].vhost_group"];
    assert_eq!(keys, expected);
    assert!(wrong[1].reason.contains("another volume"), "{}", wrong[1].reason);
}

#[test]
fn a_value_is_told_as_it_is_written_with_one_that_fits() {
    let volume = |size: &str| format!("[[volume]]\nname = \"a\"\nsize = \"{size}\"\n");
    let small = format!("[device]\ncapacity = \"64MiB\"\n{}", volume("128MiB"));
    for (text, wanted) in [
        (
            &*small,
            "device.capacity = \"64MiB\": the volumes have 128MiB together; for example: capacity = \"128MiB\"",
        ),
        (
            "[device]\ncapacity = \"4097KiB\"\n",
            "device.capacity = \"4097KiB\": must be a multiple of 4096 bytes",
        ),
        (&volume("1000KB"), "volume[0].size = \"1000KB\""),
        ("[server]\nstop_within = \"1ns\"\n", "server.stop_within = \"1ns\""),
        ("[nbd]\nbuffers = \"1KiB\"\n", "nbd.buffers = \"1KiB\""),
        (
            "[ftl]\nmap_piece_blocks = 9\n",
            "ftl.map_piece_blocks = 9: must be a power of two from 8 to 1024",
        ),
        ("[ftl]\nmap_piece_blocks = 2000\n", "ftl.map_piece_blocks = 2000: must be 8 to 1024"),
    ] {
        let found = errors(text);
        assert!(found.len() == 1 && found[0].to_string().starts_with(wanted), "{found:#?}");
    }
    let found = errors("[device]\nmode = \"raw\"\n[ftl]\nmap_memory = \"1MiB\"\n");
    assert_eq!((found.len(), &found[0].key[..]), (1, "ftl.map_memory"), "{found:#?}");
}

#[test]
fn two_doors_at_one_place_are_refused_before_either_is_there() {
    let volume = |vhost: &str| {
        format!(
            "[[volume]]\nname = \"a\"\nsize = \"1MiB\"\n[[volume]]\nname = \"b\"\nsize = \"1MiB\"\nvhost = {vhost:?}\n"
        )
    };
    let nbd = "[nbd]\nunix = \"/base/x/nbd.sock\"\n";
    for (text, key) in [
        (volume("./x/nbd.sock") + nbd, "volume[1].vhost"),
        (volume("control.sock") + nbd, "volume[1].vhost"),
        ("[nbd]\nunix = \"a\"\n[control]\nunix = \"./a\"\n".into(), "control.unix"),
        ("[nvme]\ntcp = \"127.0.0.1:5\"\ndiscovery = \"127.0.0.1:5\"\n".into(), "nvme.discovery"),
        ("[nvme]\ntcp = \"127.0.0.1:8009\"\n".into(), "nvme.tcp"),
        (
            "[nvme]\ntcp = \"127.0.0.1:5\"\ndiscovery = \"0.0.0.0:5\"\ntcp_plain = true\n".into(),
            "nvme.discovery",
        ),
    ] {
        let found = errors(&text);
        assert!(found.len() == 1 && found[0].key == key, "{text}: {found:#?}");
        assert!(!found[0].value.is_empty() && !found[0].example.is_empty(), "{found:#?}");
    }
    for good in [
        volume("b.vhost") + nbd,
        "[nvme]\ntcp = \"127.0.0.1:0\"\ndiscovery = \"127.0.0.1:0\"\n".into(),
        "[nvme]\ntcp = \"127.0.0.1:8009\"\ndiscovery = \"none\"\n".into(),
    ] {
        assert!(Config::parse(&good, Path::new("/base")).is_ok(), "{good}");
    }
}

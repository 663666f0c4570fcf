//! Devices: made, opened, refused, damaged, and what a killed server leaves.

use crate::client::{Client, FLUSH, TRIM};
use crate::{FILE, FOLDER, Folder, config, pattern, start};
use ftl::Settings;
use serve::Server;
use serve::device::{Device, Kind, Mode};
use serve::offline::Run;
use std::collections::BTreeSet;
use std::os::unix::net::UnixListener;
use std::path::Path;

fn refusal(folder: &Folder, device: &str) -> String {
    match Server::start(&config(&folder.0, device)) {
        Ok(_) => panic!("the device was opened"),
        Err(error) => error.to_string(),
    }
}

fn write_and_stop(folder: &Folder, device: &str, bytes: &[u8]) {
    let server = start(folder, device);
    let mut client = Client::connect(&folder.socket(), "data").unwrap();
    client.write(12_345, bytes).unwrap();
    client.flush().unwrap();
    server.shut_down().unwrap();
}

fn read_back(folder: &Folder, device: &str, bytes: &[u8]) {
    let server = start(folder, device);
    let mut client = Client::connect(&folder.socket(), "data").unwrap();
    assert!(client.read(12_345, bytes.len()).unwrap() == bytes);
    server.shut_down().unwrap();
}

#[test]
fn a_device_comes_back_after_a_clean_shutdown() {
    for device in [FOLDER.to_string(), FILE.to_string(), format!("{FOLDER}\nshards = 2")] {
        let folder = Folder::new();
        let bytes = pattern(3, 1 << 20);
        write_and_stop(&folder, &device, &bytes);
        for _ in 0..2 {
            read_back(&folder, &device, &bytes);
        }
    }
}

fn copy_tree(from: &Path, to: &Path) {
    if from.is_file() {
        std::fs::copy(from, to).unwrap();
        return;
    }
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        copy_tree(&entry.path(), &to.join(entry.file_name()));
    }
}

fn is_same_tree(one: &Path, other: &Path) -> bool {
    if one.is_file() {
        return std::fs::read(one).unwrap() == std::fs::read(other).unwrap();
    }
    let mut entries = std::fs::read_dir(one).unwrap();
    entries.all(|entry| {
        let name = entry.unwrap().file_name();
        is_same_tree(&one.join(&name), &other.join(&name))
    })
}

/// Copies what the files hold at one instant: anew while a checkpoint that is on its way changes them.
fn copy_of_an_instant(from: &Path, to: &Path) {
    let copied = (0..100).any(|_| {
        copy_tree(from, to);
        is_same_tree(from, to)
    });
    assert!(copied, "the server never rests");
}

/// What the files hold at an instant while the server runs is what a kill at that instant would leave.
#[test]
fn what_was_acknowledged_survives_a_kill() {
    for (device, name) in [(FOLDER, "dev"), (FILE, "dev.img")] {
        let folder = Folder::new();
        let server = start(&folder, device);
        let mut client = Client::connect(&folder.socket(), "data").unwrap();
        let mut model = vec![0u8; 4 << 20];
        for round in 0..40u64 {
            let bytes = pattern(round, 50_000);
            let offset = (round as usize * 77_777) % (model.len() - bytes.len());
            client.write(offset as u64, &bytes).unwrap();
            model[offset..offset + bytes.len()].copy_from_slice(&bytes);
            if round % 10 == 9 {
                let killed = Folder::new();
                copy_of_an_instant(&folder.0.join(name), &killed.0.join(name));
                let again = start(&killed, device);
                let mut reader = Client::connect(&killed.socket(), "data").unwrap();
                assert!(reader.read(0, model.len()).unwrap() == model, "{name}, round {round}");
                again.shut_down().unwrap();
            }
        }
        server.shut_down().unwrap();
    }
}

#[test]
fn a_second_open_is_refused_and_names_who_has_it() {
    let folder = Folder::new();
    let server = start(&folder, FOLDER);
    // Its sockets would be found in use before the device.
    std::fs::remove_file(folder.socket()).unwrap();
    std::fs::remove_file(server.ready().control.as_ref().unwrap()).unwrap();
    let error = refusal(&folder, FOLDER);
    let by = format!("this very process ({}) has it open", std::process::id());
    assert!(error.contains(&by), "{error}");
    server.shut_down().unwrap();
}

#[test]
fn a_server_whose_device_was_taken_over_acknowledges_no_flush() {
    let folder = Folder::new();
    let server = start(&folder, FOLDER);
    let mut client = Client::connect(&folder.socket(), "data").unwrap();
    client.write(0, &[1; 4096]).unwrap();
    client.flush().unwrap();
    let mut generation = Vec::from(1000u64.to_le_bytes());
    generation.extend(flash::crc(&generation).to_le_bytes());
    std::fs::write(folder.0.join("dev/generation"), generation).unwrap();
    assert!(!matches!(client.try_write(0, &[2; 4096]), Ok(0)));
    assert!(!matches!(client.try_simple(FLUSH, 0, 0), Ok(0)));
    let told = server.shut_down().unwrap_err().to_string();
    assert!(told.contains("another server") && told.contains("generation 1000"), "{told}");
}

#[test]
fn damaged_descriptions_are_refused_with_file_and_reason() {
    let folder = Folder::new();
    write_and_stop(&folder, FOLDER, &[1; 100]);
    let file = folder.0.join("dev/device.toml");
    let sound = std::fs::read_to_string(&file).unwrap();
    let (unsummed, _) = sound.split_once("# crc32c").unwrap();
    let cases = [
        (sound[..sound.len() / 2].to_string(), ""),
        (String::new(), "has no version"),
        ("\u{0}\u{1}scribble".into(), "not TOML"),
        (sound.replace("version = 2", "version = 9"), "this build reads version 2"),
        (sound.replace("shards = 1", "shards = 1\nsmell = 3"), "smell"),
        (sound.replace("blocks_per_plane = ", "blocks_per_plane = 1"), "checksum"),
        (unsummed.replace("blocks_per_plane = ", "blocks_per_plane = 1"), "bytes where the device"),
        (sound.replace("pages_per_block = 256", "pages_per_block = 0"), "pages_per_block"),
    ];
    for (text, reason) in cases {
        std::fs::write(&file, &text).unwrap();
        let error = refusal(&folder, FOLDER);
        assert!(error.contains(reason) && error.contains("dev"), "{text}\n{error}");
        assert!(error.contains("; "), "it tells how to mend it: {error}");
    }
    std::fs::write(&file, &sound).unwrap();
    read_back(&folder, FOLDER, &[1; 100]);
}

#[test]
fn damaged_files_are_refused_by_name() {
    for (name, len) in [("data", 4096), ("oob", 1), ("blocks", 17)] {
        let folder = Folder::new();
        write_and_stop(&folder, FOLDER, &[1; 100]);
        let file = folder.0.join("dev/shard-0").join(name);
        std::fs::File::options().write(true).open(&file).unwrap().set_len(len).unwrap();
        let error = refusal(&folder, FOLDER);
        assert!(error.contains(name) && error.contains("bytes where"), "{error}");
    }
    let folder = Folder::new();
    write_and_stop(&folder, FILE, &[1; 100]);
    let file = std::fs::File::options().write(true).open(folder.0.join("dev.img")).unwrap();
    file.set_len(file.metadata().unwrap().len() - 4096).unwrap();
    let error = refusal(&folder, FILE);
    assert!(error.contains("its end is cut off"), "{error}");
    let folder = Folder::new();
    write_and_stop(&folder, FOLDER, &[1; 100]);
    std::fs::write(folder.0.join("dev/generation"), b"oops").unwrap();
    let error = refusal(&folder, FOLDER);
    assert!(error.contains("generation"), "{error}");
}

#[test]
fn other_volumes_than_those_formatted_are_refused() {
    let folder = Folder::new();
    write_and_stop(&folder, FOLDER, &[1; 100]);
    let other = FOLDER.replace("16MiB", "8MiB");
    let error = refusal(&folder, &other);
    assert!(error.contains("formatted with"), "{error}");
}

#[test]
fn a_device_can_be_made_and_looked_into_without_a_server() {
    for device in [FOLDER, FILE] {
        let folder = Folder::new();
        let config = config(&folder.0, device);
        serve::offline::format(&config.device, &config.ftl).unwrap();
        let error = serve::offline::format(&config.device, &config.ftl).unwrap_err();
        assert!(error.to_string().contains("already"), "{error}");
        let bytes = pattern(8, 40 * 4096);
        serve::offline::with_device(&config.device.kind, &config.ftl, false, |shards| {
            shards[0].write(10, &bytes).unwrap();
            shards[0].flush().unwrap();
        })
        .unwrap();
        serve::offline::with_device(&config.device.kind, &config.ftl, true, |shards| {
            assert!(shards[0].report().clean);
            assert!(shards[0].read(10, 40).unwrap() == bytes);
            assert_eq!(shards[0].ftl().unwrap().mapped_run(flash::Lba(0), 100), (false, 10));
        })
        .unwrap();
    }
}

#[test]
fn a_sweep_reads_each_block_that_holds_something_once_and_samples_have_all_of_it_in_time() {
    for device in [FOLDER, FILE] {
        let folder = Folder::new();
        let config = config(&folder.0, device);
        serve::offline::format(&config.device, &config.ftl).unwrap();
        let mut random = flash::Random::new(5);
        let mut held = BTreeSet::new();
        serve::offline::with_device(&config.device.kind, &config.ftl, false, |shards| {
            for round in 0..300 {
                let lba = random.next_u64() as u32 % 3000;
                let blocks = if round % 3 == 0 { 90 } else { 1 };
                shards[0].write(lba, &pattern(round, blocks as usize * 4096)).unwrap();
                held.extend(lba..lba + blocks);
            }
            shards[0].flush().unwrap();
        })
        .unwrap();
        serve::offline::with_device(&config.device.kind, &config.ftl, true, |shards| {
            let whole = shards[0].sweep_of(0..4096);
            assert_eq!(whole.blocks(), held.len() as u64);
            let mut read = Vec::new();
            let mut take = |run: Run, result: Result<(), flash::RequestError>| {
                assert_eq!(result, Ok(()), "{run:?}");
                read.extend(run.lba..run.lba + run.blocks);
            };
            shards[0].read_all(&whole, &mut take);
            for first in 0..5 {
                let sample = whole.sample(first + 5, 5);
                assert!(sample.blocks() < whole.blocks());
                shards[0].read_all(&sample, &mut take);
            }
            read.sort_unstable();
            let twice: Vec<u32> = held.iter().flat_map(|&lba| [lba, lba]).collect();
            assert_eq!(read, twice, "once by the whole, once by the samples together");
        })
        .unwrap();
    }
}

#[test]
fn a_device_is_opened_only_in_the_mode_it_was_made_with() {
    let folder = Folder::new();
    let raw = raw_config();
    start(&folder, &raw).shut_down().unwrap();
    let told = refusal(&folder, FOLDER);
    assert!(told.contains("mode = \"raw\"") && told.contains("[device]"), "{told}");
    start(&folder, &raw).shut_down().unwrap();
    let other = Folder::new();
    start(&other, FOLDER).shut_down().unwrap();
    let told = refusal(&other, &raw);
    assert!(told.contains("mode = \"block\""), "{told}");
}

/// What the files hold at an instant while the server runs is what a kill at that instant would leave.
#[test]
fn raw_blocks_that_were_acknowledged_survive_a_kill() {
    let folder = Folder::new();
    let raw = raw_config();
    let server = start(&folder, &raw);
    let shape = server.ready().raw.unwrap();
    let block = shape.raw_block_bytes() as usize;
    let mut client = Client::connect(&folder.socket(), "unit/3").unwrap();
    let mut model = vec![None; shape.lanes.raw_blocks as usize];
    let mut random = flash::Random::new(7);
    for round in 0..30u64 {
        let raw = random.next_u64() as usize % model.len();
        let at = (raw * block) as u64;
        match model[raw].take() {
            None => {
                let bytes = pattern(round, block);
                client.write(at, &bytes).unwrap();
                model[raw] = Some(bytes);
            }
            Some(_) => client.simple(TRIM, at, block as u32).unwrap(),
        }
        if round % 10 == 9 {
            client.flush().unwrap();
            let killed = Folder::new();
            copy_of_an_instant(&folder.0.join("dev"), &killed.0.join("dev"));
            let again = start(&killed, &raw_config());
            let mut reader = Client::connect(&killed.socket(), "unit/3").unwrap();
            for (raw, expected) in model.iter().enumerate() {
                let found = reader.read((raw * block) as u64, block);
                assert!(found.ok() == *expected, "round {round}, raw block {raw}");
            }
            again.shut_down().unwrap();
        }
    }
    server.shut_down().unwrap();
}

fn raw_config() -> String {
    format!("{}\nmode = \"raw\"", FOLDER.replace("op_percent = 50\n", ""))
}

#[test]
fn a_device_without_its_description_is_not_made_anew_whatever_says_that_it_was_being_made() {
    let folder = Folder::new();
    let device = config(&folder.0, FOLDER).device;
    let settings = Settings::default();
    let dev = folder.0.join("dev");
    // Cut off again and again, each time as another device.
    for _ in 0..3 {
        drop(Device::create(&device, &settings).unwrap());
        assert!(!Device::exists(&device.kind));
    }
    let making = std::fs::read(dev.join("making")).unwrap();
    serve::offline::format(&device, &settings).unwrap();
    std::fs::remove_file(dev.join("device.toml")).unwrap();
    let records = std::fs::read(dev.join("shard-0/blocks")).unwrap();
    for text in [Some(&b""[..]), Some(&making), None] {
        match text {
            Some(text) => std::fs::write(dev.join("making"), text).unwrap(),
            None => std::fs::remove_file(dev.join("making")).unwrap(),
        }
        let refused = Device::create(&device, &settings).map(drop).unwrap_err().to_string();
        assert!(refused.contains("without its device.toml"), "{refused}");
        assert_eq!(std::fs::read(dev.join("shard-0/blocks")).unwrap(), records);
    }
    // Who only looks is told the same.
    let refused = Device::open(&device.kind, Mode::ReadOnly).map(drop).unwrap_err().to_string();
    assert!(refused.contains("without its device.toml"), "{refused}");
    // Nor where the generation is gone, too.
    std::fs::remove_file(dev.join("generation")).unwrap();
    let refused = Device::create(&device, &settings).map(drop).unwrap_err().to_string();
    assert!(refused.contains("without its device.toml"), "{refused}");
}

#[test]
fn what_is_not_such_a_file_at_all_is_refused_with_the_mend_and_not_written_through() {
    use std::os::unix::fs::symlink;
    type Spoil = fn(&Path, &Path);
    let spoils: [(&str, Spoil, &str); 7] = [
        (
            "dev/device.toml",
            |path, _| std::fs::write(path, [0xff; 100]).unwrap(),
            "not UTF-8; restore",
        ),
        ("dev/shard-0/data", |path, _| std::fs::create_dir(path).unwrap(), "but a folder; put"),
        ("dev/shard-0/oob", |path, away| symlink(away, path).unwrap(), "but a link; put"),
        (
            "dev/shard-0/blocks",
            |path, _| drop(UnixListener::bind(path).unwrap()),
            "but a socket; put",
        ),
        ("dev/generation", |path, away| symlink(away, path).unwrap(), "but a link; put"),
        ("dev/shard-0", |path, away| symlink(away, path).unwrap(), "or a link to one"),
        ("fast/shard-0", |path, away| symlink(away, path).unwrap(), "or a link to one"),
    ];
    let fast = "fast = { path = \"fast\", profile = \"instant\", capacity = \"24MiB\" }";
    for (name, spoil, told) in spoils {
        let folder = Folder::new();
        let description = config(&folder.0, &format!("{FOLDER}\n{fast}")).device;
        serve::offline::format(&description, &Settings::default()).unwrap();
        let (path, away) = (folder.0.join(name), folder.0.join("away"));
        std::fs::rename(&path, &away).unwrap();
        spoil(&path, &away);
        for mode in [Mode::ReadOnly, Mode::ReadWrite] {
            let refused = Device::open(&description.kind, mode).map(drop).unwrap_err().to_string();
            assert!(refused.contains(told), "{name}: {refused}");
        }
    }
    // A file that is too short for a header.
    let folder = Folder::new();
    let description = config(&folder.0, FILE).device;
    let Kind::File { path, .. } = &description.kind else { panic!("{FILE}") };
    std::fs::write(path, "").unwrap();
    let refused =
        Device::open(&description.kind, Mode::ReadOnly).map(drop).unwrap_err().to_string();
    assert!(refused.contains("holds no device of Weir; see `weir format`"), "{refused}");
}

#[test]
fn a_device_whose_head_was_cleared_is_not_made_anew_over_what_it_holds() {
    let folder = Folder::new();
    write_and_stop(&folder, FILE, &pattern(3, 5000));
    let Kind::File { path: made, .. } = config(&folder.0, FILE).device.kind else { panic!() };
    let whole = std::fs::read(&made).unwrap();
    let mut headless = whole.clone();
    headless[..1 << 20].fill(0);
    std::fs::write(&made, &headless).unwrap();
    let refused = refusal(&folder, FILE);
    assert!(refused.contains("the head of what was here is lost"), "{refused}");
    assert!(refused.contains("weir format --force"), "{refused}");
    assert!(std::fs::read(&made).unwrap() == headless, "it was written to");
    // With the head it is the device again; and thrown away it makes room for a new one.
    std::fs::write(&made, &whole).unwrap();
    read_back(&folder, FILE, &pattern(3, 5000));
    Device::wipe(&made).unwrap();
    start(&folder, FILE).shut_down().unwrap();
}

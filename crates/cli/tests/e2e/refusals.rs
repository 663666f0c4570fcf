//! What must not start, and what must not be believed: a second server on one device, a config with
//! a mistake, a device file that something else has written to.

use crate::scratch::Scratch;
use crate::server::{SMALL, Server};
use crate::tools::{output, pattern, said, weir, weir_path};
use flash::Random;
use std::fs;
use std::os::unix::fs::FileExt;

const BLOCK: usize = flash::BLOCK_BYTES;

#[test]
fn a_second_server_on_the_same_device_is_refused() {
    let scratch = Scratch::new("second");
    let server = Server::start(&scratch, SMALL);
    let mut client = server.connect();
    client.write(0, &pattern(1, BLOCK));
    let data = scratch.data();
    let data = data.to_str().expect("UTF-8");
    let second = weir(&["serve", "--http", "127.0.0.1:0", "--data", data]);
    assert!(!second.status.success(), "a second server must not start");
    let text = said(&second);
    assert!(text.contains(data), "the message names the directory: {text}");
    assert!(!text.contains("panicked at"), "{text}");
    // A reader of the files is refused as well while they change under it.
    let check = weir(&["check", "--data", data]);
    assert!(!check.status.success(), "a device in use cannot be checked: {}", said(&check));
    assert!(client.read(0, BLOCK as u32) == pattern(1, BLOCK), "the first server is undisturbed");
    assert!(server.connect().read(0, BLOCK as u32) == pattern(1, BLOCK), "its socket too");
    server.terminate();
}

#[test]
fn a_socket_that_another_process_has_is_told_with_the_process_and_without_the_device() {
    let (scratch, other) = (Scratch::new("socket"), Scratch::new("other"));
    let server = Server::start(&scratch, SMALL);
    let silent = other.file("silent");
    let _silent = std::os::unix::net::UnixListener::bind(&silent).unwrap();
    let data = other.file("mine");
    for (option, path, whose) in [
        ("--socket", &*scratch.file("data/nbd.sock"), server.pid()),
        ("--control", &*scratch.file("data/control.sock"), server.pid()),
        ("--socket", &*silent, std::process::id()),
    ] {
        let args = ["serve", "--data", &data, "--http", "none", option, path];
        let refused = weir(&[&args[..], SMALL].concat());
        let text = said(&refused);
        assert_eq!(refused.status.code(), Some(2), "{text}");
        let told = format!("error: {path}: the socket is in use by process {whose} (");
        assert!(text.contains(&told), "{option} {path}: {text}");
    }
    server.terminate();
}

#[test]
fn a_control_socket_that_is_a_folder_is_told_as_such_by_every_client() {
    let scratch = Scratch::new("nosocket");
    let folder = scratch.file("store");
    fs::create_dir_all(&folder).unwrap();
    for args in [&["status"][..], &["volume", "list"], &["store", "status"]] {
        let refused = weir(&[args, &["--control", &folder]].concat());
        let text = said(&refused);
        assert_eq!(refused.status.code(), Some(2), "{text}");
        assert!(text.contains(&format!("--control {folder}: is no socket")), "{text}");
        assert!(text.contains("control.sock"), "{text}");
    }
}

#[test]
fn a_config_with_a_mistake_is_refused_whole_and_the_message_says_where() {
    let scratch = Scratch::new("config");
    let data = scratch.data();
    let data = data.to_str().expect("UTF-8");
    let config = scratch.file("weir.toml");
    for (text, named) in [
        ("no_such_key = 1\n", "no_such_key"),
        ("[no_such_table]\nx = 1\n", "no_such_table"),
        ("this is not TOML", "weir.toml"),
    ] {
        fs::write(&config, text).unwrap();
        let refused = weir(&["serve", "--data", data, "--config", &config]);
        assert!(!refused.status.success(), "{text:?} must be refused");
        let message = said(&refused);
        assert!(message.contains(named), "the message names {named:?}: {message}");
        assert!(!message.contains("panicked at"), "{message}");
    }
    for args in [
        ["--capacity", "banana"],
        ["--profile", "no-such-flash"],
        ["--config", "/no/such/file.toml"],
        ["--http", "nonsense"],
    ] {
        let refused = weir(&["serve", "--data", data, args[0], args[1]]);
        assert!(!refused.status.success(), "{args:?} must be refused");
        let message = said(&refused);
        assert!(message.contains(args[1]), "the message repeats {:?}: {message}", args[1]);
        assert!(!message.contains("panicked at"), "{message}");
    }
    assert!(!scratch.data().join("shard-0").exists(), "nothing was made on the way");
}

#[test]
fn a_scribbled_device_never_returns_wrong_bytes() {
    let scratch = Scratch::new("scribble");
    let blocks = 4096;
    let server = Server::start(&scratch, SMALL);
    let image = pattern(2, blocks * BLOCK);
    let mut client = server.connect();
    for (index, chunk) in image.chunks(64 * BLOCK).enumerate() {
        client.write((index * 64 * BLOCK) as u64, chunk);
    }
    client.flush();
    server.terminate();

    let seed = 99;
    eprintln!("seed={seed}");
    let mut random = Random::new(seed);
    let path = scratch.data().join("shard-0/data");
    let file = fs::OpenOptions::new().write(true).open(&path).expect("the device's file");
    let bytes = file.metadata().unwrap().len();
    for _ in 0..400 {
        let scribble = pattern(random.next_u64(), 1 + random.below(600) as usize);
        file.write_all_at(&scribble, random.below(bytes - 600)).unwrap();
    }
    drop(file);

    let mut server = Server::spawn(&scratch, SMALL);
    if let Some(status) = ended_or_ready(&mut server) {
        assert!(!status.success(), "a device that cannot be mounted is refused");
        let log = server.log();
        assert!(!log.contains("panicked at"), "{log}");
        println!("the scribbled device was refused:\n{log}");
        return;
    }
    let mut client = server.connect();
    let mut unreadable = 0;
    for (lba, expected) in image.chunks(BLOCK).enumerate() {
        match client.try_read((lba * BLOCK) as u64, BLOCK as u32) {
            Ok(found) => assert!(found == expected, "block {lba} came back wrong"),
            Err(_) => unreadable += 1,
        }
    }
    println!("{unreadable} of {blocks} blocks were reported as unreadable, none was wrong");
    // Writing heals.
    client.write(0, &image[..64 * BLOCK]);
    assert!(client.read(0, 64 * BLOCK as u32) == image[..64 * BLOCK]);
    server.terminate();
}

/// Waits until the server's socket answers or its process ends.
fn ended_or_ready(server: &mut Server) -> Option<std::process::ExitStatus> {
    for _ in 0..6000 {
        if !server.is_running() {
            return server.wait();
        }
        if crate::nbd::Client::connect(&server.socket(), "default").is_ok() {
            return None;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("neither ready nor ended within a minute:\n{}", server.log());
}

#[test]
fn a_config_that_contradicts_the_device_is_told_key_by_key() {
    let scratch = Scratch::new("contradict");
    let (data, config) = (scratch.data(), scratch.file("weir.toml"));
    let data = data.to_str().expect("UTF-8");
    let true_config = "[device]\nkind = \"nand\"\npath = \"data\"\nprofile = \"instant\"\nshards = 2\n\
                       channels = 4\ndies_per_channel = 2\nop_percent = 30\n\
                       [device.faults]\nfactory_bad = 0.01\n\
                       [[volume]]\nname = \"default\"\nsize = \"64MiB\"\n[http]\naddress = \"127.0.0.1:0\"\n";
    fs::write(&config, true_config).unwrap();
    let made = weir(&["format", "--config", &config]);
    assert!(made.status.success(), "{}", said(&made));
    for (is, says, key) in [
        ("kind = \"nand\"", "kind = \"file\"", "device.kind"),
        ("profile = \"instant\"", "profile = \"tlc\"", "device.profile"),
        ("shards = 2", "shards = 4", "device.shards"),
        ("channels = 4", "channels = 8", "device.channels"),
        ("dies_per_channel = 2", "dies_per_channel = 3", "device.dies_per_channel"),
        ("op_percent = 30", "op_percent = 20", "device.op_percent"),
        ("factory_bad = 0.01", "factory_bad = 0", "device.faults.factory_bad"),
        ("64MiB", "128MiB", "volume"),
        ("\"default\"", "\"other\"", "volume"),
    ] {
        assert!(true_config.contains(is), "{is}");
        fs::write(&config, true_config.replace(is, says)).unwrap();
        let refused = weir(&["serve", "--config", &config]);
        let text = said(&refused);
        assert!(!refused.status.success(), "{says} must be refused");
        let (before, after) = (is.split(" = ").last().unwrap(), says.split(" = ").last().unwrap());
        for word in [key, data, before.trim_matches('"'), after.trim_matches('"')] {
            assert!(text.contains(word), "{says}: the message names {word:?}: {text}");
        }
    }
    // An option is told as an option.
    fs::write(&config, true_config).unwrap();
    let refused = weir(&["serve", "--config", &config, "--op-percent", "7"]);
    assert!(said(&refused).contains("--op-percent 7"), "{}", said(&refused));
    // What is true may be repeated, by the file and by options.
    let true_options = ["--config", &config, "--data", data, "--shards", "2", "--op-percent", "30"];
    Server::start(&scratch, &true_options).terminate();
}

/// A limit on the size of files (`ulimit -f`) once ended the process without a word, a device as the output of a
/// trace was replaced by a file, and the last seed has none after it.
#[test]
fn limits_of_files_devices_and_seeds_are_errors_with_a_place() {
    let scratch = Scratch::new("limit");
    let weir_at = weir_path();
    let limited = format!(
        "ulimit -f 20000; {} format --profile instant --capacity 64MiB --data {}",
        weir_at.display(),
        scratch.data().display()
    );
    let made = output("sh", &["-c", &limited]);
    assert_eq!(made.status.code(), Some(2), "{made:?}");
    assert!(said(&made).contains("shard-0/data"), "{}", said(&made));
    let from = scratch.file("from.csv");
    fs::write(&from, "").expect("a file");
    let converted = weir(&["trace", "convert", &from, "/dev/null", "--overwrite"]);
    assert_eq!(converted.status.code(), Some(2), "{converted:?}");
    assert!(said(&converted).contains("no plain file"), "{}", said(&converted));
    let simulated = weir(&["lab", "sim", "--seed", "18446744073709551615"]);
    assert_eq!(simulated.status.code(), Some(2), "{simulated:?}");
}

/// A user's own profile is the most likely input to be wrong: each mistake is told with its place.
#[test]
fn a_profile_or_device_that_cannot_be_fitted_is_an_error_with_a_place() {
    let scratch = Scratch::new("fit");
    let profile = scratch.file("mine.csv");
    let header = "writes,iops,lost,p50,p90,p99,p999,p9999";
    let refused = |arguments: &[&str], says: &str| {
        let fitted = weir(&[&["lab", "fit"], arguments].concat());
        assert_eq!(fitted.status.code(), Some(2), "{arguments:?}: {fitted:?}");
        assert!(said(&fitted).contains(says), "{arguments:?}: {}", said(&fitted));
    };
    refused(&["no-such-drive"], "no profile is called \"no-such-drive\"; there are s39wna0kb01161");
    refused(&[&profile], "mine.csv: cannot be read");
    fs::write(&profile, format!("{header}\n0,1000,0,70,80\n")).expect("a file");
    refused(&[&profile, "--device", "nvme-tlc"], "line 2: 5 fields instead of the 8");
    fs::write(&profile, format!("{header}\n0,1000,0,70,80,90,95,99\n")).expect("a file");
    refused(&[&profile], "--device: no device was fitted to");
    refused(&[&profile, "--device", "nvme-plc"], "--device nvme-plc: no device is called that");
    let out = scratch.file("there.toml");
    fs::write(&out, "mine").expect("a file");
    let tried = [profile.as_str(), "--device", "nvme-tlc", "--tries", "1", "--out", &out];
    refused(&tried, "there.toml: cannot be made");
    assert_eq!(fs::read_to_string(&out).expect("it is there"), "mine");
    let step = [profile.as_str(), "--device", "nvme-tlc", "--step", "9"];
    refused(&step, "a factor from 1.01 to 4");
}

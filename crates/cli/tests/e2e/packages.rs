//! The packages of `./x package`, each installed in a Debian with nothing else in it: the server that its unit
//! starts gets a disk that is written, survives an upgrade and is not taken by a purge. What systemd would be
//! told is heard by a socket of the test.
//!
//! They are made of the binary that the other tests have. Needs root, and the root that `./x setup` makes.

use crate::scratch::Scratch;
use crate::tools::{pattern, root_and, run, said, skipped, weir_path};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
/// As the package's config has it, in place of 8 GiB with the times of flash.
const SMALL: &str = "profile = \"instant\"\ncapacity = \"64MiB\"\n";
const URI: &str = "nbd+unix:///default?socket=/run/weir/nbd.sock";

#[test]
fn a_debian_package_is_installed_served_upgraded_removed_and_purged() {
    let Some(root) = Root::new("deb") else { return };
    for version in ["0.1.0", "0.1.1"] {
        let deb = package(&root, "deb", version);
        fs::copy(deb, root.path().join(format!("{version}.deb"))).unwrap();
    }
    root.run(&["dpkg", "--install", "/0.1.0.deb"]);
    let text = root.run(&["systemd-analyze", "verify", "--man=no", "weir.service"]);
    assert!(!text.contains("weir.service"), "systemd finds nothing wrong: {text}");
    for command in ["weir", "weir-serve", "weir-check", "weir-ctl-policy-set", "weir-lab-run"] {
        let page = root.path().join(format!("usr/share/man/man1/{command}.1.gz"));
        let page = run("gunzip", &["--to-stdout", page.to_str().unwrap()]);
        assert!(page.contains(".SH SYNOPSIS"), "{command}: {page}");
    }
    let completed = "set -e; . /usr/share/bash-completion/completions/weir; \
        COMP_WORDS=(weir che) COMP_CWORD=1; _weir weir che weir; echo \"${COMPREPLY[@]}\"";
    assert_eq!(root.run(&["bash", "-c", completed]).trim(), "check");
    let config = root.path().join("etc/weir/weir.toml");
    shrink(&config);

    let server = Service::start(&root);
    let image = pattern(3, 8 << 20);
    fs::write(root.path().join("image"), &image).unwrap();
    root.run_as(MEMBER, &["nbdcopy", "--flush", "/image", URI]);
    let size = root.run_as(MEMBER, &["nbdinfo", "--size", URI]);
    assert_eq!(size.trim(), "67108864");
    let stranger = root.output(&[STRANGER, &["nbdinfo", URI]].concat());
    assert!(said(&stranger).contains("ermission denied"), "{}", said(&stranger));
    let status = root.run(&["weir", "status"]);
    assert!(status.contains("volume default: 64"), "the service is found: {status}");

    // Without systemd nobody restarts it: it goes on as it was until it is told.
    root.run(&["dpkg", "--install", "/0.1.1.deb"]);
    root.run_as(MEMBER, &["nbdinfo", URI]);
    server.stop();
    let server = Service::start(&root);
    root.run_as(MEMBER, &["nbdcopy", URI, "/tmp/copy"]);
    let copy = fs::read(root.path().join("tmp/copy")).unwrap();
    assert!(copy[..image.len()] == image, "an upgrade keeps what was written");
    assert!(fs::read_to_string(&config).unwrap().contains(SMALL), "and the config as it was");
    server.stop();

    root.run(&["dpkg", "--remove", "weir"]);
    assert!(!root.path().join("usr/bin/weir").exists() && config.exists());
    let purge = root.run(&["dpkg", "--purge", "weir"]);
    assert!(purge.contains("/var/lib/weir is kept"), "{purge}");
    assert!(!config.exists() && root.path().join("var/lib/weir/device.toml").exists());
    let left = root.run(&["dpkg", "--audit"]);
    assert_eq!(left, "", "dpkg is content");
}

#[test]
fn a_tarball_serves_where_it_is_unpacked() {
    let Some(root) = Root::new("tarball") else { return };
    let tarball = package(&root, "tarball", "0.1.0");
    run(
        "tar",
        &["-xf", tarball.to_str().unwrap(), "-C", &root.file("opt"), "--strip-components=1"],
    );
    let unit = fs::read_to_string(root.file("opt/lib/systemd/system/weir.service")).unwrap();
    assert!(unit.contains("ExecStart=/usr/local/bin/weir"), "it is copied there: {unit}");
    let readme = fs::read_to_string(root.file("opt/README")).unwrap();
    assert!(readme.contains("libc6 (>= "), "it says what it needs: {readme}");
    let words = ["/opt/bin/weir", "serve", "--memory", "--profile", "instant", "--data", "/srv"];
    let server = Service::start_as(&root, &[&words[..], &["--capacity", "64MiB"]].concat());
    let uri = "nbd+unix:///default?socket=/srv/nbd.sock";
    fs::write(root.file("image"), pattern(4, 1 << 20)).unwrap();
    root.run(&["nbdcopy", "--flush", "/image", uri]);
    root.run(&["nbdcopy", uri, "/copy"]);
    assert!(fs::read(root.file("copy")).unwrap()[..1 << 20] == pattern(4, 1 << 20));
    server.stop();
}

#[test]
fn an_image_serves_as_the_user_that_it_names() {
    let Some(clean) = Root::new("image") else { return };
    let archive = package(&clean, "image", "0.1.0~rc1");
    let image = clean.file("image");
    fs::create_dir(&image).unwrap();
    run("tar", &["-xf", archive.to_str().unwrap(), "-C", &image]);
    let json = |path: &str| -> Value {
        serde_json::from_slice(&fs::read(Path::new(&image).join(path)).unwrap()).unwrap()
    };
    // Each blob is what its name says, as a container engine would check.
    let blob = |descriptor: &Value| {
        let digest = descriptor["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
        let path = format!("blobs/sha256/{digest}");
        let whole = format!("{image}/{path}");
        assert!(run("sha256sum", &[&whole]).starts_with(digest));
        assert_eq!(descriptor["size"], fs::metadata(whole).unwrap().len());
        path
    };
    assert_eq!(json("oci-layout")["imageLayoutVersion"], "1.0.0");
    let entry = &json("index.json")["manifests"][0];
    let name = &entry["annotations"]["org.opencontainers.image.ref.name"];
    assert_eq!(name, "weir:0.1.0-rc1", "a tag may have no ~");
    let manifest = json(&blob(entry));
    let config = json(&blob(&manifest["config"]));
    // All that the server has is what is in the layers.
    let container = clean.inner("container");
    fs::create_dir_all(container.path()).unwrap();
    let layers = manifest["layers"].as_array().unwrap();
    for (layer, unpacked) in layers.iter().zip(config["rootfs"]["diff_ids"].as_array().unwrap()) {
        let packed = format!("{image}/{}", blob(layer));
        let digest = run("sh", &["-c", &format!("gunzip --to-stdout {packed} | sha256sum")]);
        assert!(unpacked.as_str().unwrap().ends_with(digest.split(' ').next().unwrap()));
        run("tar", &["-xzpf", &packed, "-C", container.path().to_str().unwrap()]);
    }
    for folder in ["proc", "dev"] {
        fs::create_dir(container.path().join(folder)).unwrap();
    }
    shrink(&container.path().join("etc/weir/weir.toml"));
    let settings = &config["config"];
    let user = settings["User"].as_str().unwrap();
    let words = [&settings["Entrypoint"], &settings["Cmd"]].map(|list| list.as_array().unwrap());
    let words: Vec<&str> = words.into_iter().flatten().map(|word| word.as_str().unwrap()).collect();
    let server = Service::start_with(&container, Some(user), &words);
    let uri =
        format!("nbd+unix:///default?socket={}/run/weir/nbd.sock", container.path().display());
    assert_eq!(run("nbdinfo", &["--size", &uri]).trim(), "67108864");
    let owner = fs::metadata(container.path().join("var/lib/weir/device.toml")).unwrap();
    assert_eq!(
        std::os::unix::fs::MetadataExt::uid(&owner).to_string(),
        user.split(':').next().unwrap()
    );
    server.stop();
}

/// Makes a package of the tested binary, as `./x package` does.
fn package(root: &Root, kind: &str, version: &str) -> PathBuf {
    let to = root.scratch.file(&format!("packages-{version}"));
    let binary = weir_path();
    let made = Command::new(env!("CARGO"))
        .args(["run", "--quiet", "--package", "xtask", "--", "package", "--fast", "--only", kind])
        .args(["--version", version, "--to", &to, "--binary"])
        .arg(binary)
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .stdin(Stdio::null())
        .output()
        .expect("cargo starts");
    assert!(made.status.success(), "{}", said(&made));
    let mut made = fs::read_dir(to).unwrap().map(|entry| entry.unwrap().path());
    made.next().expect("a package")
}

/// Has the service's config describe a small device.
fn shrink(config: &Path) {
    let text = fs::read_to_string(config).unwrap();
    let small = text.replace("profile = \"mlc-25nm\"\ncapacity = \"8GiB\"\n", SMALL);
    assert_ne!(text, small, "the config of the package has these lines");
    fs::write(config, small).unwrap();
}

/// Words that make a program a user's who is in the group, or in none.
const MEMBER: &[&str] = &["setpriv", "--reuid=nobody", "--regid=weir", "--clear-groups"];
const STRANGER: &[&str] = &["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"];

/// A root file system of the test's own.
struct Root {
    scratch: std::rc::Rc<Scratch>,
    path: PathBuf,
}

impl Root {
    /// A Debian with nothing in it. If it cannot be had, the test is skipped.
    fn new(name: &str) -> Option<Self> {
        let test = format!("packages in a clean root ({name})");
        // As `./x setup` takes it: from the root, if it is not absolute.
        let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
        let packed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(target);
        let packed = packed.join("clean-root.tar");
        if !root_and(&test, "/dev/null") {
            return None;
        }
        if !packed.exists() {
            skipped(&test, &format!("no {}, which `./x setup` makes", packed.display()));
            return None;
        }
        let scratch = Scratch::new(name);
        let path = scratch.path().join("root");
        fs::create_dir(&path).unwrap();
        // The user of the service must get through to it.
        for folder in [scratch.path(), &path] {
            fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
        }
        run("tar", &["-xpf", packed.to_str().unwrap(), "-C", path.to_str().unwrap()]);
        Some(Self { scratch: scratch.into(), path })
    }

    /// An empty one beside it.
    fn inner(&self, name: &str) -> Self {
        Self { scratch: self.scratch.clone(), path: self.scratch.path().join(name) }
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn file(&self, name: &str) -> String {
        self.path.join(name).to_str().expect("UTF-8").to_owned()
    }

    /// A program that has this root, and processes to look at, until it ends.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("unshare");
        let script = "mount -t proc proc \"$0/proc\" && exec chroot \"$0\" \"$@\"";
        command.args(["--mount", "--", "sh", "-c", script]).arg(&self.path).args(words);
        command
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        command.env("LC_ALL", "C").env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
        command
    }

    fn output(&self, words: &[&str]) -> Output {
        self.command(words).output().expect("unshare starts")
    }

    /// Runs a program, which must end well, and returns all it said.
    fn run(&self, words: &[&str]) -> String {
        let output = self.output(words);
        assert!(output.status.success(), "{words:?} ({}): {}", output.status, said(&output));
        said(&output)
    }

    fn run_as(&self, user: &[&str], words: &[&str]) -> String {
        self.run(&[user, words].concat())
    }
}

/// A server that is started, watched and stopped as systemd does it.
struct Service {
    child: Child,
    /// Where it tells how it does.
    heard: UnixDatagram,
    log: String,
}

impl Service {
    /// As the unit of the package says.
    fn start(root: &Root) -> Self {
        let unit = fs::read_to_string(root.file("usr/lib/systemd/system/weir.service")).unwrap();
        let value = |key: &str| {
            unit.lines().find_map(|line| line.strip_prefix(key)).expect("a key of the unit")
        };
        assert_eq!((value("Type="), value("User="), value("Group=")), ("notify", "weir", "weir"));
        let words: Vec<&str> = value("ExecStart=").split(' ').collect();
        Self::start_with(root, Some("weir:weir"), &words)
    }

    fn start_as(root: &Root, words: &[&str]) -> Self {
        Self::start_with(root, None, words)
    }

    /// Starts it, and returns when it said that it is ready, and then that it lives.
    fn start_with(root: &Root, user: Option<&str>, words: &[&str]) -> Self {
        let socket = root.path().join("notify");
        let _ = fs::remove_file(&socket);
        let heard = UnixDatagram::bind(&socket).expect("a path that fits");
        fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).unwrap();
        heard.set_read_timeout(Some(PATIENCE)).unwrap();
        let log = root.scratch.file("serve.log");
        let file = fs::File::create(&log).unwrap();
        let mut command = root.command(&[]);
        if let Some((user, group)) = user.and_then(|user| user.split_once(':')) {
            // The root may lack the tools: chroot itself becomes the user.
            let script = format!(
                "mount -t proc proc \"$0/proc\" && \
                 exec chroot --userspec={user}:{group} --groups={group} \"$0\" \"$@\""
            );
            command = Command::new("unshare");
            command.args(["--mount", "--", "sh", "-c", &script]).arg(root.path()).env_clear();
            command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").stdin(Stdio::null());
        }
        command.args(words).env("NOTIFY_SOCKET", "/notify").env("WATCHDOG_USEC", "600000");
        let child = command.stdout(file.try_clone().unwrap()).stderr(file).spawn();
        let mut service = Self { child: child.expect("unshare starts"), heard, log };
        let ready = service.hear("READY=1");
        assert!(ready.contains("STATUS=serving 1 volumes at nbd+unix://"), "{ready}");
        service.hear("WATCHDOG=1");
        service.hear("WATCHDOG=1");
        service
    }

    /// Waits for a message of this, and returns the whole of it.
    fn hear(&mut self, word: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        let mut bytes = [0; 4096];
        self.heard.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        while Instant::now() < deadline {
            if let Ok(len) = self.heard.recv(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..len]).into_owned();
                if text.lines().any(|line| line == word) {
                    return text;
                }
            } else if let Ok(Some(status)) = self.child.try_wait() {
                panic!("it ended ({status}):\n{}", self.log());
            }
        }
        panic!("{word} was not heard:\n{}", self.log());
    }

    /// Stops it, and hears that it stops.
    fn stop(mut self) {
        let pid = i32::try_from(self.child.id()).unwrap();
        // SAFETY: kill takes no pointer; the child is not reaped yet, so the pid is still its own.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGTERM) }, 0);
        self.hear("STOPPING=1");
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().unwrap() {
                assert!(status.success(), "{status}:\n{}", self.log());
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("it does not end:\n{}", self.log());
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // If it was stopped, nothing is there to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

//! The kernel's own NBD client and a virtio disk, in a guest: QEMU boots a Debian kernel, whose NBD
//! driver connects over TCP to a volume of ours on the host, while QEMU itself shows another volume
//! as a virtio disk. On both the guest makes ext4, writes a tree, unmounts, checks and hashes.
//!
//! Needs QEMU and a kernel package laid out in a folder, which `./x test` gets; `guest-boot.sh` boots it.
//! Where something is missing the test steps aside, and is told of as skipped.

use crate::scratch::Scratch;
use crate::server::Server;
use crate::tools::{find, run, said, skipped};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Longest that the guest may live, from start to power-off. It is emulated: slow beside others.
const GUEST_SECONDS_MAX: u32 = 1500;

/// Runs in the guest; the host's programs are there, its files are read-only. Busybox has `ip` where
/// the host has none.
const SCRIPT: &str = r#"
set -eu
busybox ip link set lo up
busybox ip addr add 10.0.2.15/24 dev eth0
busybox ip link set eth0 up
nbd-client -N kernel 10.0.2.2 PORT /dev/nbd0 -b 4096 -timeout 60 >/tmp/nbd.log 2>&1 ||
    { cat /tmp/nbd.log; exit 20; }
for disk in nbd0 vda; do
    mkfs.ext4 -q /dev/$disk
    mkdir -p /tmp/$disk
    mount /dev/$disk /tmp/$disk
    cp -r /usr/share/common-licenses /tmp/$disk/tree
    head -c 3000000 /dev/urandom >/tmp/$disk/tree/random
    cp /tmp/$disk/tree/random /tmp/random.$disk
    fstrim /tmp/$disk
    umount /tmp/$disk
    fsck.ext4 -f -n /dev/$disk
    mount -o ro /dev/$disk /tmp/$disk
    cmp /tmp/$disk/tree/random /tmp/random.$disk
    (cd /tmp/$disk/tree && find . -type f | sort | xargs sha256sum | sed "s/^/$disk /")
    umount /tmp/$disk
done
nbd-client -d /dev/nbd0 >/dev/null
"#;

/// What every script of [`Guest::run_whole`] begins with. `start` is the script's own: it starts the server, whose process is
/// `$server`, and waits until it is ready.
const PRELUDE: &str = r#"
set -eu
busybox ip link set lo up
fail() { echo "$1"; cat /tmp/serve.log; dmesg | tail -n 30; exit 30; }
step() { echo "step $1 after $SECONDS s"; }
# The server is killed, and comes back after so many seconds.
kill_and_start() {
    kill -9 $server
    wait $server || true
    sleep "$1"
    : >/tmp/serve.log
    start
}
# The server ends well, and its device is sound.
stop_and_check() {
    kill $server
    wait $server
    WEIR check --data /tmp/device >/tmp/check.log 2>&1 || { cat /tmp/check.log; exit 31; }
}
make_zonefs() { # on a disk with zones, of which Debian has no tool
    /usr/bin/python3 -c '
import struct, zlib
def head(crc):
    return struct.pack("<II64s16sQIII", 0x5a4f4653, crc, b"weir", bytes(range(16)), 0, 0, 0, 0)
block = lambda crc: head(crc) + bytes(4096 - len(head(crc)))
open("/tmp/super", "wb").write(block(zlib.crc32(block(0)) ^ 0xffffffff))'
    dd if=/tmp/super of="$1" bs=4096 oflag=direct status=none
}
zonefs() { # a file of it, mounted at /tmp/zones, and how fio writes or verifies it
    file=$1
    shift
    fio --name=zonefs --ioengine=libaio --iodepth=1 --direct=1 --filename=/tmp/zones/seq/$file --rw=write --bs=64k \
        --size=3m --verify=crc32c --verify_fatal=1 --randseed=$file --verify_state_save=0 --output-format=terse \
        --create_on_open=0 --allow_file_create=0 --unlink=0 --fallocate=none "$@" >/tmp/fio.log 2>&1 ||
        { cat /tmp/fio.log; fail "zonefs $file $*"; }
}
"#;
/// What it ends with.
const END: &str = "ALL-OF-IT-RAN";

#[test]
fn the_kernels_nbd_client_and_a_virtio_disk_keep_a_tree() {
    let test = "the kernel's NBD client in a guest";
    let Some(guest) = Guest::found(test, &["nbd-client"]) else { return };
    let scratch = Scratch::new("guest");
    let config = scratch.file("weir.toml");
    let volumes = "[device]\nprofile = \"instant\"\nshards = 2\n\
                   [[volume]]\nname = \"kernel\"\nsize = \"64MiB\"\n\
                   [[volume]]\nname = \"virtio\"\nsize = \"64MiB\"\n";
    fs::write(&config, volumes).unwrap();
    let args = ["--config", &*config, "--tcp", "127.0.0.1:0", "--socket", &scratch.file("s")];
    let server = Server::start(&scratch, &args);
    let script = scratch.file("script");
    fs::write(&script, SCRIPT.replace("PORT", &server.tcp_port().to_string())).unwrap();
    let socket = scratch.file("s");
    let qemu = format!(
        "-netdev user,id=net -device virtio-net-pci,netdev=net \
         -drive file=nbd+unix:///virtio?socket={socket},format=raw,if=virtio,cache=none,discard=unmap"
    );
    let text = guest.run("virtio_net virtio_blk nbd ext4", &["-q", &qemu, &script]);
    let hashes = |disk: &str| -> Vec<String> {
        let lines = text.lines().filter_map(|line| line.strip_prefix(disk));
        lines.filter(|line| !line.ends_with("./random")).map(str::to_owned).collect()
    };
    let licences = "cd /usr/share/common-licenses && find . -type f | sort | xargs sha256sum";
    let expected: Vec<String> =
        run("sh", &["-c", licences]).lines().map(|line| format!(" {line}")).collect();
    for disk in ["nbd0", "vda"] {
        let found = hashes(disk);
        for line in &expected {
            assert!(found.contains(line), "{disk}: {line:?} is missing:\n{text}");
        }
    }
    // What the guest left is an ext4 to the host too.
    server.terminate();
    let check = crate::tools::weir(&["check", "--data", &scratch.data().to_string_lossy()]);
    assert!(check.status.success(), "{}", said(&check));
}

/// The kernel's folder.
pub struct Guest {
    kernel: PathBuf,
}

impl Guest {
    /// If all is there, with `tools` beside what every guest needs; else says what is not, and that
    /// `test` was skipped.
    pub fn found(test: &str, tools: &[&str]) -> Option<Self> {
        Self::found_with(test, tools, None)
    }

    /// The same with a kernel that has a module: what Debian 12 has is too old for some.
    pub fn found_with(test: &str, tools: &[&str], module: Option<&str>) -> Option<Self> {
        if !cfg!(target_arch = "x86_64") {
            skipped(
                test,
                "the guest has an x86-64 processor and would run this machine's programs",
            );
            return None;
        }
        // As `./x setup` takes it: from the root, if it is not absolute.
        let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
        let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(target);
        let named = std::env::var_os("WEIR_E2E_KERNEL").map(PathBuf::from);
        let built = ["guest-kernel", "guest-kernel-newer"].map(|folder| target.join(folder));
        let mut kernels = named.map_or_else(|| built.to_vec(), |named| vec![named]);
        let first = kernels[0].display().to_string();
        kernels.retain(|kernel| has_module(kernel, module));
        let mut missing = Vec::new();
        if kernels.is_empty() {
            missing.push(match module {
                None => format!("{first} (or WEIR_E2E_KERNEL)"),
                Some(module) => format!("kernel with the module {module} in {first}"),
            });
        }
        let always = ["qemu-system-x86_64", "busybox", "cpio", "depmod", "xz", "mkfs.ext4"];
        let absent = always.iter().chain(tools).filter(|tool| find(tool).is_none());
        missing.extend(absent.map(|tool| (*tool).to_owned()));
        if missing.is_empty() {
            return kernels.into_iter().next().map(|kernel| Self { kernel });
        }
        skipped(test, &format!("no {}", missing.join(", ")));
        None
    }

    /// Runs a script behind [`PRELUDE`] with this machine's `weir` in the place of `WEIR`, and sees that it came to its end.
    /// `name` is that of its files.
    pub fn run_whole(&self, name: &str, modules: &str, script: &str) {
        let scratch = Scratch::new(name);
        let visible = Visible::new(&crate::tools::weir_path(), name);
        let file = scratch.file("script");
        let script = format!("{PRELUDE}{script}echo {END}\n");
        fs::write(&file, script.replace("WEIR", &visible.path.to_string_lossy())).unwrap();
        let text = self.run(modules, &["-M", "2G", &file]);
        assert!(text.contains(END), "{text}");
    }

    /// Boots with these modules; `args` are for the script that boots, the last of them what to run.
    /// Returns what was said, if that ended well.
    pub fn run(&self, modules: &str, args: &[&str]) -> String {
        let seconds = GUEST_SECONDS_MAX.to_string();
        // Some kernels have virtio's bus as a module, some built in.
        let modules = format!("virtio_pci {modules}");
        let boot = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/guest-boot.sh");
        let guest = Command::new(boot)
            .args(["-m", &modules, "-t", &seconds])
            .args(args)
            .env("KDIR", &self.kernel)
            .env("PATH", crate::tools::search_path())
            .stdin(Stdio::null())
            .output()
            .expect("the guest's script starts");
        let text = said(&guest);
        assert!(guest.status.success(), "the guest failed ({}):\n{text}", guest.status);
        text
    }
}

/// True if a kernel lies there that has this module.
fn has_module(kernel: &Path, module: Option<&str>) -> bool {
    let Some(module) = module else { return kernel.join("lib/modules").is_dir() };
    let lists = fs::read_dir(kernel.join("lib/modules")).into_iter().flatten().flatten();
    let has = |list: String| list.contains(&format!("/{module}.ko"));
    lists
        .map(|version| fs::read_to_string(version.path().join("modules.order")))
        .any(|list| list.is_ok_and(has))
}

/// A copy of a program where the guest sees it, which has a /tmp of its own.
pub struct Visible {
    /// Where it is.
    pub path: PathBuf,
}

impl Visible {
    /// Copies it until the test is over.
    pub fn new(program: &Path, name: &str) -> Self {
        let path = PathBuf::from(format!("/var/tmp/weir-e2e-{}-{name}", std::process::id()));
        fs::copy(program, &path).expect("/var/tmp takes a copy of the binary");
        Self { path }
    }
}

impl Drop for Visible {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

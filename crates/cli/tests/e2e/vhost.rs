//! Volumes as disks of a virtual machine, over vhost-user: QEMU boots a Debian kernel whose virtio driver makes file
//! systems, trims and checks; a disk grows under it; and the server is killed under load and comes back, of which the
//! guest sees nothing but a pause.
//!
//! Guest and test speak over a small disk of their own: the guest writes a word to its first block, and the test, an NBD
//! client of the same volume, the answer to its second. Steps aside like the other tests in a guest.

use crate::guest::Guest;
use crate::nbd::Client;
use crate::scratch::Scratch;
use crate::server::Server;
use crate::tools::{said, weir};
use std::fs;
use std::thread::JoinHandle;
use std::time::Duration;

const CONFIG: &str = r#"
[device]
profile = "instant"
shards = 2
capacity = "192MiB"
[[volume]]
name = "bell"
size = "1MiB"
vhost = "bell.vhost"
[[volume]]
name = "files"
size = "64MiB"
vhost = "files.vhost"
[[volume]]
name = "plain"
size = "48MiB"
vhost = "plain.vhost"
[[volume]]
name = "fixed"
size = "4MiB"
vhost = "fixed.vhost"
read_only = true
"#;

/// Runs in the guest.
const SCRIPT: &str = r#"
set -eu
step() { echo "step $1 after $SECONDS s"; }
fail() { echo "$1"; dmesg | tail -n 30; exit 30; }
disk() { # by the name of its volume, which is the serial number of the disk
    found=$(grep -lx "$1" /sys/block/vd*/serial) || fail "no disk is called $1"
    echo "/dev/$(echo "$found" | cut -d/ -f4)"
}
bell=$(disk bell) files=$(disk files) plain=$(disk plain) fixed=$(disk fixed)
tell() { # a word
    printf '%-4096s' "$1" | dd of="$bell" bs=4096 count=1 oflag=direct iflag=fullblock status=none
}
heard() { dd if="$bell" bs=4096 count=1 skip=1 iflag=direct status=none | tr -d ' \0'; }
wait_for() { # a word
    for i in $(seq 600); do [ "$(heard)" = "$1" ] && return; sleep 0.2; done
    fail "$1 is not heard"
}
write() {
    fio --name=e2e --ioengine=libaio --direct=1 --filename="$plain" --rw=randwrite --bsrange=4k-64k --size=24m \
        --iodepth=16 --verify=crc32c --do_verify=1 --verify_fatal=1 --randseed="$1" --verify_state_save=0 \
        --end_fsync=1 --output-format=terse >"/tmp/fio.$1" 2>&1 || { cat "/tmp/fio.$1"; fail "fio $1"; }
}
whole() {
    umount /tmp/mounted
    fsck.ext4 -f -n "$files" >/tmp/fsck 2>&1 || { cat /tmp/fsck; fail "fsck"; }
    mount -o ro "$files" /tmp/mounted
    for copy in /tmp/mounted/tree*; do diff -r /usr/share/common-licenses "$copy"; done
    umount /tmp/mounted
}

step features
[ "$(cat /sys/block/${files#/dev/}/queue/discard_max_bytes)" -gt 0 ] || fail "no trim"
[ "$(cat /sys/block/${files#/dev/}/queue/write_zeroes_max_bytes)" -gt 0 ] || fail "no zeroes"
[ "$(cat /sys/block/${files#/dev/}/queue/physical_block_size)" -eq 4096 ] || fail "block size"
[ "$(ls /sys/block/${files#/dev/}/mq | wc -l)" -eq 2 ] || fail "queues"
[ "$(cat /sys/block/${fixed#/dev/}/ro)" -eq 1 ] || fail "not read-only"
cmp -n 4194304 "$fixed" /dev/zero

step "file system"
mkfs.ext4 -q "$files"
mkdir -p /tmp/mounted
mount "$files" /tmp/mounted
rm -r /tmp/mounted/lost+found
cp -r /usr/share/common-licenses /tmp/mounted/tree
[ "$(fstrim -v /tmp/mounted | sed 's/.*(\([0-9]*\) bytes.*/\1/')" -gt 1000000 ] || fail "no trim"
whole
write 1

step grow
tell grow
wait_for grown
for i in $(seq 100); do [ "$(blockdev --getsize64 "$files")" -eq 83886080 ] && break; sleep 0.1; done
[ "$(blockdev --getsize64 "$files")" -eq 83886080 ] || fail "$(blockdev --getsize64 "$files") bytes"
mount "$files" /tmp/mounted
resize2fs "$files" >/dev/null 2>&1 || fail resize2fs
[ "$(df -k --output=size /tmp/mounted | tail -n 1)" -gt 66000 ] || fail "$(df -k /tmp/mounted)"

step kill
(rounds=1; while [ ! -e /tmp/enough ]; do rounds=$((rounds + 1)); write $rounds; done) &
load=$!
(copies=1; while [ ! -e /tmp/enough ]; do
    copies=$((copies % 9 + 1))
    rm -rf /tmp/mounted/tree$copies
    cp -r /usr/share/common-licenses /tmp/mounted/tree$copies
    sync
done) &
copying=$!
for round in 1 2; do
    sleep 2
    tell kill$round
    wait_for killed$round
done
touch /tmp/enough
wait $load
wait $copying
whole
if dmesg | grep -i 'I/O error\|vd.*timeout'; then fail "the kernel was refused something"; fi
echo ALL-OF-IT-RAN
"#;

fn qemu(scratch: &Scratch) -> String {
    let mut args =
        "-object memory-backend-memfd,id=shared,size=1G,share=on -numa node,memdev=shared"
            .to_owned();
    for name in ["bell", "files", "plain", "fixed"] {
        let socket = scratch.file(&format!("{name}.vhost"));
        args.push_str(&format!(
            " -chardev socket,id={name},path={socket},reconnect=1 \
             -device vhost-user-blk-pci,chardev={name},num-queues=2"
        ));
    }
    args
}

/// The word that the guest has written last.
fn word(server: &Server) -> String {
    let mut bell = Client::connect(&server.socket(), "bell").expect("the server is there");
    let block = bell.read(0, 4096);
    String::from_utf8_lossy(&block).trim_matches(['\0', ' ']).to_owned()
}

fn answer(server: &Server, word: &str) {
    let mut bell = Client::connect(&server.socket(), "bell").expect("the server is there");
    bell.write(4096, format!("{word:<4096}").as_bytes());
}

/// Waits for a word, as long as the guest runs.
fn hear(server: &Server, wanted: &str, guest: &JoinHandle<String>) {
    while word(server) != wanted {
        assert!(!guest.is_finished(), "the guest ended before it said {wanted}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_guests_disks_live_through_growth_and_the_kill_of_their_server() {
    let test = "QEMU's vhost-user disks in a guest";
    let Some(guest) = Guest::found(test, &["fio", "fstrim", "resize2fs"]) else { return };
    let scratch = Scratch::new("vhost");
    let config = scratch.file("weir.toml");
    fs::write(&config, CONFIG).unwrap();
    let start = || Server::start(&scratch, &["--config", &config]);
    let mut server = start();
    let script = scratch.file("script");
    fs::write(&script, SCRIPT).unwrap();
    let qemu = qemu(&scratch);
    let guest = std::thread::spawn(move || guest.run("virtio_blk ext4", &["-q", &qemu, &script]));
    // What the guest said tells more than that it said too little.
    let followed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        hear(&server, "grow", &guest);
        let control = server.control();
        let control = control.to_string_lossy();
        let grown = weir(&["volume", "resize", "files", "80MiB", "--control", &control]);
        assert!(grown.status.success(), "{}", said(&grown));
        answer(&server, "grown");
        for round in ["1", "2"] {
            hear(&server, &format!("kill{round}"), &guest);
            server.kill();
            std::thread::sleep(Duration::from_secs(1));
            server = start();
            answer(&server, &format!("killed{round}"));
        }
    }));
    let text = guest.join().unwrap_or_else(|_| panic!("see above; the server:\n{}", server.log()));
    assert!(followed.is_ok() && text.contains("ALL-OF-IT-RAN"), "{text}");
    let log = server.log();
    assert!(!log.contains("was dropped") && !log.contains("is broken"), "{log}");
    server.terminate();
    let check = weir(&["check", "--data", &scratch.data().to_string_lossy()]);
    assert!(check.status.success(), "{}", said(&check));
}

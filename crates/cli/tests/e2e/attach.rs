//! Volumes as disks of a machine, in a guest where the server runs too: by the ublk driver and by the kernel's NBD client.
//! File systems, checked writes while either end is killed and comes back, disks in use, other sizes, and what is refused.
//!
//! Steps aside like the other tests in a guest.

use crate::guest::Guest;
use crate::tools::{said, weir};

/// Runs in the guest. `WEIR` is the binary.
const SCRIPT: &str = r#"
fail() { echo "$1"; cat /tmp/serve.log /run/weir-attached/*.log; dmesg | tail -n 30; exit 30; }
cat >/tmp/weir.toml <<CONFIG
[device]
path = "/tmp/device"
profile = "instant"
shards = 2
capacity = "160MiB"
[[volume]]
name = "data"
size = "64MiB"
[[volume]]
name = "fixed"
size = "8MiB"
read_only = true
CONFIG
start() {
    WEIR serve --config /tmp/weir.toml --http none >>/tmp/serve.log 2>&1 &
    server=$!
    for i in $(seq 300); do grep -q ^ready /tmp/serve.log && return; sleep 0.1; done
    fail "the server does not start"
}
attach() { WEIR attach "$@" --data /tmp/device; }
refused() { # what it says, and the command
    wanted=$1
    shift
    if "$@" >/tmp/refused 2>&1; then fail "not refused: $*"; fi
    grep -q "$wanted" /tmp/refused || fail "$* says $(cat /tmp/refused)"
}
write() { # which, and how
    disk=$1
    shift
    fio --name=e2e --ioengine=libaio --direct=1 --filename="$disk" --rw=randwrite --bsrange=4k-256k --size=32m \
        --iodepth=16 --verify=crc32c --verify_fatal=1 --randseed=11 --verify_state_save=0 --do_verify=1 --end_fsync=1 \
        --output-format=terse "$@" >/tmp/fio.log 2>&1 || { cat /tmp/fio.log; fail "fio $disk $*"; }
}
pid_of() { WEIR attach --list --json | jq -r ".[] | select(.name == \"$1\") | .pid"; }
killed() { # the process of data is, and the driver has seen it
    pid=$(pid_of data)
    kill -9 "$pid"
    for i in $(seq 300); do
        WEIR attach --list --json | jq -e '.[] | select(.name == "data") | .served | not' >/dev/null && return
        sleep 0.1
    done
    fail "the process of data does not end"
}
file_system() { # which
    mkfs.ext4 -q -F "$1"
    mkdir -p /tmp/mounted
    mount "$1" /tmp/mounted
    cp -r /usr/share/common-licenses /tmp/mounted/tree
    rm -r /tmp/mounted/lost+found
    [ "$(fstrim -v /tmp/mounted | sed 's/.*(\([0-9]*\) bytes.*/\1/')" -gt 1000000 ] || fail "no trim"
    refused "is in use" WEIR detach data
    umount /tmp/mounted
    fsck.ext4 -f -n "$1" >/dev/null 2>&1 || fail "fsck"
    mount -o ro "$1" /tmp/mounted
    diff -r /usr/share/common-licenses /tmp/mounted/tree
    umount /tmp/mounted
}

start
refused "nobody serves a device there" WEIR attach data --data /tmp/nowhere
refused "no export\|unknown\|no volume\|none" attach absent
refused "nothing is attached" WEIR detach data

step ublk
attach data >/tmp/told || fail "$(cat /tmp/told)"
grep -q '^data: /dev/ublkb0' /tmp/told || fail "$(cat /tmp/told)"
disk=/dev/disk/by-id/weir-data
[ "$(readlink -f $disk)" = /dev/ublkb0 ] || fail "$(ls -l /dev/disk/by-id)"
[ "$(blockdev --getsize64 $disk)" -eq 67108864 ] || fail "its size"
refused "is attached already as /dev/ublkb0" attach data
attach fixed --json | jq -e '.device == "/dev/ublkb1" and .served' >/dev/null || fail "no JSON"
[ "$(blockdev --getro /dev/ublkb1)" -eq 1 ] || fail "it may be written"
refused "is not attached; there are data, fixed" WEIR detach none
file_system $disk
write $disk
blkdiscard $disk
cmp -n 67108864 /dev/zero $disk || fail "what is discarded is not zero"
head -c 65536 /dev/urandom >/tmp/random
dd if=/tmp/random of=$disk bs=4k oflag=direct,sync status=none
blkdiscard -z -o 4096 -l 4096 $disk
cmp -n 4096 -i 4096:0 $disk /dev/zero || fail "what is zeroed is not zero"
cmp -n 4096 $disk /tmp/random || fail "its neighbour is not what it was"

step "ublk, a snapshot"
WEIR volume snapshot data monday --data /tmp/device >/dev/null
attach data@monday --json | jq -e '.device == "/dev/ublkb2"' >/dev/null || fail "a snapshot is no disk"
old=/dev/disk/by-id/weir-data@monday
[ "$(blockdev --getro $old)" -eq 1 ] || fail "a snapshot may be written"
dd if=/dev/zero of=$disk bs=4k count=16 oflag=direct,sync status=none
cmp -n 4096 $old /tmp/random || fail "a snapshot is not what its volume was"
if dd if=/dev/zero of=$old bs=4k count=1 oflag=direct status=none 2>/dev/null; then fail "a snapshot is written"; fi
cmp -n 4096 $old /tmp/random || fail "a snapshot has changed"
WEIR detach data@monday >/dev/null
WEIR volume delete data@monday --data /tmp/device >/dev/null

step "ublk, a server that is killed"
write $disk &
load=$!
for i in 1 2; do
    sleep 2
    kill_and_start 1
done
wait $load

step "ublk, its process is killed"
write $disk &
load=$!
for i in 1 2; do
    sleep 2
    killed
    WEIR attach --list | grep -q 'none: attach it again' || fail "$(WEIR attach --list)"
    attach data | grep -q '^data: /dev/ublkb0' || fail "it does not go on"
done
wait $load
if dmesg | grep -i 'I/O error.*ublkb0'; then fail "the disk has seen an error"; fi

step "ublk, a process that goes on with what the disk is not"
killed
refused "is still there to be written" attach data --read-only
refused "with . queues (--queues" attach data --queues 9
attach data | grep -q '^data: /dev/ublkb0' || fail "it does not go on"

step "ublk, a record that is damaged, or gone"
: >/run/weir-attached/data.json
WEIR attach --list | grep 'data.*ublkb0' | grep -q 'gone or damaged' || fail "$(WEIR attach --list)"
WEIR detach data
for i in $(seq 300); do [ -e /run/weir-attached/data.json ] || break; sleep 0.1; done
[ ! -e /dev/ublkb0 ] && [ ! -L $disk ] && [ ! -e /run/weir-attached/data.json ] || fail "it is still there"
attach data
killed
rm /run/weir-attached/data.json
refused "takes it away" attach data
WEIR detach /dev/ublkb0
[ ! -e /dev/ublkb0 ] && [ ! -L $disk ] || fail "it is still there"
attach data --nbd --timeout 5s
rm /run/weir-attached/data.json
WEIR attach --list | grep -q 'data.*gone or damaged' || fail "$(WEIR attach --list)"
WEIR detach data
[ ! -L $disk ] || fail "its name is still there"

step "ublk, taken away by force"
attach data
mkfs.ext4 -q -F $disk
mkdir -p /tmp/mounted
mount $disk /tmp/mounted
dd if=/dev/zero of=/tmp/mounted/dirty bs=1M count=4 status=none
refused "is in use" WEIR detach data
timeout 90 WEIR detach data --force || fail "it does not return"
umount /tmp/mounted || true
attach data
kill -STOP $server
dd if=/dev/urandom of=$disk bs=4k count=1 oflag=direct status=none 2>/dev/null &
waits=$!
sleep 1
timeout 90 WEIR detach data --force || fail "it waits for a server that is silent"
if wait $waits; then fail "a write was answered by nobody"; fi
kill -CONT $server
[ -z "$(ls /run/weir-attached/*.json | grep data)" ] || fail "a record is left"
attach data

step "ublk, both are gone"
kill -9 "$(pid_of data)"
kill -9 $server
wait $server || true
WEIR detach data
[ ! -e /dev/ublkb0 ] || fail "it is still there"
[ ! -e $disk ] && [ ! -L $disk ] || fail "its name is still there"
: >/tmp/serve.log
start

step "ublk, sizes and a volume that goes"
attach data
WEIR volume resize data 80MiB --data /tmp/device >/dev/null
for i in $(seq 100); do grep -q 'has 83886080 bytes' /run/weir-attached/data.log && break; sleep 0.1; done
grep -q 'has 83886080 bytes' /run/weir-attached/data.log || fail "it is not told that the size is another"
WEIR volume create gone --size 8MiB --data /tmp/device >/dev/null
attach gone
WEIR volume delete gone --data /tmp/device >/dev/null
if dd if=/dev/disk/by-id/weir-gone of=/dev/null bs=4k count=1 iflag=direct status=none 2>/dev/null; then
    fail "a volume that is gone is read"
fi
WEIR detach --all --json | jq -e '.detached == ["data", "fixed", "gone"]' >/dev/null || fail "not all are detached"
[ -z "$(ls /dev/ublkb* 2>/dev/null)" ] || fail "$(ls /dev/ublkb*)"

step nbd
attach data --nbd --timeout 5s >/tmp/told || fail "$(cat /tmp/told)"
node=$(readlink -f $disk)
grep -q "^data: $node" /tmp/told && [ "${node#/dev/nbd}" != "$node" ] || fail "$(cat /tmp/told)"
[ "$(blockdev --getsize64 $disk)" -eq 83886080 ] || fail "its size"
file_system $disk
write $disk
WEIR volume resize data 96MiB --data /tmp/device >/dev/null
for i in $(seq 100); do [ "$(blockdev --getsize64 $disk)" -eq 100663296 ] && break; sleep 0.1; done
[ "$(blockdev --getsize64 $disk)" -eq 100663296 ] || fail "it has not grown"

step "nbd, a server that is killed"
write $disk &
load=$!
sleep 2
kill_and_start 1
wait $load

step "nbd, its process is killed"
write $disk &
load=$!
sleep 2
killed
attach data --nbd --timeout 5s | grep -q "^data: $node" || fail "it does not go on"
kill_and_start 2
wait $load
if dmesg | grep -i 'I/O error.*nbd'; then fail "the disk has seen an error"; fi
WEIR detach $node
[ ! -e /sys/block/"${node#/dev/}"/pid ] || fail "it is still connected"
[ ! -L $disk ] || fail "its name is still there"
stop_and_check
"#;

#[test]
fn a_volume_is_a_disk_of_the_machine_whichever_end_is_killed() {
    let test = "volumes as disks of a guest, by ublk and by NBD";
    let tools = ["fio", "jq", "fstrim", "blkdiscard"];
    let Some(guest) = Guest::found_with(test, &tools, Some("ublk_drv")) else { return };
    guest.run_whole("attach", "ublk_drv nbd ext4", SCRIPT);
}

#[test]
fn a_kernel_without_the_driver_is_told_and_what_to_do() {
    if std::path::Path::new("/dev/ublk-control").exists() {
        crate::tools::skipped("a kernel without ublk", "this one has it");
        return;
    }
    let scratch = crate::scratch::Scratch::new("attachno");
    let server = crate::server::Server::start(&scratch, crate::server::SMALL);
    let data = scratch.file("data");
    let attach = |args: &[&str]| {
        let refused =
            weir(&[&["attach", "default", "--foreground", "--data", &data], args].concat());
        assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
        said(&refused)
    };
    let as_root = weir(&["attach", "--list"]);
    assert!(as_root.status.success(), "{}", said(&as_root));
    let said = attach(&["--name", "e2e-without-driver"]);
    assert!(said.contains("modprobe ublk_drv") || said.contains("as root"), "{said}");
    server.terminate();
}

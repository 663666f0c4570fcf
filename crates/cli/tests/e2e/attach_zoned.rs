//! Raw units as disks with zones of a machine, by the ublk driver in a guest where the server runs too: zones as `blkzone` sees
//! them, checked writes by zones, zonefs and f2fs, while either end is killed and comes back, and what is refused.
//!
//! The flash has zones of 4 MiB of which 3 MiB can be written. Steps aside like the other tests in a guest.

use crate::guest::Guest;

/// Runs in the guest. `WEIR` is the binary.
const SCRIPT: &str = r#"
fail() { echo "$1"; cat /tmp/serve.log /run/weir-attached/*.log; dmesg | tail -n 30; exit 30; }
config() { # keys of [raw], and the door for zones
    cat >/tmp/weir.toml <<CONFIG
[device]
path = "/tmp/device"
mode = "raw"
profile = "PROFILE"
channels = 2
dies_per_channel = 4
capacity = "384MiB"
[raw]
gang = 4
write = "page"
$1
[nbd]
unix = "/tmp/device/nbd.sock"
$2
CONFIG
}
nvme='[nvme]
tcp = "127.0.0.1:4420"
discovery = "none"'
start() {
    : >/tmp/serve.log
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
queue() { cat "/sys/block/$(basename "$(readlink -f "$1")")/queue/$2"; }
# Zones of a disk in a state that `blkzone` abbreviates so.
count() { blkzone report "$1" | grep -c "zcond:.*($2)" || true; }
state() { # what a zone of the second disk is to be
    blkzone report -o $(($1 * 8192)) -c 1 "$second" | grep -q "zcond:.*($2)" ||
        fail "$(blkzone report -o $(($1 * 8192)) -c 1 "$second"), not $2"
}
checked() { # fio, by zones
    fio --name=e2e --ioengine=libaio --direct=1 --zonemode=zbd --iodepth=8 --verify=crc32c --verify_fatal=1 \
        --randseed=11 --verify_state_save=0 --output-format=terse "$@" >/tmp/fio.log 2>&1 ||
        { cat /tmp/fio.log; fail "fio $*"; }
}
pid_of() { WEIR attach --list --json | jq -r ".[] | select(.name == \"$1\") | .pid"; }
killed() { # the process of a disk is, and the driver has seen it
    kill -9 "$(pid_of "$1")"
    for i in $(seq 300); do
        WEIR attach --list --json | jq -e ".[] | select(.name == \"$1\") | .served | not" >/dev/null && return
        sleep 0.1
    done
    fail "the process of $1 does not end"
}
no_errors() { if dmesg | grep -i 'i/o error\|zone.*error'; then fail "a disk has seen an error $1"; fi; }

step refused
config "" ""
start
refused "start it with --nvme" attach unit/0
kill $server
wait $server
config "" "$nvme"
start
refused "without --nbd" attach unit/0 --nbd
refused "no such unit" attach unit/7
refused "names no raw unit" WEIR attach nvme://127.0.0.1:4420/data
refused "refused" WEIR attach nvme://127.0.0.1:4429/unit/0

step attach
attach unit/0 >/tmp/told || fail "$(cat /tmp/told)"
grep -q '^unit/0: /dev/ublkb0' /tmp/told || fail "$(cat /tmp/told)"
first=/dev/disk/by-id/weir-unit\\x2f0
[ "$(readlink -f $first)" = /dev/ublkb0 ] || fail "$(ls -l /dev/disk/by-id)"
WEIR attach nvme://127.0.0.1:4420/unit/1 --name second --queues 2 --json | jq -e '.device == "/dev/ublkb1" and .served' >/dev/null
second=/dev/disk/by-id/weir-second
[ "$(queue $first zoned)" = host-managed ] || fail "$(queue $first zoned)"
[ "$(queue $first chunk_sectors)" -eq 8192 ] || fail "zones of $(queue $first chunk_sectors) sectors"
[ "$(queue $first logical_block_size)" -eq 4096 ] || fail "blocks of $(queue $first logical_block_size) bytes"
zones=$(queue $first nr_zones)
[ "$zones" -ge 32 ] || fail "$zones zones"
[ "$(blockdev --getsize64 $first)" -eq $((zones * 4194304)) ] || fail "its size"
blkzone report $first | head -n 1 | grep -q 'cap 0x001800' || fail "$(blkzone report $first | head -n 2)"
[ "$(count $first em)" -eq "$zones" ] || fail "not all zones are empty"
refused "is attached already" attach unit/0

step "states of a zone"
head -c 8192 /dev/urandom >/tmp/data
dd if=/tmp/data of=$second bs=4k count=2 oflag=direct status=none
state 0 oi
blkzone report -c 1 $second | grep -q 'wptr 0x000010' || fail "$(blkzone report -c 1 $second)"
{ cat /tmp/data; head -c 4096 /dev/zero; } | cmp -n 12288 - $second
if dd if=/tmp/data of=$second bs=4k seek=5 count=1 oflag=direct status=none 2>/dev/null; then fail "a write elsewhere"; fi
blkzone close -c 1 $second
state 0 cl
blkzone open -c 1 $second
state 0 oe
blkzone finish -c 1 $second
state 0 fu
cmp -n 8192 /tmp/data $second
blkzone reset -c 1 $second
state 0 em

step "checked writes"
dmesg -C
checked --filename=$first --rw=write --bs=64k --size=6m --do_verify=1
checked --filename=$first --rw=randwrite --bs=16k --size=6m --max_open_zones=4 --do_verify=1
blkzone reset $first
[ "$(count $first em)" -eq "$zones" ] || fail "a reset leaves zones"
no_errors "while nothing was killed"

step "its process is killed"
checked --filename=$first --rw=write --bs=64k --size=24m --do_verify=1 &
load=$!
for i in 1 2; do
    sleep 2
    killed unit/0
    attach unit/0 | grep -q '^unit/0: /dev/ublkb0' || fail "it does not go on"
done
wait $load
no_errors "when its process was killed"
blkzone report $first >/dev/null

step "the server is killed"
# Reads wait, and so does a write of a zone that is not open.
dd if=$first of=/tmp/before bs=1M count=12 iflag=direct status=none
for i in 1 2 3 4 5 6; do dd if=$first bs=256k count=48 iflag=direct status=none | cmp /tmp/before - || exit 1; done &
load=$!
sleep 1
kill -9 $server
wait $server || true
dd if=/tmp/data of=$second bs=4k count=2 oflag=direct status=none &
write=$!
sleep 2
kill -0 $write || fail "a write did not wait for its server"
: >/tmp/serve.log
start
wait $write || fail "a write that waited has failed"
wait $load || fail "reads that waited have failed, or read something else"
cmp -n 8192 /tmp/data $second
state 0 oi
no_errors "when the server was killed"
# A zone that was open when the server died takes no more.
kill_and_start 1
if dd if=/tmp/data of=$second bs=4k seek=2 count=1 oflag=direct status=none 2>/dev/null; then
    fail "a zone that was open goes on"
fi
state 0 fu
cmp -n 8192 /tmp/data $second
blkzone reset $second
dmesg -C

step zonefs
make_zonefs $second
# A file system wants its first zone full.
blkzone finish -c 1 $second
mkdir -p /tmp/zones /tmp/files
mount -t zonefs $second /tmp/zones
files=$(ls /tmp/zones/seq | wc -l)
[ "$files" -eq $((zones - 1)) ] || fail "$files files"
for file in 0 1 2; do zonefs $file --file_append=1 --do_verify=1; done
sync
[ "$(stat -c %s /tmp/zones/seq/2)" -eq 3145728 ] || fail "$(ls -l /tmp/zones/seq/2)"
truncate -s 0 /tmp/zones/seq/2
[ "$(stat -c %s /tmp/zones/seq/2)" -eq 0 ] || fail "$(ls -l /tmp/zones/seq/2)"
refused "is in use" WEIR detach second
umount /tmp/zones

step f2fs
blkzone reset $first
truncate -s 128M /tmp/conventional
conventional=$(losetup -b 4096 -f --show /tmp/conventional)
mkfs.f2fs -q -f -m -c "$(readlink -f $first)" "$conventional" >/tmp/said 2>&1 || fail "$(cat /tmp/said)"
mount -t f2fs "$conventional" /tmp/files || fail "f2fs is not mounted"
cp -r /usr/share/common-licenses /tmp/files/tree
load() {
    fio --name=f2fs --directory=/tmp/files --rw=randwrite --bs=16k --size=16m --verify=crc32c --verify_fatal=1 \
        --randseed=5 --verify_state_save=0 --end_fsync=1 --output-format=terse "$@" >/tmp/fio.log 2>&1 ||
        { cat /tmp/fio.log; fail "fio on f2fs $*"; }
}
load --do_verify=1 &
load=$!
sleep 2
killed unit/0
attach unit/0 >/dev/null
wait $load
sync
no_errors "below f2fs when its process was killed"
kill_and_start 1
# What was open when the server died takes no more writes: as after a power cut, the file system is mounted again.
umount /tmp/files || fail "f2fs is not unmounted"
mount -t f2fs "$conventional" /tmp/files || fail "f2fs is not mounted again"
diff -r /usr/share/common-licenses /tmp/files/tree || fail "f2fs has lost files that were synced"
load --verify_only=1
umount /tmp/files

step "read only, and detached"
WEIR detach unit/0
WEIR detach second
[ -z "$(ls /dev/ublkb* /run/weir-attached/*.json /run/weir-attached/*.appends 2>/dev/null)" ] || fail "something is left"
attach unit/0 --read-only
[ "$(blockdev --getro $first)" -eq 1 ] || fail "it may be written"
if blkzone reset $first 2>/dev/null; then fail "a zone is reset"; fi
WEIR detach --all

step limits
kill $server
wait $server
config "zones_open_max = 2
zones_active_max = 3" "$nvme"
start
attach unit/1 >/dev/null
second=/dev/disk/by-id/weir-unit\\x2f1
[ "$(queue $second max_open_zones)/$(queue $second max_active_zones)" = 2/3 ] || fail "limits of zones"
blkzone reset $second
for zone in 0 1; do blkzone open -o $((zone * 8192)) -c 1 $second; done
refused . blkzone open -o $((2 * 8192)) -c 1 $second
WEIR detach --all
kill $server
wait $server
WEIR check --data /tmp/device >/tmp/check.log 2>&1 || { cat /tmp/check.log; exit 31; }

step "a server of block volumes, and hosts that authenticate"
me=$(cat /etc/nvme/hostnqn 2>/dev/null || sed -E 's/(.{8})(.{4})(.{4})(.{4})/nqn.2014-08.org.nvmexpress:uuid:\1-\2-\3-\4-/' /etc/machine-id)
cat >/tmp/weir.toml <<CONFIG
[device]
path = "/tmp/blocks"
profile = "instant"
capacity = "64MiB"
[nbd]
unix = "/tmp/nbd.sock"
$nvme
CONFIG
start
refused "block volume" WEIR attach nvme://127.0.0.1:4420/unit/0
kill $server
wait $server
(umask 077 && echo "$me $(nvme gen-dhchap-key --hmac=1 --nqn="$me" | grep ^DHHC-1)" >/tmp/keys)
echo 'keys_file = "/tmp/keys"' >>/tmp/weir.toml
start
refused "have to authenticate" WEIR attach nvme://127.0.0.1:4420/unit/0
kill $server
wait $server
"#;

#[test]
fn a_raw_unit_is_a_disk_with_zones_whichever_end_is_killed() {
    let test = "raw units as disks with zones of a guest";
    let tools = ["fio", "jq", "blkzone", "mkfs.f2fs", "losetup", "nvme"];
    let Some(guest) = Guest::found_with(test, &tools, Some("ublk_drv")) else { return };
    // Raw blocks of four times 192 pages: 3 MiB.
    let profile = include_str!("../../../nand/profiles/instant.toml")
        .replace("name = \"instant\"", "name = \"zones\"")
        .replace("pages_per_block = 256", "pages_per_block = 192");
    let written = SCRIPT.replace("\"PROFILE\"", "\"/tmp/zones.toml\"");
    let script = format!("cat >/tmp/zones.toml <<'PROFILE'\n{profile}\nPROFILE\n{written}");
    guest.run_whole("attach-zoned", "ublk_drv f2fs zonefs loop", &script);
}

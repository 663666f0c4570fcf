//! Raw units as zoned namespaces over NVMe/TCP, by Linux's own initiator in a guest: zones as `nvme` and `blkzone`
//! see them, zonefs, f2fs, checked writes by zones, limits, and a server that is killed and comes back.
//!
//! The flash has zones of 4 MiB of which 3 MiB can be written. Steps aside like the other tests in a guest.

use crate::guest::Guest;

/// Runs in the guest. `WEIR` is the binary.
const SCRIPT: &str = r#"
host="--hostnqn=nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555 \
    --hostid=11111111-2222-3333-4444-555555555555"
nqn=nqn.2026-01.org.example:weir
config() { # keys of [raw]
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
[nvme]
tcp = "127.0.0.1:4420"
discovery = "none"
nqn = "$nqn"
[nbd]
unix = "/tmp/nbd.sock"
CONFIG
}
start() {
    : >/tmp/serve.log
    WEIR serve --config /tmp/weir.toml --http 127.0.0.1:7790 --control /tmp/control.sock >>/tmp/serve.log 2>&1 &
    server=$!
    for i in $(seq 300); do grep -q ^ready /tmp/serve.log && return; sleep 0.1; done
    fail "the server does not start"
}
connected() { # so many namespaces
    for i in $(seq 100); do [ "$(ls -d /dev/nvme0n* 2>/dev/null | wc -l)" -eq "$1" ] && return; sleep 0.1; done
    fail "$(ls -d /dev/nvme0n*) are there, not $1"
}
connect() {
    nvme connect -t tcp -a 127.0.0.1 -s 4420 -n $nqn $host --nr-io-queues=2
    connected 2
    first=$(disk 1)
    second=$(disk 2)
    # As udev's rules do where there is udev: writes of a zone in their order, one at a time.
    for path in /sys/block/nvme0c*n*; do echo mq-deadline >"$path/queue/scheduler"; done
}
disk() { readlink -f "$(dirname "$(grep -lx "$1" /sys/block/nvme0n*/nsid)")" | sed 's/.*\//\/dev\//'; }
queue() { cat "/sys/block/${first##*/}/queue/$1"; }
# Zones of a disk in a state that `blkzone` abbreviates so.
count() { blkzone report "$1" | grep -c "zcond:.*($2)" || true; }
refused() {
    if "$@" >/tmp/said 2>&1; then fail "not refused: $*"; fi
}
checked() { # fio, by zones
    fio --name=e2e --ioengine=libaio --direct=1 --zonemode=zbd --iodepth=8 --verify=crc32c --verify_fatal=1 \
        --randseed=11 --verify_state_save=0 --output-format=terse "$@" >/tmp/fio.log 2>&1 ||
        { cat /tmp/fio.log; fail "fio $*"; }
}

config 'write = "block"'
sed -i '/write = "page"/d' /tmp/weir.toml
if WEIR serve --config /tmp/weir.toml >/tmp/said 2>&1; then fail "zones of whole raw blocks"; fi
grep -q 'write = "page"' /tmp/said || fail "$(cat /tmp/said)"
rm -rf /tmp/device

step connect
config ""
start
connect
[ "$(queue zoned)" = host-managed ] || fail "$(queue zoned)"
[ "$(queue chunk_sectors)" -eq 8192 ] || fail "zones of $(queue chunk_sectors) sectors"
[ "$(queue logical_block_size)" -eq 4096 ] || fail "blocks of $(queue logical_block_size) bytes"
blkzone report "$first" | head -n 1 | grep -q 'cap 0x001800' || fail "$(blkzone report "$first" | head -n 2)"
[ "$(count "$first" em)" -eq "$(queue nr_zones)" ] || fail "not all zones are empty"
nvme zns list >/dev/null
nvme zns id-ctrl /dev/nvme0 >/dev/null
nvme zns id-ns "$first" | grep -q 'zsze:0x400' || fail "$(nvme zns id-ns "$first")"
nvme zns report-zones "$first" -d 2 >/dev/null

step "states of a zone"
head -c 8192 /dev/urandom >/tmp/data
state() { # what the first zone of the second disk is to be
    [ "$(blkzone report -c 1 "$second" | grep -c "zcond:.*($1)")" -eq 1 ] || fail "$(blkzone report -c 1 "$second"), not $1"
}
nvme zns zone-append "$second" -s 0 -z 4096 -d /tmp/data >/dev/null
nvme zns zone-append "$second" -s 0 -z 4096 -d /tmp/data | grep -q 'LBA 1' || fail "an append tells no place"
state oi
blkzone report -c 1 "$second" | grep -q 'wptr 0x000010' || fail "$(blkzone report -c 1 "$second")"
nvme read "$second" -s 1 -c 1 -z 8192 -d /tmp/read >/dev/null
{ head -c 4096 /tmp/data; head -c 4096 /dev/zero; } | cmp - /tmp/read
refused nvme write "$second" -s 5 -c 0 -z 4096 -d /tmp/data
grep -qi 'zone invalid write\|ZONE_INVALID_WRITE' /tmp/said || fail "$(cat /tmp/said)"
nvme zns close-zone "$second" -s 0 >/dev/null
state cl
nvme zns open-zone "$second" -s 0 >/dev/null
state oe
nvme zns finish-zone "$second" -s 0 >/dev/null
state fu
refused nvme zns zone-append "$second" -s 0 -z 4096 -d /tmp/data
grep -qi 'zone is full\|ZONE_IS_FULL\|zone_full' /tmp/said || fail "$(cat /tmp/said)"
nvme flush "$second" >/dev/null
blkzone reset -c 1 "$second"
state em

step "checked writes"
dmesg -C
checked --filename="$first" --rw=write --bs=64k --size=8m --do_verify=1
checked --filename="$first" --rw=randwrite --bs=16k --size=8m --max_open_zones=4 --do_verify=1
blkzone reset "$first"
[ "$(count "$first" em)" -eq "$(queue nr_zones)" ] || fail "a reset leaves zones"

step zonefs
make_zonefs "$second"
mkdir -p /tmp/zones /tmp/files
mount -t zonefs "$second" /tmp/zones
files=$(ls /tmp/zones/seq | wc -l)
[ "$files" -eq $(($(queue nr_zones) - 1)) ] || fail "$files files"
[ "$(stat -c %b /tmp/zones/seq/0)" -ge 0 ]
for file in 0 1 2; do zonefs $file --file_append=1 --do_verify=1; done
sync
[ "$(stat -c %s /tmp/zones/seq/2)" -eq 3145728 ] || fail "$(ls -l /tmp/zones/seq/2)"
truncate -s 0 /tmp/zones/seq/2
[ "$(stat -c %s /tmp/zones/seq/2)" -eq 0 ] || fail "$(ls -l /tmp/zones/seq/2)"

step f2fs
truncate -s 128M /tmp/conventional
conventional=$(losetup -b 4096 -f --show /tmp/conventional)
mkfs.f2fs -q -f -m -c "$first" "$conventional" >/tmp/said 2>&1 || fail "$(cat /tmp/said)"
mount -t f2fs "$conventional" /tmp/files || fail "f2fs is not mounted"
cp -r /usr/share/common-licenses /tmp/files/tree
fio --name=f2fs --directory=/tmp/files --rw=randwrite --bs=16k --size=24m --io_size=32m --verify=crc32c \
    --verify_fatal=1 --randseed=5 --verify_state_save=0 --end_fsync=1 --do_verify=1 --output-format=terse \
    >/tmp/fio.log 2>&1 || { cat /tmp/fio.log; fail "fio on f2fs"; }
sync
if dmesg | grep -i 'nvme.*error\|i/o error'; then fail "the kernel was refused something"; fi

step kill
zonefs 3 --file_append=1 --do_verify=1 &
load=$!
sleep 1
kill_and_start 1
wait $load || true
# Reports of zones, which a mount wants, are not tried again while the host connects.
for try in $(seq 600); do
    grep -q live /sys/class/nvme/nvme*/state && break
    sleep 0.1
done
# What was open when the server died takes no more writes: as after a power cut, the file system is mounted again.
umount /tmp/files || fail "f2fs is not unmounted"
mount -t f2fs "$conventional" /tmp/files || fail "f2fs is not mounted again"
diff -r /usr/share/common-licenses /tmp/files/tree || fail "f2fs has lost files that were synced"
fio --name=f2fs --directory=/tmp/files --rw=randwrite --bs=16k --size=24m --io_size=32m --verify=crc32c \
    --verify_fatal=1 --randseed=5 --verify_state_save=0 --verify_only=1 --output-format=terse \
    >/tmp/fio.log 2>&1 || { cat /tmp/fio.log; fail "f2fs has lost data that was synced"; }
cp -r /usr/share/common-licenses /tmp/files/again
sync
umount /tmp/files
umount /tmp/zones
mount -t zonefs "$second" /tmp/zones
for file in 0 1; do zonefs $file --verify_only=1; done
umount /tmp/zones
nvme disconnect -n $nqn >/dev/null

step limits
kill $server
wait $server
config "zones_open_max = 2
zones_active_max = 3"
start
connect
# Linux tells them of the path, not of the disk that has several.
limit() { cat /sys/block/nvme0c*n1/queue/max_$1_zones; }
[ "$(limit open)/$(limit active)" = 2/3 ] || fail "$(limit open) and $(limit active) zones"
blkzone reset "$second"
open() { nvme zns open-zone "$second" -s $(($1 * 1024)); }
open 0 >/dev/null
open 1 >/dev/null
refused open 2
grep -qi 'too many open\|TOO_MANY_OPEN' /tmp/said || fail "$(cat /tmp/said)"
for zone in 0 1; do nvme zns close-zone "$second" -s $((zone * 1024)) >/dev/null; done
open 2 >/dev/null
refused open 3
grep -qi 'too many active\|TOO_MANY_ACTIVE' /tmp/said || fail "$(cat /tmp/said)"
nvme disconnect -n $nqn >/dev/null
stop_and_check
"#;

#[test]
fn linux_writes_raw_units_as_zones_with_zonefs_and_f2fs_and_keeps_what_it_synced() {
    let test = "zoned namespaces in a guest";
    let tools = ["fio", "nvme", "blkzone", "mkfs.f2fs", "losetup"];
    let Some(guest) = Guest::found(test, &tools) else { return };
    // Raw blocks of four times 192 pages: 3 MiB.
    let profile = include_str!("../../../nand/profiles/instant.toml")
        .replace("name = \"instant\"", "name = \"zones\"")
        .replace("pages_per_block = 256", "pages_per_block = 192");
    let written = SCRIPT.replace("\"PROFILE\"", "\"/tmp/zones.toml\"");
    let script = format!("cat >/tmp/zones.toml <<'PROFILE'\n{profile}\nPROFILE\n{written}");
    guest.run_whole("nvme-zones", "nvme-tcp f2fs zonefs loop", &script);
}

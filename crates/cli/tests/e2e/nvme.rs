//! Linux's own initiator over NVMe/TCP, in a guest where the server runs too: discovery, file systems, checked
//! writes with and without digests, the commands of `nvme-cli`, a volume whose limit keeps it waiting, two paths of which one ends, and a server that is
//! killed under load and comes back.
//!
//! Steps aside like the other tests in a guest.

use crate::guest::Guest;

/// Runs in the guest. `WEIR` is the binary.
const SCRIPT: &str = r#"
me=nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555
host="--hostnqn=$me --hostid=11111111-2222-3333-4444-555555555555"
nqn=nqn.2026-01.org.example:weir
cat >/tmp/weir.toml <<CONFIG
[device]
path = "/tmp/device"
profile = "instant"
shards = 2
capacity = "160MiB"
[[volume]]
name = "first"
size = "64MiB"
streams = "hint:handles=4"
[[volume]]
name = "hidden"
size = "4MiB"
nvme_hosts = ["nqn.2026-01.org.example:another"]
[[volume]]
name = "third"
size = "64MiB"
nvme_hosts = ["$me"]
[nvme]
tcp = "0.0.0.0:4420"
tcp_plain = true
discovery = "127.0.0.1:8009"
nqn = "$nqn"
[nbd]
unix = "/tmp/nbd.sock"
CONFIG
start() {
    WEIR serve --config /tmp/weir.toml --http 127.0.0.1:7790 --control /tmp/control.sock >>/tmp/serve.log 2>&1 &
    server=$!
    for i in $(seq 300); do grep -q ^ready /tmp/serve.log && return; sleep 0.1; done
    fail "the server does not start"
}
connected() { # namespaces that the head of the first controller has
    for i in $(seq 100); do [ "$(ls -d /dev/nvme0n* 2>/dev/null | wc -l)" -eq "$1" ] && return; sleep 0.1; done
    fail "$(ls -d /dev/nvme0n*) are there, not $1"
}
# Of a namespace by its number, whatever the kernel calls it.
disk() { readlink -f "$(dirname "$(grep -lx "$1" /sys/block/nvme0n*/nsid)")" | sed 's/.*\//\/dev\//'; }
write() { # which, and how
    disk=$1
    shift
    fio --name=e2e --ioengine=libaio --direct=1 --filename="$disk" --rw=randwrite --bsrange=4k-256k --size=32m \
        --iodepth=16 --verify=crc32c --verify_fatal=1 --randseed=11 --verify_state_save=0 \
        --output-format=terse "$@" >/tmp/fio.log 2>&1 || { cat /tmp/fio.log; fail "fio $disk $*"; }
}
field() { nvme smart-log /dev/nvme0 -o json | jq -r ".$1"; }

start
step discover
nvme discover -t tcp -a 127.0.0.1 -s 8009 $host | grep -q "subnqn: *$nqn" || fail "nothing is discovered"
if nvme connect -t tcp -a 127.0.0.1 -s 4420 -n $nqn.other $host 2>/dev/null; then fail "another name is let in"; fi

for digests in "" "--hdr-digest --data-digest"; do
    step "connect $digests"
    nvme connect -t tcp -a 127.0.0.1 -s 4420 -n $nqn $host --nr-io-queues=2 $digests
    connected 2
    for number in 1 3; do
        disk=$(disk $number)
        mkfs.ext4 -q -F "$disk"
        mkdir -p /tmp/mounted
        mount "$disk" /tmp/mounted
        cp -r /usr/share/common-licenses /tmp/mounted/tree
        rm -r /tmp/mounted/lost+found
        [ "$(fstrim -v /tmp/mounted | sed 's/.*(\([0-9]*\) bytes.*/\1/')" -gt 1000000 ] || fail "no trim"
        umount /tmp/mounted
        fsck.ext4 -f -n "$disk" >/dev/null 2>&1 || fail "fsck"
        mount -o ro "$disk" /tmp/mounted
        diff -r /usr/share/common-licenses /tmp/mounted/tree
        umount /tmp/mounted
        write "$disk" --do_verify=1 --end_fsync=1
    done
    if dmesg | grep -i 'nvme.*error'; then fail "the kernel was refused something"; fi
    nvme disconnect -n $nqn >/dev/null
done

step commands
nvme connect -t tcp -a 127.0.0.1 -s 4420 -n $nqn $host --nr-io-queues=2
connected 2
disk=$(disk 1)
head -c 4096 /dev/urandom >/tmp/block
nvme write "$disk" -s 5 -c 0 -z 4096 -d /tmp/block >/dev/null
nvme compare "$disk" -s 5 -c 0 -z 4096 -d /tmp/block >/dev/null
if nvme compare "$disk" -s 6 -c 0 -z 4096 -d /tmp/block >/dev/null 2>&1; then fail "unlike blocks compare"; fi
nvme verify "$disk" -s 5 -c 0 >/dev/null
nvme read "$disk" -s 5 -c 0 -z 4096 -d /tmp/read >/dev/null
cmp /tmp/block /tmp/read
nvme write-zeroes "$disk" -s 5 -c 0 >/dev/null
nvme read "$disk" -s 5 -c 0 -z 4096 -d /tmp/read >/dev/null
cmp -n 4096 /dev/zero /tmp/read
nvme dsm "$disk" -n 1 -a 2,2 -b 4,4 -s 8,16 -d >/dev/null
nvme flush "$disk" >/dev/null
nvme ns-descs /dev/nvme0 -n 1 >/dev/null
for log in error-log fw-log effects-log ana-log; do nvme $log /dev/nvme0 >/dev/null || fail $log; done
sleep 2
[ "$(field data_units_written)" -gt 100 ] || fail "$(nvme smart-log /dev/nvme0)"
[ "$(field host_read_commands)" -gt 100 ] || fail "$(nvme smart-log /dev/nvme0)"
[ "$(field media_errors)" -eq 0 ] || fail "$(nvme smart-log /dev/nvme0)"

step placement
placed() { # bytes that a handle of the first volume has
    WEIR status --data /tmp/device --json | jq "[.shards[].streams[0].bytes_host[$1]] | add"
}
nvme fdp configs /dev/nvme0 -e 1 | grep -q 'Number of Reclaim Unit Handles: 6' || fail "$(nvme fdp configs /dev/nvme0 -e 1)"
nvme fdp usage /dev/nvme0 -e 1 >/dev/null || fail usage
nvme fdp status "$disk" | grep -c 'Placement Identifier' | grep -qx 4 || fail "$(nvme fdp status "$disk")"
before=$(placed 3)
head -c 65536 /dev/urandom >/tmp/blocks
nvme write "$disk" -s 1024 -c 15 -z 65536 -d /tmp/blocks -T 2 -S 3 >/dev/null
nvme flush "$disk" >/dev/null
[ "$(placed 3)" -ge $((before + 65536)) ] || fail "handle 3 has $(placed 3) bytes"
nvme write "$disk" -s 1040 -c 15 -z 65536 -d /tmp/blocks -T 2 -S 4 >/dev/null
nvme fdp events /dev/nvme0 -e 1 -E | grep -qi 'invalid placement' || fail "$(nvme fdp events /dev/nvme0 -e 1 -E)"
sleep 2
nvme fdp stats /dev/nvme0 -e 1 -o json >/tmp/stats
nvme fdp stats /dev/nvme0 -e 1 | grep -q 'Media Bytes' || fail "$(cat /tmp/stats)"

step volumes
weir_volume() { WEIR volume "$@" --control /tmp/control.sock >/dev/null || fail "weir volume $*"; }
until_shown() { # number and sectors of a namespace, or none
    for i in $(seq 100); do
        if [ "$2" = none ]; then
            grep -qlx "$1" /sys/block/nvme0n*/nsid || return 0
        elif shown=$(grep -lx "$1" /sys/block/nvme0n*/nsid); then
            [ "$(cat "$(dirname "$shown")/size")" -eq "$2" ] && return 0
        fi
        sleep 0.1
    done
    fail "namespace $1 is not as wanted: $2; $(grep . /sys/block/nvme0n*/nsid /sys/block/nvme0n*/size)"
}
write "$disk" --do_verify=1 --end_fsync=1 &
load=$!
weir_volume create fourth --size 16MiB
until_shown 4 32768
fourth=$(disk 4)
head -c 1048576 /dev/urandom >/tmp/blocks
dd if=/tmp/blocks of="$fourth" bs=1M oflag=direct status=none
weir_volume resize fourth 24MiB
until_shown 4 49152
cmp -n 1048576 "$fourth" /tmp/blocks || fail "a volume that grew has other data"
weir_volume resize fourth 8MiB --shrink
until_shown 4 16384
cmp -n 1048576 "$fourth" /tmp/blocks || fail "a volume that shrank has other data"
if nvme read "$fourth" -s 2048 -c 0 -z 4096 -d /tmp/read >/dev/null 2>&1; then fail "it reads beyond the end"; fi
weir_volume delete fourth
until_shown 4 none
weir_volume create again --size 16MiB
until_shown 5 32768
cmp -n 16777216 /dev/zero "$(disk 5)" || fail "a new volume has old data"
weir_volume delete again
until_shown 5 none
wait $load

step snapshots
third=$(disk 3)
dd if=/tmp/blocks of="$third" bs=1M oflag=direct status=none
weir_volume snapshot third monday
weir_volume snapshot hidden monday
until_shown 6 131072
monday=$(disk 6)
[ "$(blockdev --getro "$monday")" -eq 1 ] || fail "a snapshot may be written"
dd if=/dev/zero of="$third" bs=1M count=1 oflag=direct status=none
cmp -n 1048576 "$monday" /tmp/blocks || fail "a snapshot is not what its volume was"
cmp -n 1048576 "$third" /dev/zero || fail "a volume is not what was written"
if nvme write "$monday" -s 5 -c 0 -z 4096 -d /tmp/block >/dev/null 2>&1; then fail "a snapshot is written"; fi
cmp -n 1048576 "$monday" /tmp/blocks || fail "a snapshot has changed"
[ "$(ls -d /dev/nvme0n* | wc -l)" -eq 3 ] || fail "a snapshot of a hidden volume is shown: $(ls /dev/nvme0n*)"
weir_volume delete third@monday
until_shown 6 none

step limits
# More is asked of the third than its limit lets in within the 30 s that Linux gives a command.
weir_volume limit third --iops 2
limited=$(disk 3)
fio --name=limited --ioengine=libaio --direct=1 --filename="$limited" --rw=randwrite --bs=16k --size=32m --io_size=2m \
    --iodepth=100 --output-format=terse >/tmp/limited.log 2>&1 &
load=$!
while kill -0 $load 2>/dev/null; do
    timeout 25 dd if="$disk" of=/dev/null bs=4k count=1 iflag=direct status=none || fail "another volume stalls"
    sleep 1
done
wait $load || { cat /tmp/limited.log; fail "a limited volume fails"; }
[ "$(WEIR status --data /tmp/device --json | jq '[.shards[].requests_put_off] | add')" -gt 0 ] || fail "nothing was put off"
if dmesg | grep -i 'nvme.*\(timeout\|reset\|error\)'; then fail "a limit makes the host reset its controller"; fi
weir_volume limit third

step "two paths"
nvme connect -t tcp -a 127.0.0.2 -s 4420 -n $nqn $host --nr-io-queues=2
[ "$(cat /sys/class/nvme/nvme*/state | grep -c live)" -eq 2 ] || fail "$(nvme list-subsys)"
write "$disk" --do_verify=1 --end_fsync=1 &
load=$!
sleep 1
nvme disconnect -d nvme1
wait $load

step kill
write "$disk" --do_verify=1 --end_fsync=1 &
load=$!
sleep 1
kill_and_start 1
wait $load
nvme disconnect -n $nqn >/dev/null
stop_and_check
"#;

#[test]
fn linuxs_initiator_keeps_its_data_over_nvme() {
    let test = "Linux's NVMe initiator in a guest";
    let tools = ["fio", "nvme", "jq", "fstrim"];
    let Some(guest) = Guest::found(test, &tools) else { return };
    guest.run_whole("nvme", "nvme-tcp ext4", SCRIPT);
}

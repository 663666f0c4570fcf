//! A zoned disk below, which needs a kernel that has some: a guest with zones in memory (null_blk), of
//! which 14 may be open at a time. The server and its clients run in the guest; it is killed, checked and
//! started again, with the zoned disk alone and behind a fast tier, which is taken away in the end.
//!
//! Steps aside like the other test in a guest.

use crate::guest::Guest;

/// Runs in the guest. `WEIR` is the binary.
const SCRIPT: &str = r#"
mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
busybox ip link set lo up
disk() { # name, MiB, and for a zoned one MiB of its zones, and of these what can be written
    folder=/sys/kernel/config/nullb/$1
    mkdir $folder
    echo 4096 >$folder/blocksize
    echo $2 >$folder/size
    echo 1 >$folder/memory_backed
    if [ $# -gt 2 ]; then
        echo 1 >$folder/zoned
        echo $3 >$folder/zone_size
        echo $4 >$folder/zone_capacity
        echo 2 >$folder/zone_nr_conv
        echo 14 >$folder/zone_max_active
        echo 14 >$folder/zone_max_open
    fi
    echo 1 >$folder/power
}
refused() { # words that the refusal has, then what is refused
    words=$1
    shift
    if said=$("$@" 2>&1); then echo "not refused: $*"; exit 21; fi
    case $said in *"$words"*) ;; *) echo "refused otherwise: $said"; exit 22 ;; esac
}
start() {
    rm -f /tmp/nbd.sock
    WEIR serve --config /tmp/weir.toml --http 127.0.0.1:7790 --control /tmp/control.sock >/tmp/serve.log 2>&1 &
    server=$!
    for i in $(seq 300); do [ -S /tmp/nbd.sock ] && return; sleep 0.1; done
    cat /tmp/serve.log
    exit 23
}
stop() { kill $server; wait $server; }
write() {
    fio --name=e2e --ioengine=nbd --uri='nbd+unix:///default?socket=/tmp/nbd.sock' --rw=randwrite \
        --bs=16k --size=48m --io_size=112m --iodepth=8 --verify=crc32c --verify_fatal=1 --randseed=11 \
        --verify_state_save=0 --output-format=terse "$@" >/tmp/fio.log 2>&1 ||
        { cat /tmp/fio.log /tmp/serve.log; exit 24; }
}
# Zones in a state that `blkzone` abbreviates so.
count() { blkzone report /dev/zoned | grep -c "zcond:.*($1)" || true; }
checked() { # how the last shutdown was
    WEIR check --data /dev/zoned >/tmp/check.log 2>&1 || { cat /tmp/check.log; exit 25; }
    grep -q "last shutdown $1" /tmp/check.log || { cat /tmp/check.log; exit 26; }
}

disk zoned 384 4 3
disk other 64 4 4
disk fast 192
printf '[device]\nkind = "file"\npath = "/dev/zoned"\n[nbd]\nunix = "/tmp/nbd.sock"\n' >/tmp/weir.toml

dd if=/dev/zero of=/dev/other bs=64k count=1 seek=128 oflag=direct 2>/dev/null
refused 'zones that are written' WEIR format --data /dev/other --capacity 16MiB
refused 'is zoned' WEIR format --data /dev/fast --capacity 64MiB --fast /dev/other
refused 'zones to use' WEIR format --data /dev/zoned --capacity 600MiB

step format
WEIR format --data /dev/zoned --capacity 64MiB >/dev/null
refused 'there is a device here' WEIR format --data /dev/zoned --capacity 64MiB
step write
start
write --do_verify=1 --end_fsync=1
[ "$(count oi)" -le 14 ] || { echo "$(count oi) zones are open"; exit 27; }
[ "$(count fu)" -ge 16 ] || { echo "$(count fu) zones are full"; exit 28; }
step kill
kill -9 $server
wait $server || true
checked dirty
start
write --verify_only=1
step stop
stop
checked clean

step "behind a fast tier"
WEIR format --force --data /dev/zoned --capacity 64MiB --fast /dev/fast >/dev/null
start
write --do_verify=1 --end_fsync=1
step "kill behind a fast tier"
kill -9 $server
wait $server || true
start
write --verify_only=1
step detach
WEIR ctl fast detach --control /tmp/control.sock
write --verify_only=1
step "last stop"
stop
checked clean
"#;

#[test]
fn a_zoned_disk_is_served_killed_checked_and_put_behind_a_fast_tier() {
    let test = "a zoned disk in a guest";
    let Some(guest) = Guest::found(test, &["fio", "blkzone", "mountpoint"]) else { return };
    guest.run_whole("zoned", "configfs null_blk", SCRIPT);
}

//! Writes that are to be whole or not there at all: after a `kill -9` in the middle of them, for those that read meanwhile, and
//! as Linux is told of them over NVMe.

use crate::guest::Guest;
use crate::nbd::Client;
use crate::scratch::Scratch;
use crate::server::Server;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const BLOCK: usize = 4096;
const UNIT: usize = 64 << 10;
const UNITS: u64 = 96;

/// Writes units of the volume that are each of one number, until there is an error.
fn write(mut client: Client, writer: u64) {
    for count in 1u64.. {
        let mut block = vec![0; BLOCK];
        block[..8].copy_from_slice(&count.to_le_bytes());
        block[8..16].copy_from_slice(&writer.to_le_bytes());
        let at = (count * 7 + writer * 31) % UNITS;
        if client.try_write(at * UNIT as u64, &block.repeat(UNIT / BLOCK)).is_err() {
            return;
        }
    }
}

/// Each unit is of one number. Returns how many hold something.
fn check(client: &mut Client, when: &str) -> usize {
    let mut written = 0;
    for unit in 0..UNITS {
        let data = client.read(unit * UNIT as u64, UNIT as u32);
        let first = &data[..16];
        let is_whole = data.chunks_exact(BLOCK).all(|block| block[..16] == *first);
        assert!(is_whole, "{when}: unit {unit} has parts of two writes");
        written += usize::from(first.iter().any(|&byte| byte > 0));
    }
    written
}

#[test]
fn atomic_writes_are_whole_or_not_there_after_a_kill_and_for_readers() {
    let scratch = Scratch::new("atomic");
    let text = "[device]\nprofile = \"tlc\"\nshards = 2\ncapacity = \"64MiB\"\n[[volume]]\nname = \"data\"\n\
                size = \"8MiB\"\natomic_writes = \"64KiB\"\n";
    let path = scratch.file("weir.toml");
    fs::write(&path, text).expect("a config");
    let mut server = Server::start(&scratch, &["--config", &path]);
    let mut written = 0;
    for kill in 0..6 {
        let over = AtomicBool::new(false);
        let clients: Vec<Client> = (0..4).map(|_| server.connect_to("data")).collect();
        let mut reader = server.connect_to("data");
        std::thread::scope(|scope| {
            for (writer, client) in (1..).zip(clients) {
                scope.spawn(move || {
                    // The server goes in the middle of what it does.
                    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                        write(client, writer)
                    }))
                    .ok();
                });
            }
            let over = &over;
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(400 + 30 * kill));
                over.store(true, Ordering::Release);
            });
            while !over.load(Ordering::Acquire) {
                check(&mut reader, "while it is written");
            }
            server.kill();
        });
        server = Server::start(&scratch, &["--config", &path]);
        written = check(&mut server.connect_to("data"), &format!("after kill {kill}"));
    }
    assert!(written > UNITS as usize / 2, "hardly a unit was ever written: {written}");
    server.terminate();
}

const SERVED: &str = r#"
me=nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555
cat >/tmp/weir.toml <<CONFIG
[device]
path = "/tmp/device"
profile = "instant"
shards = 2
capacity = "96MiB"
[[volume]]
name = "plain"
size = "32MiB"
[[volume]]
name = "pages"
size = "32MiB"
atomic_writes = "64KiB"
[nvme]
tcp = "0.0.0.0:4420"
tcp_plain = true
nqn = "nqn.2026-01.org.example:weir"
CONFIG
WEIR serve --config /tmp/weir.toml --control /tmp/control.sock >>/tmp/serve.log 2>&1 &
for i in $(seq 300); do grep -q ^ready /tmp/serve.log && break; sleep 0.1; done
nvme connect -t tcp -a 127.0.0.1 -s 4420 -n nqn.2026-01.org.example:weir --hostnqn=$me \
    --hostid=11111111-2222-3333-4444-555555555555
for i in $(seq 100); do [ -e /sys/block/nvme0n1/queue ] && [ -e /sys/block/nvme0n2/queue ] && break; sleep 0.1; done
"#;

const TOLD: &str = r#"
# Of the path: Linux 6.12 does not pass it on to the node that stands for all paths. They have their names in the order in
# which they were found, so they are told apart by their number at the server.
told() {
    for disk in /sys/block/nvme0c*n*; do
        [ "$(cat $disk/nsid)" = $1 ] && cat $disk/queue/atomic_write_$2_bytes && return
    done
    echo "what namespace $1 does not tell"
}
[ "$(told 2 unit_max)" = 65536 ] || fail "Linux takes writes of $(told 2 unit_max) bytes for atomic"
[ "$(told 2 boundary)" = 1048576 ] || fail "with borders every $(told 2 boundary)"
[ "$(told 1 unit_max)" = 4096 ] || fail "a plain volume has atomic writes of $(told 1 unit_max)"
fio --name=pages --ioengine=libaio --direct=1 --filename=/dev/nvme0n2 --rw=randwrite --bsrange=4k-256k --size=32m \
    --iodepth=16 --verify=crc32c --verify_fatal=1 --do_verify=1 --output-format=terse >/tmp/fio.log 2>&1 ||
    { cat /tmp/fio.log; fail fio; }
nvme disconnect -n nqn.2026-01.org.example:weir >/dev/null
"#;

#[test]
fn linux_is_told_over_nvme_which_writes_are_atomic() {
    let test = "Linux's atomic writes in a guest";
    // The newer kernel, which is the one that has ublk's driver: Linux knows atomic writes from 6.11 on.
    let found = Guest::found_with(test, &["fio", "nvme"], Some("ublk_drv"));
    let Some(guest) = found else { return };
    guest.run_whole("atomicnvme", "nvme-tcp", &[SERVED, TOLD].concat());
}

/// Without Linux's own multipath, whose node does not take them in 6.12.
const WRITTEN: &str = r#"
cat >/tmp/atomic.py <<PROGRAM
import errno, mmap, os
RWF_ATOMIC = 0x40
memory = mmap.mmap(-1, 1 << 17)
def write(disk, byte, length, at):
    memory[:length] = bytes([byte]) * length
    file = os.open(disk, os.O_RDWR | os.O_DIRECT)
    try:
        os.pwritev(file, [memoryview(memory)[:length]], at, RWF_ATOMIC)
        os.preadv(file, [memoryview(memory)[:length]], at)
        return 0 if memory[:length] == bytes([byte]) * length else -1
    except OSError as error:
        return error.errno
    finally:
        os.close(file)
# By their number at the server, as above.
disks = {open(f"/sys/block/{name}/nsid").read().strip(): f"/dev/{name}" for name in ("nvme0n1", "nvme0n2")}
plain, pages = disks["1"], disks["2"]
taken = [(pages, 1 << 16, 1 << 16), (pages, 1 << 14, 3 << 14), (pages, 4096, 4096), (plain, 4096, 0)]
for number, (disk, length, at) in enumerate(taken):
    told = write(disk, number + 1, length, at)
    assert told == 0, (disk, length, at, told)
refused = [(pages, 1 << 17, 0), (pages, 1 << 16, 4096), (plain, 8192, 0)]
for disk, length, at in refused:
    told = write(disk, 9, length, at)
    assert told == errno.EINVAL, (disk, length, at, told)
PROGRAM
python3 /tmp/atomic.py || fail "atomic writes"
nvme disconnect -n nqn.2026-01.org.example:weir >/dev/null
"#;

#[test]
fn what_linux_is_asked_to_write_in_one_piece_it_writes_so_over_nvme() {
    let test = "atomic writes by Linux in a guest";
    let found = Guest::found_with(test, &["nvme", "python3"], Some("ublk_drv"));
    let Some(guest) = found else { return };
    let modules = "nvme-core:multipath=N nvme-tcp";
    guest.run_whole("atomicwritten", modules, &[SERVED, WRITTEN].concat());
}

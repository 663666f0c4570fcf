//! Python with libnbd: the finer points of the protocol, seen through a library that checks them.

use crate::scratch::{Scratch, Tmpfs};
use crate::server::{SMALL, Server};
use crate::tools::{root_and, run};

/// Runs a script with `h` connected to the default volume and structured replies on. The system's
/// interpreter, because Debian's `python3-libnbd` belongs to it and not to a user's own.
pub fn python(uri: &str, body: &str) -> String {
    let script = format!("{PRELUDE}h.connect_uri({uri:?})\n{body}\nh.shutdown()\n");
    run("/usr/bin/python3", &["-c", &script])
}

const PRELUDE: &str = r#"
import errno, nbd
B = 4096
h = nbd.NBD()
h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)

def fails(code, call):
    try:
        call()
    except nbd.Error as error:
        assert error.errnum == code, (error, errno.errorcode.get(code))
    else:
        raise AssertionError("should have failed with " + errno.errorcode[code])

def status(offset, length):
    "Block status as [(length, flags)] of base:allocation."
    found = []
    def extent(context, start, entries, error):
        assert context == nbd.CONTEXT_BASE_ALLOCATION
        found.extend(zip(entries[::2], entries[1::2]))
        return 0
    h.block_status(length, offset, extent)
    merged = []
    for size, flags in found:
        if merged and merged[-1][1] == flags:
            merged[-1] = (merged[-1][0] + size, flags)
        else:
            merged.append((size, flags))
    return merged
DATA, HOLE = 0, nbd.STATE_HOLE | nbd.STATE_ZERO
"#;

#[test]
fn trimmed_blocks_read_as_zeroes_and_become_holes() {
    let scratch = Scratch::new("pytrim");
    let server = Server::start(&scratch, SMALL);
    python(
        &server.uri(),
        r#"
h.pwrite(b"x" * (8 * B), 0, nbd.CMD_FLAG_FUA)
assert status(0, 8 * B) == [(8 * B, DATA)], status(0, 8 * B)
h.trim(4 * B, 2 * B, nbd.CMD_FLAG_FUA)
assert h.pread(8 * B, 0) == b"x" * (2 * B) + bytes(4 * B) + b"x" * (2 * B)
assert status(0, 8 * B) == [(2 * B, DATA), (4 * B, HOLE), (2 * B, DATA)], status(0, 8 * B)
h.pwrite(b"y" * B, 3 * B)
assert h.pread(3 * B, 2 * B) == bytes(B) + b"y" * B + bytes(B)
# A trim of parts of blocks may keep those, but never touches a neighbour.
h.trim(B, 100)
assert h.pread(100, 0) == b"x" * 100
assert h.pread(B - 100, B + 100) == b"x" * (B - 100)
"#,
    );
    server.terminate();
}

#[test]
fn write_zeroes_gives_zeroes_with_and_without_a_hole() {
    let scratch = Scratch::new("pyzero");
    let server = Server::start(&scratch, SMALL);
    python(
        &server.uri(),
        r#"
h.pwrite(b"z" * (16 * B), 0)
h.zero(4 * B, 4 * B)
h.zero(4 * B, 8 * B, nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FUA)
h.zero(1000, 500)
expected = bytearray(b"z" * (16 * B))
expected[4 * B:12 * B] = bytes(8 * B)
expected[500:1500] = bytes(1000)
assert h.pread(16 * B, 0) == expected
assert status(8 * B, 4 * B)[0][1] & nbd.STATE_HOLE == 0, "NO_HOLE keeps the space"
assert h.can_fast_zero()
h.zero(2 * B, 0, nbd.CMD_FLAG_FAST_ZERO)
assert h.pread(2 * B, 0) == bytes(2 * B)
for count, offset, flags in [(B, B, nbd.CMD_FLAG_NO_HOLE), (100, B, 0), (B, B + 512, 0)]:
    try:
        h.zero(count, offset, flags | nbd.CMD_FLAG_FAST_ZERO)
        assert False, "zeroes as slow as a write"
    except nbd.Error as error:
        assert error.errno == "ENOTSUP" or error.errno == "EOPNOTSUPP", error.errno
"#,
    );
    server.terminate();
}

#[test]
fn writes_of_any_length_at_any_offset_touch_nothing_else() {
    let scratch = Scratch::new("pyodd");
    let server = Server::start(&scratch, SMALL);
    let seed = 20_261;
    eprintln!("seed={seed}");
    python(
        &server.uri(),
        &format!(
            r#"
import random
r = random.Random({seed})
model = bytearray(1 << 20)
for step in range(400):
    length = r.choice([1, 7, 511, 512, 4095, 4096, 4097, 10000, 65536])
    offset = r.randrange(len(model) - length)
    data = r.randbytes(length)
    h.pwrite(data, offset, r.choice([0, nbd.CMD_FLAG_FUA]))
    model[offset:offset + length] = data
    if step % 10 == 0:
        assert h.pread(len(model), 0) == model, "seed={seed} step %d" % step
h.flush()
assert h.pread(len(model), 0) == model
"#
        ),
    );
    server.terminate();
}

#[test]
fn fua_writes_survive_a_kill() {
    let scratch = Scratch::new("pyfua");
    let mut server = Server::start(&scratch, SMALL);
    python(
        &server.uri(),
        r#"
for i in range(64):
    h.pwrite(bytes([i + 1]) * 3000, i * 5000, nbd.CMD_FLAG_FUA)
"#,
    );
    server.kill();
    let server = Server::start(&scratch, SMALL);
    python(
        &server.uri(),
        r#"
for i in range(64):
    assert h.pread(3000, i * 5000) == bytes([i + 1]) * 3000, i
    assert h.pread(2000, i * 5000 + 3000) == bytes(2000), i
"#,
    );
    server.terminate();
}

#[test]
fn two_connections_see_each_others_writes() {
    let scratch = Scratch::new("pymulti");
    let server = Server::start(&scratch, SMALL);
    let uri = server.uri();
    python(
        &uri,
        &format!(
            r#"
other = nbd.NBD()
other.connect_uri({uri:?})
assert h.can_multi_conn() and other.can_multi_conn()
for i in range(200):
    h.pwrite(bytes([i]) * B, i * B)
    assert other.pread(B, i * B) == bytes([i]) * B, i
# A flush on one connection covers what the other was acknowledged.
other.flush()
other.shutdown()
"#
        ),
    );
    server.terminate();
}

#[test]
fn requests_beyond_the_end_are_refused_and_harm_nothing() {
    let scratch = Scratch::new("pyend");
    let server = Server::start(&scratch, SMALL);
    python(
        &server.uri(),
        r#"
h.set_strict_mode(0)
end = h.get_size()
h.pwrite(b"e" * B, end - B)
fails(errno.EINVAL, lambda: h.pread(B, end))
fails(errno.EINVAL, lambda: h.pread(2 * B, end - B))
fails(errno.ENOSPC, lambda: h.pwrite(b"f" * B, end))
fails(errno.ENOSPC, lambda: h.pwrite(b"f" * (2 * B), end - B))
assert h.pread(B, end - B) == b"e" * B
"#,
    );
    server.terminate();
}

#[test]
fn a_full_disk_below_is_told_and_nothing_is_lost() {
    if !root_and("a full disk below", "/proc/mounts") {
        return;
    }
    let scratch = Scratch::new("pyfull");
    let folder = scratch.data().to_string_lossy().into_owned();
    let mounted = Tmpfs::new(&scratch.data(), "size=48m");
    let server = Server::start(&scratch, &["--profile", "instant", "--capacity", "256MiB"]);
    let script = r#"
M = 1 << 20
for at in range(0, 16, 4):
    h.pwrite(b"a" * (4 * M), at * M)
h.flush()
full = False
for at in range(16, 96, 4):
    try:
        h.pwrite(b"b" * (4 * M), at * M)
    except nbd.Error as error:
        assert error.errnum == errno.ENOSPC, error
        full = True
        break
assert full, "48 MiB hold 96"
assert h.pread(4 * M, 12 * M) == b"a" * (4 * M)
"#;
    python(&server.uri(), script);
    mounted.remount("size=256m");
    let script = r#"
import time
M = 1 << 20
time.sleep(0.3)
h.pwrite(b"c" * (4 * M), 128 * M)
h.flush()
assert h.pread(4 * M, 128 * M) == b"c" * (4 * M)
for at in range(0, 16, 4):
    assert h.pread(4 * M, at * M) == b"a" * (4 * M)
"#;
    python(&server.uri(), script);
    server.terminate();
    let checked = crate::tools::weir(&["check", "--data", &folder]);
    assert!(checked.status.success(), "{}", crate::tools::said(&checked));
    drop(mounted);
}

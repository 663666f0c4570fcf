//! Linux's own initiator authenticates (DH-HMAC-CHAP), in a guest where the server runs too: with each hash, with the
//! controller's secret and without, with wrong ones and none, and again when a server that was killed is back.
//!
//! Steps aside like the other tests in a guest.

use crate::guest::Guest;

/// Runs in the guest. `WEIR` is the binary.
const SCRIPT: &str = r#"
me=nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555
host="--hostnqn=$me --hostid=11111111-2222-3333-4444-555555555555"
nqn=nqn.2026-01.org.example:weir
umask 077
secret() { nvme gen-dhchap-key --hmac="$1" --nqn="$2" | grep ^DHHC-1; }
cat >/tmp/weir.toml <<CONFIG
[device]
path = "/tmp/device"
profile = "instant"
shards = 2
capacity = "64MiB"
[nvme]
tcp = "127.0.0.1:4420"
nqn = "$nqn"
keys_file = "/tmp/keys"
[nbd]
unix = "/tmp/nbd.sock"
CONFIG
start() {
    : >/tmp/serve.log
    WEIR serve --config /tmp/weir.toml --http none --control /tmp/control.sock >>/tmp/serve.log 2>&1 &
    server=$!
    for i in $(seq 300); do grep -q ^ready /tmp/serve.log && return; sleep 0.1; done
    fail "the server does not start"
}
connect() { nvme connect -t tcp -a 127.0.0.1 -s 4420 -n $nqn $host --nr-io-queues=2 "$@"; }
connected() {
    for i in $(seq 100); do [ -b /dev/nvme0n1 ] && return; sleep 0.1; done
    fail "no namespace"
}
refused() { # how
    if connect "$@" >/tmp/refused 2>&1; then fail "let in: $*"; fi
}
write() {
    fio --name=e2e --ioengine=libaio --direct=1 --filename=/dev/nvme0n1 --rw=randwrite --bs=16k --size=16m \
        --iodepth=16 --verify=crc32c --verify_fatal=1 --randseed=11 --verify_state_save=0 --do_verify=1 --end_fsync=1 \
        --output-format=terse "$@" >/tmp/fio.log 2>&1 || { cat /tmp/fio.log; fail "fio $*"; }
}
for hash in 0 1 2 3; do
    step "hash $hash"
    mine=$(secret $hash $me)
    theirs=$(secret $hash $nqn)
    other=$(secret $hash $me)
    echo "$me $mine $theirs" >/tmp/keys
    start
    connect --dhchap-secret="$mine"
    connected
    nvme disconnect -n $nqn >/dev/null
    connect --dhchap-secret="$mine" --dhchap-ctrl-secret="$theirs"
    connected
    nvme disconnect -n $nqn >/dev/null
    refused --dhchap-secret="$other"
    grep -q 'did not authenticate.*its secret' /tmp/serve.log || fail "a wrong secret is not logged"
    refused
    refused --dhchap-secret="$mine" --dhchap-ctrl-secret="$other"
    if grep -q 'DHHC\|panicked' /tmp/serve.log; then fail "it says too much"; fi
    [ $hash -eq 3 ] || { kill $server; wait $server; }
done
step "a server that is killed"
connect --dhchap-secret="$mine" --dhchap-ctrl-secret="$theirs"
connected
write &
load=$!
sleep 2
kill_and_start 1
wait $load
nvme disconnect -n $nqn >/dev/null
step "no controller's secret"
echo "$me $mine" >/tmp/keys
kill $server
wait $server
start
refused --dhchap-secret="$mine" --dhchap-ctrl-secret="$theirs"
connect --dhchap-secret="$mine"
connected
write
nvme disconnect -n $nqn >/dev/null
kill $server
wait $server
"#;

#[test]
fn linuxs_initiator_authenticates_and_is_refused_with_another_secret() {
    let test = "Linux's NVMe initiator that authenticates, in a guest";
    let Some(guest) = Guest::found_with(test, &["fio", "nvme"], Some("nvme-auth")) else { return };
    guest.run_whole("nvmeauth", "nvme-tcp", SCRIPT);
}

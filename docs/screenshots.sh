#!/usr/bin/env bash
# Makes the pictures in this folder: the page and `weir top` of a server with a fast tier under a load of fio, the page of
# one of 204 units in the dark, and figures of two experiments. A headless Chromium looks at all of them. Needs fio,
# chromium, tmux and aha, and weir (WEIR, or target/quick/weir of ./x run).
#     docs/screenshots.sh [SECONDS of load before a picture]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
weir=${WEIR:-$here/../target/quick/weir}
seconds=${1:-60}
work=$(mktemp -d)
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; wait; rm -rf "$work"' EXIT
for tool in "$weir" fio chromium tmux aha; do
    command -v "$tool" >/dev/null || { echo "$tool is missing" >&2; exit 1; }
done

# look NAME SCHEME WIDTH HEIGHT URL: a picture of what is there. Scheme 0 is dark, 1 is light.
look() {
    chromium --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking \
        --disable-component-update --disable-sync --disable-dev-shm-usage --hide-scrollbars \
        --user-data-dir="$work/browser-$1" --blink-settings=preferredColorScheme="$2" \
        --window-size="$3,$4" --virtual-time-budget=7000 --screenshot="$here/$1.png" "$5" 2>"$work/$1.chromium"
}

# terminal NAME COLUMNS ROWS COMMAND...: what a command shows on a terminal of this size after some seconds.
terminal() {
    local name=$1 columns=$2 rows=$3
    shift 3
    tmux -L "weir-$$" new-session -d -x "$columns" -y "$rows" "$*"
    sleep 8
    tmux -L "weir-$$" capture-pane -e -p | aha --black --title "$name" \
        | sed 's/<pre>/<pre style="font: 14px\/18px monospace; margin: 8px">/' >"$work/$name.html"
    tmux -L "weir-$$" kill-server
    look "$name" 0 $((columns * 17 / 2 + 20)) $((rows * 18 + 24)) "file://$work/$name.html"
}

# picture NAME SCHEME WIDTH HEIGHT SERVE-ARGUMENTS...
picture() {
    local name=$1 scheme=$2 width=$3 height=$4 data=$work/$1
    shift 4
    "$weir" serve --data "$data" --http 127.0.0.1:0 "$@" >"$work/$name.out" 2>"$work/$name.log" &
    local server=$!
    pids+=("$server")
    until grep -q '^ready' "$work/$name.out"; do
        sleep 0.2
        kill -0 "$server" || { cat "$work/$name.log" >&2; exit 1; }
    done
    fio --name=load --ioengine=nbd --uri="nbd+unix:///default?socket=$data/nbd.sock" --rw=randrw --rwmixread=60 \
        --bs=4k --iodepth=16 --random_distribution=zipf:1.1 --time_based --runtime=$((seconds + 30)) --rate_iops=1500,1000 \
        >"$work/$name.fio" 2>&1 &
    local load=$!
    pids+=("$load")
    sleep "$seconds"
    look "$name" "$scheme" "$width" "$height" "http://$(cat "$data/http-address")/#300"
    [ "$name" != page ] || terminal top 132 44 "$weir" top --data "$data"
    kill "$load" "$server" 2>/dev/null || true
    wait "$server" || true
}

picture page 1 1120 1240 --capacity 1GiB --fast "$work/fast"
picture page-dark 0 1120 1240 --capacity 2GiB --channels 34 --dies-per-channel 6
"$weir" lab run tssd-small --report "$work/tssd.html" >/dev/null
"$weir" lab run sdf-slices-reads --report "$work/sdf.html" >/dev/null
cp "$work/tssd-tail.svg" "$work/sdf-figure-11-4-slices.svg" "$here"
ls -l "$here"/*.png "$here"/*.svg

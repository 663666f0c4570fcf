#!/usr/bin/env bash
# Makes the pictures of the page in this folder: a server of 204 units (one with a fast tier for the first picture) under a
# load of fio, looked at by a headless Chromium. Needs fio and chromium, and weir (WEIR, or target/quick/weir of ./x run).
#     docs/screenshots.sh [SECONDS of load before a picture]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
weir=${WEIR:-$here/../target/quick/weir}
seconds=${1:-60}
work=$(mktemp -d)
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; wait; rm -rf "$work"' EXIT
for tool in "$weir" fio chromium; do
    command -v "$tool" >/dev/null || { echo "$tool is missing" >&2; exit 1; }
done

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
    # 0 is dark, 1 is light.
    chromium --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking \
        --disable-component-update --disable-sync --disable-dev-shm-usage --hide-scrollbars \
        --user-data-dir="$work/browser-$name" --blink-settings=preferredColorScheme="$scheme" \
        --window-size="$width,$height" --virtual-time-budget=7000 --screenshot="$here/$name.png" \
        "http://$(cat "$data/http-address")/#300" 2>"$work/$name.chromium"
    kill "$load" "$server" 2>/dev/null || true
    wait "$server" || true
}

picture page 1 1120 1240 --capacity 1GiB --fast "$work/fast"
picture page-dark 0 1120 1240 --capacity 2GiB --channels 34 --dies-per-channel 6
ls -l "$here"/page*.png

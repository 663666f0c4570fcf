// Asks the server every 2 s and shows what it says. The hour that the charts show lies in the server, so a page that is
// loaded again shows it again.

import { BLOCK, Charts, Rows, clockOf, count, rate, share, size, time, waf } from "./charts.js";
import { Units, unitsOf } from "./units.js";

const $ = id => document.getElementById(id);
const STEP_MS = 2000;
const rows = new Rows(), charts = new Charts(), units = new Units();
const RANGES = [...$("range").children].map(button => Number(button.dataset.seconds));
// The address keeps what was chosen, for whoever loads the page again or sends it to somebody.
let last = null, seconds = RANGES.find(range => location.hash === "#" + range) || 3600, rates = [];

async function ask(path) {
  const answer = await fetch(path, { signal: AbortSignal.timeout(5000) });
  const value = await answer.json();
  if (!answer.ok) throw new Error(value.error);
  return value;
}
function table(id, lines) {
  $(id).replaceChildren(...lines.map(cells => {
    const row = document.createElement("tr");
    for (const text of cells) row.insertCell().textContent = text;
    return row;
  }));
}
const set = (id, text) => { $(id).textContent = text; };

function tiles(now) {
  const c = now.counters, raw = now.shards[0].raw, recent = name => rows.recent(name, 6);
  const sum = key => now.shards.reduce((n, s) => n + s.units.reduce((m, u) => m + u[key], 0), 0);
  set("reads", count(recent("read_per_sec")) + "/s"); set("read", rate(recent("read_bytes_per_sec")));
  set("writes", count(recent("write_per_sec")) + "/s"); set("write", rate(recent("write_bytes_per_sec")));
  for (const op of ["read", "write"]) {
    set(`${op}_p99`, time(recent(`${op}_p99_ns`)));
    set(`${op}_p50`, `p50 ${time(recent(`${op}_p50_ns`))}, p99.9 ${time(recent(`${op}_p999_ns`))}`);
  }
  const host = rows.recent("host_bytes_per_sec", 60), all = rows.recent("programmed_bytes_per_sec", 60);
  set("waf", host ? waf(all / host) : "–"); set("waf_all", `${waf(now.waf)} since the mount`);
  // Raw units move nothing by themselves.
  $("waf_part").hidden = $("chart_waf").hidden = !!raw;
  set("gc_head", raw ? "Erases" : "GC and erases");
  set("free_head", raw ? "Erased" : "Free bands");
  set("free", raw ? sum("raw_blocks_erased") : c.bands_free);
  set("low", raw ? "raw blocks" : `GC starts below ${c.bands_free_low}`);
  const full = raw ? sum("pages_written") * raw.page_bytes / BLOCK : c.blocks_mapped;
  set("mapped", c.logical_blocks ? share(full / c.logical_blocks) : "–");
  set("clients", now.shards.reduce((n, s) => n + s.connections, 0));
  const requests = now.shards.reduce((n, s) => n + s.requests, 0);
  set("requests", `${requests} request${requests === 1 ? "" : "s"} in flight`);
}
function head(now) {
  const raw = now.shards[0].raw, p = now.shards[0].policies;
  const phases = [...new Set(now.shards.map(s => s.fenced ? "fenced" : s.phase))].join(", ");
  const bytes = now.volumes.reduce((n, v) => n + v.size_bytes, 0);
  set("summary", raw ? `${raw.units} raw units of ${raw.raw_blocks_per_unit} × ${size(raw.raw_block_bytes)}`
    : `${now.volumes.length} volume${now.volumes.length === 1 ? "" : "s"}, ${size(bytes)}`);
  set("state", raw ? phases : `${phases} · victim ${p.victim} · wear ${p.wear} · erase ${p.erase} · unit ${p.unit} · stream ${p.stream}`);
  $("state").className = /fenced|failed/.test(phases) ? "bad" : "";
  const warnings = [...(now.restart?.impaired || []).map(why => `served read-only: ${why}`), ...new Set(now.shards.flatMap(s => s.warnings))];
  $("warnings").hidden = !warnings.length;
  $("warnings").replaceChildren(...warnings.map(text => Object.assign(document.createElement("li"), { textContent: text })));
}
function fastTier(fast) {
  $("fast").hidden = !fast;
  if (!fast) return;
  set("fast_state", [fast.state, fast.path, fast.reason].filter(Boolean).join(" · "));
  $("fast_state").className = /lost|failed/.test(fast.state) ? "bad" : "";
  set("fast_fill", share(fast.fill)); set("fast_bytes", size(fast.bytes));
  set("fast_destage", rate(fast.destage_bytes_per_sec));
  set("fast_hits", share(fast.read_hit_share)); set("fast_drops", share(fast.write_drop_share));
  set("fast_waf", waf(fast.waf)); set("fast_waf_capacity", waf(fast.waf_capacity));
}
function volumes(now) {
  const raw = now.shards[0].raw, streams = now.shards[0].streams || [];
  $("volume_part").hidden = !!raw;
  if (raw) return;
  const of = name => rates.find(volume => volume.name === name) || {};
  const told = one => one ? [count(one.per_sec), rate(one.bytes_per_sec), time(one.p50_ns), time(one.p99_ns), time(one.p999_ns)] : ["0", "–", "–", "–", "–"];
  table("volumes", now.volumes.map((volume, i) => [volume.name + (volume.read_only ? " (read-only)" : ""), size(volume.size_bytes),
    ...told(of(volume.name).read), ...told(of(volume.name).write), (streams[i] || streams.at(-1))?.stream || "–"]));
  $("streams_part").hidden = !streams.length;
  // Those of the volumes that have their own, then that of the rest.
  const named = i => i + 1 < streams.length ? now.volumes[i]?.name : streams.length > 1 ? "the rest" : "all";
  table("streams", streams.map((one, i) => [named(i), one.handles_host,
    one.handles_moved + (one.handles_short ? " (short of bands)" : ""), size(one.memory_bytes), one.stream]));
}
/// All shards switch together, so those of the first are all; the last one first.
function switches(all) {
  $("policies").hidden = !all?.length;
  table("switches", (all || []).slice(-8).reverse().map(one => [clockOf(one.unix_ms), one.decision, one.from, one.to, one.why]));
}
function slow(answer) {
  $("slow_part").hidden = !answer;
  if (!answer) return;
  const why = one => (one.why || []).map(part => `${part.cause}${part.unit === null || part.unit === undefined ? "" : ` (unit ${part.unit})`} ${time(part.us * 1000)}`).join(", ");
  table("slow", answer.slow.slice(0, 20).map(one => [clockOf(one.at_unix_ms), time(one.total_us * 1000),
    `${one.op} of ${one.volume}, ${size(one.length)} at ${size(one.offset)}`, one.told || why(one)]));
  if (!answer.slow.length) table("slow", [["None in the last minutes."]]);
}
function connect(now) {
  const raw = now.shards[0].raw, name = now.volumes[0]?.name, places = now.connect?.nbd || [];
  $("connect").hidden = !places.length || !name;
  const lines = places.flatMap(place => {
    const socket = place.match(/^nbd\+unix:\/\/\/\?socket=(.*)$/)?.[1], address = place.match(/^nbds?:\/\/(.*):(\d+)\//);
    const uri = socket ? `nbd+unix:///${name}?socket=${socket}` : place + name;
    const kernel = socket ? `-unix ${socket}` : address ? `${address[1]} ${address[2]}` : null;
    const lines = [`nbdinfo '${uri}'`];
    if (kernel && !raw) lines.push(`modprobe nbd && nbd-client -N ${name} ${kernel} /dev/nbd0 -b 4096      # the kernel's own client, as root`,
      `mkfs.ext4 /dev/nbd0 && mount /dev/nbd0 /mnt`);
    if (!raw) lines.push(`fio --name=try --ioengine=nbd --uri='${uri}' --rw=randwrite --bs=4k --iodepth=16 --size=64m`);
    return [...lines, ""];
  });
  const text = lines.join("\n").trim();
  // As it is: whoever has marked a part of it wants to copy it.
  if ($("commands").textContent !== text) set("commands", text);
}

function draw() {
  for (const button of $("range").children) button.setAttribute("aria-pressed", Number(button.dataset.seconds) === seconds);
  if (!rows.merged) return;
  const to = rows.since / 1000;
  charts.draw(rows.view(to - seconds, to), to - seconds, to);
  if (last) charts.wear.show(last.shards);
}
async function poll() {
  try {
    const [now, recent, requests] = await Promise.all([ask("status"), ask(`history?since=${rows.since}`), ask("slow")]);
    // By the clock of the server: that of a browser may run otherwise.
    now.at = recent.now_unix_ms;
    rows.take(recent);
    rates = recent.volumes;
    const before = last, passed = before ? (now.at - before.at) / 1000 : 0;
    last = now;
    head(now); tiles(now); fastTier(now.fast); volumes(now); slow(requests); connect(now);
    switches(now.shards[0].policy_switches);
    draw();
    units.show(unitsOf(now, before, passed));
    document.body.dataset.polls = Number(document.body.dataset.polls || 0) + 1;
  } catch (error) {
    // Somebody who develops the page finds it there; whoever looks at it sees that it is old.
    console.error(error);
    set("state", "no answer, so this is old: " + error.message); $("state").className = "bad";
  }
  setTimeout(poll, STEP_MS);
}

for (const button of $("range").children) button.onclick = () => {
  seconds = Number(button.dataset.seconds);
  history.replaceState(null, "", "#" + seconds);
  draw();
};
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { charts.anew(); draw(); units.paint(); });
poll();

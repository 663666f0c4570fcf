// The units: a heat map that holds some hundred of them, tiers apart, and all that is known as a table.

import { BLOCK, share, size } from "./charts.js";

const $ = id => document.getElementById(id);
const HEADS = ["Unit", "Busy", "Reads queued", "Appends queued", "Running", "Free bands", "Retired", "Valid", "Erases min–max", "Last reason"];
const RAW_HEADS = ["Unit", "Busy", "Reads queued", "Writes and erases queued", "Requests", "Erased", "Bad", "Written", "Erases min–max", "Last reason"];
const BY = {
  busy: { tell: unit => share(unit.busy), of: unit => unit.busy, most: () => 1, hue: 8, key: "share of the last 2 s with a command running" },
  valid: { tell: unit => share(unit.valid), of: unit => unit.valid, most: () => 1, hue: 214, key: "share of its slots that hold valid data" },
  wear: { tell: unit => `${unit.state.erase_count_max} erases`, of: unit => unit.state.erase_count_max, hue: 32, from0: false,
    most: all => Math.max(1, ...all.map(unit => unit.state.erase_count_max)), key: "most erases of a block; the darkest has most of its tier" },
};

/// All units of a status, counted over the shards, with what the one before adds.
export function unitsOf(now, before, seconds) {
  let at = 0;
  return now.shards.flatMap((shard, s) => shard.units.map((state, u) => {
    const was = before?.shards[s]?.units[u];
    const busy = was && seconds > 0 ? Math.min(1, Math.max(0, (state.busy_ns - was.busy_ns) / (seconds * 1e9))) : null;
    const whole = shard.raw ? shard.raw.raw_blocks_per_unit * shard.raw.raw_block_bytes / BLOCK : state.slots;
    const used = shard.raw ? state.pages_written * shard.raw.page_bytes / BLOCK : state.slots_valid;
    return { name: String(at++), state, raw: shard.raw, busy, valid: whole ? used / whole : null, fast: state.tier === "fast" };
  }));
}

export class Units {
  constructor() {
    this.by = "busy";
    this.all = [];
    for (const button of $("heat_by").children) button.onclick = () => { this.by = button.dataset.by; this.paint(); };
    $("heat_maps").onpointerover = event => this.point(event);
    $("heat_maps").onclick = event => this.point(event);
  }

  show(units) {
    this.all = units;
    this.lay();
    this.paint();
    this.table();
  }

  /// A cell a unit, made anew only when there are others.
  lay() {
    const key = this.all.map(unit => unit.name + unit.fast).join();
    if (key === this.laid) return;
    this.laid = key;
    const tiers = [["Capacity tier", this.all.filter(unit => !unit.fast)], ["Fast tier", this.all.filter(unit => unit.fast)]];
    const shown = tiers.filter(([, units]) => units.length);
    $("heat_maps").replaceChildren(...shown.flatMap(([name, units]) => {
      const head = document.createElement("div"), map = document.createElement("div");
      head.className = "tier";
      head.textContent = `${shown.length > 1 ? name + ": " : ""}${units.length} unit${units.length === 1 ? "" : "s"}`;
      map.className = units.length <= 16 ? "map few" : "map";
      map.append(...units.map(unit => {
        const cell = document.createElement("i");
        cell.dataset.unit = this.all.indexOf(unit);
        cell.textContent = unit.name;
        return cell;
      }));
      return [head, map];
    }));
  }

  paint() {
    const by = BY[this.by];
    for (const button of $("heat_by").children) button.setAttribute("aria-pressed", button.dataset.by === this.by);
    $("heat_key").textContent = by.key;
    const most = { true: by.most(this.all.filter(unit => unit.fast)), false: by.most(this.all.filter(unit => !unit.fast)) };
    for (const cell of $("heat_maps").querySelectorAll("i")) {
      const unit = this.all[cell.dataset.unit], value = by.of(unit);
      const heat = value === null ? 0 : Math.min(1, value / most[unit.fast]);
      cell.classList.toggle("fast", unit.fast);
      cell.classList.toggle("gone", unit.state.gone);
      cell.classList.toggle("dark", heat > .25);
      cell.classList.toggle("light", heat <= .25 && heat > 0 && !matchMedia("(prefers-color-scheme: dark)").matches);
      // From the colour of the card, whichever that is, to a full one.
      cell.style.backgroundColor = heat > 0 && !unit.state.gone ? `color-mix(in oklab, hsl(${by.hue} 75% 45%) ${Math.round(14 + 86 * Math.sqrt(heat))}%, var(--card))` : "";
      cell.title = this.tell(unit);
    }
    if (this.pointed !== undefined && this.all[this.pointed]) $("heat_told").textContent = this.tell(this.all[this.pointed]);
  }

  tell(unit) {
    const { state } = unit, queued = state.reads_queued + (state.appends_queued ?? state.writes_queued + state.erases_queued);
    const room = unit.raw ? `${state.raw_blocks_erased} raw blocks erased` : `${state.bands_free} bands free`;
    return [`Unit ${unit.name}${unit.fast ? ", fast" : ""}${state.gone ? ", GONE" : ""}`, `busy ${share(unit.busy)}`, `${queued} queued`,
      `valid ${share(unit.valid)}`, room, `${state.erase_count_min} to ${state.erase_count_max} erases`, state.last_reason].filter(Boolean).join(" · ");
  }

  point(event) {
    if (event.target.dataset.unit === undefined) return;
    this.pointed = event.target.dataset.unit;
    $("heat_told").textContent = this.tell(this.all[this.pointed]);
  }

  table() {
    const raw = this.all[0]?.raw, row = document.createElement("tr");
    row.append(...(raw ? RAW_HEADS : HEADS).map(text => Object.assign(document.createElement("th"), { textContent: text })));
    $("unit_heads").replaceChildren(row);
    $("units").replaceChildren(...this.all.map(unit => {
      const row = document.createElement("tr"), { state } = unit, wear = `${state.erase_count_min}–${state.erase_count_max}`;
      const last = state.gone ? "gone" : state.last_reason || "–";
      const cells = raw ? [unit.name, share(unit.busy), state.reads_queued, state.writes_queued + state.erases_queued, state.requests,
        state.raw_blocks_erased, state.blocks_bad, size(state.pages_written * raw.page_bytes), wear, last]
        : [unit.name, share(unit.busy), state.reads_queued, state.appends_queued, state.commands_running, state.bands_free,
          state.bands_retired, size(state.slots_valid * BLOCK), wear, last];
      for (const text of cells) row.insertCell().textContent = text;
      if (unit.fast) row.cells[0].append(Object.assign(document.createElement("span"), { className: "mark", textContent: " fast" }));
      return row;
    }));
  }
}

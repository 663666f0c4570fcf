// Charts over time, drawn by uPlot from the columns of /history, and how numbers are told. Nothing here asks the server.

export const BLOCK = 4096;

const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const round = v => v >= 100 ? v.toFixed(0) : v >= 10 ? v.toFixed(1) : v.toFixed(2);

/// Three digits and the unit that fits.
function told(value, step, units) {
  if (value === null || value === undefined) return "–";
  const sign = value < 0 ? "−" : "";
  let v = Math.abs(value), i = 0;
  while (v >= step * .9995 && i + 1 < units.length) { v /= step; i++; }
  return `${sign}${i === 0 && Number.isInteger(v) ? v : +round(v)}${units[i] ? " " + units[i] : ""}`;
}
export const count = v => told(v, 1000, ["", "k", "M", "G"]);
export const size = v => told(v, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]);
export const rate = v => v === null || v === undefined ? "–" : size(v) + "/s";
export const time = ns => told(ns, 1000, ["ns", "µs", "ms", "s"]);
export const share = v => v === null || v === undefined ? "–" : (100 * v).toFixed(1) + " %";
export const waf = v => v === null || v === undefined ? "–" : v.toFixed(3);
const ratio = v => v === null || v === undefined ? "–" : v.toFixed(2);

const POINTS_MAX = 360;
const known_of = list => list.filter(v => v !== null);
const worst = list => { const known = known_of(list); return known.length ? Math.max(...known) : null; };
const mean = list => { const known = known_of(list); return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null; };

/// Of a day, a clock as on the axes.
export const clockOf = ms => new Date(ms).toLocaleTimeString([], { hour12: false });

/// The rows of the last hour and, before them, of the last day, with a hole where no server ran.
export class Rows {
  constructor() { this.fine = { at_unix_ms: [] }; this.coarse = { at_unix_ms: [] }; this.merged = null; }

  /// The last row that is known, for the next question. Coarse rows come later than the fine ones that they span.
  get since() {
    const last = of => of.at_unix_ms.at(-1) || 0;
    return Math.max(last(this.fine), last(this.coarse));
  }

  take(answer) {
    for (const which of ["fine", "coarse"]) {
      const mine = this[which], more = answer[which];
      // A clock that was set back takes rows with it there, so it does here.
      const first = more.at_unix_ms[0];
      let keep = mine.at_unix_ms.length;
      while (first !== undefined && keep > 0 && mine.at_unix_ms[keep - 1] >= first) keep--;
      const from = Math.max(0, keep + more.at_unix_ms.length - (which === "fine" ? 1800 : 1440));
      for (const name in more) mine[name] = (mine[name] || []).slice(from, keep).concat(more[name]);
    }
    this.merged = this.merge();
  }

  merge() {
    const first = this.fine.at_unix_ms[0] ?? Infinity;
    const old = this.coarse.at_unix_ms.filter(at => at < first).length;
    const at = this.coarse.at_unix_ms.slice(0, old).concat(this.fine.at_unix_ms);
    const holes = at.flatMap((ms, i) => i && ms - at[i - 1] > (i <= old ? 150e3 : 30e3) ? [i] : []);
    const cut = (list, empty) => {
      const out = [];
      let from = 0;
      for (const hole of holes) { out.push(...list.slice(from, hole), empty(hole)); from = hole; }
      return out.concat(list.slice(from));
    };
    const columns = { at: cut(at, i => (at[i - 1] + at[i]) / 2).map(ms => ms / 1000) };
    for (const name in this.fine) {
      const list = (this.coarse[name] || []).slice(0, old).concat(this.fine[name]);
      columns[name] = cut(list, () => null);
    }
    return columns;
  }

  /// What lies between two instants, in seconds: at most some hundred rows, or nobody sees more than a band. Of rows that
  /// become one, a latency is the worst, anything else the mean.
  view(from, to) {
    const all = this.merged, first = all.at.findIndex(at => at >= from), last = all.at.findLastIndex(at => at <= to);
    const group = Math.ceil((last - first + 1) / POINTS_MAX), out = {};
    if (first < 0 || group <= 1) return all;
    // Groups begin at the same rows whenever they are made, so that what was drawn does not change while time goes on.
    const key = i => Math.floor(all.at[i] / ((to - from) / POINTS_MAX));
    const ends = all.at.flatMap((_, i) => i + 1 === all.at.length || key(i) !== key(i + 1) ? [i + 1] : []);
    for (const name in all) {
      const join = name === "at" ? list => list.at(-1) : name.endsWith("_ns") ? worst : mean;
      out[name] = ends.map((end, n) => join(all[name].slice(n ? ends[n - 1] : 0, end)));
    }
    return out;
  }

  /// The mean of a column over the last seconds; null if there is none.
  recent(name, seconds) {
    const at = this.fine.at_unix_ms, list = this.fine[name] || [];
    const from = (at.at(-1) || 0) - seconds * 1000;
    const wanted = list.filter((v, i) => at[i] > from && v !== null);
    return mean(wanted);
  }
}

const line = (name, column, color, tell, more = {}) => ({ name, column, color, tell, ...more });
/// Steps of a scale of bytes.
const BINARY = Array.from({ length: 50 }, (_, i) => 2 ** i);
const REASONS = [["host", "--blue"], ["gc", "--red"], ["destage", "--violet"], ["kept", "--pink"],
  ["padding", "--amber"], ["checkpoint", "--teal"], ["other", "--grey"]];

/// What is drawn in which part of the page.
const CHARTS = {
  read_latency: { log: true, axis: time, lines: latency("read") },
  write_latency: { log: true, axis: time, lines: latency("write") },
  iops: { axis: count, lines: [line("reads", "read_per_sec", "--blue", count), line("writes", "write_per_sec", "--amber", count),
    line("flushes", "flush_per_sec", "--teal", count)] },
  bandwidth: { bytes: true, axis: v => rate(Math.abs(v)), lines: [line("read", "read_bytes_per_sec", "--blue", rate, { fill: true }),
    line("written", "write_bytes_per_sec", "--amber", v => rate(v === null ? v : Math.abs(v)), { fill: true, down: true })] },
  // The host's part is 1 by definition; what lies above it are the reasons.
  waf: { axis: ratio, stacked: true, lines: REASONS.map(([name, color]) =>
    line(name, `${name}_bytes_per_sec`, color, ratio, { by: "host_bytes_per_sec" })) },
  gc: { axis: count, lines: [line("erases/s", "erases_per_sec", "--red", count, { bars: true }),
    line("victims/s", "victims_per_sec", "--violet", count), line("throttled/s", "throttled_per_sec", "--amber", count),
    line("free bands", "bands_free", "--green", count, { right: true }),
    line("GC below", "bands_free_low", "--grey", count, { right: true, dash: [4, 4] })] },
  fast: { bytes: true, axis: rate, lines: [line("destaged", "destage_bytes_per_sec", "--violet", rate),
    line("written there", "fast_bytes_per_sec", "--blue", rate), line("fill", "fast_fill", "--amber", v => v === null ? "–" : (100 * v).toFixed(0) + " %", { right: true, most: 1 })] },
};

function latency(op) {
  return [["p50", "p50", "--green"], ["p99", "p99", "--amber"], ["p99.9", "p999", "--red"], ["max", "max", "--grey"]]
    .map(([name, key, color]) => line(name, `${op}_${key}_ns`, color, time));
}

/// The numbers of a chart, and for a stack the heights up to which each layer reaches.
function columns(chart, rows) {
  const of = one => {
    const list = rows[one.column] || rows.at.map(() => null), by = one.by && rows[one.by];
    if (by) return list.map((v, i) => v === null || !by[i] ? null : v / by[i]);
    return one.down ? list.map(v => v === null ? null : -v) : list;
  };
  const plain = chart.lines.map(of);
  if (!chart.stacked) return [plain, plain];
  const tops = [];
  plain.forEach((list, n) => tops.push(list.map((v, i) => v === null ? null : v + (n ? tops[n - 1][i] : 0))));
  return [plain, tops];
}

/// A chart of the page that lives as long as the page does.
class Chart {
  constructor(part, chart) {
    Object.assign(this, { part, chart, plot: null, plain: [] });
    // In the frame after: what is told within one may not change it.
    new ResizeObserver(() => requestAnimationFrame(() => this.resize())).observe(part);
  }

  /// The layers of a stack from the top one down, so that each covers the part of the one before that is not its.
  get order() { const all = this.chart.lines.map((_, i) => i); return this.chart.stacked ? all.reverse() : all; }

  draw(rows, from, to) {
    const [plain, tops] = columns(this.chart, rows);
    this.plain = this.order.map(i => plain[i]);
    const used = this.plain.some(list => list.some(v => v !== null));
    this.part.classList.toggle("empty", !used);
    if (!used) { this.drop(); return; }
    const data = [rows.at, ...this.order.map(i => tops[i])];
    if (!this.plot) this.plot = new uPlot(this.options(), data, this.part);
    this.plot.setData(data, false);
    this.plot.setScale("x", { min: from, max: to });
  }

  drop() { if (this.plot) this.plot.destroy(); this.plot = null; this.part.dataset.points = 0; }

  resize() {
    const { width, height } = this;
    if (this.plot && this.plot.width !== width) this.plot.setSize({ width, height });
  }

  get width() {
    const style = getComputedStyle(this.part);
    return Math.max(200, this.part.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight));
  }

  get height() { return innerWidth < 560 ? 150 : 180; }

  series(one, index) {
    const color = css(one.color), stacked = this.chart.stacked;
    const series = { label: one.name, stroke: color, width: stacked ? 0 : 1.5, points: { size: 4, filter: alone }, scale: one.right ? "right" : "y",
      dash: one.dash, spanGaps: false, value: (plot, v, s, at) => one.tell(at === null ? this.last(index) : this.plain[index][at]) };
    if (stacked) series.fill = color;
    else if (one.fill) series.fill = color + "33";
    if (one.bars) Object.assign(series, { paths: uPlot.paths.bars({ size: [.9, 12, 1] }), fill: color + "88", width: 0 });
    return series;
  }

  /// Where no pointer is, the legend tells the newest row, which may have nothing to tell.
  last(index) { return this.plain[index]?.at(-1) ?? null; }

  options() {
    const { chart } = this, ink = css("--dim"), grid = { stroke: css("--line"), width: 1 };
    const y = { stroke: ink, grid, ticks: grid, size: 66, font: "11px system-ui",
      incrs: chart.bytes && BINARY, values: (u, all) => all.map(v => v === null ? "" : chart.axis(v)) };
    const right = chart.lines.filter(one => one.right);
    const scales = { x: { time: true }, y: chart.log ? { distr: 3, log: 10 } : { range: (u, min, max) => room(chart, min, max) } };
    const axes = [{ stroke: ink, grid, ticks: grid, font: "11px system-ui", size: 32, space: 70, values: clock }, y];
    if (right.length) {
      scales.right = { range: (u, min, max) => [0, right[0].most || Math.max(1, max || 0) * 1.1] };
      axes.push({ ...y, side: 1, scale: "right", grid: { show: false }, size: 52, incrs: undefined, values: (u, all) => all.map(v => right[0].tell(v)) });
    }
    return { width: this.width, height: this.height, scales, axes, padding: [8, right.length ? 0 : 8, 0, 0], legend: { live: true },
      cursor: { sync: { key: "weir" }, drag: { x: false, y: false }, points: { size: 6 } },
      series: [{ label: "at", value: (u, v) => v === null ? "now" : clockOf(v * 1000) },
        ...this.order.map((i, index) => this.series(chart.lines[i], index))],
      hooks: { draw: [plot => this.note(plot)] } };
  }

  /// How many points can be seen: who tests the page asks.
  note(plot) {
    const { min, max } = plot.scales.x;
    let points = 0;
    plot.series.forEach((series, n) => {
      if (n === 0 || !series.show) return;
      const scale = plot.scales[series.scale];
      plot.data[n].forEach((v, i) => {
        const at = plot.data[0][i];
        points += v !== null && at >= min && at <= max && v >= scale.min && v <= scale.max && plot.bbox.width > 0;
      });
    });
    this.part.dataset.points = points;
  }
}

/// A row that has none beside it is no line: it is drawn as a point.
function alone(plot, series) {
  const list = plot.data[series], known = at => list[at] !== null && list[at] !== undefined;
  return list.flatMap((v, at) => known(at) && !known(at - 1) && !known(at + 1) ? [at] : []);
}

/// Seconds only where there is room for them.
function clock(plot, all) {
  const long = plot.scales.x.max - plot.scales.x.min > 900;
  return all.map(v => new Date(v * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: long ? undefined : "2-digit", hour12: false }));
}

/// From 0, or as far down as what goes down needs. A WAF is of interest from 1 on, but the host's part is a part.
function room(chart, min, max) {
  const low = chart.lines.some(one => one.down) ? Math.min(0, min ?? 0) * 1.1 : 0;
  const high = Math.max(0, max ?? 0) * 1.1;
  return low === high ? [0, 1] : [low, high];
}

/// The charts of the page.
export class Charts {
  constructor() { this.all = []; this.make(); }

  make() {
    this.all = Object.entries(CHARTS).map(([name, chart]) => new Chart(document.getElementById("chart_" + name), chart));
    this.wear = new Wear(document.getElementById("chart_wear"));
  }

  draw(rows, from, to) { for (const chart of this.all) if (chart.width && chart.part.offsetParent) chart.draw(rows, from, to); }

  /// Colours are those of the moment they were made.
  anew() { for (const chart of [...this.all, this.wear]) chart.drop(); }
}

/// How many blocks were erased how often: bars over erase counts, not over time.
class Wear extends Chart {
  constructor(part) { super(part, { lines: [] }); }

  show(shards) {
    const tiers = ["wear", "wear_fast"].map(name => {
      const bins = new Map();
      for (const bin of shards.flatMap(shard => shard[name])) bins.set(bin.erase_count, (bins.get(bin.erase_count) || 0) + bin.blocks);
      return bins;
    });
    const counts = [...new Set(tiers.flatMap(bins => [...bins.keys()]))].sort((a, b) => a - b);
    this.part.classList.toggle("empty", !counts.length);
    if (!counts.length) { this.drop(); return; }
    // The fast tier's lie on top of the others.
    const [capacity, fast] = tiers.map(bins => counts.map(count => bins.get(count) || 0));
    const tops = capacity.map((blocks, i) => blocks + fast[i]);
    this.plain = [fast, capacity];
    const data = [counts, tops, capacity];
    if (!this.plot) this.plot = new uPlot(this.wearOptions(tiers[1].size > 0), data, this.part);
    const step = counts.length > 1 ? counts[1] - counts[0] : 1;
    this.plot.setData(data, false);
    this.plot.setScale("x", { min: counts[0] - step, max: counts.at(-1) + step });
    this.plot.setScale("y", { min: 0, max: Math.max(...tops) * 1.1 });
  }

  wearOptions(tiered) {
    const ink = css("--dim"), grid = { stroke: css("--line"), width: 1 }, axis = { stroke: ink, grid, ticks: grid, font: "11px system-ui" };
    const whole = (u, all) => all.map(v => Number.isInteger(v) && v >= 0 ? count(v) : "");
    const bars = (label, color, index) => ({ label, stroke: color, width: 0, fill: color, points: { show: false }, show: index === 1 || tiered,
      paths: uPlot.paths.bars({ size: [.8, 60] }), value: (u, v, s, at) => at === null ? "–" : count(this.plain[index][at]) });
    return { width: this.width, height: this.height, scales: { x: { time: false, auto: false }, y: { auto: false } }, padding: [8, 8, 0, 0],
      axes: [{ ...axis, size: 32, values: whole, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000] }, { ...axis, size: 66, values: whole }],
      cursor: { drag: { x: false, y: false } },
      series: [{ label: "erases", value: (u, v) => v === null ? "–" : count(v) }, bars("fast tier", css("--violet"), 0), bars(tiered ? "capacity tier" : "blocks", css("--teal"), 1)],
      hooks: { draw: [plot => this.note(plot)] } };
  }
}

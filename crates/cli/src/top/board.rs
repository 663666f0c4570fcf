//! What the screen shows, without a terminal: the last looks at a server as tables that can be sorted and filtered, and
//! what a key does. Pure.

use super::{grown, rates};
use crate::latency::time;
use crate::size::bytes;
use crate::status::array;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use serde_json::Value;
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// What a server said at one time.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// Its status.
    pub status: Value,
    /// Rows of its history that are new.
    pub history: Value,
    /// Its slow requests; null if it tells none.
    pub slow: Value,
    /// Since the look before; 0 for the first.
    pub seconds: f64,
}

/// The tables, in the order of their keys.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Part {
    Units,
    Volumes,
    Slow,
}

impl Part {
    pub const ALL: [Part; 3] = [Part::Units, Part::Volumes, Part::Slow];

    pub fn name(self) -> &'static str {
        ["units", "volumes", "slow requests"][self as usize]
    }

    pub fn heads(self) -> &'static [&'static str] {
        match self {
            Part::Units => {
                &["unit", "tier", "busy", "queued", "free", "valid", "erases", "last reason"]
            }
            Part::Volumes => &[
                "volume", "size", "reads/s", "read", "p50", "p99", "p99.9", "writes/s", "written",
                "p50", "p99", "p99.9",
            ],
            Part::Slow => &["ago", "volume", "what", "offset", "length", "took", "why"],
        }
    }
}

/// A cell: what is shown, and what it is sorted by.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    pub text: String,
    /// Of numbers; text is sorted by itself.
    pub number: Option<f64>,
}

/// What a row is beside its cells.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Mark {
    #[default]
    None,
    Fast,
    Gone,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    pub cells: Vec<Cell>,
    pub mark: Mark,
}

/// How a table is looked at.
#[derive(Clone, Debug)]
pub struct Sight {
    /// The column it is sorted by.
    pub sort: usize,
    /// Largest first.
    pub down: bool,
    /// Only lines that hold this.
    pub filter: String,
    /// Lines above the first one that is shown.
    pub above: usize,
}

/// The newest values of a column of the history.
const TRAIL_MAX: usize = 600;
/// Columns that lines are drawn of.
pub const TRAILS: [&str; 4] = ["read_per_sec", "write_per_sec", "read_p99_ns", "write_p99_ns"];
/// Why bytes are programmed: the host's writes first.
pub const REASONS: [&str; 7] = ["host", "gc", "destage", "kept", "padding", "checkpoint", "other"];
/// Rows over which a WAF is told: of one step it jumps, as GC and checkpoints come in bursts.
const WAF_ROWS: usize = 10;

/// All that is shown.
pub struct Board {
    pub place: String,
    pub now: Option<Look>,
    before: Value,
    pub rates: Value,
    /// Of [`TRAILS`], oldest first.
    pub trails: BTreeMap<&'static str, Vec<u64>>,
    /// Of [`REASONS`], those of the last steps.
    programmed: Vec<[f64; REASONS.len()]>,
    /// The last row of the history.
    pub recent: BTreeMap<String, f64>,
    volumes: Value,
    /// Why the last look failed, if it did.
    pub trouble: Option<String>,
    pub part: Part,
    sights: [Sight; 3],
    /// Somebody types a filter.
    pub typing: bool,
    pub help: bool,
    pub paused: bool,
    /// To be left.
    pub over: bool,
}

impl Board {
    pub fn new(place: String) -> Self {
        let sight = |sort| Sight { sort, down: true, filter: String::new(), above: 0 };
        Self {
            place,
            now: None,
            before: Value::Null,
            rates: Value::Null,
            trails: BTreeMap::new(),
            programmed: Vec::new(),
            recent: BTreeMap::new(),
            volumes: Value::Null,
            trouble: None,
            part: Part::Units,
            // The busiest units, the volumes with most reads, the slowest requests.
            sights: [sight(2), sight(2), sight(5)],
            typing: false,
            help: false,
            paused: false,
            over: false,
        }
    }

    /// Takes a look, or why there is none.
    pub fn take(&mut self, look: Result<Look, String>) {
        let look = match look {
            Ok(look) => look,
            Err(trouble) => {
                self.trouble = Some(trouble);
                return;
            }
        };
        self.trouble = None;
        self.follow(&look.history);
        if self.paused {
            return;
        }
        if let Some(before) = self.now.take().filter(|_| look.seconds > 0.0) {
            self.before = before.status;
            self.rates = rates(&self.before, &look.status, look.seconds);
        }
        self.now = Some(look);
    }

    fn follow(&mut self, history: &Value) {
        let fine = &history["fine"];
        for name in TRAILS {
            let trail = self.trails.entry(name).or_default();
            let values = array(&fine[name]).iter().map(|value| value.as_f64().unwrap_or(0.0));
            trail.extend(values.map(|value| value as u64));
            trail.drain(..trail.len().saturating_sub(TRAIL_MAX));
        }
        for row in 0..array(&fine["at_unix_ms"]).len() {
            let bytes = |name: &str| fine[format!("{name}_bytes_per_sec")][row].as_f64();
            self.programmed.push(REASONS.map(|name| bytes(name).unwrap_or(0.0)));
        }
        self.programmed.drain(..self.programmed.len().saturating_sub(WAF_ROWS));
        for (name, column) in fine.as_object().into_iter().flatten() {
            if let Some(last) = array(column).last() {
                match last.as_f64() {
                    Some(value) => self.recent.insert(name.clone(), value),
                    None => self.recent.remove(name),
                };
            }
        }
        if !history["volumes"].is_null() {
            self.volumes = history["volumes"].clone();
        }
    }

    /// What was programmed in the last steps by what hosts wrote, by [`REASONS`]; `None` if they wrote nothing.
    pub fn waf(&self) -> Option<[f64; REASONS.len()]> {
        let mut sums = [0.0; REASONS.len()];
        for row in &self.programmed {
            sums.iter_mut().zip(row).for_each(|(sum, bytes)| *sum += bytes);
        }
        let host = sums[0];
        (host > 0.0).then(|| sums.map(|sum| sum / host))
    }

    /// A key was pressed.
    pub fn press(&mut self, key: KeyEvent) {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            self.over |= key.code == KeyCode::Char('c');
            return;
        }
        if self.typing {
            return self.type_filter(key.code);
        }
        if self.help {
            self.help = false;
            return;
        }
        let columns = self.part.heads().len();
        match key.code {
            KeyCode::Char('q') => self.over = true,
            KeyCode::Char('?' | 'h') => self.help = true,
            KeyCode::Char('p') => self.paused = !self.paused,
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Esc => self.sight_mut().filter.clear(),
            KeyCode::Tab => self.part = Part::ALL[(self.part as usize + 1) % 3],
            KeyCode::BackTab => self.part = Part::ALL[(self.part as usize + 2) % 3],
            KeyCode::Char(digit @ '1'..='3') => {
                self.part = Part::ALL[digit as usize - '1' as usize];
            }
            KeyCode::Char('s' | '>') | KeyCode::Right => self.sort_by(1, columns),
            KeyCode::Char('S' | '<') | KeyCode::Left => self.sort_by(columns - 1, columns),
            KeyCode::Char('r') => {
                let sight = self.sight_mut();
                sight.down = !sight.down;
            }
            KeyCode::Down | KeyCode::Char('j') => self.scroll(1),
            KeyCode::Up | KeyCode::Char('k') => self.scroll(-1),
            KeyCode::PageDown => self.scroll(10),
            KeyCode::PageUp => self.scroll(-10),
            KeyCode::Home => self.sight_mut().above = 0,
            KeyCode::End => self.scroll(isize::MAX),
            _ => {}
        }
    }

    fn sort_by(&mut self, steps: usize, columns: usize) {
        let sight = self.sight_mut();
        sight.sort = (sight.sort + steps) % columns;
    }

    fn type_filter(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => {
                self.typing = false;
                self.sight_mut().filter.clear();
            }
            KeyCode::Backspace => drop(self.sight_mut().filter.pop()),
            KeyCode::Char(letter) => self.sight_mut().filter.push(letter),
            _ => {}
        }
        self.sight_mut().above = 0;
    }

    fn scroll(&mut self, lines: isize) {
        let last = self.lines(self.part).len().saturating_sub(1);
        let sight = self.sight_mut();
        sight.above = sight.above.saturating_add_signed(lines).min(last);
    }

    fn sight_mut(&mut self) -> &mut Sight {
        &mut self.sights[self.part as usize]
    }

    /// How a table is looked at.
    pub fn sight(&self, part: Part) -> &Sight {
        &self.sights[part as usize]
    }

    /// The lines of a table that its filter lets through, sorted.
    pub fn lines(&self, part: Part) -> Vec<Line> {
        let mut lines = match part {
            Part::Units => self.units(),
            Part::Volumes => self.volumes(),
            Part::Slow => self.slow(),
        };
        let sight = self.sight(part);
        let wanted = sight.filter.to_lowercase();
        let holds = |line: &Line| {
            let mut cells = line.cells.iter();
            cells.any(|cell| cell.text.to_lowercase().contains(&wanted))
        };
        lines.retain(holds);
        // Equal ones stay in the order of their numbers.
        lines.sort_by(|a, b| {
            let order = compare(&a.cells[sight.sort], &b.cells[sight.sort]);
            if sight.down { order.reverse() } else { order }
        });
        lines
    }

    fn units(&self) -> Vec<Line> {
        let Some(now) = &self.now else { return Vec::new() };
        let mut lines = Vec::new();
        for (shard, state) in array(&now.status["shards"]).iter().enumerate() {
            let raw = &state["raw"];
            for (unit, state) in array(&state["units"]).iter().enumerate() {
                let place = format!("/shards/{shard}/units/{unit}/busy_ns");
                let busy = grown(Some(&self.before), &now.status, &place, now.seconds) / 1e9;
                lines.push(unit_line(lines.len(), state, raw, busy.min(1.0)));
            }
        }
        lines
    }

    fn volumes(&self) -> Vec<Line> {
        let Some(now) = &self.now else { return Vec::new() };
        let line = |volume: &Value| {
            let name = volume["name"].as_str().unwrap_or_default();
            let asked = array(&self.volumes).iter().find(|asked| asked["name"] == name);
            let mut cells = vec![text(name), size(volume["size_bytes"].as_f64())];
            for op in ["read", "write"] {
                let of = |key: &str| asked.and_then(|asked| asked[op][key].as_f64());
                let per_sec = of("per_sec").unwrap_or(0.0);
                cells.push(number(per_sec, format!("{per_sec:.0}")));
                let rate = size(of("bytes_per_sec").or(Some(0.0)));
                cells.push(Cell { text: format!("{}/s", rate.text), ..rate });
                cells.extend(["p50_ns", "p99_ns", "p999_ns"].map(|key| match of(key) {
                    Some(ns) => number(ns, time(ns)),
                    None => number(-1.0, "–".into()),
                }));
            }
            Line { cells, mark: Mark::None }
        };
        array(&now.status["volumes"]).iter().map(line).collect()
    }

    fn slow(&self) -> Vec<Line> {
        let Some(now) = &self.now else { return Vec::new() };
        let now_ms = now.history["now_unix_ms"].as_f64().unwrap_or(0.0);
        let line = |slow: &Value| {
            let of = |key: &str| slow[key].as_f64().unwrap_or(0.0);
            let said = |key: &str| text(slow[key].as_str().unwrap_or_default());
            let ago = (now_ms - of("at_unix_ms")).max(0.0);
            let took = of("total_us") * 1e3;
            let cells = vec![
                number(ago, format!("{:.0} s", ago / 1e3)),
                said("volume"),
                said("op"),
                size(Some(of("offset"))),
                size(Some(of("length"))),
                number(took, time(took)),
                said("told"),
            ];
            Line { cells, mark: Mark::None }
        };
        array(&now.slow["slow"]).iter().map(line).collect()
    }
}

fn unit_line(index: usize, state: &Value, raw: &Value, busy: f64) -> Line {
    let count = |key: &str| state[key].as_u64().unwrap_or(0);
    let queued = ["reads_queued", "appends_queued", "writes_queued", "erases_queued"];
    let queued: u64 = queued.iter().map(|key| count(key)).sum();
    let fast = state["tier"] == "fast";
    let free = if raw.is_null() { count("bands_free") } else { count("raw_blocks_erased") };
    let valid = match raw["page_bytes"].as_u64() {
        Some(page) => count("pages_written") * page,
        None => count("slots_valid") * flash::BLOCK_BYTES as u64,
    };
    let mark = match (state["gone"] == true, fast) {
        (true, _) => Mark::Gone,
        (_, true) => Mark::Fast,
        _ => Mark::None,
    };
    let wear = format!("{} to {}", state["erase_count_min"], state["erase_count_max"]);
    let tier = if fast { "fast" } else { "capacity" };
    let cells = vec![
        number(index as f64, index.to_string()),
        text(if mark == Mark::Gone { "GONE" } else { tier }),
        number(busy, format!("{:.0} %", busy * 100.0)),
        number(queued as f64, queued.to_string()),
        number(free as f64, free.to_string()),
        size(Some(valid as f64)),
        number(count("erase_count_max") as f64, wear),
        text(state["last_reason"].as_str().unwrap_or_default()),
    ];
    Line { cells, mark }
}

fn text(text: &str) -> Cell {
    Cell { text: text.into(), number: None }
}

fn number(number: f64, text: String) -> Cell {
    Cell { text, number: Some(number) }
}

fn size(value: Option<f64>) -> Cell {
    let value = value.unwrap_or(0.0);
    number(value, bytes(value as u64))
}

fn compare(a: &Cell, b: &Cell) -> Ordering {
    match (a.number, b.number) {
        (Some(a), Some(b)) => a.total_cmp(&b),
        // Names from a to z when numbers go from the largest down.
        _ => b.text.cmp(&a.text),
    }
}

//! What commands print: JSON for scripts, aligned tables for people, progress on a terminal.

use serde_json::Value;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// Prints one JSON value on standard output.
pub fn print_json(value: &Value) {
    let text = serde_json::to_string_pretty(value).expect("a JSON value has no odd keys");
    print(&format!("{text}\n"));
}

/// Prints text on standard output at once. A reader that went away is no error of ours; but what cannot be written for
/// another reason, as to a full disk, ends the command: whoever asked for it would think that it is all there.
pub fn print(text: &str) {
    if let Err(error) = try_print(text)
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        eprintln!("weir: standard output cannot be written: {error}");
        std::process::exit(2);
    }
}

/// The same for a server, which serves whether or not anybody reads what it says.
pub fn say(text: &str) {
    try_print(text).ok();
}

/// Prints text on standard output at once, for who goes on whatever becomes of it, or ends with its reader.
///
/// # Errors
/// It cannot be written.
pub fn try_print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush())
}

/// Rows as columns of equal width, the last one ragged. What a terminal would act on is shown as Rust writes it.
pub fn table(rows: &[Vec<String>]) -> String {
    let clean = |cell: &String| match cell.contains(char::is_control) {
        true => cell.escape_debug().to_string(),
        false => cell.clone(),
    };
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(clean).collect()).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let pad = width - cell.chars().count();
            line.push_str(cell);
            line.extend(std::iter::repeat_n(' ', pad + 2));
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// Tells on standard error how far something has come: only after two seconds, and on a terminal
/// in one line that is drawn anew.
pub struct Progress {
    what: String,
    begun: Instant,
    told: Option<Instant>,
    terminal: bool,
}

const QUIET: Duration = Duration::from_secs(2);

impl Progress {
    /// Begins; says nothing yet.
    pub fn new(what: impl Into<String>) -> Self {
        let terminal = io::stderr().is_terminal();
        Self { what: what.into(), begun: Instant::now(), told: None, terminal }
    }

    /// So much of the whole is done, and what is left takes as long. Cheap enough to call often, not in an
    /// inner loop.
    pub fn at(&mut self, done: u64, whole: u64) {
        if self.is_silent() {
            return;
        }
        let share = done.min(whole) as f64 / whole.max(1) as f64;
        let left = time_left(self.begun.elapsed(), share);
        self.tell(&format!("{:.0} %{left}", share * 100.0));
    }

    fn is_silent(&self) -> bool {
        let pause =
            if self.terminal { Duration::from_millis(200) } else { Duration::from_secs(10) };
        self.told.map_or(self.begun.elapsed() < QUIET, |told| told.elapsed() < pause)
    }

    /// Says something about where it is.
    pub fn tell(&mut self, state: &str) {
        if self.is_silent() {
            return;
        }
        self.told = Some(Instant::now());
        let seconds = self.begun.elapsed().as_secs();
        if self.terminal {
            eprint!("\r\x1b[K{}: {state} after {seconds} s", self.what);
        } else {
            eprintln!("{}: {state} after {seconds} s", self.what);
        }
    }

    /// Takes away what stands there, so that other text can be printed.
    pub fn clear(&self) {
        if self.terminal && self.told.is_some() {
            eprint!("\r\x1b[K");
        }
    }
}

/// How long what is left takes, if that can be said.
fn time_left(elapsed: Duration, share: f64) -> String {
    if share < 0.01 {
        return String::new();
    }
    let seconds = (elapsed.as_secs_f64() * (1.0 - share) / share).ceil() as u64;
    match seconds {
        0..120 => format!(", {seconds} s left,"),
        120..7200 => format!(", {} min left,", seconds.div_ceil(60)),
        _ => format!(", {} h left,", seconds.div_ceil(3600)),
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::{table, time_left};
    use std::time::Duration;

    #[test]
    fn the_time_left_is_told_in_units_that_can_be_read_once_it_can_be_guessed() {
        let left = |seconds, share| time_left(Duration::from_secs(seconds), share);
        assert_eq!(left(10, 0.001), "");
        assert_eq!(left(10, 0.25), ", 30 s left,");
        assert_eq!(left(60, 0.1), ", 9 min left,");
        assert_eq!(left(600, 0.02), ", 9 h left,");
        assert_eq!(left(600, 1.0), ", 0 s left,");
    }

    #[test]
    fn columns_line_up_and_lines_have_no_tail() {
        let row = |cells: &[&str]| cells.iter().map(|cell| cell.to_string()).collect::<Vec<_>>();
        let text = table(&[row(&["a", "long", "x"]), row(&["bbb", "c"])]);
        assert_eq!(text, "a    long  x\nbbb  c\n");
        assert_eq!(table(&[row(&["a\n\u{1b}[31m", "ä"])]), "a\\n\\u{1b}[31m  ä\n");
    }
}

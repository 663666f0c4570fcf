//! The terminal of `weir top`: a thread asks the server, this one draws and takes keys, so that a server which does not
//! answer holds up no key. Whatever ends it, a key, a signal or a panic, the terminal is as it was.

use super::board::{Board, Look};
use super::view;
use crate::{End, Failure, stop};
use client::{Place, http};
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use serde_json::Value;
use std::io::IsTerminal;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::time::{Duration, Instant};

/// Longest until a signal or a look is seen.
const TICK: Duration = Duration::from_millis(100);
/// Before a server that did not answer is asked again.
const AGAIN: Duration = Duration::from_secs(1);

/// Shows a server until somebody leaves. One that cannot be reached is told before anything is drawn; one that goes
/// away later is waited for.
pub fn run(place: &Place, interval: Duration) -> Result<End, Failure> {
    let mut asker = Asker::new(place.clone());
    let first = asker.look()?;
    let mut board = Board::new(place.to_string());
    board.take(Ok(first));
    let (sender, looks) = mpsc::sync_channel(1);
    let asking = move || {
        loop {
            std::thread::sleep(interval.max(TICK / 2));
            let look = asker.look();
            let failed = look.is_err();
            // Nobody listens any more: the screen is closed.
            if sender.send(look).is_err() {
                return;
            }
            if failed {
                std::thread::sleep(AGAIN);
            }
        }
    };
    begin("asker", asking)?;
    stop::listen();
    end_with_terminal()?;
    // It also sees to it that a panic restores the terminal before it is told.
    let terminal = ratatui::try_init().map_err(|error| {
        format!("this terminal cannot be used ({error}): try `weir top --count 5`")
    })?;
    let result = show(terminal, &mut board, &looks);
    ratatui::restore();
    result.map(|()| End::Good).map_err(|error| format!("the terminal: {error}"))
}

/// Ends the process once its terminal is gone. A signal tells that only who does not ignore it, and what reads keys would
/// ask a terminal that is gone for ever, at the full cost of a processor.
fn end_with_terminal() -> Result<(), Failure> {
    let wait = || {
        let mut terminal = libc::pollfd { fd: libc::STDIN_FILENO, events: 0, revents: 0 };
        // SAFETY: it is one descriptor, and lives until the call returns.
        while unsafe { libc::poll(&mut terminal, 1, -1) } < 0 {}
        stop::interrupted();
    };
    if !std::io::stdin().is_terminal() {
        return Ok(());
    }
    begin("terminal", wait)
}

/// Begins a thread that ends with the process, or by itself.
fn begin(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    let begun = std::thread::Builder::new().name(name.into()).spawn(work);
    begun.map(drop).map_err(|error| format!("a thread cannot be started: {error}"))
}

fn show(
    mut terminal: ratatui::DefaultTerminal,
    board: &mut Board,
    looks: &Receiver<Result<Look, String>>,
) -> std::io::Result<()> {
    let mut changed = true;
    while !board.over && !stop::is_wished() {
        loop {
            match looks.try_recv() {
                Ok(look) => board.take(look),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return Ok(()),
            }
            changed = true;
        }
        if changed {
            terminal.draw(|frame| view::draw(frame, board))?;
            changed = false;
        }
        if event::poll(TICK)? {
            match event::read()? {
                Event::Key(key) if key.kind != KeyEventKind::Release => board.press(key),
                _ => {}
            }
            changed = true;
        }
    }
    Ok(())
}

/// Asks a server for all that is shown.
struct Asker {
    place: Place,
    /// The last row of its history that is known.
    since: u64,
    last: Option<Instant>,
}

impl Asker {
    fn new(place: Place) -> Self {
        Self { place, since: 0, last: None }
    }

    fn look(&mut self) -> Result<Look, String> {
        let status = super::ask_status(&self.place)?;
        let at = Instant::now();
        // A server of another version may not tell these.
        let history = self.ask(&format!("/history?since={}", self.since));
        let slow = self.ask("/slow");
        if let Some(last) = history["fine"]["at_unix_ms"].as_array().and_then(|rows| rows.last()) {
            self.since = last.as_u64().unwrap_or(self.since);
        }
        let before = self.last.replace(at);
        let seconds = before.map_or(0.0, |before| (at - before).as_secs_f64());
        Ok(Look { status, history, slow, seconds })
    }

    fn ask(&self, path: &str) -> Value {
        let answer = http::get(&self.place, path).ok();
        answer.and_then(|body| serde_json::from_str(&body).ok()).unwrap_or_default()
    }
}

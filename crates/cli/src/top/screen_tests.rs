//! The screen without a terminal: looks are given, keys are pressed, and what is drawn is read.

use super::board::{Board, Look, Mark, Part};
use super::view;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use serde_json::{Value, json};

/// A server of six units, of which the last two are fast; unit `n` was busy for `n` tenths of a second a second.
fn look(seconds: u64) -> Look {
    let unit = |n: u64| {
        json!({
            "tier": if n >= 4 { "fast" } else { "capacity" }, "slots": 1000, "reads_queued": n, "appends_queued": 0, "busy_ns": n * seconds * 100_000_000,
            "bands_free": 9 - n, "slots_valid": 256 * n, "erase_count_min": 1, "erase_count_max": 10 + n,
            "gone": n == 1, "last_reason": if n == 3 { "erased for space" } else { "" },
        })
    };
    let units: Vec<Value> = (0..6).map(unit).collect();
    let requests =
        json!({ "read": { "count": 1000 * seconds }, "write": { "count": 500 * seconds } });
    let status = json!({
        "version": "7.7", "volumes": [{ "name": "alpha", "size_bytes": 1 << 30 }, { "name": "beta", "size_bytes": 1 << 20 }],
        "counters": { "host_blocks_written": 500 * seconds, "slots_programmed": 750 * seconds, "bands_free": 40, "bands_free_low": 20 },
        "latency": { "requests": requests },
        "shards": [{ "phase": "running", "connections": 2, "requests": 3, "warnings": [], "units": units }],
        "fast": { "state": "serving", "fill": 0.5, "read_hit_share": 0.25 },
    });
    let rates = |per_sec: u64| json!({ "per_sec": per_sec, "bytes_per_sec": 4096, "p50_ns": 80_000, "p99_ns": 640_000, "p999_ns": 2_000_000 });
    let history = json!({
        "now_unix_ms": 100_000,
        "fine": {
            "at_unix_ms": [98_000, 100_000], "read_per_sec": [900, 1000], "write_per_sec": [500, null], "read_p99_ns": [5e5, 6.4e5],
            "write_p99_ns": [1e6, 2e6], "host_bytes_per_sec": [1e6, 1e6], "gc_bytes_per_sec": [0, 4e5], "padding_bytes_per_sec": [0, 1e5],
        },
        "volumes": [{ "name": "alpha", "read": rates(10) }, { "name": "beta", "read": rates(990), "write": rates(500) }],
    });
    let slow = |ms: u64, told: &str| {
        json!({ "at_unix_ms": 100_000 - ms * 1000, "volume": "beta", "op": "read", "offset": 4096,
        "length": 8192, "total_us": ms as f64 * 1e3, "told": told })
    };
    let slow = json!({ "slow": [slow(9, "waited 7 ms for an erase of unit 3"), slow(40, "waited 39 ms for the server")] });
    Look { status, history, slow, seconds: if seconds > 1 { 1.0 } else { 0.0 } }
}

fn board() -> Board {
    let mut board = Board::new("somewhere".into());
    board.take(Ok(look(1)));
    board.take(Ok(look(2)));
    board
}

fn press(board: &mut Board, keys: &str) {
    for key in keys.chars() {
        let code = match key {
            '\n' => KeyCode::Enter,
            '\t' => KeyCode::Tab,
            '\x1b' => KeyCode::Esc,
            key => KeyCode::Char(key),
        };
        board.press(KeyEvent::new(code, KeyModifiers::NONE));
    }
}

/// What a terminal of this size shows, line by line.
fn drawn(board: &Board, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| view::draw(frame, board)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y: u16| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..height).map(|y| line(y).trim_end().to_owned()).collect()
}

fn firsts(board: &Board, part: Part) -> Vec<String> {
    board.lines(part).iter().map(|line| line.cells[0].text.clone()).collect()
}

#[test]
fn one_look_tells_rates_latencies_waf_by_reason_volumes_units_and_marks_the_fast_ones() {
    let board = board();
    let text = drawn(&board, 140, 45).join("\n");
    for told in [
        "Weir 7.7 at somewhere: running; 2 clients, 3 requests",
        "1000/s",
        "p99 640 µs",
        "1.250 = 1 + gc 0.20 + padding 0.05",
        "40, GC starts below 20",
        "serving, 50.0 % full, 25 % of reads",
        "reads/s, at most 1000/s",
        "volumes: 2",
        "alpha",
        "990",
        "units: 6",
        "busy ↓",
        "50 %",
        "erased for space",
    ] {
        assert!(text.contains(told), "{told}\n{text}");
    }
    let marks: Vec<Mark> = board.lines(Part::Units).iter().map(|line| line.mark).collect();
    let [none, fast, gone] = [Mark::None, Mark::Fast, Mark::Gone];
    assert_eq!(marks, [fast, fast, none, none, gone, none], "the busiest first");
}

#[test]
fn keys_sort_turn_round_filter_and_go_to_other_tables() {
    let mut board = board();
    assert_eq!(firsts(&board, Part::Units), ["5", "4", "3", "2", "1", "0"]);
    press(&mut board, "r");
    assert_eq!(firsts(&board, Part::Units), ["0", "1", "2", "3", "4", "5"]);
    press(&mut board, "ss");
    assert_eq!(
        firsts(&board, Part::Units),
        ["5", "4", "3", "2", "1", "0"],
        "by free bands, fewest first"
    );
    press(&mut board, "S/FAST");
    assert!(board.typing);
    assert_eq!(firsts(&board, Part::Units), ["4", "5"]);
    press(&mut board, "\n");
    assert!(drawn(&board, 100, 30).join("\n").contains("units: 2 only \"FAST\""));
    press(&mut board, "\x1b");
    assert_eq!(firsts(&board, Part::Units).len(), 6, "Esc drops the filter");
    press(&mut board, "\t");
    assert_eq!(
        (board.part, firsts(&board, Part::Volumes)),
        (Part::Volumes, vec!["beta".into(), "alpha".into()])
    );
    press(&mut board, "SS");
    assert_eq!(firsts(&board, Part::Volumes), ["alpha", "beta"], "names go from a to z");
    press(&mut board, "3");
    let text = drawn(&board, 120, 40).join("\n");
    assert!(text.contains("waited 39 ms for the server") && text.contains("40 s"), "{text}");
    assert_eq!(firsts(&board, Part::Slow), ["40 s", "9 s"], "the slowest first");
    press(&mut board, "q");
    assert!(board.over);
}

#[test]
fn a_key_of_a_filter_is_a_letter_and_control_c_leaves_from_anywhere() {
    let mut board = board();
    press(&mut board, "/q?p");
    assert!(!board.over && !board.help && !board.paused);
    assert_eq!(board.sight(Part::Units).filter, "q?p");
    board.press(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL));
    assert!(board.over);
}

#[test]
fn a_server_that_is_gone_is_told_and_what_was_seen_stays() {
    let mut board = board();
    board.take(Err("refused".into()));
    let lines = drawn(&board, 100, 30);
    assert!(lines[0].contains("NO ANSWER, so this is old: refused"), "{lines:?}");
    assert_eq!(firsts(&board, Part::Units).len(), 6);
    // One that was started anew counts from 0: no rate is negative, none is huge.
    board.take(Ok(look(1)));
    board.take(Ok(Look { seconds: 1.0, ..look(1) }));
    let text = drawn(&board, 100, 30).join("\n");
    assert!(!text.contains("NO ANSWER") && text.contains("0/s"), "{text}");
}

#[test]
fn a_board_that_stands_still_shows_what_it_did_and_help_closes_with_any_key() {
    let mut board = board();
    press(&mut board, "p");
    let before = drawn(&board, 100, 30);
    let mut busy = look(3);
    busy.status["shards"][0]["units"][0]["busy_ns"] = json!(9_000_000_000_u64);
    board.take(Ok(busy));
    assert_eq!(drawn(&board, 100, 30)[15..], before[15..]);
    assert!(before[0].contains("STANDS STILL"));
    press(&mut board, "?");
    assert!(drawn(&board, 100, 30).join("\n").contains("sort by the next"));
    press(&mut board, "q");
    assert!(!board.over && !board.help);
}

#[test]
fn any_size_of_terminal_and_any_server_can_be_drawn() {
    let empty = Board::new("x".into());
    let mut poor = Board::new("x".into());
    poor.take(Ok(Look { status: json!({}), ..Look::default() }));
    let mut full = board();
    for (width, height) in [(1, 1), (20, 5), (40, 12), (80, 24), (200, 60), (300, 3)] {
        for help in [false, true] {
            full.help = help;
            for board in [&empty, &poor, &full] {
                drawn(board, width, height);
            }
        }
    }
    // Scrolling has both ends.
    (0..50).for_each(|_| press(&mut full, "j"));
    drawn(&full, 80, 24);
    (0..99).for_each(|_| press(&mut full, "k"));
    assert_eq!(full.sight(Part::Units).above, 0);
}

//! How the screen of `weir top` looks.

use super::board::{Board, Line, Mark, Part, REASONS};
use crate::latency::time;
use crate::size::bytes;
use crate::status::{array, is_raw};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line as Text, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Row, Sparkline, Table};
use serde_json::Value;

/// Rows of what is told of the whole server.
const WHOLE_ROWS: u16 = 9;
/// Most volumes that are shown above another table.
const VOLUMES_SHOWN: u16 = 5;

const KEYS: &[(&str, &str)] = &[
    ("q, Ctrl-C", "leave"),
    ("?", "these keys; any key closes them"),
    ("Tab, 1 2 3", "units, volumes, slow requests"),
    ("s, → and S, ←", "sort by the next and by the previous column"),
    ("r", "turn the order round"),
    ("/", "only lines that hold what is typed; Enter keeps it, Esc drops it"),
    ("↑ ↓, PgUp, PgDn", "scroll; Home and End go to both ends"),
    ("p", "stand still, and go on"),
];

/// Draws all of it.
pub fn draw(frame: &mut Frame, board: &Board) {
    let volumes = board.lines(Part::Volumes).len() as u16;
    let above = board.part != Part::Volumes && frame.area().height >= 30;
    let volumes = if above { volumes.clamp(1, VOLUMES_SHOWN) + 3 } else { 0 };
    let [head, whole, volume_part, main, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(WHOLE_ROWS + 2),
        Constraint::Length(volumes),
        Constraint::Min(4),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    draw_head(frame, head, board);
    // Lines of the past where they do not cut off what is told.
    let trails = if whole.width >= 120 { whole.width - 84 } else { 0 };
    let [told, drawn] =
        Layout::horizontal([Constraint::Min(40), Constraint::Length(trails)]).areas(whole);
    draw_whole(frame, told, board);
    if trails > 0 {
        draw_trails(frame, drawn, board);
    }
    if volumes > 0 {
        draw_table(frame, volume_part, board, Part::Volumes);
    }
    draw_table(frame, main, board, board.part);
    draw_foot(frame, foot, board);
    if board.help {
        draw_help(frame);
    }
}

fn draw_head(frame: &mut Frame, area: Rect, board: &Board) {
    let bad = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
    if let Some(trouble) = &board.trouble {
        let text = format!("NO ANSWER, so this is old: {trouble}");
        frame.render_widget(Paragraph::new(Text::styled(text, bad)), area);
        return;
    }
    let status = board.now.as_ref().map_or(&Value::Null, |now| &now.status);
    let shards = array(&status["shards"]);
    let sum = |key: &str| shards.iter().filter_map(|shard| shard[key].as_u64()).sum::<u64>();
    let mut phases: Vec<&str> = shards.iter().filter_map(|shard| shard["phase"].as_str()).collect();
    phases.dedup();
    let warnings = shards.iter().flat_map(|shard| array(&shard["warnings"]));
    let warnings: Vec<&str> = warnings.filter_map(Value::as_str).collect();
    let mut spans = vec![
        Span::styled("Weir", Style::new().add_modifier(Modifier::BOLD)),
        Span::raw(format!(
            " {} at {}: {}; {} clients, {} requests",
            status["version"].as_str().unwrap_or_default(),
            board.place,
            phases.join(", "),
            sum("connections"),
            sum("requests"),
        )),
    ];
    if board.paused {
        spans.push(Span::styled("  STANDS STILL", Style::new().fg(Color::Yellow)));
    }
    if let Some(warning) = warnings.first() {
        spans.push(Span::styled(format!("  {warning}"), bad));
    }
    frame.render_widget(Paragraph::new(Text::from(spans)), area);
}

/// What all of the server does.
fn draw_whole(frame: &mut Frame, area: Rect, board: &Board) {
    let text: Vec<Text> = whole(board)
        .into_iter()
        .map(|(name, value)| {
            Text::from(vec![
                Span::styled(format!(" {name:<11}"), Style::new().fg(Color::DarkGray)),
                Span::raw(value),
            ])
        })
        .collect();
    frame.render_widget(Paragraph::new(text).block(Block::bordered().title(" now ")), area);
}

fn whole(board: &Board) -> Vec<(&'static str, String)> {
    let status = board.now.as_ref().map_or(&Value::Null, |now| &now.status);
    let number = |key: &str| board.rates[key].as_f64().unwrap_or(0.0);
    let rate = |key: &str| format!("{}/s", bytes(number(key) as u64));
    let row = |name: &str| board.recent.get(name).copied();
    let percentiles = |op: &str| {
        let of = |key: &str| row(&format!("{op}_{key}_ns")).map_or("–".into(), time);
        format!("p50 {}, p99 {}, p99.9 {}", of("p50"), of("p99"), of("p999"))
    };
    let asked = |op: &str, moved: &str| {
        let per_sec = format!("{:.0}/s", number(&format!("{op}s_per_sec")));
        format!("{per_sec:<10} {:<14} {}", rate(moved), percentiles(op))
    };
    let counter = |name: &str| status["counters"][name].as_u64().unwrap_or(0);
    let erases = format!("{:.1}/s", number("erases_per_sec"));
    let mut told = vec![
        ("reads", asked("read", "read_bytes_per_sec")),
        ("writes", asked("write", "write_bytes_per_sec")),
        ("flushes", format!("{:.0}/s", number("flushes_per_sec"))),
        ("programmed", rate("programmed_bytes_per_sec")),
    ];
    // Raw units move nothing by themselves.
    if is_raw(status) {
        let units = array(&status["shards"]).iter().flat_map(|shard| array(&shard["units"]));
        let erased: u64 = units.filter_map(|unit| unit["raw_blocks_erased"].as_u64()).sum();
        told.push(("erases", erases));
        told.push(("erased", format!("{erased} raw blocks")));
    } else {
        let victims = row("victims_per_sec").unwrap_or(0.0);
        let (free, low) = (counter("bands_free"), counter("bands_free_low"));
        told.insert(3, ("WAF, 20 s", waf(board)));
        told.push(("relocated", rate("relocated_bytes_per_sec")));
        told.push(("erases", format!("{erases}, {victims:.1} victims/s")));
        told.push(("free bands", format!("{free}, GC starts below {low}")));
    }
    let fast = &status["fast"];
    if let Some(state) = fast["state"].as_str() {
        let fill = fast["fill"]
            .as_f64()
            .map_or("empty".into(), |fill| format!("{:.1} % full", fill * 100.0));
        let hits = fast["read_hit_share"].as_f64().unwrap_or(0.0) * 100.0;
        let destaged = rate("destaged_bytes_per_sec");
        told.push((
            "fast tier",
            format!("{state}, {fill}, {hits:.0} % of reads, destage {destaged}"),
        ));
    }
    told
}

/// The WAF of the last steps, and why it is more than 1 where it is.
fn waf(board: &Board) -> String {
    let Some(parts) = board.waf() else { return "no writes".into() };
    let named = REASONS.iter().zip(parts).skip(1).filter(|(_, part)| *part >= 0.005);
    let told: String = named.map(|(name, part)| format!(" + {name} {part:.2}")).collect();
    let equals = if told.is_empty() { "" } else { " = 1" };
    format!("{:.3}{equals}{told}", parts.iter().sum::<f64>())
}

/// The last minutes, as many as there is room for.
fn draw_trails(frame: &mut Frame, area: Rect, board: &Board) {
    let rows = Layout::vertical([Constraint::Ratio(1, 4); 4]).split(area);
    for ((name, title), area) in [
        ("read_per_sec", "reads/s"),
        ("write_per_sec", "writes/s"),
        ("read_p99_ns", "read p99"),
        ("write_p99_ns", "write p99"),
    ]
    .into_iter()
    .zip(rows.iter())
    {
        let trail = board.trails.get(name).map_or(&[][..], Vec::as_slice);
        let shown = &trail[trail.len().saturating_sub(usize::from(area.width))..];
        let most = shown.iter().max().copied().unwrap_or(0);
        let most = if name.ends_with("_ns") { time(most as f64) } else { format!("{most}/s") };
        let block = Block::new().title(format!(" {title}, at most {most}"));
        let line = Sparkline::default().data(shown.iter()).style(Style::new().fg(Color::Cyan));
        frame.render_widget(line.block(block), *area);
    }
}

fn draw_table(frame: &mut Frame, area: Rect, board: &Board, part: Part) {
    let (lines, sight, heads) = (board.lines(part), board.sight(part), part.heads());
    let room = usize::from(area.height.saturating_sub(3)).max(1);
    let first = sight.above.min(lines.len().saturating_sub(room));
    let shown = &lines[first..lines.len().min(first + room)];
    let widths: Vec<Constraint> = (0..heads.len())
        .map(|column| {
            let cells = lines.iter().map(|line| line.cells[column].text.chars().count());
            let width = cells.chain([heads[column].chars().count() + 2]).max().unwrap_or(0);
            if column + 1 == heads.len() {
                Constraint::Min(8)
            } else {
                Constraint::Length(width as u16)
            }
        })
        .collect();
    let arrow = if sight.down { " ↓" } else { " ↑" };
    let head = heads.iter().enumerate().map(|(column, head)| {
        let sorted = column == sight.sort;
        let style = Style::new().fg(if sorted { Color::Cyan } else { Color::DarkGray });
        Span::styled(format!("{head}{}", if sorted { arrow } else { "" }), style)
    });
    let rows = shown.iter().map(|line| row(line));
    let filter = match (sight.filter.as_str(), board.typing && part == board.part) {
        ("", false) => String::new(),
        (filter, typing) => format!("only \"{filter}{}\" ", if typing { "▏" } else { "" }),
    };
    let of = if lines.len() > room {
        format!("{} to {} of ", first + 1, first + shown.len())
    } else {
        String::new()
    };
    let title = format!(" {}: {of}{} {filter}", part.name(), lines.len());
    let mut block = Block::bordered().title(title);
    if part == board.part {
        block = block.border_style(Style::new().fg(Color::Cyan));
    }
    frame.render_widget(Table::new(rows, widths).header(Row::new(head)).block(block), area);
}

fn row(line: &Line) -> Row<'_> {
    let style = match line.mark {
        Mark::None => Style::new(),
        Mark::Fast => Style::new().fg(Color::Magenta),
        Mark::Gone => Style::new().fg(Color::Red).add_modifier(Modifier::BOLD),
    };
    Row::new(line.cells.iter().map(|cell| cell.text.as_str())).style(style)
}

fn draw_foot(frame: &mut Frame, area: Rect, board: &Board) {
    let text = if board.typing {
        "type to filter; Enter keeps it, Esc drops it"
    } else {
        "q leave  ? keys  Tab table  s sort  r reverse  / filter  p pause"
    };
    frame.render_widget(Paragraph::new(text).style(Style::new().fg(Color::DarkGray)), area);
}

fn draw_help(frame: &mut Frame) {
    let all = frame.area();
    let (width, height) = (all.width.min(86), all.height.min(KEYS.len() as u16 + 2));
    let area = Rect { x: (all.width - width) / 2, y: (all.height - height) / 2, width, height };
    let lines = KEYS.iter().map(|(key, does)| {
        Text::from(vec![
            Span::styled(format!(" {key:<17}"), Style::new().fg(Color::Cyan)),
            Span::raw(*does),
        ])
    });
    frame.render_widget(Clear, area);
    let block = Block::bordered().title(" keys ");
    frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()).block(block), area);
}

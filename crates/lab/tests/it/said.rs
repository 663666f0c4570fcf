//! What sources say, typed a second time: a slip of the pen in one of the two is found. And what was found over
//! five seeds, as `docs/claims.md` has it: every claim is there, and no miss is without its reason.

use lab::experiment::{Experiment, builtin, builtin_names};
use lab::report::{Class, Statement, Value};
use toml::Table;

/// Claims whose figure is made here of what the source has in words ("linear", "the peak is at 16 slices",
/// "little variance"): judged by eye alone.
const IN_WORDS: &[&str] = &[
    "gen3-writes-flat-after",
    "gen3-writes-high-at-few-slices",
    "intel-spikes-at-44-mb",
    "sdf-compaction-share-falls",
    "sdf-eight-slices-over-gen3",
    "sdf-scans-peak-at-16",
    "sdf-scans-rise-to-16",
    "sdf-still-rising-at-44",
    "sdf-write-8m-flat",
    "sdf-writes-peak-at-16",
    "sdf-writes-rise-to-16",
    "tssd-album-mean-over-intel",
];

const SAID: &[(&str, Value)] = &[
    // SDF, abstract: 95 % of the raw bandwidth (44 channels, 8192 bytes each 216 us), 99 % of the capacity.
    ("sdf-share-of-raw-read", Value::Number(1.586)),
    ("sdf-usable", Value::Number(99.0)),
    // SDF, abstract: 300 % more bandwidth, half the cost a GB.
    ("sdf-bandwidth-over-gen3", Value::Number(4.0)),
    ("sdf-bandwidth-over-intel-320", Value::Number(4.0)),
    ("sdf-bytes-for-the-flash", Value::Number(2.0)),
    // SDF, Table 1: 73 to 81 % of the raw reads, 41 to 51 % of the raw writes; Gen3's are 1.6 and 0.95 GB/s.
    ("gen3-share-of-raw-read", Value::Range(1.168, 1.296)),
    ("gen3-share-of-raw-write", Value::Range(0.39, 0.485)),
    // SDF, Table 4: random reads of 8, 16 and 64 KiB, reads and writes of 8 MB; GB/s.
    ("sdf-read-8k", Value::Number(1.23)),
    ("sdf-read-16k", Value::Number(1.42)),
    ("sdf-read-64k", Value::Number(1.51)),
    ("sdf-read-8m", Value::Number(1.59)),
    ("sdf-write", Value::Number(0.96)),
    ("sdf-write-8m", Value::Number(0.96)),
    ("gen3-read-8k", Value::Number(0.92)),
    ("gen3-read-16k", Value::Number(1.02)),
    ("gen3-read-64k", Value::Number(1.15)),
    ("gen3-read-8m", Value::Number(1.20)),
    ("gen3-write", Value::Number(0.67)),
    ("intel-320-read-8k", Value::Number(0.17)),
    ("intel-320-read-16k", Value::Number(0.20)),
    ("intel-320-read-64k", Value::Number(0.22)),
    ("intel-320-read-8m", Value::Number(0.22)),
    ("intel-320-write", Value::Number(0.13)),
    // SDF, Figure 7: linear, reads until PCIe is full (at 42 channels), writes with all 44.
    ("sdf-reads-linear-in-channels", Value::Number(32.0)),
    ("sdf-writes-linear-in-channels", Value::Number(44.0)),
    // SDF, Figure 8: ms.
    ("sdf-write-8m-mean", Value::Number(383.0)),
    ("sdf-write-352m-mean", Value::Number(383.0)),
    ("gen3-write-8m-mean", Value::Number(73.0)),
    ("gen3-write-8m-least", Value::Number(7.0)),
    ("gen3-write-8m-most", Value::Number(650.0)),
    ("gen3-write-352m-mean", Value::Number(2940.0)),
    ("gen3-write-352m-variation", Value::Number(0.25)),
    // SDF, abstract: a commodity drive gives at most 40 % of its raw bandwidth, 50 to 70 % of its capacity.
    ("gen3-at-most-two-fifths-of-raw-read", Value::Number(0.64)),
    ("gen3-usable", Value::Range(50.0, 70.0)),
    // SDF, Figures 13 and 14: 1.59 over 1.20 GB/s, and about 1 GB/s.
    ("sdf-scans-over-gen3", Value::Number(1.325)),
    ("sdf-slices-writes", Value::Number(1.0)),
    // MQSim's own runs on its default device: ms, 1/s.
    ("mqsim-read-one", Value::Number(0.10244)),
    ("mqsim-write-one", Value::Number(0.7775)),
    ("mqsim-reads", Value::Number(183_747.0)),
    ("mqsim-writes", Value::Number(41_053.0)),
    ("mqsim-mixed", Value::Number(77_741.0)),
    ("mqsim-mixed-read-p99", Value::Number(0.899)),
    ("mqsim-mixed-write-p99", Value::Number(6.4)),
    // TSSD, Figures 6 and 7: ms, %, and "1.5 times", "70 % more".
    ("tssd-read-mean", Value::Range(0.13, 0.17)),
    ("tssd-read-p999", Value::Number(3.0)),
    ("tssd-read-max", Value::Number(10.0)),
    ("tssd-no-spikes", Value::Number(0.0)),
    ("tssd-reads-over-fusion-io", Value::Number(1.5)),
    ("tssd-reads-over-intel", Value::Number(1.7)),
    ("intel-mean-at-44-mb", Value::Number(3.0)),
    // TSSD: the service level, with writes held at 10 MB/s.
    ("intel-spikes-at-10-mb", Value::Number(0.1)),
    // TSSD, Figures 8 to 10: ms at one time the load, the multiples, spikes in %.
    ("intel-album-mean", Value::Number(15.0)),
    ("intel-chat-mean", Value::Number(14.0)),
    ("intel-moments-mean", Value::Number(13.0)),
    ("tssd-album-multiple", Value::Number(45.0)),
    ("tssd-chat-multiple", Value::Number(14.0)),
    ("tssd-chat-mean-at-one", Value::Number(5.0)),
    ("tssd-moments-mean-at-one", Value::Number(2.0)),
    ("tssd-moments-spikes-at-one", Value::Number(0.01)),
    ("tssd-moments-multiple", Value::Number(30.0)),
    ("tssd-album-spikes", Value::Number(0.01)),
    ("tssd-chat-spikes-at-one", Value::Number(0.01)),
    ("tssd-chat-spikes", Value::Number(0.01)),
    ("tssd-moments-spikes", Value::Number(0.01)),
    ("tssd-album-parts-multiple", Value::Number(45.0)),
    ("tssd-album-parts-spikes", Value::Number(0.01)),
    ("tssd-moments-gathered-multiple", Value::Number(30.0)),
    ("tssd-moments-gathered-spikes", Value::Number(0.01)),
    ("tssd-album-slo-multiple", Value::Number(22.0)),
    ("tssd-chat-slo-multiple", Value::Number(22.0)),
    ("tssd-moments-slo-multiple", Value::Number(22.0)),
    ("intel-album-spikes-at-one", Value::Number(1.0)),
    ("intel-album-spikes-at-two", Value::Number(1.0)),
    ("intel-album-spikes-at-three", Value::Number(8.0)),
    ("intel-album-spikes-at-four", Value::Number(9.0)),
    ("intel-chat-spikes", Value::Number(6.0)),
    ("intel-moments-spikes", Value::Number(6.0)),
    // AutoStream: up to 60 % less and 237 % more; WAF -39 and -42 %, TPS +6 and +2 %, tpmC 144 and 129 %,
    // which reads as more than the legacy one, or as a share of it.
    ("autostream-best-waf", Value::Number(0.40)),
    ("autostream-best-performance", Value::Number(3.37)),
    ("autostream-containers-waf-sfr", Value::Number(0.61)),
    ("autostream-containers-waf-multiq", Value::Number(0.58)),
    ("autostream-containers-tps-sfr", Value::Number(1.06)),
    ("autostream-containers-tps-multiq", Value::Number(1.02)),
    ("autostream-containers-tpmc-sfr", Value::Number(2.44)),
    ("autostream-containers-tpmc-multiq", Value::Number(2.29)),
    ("autostream-containers-tpmc-sfr-of-legacy", Value::Number(1.44)),
    ("autostream-containers-tpmc-multiq-of-legacy", Value::Number(1.29)),
    // Sandook: 1.7 times the raw throughput.
    ("pool-unlike-90-over-static", Value::Number(1.7)),
    // Sandook, steering: 1.6 M/s violate the service level of 1 ms without profiles, and meet it with them.
    ("pool-demand-static", Value::Number(1.0)),
    ("pool-demand-solver", Value::Number(1.0)),
    // Sandook, segregation: three SSDs carry 1.2 M/s mixed and 2.2 segregated.
    ("pool-three-mixed", Value::Number(1.2)),
    ("pool-three-segregated", Value::Number(2.2)),
    // Sandook, conclusion: about twice for the same cost. Of seven drives that a demand needs, four: in ms.
    ("pool-needed-static-six", Value::Number(1.0)),
    ("pool-needed-static-seven", Value::Number(1.0)),
    ("pool-needed-solver-four", Value::Number(1.0)),
    // Sandook's artifact, sample run: 1.02 over 0.61 M/s at P99 with 10 % writes.
    ("pool-p99-90-over-static", Value::Number(1.67)),
];

#[test]
fn experiments_say_what_their_sources_say() {
    let systems = ["sdf-", "tssd-", "mqsim", "autostream-best", "autostream-containers", "pool-"];
    let names = builtin_names();
    let of_systems = names.iter().filter(|name| systems.iter().any(|it| name.starts_with(it)));
    let mut unseen: Vec<&str> = SAID.iter().map(|(id, _)| *id).collect();
    for name in of_systems {
        let experiment = Experiment::parse(builtin(name).expect("it is built in")).expect("whole");
        for (Statement { id, class, said, .. }, _) in experiment.statements() {
            if class == Class::Own || IN_WORDS.contains(&id.as_str()) {
                continue;
            }
            let typed = SAID.iter().find(|(typed, _)| *typed == id);
            let (_, typed) = typed.unwrap_or_else(|| panic!("{name}: {id} is not typed here"));
            assert_eq!(said, *typed, "{name}: {id}");
            unseen.retain(|seen| *seen != id);
        }
    }
    assert!(unseen.is_empty(), "no experiment has {unseen:?}");
}

/// WSR's table: MB/s of each job's writes and reads on QLC alone, behind the cache and under Weir.
type WsrRow = (&'static str, [f64; 3], Option<[f64; 3]>);
const WSR: [WsrRow; 10] = [
    ("1 SEQ 64K W", [390.0, 400.0, 400.0], None),
    ("2 RND 64K W", [60.0, 120.0, 107.0], None),
    ("3 Zipf 0.8 64K W", [60.0, 107.0, 129.0], None),
    ("4 Zipf 1.2 64K W", [60.0, 205.0, 487.0], None),
    ("5 SEQ 4K W", [5.0, 83.0, 388.0], None),
    ("6 RND 4K W", [3.0, 12.0, 105.0], None),
    ("7 RND 64K W + RND 64K R", [170.0, 107.0, 190.0], Some([100.0, 89.0, 250.0])),
    ("8 Zipf 0.8 64K W + RND 64K R", [170.0, 191.0, 264.0], Some([60.0, 89.0, 250.0])),
    ("9 SEQ 4K W + RND 4K R", [4.0, 6.0, 118.0], Some([5.0, 5.0, 118.0])),
    ("10 RND 4K W + RND 64K R", [4.0, 5.0, 108.0], Some([45.0, 74.0, 250.0])),
];
/// The table's columns: as its claims call them, and its cases.
const WSR_COLUMNS: [(&str, &str); 3] = [("qlc", "QLC alone"), ("cache", "cache"), ("weir", "Weir")];

/// The figure of a row and column, of writes or reads.
fn wsr(row: &str, column: usize, metric: &str) -> Option<f64> {
    let (_, writes, reads) = WSR.iter().find(|(name, ..)| *name == row).expect("a row of it");
    if metric == "readers.read_each" { reads.map(|it| it[column]) } else { Some(writes[column]) }
}

fn number(value: &toml::Value) -> f64 {
    value.as_float().unwrap_or_else(|| value.as_integer().expect("a number") as f64)
}

#[test]
fn wsr_says_the_same_in_claims_tables_and_figures() {
    let text = builtin("wsr-table").expect("it is built in");
    let experiment = Experiment::parse(text).expect("whole");
    let said = experiment.statements();
    for (number, (row, ..)) in (1..).zip(&WSR) {
        for (column, (id, _)) in WSR_COLUMNS.iter().enumerate() {
            for (kind, metric) in [("write", "writers.write_each"), ("read", "readers.read_each")] {
                let id = format!("wsr-{number}-{kind}-{id}");
                let claim = said.iter().find(|(claim, _)| claim.id == id);
                let typed = wsr(row, column, metric).map(Value::Number);
                assert_eq!(claim.map(|(claim, _)| claim.said.clone()), typed, "{id}");
            }
        }
    }
    let file: Table = text.parse().expect("it is TOML");
    let list = |value: &toml::Value| value.as_array().expect("a list").clone();
    let column_of = |case: &str| WSR_COLUMNS.iter().position(|(_, name)| case == *name);
    let mut compared = 0;
    for column in list(&file["table"]).iter().flat_map(|table| list(&table["column"])) {
        let Some(paper) = column.get("paper").and_then(|paper| paper.as_table()) else { continue };
        let metric = column["metric"].as_str().expect("a metric");
        let at = column_of(column["case"].as_str().expect("a case")).expect("a column");
        for (row, figure) in paper {
            assert_eq!(Some(number(figure)), wsr(row, at, metric), "table: {row}, {metric}");
            compared += 1;
        }
    }
    let rows = list(&file["sweep"]["row"]);
    for figure in list(&file["figure"]) {
        let Some(paper) = figure.get("paper") else { continue };
        let metric = figure["y"].as_str().expect("a metric");
        for series in list(paper) {
            let name = series["name"].as_str().expect("a name");
            let at = column_of(name.trim_end_matches(", paper")).expect("a column");
            for point in list(&series["points"]) {
                let row = rows[number(&point[0]) as usize].as_str().expect("a row");
                assert_eq!(Some(number(&point[1])), wsr(row, at, metric), "figure: {row}, {name}");
                compared += 1;
            }
        }
    }
    assert_eq!(compared, 2 * (30 + 12), "all of the table, twice");
}

/// Words that name a place in a source, or say that what is told was recorded or run and not written.
const PLACES: &[&str] = &[
    "abstract",
    "Figure",
    "Table",
    "Section",
    "text to",
    "slides",
    "row ",
    "recorded",
    "its own runs",
];

#[test]
fn every_claim_has_its_place_in_a_source() {
    for name in builtin_names() {
        let experiment = Experiment::parse(builtin(name).expect("it is built in")).expect("whole");
        for (Statement { id, class, source, .. }, _) in experiment.statements() {
            let placed = PLACES.iter().any(|place| source.contains(place));
            assert!(placed || class == Class::Own, "{name}: {id}: where in {source:?}?");
            assert!(!source.trim().is_empty(), "{name}: {id} is of nobody");
        }
    }
}

/// The claims over five seeds, as `weir lab claims --report` writes them.
const CLAIMS: &str = include_str!("../../../../docs/claims.md");

/// Cells of the row of a claim, which stands below the heading of its experiment.
fn row_of(experiment: &str, id: &str) -> Option<Vec<String>> {
    let (_, below) = CLAIMS.split_once(&format!("\n## {experiment}\n"))?;
    let section = below.split("\n## ").next()?;
    let row = section.lines().find(|line| line.starts_with(&format!("| `{id}` |")))?;
    Some(row.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect())
}

#[test]
fn the_page_of_claims_has_all_of_them_as_they_are_said_now_and_every_miss_has_its_reason() {
    let mut wrong = Vec::new();
    for name in builtin_names() {
        let experiment = Experiment::parse(builtin(name).expect("it is built in")).expect("whole");
        for (statement, reason) in experiment.statements() {
            let (id, said) = (&statement.id, statement.in_words());
            let Some(cells) = row_of(name, id) else {
                wrong.push(format!("{name}: {id} is not there"));
                continue;
            };
            let [_, class, told, measured, _, verdict] = &cells[..] else {
                wrong.push(format!("{name}: {id} has {} cells", cells.len()));
                continue;
            };
            if (class.as_str(), told) != (statement.class.name(), &said) || measured.is_empty() {
                wrong.push(format!("{name}: {id} is {}, {said:?} now", statement.class.name()));
            }
            let missed = ["missed", "misfit"].iter().any(|word| verdict.starts_with(word));
            let unexplained = reason.is_none_or(|reason| reason.trim().is_empty());
            if missed && unexplained {
                wrong.push(format!("{name}: {id}, {verdict}, has no reason in the file"));
            }
        }
    }
    assert!(wrong.is_empty(), "docs/claims.md: {wrong:#?}");
}

//! Reports whole: the same bytes each time, hostile text, and figures at the edge of what can be
//! drawn.

use super::drawing::escaped;
use super::index::html_of_all;
use super::*;
use std::path::Path;

fn axis(label: &str, unit: &str, scale: Scale) -> Axis {
    Axis { label: label.to_owned(), unit: unit.to_owned(), scale, categories: None }
}

fn series(name: &str, origin: Origin, style: Style, points: &[(f64, f64)]) -> Series {
    Series { name: name.to_owned(), origin, style, points: points.to_vec(), error_bars: None }
}

fn figure(id: &str, title: &str, x: Axis, y: Axis, series: Vec<Series>) -> Figure {
    let (id, title) = (id.to_owned(), title.to_owned());
    Figure { id, title, x, y, series, note: String::new() }
}

/// A figure of one series with these points.
fn small(scale: Scale, points: &[(f64, f64)]) -> Figure {
    let line = series("Weir", Origin::Weir, Style::Line, points);
    figure("small", "Small", axis("x", "s", scale), axis("y", "GB/s", scale), vec![line])
}

fn bandwidth() -> Figure {
    let names = ["8 KiB read", "16 KiB read", "64 KiB read", "8 MiB read", "8 MiB write"];
    let at = |values: [f64; 5]| {
        values.iter().enumerate().map(|(x, y)| (x as f64, *y)).collect::<Vec<_>>()
    };
    let mut x = axis("", "", Scale::Linear);
    x.categories = Some(names.map(str::to_owned).to_vec());
    let mut weir =
        series("SDF", Origin::Weir, Style::Bars, &at([1.231, 1.416, 1.527, 1.601, 0.968]));
    weir.error_bars =
        Some(weir.points.iter().map(|&(_, y)| (y - 0.03, y + 0.02)).collect::<Vec<_>>());
    let all = vec![
        series("SDF", Origin::Paper, Style::Bars, &at([1.23, 1.42, 1.51, 1.59, 0.96])),
        weir,
        series("Gen3", Origin::Paper, Style::Points, &at([0.92, 1.02, 1.15, 1.20, 0.67])),
        series("Gen3", Origin::Baseline, Style::Bars, &at([0.905, 1.03, 1.14, 1.217, 0.655])),
        series("raw flash", Origin::Bound, Style::Line, &[(0.0, 1.669)]),
    ];
    let y = axis("Bandwidth", "GB/s", Scale::Linear);
    let mut figure = figure("bandwidth", "SDF delivers 95 % of its raw bandwidth", x, y, all);
    figure.note = "44 channels, one synchronous thread each; error bars span 5 seeds.".to_owned();
    figure
}

fn latency() -> Figure {
    let distribution = |middle: f64, tail: f64| {
        let points = (0..400).map(|step| {
            let share = f64::from(step) / 400.0;
            (middle * (1.0 + share * share * share * tail), 100.0 * share)
        });
        points.collect::<Vec<_>>()
    };
    let all = vec![
        series("Weir on TSSD", Origin::Weir, Style::Steps, &distribution(150.0, 8.0)),
        series("Weir, no suspension", Origin::Weir, Style::Steps, &distribution(165.0, 60.0)),
        series("Intel 320", Origin::Baseline, Style::Steps, &distribution(300.0, 500.0)),
        series("TSSD", Origin::Paper, Style::Points, &[(150.0, 50.0), (3000.0, 99.9)]),
    ];
    let (x, y) =
        (axis("Read latency", "us", Scale::Log), axis("Reads answered", "%", Scale::Linear));
    figure("latency", "Suspension takes the tail off reads at 44 MB/s of writes", x, y, all)
}

fn sweep() -> Figure {
    let batch = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 44.0];
    let over = |values: [f64; 7]| batch.into_iter().zip(values).collect::<Vec<_>>();
    let slices_8 = [0.275, 0.450, 0.642, 0.843, 1.042, 1.225, 1.304];
    let mut weir_8 = series("Weir, 8 slices", Origin::Weir, Style::Line, &over(slices_8));
    weir_8.error_bars = Some(slices_8.iter().map(|y| (y * 0.93, y * 1.06)).collect());
    let slices_1 = over([0.038, 0.073, 0.130, 0.197, 0.276, 0.380, 0.432]);
    let gen3 = over([0.4; 7].map(|y| y - 0.005));
    let all = vec![
        weir_8,
        series("Weir, 1 slice", Origin::Weir, Style::Line, &slices_1),
        series("Gen3, 1 slice", Origin::Baseline, Style::Line, &gen3),
        series(
            "paper, 8 slices",
            Origin::Paper,
            Style::Points,
            &over([0.26, 0.46, 0.63, 0.86, 1.02, 1.24, 1.29]),
        ),
        series(
            "paper, 1 slice",
            Origin::Paper,
            Style::Points,
            &over([0.04, 0.07, 0.14, 0.19, 0.29, 0.37, 0.44]),
        ),
        series("link", Origin::Bound, Style::Line, &[(1.0, 1.61)]),
    ];
    let (x, y) = (axis("Batch", "reads", Scale::Log), axis("Throughput", "GB/s", Scale::Linear));
    figure("sweep", "Slices and batch: SDF passes Gen3 at 32 reads a batch", x, y, all)
}

fn statement(id: &str, said: impl Into<Value>, unit: &str, tolerance: Tolerance) -> Statement {
    let (id, unit) = (id.to_owned(), unit.to_owned());
    let (class, source) = (Class::Source, "SDF, table 4".to_owned());
    Statement { id, class, source, said: said.into(), unit, tolerance }
}

fn of(class: Class, id: &str, said: f64, tolerance: Tolerance) -> Statement {
    Statement { class, ..statement(id, said, "ms", tolerance) }
}

/// A report with everything in it. The numbers are made up for the drawing.
fn sample() -> Report {
    let within = Tolerance::equal_within(5.0);
    let number = |value: f64| Some(Value::Number(value));
    let claims = vec![
        Claim::judged(statement("sdf-read-8k", 1.23, "GB/s", within), 1.231, number(0.905)),
        Claim::judged(
            statement("tssd-read-mean", "0.13-0.17", "ms", Tolerance::at_most(0.0)),
            0.121,
            number(3.0),
        ),
        Claim::judged(
            statement("tssd-app1-multiple", 45.0, "x", Tolerance::at_least(0.0)),
            38.0,
            None,
        )
        .map(|claim| claim.because("the link carries 1.02 GB/s, which is 38x of 1 KB reads")),
        Claim::contradicts_itself(
            statement("tssd-app2-multiple", 14.0, "x", Tolerance::at_least(0.0)),
            3.6,
            None,
            "14x of 32 KB and 22 KB is 79 Gb/s over links of 20",
        ),
        Claim::judged(
            of(Class::Baseline, "intel-mean", 3.0, Tolerance::equal_within(25.0)),
            1.9,
            None,
        )
        .map(|claim| claim.because("its cache gathers pages, which the model does not")),
        Claim::judged(
            of(Class::Own, "tssd-read-max-goal", 5.0, Tolerance::at_most(0.0)),
            4.1,
            None,
        ),
    ];
    let columns = [("request", ""), ("mean", "us"), ("99.9 %", "us"), ("spikes", "%")];
    let column = |(label, unit): (&str, &str)| Column { label: label.into(), unit: unit.into() };
    let row = |name: &str, cells: [f64; 3]| {
        std::iter::once(Value::from(name)).chain(cells.map(Value::Number)).collect::<Vec<_>>()
    };
    Report {
        name: "sdf-table4".to_owned(),
        title: "SDF: raw bandwidth, from one FTL".to_owned(),
        summary:
            "Bandwidth of 44 channels, read and written as the paper does.\n\nEvery figure is \
                  within 5 % of what was published; the baseline is the same flash behind our own \
                  FTL as firmware."
                .to_owned(),
        source: "SDF (ASPLOS 2014), section 3.2, table 4".to_owned(),
        command: "weir lab run sdf-table4 --scale small --seed 7".to_owned(),
        seed: 7,
        seeds: 1,
        scale: "small".to_owned(),
        parameters: [("channels", "44"), ("tR", "75 µs"), ("bus", "40 MB/s"), ("OP", "30 %")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .to_vec(),
        figures: vec![bandwidth(), latency(), sweep()],
        tables: vec![Table {
            title: "Latency by request".to_owned(),
            columns: columns.map(column).to_vec(),
            rows: vec![
                row("4 KiB read", [148.25, 2871.0, 0.0]),
                row("4 KiB write", [1021.5, 22_005.0, 0.000_31]),
            ],
            note: "One hour of media time.".to_owned(),
        }],
        claims: claims.into_iter().map(Result::unwrap).collect(),
        notes: vec!["The paper's figure 10 was read off the print.".to_owned()],
    }
}

/// A report of the shapes that the sample lacks.
fn odd() -> Report {
    let names = (0..14).map(|at| format!("policy {at} with suspension and write admission"));
    let mut turned = figure(
        "turned",
        "A title so long that it takes two lines, as happens when somebody explains in it what \
         the figure is to tell its readers",
        axis("Policy", "", Scale::Linear),
        axis("Read latency, 99.9 %", "s", Scale::Log),
        ["first", "second"]
            .map(|name| {
                let points: Vec<(f64, f64)> = (0..14)
                    .map(|at| (f64::from(at), 2e-4 * libm::pow(f64::from(at + 1), 2.0)))
                    .collect();
                series(name, Origin::Weir, Style::Bars, &points)
            })
            .to_vec(),
    );
    turned.x.categories = Some(names.collect());
    let points: Vec<(f64, f64)> =
        (0..24).map(|at| (f64::from(at) * 0.5, f64::from((at - 7) * (20 - at)) * 9e3)).collect();
    let histogram = figure(
        "histogram",
        "Gain and loss by hour",
        axis("Time", "h", Scale::Linear),
        axis("Difference", "IOPS", Scale::Linear),
        vec![series("Weir", Origin::Weir, Style::Bars, &points)],
    );
    let many = (0..17).map(|index: u32| {
        let origin = [Origin::Weir, Origin::Baseline, Origin::Paper][index as usize % 3];
        let line = (0..30).map(|at: u32| (f64::from(at * 4096), f64::from((at + 2) * (index + 3))));
        let points: Vec<(f64, f64)> = line.collect();
        series(&format!("variant {index}"), origin, Style::Line, &points)
    });
    let many = figure(
        "many",
        "Seventeen lines",
        axis("Offset", "KiB", Scale::Linear),
        axis("Requests", "", Scale::Log),
        many.collect(),
    );
    let zero = small(Scale::Log, &[(0.0, 1.0), (0.001, 3e-3), (0.02, 7.0)]);
    let empty = Figure { id: "empty".to_owned(), ..small(Scale::Linear, &[]) };
    let figures = vec![turned, histogram, many, zero, empty];
    Report { name: "odd".to_owned(), title: "Odd shapes".to_owned(), figures, ..sample() }
}

/// FNV-1a: enough to see that two files differ.
fn hash(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

#[test]
fn a_report_is_written_whole_and_reads_back_from_json() {
    let report = sample();
    let kept = std::env::var_os("WEIR_REPORT_SAMPLE");
    let name = format!("weir-report-{}", std::process::id());
    let directory = kept.as_ref().map_or_else(|| std::env::temp_dir().join(name), Into::into);
    let written = write(&report, &directory).unwrap();
    let names: Vec<&str> = written.iter().filter_map(|path| path.file_name()?.to_str()).collect();
    let expected = [
        "sdf-table4.html",
        "sdf-table4-bandwidth.svg",
        "sdf-table4-bandwidth.png",
        "sdf-table4-latency.svg",
        "sdf-table4-latency.png",
        "sdf-table4-sweep.svg",
        "sdf-table4-sweep.png",
    ];
    assert_eq!(names, expected);
    assert_eq!(std::fs::read_to_string(&written[0]).unwrap(), html(&report).unwrap());
    assert_eq!(write(&odd(), &directory).unwrap().len(), 11);
    let page = write(&report, &directory.join("again").join("other.html")).unwrap();
    assert!(page[1].ends_with(Path::new("again/other-bandwidth.svg")), "{page:?}");
    assert_eq!(std::fs::read(&page[2]).unwrap(), std::fs::read(&written[2]).unwrap());
    if kept.is_none() {
        std::fs::remove_dir_all(directory).unwrap();
    }
    let json = serde_json::to_string(&report).unwrap();
    assert!(serde_json::from_str::<Report>(&json).unwrap() == report);
}

#[test]
fn the_same_report_is_the_same_bytes_on_any_machine() {
    // The bytes of this machine's first run, after somebody looked at the pictures. After a change
    // of the drawing: look at them again, under the directory that WEIR_REPORT_SAMPLE names.
    let expected = [
        0xb6b4_f6a7_d539_1282,
        0x761e_af2c_7cb5_8529,
        0xb882_f7fa_b4be_a42f,
        0x0769_c969_437c_19d1,
        0x0e4c_039a_e911_8eeb,
        0xa5d3_207b_4c4c_b4db,
        0xa2ee_061f_4750_2cc8,
        0x5eb6_79b6_b9aa_e22a,
    ];
    let report = sample();
    let mut found =
        vec![hash(text(&report).unwrap().as_bytes()), hash(html(&report).unwrap().as_bytes())];
    for figure in &report.figures {
        found.push(hash(svg(figure).unwrap().as_bytes()));
        found.push(hash(&png(figure).unwrap()));
    }
    assert!(found == expected, "found {found:#x?}");
}

#[test]
fn hostile_text_stays_text() {
    let hostile = "<script>alert('1')</script>\u{1b}[31m\u{0}\"&]]>\u{202e}";
    let mut report = sample();
    let all = [&mut report.title, &mut report.summary, &mut report.source, &mut report.command];
    all.into_iter().for_each(|text| *text = hostile.to_owned());
    report.scale = hostile.to_owned();
    report.parameters = vec![(hostile.to_owned(), hostile.to_owned())];
    report.notes = vec![hostile.to_owned()];
    report.tables[0].title = hostile.to_owned();
    report.tables[0].columns[0].label = hostile.to_owned();
    report.tables[0].rows[0][0] = Value::Text(hostile.to_owned());
    for figure in &mut report.figures {
        let texts = [&mut figure.title, &mut figure.note, &mut figure.x.label, &mut figure.y.unit];
        texts.into_iter().for_each(|text| *text = hostile.to_owned());
        figure.series.iter_mut().for_each(|series| series.name = hostile.to_owned());
        figure.x.categories.iter_mut().flatten().for_each(|name| *name = hostile.to_owned());
    }
    let said = statement(hostile, hostile, hostile, Tolerance::at_least(0.0));
    report.claims = vec![Claim::judged(said, hostile, None).unwrap().because(hostile)];

    let page = html(&report).unwrap();
    assert!(page.contains("&lt;script&gt;"));
    let picture = svg(&report.figures[0]).unwrap();
    for markup in [&page, &picture] {
        assert!(!markup.contains("<script") && !markup.contains("]]>"));
        assert!(!markup.contains('\u{1b}') && !markup.contains('\u{0}'));
    }
    // The rasterizer's parser is strict: it takes well-formed XML only.
    report.figures.iter().for_each(|figure| assert!(png(figure).is_ok()));
    let text = text(&report).unwrap();
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()));

    report.name = "../escape".to_owned();
    assert!(matches!(write(&report, Path::new("/nowhere")), Err(ReportError::Name { .. })));
}

#[test]
fn a_figure_without_data_says_so() {
    let mut no_series = small(Scale::Linear, &[]);
    no_series.series.clear();
    let mut no_categories = small(Scale::Linear, &[]);
    no_categories.x.categories = Some(Vec::new());
    for figure in [small(Scale::Linear, &[]), small(Scale::Log, &[]), no_series, no_categories] {
        assert!(svg(&figure).unwrap().contains("no data"));
        assert!(!png(&figure).unwrap().is_empty());
    }
}

#[test]
fn one_point_is_drawn_wherever_it_lies() {
    for value in [0.0, 1.0, -3.0, 1e-100, -1e100, 1e100] {
        for scale in [Scale::Linear, Scale::Log] {
            for style in [Style::Line, Style::Points, Style::Bars, Style::Steps] {
                let mut figure = small(scale, &[(value, value)]);
                figure.series[0].style = style;
                let picture = svg(&figure).unwrap();
                assert!(!picture.contains("NaN") && !picture.contains("inf"), "{value} {style:?}");
            }
        }
    }
}

#[test]
fn what_is_not_a_measurement_is_refused_with_its_place() {
    for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e101, 1e-101] {
        for point in [(value, 1.0), (1.0, value)] {
            let mut report = sample();
            report.figures[1] = small(Scale::Linear, &[(0.0, 0.0), point]);
            for error in [html(&report).unwrap_err(), text(&report).unwrap_err()] {
                let told = error.to_string();
                assert!(told.starts_with("figure small, series Weir, point 1: "), "{told}");
            }
        }
        let mut report = sample();
        report.tables[0].rows[1][2] = Value::Number(value);
        assert!(html(&report).is_err() || value.is_finite(), "{value}");
    }
}

#[test]
fn parts_that_do_not_fit_are_refused() {
    let refused = |change: fn(&mut Report)| {
        let mut report = sample();
        change(&mut report);
        html(&report).unwrap_err().to_string()
    };
    let same = refused(|report| report.figures[1].id = "sweep".to_owned());
    assert!(same.contains("two figures are called sweep"), "{same}");
    let category = refused(|report| report.figures[0].series[0].points[0].0 = 5.0);
    assert!(category.contains("index of a category"), "{category}");
    let count = refused(|report| report.figures[0].series[0].error_bars = Some(vec![(0.0, 2.0)]));
    assert!(count.contains("one low and high"), "{count}");
    let around = refused(|report| report.figures[2].series[0].points[3].1 = 9.0);
    assert!(around.contains("series Weir, 8 slices, point 3"), "{around}");
    let row = refused(|report| report.tables[0].rows[1].truncate(2));
    assert!(row.contains("row 1: 2 cells under 4 headers"), "{row}");
    let path = refused(|report| report.figures[0].id = "a/b".to_owned());
    assert!(path.contains("names files"), "{path}");
}

#[test]
fn a_logarithmic_axis_counts_what_it_cannot_show() {
    let points = [(0.0, 1.0), (1.0, 0.0), (2.0, 5.0), (3.0, 7.0), (-4.0, 1.0)];
    let picture = svg(&small(Scale::Log, &points)).unwrap();
    assert!(picture.contains("3 points are not above zero"), "{picture}");
    assert!(!svg(&small(Scale::Linear, &points)).unwrap().contains("above zero"));
}

#[test]
fn huge_ranges_and_many_series_keep_the_picture_in_bounds() {
    let all = (0..60).map(|index| {
        let mut one = small(Scale::Log, &[(1e-100, 1e-90), (1.0, f64::from(index)), (1e100, 1e90)]);
        one.series[0].name =
            format!("series {index}, {}", "a long name ".repeat(index as usize % 9));
        one.series.remove(0)
    });
    let mut crowded = small(Scale::Log, &[]);
    crowded.series = all.collect();
    assert!(png(&crowded).is_ok());
    crowded.x.scale = Scale::Linear;
    crowded.y.scale = Scale::Linear;
    assert!(png(&crowded).is_ok());

    let noise = |at: u32| f64::from(at.wrapping_mul(2_654_435_761) >> 8);
    let points: Vec<(f64, f64)> = (0..300_000).map(|at| (f64::from(at), noise(at))).collect();
    for style in [Style::Line, Style::Steps, Style::Points, Style::Bars] {
        let mut dense = small(Scale::Linear, &points);
        dense.series[0].style = style;
        assert!(svg(&dense).unwrap().len() < 4_000_000, "{style:?}");
    }
}

#[test]
fn the_index_has_every_claim_with_all_that_is_known_of_it_and_how_to_run_it_again() {
    let hostile = "<script>alert('1')</script>";
    let mut other = sample();
    (other.name, other.title) = ("other".into(), hostile.into());
    let reports = [sample(), other];
    let run = Run {
        command: "weir lab claims --seeds 5".into(),
        conditions: vec![("seeds".into(), "1 to 5".into()), ("odd".into(), hostile.into())],
    };
    let page = html_of_all(&reports, &run).unwrap();
    assert!(!page.contains("<script"), "text became markup");
    assert!(page.contains("weir lab claims --seeds 5") && page.contains("1 to 5"));
    for report in &reports {
        assert!(page.contains(&format!("href=\"{}.html\"", report.name)), "{}", report.name);
    }
    let claims = &reports[0].claims;
    assert!(claims.len() > 2, "the sample has claims");
    for claim in claims {
        let statement = claim.statement();
        let told = [
            statement.id.clone(),
            escaped(&statement.source),
            escaped(&statement.said.to_string()),
            escaped(&claim.measured().to_string()),
            claim.reason().map(escaped).unwrap_or_default(),
            format!("badge {}", claim.verdict().name()),
        ];
        for text in told {
            assert_eq!(page.matches(&text).count().min(2), 2, "{text} of both reports");
        }
    }
    assert_eq!(page.matches("<figure>").count(), 2 * reports[0].figures.len());
}

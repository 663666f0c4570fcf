//! Each policy on small views.

use super::*;
use std::collections::BTreeSet;

const SLOTS: u32 = 10;
const PAGES: u64 = 1 << 20;

struct Views {
    views: Vec<BandView>,
    blocks: Vec<BlockId>,
    slots_valid: Vec<u32>,
    opened: Vec<u64>,
}

impl Views {
    fn new(views: &[BandView]) -> Self {
        Self {
            views: views.to_vec(),
            blocks: views.iter().map(|band| band.block).collect(),
            slots_valid: views.iter().map(|band| band.slots_valid).collect(),
            opened: views.iter().map(|band| PAGES - band.age_pages).collect(),
        }
    }
}

impl FullBands for Views {
    fn columns(&self) -> Columns<'_> {
        let (blocks, slots_valid) = (&self.blocks[..], &self.slots_valid[..]);
        Columns { blocks, slots_valid, opened: &self.opened }
    }
    fn slots(&self) -> u32 {
        SLOTS
    }
    fn band(&self, index: usize) -> BandView {
        self.views[index]
    }
    fn pages(&self) -> u64 {
        PAGES
    }
}

fn view(block: u32, slots_valid: u32, age_pages: u64) -> BandView {
    BandView { block: BlockId(block), unit: 0, slots_valid, age_pages, erase_count: 0 }
}

fn picked(name: &str, views: &[BandView]) -> Option<u32> {
    let mut policy = victim_by_name(name).unwrap();
    policy.pick(&Views::new(views), &mut Random::new(1)).map(|block| block.0)
}

#[test]
fn a_scan_finds_what_a_look_at_each_band_finds() {
    let mut random = Random::new(7);
    for round in 0..300 {
        let count = 1 + random.below(200) as u32;
        // Few values, so that there are many ties.
        let mut drawn = |most: u64| random.below(most);
        let mut views: Vec<_> =
            (0..count).map(|n| view(n, drawn(11) as u32, drawn(1 + round))).collect();
        views.rotate_left(drawn(u64::from(count)) as usize);
        let score = |band: &BandView| {
            let invalid = f64::from(SLOTS - band.slots_valid);
            invalid * (band.age_pages + 1) as f64 / (2.0 * f64::from(band.slots_valid)).max(0.5)
        };
        let best = |a: &&BandView, b: &&BandView| {
            score(a).total_cmp(&score(b)).then(b.block.cmp(&a.block))
        };
        let expected = views.iter().max_by(best).map(|band| band.block.0);
        assert_eq!(picked("cost-benefit", &views), expected, "round {round}");
        let oldest = views.iter().min_by_key(|band| (u64::MAX - band.age_pages, band.block));
        assert_eq!(picked("fifo", &views), oldest.map(|band| band.block.0), "round {round}");
    }
}

#[test]
fn greedy_takes_fewest_valid_and_breaks_ties_by_id() {
    assert_eq!(picked("greedy", &[view(4, 9, 1), view(2, 3, 1), view(1, 3, 1)]), Some(1));
}

#[test]
fn fifo_takes_the_oldest() {
    assert_eq!(picked("fifo", &[view(4, 9, 7), view(2, 3, 1)]), Some(4));
}

#[test]
fn cost_benefit_prefers_an_old_band_at_a_higher_valid_ratio() {
    assert_eq!(picked("cost-benefit", &[view(1, 5, 10), view(2, 6, 1000)]), Some(2));
}

#[test]
fn of_very_many_bands_age_adaptive_finds_one_of_the_best() {
    // A thousandth of them is empty, all others are full: who looks at 4096 meets one nearly always.
    let views: Vec<_> = (0..100_000).map(|n| view(n, 10 * u32::from(n % 1000 != 7), 5)).collect();
    let views = Views::new(&views);
    let (mut policy, mut random) = (victim_by_name("age-adaptive").unwrap(), Random::new(1));
    let picks = (0..200).map(|_| policy.pick(&views, &mut random).unwrap());
    let found: BTreeSet<u32> =
        picks.map(|block| block.0).filter(|block| block % 1000 == 7).collect();
    assert!(found.len() > 40, "{} different ones of 100", found.len());
}

#[test]
fn one_choice_is_random_and_many_are_greedy() {
    let views: Vec<_> = (0..8).map(|n| view(n, 9 - n, 1)).collect();
    assert_eq!(picked("d-choices:1000", &views), Some(7));
}

#[test]
fn every_victim_policy_answers_none_for_nothing() {
    for name in VICTIMS {
        assert_eq!(picked(name, &[]), None, "{name}");
    }
}

fn spread(erase_count_least_full: u32, erase_count_most: u32) -> WearView {
    WearView { erase_count_least_full, erase_count_most, endurance: 1000 }
}

#[test]
fn the_window_of_rejuvenation_closes_as_the_flash_ages() {
    let mut wear = wear_by_name("rejuvenation:10").unwrap();
    for (most, window) in [(100, 90), (500, 50), (900, 10), (990, 2), (1000, 2), (1200, 2)] {
        assert!(wear.move_wanted(&spread(most - window - 1, most)), "{most}");
        assert!(!wear.move_wanted(&spread(most - window, most)), "{most}");
    }
    assert_eq!(wear.pick_free(&[3, 9, 1], Purpose::Relocate), 1);
    assert_eq!(wear.pick_free(&[3, 9, 1], Purpose::Host), 2);
}

#[test]
fn static_wear_sends_cold_data_to_worn_bands() {
    let mut wear = wear_by_name("static:8").unwrap();
    assert_eq!(wear.pick_free(&[3, 9, 1], Purpose::Relocate), 1);
    assert_eq!(wear.pick_free(&[3, 9, 1], Purpose::Host), 2);
    assert!(wear.move_wanted(&spread(1, 10)) && !wear.move_wanted(&spread(2, 10)));
}

#[test]
fn unknown_names_list_what_there_is() {
    let names = PolicyNames { victim: "gredy".into(), ..PolicyNames::default() };
    assert!(
        names
            .validate()
            .unwrap_err()
            .contains("greedy, cost-benefit, age-adaptive, d-choices, fifo")
    );
    let names = PolicyNames { wear: "static:x".into(), ..PolicyNames::default() };
    assert!(names.validate().unwrap_err().contains("from 2 to 4294967295, as 32 is"));
}

#[test]
fn parameters_out_of_range_are_refused_with_what_is_allowed() {
    for (decision, name, said) in [
        ("victim", "d-choices:0", "from 1 to 1024, as 10 is"),
        ("victim", "d-choices:1025", "from 1 to 1024"),
        ("victim", "greedy:3", "takes no parameter"),
        ("wear", "static:1", "from 2 to"),
        ("erase", "idle:1", "takes no parameter"),
        ("unit", "static:-1", "takes no parameter"),
        ("stream", "sfr:handles=17", "from 1 to 16"),
        ("nothing", "greedy", "victim, wear, erase, unit, stream"),
    ] {
        let shape = stream::Shape { blocks: 1, handles: 1 };
        let error = Chosen::by_name(decision, name, shape).unwrap_err();
        assert!(error.contains(said), "{decision} {name}: {error}");
    }
}

fn unit(unit: u32, reads: u32, appends: u32, erases: u32) -> UnitView {
    UnitView {
        unit,
        reads_waiting: reads,
        appends_waiting: appends,
        erases_running: erases,
        open: true,
        ..UnitView::default()
    }
}

fn page(last: u32, index: u32) -> PageView {
    let costs = Costs { read_ns: 158_000, program_ns: 1_008_000, erase_ns: 3_500_000 };
    PageView { last, apart: false, index, units: 4, costs }
}

fn unit_picked(name: &str, units: &[UnitView], page: &PageView) -> u32 {
    units[unit_by_name(name).unwrap().pick(units, page)].unit
}

#[test]
fn a_weighted_queue_counts_time_where_the_shortest_counts_programs() {
    let units = [unit(0, 0, 0, 1), unit(1, 9, 0, 0), unit(2, 0, 1, 0)];
    assert_eq!(unit_picked("shortest-queue", &units, &page(0, 0)), 0);
    assert_eq!(unit_picked("weighted-queue", &units, &page(0, 0)), 2);
    assert_eq!(unit_picked("weighted-queue", &units[..2], &page(0, 0)), 1);
}

#[test]
fn two_pages_that_are_to_be_apart_fill_two_bands_in_turn() {
    let new = |at| UnitView { open: false, ..unit(at, 0, 0, 0) };
    let together = page(1, 0);
    let apart = PageView { apart: true, ..together };
    for name in ["shortest-queue", "weighted-queue", "compaction-aware"] {
        let picked = |units: &[UnitView], page| unit_picked(name, units, page);
        let alone = [new(0), unit(1, 0, 0, 0), new(2)];
        assert_eq!((picked(&alone, &together), picked(&alone, &apart)), (1, 0), "{name}");
        let two = [new(0), unit(1, 0, 0, 0), unit(2, 0, 0, 0)];
        assert_eq!((picked(&two, &together), picked(&two, &apart)), (1, 2), "{name}");
        // Nobody waits for that.
        let busy = [unit(0, 0, 1, 0), unit(1, 0, 0, 0)];
        assert_eq!(picked(&busy, &apart), 1, "{name}");
    }
}

#[test]
fn a_compaction_aware_policy_keeps_off_the_units_that_gc_works_on() {
    let gc = UnitView { victims: 1, ..unit(0, 0, 0, 0) };
    let units = [gc, unit(1, 1, 1, 0), unit(2, 0, 3, 0)];
    assert_eq!(unit_picked("compaction-aware", &units, &page(0, 0)), 1);
    assert_eq!(unit_picked("weighted-queue", &units, &page(0, 0)), 0);
    let all = units.map(|view| UnitView { victims: 1, ..view });
    assert_eq!(unit_picked("compaction-aware", &all, &page(0, 0)), 0);
}

#[test]
fn round_robin_goes_on_from_the_last() {
    let units = [unit(0, 0, 0, 0), unit(2, 0, 3, 0), unit(3, 0, 0, 0)];
    assert_eq!(unit_picked("round-robin", &units, &page(1, 0)), 2);
    assert_eq!(unit_picked("round-robin", &units, &page(3, 0)), 0);
}

#[test]
fn a_static_unit_follows_from_the_address_and_falls_back_to_the_shortest_queue() {
    let policy = unit_by_name("static").unwrap();
    assert_eq!(
        (0..6).map(|n| policy.home(&page(0, n)).unwrap()).collect::<Vec<_>>(),
        [0, 1, 2, 3, 0, 1]
    );
    let units = [unit(0, 0, 2, 0), unit(3, 0, 1, 0)];
    assert_eq!(unit_picked("static", &units, &page(0, 2)), 3);
}

#[test]
fn an_asked_erase_waits_for_nothing_but_the_question() {
    let mut view = EraseView {
        reads_waiting: 0,
        appends_waiting: 0,
        quiet_since: Instant(0),
        now: Instant(1 << 40),
        idle_ns: 1,
        bands_clean: 0,
        asked: 0,
    };
    let mut policy = erase_by_name("asked").unwrap();
    assert!(!policy.erase_now(&view) && !policy.waits_for_time());
    view.asked = 1;
    assert!(policy.erase_now(&view));
    let mut wear = wear_by_name("asked").unwrap();
    assert!(!wear.move_wanted(&spread(0, 1000)));
    assert_eq!(wear.pick_free(&[3, 9, 1], Purpose::Relocate), 1);
}

#[test]
fn what_waits_counts_the_more_the_less_weight_a_unit_has() {
    let light = |units: &[UnitView]| {
        let mut units = units.to_vec();
        units[0].weight = WEIGHT_FULL / 4;
        units
    };
    for name in ["weighted-queue", "compaction-aware"] {
        // A quarter of the weight: as long a queue as one of four times its length.
        for (appends, picked) in [(0, 1), (2, 1), (3, 0), (4, 0)] {
            let units = light(&[unit(0, 0, 0, 0), unit(1, 0, appends, 0)]);
            assert_eq!(unit_picked(name, &units, &page(0, 0)), picked, "{name} {appends}");
        }
        let equal = [unit(0, 0, 1, 0), unit(1, 0, 1, 0)].map(|view| UnitView { weight: 9, ..view });
        assert_eq!(unit_picked(name, &equal, &page(1, 0)), 1, "{name}: the unit of the last page");
    }
}

#[test]
fn among_queues_that_are_equally_short_units_have_turns_by_their_weights() {
    let weights = [256, 64, 128, 256];
    let units: Vec<UnitView> =
        (0..4).map(|at| UnitView { weight: weights[at as usize], ..unit(at, 0, 0, 0) }).collect();
    let mut policy = unit_by_name("shortest-queue").unwrap();
    let mut turns = |units: &[UnitView], count| {
        let mut had = [0; 4];
        (0..count).for_each(|_| had[units[policy.pick(units, &page(0, 0))].unit as usize] += 1);
        had
    };
    // The last one is busy, and makes up for little of that when it is not any more.
    let busy = UnitView { appends_waiting: 1, ..units[3] };
    for (units, count, right) in [
        (&[units[0], units[1], units[2], busy][..], 700, [400, 100, 200, 0]),
        (&units, 1100, [400, 100, 200, 400]),
    ] {
        let had = turns(units, count);
        let is_right = had.iter().zip(right).all(|(&had, right)| i32::abs(had - right) <= 8);
        assert!(is_right, "{had:?} is not {right:?}");
    }
}

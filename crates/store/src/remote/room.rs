//! What room the units have, and why there is none.

use client::UnitStatus;
use serde::Serialize;

/// What a unit has left.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
pub struct UnitRoom {
    /// Its number.
    pub unit: u32,
    /// Raw blocks that are free, or are about to be.
    pub raw_blocks_free: u32,
    /// All that can be written; none of a unit that writes nothing any more.
    pub raw_blocks: u32,
    /// Blocks of its flash that failed.
    pub blocks_bad: u32,
    /// Blocks that may still take the place of one that fails.
    pub blocks_spare: u32,
    /// Nothing is written there any more.
    pub gone: bool,
}

/// What room the units have.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Room {
    /// Each of them, by number.
    pub units: Vec<UnitRoom>,
}

impl Room {
    /// As their server tells it.
    pub fn of(units: &[UnitStatus]) -> Self {
        let room = |unit: &UnitStatus| {
            let free = unit.raw_blocks_erased + unit.raw_blocks_erasing;
            let all = free + unit.raw_blocks_open + unit.raw_blocks_full + unit.raw_blocks_torn;
            let part = |count| if unit.gone { 0 } else { count };
            UnitRoom {
                unit: unit.unit,
                raw_blocks_free: part(free),
                raw_blocks: part(all),
                blocks_bad: unit.blocks_bad,
                blocks_spare: unit.blocks_spare,
                gone: unit.gone,
            }
        };
        Self { units: units.iter().map(room).collect() }
    }

    /// Raw blocks that are free, or are about to be.
    pub fn free(&self) -> u64 {
        self.units.iter().map(|unit| u64::from(unit.raw_blocks_free)).sum()
    }

    /// All that can be written.
    pub fn all(&self) -> u64 {
        self.units.iter().map(|unit| u64::from(unit.raw_blocks)).sum()
    }

    /// Which units write nothing more, or may refuse what comes, as their flash has no block left for one that failed.
    pub fn failed(&self) -> Option<String> {
        let gone: Vec<&UnitRoom> = self.units.iter().filter(|unit| unit.gone).collect();
        let worn = |unit: &&UnitRoom| !unit.gone && unit.blocks_bad > 0 && unit.blocks_spare == 0;
        let worn: Vec<&UnitRoom> = self.units.iter().filter(worn).collect();
        let told = [
            (gone, "write nothing more", "writes nothing more"),
            (worn, "have no spare block left", "has no spare block left"),
        ];
        let told = told.iter().filter(|(units, ..)| !units.is_empty()).map(|(units, many, one)| {
            let bad: u32 = units.iter().map(|unit| unit.blocks_bad).sum();
            let does = if units.len() == 1 { one } else { many };
            format!("{} {does} ({bad} blocks of flash failed)", names(units))
        });
        let told: Vec<String> = told.collect();
        (!told.is_empty()).then(|| told.join("; "))
    }

    /// Why no unit takes a raw block, and what helps.
    pub fn why_full(&self) -> String {
        let Some(failed) = self.failed() else {
            return "every unit is full: none of their raw blocks is free, and none is being erased: delete \
                    something, or drop a column family"
                .into();
        };
        let left = self.units.iter().filter(|unit| !unit.gone && unit.raw_blocks_free == 0);
        let left: Vec<&UnitRoom> = left.collect();
        let full = match left.is_empty() {
            true => String::new(),
            false => format!("; {} full", are(&left)),
        };
        format!(
            "no unit takes a raw block: {failed}{full}: what is there can be read: move it to another device (`weir \
             store dump`), or delete something if a unit is only full"
        )
    }
}

/// `unit 3`, `units 0, 1 and 7`.
fn names(units: &[&UnitRoom]) -> String {
    let numbers: Vec<String> = units.iter().map(|unit| unit.unit.to_string()).collect();
    match &numbers[..] {
        [one] => format!("unit {one}"),
        [first @ .., last] => format!("units {} and {last}", first.join(", ")),
        [] => "no unit".into(),
    }
}

fn are(units: &[&UnitRoom]) -> String {
    format!("{} {}", names(units), if units.len() == 1 { "is" } else { "are" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(unit: u32, free: u32, (bad, spare, gone): (u32, u32, bool)) -> UnitRoom {
        UnitRoom {
            unit,
            raw_blocks_free: free,
            raw_blocks: 10,
            blocks_bad: bad,
            blocks_spare: spare,
            gone,
        }
    }

    #[test]
    fn which_unit_failed_and_which_is_only_full_is_told_with_what_helps() {
        let full = Room { units: vec![unit(0, 0, (0, 4, false)), unit(1, 0, (2, 2, false))] };
        assert_eq!(full.failed(), None);
        assert!(full.why_full().starts_with("every unit is full"), "{}", full.why_full());
        let sick = (8, 0, false);
        let units = vec![
            unit(0, 0, (0, 4, false)),
            unit(1, 3, sick),
            unit(2, 0, (9, 0, true)),
            unit(3, 0, (9, 0, true)),
        ];
        let why = Room { units }.why_full();
        for part in [
            "units 2 and 3 write nothing more (18 blocks of flash failed)",
            "unit 1 has no spare block left (8 blocks of flash failed)",
            "unit 0 is full",
            "weir store dump",
        ] {
            assert!(why.contains(part), "{part}: {why}");
        }
    }

    #[test]
    fn a_unit_that_is_gone_has_no_room() {
        let json = r#"[{"unit":0,"requests":0,"reads_queued":0,"writes_queued":0,"erases_queued":0,"busy_ns":0,
            "raw_blocks_erased":5,"raw_blocks_open":1,"raw_blocks_full":2,"raw_blocks_torn":3,"raw_blocks_erasing":4,
            "erase_count_min":0,"erase_count_max":0,"blocks_bad":1,"blocks_spare":0,"gone":false}]"#;
        let mut units: Vec<UnitStatus> = serde_json::from_str(json).unwrap();
        let room = Room::of(&units);
        assert_eq!((room.free(), room.all()), (9, 15));
        units[0].gone = true;
        let room = Room::of(&units);
        assert_eq!((room.free(), room.all()), (0, 0));
        assert_eq!(Room::default().free(), 0);
    }
}

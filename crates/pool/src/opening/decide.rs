//! How long a band is that may have been open, and what each copy of it is worth: pure rules. Why they are right
//! is told in [`crate::opening`].

use crate::control::mutant::Mutant;
use crate::control::values::BandRecord;
use crate::message::BandEntry;
use crate::words::NodeId;

/// What a node that was fenced, and then listed, has of a band: `None` is nothing.
pub type Seen = (NodeId, Option<BandEntry>);

/// Pages of a band of which this is on record, by what all fenced nodes have of it. `None`: nobody was fenced
/// whose word counts, so pages may still be appended and acknowledged: wait.
///
/// A sealed copy counts wherever it lies, as repair may have moved it: its last owner ended the band there, beyond
/// all that was acknowledged, and every copy is of that, a damaged one too. A member that has nothing any more, since
/// repair emptied it, would else make the band one of no pages. Who made the copy saw to it that the members that it
/// left have theirs in as many domains as there are replicas, so whoever has listed all but fewer domains sees one.
///
/// A copy that is torn does not say where the band ends: what is behind its pages may be damaged and have been
/// acknowledged. Nor does a member that has nothing: the first page may be damaged. Where another one says it and has all
/// of it sound that counts, and these are too short. Where nobody does the band ends where no copy has more, as each page
/// may have been flushed: if `all_here`, so that nobody is waited for who has it whole, also pages that nobody has sound.
/// Whether a power cut explains what is missing then is for the FTL to tell, as of any medium: by what was written later.
pub fn pages(
    record: &BandRecord,
    seen: &[Seen],
    all_here: bool,
    mutant: Option<Mutant>,
) -> Option<u32> {
    if record.sealed.is_some() {
        return record.sealed;
    }
    let sound: Vec<NodeId> = record.sound().collect();
    let counted = || seen.iter().filter(|(node, _)| sound.contains(node)).map(|(_, entry)| entry);
    if Mutant::PrefixNotCompleted.is(mutant) {
        return counted().map(|entry| entry.map_or(0, |entry| entry.pages)).max();
    }
    if Mutant::FenceNotCounted.is(mutant) && counted().next().is_none() {
        return Some(0);
    }
    let whole = seen.iter().filter(|(node, _)| !record.is_lacking(*node));
    let sealed = whole.filter_map(|(_, entry)| entry.filter(|entry| entry.sealed));
    sealed.map(|entry| entry.pages).min().or_else(|| {
        let entries = || counted().flatten();
        let untorn = entries().filter(|entry| !entry.torn).map(|entry| entry.pages).min();
        let has = |pages: &u32| entries().any(|entry| entry.sound >= *pages);
        untorn.filter(has).or_else(|| {
            let least = counted().map(|entry| entry.as_ref().map_or(0, BandEntry::firm)).min()?;
            let most = untorn.or_else(|| entries().map(|entry| entry.pages).max()).unwrap_or(0);
            let sound = entries().map(|entry| entry.sound).max().unwrap_or(0);
            Some(if all_here { most.max(least) } else { sound.min(most).max(least) })
        })
    })
}

/// Whether all members have it sealed alike: then each says by itself where the band ends, and nothing has to be
/// put on record.
pub fn is_agreed(record: &BandRecord, seen: &[Seen]) -> bool {
    let sealed = |node: &NodeId| {
        let (_, entry) = seen.iter().find(|(of, _)| of == node)?;
        entry.filter(|entry| entry.sealed).map(|entry| entry.pages)
    };
    let all: Vec<Option<u32>> = record.members.nodes().iter().map(sealed).collect();
    all[0].is_some() && all.iter().all(|pages| *pages == all[0])
}

/// What becomes of a copy.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Worth {
    /// It is sealed, and has all pages.
    Whole,
    /// It has all pages; it is to be sealed there.
    Seal,
    /// It goes as far, and some pages in it are damaged. It is no copy, but it has what others may lack.
    Part,
    /// The band has no pages.
    Free,
    /// It has too few pages, or is sealed with more. It is no copy, and goes when there are enough of them.
    Bad,
}

/// What a copy of a band of so many pages is worth.
pub fn worth(pages: u32, entry: &BandEntry) -> Worth {
    match (pages, entry.sealed) {
        (0, _) => Worth::Free,
        (_, true) if entry.pages != pages => Worth::Bad,
        (_, false) if entry.pages < pages => Worth::Bad,
        _ if entry.sound < pages => Worth::Part,
        (_, true) => Worth::Whole,
        (_, false) => Worth::Seal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::BandHeader;
    use crate::words::{BandName, BandShape, Members};

    fn seen(node: u32, pages: u32, sealed: bool) -> Seen {
        (NodeId(node), Some(copy(pages, sealed)))
    }

    fn copy(pages: u32, sealed: bool) -> BandEntry {
        let shape = BandShape { pages: 8, slots_per_page: 4 };
        let header = BandHeader { members: Members::default(), shape };
        BandEntry::whole(BandName::default(), header, pages, sealed)
    }

    fn record(lacks: u8, sealed: Option<u32>) -> BandRecord {
        let members = Members::new(&[NodeId(1), NodeId(2), NodeId(3)]).expect("different");
        BandRecord { members, lacks, sealed, ..BandRecord::default() }
    }

    #[test]
    fn a_band_ends_where_the_shortest_fenced_member_does() {
        let open = record(0, None);
        let found = [seen(1, 5, false), seen(2, 3, false)];
        assert_eq!(pages(&open, &found, true, None), Some(3));
        assert_eq!(pages(&open, &[(NodeId(3), None)], true, None), Some(0));
        assert_eq!(pages(&open, &[], true, None), None);
        assert_eq!(
            pages(&open, &[seen(4, 2, false)], true, None),
            None,
            "no member of its write set"
        );
    }

    #[test]
    fn a_sealed_copy_that_repair_made_says_where_the_band_ends_though_a_member_was_emptied() {
        let open = record(0, None);
        assert_eq!(pages(&open, &[(NodeId(1), None), seen(4, 5, true)], true, None), Some(5));
        assert_eq!(pages(&open, &[seen(4, 5, true)], true, None), Some(5), "its owner ended it");
    }

    #[test]
    fn a_member_that_lacks_pages_has_no_say() {
        let degraded = record(0b010, None);
        assert_eq!(pages(&degraded, &[seen(1, 5, false), seen(2, 3, false)], true, None), Some(5));
        assert_eq!(pages(&degraded, &[seen(2, 3, false)], true, None), None);
    }

    #[test]
    fn a_copy_that_is_torn_does_not_say_where_the_band_ends() {
        let torn = |node, pages| {
            let (node, entry) = seen(node, pages, false);
            (node, entry.map(|entry| BandEntry { torn: true, ..entry }))
        };
        let open = record(0, None);
        assert_eq!(pages(&open, &[torn(1, 3), seen(2, 5, false)], true, None), Some(5));
        assert_eq!(pages(&open, &[torn(1, 6), seen(2, 5, false)], true, None), Some(5));
        assert_eq!(pages(&open, &[(NodeId(1), None), seen(2, 5, false)], true, None), Some(5));
        assert_eq!(pages(&open, &[torn(1, 3), torn(2, 4)], true, None), Some(4), "it may count");
        assert_eq!(
            pages(&open, &[torn(1, 3), torn(2, 4)], false, None),
            Some(4),
            "one has it whole"
        );
        assert_eq!(pages(&open, &[(NodeId(1), None), torn(2, 4)], true, None), Some(4));
        assert_eq!(pages(&open, &[torn(1, 3)], true, None), Some(3), "nobody else is there");
        let (node, entry) = seen(2, 5, false);
        let damaged = entry.map(|entry| BandEntry { sound: 2, ..entry });
        assert_eq!(
            pages(&open, &[torn(1, 3), (node, damaged)], true, None),
            Some(5),
            "what one lacks"
        );
        assert_eq!(
            pages(&open, &[torn(1, 3), (node, damaged)], false, None),
            Some(3),
            "or another"
        );
    }

    /// The last pages of each copy are damaged, or torn by a power cut. What is sound of them went with a slot that nobody
    /// has, and so did what one copy has behind them.
    #[test]
    fn pages_that_nobody_has_sound_stay_where_all_are_there() {
        let copy = |node, pages, torn, sound, loose| {
            let (node, entry) = seen(node, pages, false);
            (node, entry.map(|entry| BandEntry { torn, sound, loose, ..entry }))
        };
        let open = record(0, None);
        let ends = [copy(1, 6, true, 4, 2), copy(2, 5, true, 3, 2)];
        assert_eq!(pages(&open, &ends, true, None), Some(6));
        assert_eq!(pages(&open, &ends, false, None), Some(4), "somebody may have it");
        let whole = [ends[0], ends[1], seen(3, 5, false)];
        assert_eq!(pages(&open, &whole, true, None), Some(5), "that is where it ends");
        let within = [copy(1, 6, true, 2, 1), copy(2, 6, false, 2, 0)];
        assert_eq!(pages(&open, &within, true, None), Some(6));
    }

    #[test]
    fn what_was_decided_or_sealed_stays() {
        let found = [seen(1, 5, false), seen(2, 3, false)];
        assert_eq!(pages(&record(0, Some(4)), &found, true, None), Some(4));
        assert_eq!(pages(&record(0, Some(4)), &[], true, None), Some(4));
        assert_eq!(
            pages(&record(0, None), &[seen(1, 5, true), seen(2, 3, false)], true, None),
            Some(5)
        );
    }

    #[test]
    fn members_that_are_sealed_alike_need_no_record() {
        let all = [seen(1, 5, true), seen(2, 5, true), seen(3, 5, true)];
        assert!(is_agreed(&record(0, None), &all));
        assert!(!is_agreed(&record(0, None), &all[1..]), "one of them may have another end");
        assert!(!is_agreed(&record(0, None), &[all[0], all[1], seen(3, 5, false)]));
    }

    #[test]
    fn a_copy_is_whole_can_be_made_so_or_is_none() {
        assert_eq!(worth(4, &copy(4, true)), Worth::Whole);
        assert_eq!(worth(4, &copy(6, false)), Worth::Seal);
        assert_eq!(worth(4, &copy(3, false)), Worth::Bad);
        assert_eq!(worth(4, &copy(6, true)), Worth::Bad);
        assert_eq!(worth(0, &copy(6, true)), Worth::Free);
        let damaged = |pages, sealed, sound| BandEntry { sound, ..copy(pages, sealed) };
        assert_eq!(worth(4, &damaged(4, true, 3)), Worth::Part);
        assert_eq!(worth(4, &damaged(6, false, 3)), Worth::Part);
        assert_eq!(worth(4, &damaged(6, false, 4)), Worth::Seal, "the damage is behind the end");
        assert_eq!(worth(4, &damaged(3, false, 2)), Worth::Bad);
    }
}

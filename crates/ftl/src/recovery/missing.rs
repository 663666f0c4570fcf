//! What recovery misses: slots that cannot be read and that no power cut explains, and versions that
//! other slots vouch for and that are not there.
//!
//! What a power cut explains:
//! - On a medium that is durable at completion, of one tier, a program that is cut off leaves pages that
//!   read as erased or as uncorrectable, never readable ones that are wrong; it is the last one of its
//!   band, and takes pages with it that share its cells and were programmed before. Whatever else is not
//!   sound there is damage.
//! - On any other medium (a file, a disk, a zone, the fast tier in front of one) a cut may leave any part
//!   of what was not durable, by sectors and in any order: also a header without its data. There what
//!   lies below the watermark, or before a slot that does, is damage, and what lies above may be torn.
//! - After a clean shutdown nothing is explained by a cut but what a cut before it had left, and that is
//!   covered by the checkpoint.
//!
//! What becomes of damage: if the header is sound, or somebody vouches for it, the block is known, and its
//! reads fail unless something newer of it is found. That is in the map from then on, and in the next
//! checkpoint. If nobody knows which block it was, and a sequence is missing that it may have had, then
//! any block may have a newer version than what is found: those that were not written later are
//! refused, and nothing is written, so that nothing is lost by looking; unless the owner says that they
//! be shown as they were found ([`crate::config::Settings::salvage`]).

use crate::format::{Footer, Header, Kind, Voucher, is_slot};
use crate::mutant::Mutant;
use crate::recovery::mount::{Mount, SEQUENCES_SKIPPED};
use crate::recovery::replay::Candidate;
use crate::whole::Ftl;
use flash::{BlockId, SlotId, SlotRead};
use std::collections::{BTreeMap, BTreeSet};

/// Most blocks that one trim record names: so many may be concerned where one is missing.
const TRIM_BLOCKS_MAX: u32 = crate::api::TRIM_BLOCKS_MAX;

/// A slot that was programmed and is not sound.
#[derive(Clone, Copy, Debug)]
struct Unsound {
    slot: SlotId,
    /// The medium could read it.
    readable: bool,
    /// See [`SlotRead::durable`].
    durable: bool,
    /// If that is sound.
    header: Option<Header>,
}

/// What is known of a band's sound pages of its present life; of the fast tier, which is programmed slot by
/// slot, of its slots.
#[derive(Clone, Debug, Default)]
struct Seen {
    /// Pages up to the last sound one.
    pages: u32,
    /// The last page that is not sound.
    unsound_last: u32,
    /// By page: the lowest and the highest sequence of what was new there and later than the
    /// checkpoint, and its order.
    of_page: BTreeMap<u32, (u64, u64, u64)>,
}

/// What a scan found beside candidates.
#[derive(Clone, Debug, Default)]
pub(crate) struct Missing {
    watermark: u64,
    /// The lowest and the highest watermark by [`Missing::span_of`].
    watermarks: BTreeMap<u64, (u64, u64)>,
    vouchers: Vec<Voucher>,
    unsound: Vec<Unsound>,
    seen: BTreeMap<BlockId, Seen>,
}

impl Missing {
    /// A sound slot of the present life of its band, with an order from the checkpoint's name on.
    pub fn note_sound(&mut self, block: BlockId, page: u32, header: &Header, begun: u64) {
        self.watermark = self.watermark.max(header.watermark);
        if header.watermark > 0 {
            let span = Self::span_of(header.watermark);
            let known = self.watermarks.entry(span).or_insert((u64::MAX, 0));
            *known = (known.0.min(header.watermark), known.1.max(header.watermark));
        }
        self.vouchers.extend(header.vouches.filter(|voucher| voucher.sequence >= begun));
        let seen = self.seen.entry(block).or_default();
        seen.pages = seen.pages.max(page + 1);
        let of_page = seen.of_page.entry(page).or_insert((u64::MAX, 0, header.order));
        // Of these, and of no others, the sequence is as new as the place: what is copied keeps the
        // one it had and says no watermark, and a commit has that of its members.
        let lone = header.kind == Kind::Data && header.group.1 == 0;
        if (lone || header.kind == Kind::Trim) && header.watermark > 0 && header.sequence >= begun {
            of_page.0 = of_page.0.min(header.sequence);
            of_page.1 = of_page.1.max(header.sequence);
        }
    }

    pub fn note_unsound(&mut self, slot: SlotId, read: &SlotRead<'_>, header: Option<Header>) {
        let (readable, durable) = (read.is_readable(), read.durable);
        self.unsound.push(Unsound { slot, readable, durable, header });
    }

    fn span_of(sequence: u64) -> u64 {
        sequence / (SEQUENCES_SKIPPED / 2)
    }

    /// Whether what had this sequence was durable in the life between two mounts in which it was
    /// written: a later life says nothing of what a power cut has torn before it.
    pub fn was_durable(&self, sequence: u64) -> bool {
        let span = Self::span_of(sequence);
        let mut known = self.watermarks.range(span..=span + 1);
        known.any(|(_, &(lowest, highest))| {
            highest > sequence && lowest.max(sequence) - sequence < SEQUENCES_SKIPPED / 2
        })
    }

    /// Every sequence below this was durable.
    pub fn watermark(&self) -> u64 {
        self.watermark
    }
}

impl Ftl {
    /// Every slot was seen: adds to the candidates what they miss, and notes what is damaged.
    pub(crate) fn miss(&mut self, mount: &mut Mount) {
        let footer = mount.footer.expect("a scan has a footer");
        let mut missing = std::mem::take(&mut mount.missing);
        for unsound in &missing.unsound {
            let page = self.place_in_band(unsound.slot);
            if let Some(seen) = missing.seen.get_mut(&self.geometry.block_of(unsound.slot)) {
                seen.unsound_last = seen.unsound_last.max(page);
            }
        }
        missing.watermark = missing.watermark.max(footer.sequence_begun);
        if self.is_mutant(Mutant::TakeDamageForTorn) {
            mount.report.pages_torn += missing.unsound.len() as u64;
            return;
        }
        mount.candidates.sort_unstable_by_key(|candidate| (candidate.sequence, candidate.lba));
        let needless: Vec<bool> =
            missing.unsound.iter().map(|it| is_needless(it, &mount.candidates)).collect();
        self.miss_vouched(mount, &missing, &footer);
        let alive = self.bands_alive(mount, &missing);
        let mut unknown = Vec::new();
        let mut torn_page = None;
        for (unsound, needless) in missing.unsound.iter().zip(needless) {
            let is_alive = alive.contains(&self.geometry.block_of(unsound.slot));
            if needless || !self.is_damage(mount, unsound, is_alive, &missing) {
                let page = unsound.slot.0 / self.geometry.slots_per_page;
                mount.report.pages_torn += u64::from(torn_page.replace(page) != Some(page));
                continue;
            }
            self.note_damaged(mount, unsound.slot);
            match unsound.header.filter(|header| header.order >= footer.checkpoint) {
                Some(header)
                    if header.sequence >= footer.sequence_begun || straddles(&header, &footer) =>
                {
                    mount.candidates.push(Candidate::lost(&header, unsound.slot));
                }
                Some(_) => {}
                None if unsound.header.is_none()
                    && (unsound.readable || self.tells_torn() || is_alive) =>
                {
                    unknown.push(unsound.slot);
                }
                // Where nothing of the band is wanted, an erase that was cut off explains it as well.
                None => {}
            }
        }
        miss_members(mount, &missing, &footer, unknown.len());
        self.suspect(mount, &missing, &unknown, &footer);
        mount.missing = missing;
    }

    /// Versions that are vouched for and are not there.
    fn miss_vouched(&self, mount: &mut Mount, missing: &Missing, footer: &Footer) {
        let found = &mount.candidates;
        let below = |voucher: &&Voucher| {
            (footer.sequence_begun..missing.watermark).contains(&voucher.sequence)
        };
        let of_sequence = |sequence: u64| {
            let first = found.partition_point(|candidate| candidate.sequence < sequence);
            found[first..].iter().take_while(move |candidate| candidate.sequence == sequence)
        };
        let mut lost = Vec::new();
        for voucher in missing.vouchers.iter().filter(below) {
            let mut there = of_sequence(voucher.sequence);
            if !voucher.record {
                if there.all(|candidate| candidate.lba != voucher.lba) {
                    lost.push(Candidate::vouched(voucher, Kind::Data, 0));
                }
                continue;
            }
            if there.any(|candidate| matches!(candidate.kind, Kind::Trim | Kind::Commit)) {
                continue;
            }
            // A commit has vouchers for its members, too.
            let member = |other: &Voucher| !other.record && other.sequence == voucher.sequence;
            let of_group = of_sequence(voucher.sequence).find(|member| member.group.1 > 0);
            lost.push(match of_group {
                Some(member) => {
                    let mut commit = Candidate::vouched(voucher, Kind::Commit, 0);
                    commit.group = (0, member.group.1);
                    commit
                }
                None if missing.vouchers.iter().any(member) => continue,
                None => Candidate::vouched(voucher, Kind::Trim, TRIM_BLOCKS_MAX),
            });
        }
        mount.candidates.extend(lost);
    }

    /// The bands with something that is wanted, of those with slots that read as nothing: no erase of theirs
    /// was begun, as that waits until all of a band is superseded, durably.
    fn bands_alive(&self, mount: &Mount, missing: &Missing) -> BTreeSet<BlockId> {
        let mut alive = BTreeSet::new();
        if self.tells_torn() {
            return alive;
        }
        let empty = missing.unsound.iter().filter(|it| !it.readable && it.header.is_none());
        let in_doubt: BTreeSet<BlockId> =
            empty.map(|unsound| self.geometry.block_of(unsound.slot)).collect();
        if in_doubt.is_empty() {
            return alive;
        }
        let versions = mount.candidates.iter();
        let versions = versions.filter(|it| matches!(it.kind, Kind::Data | Kind::Poison));
        let mut versions: Vec<(u32, u64, u64)> =
            versions.map(|it| (it.lba, it.sequence, it.order)).collect();
        versions.sort_unstable();
        let newest = |lba: u32| {
            let last = versions.partition_point(|version| version.0 <= lba).checked_sub(1)?;
            Some(versions[last]).filter(|version| version.0 == lba)
        };
        let trims: Vec<&Candidate> =
            mount.candidates.iter().filter(|it| it.kind == Kind::Trim).collect();
        let is_trimmed = |lba: u32, sequence: u64| {
            trims.iter().any(|trim| {
                trim.sequence > sequence
                    && (trim.lba..trim.lba.saturating_add(trim.argument)).contains(&lba)
            })
        };
        for it in mount.candidates.iter().filter(|it| it.order > 0) {
            let block = self.geometry.block_of(it.slot);
            if !in_doubt.contains(&block) || alive.contains(&block) {
                continue;
            }
            // A band with a record is kept until a checkpoint covers it.
            let wanted = it.kind != Kind::Data
                || newest(it.lba) == Some((it.lba, it.sequence, it.order))
                    && !is_trimmed(it.lba, it.sequence);
            if wanted {
                alive.insert(block);
            }
        }
        // What the checkpoint's map points to.
        for (lba, &entry) in (0..).zip(self.map.flat().unwrap_or_default()) {
            let slot = SlotId(entry);
            if is_slot(entry)
                && !self.is_leaving_shadow(lba)
                && u64::from(entry) < self.geometry.slots()
                && in_doubt.contains(&self.geometry.block_of(slot))
                && newest(lba).is_none()
                && !is_trimmed(lba, 0)
            {
                alive.insert(self.geometry.block_of(slot));
            }
        }
        // Where what somebody vouches for is nowhere, it was in one of those that were durable.
        let is_lost = |it: &&Candidate| {
            it.lost && it.order == 0 && newest(it.lba) == Some((it.lba, it.sequence, 0))
        };
        let mut lost = mount.candidates.iter().filter(is_lost);
        if lost.any(|it| !is_trimmed(it.lba, it.sequence)) {
            let durable = missing.unsound.iter().filter(|unsound| unsound.durable);
            alive.extend(durable.map(|unsound| self.geometry.block_of(unsound.slot)));
        }
        alive
    }

    /// Whether no power cut explains that the slot, of a band that `is_alive` if something of it is known
    /// to be wanted, is not sound.
    fn is_damage(
        &self,
        mount: &Mount,
        unsound: &Unsound,
        is_alive: bool,
        missing: &Missing,
    ) -> bool {
        let footer = &mount.footer.expect("a scan has a footer");
        let block = self.geometry.block_of(unsound.slot);
        let page = self.place_in_band(unsound.slot);
        if let Some(header) = unsound.header.filter(|header| header.order >= footer.checkpoint)
            && ((footer.sequence_begun..missing.watermark).contains(&header.sequence)
                || straddles(&header, footer))
        {
            return true;
        }
        if unsound.durable && (unsound.readable || is_alive) {
            return true;
        }
        if self.bands[block].failing {
            // A page that could not be programmed was appended again elsewhere.
            return false;
        }
        let tells_torn = self.tells_torn();
        if let Some(header) = unsound.header.filter(|header| header.order < footer.checkpoint) {
            return tells_torn || missing.was_durable(header.sequence);
        }
        let seen = missing.seen.get(&block);
        // With one page at most, an erase that was cut off after the mount explains the others.
        let erased = seen.is_none_or(|seen| seen.pages <= 1);
        let begins = self.probed_header(block, mount.probes[block.0 as usize]).is_some();
        if footer.clean && begins && !erased {
            return true;
        }
        // What is beside a page is torn as a whole, and reads as nothing then.
        if unsound.readable && (tells_torn || unsound.header.is_none()) {
            return true;
        }
        let Some(seen) = seen else { return false };
        let is_flash = self.geometry.durable_at_completion && !self.geometry.is_fast(block);
        if is_flash && self.is_torn(block, page, seen) {
            return false;
        }
        if tells_torn {
            return !erased;
        }
        let durable =
            |&(lowest, _, _): &(u64, u64, u64)| lowest != u64::MAX && lowest < missing.watermark;
        seen.of_page.range(page..).any(|(_, of_page)| durable(of_page))
    }

    /// Whether one program that was cut off explains that `page` of `block` is unreadable: that of the
    /// last page there, behind all that is sound, which takes pages with it that share its cells. Other
    /// pages behind are of programs for which there was no room below.
    fn is_torn(&self, block: BlockId, page: u32, seen: &Seen) -> bool {
        let pages = self.geometry.pages_per_block;
        let mut destroyed =
            self.geometry.pairing_of(block).earlier_partners(seen.unsound_last, pages);
        let behind = seen.unsound_last >= seen.pages;
        behind && (page >= seen.pages || destroyed.any(|earlier| earlier == page))
    }

    /// The bands of which something is wanted, and that hold an older life than the one that it was in. Where nothing
    /// is wanted the band was erased after the checkpoint, and what came back with a node of a pool that was away
    /// then is no damage.
    pub(crate) fn lives_missing(&self, mount: &Mount) -> Vec<BlockId> {
        let is_wanted = |block: &BlockId| self.bands[*block].slots_valid > 0;
        mount.other_lives.iter().copied().filter(is_wanted).collect()
    }

    /// Where a slot comes in the order in which its band is programmed.
    pub(crate) fn place_in_band(&self, slot: SlotId) -> u32 {
        let page = self.geometry.page_in_block(slot);
        if self.geometry.is_fast(self.geometry.block_of(slot)) {
            page * self.geometry.slots_per_page + self.geometry.slot_in_page(slot)
        } else {
            page
        }
    }

    /// A program that a power cut stopped never leaves what can be read and is wrong.
    pub(crate) fn tells_torn(&self) -> bool {
        self.geometry.durable_at_completion && !self.geometry.is_tiered()
    }

    /// Tells that `slot` is damaged.
    pub(crate) fn note_damaged(&self, mount: &mut Mount, slot: SlotId) {
        mount.report.note_damaged(&self.geometry, slot);
    }

    /// Nobody knows which blocks these slots held. If a sequence is missing that one of them may have
    /// had, any block that was not written later is refused.
    fn suspect(
        &mut self,
        mount: &mut Mount,
        missing: &Missing,
        unknown: &[SlotId],
        footer: &Footer,
    ) {
        let known = sequences_known(mount, missing, footer);
        let latest = unknown.iter().filter_map(|&slot| {
            let range = self.sequences_around(slot, missing, footer, &known);
            last_gap(&known, range)
        });
        let Some(latest) = latest.max() else { return };
        let newer = mount.candidates.iter().filter(|candidate| candidate.sequence > latest);
        let mut sound: Vec<u32> = Vec::new();
        for candidate in newer {
            match candidate.kind {
                Kind::Trim if candidate.order > 0 => {
                    let end = candidate.lba.saturating_add(candidate.argument);
                    sound.extend(candidate.lba..end.min(self.map.blocks()));
                }
                Kind::Data | Kind::Poison => sound.push(candidate.lba),
                _ => {}
            }
        }
        sound.sort_unstable();
        sound.dedup();
        let others = u64::from(self.map.blocks()) - sound.len() as u64;
        if self.settings.salvage {
            mount.report.blocks_stale_max = others;
        } else {
            mount.report.blocks_refused = others;
            self.refused = Some(Refused { except: sound });
        }
    }

    /// The sequences that what was in `slot` may have had: a band is filled in their order. It is damaged
    /// whatever the watermark says, so it may have been the last one of all, above every one that is
    /// `known`.
    fn sequences_around(
        &self,
        slot: SlotId,
        missing: &Missing,
        footer: &Footer,
        known: &[u64],
    ) -> std::ops::Range<u64> {
        if footer.clean {
            // Nothing was appended after the checkpoint, whatever it was.
            return 0..0;
        }
        let (block, page) = (self.geometry.block_of(slot), self.geometry.page_in_block(slot));
        let all = footer.sequence_begun..above_all(known, missing) + 1;
        let Some(seen) = missing.seen.get(&block) else { return all };
        // What was only copied was written and programmed well before, and others said so.
        let copies =
            seen.of_page.len() > 1 && seen.of_page.values().all(|of_page| of_page.0 == u64::MAX);
        let all = if copies { all.start..missing.watermark } else { all };
        let told = |of_page: &&(u64, u64, u64)| of_page.0 != u64::MAX;
        let before = seen.of_page.range(..page).map(|(_, of_page)| of_page).filter(told);
        let after = seen.of_page.range(page + 1..).map(|(_, of_page)| of_page).filter(told);
        // Covered by the checkpoint, whatever it was.
        if seen.of_page.range(page..).any(|(_, of_page)| of_page.2 < footer.checkpoint) {
            return 0..0;
        }
        let first = before.map(|of_page| of_page.1 + 1).max().unwrap_or(all.start);
        let end = after.map(|of_page| of_page.0).min().unwrap_or(all.end);
        first.max(all.start)..end.min(all.end)
    }
}

/// The sequences from the checkpoint on that somebody has or vouches for, in order.
fn sequences_known(mount: &Mount, missing: &Missing, footer: &Footer) -> Vec<u64> {
    let candidates = mount.candidates.iter().map(|candidate| candidate.sequence);
    let vouched = missing.vouchers.iter().map(|voucher| voucher.sequence);
    let mut known: Vec<u64> =
        candidates.chain(vouched).filter(|&sequence| sequence >= footer.sequence_begun).collect();
    known.sort_unstable();
    known.dedup();
    known
}

/// The first sequence above all that anything tells of.
fn above_all(known: &[u64], missing: &Missing) -> u64 {
    missing.watermark.max(known.last().map_or(0, |&last| last + 1))
}

/// Atomic writes below the watermark were programmed whole, so what is not found of one is lost. One without
/// its commit record may have failed and been undone; but where a slot is damaged of which nobody
/// knows what it held, that may have been the record. A write that failed may have happened or not.
///
/// Such a slot may have been of an atomic write above the watermark, too: of one that is not found
/// whole no member is known to be the newest. And of one that a checkpoint began in the middle of: its
/// first members are in the map, the others follow in their order.
fn miss_members(mount: &mut Mount, missing: &Missing, footer: &Footer, unknown: usize) {
    let one_is_unknown = unknown > 0;
    let known = sequences_known(mount, missing, footer);
    let end = if one_is_unknown { above_all(&known, missing) } else { missing.watermark };
    let range = footer.sequence_begun..end;
    // By sequence: the first block, the last index, and the first index that may be missing.
    let mut groups: BTreeMap<u64, (u32, u8, u32)> = BTreeMap::new();
    let mut committed = BTreeSet::new();
    for candidate in &mount.candidates {
        let begun = candidate.sequence >= footer.sequence_begun;
        // Of members that are in the map nothing needs to be found.
        let straddles = candidate.straddles && one_is_unknown;
        if begun && !range.contains(&candidate.sequence) || !begun && !straddles {
            continue;
        }
        let (index, last) = candidate.group;
        let first = candidate.lba.saturating_sub(u32::from(index));
        if last > 0 {
            let index = match candidate.kind {
                _ if begun => 0,
                Kind::Commit => u32::from(last) + 1,
                _ => u32::from(index),
            };
            let group = groups.entry(candidate.sequence).or_insert((first, last, index));
            group.2 = group.2.min(index);
        }
        if candidate.kind == Kind::Commit {
            committed.insert(candidate.sequence);
        }
    }
    for (sequence, (lba, last, index)) in groups {
        // The checkpoint waited for its record.
        let has_record = committed.contains(&sequence) || sequence < footer.sequence_begun;
        if !has_record && !one_is_unknown {
            continue;
        }
        let index = if sequence < footer.sequence_begun {
            index.saturating_sub(unknown as u32)
        } else {
            index
        };
        for at in index..=u32::from(last) {
            let voucher = Voucher { lba: lba.saturating_add(at), sequence, record: false };
            mount.candidates.push(Candidate::vouched(&voucher, Kind::Data, 0));
        }
        // Above the watermark a cut may have undone it: nothing of it is shown then.
        if !has_record && sequence < missing.watermark {
            let voucher = Voucher { lba, sequence, record: true };
            let mut commit = Candidate::vouched(&voucher, Kind::Commit, 0);
            commit.group = (0, last);
            mount.candidates.push(commit);
        }
    }
}

/// Whether nobody needs the slot: it held padding, or the same version or record is found elsewhere, as that
/// of a page which could not be programmed for want of room below. `found` ascends by sequence and block.
fn is_needless(unsound: &Unsound, found: &[Candidate]) -> bool {
    let Some(header) = &unsound.header else { return false };
    let key = (header.sequence, header.lba);
    let first = found.partition_point(|candidate| (candidate.sequence, candidate.lba) < key);
    let same = found[first..].iter().take_while(|it| (it.sequence, it.lba) == key);
    header.kind == Kind::Pad || same.into_iter().any(|it| it.kind == header.kind && !it.lost)
}

/// A member of an atomic write that began before the checkpoint and was placed after that had begun;
/// no copy of one, which says no watermark.
pub(crate) fn straddles(header: &Header, footer: &Footer) -> bool {
    let later = header.order >= footer.checkpoint && header.watermark > 0;
    later && header.group.1 > 0 && header.sequence < footer.sequence_begun
}

/// Blocks that may have held something newer than what was found: all but some.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    /// Ascending.
    except: Vec<u32>,
}

impl Refused {
    pub fn holds(&self, lba: u32) -> bool {
        self.except.binary_search(&lba).is_err()
    }
}

/// The last number of `range` that is not in `known`, which ascends.
fn last_gap(known: &[u64], range: std::ops::Range<u64>) -> Option<u64> {
    let mut last = range.end.checked_sub(1)?;
    let mut at = known.partition_point(|&sequence| sequence < range.end);
    while last >= range.start {
        if at == 0 || known[at - 1] != last {
            return Some(last);
        }
        at -= 1;
        last = last.checked_sub(1)?;
    }
    None
}

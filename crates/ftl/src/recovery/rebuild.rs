//! Rebuild: the part of the map that no checkpoint holds any more, found again from the OOB of
//! every slot.
//!
//! The newest version of a logical block is always somewhere on flash: a band is erased only when
//! what superseded its slots is durable. So the highest sequence wins. What a rebuild cannot know:
//! - a record of a trim lives until a checkpoint covers it. A block that was trimmed earlier comes
//!   back if an old version of it has not been erased yet;
//! - a page that cannot be read may have held the newest version of any block, unless a power cut
//!   explains it. Where the header beside a slot is sound, and its data is not, the block is known,
//!   and no other one is concerned.
//!
//! So what it finds is not shown: blocks of lost chunks are refused, but for those written since the
//! checkpoint, and nothing is written, so that nothing is lost by looking. The owner may say that it be
//! shown all the same ([`crate::config::Settings::salvage`]); then the blocks that *may be stale* are counted.
//!
//! Only blocks of lost chunks are touched, and only by slots from before the checkpoint's name: the
//! others come from the checkpoint and from `replay`, as ever.

use crate::api::Rebuilt;
use crate::format::{CHUNK_ENTRIES, Footer, Header, Kind, POISONED, UNMAPPED, is_slot};
use crate::mutant::Mutant;
use crate::recovery::missing::Missing;
use crate::recovery::mount::{Mount, Probe};
use crate::whole::Ftl;
use flash::{BlockId, SlotId};
use std::collections::BTreeSet;
use std::ops::Range;

/// The block's content follows from what came after the checkpoint.
const REPLAYED: u64 = u64::MAX;

/// A record from before the checkpoint: blocks `lba..end` became `entry`.
#[derive(Clone, Copy, Debug)]
struct Record {
    sequence: u64,
    lba: u32,
    end: u32,
    entry: u32,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Rebuild {
    /// By chunk, if it is lost: the sequence of each block's version in the map, 0 for none.
    versions: Vec<Option<Box<[u64]>>>,
    /// The map was in use when the chunks turned out lost: it is right, but for their blocks. Those of
    /// these ranges were in DRAM and are right, too; the ranges ascend.
    kept: Option<Vec<Range<u32>>>,
    records: Vec<Record>,
    /// Blocks whose header is sound and whose data is not, with the sequence.
    spoiled: Vec<(u32, u64)>,
    /// Pages of which a slot could not be read, and those where no power cut leaves that.
    unreadable: Vec<(BlockId, u32)>,
    damaged: BTreeSet<(BlockId, u32)>,
    /// Bands with slots of checkpoints, and bands with slots of any other kind. Pages of those that
    /// are in the first set only are not missed.
    checkpoint_bands: BTreeSet<BlockId>,
    other_bands: BTreeSet<BlockId>,
    /// Pages that were not answered at all.
    pages_unanswered: u64,
    /// The checkpoint was complete once: one of its footers is sound.
    complete: bool,
}

impl Rebuild {
    /// For the chunks that were not `found`.
    pub fn new(found: &[bool]) -> Self {
        let versions = found
            .iter()
            .map(|&found| (!found).then(|| vec![0; CHUNK_ENTRIES].into_boxed_slice()))
            .collect();
        Self { versions, ..Self::default() }
    }

    /// The map was in use meanwhile, and the blocks of these ranges are right.
    pub fn keep(&mut self, kept: Vec<Range<u32>>) {
        for lba in kept.iter().cloned().flatten() {
            self.replayed(lba);
        }
        self.kept = Some(kept);
    }

    pub fn is_late(&self) -> bool {
        self.kept.is_some()
    }

    /// What is found of `lba` after the checkpoint counts: it is not in the map yet.
    pub fn concerns(&self, lba: u32) -> bool {
        let Some(kept) = &self.kept else { return true };
        let lost = self.versions.get(lba as usize / CHUNK_ENTRIES).is_some_and(Option::is_some);
        let at = kept.partition_point(|range| range.end <= lba);
        lost && !kept.get(at).is_some_and(|range| range.contains(&lba))
    }

    /// The blocks of `range` that it concerns, of lost chunks.
    pub fn concerned(&self, range: Range<u32>) -> Vec<u32> {
        let blocks = self.lost_ranges(range.start, range.end).flatten();
        blocks.filter(|&lba| self.concerns(lba)).collect()
    }

    /// Nothing from after the checkpoint says what `lba` holds, and its chunk is lost.
    pub fn is_in_doubt(&self, lba: u32) -> bool {
        let chunk = self.versions.get(lba as usize / CHUNK_ENTRIES).and_then(Option::as_ref);
        chunk.is_some_and(|versions| versions[lba as usize % CHUNK_ENTRIES] != REPLAYED)
    }

    pub fn missed(&mut self, pages: u64) {
        self.pages_unanswered += pages;
    }

    fn chunks_lost(&self) -> u32 {
        self.versions.iter().flatten().count() as u32
    }

    /// The version of `lba`, if its chunk is lost.
    fn version(&mut self, lba: u32) -> Option<&mut u64> {
        let chunk = self.versions.get_mut(lba as usize / CHUNK_ENTRIES)?.as_mut()?;
        Some(&mut chunk[lba as usize % CHUNK_ENTRIES])
    }

    /// Replay decided what `lba` holds.
    pub fn replayed(&mut self, lba: u32) {
        if let Some(version) = self.version(lba) {
            *version = REPLAYED;
        }
    }

    pub fn note_unreadable(&mut self, block: BlockId, page: u32) {
        self.unreadable.push((block, page));
    }

    /// A slot of the page can be read, and its header makes no sense: a power cut tears what is beside a
    /// page as a whole.
    pub fn note_damaged(&mut self, block: BlockId, page: u32) {
        self.damaged.insert((block, page));
    }

    /// The slot with this header, from before the checkpoint, cannot be read. Its block is lost, unless
    /// the same version or a newer one is found.
    pub fn note_spoiled(&mut self, header: &Header) {
        if header.kind == Kind::Data && self.version(header.lba).is_some() {
            self.spoiled.push((header.lba, header.sequence));
        }
    }

    /// A sound slot of `kind` lies in `block`.
    pub fn note_kind(&mut self, block: BlockId, kind: Kind) {
        match kind {
            Kind::Root | Kind::Map | Kind::BandTable | Kind::Footer | Kind::Parity => {
                self.checkpoint_bands.insert(block);
            }
            Kind::Data | Kind::Trim | Kind::Poison | Kind::Commit => {
                self.other_bands.insert(block);
            }
            Kind::Pad => {}
        }
    }

    fn is_missed(&self, block: BlockId) -> bool {
        !self.checkpoint_bands.contains(&block) || self.other_bands.contains(&block)
    }

    pub fn note_unanswered(&mut self) {
        self.pages_unanswered += 1;
    }

    /// Lost chunks that have a block of `lba..end`, as ranges of blocks.
    fn lost_ranges(&self, lba: u32, end: u32) -> impl Iterator<Item = Range<u32>> {
        let size = CHUNK_ENTRIES as u32;
        let chunks = lba / size..end.div_ceil(size).min(self.versions.len() as u32);
        chunks
            .filter(|&chunk| self.versions[chunk as usize].is_some())
            .map(move |chunk| lba.max(chunk * size)..end.min((chunk + 1) * size))
    }
}

impl Ftl {
    /// Begins a rebuild if the checkpoint's content is not whole. `found` has one entry a content
    /// slot: map chunks first, then the band table.
    pub(crate) fn rebuild_if_needed(&self, mount: &mut Mount) {
        if mount.found.iter().all(|&found| found) {
            return;
        }
        mount.rebuild = Some(self.rebuild_of(mount, &mount.found[..self.layout.chunks as usize]));
    }

    /// A rebuild of the chunks that were not `found`.
    pub(crate) fn rebuild_of(&self, mount: &Mount, found: &[bool]) -> Rebuild {
        let mut rebuild = Rebuild::new(found);
        rebuild.complete = mount.footer_found;
        let skipped = self.bands.ids().filter(|&block| {
            self.geometry.exists(block) && matches!(mount.probes[block.0 as usize], Probe::Skipped)
        });
        let skipped = skipped.count();
        rebuild.missed(skipped as u64 * u64::from(self.geometry.pages_per_block));
        rebuild
    }

    /// A sound slot from before the checkpoint.
    pub(crate) fn rebuild_slot(&mut self, rebuild: &mut Rebuild, slot: SlotId, header: &Header) {
        let block = self.geometry.block_of(slot);
        if header.order < self.bands[block].first_order {
            // Left from before the band's last erase.
            return;
        }
        let end = match header.kind {
            Kind::Data | Kind::Poison => header.lba.saturating_add(1),
            Kind::Trim => header.lba.saturating_add(header.argument),
            _ => return,
        };
        let end = end.min(self.map.blocks());
        if header.kind != Kind::Data {
            // Kept until a checkpoint covers it anew: a second recovery must find it, too.
            let band = &mut self.bands[block];
            band.hold_order = band.hold_order.max(header.order);
            let entry = if header.kind == Kind::Poison { POISONED } else { UNMAPPED };
            if header.lba < end && rebuild.lost_ranges(header.lba, end).next().is_some() {
                let sequence = header.sequence;
                rebuild.records.push(Record { sequence, lba: header.lba, end, entry });
            }
            return;
        }
        if header.lba < end
            && let Some(version) = rebuild.version(header.lba)
            // A relocated copy has the same sequence and the same data: either will do.
            && *version < header.sequence
            && !self.is_of_former_life(header.lba, header.sequence)
        {
            *version = header.sequence;
            self.map.recover(header.lba, slot.0);
        }
    }

    /// Every slot was seen: what records say of them.
    pub(crate) fn rebuild_records(&mut self, rebuild: &mut Rebuild, missing: &Missing) {
        let tells_torn = self.tells_torn();
        for (lba, sequence) in std::mem::take(&mut rebuild.spoiled) {
            // Else a power cut has left it, long ago.
            if tells_torn || missing.was_durable(sequence) {
                rebuild.records.push(Record { sequence, lba, end: lba + 1, entry: POISONED });
            }
        }
        for record in std::mem::take(&mut rebuild.records) {
            let ranges: Vec<_> = rebuild.lost_ranges(record.lba, record.end).collect();
            for lba in ranges.into_iter().flatten() {
                let Some(version) = rebuild.version(lba) else { continue };
                if *version < record.sequence && !self.is_of_former_life(lba, record.sequence) {
                    *version = record.sequence;
                    let is_trimmed = record.entry == UNMAPPED;
                    let entry = if is_trimmed { self.trimmed(lba) } else { record.entry };
                    self.map.recover(lba, entry);
                }
            }
        }
    }

    /// After the replay: what the rebuild came to. Blocks whose newest version is not certain are
    /// refused, unless the owner wants them as they were found.
    pub(crate) fn end_rebuild(&mut self, rebuild: &Rebuild, footer: &Footer) -> Rebuilt {
        let pages = self.geometry.pages_per_block;
        let lost = |&&(block, page): &&(BlockId, u32)| {
            if rebuild.damaged.contains(&(block, page)) {
                return rebuild.is_missed(block);
            }
            // A power cut tears the last pages of a band and those that share cells with them.
            let last = self.geometry.pairing_of(block).last_partner(page, pages);
            // Of a torn page itself some slots may be sound.
            let behind = if last == page { page + 1 } else { last };
            behind < self.pages_written(block) && rebuild.is_missed(block)
        };
        let pages_lost =
            rebuild.unreadable.iter().filter(lost).count() as u64 + rebuild.pages_unanswered;
        // Before the first checkpoint there was nothing: a format was cut off.
        let all_found = footer.sequence_begun <= 1;
        let shows = all_found || self.settings.salvage || self.is_mutant(Mutant::RebuildHidesGaps);
        let (mut blocks_stale_max, mut blocks_refused) = (0, 0);
        for (chunk, versions) in rebuild.versions.iter().enumerate() {
            let first = chunk * CHUNK_ENTRIES;
            let versions = versions.iter().flat_map(|versions| versions.iter());
            for (lba, &version) in (first as u32..self.map.blocks()).zip(versions) {
                if version == REPLAYED {
                    continue;
                }
                // Of what nothing is found of, something may have been in what cannot be read.
                // What a snapshot has, and the block has not: that has changed to something that was not found.
                let is_older = version > 0 && self.is_of_snapshot(lba, version);
                if !shows || is_older || version == 0 && pages_lost > 0 {
                    self.map.recover(lba, POISONED);
                }
                blocks_refused += u64::from(!shows);
                let is_old = shows && !all_found && is_slot(self.map.recovered(lba));
                blocks_stale_max += u64::from(is_old);
            }
        }
        if !shows {
            let is_lost = |chunk: usize| rebuild.versions.get(chunk).is_some_and(Option::is_some);
            blocks_refused += self.shadows_lost(is_lost);
        }
        let of_cut_format = all_found && !rebuild.complete;
        let chunks = rebuild.chunks_lost();
        Rebuilt { chunks, blocks_stale_max, blocks_refused, pages_lost, of_cut_format }
    }

    /// What a rebuild goes by when no footer is sound: the root record has the same facts.
    pub(crate) fn footer_of_root(mount: &Mount, name: u64) -> Option<Footer> {
        let (_, root) = mount.roots.iter().find(|(_, root)| root.checkpoint == name)?;
        Some(Footer {
            checkpoint: name,
            sequence_next: root.sequence_begun,
            sequence_begun: root.sequence_begun,
            order_next: name,
            generation: root.generation,
            clean: false,
        })
    }
}

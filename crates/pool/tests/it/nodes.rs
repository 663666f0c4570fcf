//! Nodes of a few lines that are obviously right: what they say is done is durable at once. A slot's data is a
//! stamp.

use flash::OOB_BYTES;
use pool::message::{Answer, Ask, BandEntry, BandHeader, Refusal, Slot};
use pool::words::{BandName, Generation, VolumeId};
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
pub struct Band {
    pub header: BandHeader,
    pub pages: Vec<Vec<Slot<u64>>>,
    pub sealed: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Node {
    pub fences: BTreeMap<VolumeId, Generation>,
    pub bands: BTreeMap<BandName, Band>,
    /// So many at most are told of by one list; with 0 it says each time that there are more.
    pub list_max: usize,
    /// So many fences are refused first.
    pub fences_refused: u32,
    /// That were asked for.
    pub flushes: u32,
}

impl Band {
    /// Pages before the first one that cannot be read.
    fn sound(&self) -> u32 {
        let is_damaged = |page: &Vec<Slot<u64>>| page.iter().any(|slot| slot.data == Some(0));
        self.pages.iter().position(is_damaged).unwrap_or(self.pages.len()) as u32
    }
}

/// The slots of a page that holds one stamp.
pub fn page(stamp: u64) -> Vec<Slot<u64>> {
    vec![Slot { oob: [stamp as u8; OOB_BYTES], crc: stamp as u32, data: Some(stamp) }]
}

fn refused(refusal: Refusal) -> Answer<u64> {
    Answer::Refused(refusal)
}

impl Node {
    /// `sources` is what the band is on the node that a copy is fetched from.
    pub fn ask(&mut self, ask: Ask<u64>, source: Option<Band>) -> Answer<u64> {
        let (volume, generation) = of(&ask);
        let highest = self.fences.entry(volume).or_default();
        if generation < *highest {
            return refused(Refusal::Stale { highest: *highest });
        }
        if matches!(ask, Ask::Fence { .. }) && self.fences_refused > 0 {
            self.fences_refused -= 1;
            return refused(Refusal::Failed);
        }
        *highest = generation;
        match ask {
            Ask::Fence { .. } => Answer::Done,
            Ask::Flush { .. } => {
                self.flushes += 1;
                Answer::Done
            }
            Ask::Append { band, page, open, slots, .. } => self.append(band, page, open, slots),
            Ask::Read { band, slot, count, .. } => self.read(band, slot, count),
            Ask::Seal { band, pages, .. } => self.seal(band, pages),
            Ask::Free { band, .. } => {
                self.bands.remove(&band);
                Answer::Done
            }
            Ask::List { after, .. } => self.list(volume, after),
            Ask::Copy { band, header, pages, .. } => match source {
                _ if self.bands.get(&band).is_some_and(|of| of.sealed) => Answer::Done,
                _ if self.bands.contains_key(&band) => refused(Refusal::Differs),
                Some(of) if of.sound() < of.pages.len() as u32 => refused(Refusal::Invalid),
                Some(of) if of.sealed && of.pages.len() as u32 == pages => {
                    self.bands.insert(band, Band { header, ..of });
                    Answer::Done
                }
                _ => refused(Refusal::NoBand),
            },
        }
    }

    fn append(
        &mut self,
        name: BandName,
        page: u32,
        open: Option<BandHeader>,
        slots: Vec<Slot<u64>>,
    ) -> Answer<u64> {
        if let (0, Some(header)) = (page, open) {
            let (pages, sealed) = (Vec::new(), false);
            self.bands.entry(name).or_insert(Band { header, pages, sealed });
        }
        let Some(band) = self.bands.get_mut(&name) else { return refused(Refusal::NoBand) };
        let expected = band.pages.len() as u32;
        match band.pages.get(page as usize) {
            Some(there) if *there == slots => Answer::Done,
            Some(_) => refused(Refusal::Differs),
            None if band.sealed => refused(Refusal::Sealed { pages: expected }),
            None if page != expected => refused(Refusal::OutOfOrder { expected }),
            None => {
                band.pages.push(slots);
                Answer::Done
            }
        }
    }

    fn read(&self, name: BandName, slot: u32, count: u32) -> Answer<u64> {
        let Some(band) = self.bands.get(&name) else { return refused(Refusal::NoBand) };
        let slots: Vec<_> = band.pages.iter().flatten().collect();
        let range = slot as usize..(slot + count) as usize;
        match slots.get(range) {
            // A stamp of zero stands for what cannot be read.
            Some(slots) => Answer::Slots(
                slots.iter().map(|&of| (of.data != Some(0)).then(|| of.clone())).collect(),
            ),
            None => refused(Refusal::Invalid),
        }
    }

    fn seal(&mut self, name: BandName, pages: u32) -> Answer<u64> {
        let Some(band) = self.bands.get_mut(&name) else { return refused(Refusal::NoBand) };
        let there = band.pages.len() as u32;
        if band.sealed && there != pages {
            return refused(Refusal::Sealed { pages: there });
        }
        if pages > there {
            return refused(Refusal::Invalid);
        }
        band.pages.truncate(pages as usize);
        band.sealed = true;
        Answer::Done
    }

    fn list(&self, volume: VolumeId, after: Option<BandName>) -> Answer<u64> {
        let behind = self.bands.iter().filter(|(name, _)| name.volume == volume);
        let mut behind = behind.filter(|(name, _)| after.is_none_or(|after| **name > after));
        let entry = |(&band, of): (&BandName, &Band)| BandEntry {
            sound: of.sound(),
            ..BandEntry::whole(band, of.header, of.pages.len() as u32, of.sealed)
        };
        let bands: Vec<_> = behind.by_ref().take(self.list_max).map(entry).collect();
        Answer::Bands { bands, more: self.list_max == 0 || behind.next().is_some() }
    }
}

fn of(ask: &Ask<u64>) -> (VolumeId, Generation) {
    match *ask {
        Ask::Fence { volume, generation, .. }
        | Ask::Flush { volume, generation }
        | Ask::List { volume, generation, .. } => (volume, generation),
        Ask::Append { band, generation, .. }
        | Ask::Read { band, generation, .. }
        | Ask::Seal { band, generation, .. }
        | Ask::Free { band, generation }
        | Ask::Copy { band, generation, .. } => (band.volume, generation),
    }
}

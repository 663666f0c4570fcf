//! The fields of the body of a head, written and read in the same order: each pair of functions stands
//! together.

use super::{Hello, LIST_MAX, Message, NAME_BYTES_MAX, WireError, within};
use crate::message::{
    Answer, Ask, AskId, BandEntry, BandHeader, Congestion, NodeFacts, Refusal, Signals, Slot,
};
use crate::node::store::PAGE_SLOTS_MAX;
use crate::words::{
    BandName, BandShape, Generation, MEMBERS_MAX, Members, NodeId, PoolId, VolumeId,
};
use flash::OOB_BYTES;

const HELLO: u8 = 1;
const FENCE: u8 = 2;
const APPEND: u8 = 3;
const READ: u8 = 4;
const SEAL: u8 = 5;
const FREE: u8 = 6;
const FLUSH: u8 = 7;
const LIST: u8 = 8;
const COPY: u8 = 9;
const DONE: u8 = 16;
const SLOTS: u8 = 17;
const BANDS: u8 = 18;
const REFUSED: u8 = 19;

/// What a slot of a message is.
const SLOT_ZEROES: u8 = 0;
const SLOT_DATA: u8 = 1;
const SLOT_LOST: u8 = 2;

pub(super) struct Writer<'a, D> {
    pub kind: u8,
    pub body: Vec<u8>,
    pub payload: Vec<&'a D>,
}

impl<D> Default for Writer<'_, D> {
    fn default() -> Self {
        Self { kind: 0, body: Vec::new(), payload: Vec::new() }
    }
}

pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    payload_slots: u32,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, payload_slots: 0 }
    }

    /// Slots of data that the fields told of.
    pub fn payload_slots(&self) -> u32 {
        self.payload_slots
    }

    pub fn end(&self) -> Result<(), WireError> {
        match self.bytes.len() {
            0 => Ok(()),
            bytes => Err(WireError::Trailing { bytes }),
        }
    }

    pub fn message(&mut self, kind: u8, id: AskId) -> Result<Message<u32>, WireError> {
        match kind {
            HELLO if id != AskId(0) => Err(WireError::Field { what: "the id of a hello" }),
            HELLO => Ok(Message::Hello(self.hello()?)),
            FENCE..=COPY => Ok(Message::Ask { id, ask: self.ask(kind)? }),
            DONE..=REFUSED => {
                let signals = self.signals()?;
                Ok(Message::Answer { id, answer: self.answer(kind)?, signals })
            }
            found => Err(WireError::Kind { found }),
        }
    }

    fn take<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], WireError> {
        let (bytes, rest) = self.bytes.split_first_chunk().ok_or(WireError::Short { what })?;
        self.bytes = rest;
        Ok(*bytes)
    }

    fn u8(&mut self, what: &'static str) -> Result<u8, WireError> {
        Ok(self.take::<1>(what)?[0])
    }

    fn u16(&mut self, what: &'static str) -> Result<u16, WireError> {
        Ok(u16::from_le_bytes(self.take(what)?))
    }

    fn u32(&mut self, what: &'static str) -> Result<u32, WireError> {
        Ok(u32::from_le_bytes(self.take(what)?))
    }

    fn u64(&mut self, what: &'static str) -> Result<u64, WireError> {
        Ok(u64::from_le_bytes(self.take(what)?))
    }

    fn flag(&mut self, what: &'static str) -> Result<bool, WireError> {
        match self.u8(what)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(WireError::Field { what }),
        }
    }

    fn generation(&mut self) -> Result<Generation, WireError> {
        Ok(Generation(self.u64("a generation")?))
    }

    fn volume(&mut self) -> Result<VolumeId, WireError> {
        Ok(VolumeId(self.u32("a volume")?))
    }
}

impl<D> Writer<'_, D> {
    fn u8(&mut self, value: u8) {
        self.body.push(value);
    }

    fn u32(&mut self, value: u32) {
        self.body.extend(value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.body.extend(value.to_le_bytes());
    }
}

impl<D> Writer<'_, D> {
    pub fn hello(&mut self, hello: &Hello) -> Result<(), WireError> {
        let Hello { pool, node, name, facts } = hello;
        within("bytes of a client's name", name.len() as u64, NAME_BYTES_MAX as u64)?;
        self.kind = HELLO;
        self.body.extend(pool.0.to_le_bytes());
        self.u32(node.0);
        self.u8(name.len() as u8);
        self.body.extend(name.as_bytes());
        self.u8(u8::from(facts.is_some()));
        if let Some(NodeFacts { node, durable, bands, bands_used, band_pages }) = *facts {
            self.u32(node.0);
            self.u8(u8::from(durable));
            self.u32(bands);
            self.u32(bands_used);
            self.u32(band_pages);
        }
        Ok(())
    }
}

impl Reader<'_> {
    fn hello(&mut self) -> Result<Hello, WireError> {
        let pool = PoolId(u128::from_le_bytes(self.take("the pool of a hello")?));
        let node = NodeId(self.u32("the node of a hello")?);
        let bytes = usize::from(self.u8("a client's name")?);
        within("bytes of a client's name", bytes as u64, NAME_BYTES_MAX as u64)?;
        let short = WireError::Short { what: "a client's name" };
        let (name, rest) = self.bytes.split_at_checked(bytes).ok_or(short)?;
        self.bytes = rest;
        let name = std::str::from_utf8(name);
        let name = name.map_err(|_| WireError::Field { what: "a client's name" })?.to_owned();
        let facts = self.flag("whether a hello has facts")?;
        let facts = if facts { Some(self.facts()?) } else { None };
        Ok(Hello { pool, node, name, facts })
    }

    fn facts(&mut self) -> Result<NodeFacts, WireError> {
        let what = "the facts of a node";
        let (node, durable) = (NodeId(self.u32(what)?), self.flag(what)?);
        let (bands, bands_used, band_pages) = (self.u32(what)?, self.u32(what)?, self.u32(what)?);
        Ok(NodeFacts { node, durable, bands, bands_used, band_pages })
    }
}

impl<D> Writer<'_, D> {
    fn name(&mut self, name: BandName) {
        self.u32(name.volume.0);
        self.u32(name.band);
        self.u64(name.life);
    }

    fn members(&mut self, members: Members) {
        let nodes = members.nodes();
        self.u8(nodes.len() as u8);
        for node in nodes {
            self.u32(node.0);
        }
    }

    fn header(&mut self, header: &BandHeader) {
        self.members(header.members);
        self.u32(header.shape.pages);
        self.u32(header.shape.slots_per_page);
    }
}

impl Reader<'_> {
    fn name(&mut self) -> Result<BandName, WireError> {
        let (volume, band) = (self.volume()?, self.u32("a band")?);
        Ok(BandName { volume, band, life: self.u64("the life of a band")? })
    }

    fn members(&mut self, what: &'static str) -> Result<Members, WireError> {
        let count = usize::from(self.u8(what)?);
        within(what, count as u64, MEMBERS_MAX as u64)?;
        let mut nodes = [NodeId(0); MEMBERS_MAX];
        for node in &mut nodes[..count] {
            *node = NodeId(self.u32(what)?);
        }
        // Nobody at all stands for a header that nobody has filled in.
        match count {
            0 => Ok(Members::default()),
            _ => Members::new(&nodes[..count]).ok_or(WireError::Field { what }),
        }
    }

    fn header(&mut self) -> Result<BandHeader, WireError> {
        let members = self.members("the members of a band")?;
        let pages = self.u32("the pages of a band")?;
        let slots_per_page = self.u32("the slots of a page")?;
        Ok(BandHeader { members, shape: BandShape { pages, slots_per_page } })
    }
}

impl<'a, D> Writer<'a, D> {
    pub fn ask(&mut self, ask: &'a Ask<D>) -> Result<(), WireError> {
        match ask {
            Ask::Fence { volume, generation, owner } => {
                self.kind = FENCE;
                self.u32(volume.0);
                self.u64(generation.0);
                self.u64(*owner);
            }
            Ask::Append { band, generation, page, open, slots } => {
                self.begin(APPEND, *band, *generation);
                self.u32(*page);
                self.u8(u8::from(open.is_some()));
                if let Some(header) = open {
                    self.header(header);
                }
                self.slots(slots.iter().map(Some))?;
            }
            Ask::Read { band, generation, slot, count, urgent } => {
                self.begin(READ, *band, *generation);
                self.u32(*slot);
                self.u32(*count);
                self.u8(u8::from(*urgent));
            }
            Ask::Seal { band, generation, pages } => {
                self.begin(SEAL, *band, *generation);
                self.u32(*pages);
            }
            Ask::Free { band, generation } => self.begin(FREE, *band, *generation),
            Ask::Flush { volume, generation } => {
                self.kind = FLUSH;
                self.u32(volume.0);
                self.u64(generation.0);
            }
            Ask::List { volume, generation, after } => {
                self.kind = LIST;
                self.u32(volume.0);
                self.u64(generation.0);
                self.u8(u8::from(after.is_some()));
                if let Some(after) = after {
                    self.name(*after);
                }
            }
            Ask::Copy { band, generation, from, header, pages, bytes_per_s_max } => {
                self.begin(COPY, *band, *generation);
                self.members(*from);
                self.header(header);
                self.u32(*pages);
                self.u64(*bytes_per_s_max);
            }
        }
        Ok(())
    }

    fn begin(&mut self, kind: u8, band: BandName, generation: Generation) {
        self.kind = kind;
        self.name(band);
        self.u64(generation.0);
    }
}

impl Reader<'_> {
    fn ask(&mut self, kind: u8) -> Result<Ask<u32>, WireError> {
        match kind {
            FENCE => {
                let (volume, generation) = (self.volume()?, self.generation()?);
                let owner = self.u64("the owner of a fence")?;
                return Ok(Ask::Fence { volume, generation, owner });
            }
            FLUSH => {
                return Ok(Ask::Flush { volume: self.volume()?, generation: self.generation()? });
            }
            LIST => {
                let (volume, generation) = (self.volume()?, self.generation()?);
                let after = self.flag("whether a list goes on")?;
                let after = if after { Some(self.name()?) } else { None };
                return Ok(Ask::List { volume, generation, after });
            }
            _ => {}
        }
        let (band, generation) = (self.name()?, self.generation()?);
        Ok(match kind {
            APPEND => {
                let page = self.u32("the page of an append")?;
                let open = self.flag("whether an append opens a band")?;
                let open = if open { Some(self.header()?) } else { None };
                let slots: Option<Vec<Slot<u32>>> = self.slots()?.into_iter().collect();
                let slots = slots.ok_or(WireError::Field { what: "a slot of an append" })?;
                Ask::Append { band, generation, page, open, slots }
            }
            READ => {
                let (slot, count) = (self.u32("a slot")?, self.u32("a count of slots")?);
                Ask::Read { band, generation, slot, count, urgent: self.flag("urgency")? }
            }
            SEAL => Ask::Seal { band, generation, pages: self.u32("the pages of a seal")? },
            FREE => Ask::Free { band, generation },
            COPY => {
                let (from, header) = (self.members("the sources of a copy")?, self.header()?);
                let (pages, rate) = (self.u32("the pages of a copy")?, self.u64("a rate")?);
                Ask::Copy { band, generation, from, header, pages, bytes_per_s_max: rate }
            }
            found => return Err(WireError::Kind { found }),
        })
    }
}

impl<'a, D> Writer<'a, D> {
    fn slots(
        &mut self,
        slots: impl ExactSizeIterator<Item = Option<&'a Slot<D>>>,
    ) -> Result<(), WireError> {
        within("slots of a message", slots.len() as u64, PAGE_SLOTS_MAX.into())?;
        self.u8(slots.len() as u8);
        for slot in slots {
            let Some(Slot { oob, crc, data }) = slot else {
                self.u8(SLOT_LOST);
                continue;
            };
            self.u8(if data.is_some() { SLOT_DATA } else { SLOT_ZEROES });
            self.body.extend(oob);
            self.u32(*crc);
            self.payload.extend(data);
        }
        Ok(())
    }
}

impl Reader<'_> {
    fn slots(&mut self) -> Result<Vec<Option<Slot<u32>>>, WireError> {
        let count = self.u8("a count of slots")?;
        within("slots of a message", count.into(), PAGE_SLOTS_MAX.into())?;
        let mut slots = Vec::with_capacity(count.into());
        for _ in 0..count {
            let what = "a slot";
            let kind = self.u8(what)?;
            if kind == SLOT_LOST {
                slots.push(None);
                continue;
            }
            let (oob, crc) = (self.take::<OOB_BYTES>(what)?, self.u32(what)?);
            let data = match kind {
                SLOT_ZEROES => None,
                SLOT_DATA => {
                    self.payload_slots += 1;
                    Some(self.payload_slots - 1)
                }
                _ => return Err(WireError::Field { what }),
            };
            slots.push(Some(Slot { oob, crc, data }));
        }
        Ok(slots)
    }
}

impl<'a, D> Writer<'a, D> {
    pub fn answer(&mut self, answer: &'a Answer<D>, signals: Signals) -> Result<(), WireError> {
        self.signals(signals);
        match answer {
            Answer::Done => self.kind = DONE,
            Answer::Slots(slots) => {
                self.kind = SLOTS;
                self.slots(slots.iter().map(Option::as_ref))?;
            }
            Answer::Bands { bands, more } => {
                self.kind = BANDS;
                within("bands of a list", bands.len() as u64, LIST_MAX as u64)?;
                self.body.extend((bands.len() as u16).to_le_bytes());
                for entry in bands {
                    self.name(entry.band);
                    self.header(&entry.header);
                    self.u32(entry.pages);
                    self.u8(u8::from(entry.sealed));
                    self.u32(entry.sound);
                    self.u8(u8::from(entry.torn));
                    self.u32(entry.loose);
                }
                self.u8(u8::from(*more));
            }
            Answer::Refused(refusal) => {
                self.kind = REFUSED;
                self.refusal(*refusal);
            }
        }
        Ok(())
    }

    fn signals(&mut self, signals: Signals) {
        let Signals { congestion, queue, unit_queue, unit_stirs } = signals;
        self.u8(match congestion {
            Congestion::None => 0,
            Congestion::Clearing => 1,
            Congestion::Settled => 2,
            Congestion::Congested => 3,
        });
        self.body.extend(queue.to_le_bytes());
        self.u8(u8::from(unit_queue.is_some()));
        if let Some(queue) = unit_queue {
            self.body.extend(queue.to_le_bytes());
        }
        self.u8(u8::from(unit_stirs));
    }

    fn refusal(&mut self, refusal: Refusal) {
        match refusal {
            Refusal::Stale { highest } => {
                self.u8(0);
                self.u64(highest.0);
            }
            Refusal::NoBand => self.u8(1),
            Refusal::Sealed { pages } => {
                self.u8(2);
                self.u32(pages);
            }
            Refusal::OutOfOrder { expected } => {
                self.u8(3);
                self.u32(expected);
            }
            Refusal::Differs => self.u8(4),
            Refusal::Mode => self.u8(5),
            Refusal::Full => self.u8(6),
            Refusal::BandFailed => self.u8(7),
            Refusal::Failed => self.u8(8),
            Refusal::Invalid => self.u8(9),
            Refusal::Busy => self.u8(10),
        }
    }
}

impl Reader<'_> {
    fn answer(&mut self, kind: u8) -> Result<Answer<u32>, WireError> {
        Ok(match kind {
            DONE => Answer::Done,
            SLOTS => Answer::Slots(self.slots()?),
            BANDS => {
                let count = usize::from(self.u16("a count of bands")?);
                within("bands of a list", count as u64, LIST_MAX as u64)?;
                let mut bands = Vec::with_capacity(count);
                for _ in 0..count {
                    let (band, header) = (self.name()?, self.header()?);
                    let (pages, sealed) = (self.u32("pages")?, self.flag("whether it is sealed")?);
                    let what = "the pages that are sound";
                    let sound = self.u32(what)?;
                    if sound > pages {
                        return Err(WireError::Field { what });
                    }
                    let torn = self.flag("whether it is torn")?;
                    let what = "the last pages that are not sound";
                    let loose = self.u32(what)?;
                    if loose > pages {
                        return Err(WireError::Field { what });
                    }
                    bands.push(BandEntry { band, header, pages, sealed, sound, torn, loose });
                }
                Answer::Bands { bands, more: self.flag("whether there are more bands")? }
            }
            REFUSED => Answer::Refused(self.refusal()?),
            found => return Err(WireError::Kind { found }),
        })
    }

    fn signals(&mut self) -> Result<Signals, WireError> {
        let what = "the signals of a node";
        let congestion = match self.u8(what)? {
            0 => Congestion::None,
            1 => Congestion::Clearing,
            2 => Congestion::Settled,
            3 => Congestion::Congested,
            _ => return Err(WireError::Field { what }),
        };
        let queue = self.u16(what)?;
        let unit_queue = if self.flag(what)? { Some(self.u16(what)?) } else { None };
        Ok(Signals { congestion, queue, unit_queue, unit_stirs: self.flag(what)? })
    }

    fn refusal(&mut self) -> Result<Refusal, WireError> {
        let what = "a refusal";
        Ok(match self.u8(what)? {
            0 => Refusal::Stale { highest: self.generation()? },
            1 => Refusal::NoBand,
            2 => Refusal::Sealed { pages: self.u32(what)? },
            3 => Refusal::OutOfOrder { expected: self.u32(what)? },
            4 => Refusal::Differs,
            5 => Refusal::Mode,
            6 => Refusal::Full,
            7 => Refusal::BandFailed,
            8 => Refusal::Failed,
            9 => Refusal::Invalid,
            10 => Refusal::Busy,
            _ => return Err(WireError::Field { what }),
        })
    }
}

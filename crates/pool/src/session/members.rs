//! Which nodes the pool has, and what the volume's record says, as the control plane has it now: read again and
//! again, as neither changes often and what was missed is in the next answer.

use crate::control::contract::{Kept, Part, PlaneAnswer, PlaneAsk, PlaneAskId, RANGE_MAX};
use crate::control::keys;
use crate::control::values::{NodeRecord, Value, VolumeRecord};
use crate::words::VolumeId;
use flash::{Instant, MILLISECOND, SECOND};

/// What was read.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Read {
    Nodes(Vec<NodeRecord>),
    Volume(VolumeRecord),
}

/// See the head of this file.
pub(super) struct Members {
    volume: VolumeId,
    /// Of the walk under way: nodes so far, and where it goes on.
    found: Vec<NodeRecord>,
    from: Option<String>,
    reads_volume: bool,
    asked: Option<(PlaneAskId, Instant)>,
    ask_at: Instant,
    asks: u64,
    /// What of the plane makes no sense, so that what was read before counts on.
    wrong: Option<String>,
}

impl Members {
    pub fn new(now: Instant, volume: VolumeId) -> Self {
        Self {
            volume,
            found: Vec::new(),
            from: None,
            reads_volume: false,
            asked: None,
            ask_at: now + PERIOD_NS,
            asks: 0,
            wrong: None,
        }
    }

    /// Nothing is asked for a while, and what was asked is not waited for.
    pub fn rest(&mut self, now: Instant) {
        self.asked = None;
        self.begin_anew(now, None);
    }

    /// What to ask, if it is time.
    pub fn elapsed(&mut self, now: Instant) -> Option<(PlaneAskId, PlaneAsk)> {
        if self.asked.is_some_and(|(_, sent)| now >= sent + ANSWER_NS_MAX) {
            self.asked = None;
        }
        if self.asked.is_some() || now < self.ask_at {
            return None;
        }
        let id = PlaneAskId::of_part(Part::Session, self.asks);
        self.asks += 1;
        self.asked = Some((id, now));
        let ask = if self.reads_volume {
            PlaneAsk::Get { key: keys::volume(self.volume) }
        } else {
            let (from, to) = keys::nodes();
            let from = self.from.clone().unwrap_or(from);
            PlaneAsk::Range { from, to, limit: RANGE_MAX }
        };
        Some((id, ask))
    }

    pub fn deadline(&self) -> Instant {
        self.asked.map_or(self.ask_at, |(_, sent)| sent + ANSWER_NS_MAX)
    }

    /// What is new.
    pub fn answered(&mut self, now: Instant, id: PlaneAskId, answer: &PlaneAnswer) -> Option<Read> {
        self.asked.take_if(|(asked, _)| *asked == id)?;
        self.ask_at = now;
        match answer {
            PlaneAnswer::Values { kept, more, .. } if !self.reads_volume => {
                if let Err(wrong) = self.nodes(kept) {
                    self.begin_anew(now, Some(wrong));
                    return None;
                }
                let last = kept.last().filter(|_| *more);
                self.from = last.map(|(key, _)| format!("{key}\0"));
                if self.from.is_some() {
                    return None;
                }
                self.reads_volume = true;
                Some(Read::Nodes(std::mem::take(&mut self.found)))
            }
            PlaneAnswer::Value { kept: Some(kept), .. } if self.reads_volume => {
                let key = keys::volume(self.volume);
                let record = VolumeRecord::decode(&key, &kept.value);
                let wrong = record.as_ref().err().map(|error| format!("key {key} {error}"));
                self.begin_anew(now, wrong);
                record.ok().map(Read::Volume)
            }
            _ => {
                self.begin_anew(now, None);
                None
            }
        }
    }

    /// What cannot be made sense of.
    pub fn wrong(&self) -> Option<&str> {
        self.wrong.as_deref()
    }

    fn nodes(&mut self, kept: &[(String, Kept)]) -> Result<(), String> {
        for (key, kept) in kept {
            let record = NodeRecord::decode(key, &kept.value);
            self.found.push(record.map_err(|error| format!("key {key} {error}"))?);
        }
        Ok(())
    }

    fn begin_anew(&mut self, now: Instant, wrong: Option<String>) {
        (self.found, self.from, self.reads_volume) = (Vec::new(), None, false);
        (self.wrong, self.ask_at) = (wrong, now + PERIOD_NS);
    }
}

/// Membership is changed by people: they do not notice a second.
const PERIOD_NS: u64 = SECOND;
/// An answer that is later than this is not waited for.
const ANSWER_NS_MAX: u64 = 400 * MILLISECOND;

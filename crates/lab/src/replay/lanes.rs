//! What is issued when. A lane takes its part of the trace in order, at its own pace; the driver
//! asks [`Lanes::next`] what to do now and tells [`Lanes::completed`] what has ended. No clock and
//! no thread: virtual and real time are served alike.

use crate::trace::{Op, Record, TraceError};
use flash::SECOND;

/// The records of a lane.
pub type Records<'a> = Box<dyn Iterator<Item = Result<Record, TraceError>> + 'a>;

/// When a lane issues.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// As the trace says, so many times faster (open loop).
    Timestamps {
        /// 1.0 is as recorded.
        load: f64,
        /// Requests in flight at which even a due one waits: the bound of memory.
        in_flight_max: u32,
    },
    /// The next one when fewer are in flight (closed loop); 0 leaves the lane's part out.
    Depth(u32),
}

/// Which records a lane takes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Part {
    /// All of them.
    All,
    /// Reads.
    Reads,
    /// Writes, trims and flushes.
    Others,
}

impl Part {
    fn has(self, op: Op) -> bool {
        match self {
            Self::All => true,
            Self::Reads => op == Op::Read,
            Self::Others => op != Op::Read,
        }
    }
}

/// A lane.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LaneOptions {
    /// Which records.
    pub part: Part,
    /// When.
    pub pace: Pace,
    /// Most bytes of writes a second. A write that must wait for it is due when it may go.
    pub write_cap: Option<u64>,
}

/// A request to issue now.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Issue {
    /// For [`Lanes::completed`].
    pub lane: usize,
    /// What to do.
    pub record: Record,
    /// When it was due, from the start of the replay: latency counts from here.
    pub due_ns: u64,
}

/// What to do now.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Next {
    /// Issue this, and ask again.
    Issue(Issue),
    /// Nothing until this instant of the replay, or until something ends; `None`: until something
    /// ends.
    Wait(Option<u64>),
    /// Everything was issued.
    End,
}

struct Lane<'a> {
    options: LaneOptions,
    records: Records<'a>,
    head: Option<Record>,
    ended: bool,
    in_flight: u32,
    /// When the write cap lets the next write go.
    cap_free_ns: u64,
}

/// See the head of this file.
pub struct Lanes<'a>(Vec<Lane<'a>>);

impl<'a> Lanes<'a> {
    /// Each lane with records of its own, whole: it passes over those that are not its part.
    pub fn new(lanes: Vec<(LaneOptions, Records<'a>)>) -> Self {
        let lane = |(options, records)| Lane {
            options,
            records,
            head: None,
            ended: matches!(options.pace, Pace::Depth(0)),
            in_flight: 0,
            cap_free_ns: 0,
        };
        Self(lanes.into_iter().map(lane).collect())
    }

    /// What to do at `now_ns` of the replay. An issue counts as in flight at once.
    pub fn next(&mut self, now_ns: u64) -> Result<Next, TraceError> {
        let (mut first, mut ended) = (None, true);
        for (index, lane) in self.0.iter_mut().enumerate() {
            lane.fetch()?;
            ended &= lane.ended;
            if let Some(due_ns) = lane.due(now_ns)
                && first.is_none_or(|(best, _)| due_ns < best)
            {
                first = Some((due_ns, index));
            }
        }
        Ok(match first {
            _ if ended => Next::End,
            Some((due_ns, lane)) if due_ns <= now_ns => {
                let record = self.0[lane].issue(due_ns);
                Next::Issue(Issue { lane, record, due_ns })
            }
            Some((due_ns, _)) => Next::Wait(Some(due_ns)),
            None => Next::Wait(None),
        })
    }

    /// A request of this lane has ended.
    pub fn completed(&mut self, lane: usize) {
        assert!(self.0[lane].in_flight > 0, "only what was issued ends");
        self.0[lane].in_flight -= 1;
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> u32 {
        self.0.iter().map(|lane| lane.in_flight).sum()
    }
}

impl Lane<'_> {
    /// Looks at the lane's next record.
    fn fetch(&mut self) -> Result<(), TraceError> {
        while self.head.is_none() && !self.ended {
            match self.records.next() {
                Some(record) => {
                    self.head = Some(record?).filter(|record| self.options.part.has(record.op));
                }
                None => self.ended = true,
            }
        }
        Ok(())
    }

    /// When the head is due; `None` if it has to wait for an end first, or there is none.
    fn due(&self, now_ns: u64) -> Option<u64> {
        let head = self.head.as_ref()?;
        let paced = match self.options.pace {
            Pace::Depth(depth) if self.in_flight < depth => now_ns,
            Pace::Timestamps { load, in_flight_max } if self.in_flight < in_flight_max => {
                (head.time_ns as f64 / load) as u64
            }
            _ => return None,
        };
        let capped = head.op == Op::Write && self.options.write_cap.is_some();
        Some(if capped { paced.max(self.cap_free_ns) } else { paced })
    }

    fn issue(&mut self, due_ns: u64) -> Record {
        let record = self.head.take().expect("it was found due");
        self.in_flight += 1;
        if let Some(cap) = self.options.write_cap
            && record.op == Op::Write
        {
            let ns = u128::from(record.length) * u128::from(SECOND) / u128::from(cap.max(1));
            self.cap_free_ns = due_ns.saturating_add(u64::try_from(ns).unwrap_or(u64::MAX));
        }
        record
    }
}

/// A trace, again and again: each round begins one mean gap after the last record of the one before.
pub struct Looped<F> {
    open: F,
    rounds_left: u64,
    period_ns: u64,
    shift_ns: u64,
    current: Option<crate::trace::Reader>,
}

impl<F> Looped<F> {
    /// `rounds` times what `open` opens, which lasts `period_ns`.
    pub fn new(open: F, rounds: u64, period_ns: u64) -> Self {
        Self { open, rounds_left: rounds, period_ns, shift_ns: 0, current: None }
    }
}

impl<F: FnMut() -> Result<crate::trace::Reader, TraceError>> Iterator for Looped<F> {
    type Item = Result<Record, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(reader) = &mut self.current {
                match reader.next() {
                    Some(Ok(mut record)) => {
                        record.time_ns = record.time_ns.saturating_add(self.shift_ns);
                        return Some(Ok(record));
                    }
                    Some(Err(error)) => return Some(Err(error)),
                    None => {
                        self.current = None;
                        self.shift_ns = self.shift_ns.saturating_add(self.period_ns);
                    }
                }
            }
            if self.rounds_left == 0 {
                return None;
            }
            self.rounds_left -= 1;
            match (self.open)() {
                Ok(reader) => self.current = Some(reader),
                Err(error) => {
                    self.rounds_left = 0;
                    return Some(Err(error));
                }
            }
        }
    }
}

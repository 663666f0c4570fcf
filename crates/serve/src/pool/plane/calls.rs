//! The control plane for who has time to wait: commands.

use super::super::PoolError;
use super::super::config::PlaneConfig;
use super::PlaneLink;
use pool::control::contract::{
    Change, Check, Kept, PlaneAnswer, PlaneAsk, PlaneAskId, PlaneRefusal, RANGE_MAX,
};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// One ask at a time, each waited for.
pub struct PlaneCalls {
    link: PlaneLink,
    answers: Receiver<(PlaneAskId, PlaneAnswer)>,
    asked: u64,
    place: String,
    patience: Duration,
}

/// What came of a commit.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum CommitEnd {
    /// The checks held: the revision of what it put.
    Committed(u64),
    /// Nothing was changed: what the checked keys hold.
    Not(Vec<Option<Kept>>),
}

impl PlaneCalls {
    /// Begins to connect; the first call finds out whether anybody answers.
    ///
    /// # Errors
    /// As [`PlaneLink::connect`].
    pub fn connect(config: &PlaneConfig) -> Result<Self, PoolError> {
        let (to, answers) = channel();
        // A call that was given up hears nothing any more.
        let link = PlaneLink::begin(config, move |id, answer| drop(to.send((id, answer))), false)?;
        let patience = 3 * Duration::from_nanos(config.timeout_ns);
        Ok(Self { link, answers, asked: 0, place: config.at.to_string(), patience })
    }

    /// Asks once, and waits for the answer.
    ///
    /// # Errors
    /// The plane cannot be reached, or refuses.
    pub fn ask(&mut self, ask: PlaneAsk) -> Result<PlaneAnswer, PoolError> {
        match self.answer(ask) {
            PlaneAnswer::Refused(PlaneRefusal::Unavailable) => {
                let late = || format!("{} does not answer in time", self.place);
                let trouble = self.link.trouble().unwrap_or_else(late);
                Err(refusal(format!("{trouble}: is it there, running, and not stopped?")))
            }
            PlaneAnswer::Refused(other) => Err(refusal(other.to_string())),
            answer => Ok(answer),
        }
    }

    /// What a key holds.
    ///
    /// # Errors
    /// As [`PlaneCalls::ask`].
    pub fn get(&mut self, key: String) -> Result<Option<Kept>, PoolError> {
        match self.patiently(&PlaneAsk::Get { key })? {
            PlaneAnswer::Value { kept, .. } => Ok(kept),
            other => Err(strange(&other)),
        }
    }

    /// All keys `from..to` with what they hold.
    ///
    /// # Errors
    /// As [`PlaneCalls::ask`].
    pub fn range(
        &mut self,
        (mut from, to): (String, String),
    ) -> Result<Vec<(String, Kept)>, PoolError> {
        let mut all = Vec::new();
        loop {
            let ask = PlaneAsk::Range { from, to: to.clone(), limit: RANGE_MAX };
            match self.patiently(&ask)? {
                PlaneAnswer::Values { kept, more, .. } => {
                    let last = kept.last().map(|(key, _)| format!("{key}\0"));
                    all.extend(kept);
                    match last {
                        Some(next) if more => from = next,
                        _ => return Ok(all),
                    }
                }
                other => return Err(strange(&other)),
            }
        }
    }

    /// Changes keys if the checks hold. It is asked once: a commit whose answer does not come may have happened.
    ///
    /// # Errors
    /// As [`PlaneCalls::ask`].
    pub fn commit(
        &mut self,
        checks: Vec<Check>,
        changes: Vec<Change>,
    ) -> Result<CommitEnd, PoolError> {
        match self.ask(PlaneAsk::Commit { checks, changes })? {
            PlaneAnswer::Committed { revision } => Ok(CommitEnd::Committed(revision)),
            PlaneAnswer::NotCommitted { found } => Ok(CommitEnd::Not(found)),
            other => Err(strange(&other)),
        }
    }

    /// Asks what changes nothing until there is an answer, for a while: a plane that starts anew is waited for.
    fn patiently(&mut self, ask: &PlaneAsk) -> Result<PlaneAnswer, PoolError> {
        let begun = Instant::now();
        loop {
            match self.ask(ask.clone()) {
                Err(error) if begun.elapsed() >= self.patience => return Err(error),
                Err(_) => {}
                Ok(answer) => return Ok(answer),
            }
        }
    }

    fn answer(&mut self, ask: PlaneAsk) -> PlaneAnswer {
        self.asked += 1;
        let id = PlaneAskId(self.asked);
        self.link.ask(id, ask);
        loop {
            match self.answers.recv() {
                Ok((of, answer)) if of == id => return answer,
                Ok(_) => {}
                Err(_) => return PlaneAnswer::Refused(PlaneRefusal::Unavailable),
            }
        }
    }
}

fn refusal(reason: String) -> PoolError {
    PoolError::Plane { place: "the control plane".to_owned(), reason }
}

fn strange(answer: &PlaneAnswer) -> PoolError {
    refusal(format!("gives an answer to something else: {answer:?}"))
}

//! Whether the units answer. Once they do not, one read at a time finds out whether they do again, and the others are told
//! at once: nobody waits in a row for a server that is stopped, and it finds no crowd of connections when it goes on.

use crate::api::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// See the head of this file.
#[derive(Default)]
pub struct Silence {
    is_silent: AtomicBool,
    is_tried: AtomicBool,
    why: Mutex<Option<Error>>,
}

/// Whoever has it reads; the one that finds out whether the units answer again lets others do so when it is dropped.
pub struct Trial<'a>(Option<&'a AtomicBool>);

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        if let Some(is_tried) = self.0 {
            is_tried.store(false, Ordering::Release);
        }
    }
}

impl Silence {
    /// Fails with the reason while the units are silent and somebody is finding out whether they still are.
    pub fn begin(&self) -> Result<Trial<'_>, Error> {
        if !self.is_silent.load(Ordering::Acquire) {
            return Ok(Trial(None));
        }
        if !self.is_tried.swap(true, Ordering::AcqRel) {
            return Ok(Trial(Some(&self.is_tried)));
        }
        // It may have ended just now.
        self.why().clone().map_or(Ok(Trial(None)), Err)
    }

    /// The units answered.
    pub fn heard(&self) {
        if self.is_silent.load(Ordering::Acquire) {
            *self.why() = None;
            self.is_silent.store(false, Ordering::Release);
        }
    }

    /// They did not.
    pub fn unheard(&self, why: &Error) {
        *self.why() = Some(why.clone());
        self.is_silent.store(true, Ordering::Release);
    }

    fn why(&self) -> MutexGuard<'_, Option<Error>> {
        self.why.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn while_they_are_silent_one_tries_and_the_others_are_told_at_once() {
        let silence = Silence::default();
        let (first, second) = (silence.begin().unwrap(), silence.begin().unwrap());
        let why = Error::Unreachable("no answer".into());
        silence.unheard(&why);
        drop((first, second));
        let trial = silence.begin().unwrap();
        assert_eq!(silence.begin().map(drop), Err(why.clone()));
        drop(trial);
        let trial = silence.begin().unwrap();
        silence.heard();
        assert!(silence.begin().is_ok() && silence.begin().is_ok());
        drop(trial);
        silence.unheard(&why);
        assert!(silence.begin().is_ok(), "the next one tries");
    }
}

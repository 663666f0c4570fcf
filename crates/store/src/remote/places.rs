//! Where blocks lie. A block of a store stays where it was put, and no other device has one of its ID there: so these
//! places also tell whether a server that answers has the device that the store was written to.

use crate::api::Error;
use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

/// Blocks that are looked for before a device is taken for another one. Any of them could be deleted meanwhile.
const WITNESSES: usize = 8;

/// Where a block of an ID lies.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct At {
    /// The unit.
    pub unit: u32,
    /// The raw block of the unit.
    pub raw_block: u32,
}

/// See the head of this file.
#[derive(Default)]
pub struct Places(RwLock<HashMap<u128, At>>);

impl Places {
    /// Where a block is known to lie.
    pub fn get(&self, id: u128) -> Option<At> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&id).copied()
    }

    /// A block was seen there.
    pub fn note(&self, id: u128, at: At) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(id, at);
    }

    /// A block is about to be erased.
    pub fn forget(&self, id: u128) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }

    /// Some blocks of the owner of `id`, but not that one.
    fn witnesses(&self, id: u128) -> Vec<(u128, At)> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let ours = known.iter().filter(|&(&other, _)| other >> 64 == id >> 64 && other != id);
        ours.take(WITNESSES).map(|(&id, &at)| (id, at)).collect()
    }

    /// Fails if none of the blocks that the owner of `id` has beside that one is where it was put, by `find`. Who has
    /// none has nothing to lose on another device.
    pub fn check(
        &self,
        id: u128,
        find: impl Fn(u128) -> Result<Option<At>, Error>,
    ) -> Result<(), Error> {
        loop {
            let witnesses = self.witnesses(id);
            for &(witness, at) in &witnesses {
                if find(witness)? == Some(at) {
                    return Ok(());
                }
            }
            let deleted = |&(id, _): &(u128, At)| self.get(id).is_none();
            if witnesses.is_empty() {
                return Ok(());
            }
            if !witnesses.iter().any(deleted) {
                return Err(foreign(witnesses.len()));
            }
        }
    }
}

fn foreign(looked_for: usize) -> Error {
    Error::Foreign(format!(
        "the units answer from another device than the one that the store was written to: none of {looked_for} raw \
         blocks that were looked for is where it was put: start the server of that device there again, and then this"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const OURS: u128 = 7 << 64;

    fn at(raw_block: u32) -> At {
        At { unit: 1, raw_block }
    }

    fn known(count: u32) -> Places {
        let places = Places::default();
        (0..count).for_each(|number| places.note(OURS | u128::from(number), at(number)));
        places.note(8 << 64, at(99));
        places
    }

    #[test]
    fn one_block_where_it_was_put_says_that_it_is_the_device() {
        let places = known(20);
        let there = |id: u128| Ok(Some(at(id as u32)));
        assert_eq!(places.check(OURS, there), Ok(()));
        // Of eight that are asked for the last one is there.
        let asked = Cell::new(0);
        let last = |id: u128| {
            asked.set(asked.get() + 1);
            Ok((asked.get() == WITNESSES).then_some(at(id as u32)))
        };
        assert_eq!(places.check(OURS, last), Ok(()));
    }

    #[test]
    fn a_device_without_any_of_them_or_with_others_in_their_places_is_foreign() {
        let places = known(3);
        assert!(matches!(places.check(OURS, |_| Ok(None)), Err(Error::Foreign(_))));
        assert!(matches!(places.check(OURS, |_| Ok(Some(at(50)))), Err(Error::Foreign(_))));
        let gone = || Error::Io("nobody answers".into());
        assert_eq!(places.check(OURS, |_| Err(gone())), Err(gone()));
    }

    #[test]
    fn who_has_no_block_yet_takes_any_device_and_the_one_that_is_asked_about_is_no_witness() {
        assert_eq!(known(1).check(OURS, |_| panic!("nothing to look for")), Ok(()));
        assert_eq!(known(0).check(OURS, |_| panic!("the blocks of others")), Ok(()));
    }

    #[test]
    fn blocks_that_are_deleted_while_they_are_looked_for_say_nothing() {
        let places = known(2);
        let find = |id: u128| {
            places.forget(id);
            Ok(None)
        };
        assert_eq!(places.check(OURS | 100, find), Ok(()));
    }
}

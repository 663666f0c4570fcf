//! Owners of one volume, one after another and at once, over an embedded plane.

use super::*;
use crate::control::embedded::{Embedded, PlaneInput, PlaneOutput, Store};
use crate::words::PoolId;

const VOLUME: VolumeId = VolumeId(3);

struct Plane {
    plane: Embedded,
    /// Asks are lost, or done without an answer.
    lost: bool,
    mute: bool,
}

impl Plane {
    fn new() -> Self {
        Self { plane: Embedded::create(PoolId(1), 1), lost: false, mute: false }
    }

    fn answer(&mut self, now: Instant, id: PlaneAskId, ask: PlaneAsk) -> Option<PlaneAnswer> {
        if self.lost {
            return None;
        }
        self.plane.handle(now, PlaneInput::Ask { client: 1, id, ask });
        let mut answer = None;
        while let Some(output) = self.plane.poll() {
            match output {
                PlaneOutput::Answer(told) => answer = Some(told.answer),
                PlaneOutput::Store(
                    Store::Append { sequence, .. } | Store::Replace { sequence, .. },
                ) => {
                    self.plane.handle(now, PlaneInput::Stored { sequence });
                }
            }
        }
        answer.filter(|_| !self.mute)
    }
}

/// Passes on all that is asked; returns the rest.
fn drive(now: Instant, plane: &mut Plane, ownership: &mut Ownership) -> Vec<OwnershipOutput> {
    let mut said = Vec::new();
    while let Some(output) = ownership.poll() {
        let OwnershipOutput::Ask { id, ask } = output else {
            said.push(output);
            continue;
        };
        if let Some(answer) = plane.answer(now, id, ask) {
            ownership.handle(now, OwnershipInput::Plane { id, answer: &answer });
        }
    }
    said
}

/// Lets time pass to `until`, deadline by deadline.
fn pass(plane: &mut Plane, ownership: &mut Ownership, until: Instant) -> Vec<OwnershipOutput> {
    let mut said = Vec::new();
    while let Some(at) = ownership.deadline().filter(|at| *at <= until) {
        ownership.handle(at, OwnershipInput::Deadline);
        said.extend(drive(at, plane, ownership));
    }
    said
}

fn opened(now: Instant, plane: &mut Plane, owner: u128) -> (Ownership, Vec<OwnershipOutput>) {
    let mut ownership = Ownership::new(now, OwnershipConfig::new(VOLUME, owner));
    let said = drive(now, plane, &mut ownership);
    (ownership, said)
}

fn raised(said: &[OwnershipOutput]) -> u64 {
    let found = said.iter().find_map(|said| match said {
        OwnershipOutput::Raised { generation, .. } => Some(generation.0),
        _ => None,
    });
    found.expect("raised")
}

#[test]
fn the_first_owner_need_not_wait_and_keeps_the_lease() {
    let mut plane = Plane::new();
    let (mut first, said) = opened(Instant(0), &mut plane, 1);
    assert_eq!(raised(&said), 1);
    assert_eq!(said[1], OwnershipOutput::Held { until: Instant(3 * SECOND) });
    let said = pass(&mut plane, &mut first, Instant(20 * SECOND));
    assert!(said.iter().all(|said| matches!(said, OwnershipOutput::Held { .. })), "{said:?}");
    assert!(first.readable_until() > Some(Instant(20 * SECOND)));
}

#[test]
fn the_next_owner_waits_out_the_lease_and_the_first_one_learns_of_it() {
    let mut plane = Plane::new();
    let (mut first, _) = opened(Instant(0), &mut plane, 1);
    let (mut second, said) = opened(Instant(SECOND), &mut plane, 2);
    assert_eq!(raised(&said), 2);
    assert_eq!(second.readable_until(), None);
    let end = first.readable_until().expect("the first one does not know yet");
    let said = pass(&mut plane, &mut first, Instant(2 * SECOND));
    assert_eq!(said, [OwnershipOutput::Lost { by: Generation(2) }]);
    assert_eq!((first.readable_until(), first.deadline()), (None, None));
    let said = pass(&mut plane, &mut second, end);
    assert_eq!(said, [], "the first one might read until {end:?}");
    let said = pass(&mut plane, &mut second, Instant(5 * SECOND));
    assert!(matches!(said[0], OwnershipOutput::Held { .. }), "{said:?}");
}

#[test]
fn a_lease_that_nobody_waited_out_is_handed_on() {
    let mut plane = Plane::new();
    let config = OwnershipConfig { lease_ns: 40 * SECOND, ..OwnershipConfig::new(VOLUME, 1) };
    let mut long = Ownership::new(Instant(0), config);
    drive(Instant(0), &mut plane, &mut long);
    let (mut second, _) = opened(Instant(0), &mut plane, 2);
    // The second gives up before the first one's time is over: the third must wait for the first.
    second.handle(Instant(1), OwnershipInput::Release);
    assert_eq!(drive(Instant(1), &mut plane, &mut second), [OwnershipOutput::Released]);
    let (mut third, said) = opened(Instant(2), &mut plane, 3);
    assert_eq!(raised(&said), 3);
    assert_eq!(pass(&mut plane, &mut third, Instant(40 * SECOND)), []);
    let said = pass(&mut plane, &mut third, Instant(46 * SECOND));
    assert!(matches!(said[0], OwnershipOutput::Held { .. }), "{said:?}");
}

#[test]
fn after_a_release_nobody_waits() {
    let mut plane = Plane::new();
    let (mut first, _) = opened(Instant(0), &mut plane, 1);
    first.handle(Instant(5), OwnershipInput::Release);
    assert_eq!(drive(Instant(5), &mut plane, &mut first), [OwnershipOutput::Released]);
    let (_, said) = opened(Instant(6), &mut plane, 2);
    assert_eq!(raised(&said), 2);
    assert!(matches!(said[1], OwnershipOutput::Held { .. }), "{said:?}");
}

#[test]
fn a_plane_that_is_away_ends_the_lease_and_gives_it_back_when_it_returns() {
    let mut plane = Plane::new();
    let (mut first, _) = opened(Instant(0), &mut plane, 1);
    plane.lost = true;
    let said = pass(&mut plane, &mut first, Instant(10 * SECOND));
    assert_eq!(said, [OwnershipOutput::LeaseEnded]);
    assert_eq!(first.readable_until(), None);
    assert!(first.explain(Instant(10 * SECOND)).contains("reads wait"));
    plane.lost = false;
    let said = pass(&mut plane, &mut first, Instant(11 * SECOND));
    assert!(matches!(said[0], OwnershipOutput::Held { .. }), "{said:?}");
}

#[test]
fn a_commit_whose_answer_is_lost_is_found_to_have_happened() {
    let mut plane = Plane::new();
    let mut ownership = Ownership::new(Instant(0), OwnershipConfig::new(VOLUME, 1));
    let Some(OwnershipOutput::Ask { id, ask }) = ownership.poll() else { panic!("asks first") };
    let answer = plane.answer(Instant(0), id, ask).expect("answered");
    plane.mute = true;
    ownership.handle(Instant(0), OwnershipInput::Plane { id, answer: &answer });
    assert_eq!(drive(Instant(0), &mut plane, &mut ownership), []);
    plane.mute = false;
    let said = pass(&mut plane, &mut ownership, Instant(SECOND));
    assert_eq!(raised(&said), 1, "and not 2");
    // The same for a release.
    pass(&mut plane, &mut ownership, Instant(8 * SECOND));
    plane.mute = true;
    ownership.handle(Instant(8 * SECOND), OwnershipInput::Release);
    drive(Instant(8 * SECOND), &mut plane, &mut ownership);
    plane.mute = false;
    let said = pass(&mut plane, &mut ownership, Instant(9 * SECOND));
    assert_eq!(said, [OwnershipOutput::Released]);
}

#[test]
fn a_record_that_is_damaged_or_of_the_last_generation_is_refused() {
    let mut plane = Plane::new();
    let key = keys::owner(VOLUME);
    let last =
        OwnerRecord { generation: Generation(u64::from(u32::MAX)), ..OwnerRecord::default() };
    let values = [vec![1, 2, 3], last.encode(&key)];
    let errors = [OwnershipError::Record(ValueError::Unsound), OwnershipError::GenerationsUsedUp];
    for (value, error) in values.into_iter().zip(errors) {
        let changes = vec![Change::Put { key: key.clone(), value, lease: None }];
        let ask = PlaneAsk::Commit { checks: Vec::new(), changes };
        plane.answer(Instant(0), PlaneAskId(0), ask);
        let (_, said) = opened(Instant(0), &mut plane, 1);
        assert_eq!(said, [OwnershipOutput::Failed(error)]);
    }
}

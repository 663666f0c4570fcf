//! The lives of a control plane: each start of it is one, with a stamp that was drawn then. By these somebody who was
//! connected before knows whether all that he saw is still there, or an old copy was put back: one that has gone on
//! since is as far as the plane was, or farther, and has other things at the same revisions.

/// A start of the plane.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Life {
    /// Drawn then.
    pub stamp: u64,
    /// The revision of the plane then.
    pub revision: u64,
}

/// Lives that a plane remembers: the last ones.
pub const LIVES_MAX: usize = 32;

/// How far a control plane has come.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct PlaneFacts {
    /// Its revision.
    pub revision: u64,
    /// The last of its lives, in order; none where the plane is etcd, which sees to that itself.
    pub lives: Vec<Life>,
}

/// What somebody saw of a plane last.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Seen {
    /// Its revision.
    pub revision: u64,
    /// The stamp of its life then.
    pub stamp: Option<u64>,
}

impl Seen {
    /// What is seen of a plane when it says how far it has come.
    pub fn of(facts: &PlaneFacts) -> Self {
        Self { revision: facts.revision, stamp: facts.lives.last().map(|life| life.stamp) }
    }
}

impl PlaneFacts {
    /// Whether all that was there when it was seen like this still is.
    pub fn has(&self, seen: Seen) -> bool {
        let Some(stamp) = seen.stamp else { return self.revision >= seen.revision };
        let end = match self.lives.iter().position(|life| life.stamp == stamp) {
            Some(at) => self.lives.get(at + 1).map_or(self.revision, |next| next.revision),
            // It may be forgotten, as there were many since.
            None if self.lives.len() == LIVES_MAX => self.lives[0].revision,
            None => return false,
        };
        seen.revision <= end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(revision: u64, lives: &[(u64, u64)]) -> PlaneFacts {
        let lives = lives.iter().map(|&(stamp, revision)| Life { stamp, revision }).collect();
        PlaneFacts { revision, lives }
    }

    #[test]
    fn a_plane_that_went_back_is_known_although_it_is_farther_by_now() {
        let seen = Seen::of(&facts(100, &[(7, 0), (8, 50)]));
        assert_eq!(seen, Seen { revision: 100, stamp: Some(8) });
        let later = facts(120, &[(7, 0), (8, 50), (9, 110)]);
        assert!(later.has(seen) && later.has(Seen::default()));
        for (why, of) in [
            ("the copy of a moment ago", facts(99, &[(7, 0), (8, 50)])),
            (
                "of a moment ago, started anew, and farther",
                facts(500, &[(7, 0), (8, 50), (10, 99)]),
            ),
            ("of the life before", facts(500, &[(7, 0), (11, 40)])),
            ("another plane", facts(500, &[(12, 0)])),
            ("wiped", facts(0, &[])),
        ] {
            assert!(!of.has(seen), "{why}");
        }
        let untouched = facts(500, &[(7, 0), (8, 50), (10, 100)]);
        assert!(untouched.has(seen), "what was put back lacks nothing of what was seen");
    }

    #[test]
    fn a_life_of_long_ago_may_be_forgotten_and_a_revision_beyond_it_may_not() {
        let many: Vec<(u64, u64)> = (0..LIVES_MAX as u64).map(|at| (at, 1000 + at)).collect();
        let plane = facts(5000, &many);
        let seen = |revision| Seen { revision, stamp: Some(99) };
        assert!(plane.has(seen(1000)) && !plane.has(seen(1001)));
    }

    #[test]
    fn etcd_says_no_lives_and_is_held_against_its_revision() {
        let seen = Seen::of(&facts(100, &[]));
        assert!(facts(100, &[]).has(seen) && !facts(99, &[]).has(seen));
    }
}

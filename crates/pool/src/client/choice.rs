//! Which member of a band a read goes to: a policy by name. `weighted` is the pool's own; the names of
//! [`ftl::policy::replica`] serve as well, on the queues that nodes tell.

use flash::Random;
use ftl::policy::replica::{REPLICAS, ReplicaPolicy, ReplicaView, replica_by_name};

/// A member that could answer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Candidate {
    /// The controller's weight for reads times the node's limit.
    pub weight: f64,
    /// Asks of ours that the node has not answered.
    pub asked: u32,
    /// Requests that its drive had not answered when it last told.
    pub queue: u32,
    /// Requests that waited for the unit that holds the band, if the node told so just now.
    pub unit_queue: Option<u32>,
    /// GC or an erase was under way there, or about to begin.
    pub stirs: bool,
}

/// What a unit that is erased or collected counts for: a read waits there for a hundred others.
const STIRS: f64 = 0.01;

/// Weighted by chance, with exact signals where there are any.
pub const WEIGHTED: &str = "weighted";

/// A policy in force.
pub enum Choice {
    /// By chance, in proportion to weight, and less the more waits at the very unit.
    Weighted,
    /// One of the FTL's.
    Ftl(Box<dyn ReplicaPolicy>),
}

/// The policy of that name.
///
/// # Errors
/// Says which there are.
pub fn choice_by_name(name: &str) -> Result<Choice, String> {
    if name == WEIGHTED {
        return Ok(Choice::Weighted);
    }
    let choice = replica_by_name(name).map(Choice::Ftl);
    choice.map_err(|_| {
        format!("no replica policy {name}: one of {WEIGHTED}, {}", REPLICAS.join(", "))
    })
}

impl Choice {
    /// Index into `candidates`, which has at least one.
    pub fn pick(&mut self, candidates: &[Candidate], random: &mut Random) -> usize {
        let index = match self {
            Self::Weighted => by_chance(candidates, random),
            Self::Ftl(policy) => {
                let views: Vec<ReplicaView> = candidates.iter().map(view).collect();
                policy.pick(&views)
            }
        };
        index.min(candidates.len() - 1)
    }
}

fn view(candidate: &Candidate) -> ReplicaView {
    // To be collected now is as long a queue as any.
    let stirs = if candidate.stirs { 100 } else { 0 };
    let device_queue = candidate.queue.max(candidate.asked);
    ReplicaView { unit_queue: candidate.unit_queue.unwrap_or(device_queue) + stirs, device_queue }
}

fn by_chance(candidates: &[Candidate], random: &mut Random) -> usize {
    if candidates.len() == 1 {
        return 0;
    }
    let share = |candidate: &Candidate| {
        let free = 1.0 / (1.0 + f64::from(candidate.unit_queue.unwrap_or(0)));
        candidate.weight * free * if candidate.stirs { STIRS } else { 1.0 }
    };
    let total: f64 = candidates.iter().map(share).sum();
    if total <= 0.0 {
        return random.below(candidates.len() as u64) as usize;
    }
    let mut at = random.fraction() * total;
    for (index, candidate) in candidates.iter().enumerate() {
        at -= share(candidate);
        if at < 0.0 {
            return index;
        }
    }
    candidates.len() - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(candidates: &[Candidate]) -> Vec<f64> {
        let (mut choice, mut random) = (Choice::Weighted, Random::new(1));
        let mut counts = vec![0.0; candidates.len()];
        (0..10_000).for_each(|_| counts[choice.pick(candidates, &mut random)] += 1e-4);
        counts
    }

    #[test]
    fn reads_go_to_replicas_in_proportion_to_their_weights() {
        let of = |weight| Candidate { weight, ..Candidate::default() };
        let shares = shares(&[of(3.0), of(1.0), of(0.0)]);
        assert!((shares[0] - 0.75).abs() < 0.02 && shares[2] == 0.0, "{shares:?}");
    }

    #[test]
    fn a_unit_with_a_queue_gets_less_and_one_that_is_collected_next_to_nothing() {
        let even = Candidate { weight: 1.0, unit_queue: Some(0), ..Candidate::default() };
        let waits = shares(&[even, Candidate { unit_queue: Some(3), ..even }]);
        assert!((waits[1] - 0.2).abs() < 0.02, "{waits:?}");
        let stirs = shares(&[even, Candidate { stirs: true, ..even }]);
        assert!(stirs[1] < 0.02, "{stirs:?}");
    }

    #[test]
    fn without_any_weight_all_serve_and_unknown_names_are_refused() {
        let none = shares(&[Candidate::default(); 2]);
        assert!((none[0] - 0.5).abs() < 0.03, "{none:?}");
        let error = choice_by_name("nearest").err().unwrap();
        assert!(error.contains("weighted") && error.contains("unit-queue"), "{error}");
        let mut choice = choice_by_name("unit-queue").unwrap();
        let views = [Candidate { stirs: true, ..Candidate::default() }, Candidate::default()];
        assert_eq!(choice.pick(&views, &mut Random::new(1)), 1);
    }
}

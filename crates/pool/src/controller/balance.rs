//! Weights of reads that give each drive the part it was planned, although a block can only be read from its
//! own few replicas.
//!
//! A client reads a replica as often as its weight is of the sum of the replicas' weights. With the planned
//! parts as weights the drives would get others, up to twice as much. The weights that give the planned parts
//! are those of a tournament: a block on drives i and j is a game that i wins with probability
//! `w_i / (w_i + w_j)`, the planned part is what i won in all. Zermelo's iteration finds them:
//! `w_i <- part_i / sum over groups of (blocks / sum of weights)`.
//!
//! Parts that cannot be had, because the blocks lie elsewhere, have no such weights. So first the parts are
//! found that come nearest to capacities and can be had.

use crate::words::MEMBERS_MAX;

/// Blocks that lie on the same drives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Group {
    members: [u32; MEMBERS_MAX],
    count: u8,
    /// Its part of all blocks.
    pub share: f64,
}

impl Group {
    /// Of drives by their places; more than a band can have members are left out.
    pub fn new(members: &[usize], share: f64) -> Self {
        let mut group = Self { members: [0; MEMBERS_MAX], count: 0, share };
        for member in members.iter().take(MEMBERS_MAX) {
            group.members[usize::from(group.count)] = *member as u32;
            group.count += 1;
        }
        group
    }

    /// The places of its drives.
    pub fn members(&self) -> impl Iterator<Item = usize> + Clone + '_ {
        self.members[..usize::from(self.count)].iter().map(|member| *member as usize)
    }
}

/// What came of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Balance {
    /// By drive; 1 together.
    pub weights: Vec<f64>,
    /// How far a drive's part of the reads is from the one it was found to be able to have, at most.
    pub off: f64,
}

/// Rounds after which it is left as it is.
const ROUNDS_MAX: usize = 200;
/// All rounds together look at no more groups than so many, a millisecond or two. The next balance begins where
/// this one ended, so in a large pool it gets exact within a few turns.
const LOOKS_MAX: usize = 200_000;
const OFF_MAX: f64 = 1e-5;
/// No weight is smaller, as a part of the largest: where no other replica is left, any one is read.
const LEAST: f64 = 1e-9;
/// A weight of a moment ago below this is of a drive that was given nothing.
const AWAKE: f64 = 1e-6;
/// A drive without capacity is taken to have this part of all.
const CAPACITY_MIN: f64 = 1e-6;
/// Of the reads of a group each member is planned this part at least: less needs endless weights.
const PART_MIN: f64 = 1e-3;

/// Weights that make all drives as busy as each other, as far as who holds what allows: none of them is fuller
/// than need be. `capacities` are what drives can serve, in any unit; a drive of none gets what nobody else has.
/// Shares of `groups` are 1 together. It begins at `before`, the weights of a moment ago, if these are of as
/// many drives.
pub fn balance(groups: &[Group], capacities: &[f64], before: &[f64]) -> Balance {
    let targets = attainable(groups, capacities);
    let most = targets.iter().copied().fold(0.0, f64::max);
    let least = LEAST * most.max(LEAST);
    let mut weights: Vec<f64> = targets.iter().map(|target| target.max(least)).collect();
    if before.len() == targets.len() {
        // A drive that was given nothing comes back with what it is to get.
        for (weight, before) in weights.iter_mut().zip(before).filter(|pair| *pair.1 > AWAKE) {
            *weight = *before;
        }
    }
    let mut off = f64::INFINITY;
    for _ in 0..rounds(groups) {
        let mut games = vec![0.0; targets.len()];
        for group in groups {
            let sum: f64 = group.members().map(|member| weights[member]).sum();
            let won = group.share / sum;
            for member in group.members() {
                games[member] += won;
            }
        }
        off = 0.0;
        for ((weight, games), target) in weights.iter_mut().zip(&games).zip(&targets) {
            off = f64::max(off, (*weight * games - target).abs());
            if *games > 0.0 {
                *weight = (target / games).max(least);
            }
        }
        scale(&mut weights);
        if off <= OFF_MAX {
            break;
        }
    }
    Balance { weights, off }
}

fn rounds(groups: &[Group]) -> usize {
    (LOOKS_MAX / groups.len().max(1)).clamp(1, ROUNDS_MAX)
}

/// Parts of the reads that drives can be given although each block can only be read where it lies: in each
/// group reads move from the busiest member to the idlest until none is left to move. That makes the sum of the
/// squares of loads over capacities as small as it can be.
fn attainable(groups: &[Group], capacities: &[f64]) -> Vec<f64> {
    let sum: f64 = capacities.iter().sum();
    let floor = sum.max(f64::MIN_POSITIVE) * CAPACITY_MIN;
    let capacities: Vec<f64> = capacities.iter().map(|capacity| capacity.max(floor)).collect();
    let mut loads = vec![0.0; capacities.len()];
    let mut parts: Vec<[f64; MEMBERS_MAX]> = Vec::with_capacity(groups.len());
    for group in groups {
        let all: f64 = group.members().map(|member| capacities[member]).sum();
        let mut part = [0.0; MEMBERS_MAX];
        for (part, member) in part.iter_mut().zip(group.members()) {
            *part = group.share * capacities[member] / all;
            loads[member] += *part;
        }
        parts.push(part);
    }
    for _ in 0..rounds(groups) {
        let mut moved = 0.0;
        for (group, part) in groups.iter().zip(&mut parts) {
            moved += even(group, part, &mut loads, &capacities);
        }
        if moved <= OFF_MAX / 10.0 {
            break;
        }
    }
    loads
}

/// Moves reads of a group from its busiest member to its idlest; how much.
fn even(
    group: &Group,
    part: &mut [f64; MEMBERS_MAX],
    loads: &mut [f64],
    capacities: &[f64],
) -> f64 {
    let mut busy = [0.0; MEMBERS_MAX];
    for (busy, member) in busy.iter_mut().zip(group.members()) {
        *busy = loads[member] / capacities[member];
    }
    // Weights have an end: a little is read of each replica, whatever they are.
    let least = group.share * PART_MIN;
    let places = 0..usize::from(group.count);
    let from = places.clone().filter(|place| part[*place] > least);
    let from = from.max_by(|a, b| busy[*a].total_cmp(&busy[*b]));
    let to = places.min_by(|a, b| busy[*a].total_cmp(&busy[*b]));
    let (Some(from_place), Some(to_place)) = (from, to) else { return 0.0 };
    if from_place == to_place {
        return 0.0;
    }
    let [from, to] = [from_place, to_place].map(|place| group.members[place] as usize);
    let (a, b) = (capacities[from], capacities[to]);
    let evens = (loads[from] * b - loads[to] * a) / (a + b);
    let moves = evens.min(part[from_place] - least);
    if moves <= 0.0 {
        return 0.0;
    }
    part[from_place] -= moves;
    part[to_place] += moves;
    loads[from] -= moves;
    loads[to] += moves;
    moves
}

/// Makes them 1 together.
pub(super) fn scale(weights: &mut [f64]) {
    let sum: f64 = weights.iter().sum();
    if sum > 0.0 {
        for weight in weights {
            *weight /= sum;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flash::Random;

    fn served(groups: &[Group], weights: &[f64]) -> Vec<f64> {
        let mut served = vec![0.0; weights.len()];
        for group in groups {
            let sum: f64 = group.members().map(|member| weights[member]).sum();
            for member in group.members() {
                served[member] += group.share * weights[member] / sum;
            }
        }
        served
    }

    /// Targets that some weights give, so that they can be met.
    fn drawn(random: &mut Random, copies: usize) -> (Vec<Group>, Vec<f64>) {
        let drives = copies + 2 + random.below(10) as usize;
        let mut groups: Vec<Group> = Vec::new();
        for at in 0..drives * 4 {
            let mut members: Vec<usize> = vec![at % drives];
            while members.len() < copies {
                let member = random.below(drives as u64) as usize;
                if !members.contains(&member) {
                    members.push(member);
                }
            }
            groups.push(Group::new(&members, 0.05 + random.fraction()));
        }
        let all: f64 = groups.iter().map(|group| group.share).sum();
        for group in &mut groups {
            group.share /= all;
        }
        let weights: Vec<f64> = (0..drives).map(|_| 0.1 + random.fraction()).collect();
        let targets = served(&groups, &weights);
        (groups, targets)
    }

    #[test]
    fn each_drive_gets_the_part_of_the_reads_that_it_was_planned() {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let copies = 2 + random.below(2) as usize;
            let (groups, targets) = drawn(&mut random, copies);
            let balance = balance(&groups, &targets, &[]);
            assert!(balance.weights.iter().all(|weight| *weight >= 0.0), "seed {seed}");
            assert!((balance.weights.iter().sum::<f64>() - 1.0).abs() < 1e-9, "seed {seed}");
            for (got, target) in served(&groups, &balance.weights).iter().zip(&targets) {
                assert!((got - target).abs() < 1e-3, "seed {seed}: {got} for {target}");
            }
        }
    }

    #[test]
    fn the_planned_parts_as_weights_would_miss_by_far() {
        let (pairs, targets) = ([(0, 1), (0, 2), (1, 2)], [0.6, 0.2, 0.2]);
        let groups = pairs.map(|(a, b)| Group::new(&[a, b], 1.0 / 3.0));
        let naive = served(&groups, &targets);
        assert!((naive[0] - 0.5).abs() < 1e-9, "{naive:?}");
        let exact = balance(&groups, &targets, &[]);
        assert!((served(&groups, &exact.weights)[0] - 0.6).abs() < 1e-4);
    }

    #[test]
    fn what_a_drive_does_not_hold_is_read_elsewhere() {
        // Drive 0 holds a tenth of the blocks and could serve half of the reads; drive 1 has other work.
        let groups = [Group::new(&[0, 1], 0.1), Group::new(&[1, 2], 0.9)];
        let even = balance(&groups, &[0.5, 0.25, 0.25], &[]);
        let got = served(&groups, &even.weights);
        assert!(got[0] > 0.098 && (got[1] - got[2]).abs() < 0.02, "{got:?}");
        let busy = balance(&groups, &[0.5, 0.0, 0.25], &even.weights);
        let got = served(&groups, &busy.weights);
        assert!(got[1] < 0.01, "{got:?}");
        let back = balance(&groups, &[0.5, 0.25, 0.25], &busy.weights);
        let got = served(&groups, &back.weights);
        assert!((got[1] - got[2]).abs() < 0.02, "{got:?}");
    }
}

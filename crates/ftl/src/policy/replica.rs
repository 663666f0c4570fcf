//! Which of several copies answers a read. The copies lie on different devices, so no FTL decides
//! this alone: whoever holds the devices asks each for its queues (`Ftl::queue_at`) and asks a policy.

/// A copy that could answer.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ReplicaView {
    /// Commands waiting for or running on the unit that holds the copy.
    pub unit_queue: u32,
    /// Requests waiting for or running on the whole device.
    pub device_queue: u32,
}

/// Chooses the copy for a read.
pub trait ReplicaPolicy: Send {
    /// Its name in configs.
    fn name(&self) -> &'static str;
    /// Index into `replicas`, which has at least one.
    fn pick(&mut self, replicas: &[ReplicaView]) -> usize;
}

/// Names of the replica policies.
pub const REPLICAS: &[&str] = &["unit-queue", "device-queue", "round-robin", "first"];

/// The policy of that name.
pub fn replica_by_name(name: &str) -> Result<Box<dyn ReplicaPolicy>, String> {
    Ok(match name {
        "unit-queue" => Box::new(UnitQueue),
        "device-queue" => Box::new(DeviceQueue),
        "round-robin" => Box::new(InTurn { next: 0 }),
        "first" => Box::new(First),
        _ => return Err(super::unknown("replica", name, REPLICAS)),
    })
}

fn least_by<K: Ord>(replicas: &[ReplicaView], key: impl Fn(&ReplicaView) -> K) -> usize {
    (0..replicas.len()).min_by_key(|&index| key(&replicas[index])).unwrap_or(0)
}

/// The shortest queue of the units that hold the copies; among equals the less busy device. The
/// wait of a read is that of its unit: a busy device with an idle unit answers at once (TSSD).
#[derive(Clone, Copy, Debug)]
pub struct UnitQueue;

impl ReplicaPolicy for UnitQueue {
    fn name(&self) -> &'static str {
        "unit-queue"
    }

    fn pick(&mut self, replicas: &[ReplicaView]) -> usize {
        least_by(replicas, |replica| (replica.unit_queue, replica.device_queue))
    }
}

/// The shortest queue of the whole devices: all that a conventional SSD shows.
#[derive(Clone, Copy, Debug)]
pub struct DeviceQueue;

impl ReplicaPolicy for DeviceQueue {
    fn name(&self) -> &'static str {
        "device-queue"
    }

    fn pick(&mut self, replicas: &[ReplicaView]) -> usize {
        least_by(replicas, |replica| replica.device_queue)
    }
}

/// Each in its turn.
#[derive(Clone, Copy, Debug)]
pub struct InTurn {
    next: usize,
}

impl ReplicaPolicy for InTurn {
    fn name(&self) -> &'static str {
        "round-robin"
    }

    fn pick(&mut self, replicas: &[ReplicaView]) -> usize {
        self.next = (self.next + 1) % replicas.len();
        self.next
    }
}

/// Always the first.
#[derive(Clone, Copy, Debug)]
pub struct First;

impl ReplicaPolicy for First {
    fn name(&self) -> &'static str {
        "first"
    }

    fn pick(&mut self, _: &[ReplicaView]) -> usize {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::{REPLICAS, ReplicaView, replica_by_name};

    /// The worked example of the TSSD paper (Figure 5): three cards with 500, 1000 and 200 requests
    /// waiting; the units that hold the copies have 3, 0 and 5.
    const CARDS: [ReplicaView; 3] = [
        ReplicaView { unit_queue: 3, device_queue: 500 },
        ReplicaView { unit_queue: 0, device_queue: 1000 },
        ReplicaView { unit_queue: 5, device_queue: 200 },
    ];

    #[test]
    fn the_worked_example_of_the_paper_comes_out() {
        let pick = |name| replica_by_name(name).expect("it is listed").pick(&CARDS);
        assert_eq!(pick("device-queue"), 2, "a conventional host sees only the cards");
        assert_eq!(pick("unit-queue"), 1, "the fullest card has the idle unit");
    }

    #[test]
    fn among_equal_units_the_less_busy_device_answers() {
        let mut policy = replica_by_name("unit-queue").expect("it is listed");
        let equal = CARDS.map(|card| ReplicaView { unit_queue: 1, ..card });
        assert_eq!(policy.pick(&equal), 2);
    }

    #[test]
    fn every_listed_name_is_a_policy_of_that_name_and_others_are_refused() {
        for name in REPLICAS {
            assert_eq!(replica_by_name(name).expect("it is listed").name(), *name);
        }
        let error = replica_by_name("nearest").err().expect("there is no such one");
        assert!(error.contains("nearest") && error.contains("unit-queue"), "{error}");
    }

    #[test]
    fn each_in_its_turn_leaves_nobody_out() {
        let mut policy = replica_by_name("round-robin").expect("it is listed");
        let mut picked: Vec<usize> = (0..6).map(|_| policy.pick(&CARDS)).collect();
        picked.sort_unstable();
        assert_eq!(picked, [0, 0, 1, 1, 2, 2]);
    }
}

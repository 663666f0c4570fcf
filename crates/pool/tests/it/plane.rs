//! The embedded control plane over a file, in virtual time: what is stored is durable a while after it was asked,
//! and a crash takes what was not.

use flash::{Instant, MILLISECOND};
use pool::control::contract::{Change, PlaneAsk, PlaneAskId};
use pool::control::embedded::{Embedded, Known, PlaneInput, PlaneOutput, Store, Told};
use pool::control::mutant::Mutant;
use pool::words::PoolId;

/// Who asks beside all clients, and wants no answer.
const NOBODY: u64 = u64::MAX;

/// What is stored takes so long.
pub const STORE_NS: u64 = 3 * MILLISECOND;

/// See the head of this file.
pub struct Plane {
    plane: Embedded,
    file: Vec<u8>,
    starts: u64,
    mutant: Option<Mutant>,
}

/// Something to be stored, by which start of the plane.
pub struct Storing {
    starts: u64,
    store: Store,
}

/// What the plane has to say: to whom, and what is to be stored from now on.
#[derive(Default)]
pub struct Says {
    pub told: Vec<Told>,
    pub storing: Vec<Storing>,
    /// When to look at the time.
    pub deadline: Option<Instant>,
}

impl Plane {
    pub fn create() -> Self {
        let (file, starts, mutant) = (Vec::new(), 0, None);
        Self { plane: Embedded::create(PoolId(1), 1), file, starts, mutant }
    }

    #[cfg(feature = "mutants")]
    pub fn plant(&mut self, mutant: Mutant) {
        self.mutant = Some(mutant);
        self.plane.plant(mutant);
    }

    pub fn ask(&mut self, now: u64, client: u64, id: PlaneAskId, ask: PlaneAsk) -> Says {
        self.plane.handle(Instant(now), PlaneInput::Ask { client, id, ask });
        self.says()
    }

    /// Somebody who looks after the pool changes keys.
    pub fn put(&mut self, now: u64, changes: Vec<Change>) -> Says {
        let ask = PlaneAsk::Commit { checks: Vec::new(), changes };
        self.ask(now, NOBODY, PlaneAskId(0), ask)
    }

    pub fn stored(&mut self, now: u64, storing: Storing) -> Says {
        if storing.starts != self.starts {
            return Says::default();
        }
        let sequence = match storing.store {
            Store::Append { bytes, sequence } => {
                self.file.extend(bytes);
                sequence
            }
            Store::Replace { bytes, sequence } => {
                self.file = bytes;
                sequence
            }
        };
        self.plane.handle(Instant(now), PlaneInput::Stored { sequence });
        self.says()
    }

    pub fn elapsed(&mut self, now: u64) -> Says {
        self.plane.handle(Instant(now), PlaneInput::Deadline);
        self.says()
    }

    pub fn crash(&mut self, now: u64) -> Says {
        self.starts += 1;
        let opened = Embedded::open(Instant(now), PoolId(1), &self.file, Known { revision: 0 }, 2);
        let (mut plane, length) = opened.expect("what is stored is sound");
        self.file.truncate(length);
        if let Some(mutant) = self.mutant {
            plane.plant(mutant);
        }
        self.plane = plane;
        self.says()
    }

    fn says(&mut self) -> Says {
        let mut says = Says::default();
        while let Some(output) = self.plane.poll() {
            match output {
                PlaneOutput::Answer(told) if told.client == NOBODY => {}
                PlaneOutput::Answer(told) => says.told.push(told),
                PlaneOutput::Store(store) => {
                    says.storing.push(Storing { starts: self.starts, store });
                }
            }
        }
        says.deadline = self.plane.deadline();
        says
    }
}

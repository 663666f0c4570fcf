//! A log that is kept for a while: appended to, from the start of its part again after the end. What
//! is written lives for just one round.

use super::{Plan, Program, Step};

/// See the head of this file.
pub struct Ring {
    bytes: u64,
    append_bytes: u64,
    next: u64,
}

impl Ring {
    /// A log over `bytes`.
    pub fn new(bytes: u64, append_bytes: u64) -> Result<Self, String> {
        if bytes < append_bytes {
            return Err(format!("{bytes} bytes for a log that takes {append_bytes} at a time"));
        }
        Ok(Self { bytes, append_bytes, next: 0 })
    }
}

impl Program for Ring {
    fn actors(&self) -> u32 {
        1
    }

    fn files(&self) -> Vec<(u64, u64)> {
        vec![(0, self.bytes)]
    }

    fn plan(&mut self, _: u32, plan: &mut Plan) -> Result<(), String> {
        if self.next + self.append_bytes > self.bytes {
            self.next = 0;
        }
        plan.write(self.next, self.append_bytes);
        plan.wait();
        plan.step(Step::Done);
        self.next += self.append_bytes;
        Ok(())
    }
}

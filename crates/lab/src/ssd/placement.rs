//! Data placement over the command: what the identifier of a write means to a drive, and what an FDP
//! drive tells of it.
//!
//! - *Streams directive* (a multi-stream SSD): 0 is a write of no stream, 1 to `handles` are streams.
//!   The drive has no resources for a stream beyond them, and writes such data as that of none.
//! - *Flexible data placement*: 0 to `handles - 1` name a reclaim unit handle. Data of an identifier
//!   that names none goes to handle 0, and the host event "invalid placement identifier" counts it.
//!
//! Either way the write succeeds: placement is advice, never a reason to lose data. Inside, the
//! handle is the hint of the write, which the FTL that is the firmware places by (its stream policy
//! is `hint`), and the FTL's bands are the reclaim units.

use crate::target::TargetCounts;

/// How the host names what data belongs to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Interface {
    /// The Streams directive.
    Streams,
    /// Flexible data placement.
    Fdp,
}

/// See the head of this file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Placement {
    /// What the identifiers mean.
    pub interface: Interface,
    /// Streams, or reclaim unit handles.
    pub handles: u8,
    /// A reclaim unit: a band of the FTL inside. Known once it is built.
    pub unit_bytes: u64,
}

impl Placement {
    /// Handles of the FTL inside that the identifiers lead to.
    pub fn handles_inside(&self) -> u8 {
        self.handles + self.base()
    }

    /// Identifier of the first stream or handle.
    pub fn base(&self) -> u8 {
        match self.interface {
            Interface::Streams => 1,
            Interface::Fdp => 0,
        }
    }

    /// The handle inside that a write of this identifier goes to; `None` if it names nothing.
    pub fn handle(&self, identifier: u8) -> Option<u8> {
        (identifier < self.handles_inside()).then_some(identifier)
    }
}

/// What the FDP statistics log page and the event log of an endurance group tell, since it was made.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct FdpStatistics {
    /// Host bytes with metadata written (HBMW).
    pub host_bytes_written: u64,
    /// Media bytes with metadata written (MBMW).
    pub media_bytes_written: u64,
    /// Media bytes erased (MBE).
    pub media_bytes_erased: u64,
    /// Host events: writes whose placement identifier named no handle.
    pub invalid_identifiers: u64,
    /// Controller events: bytes that the controller moved to other reclaim units.
    pub media_bytes_reallocated: u64,
    /// Times that a handle, the host's or the controller's own, went on to another reclaim unit.
    pub unit_changes: u64,
}

impl FdpStatistics {
    /// From what the FTL inside counts.
    pub fn of(
        placement: &Placement,
        counts: TargetCounts,
        unit_changes: u64,
        invalid_identifiers: u64,
    ) -> Self {
        Self {
            host_bytes_written: counts.bytes_written,
            media_bytes_written: counts.bytes_programmed,
            media_bytes_erased: counts.erases * placement.unit_bytes,
            invalid_identifiers,
            media_bytes_reallocated: counts.bytes_relocated,
            unit_changes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Interface, Placement};

    #[test]
    fn an_identifier_beyond_the_handles_names_nothing() {
        let of = |interface| Placement { interface, handles: 4, unit_bytes: 0 };
        let fdp = of(Interface::Fdp);
        assert_eq!((fdp.handle(0), fdp.handle(3), fdp.handle(4)), (Some(0), Some(3), None));
        // Identifier 0 of the Streams directive is no stream, so there is one more.
        let streams = of(Interface::Streams);
        assert_eq!(streams.handles_inside(), 5);
        assert_eq!((streams.handle(4), streams.handle(5)), (Some(4), None));
    }
}

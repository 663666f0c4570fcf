//! The control plane knows which drive a node has and how often that was opened. A drive that is new, or an older copy, has
//! less than its node has acknowledged; alone with a client that opens a volume it would have that believe that what it lacks
//! was never written. So a node with such a drive does not start.

use super::PoolError;
use super::plane::PlaneCalls;
use super::records::{self, Found};
use crate::device::{Age, Device, DeviceError, Kind};
use crate::server::ServeError;
use pool::control::keys;
use pool::control::values::{DriveRecord, NodeRecord};
use pool::words::NodeId;

/// What the control plane knows of the drive of a node.
pub struct Known {
    node: NodeId,
    /// Of its record; 0 if there is none.
    revision: u64,
}

/// Whether the drive at a place is the node's own, as it was left, before it is opened. Waits for the control plane.
///
/// # Errors
/// It is not, or cannot be looked at.
pub fn look(calls: &mut PlaneCalls, node: NodeId, kind: &Kind) -> Result<Known, PoolError> {
    let key = keys::drive(node);
    let kept = loop {
        match calls.get(key.clone()) {
            Ok(kept) => break kept,
            Err(error) => {
                tracing::warn!(%error, "the drive is opened once the control plane has told whose it is");
            }
        }
    };
    let record = kept.map(|kept| records::found::<DriveRecord>(&key, &kept)).transpose()?;
    let path = match kind {
        // Whoever takes such wants to lose it with its process.
        Kind::Memory { .. } => None,
        Kind::Nand { path, .. } | Kind::File { path } => Some(path),
    };
    if let (Some(Found { record, .. }), Some(path)) = (&record, path) {
        let there = Device::age_at(kind)
            .map_err(|error| PoolError::Serve(ServeError::Device(without_backups(error, node))))?;
        if let Err(reason) = check(record, there.map(recorded).as_ref(), node) {
            let mend = match is_given_up(calls, node) {
                true => {
                    "the node was given up: let an empty drive join under a new number".to_owned()
                }
                false => format!(
                    "put back that drive as it was last in use, or mount it; or, {}",
                    lost(node)
                ),
            };
            return Err(PoolError::File { path: path.into(), reason: format!("{reason}: {mend}") });
        }
    }
    Ok(Known { node, revision: record.map_or(0, |found| found.revision) })
}

/// Whether the node is one of which nothing is wanted, as far as that can be told.
fn is_given_up(calls: &mut PlaneCalls, node: NodeId) -> bool {
    let key = keys::node(node);
    let kept = calls.get(key.clone()).ok().flatten();
    let found = kept.and_then(|kept| records::found::<NodeRecord>(&key, &kept).ok());
    found.is_some_and(|found| !found.record.state.counts())
}

/// What to do about a drive that cannot be used again.
fn lost(node: NodeId) -> String {
    format!(
        "if it is lost, give the node up (`weir pool replace {} --by none`), which has others copy what it had, and let an \
         empty drive join under a new number",
        node.0
    )
}

/// A pool takes no backup of a drive: what others have is newer.
pub fn without_backups(error: DeviceError, node: NodeId) -> DeviceError {
    match error {
        DeviceError::Invalid { path, reason, mend } if mend.contains("backup") => {
            let mend = format!("a backup is of no use, as the pool has gone on; {}", lost(node));
            DeviceError::Invalid { path, reason, mend }
        }
        error => error,
    }
}

fn check(record: &DriveRecord, there: Option<&DriveRecord>, node: NodeId) -> Result<(), String> {
    Err(match there {
        Some(there) if record.may_be(there) => return Ok(()),
        Some(there) if there.drive == record.drive => format!(
            "is an older copy of the drive of node {}: it was opened {} times, and {} times as the control plane knows",
            node.0, there.opens, record.opens
        ),
        Some(there) => format!(
            "is not the drive of node {}: its uuid is {:032x}, and that of its drive {:032x}",
            node.0, there.drive, record.drive
        ),
        None => {
            format!("is no drive, and node {} has one, whose uuid is {:032x}", node.0, record.drive)
        }
    })
}

fn recorded(Age { uuid, opens, is_closed }: Age) -> DriveRecord {
    DriveRecord { drive: uuid, opens, is_closed }
}

impl Known {
    /// Has the control plane know the drive as it is now.
    ///
    /// # Errors
    /// It does not answer, or knows of another start of the node.
    pub fn note(&mut self, calls: &mut PlaneCalls, age: Option<Age>) -> Result<(), PoolError> {
        let Some(age) = age else { return Ok(()) };
        self.revision = records::put_drive(calls, self.node, &recorded(age), self.revision)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_the_drive_as_it_was_left_is_refused() {
        let record = DriveRecord { drive: 7, opens: 4, is_closed: true };
        let told = |there: Option<&DriveRecord>| check(&record, there, NodeId(3));
        assert_eq!(told(Some(&record)), Ok(()));
        let older = DriveRecord { opens: 3, ..record.clone() };
        let other = DriveRecord { drive: 8, ..record.clone() };
        for (there, words) in [
            (None, "is no drive, and node 3 has one"),
            (Some(&older), "is an older copy of the drive of node 3: it was opened 3 times, and 4"),
            (Some(&other), "is not the drive of node 3"),
        ] {
            let error = told(there).expect_err(words);
            assert!(error.contains(words), "{error}");
        }
    }
}

//! Whose a drive is: the label that its raw units are formatted with (docs/formats.md, "A drive of a pool").

use pool::words::{NodeId, PoolId};

const MAGIC: [u8; 8] = *b"weirnode";

/// The bytes of a label.
pub fn encode(pool: PoolId, node: NodeId) -> Vec<u8> {
    [&MAGIC[..], &pool.0.to_le_bytes(), &node.0.to_le_bytes()].concat()
}

/// Whether `bytes` are the label of a drive of any pool.
pub fn is_of_a_pool(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

/// What is wrong if a drive with this label is not that of node `node` of pool `pool`.
pub fn check(bytes: &[u8], pool: PoolId, node: NodeId) -> Result<(), String> {
    let body = bytes.strip_prefix(&MAGIC);
    let Some((id, number)) = body.and_then(|body| body.split_first_chunk::<16>()) else {
        return Err("holds raw units that are of no pool: use another place, or remove what is \
                    there if nobody needs it"
            .into());
    };
    let found = PoolId(u128::from_le_bytes(*id));
    let number = number.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
    if found != pool {
        return Err(format!(
            "is a drive of pool {:032x}, this pool is {:032x}: use the control plane of that pool, or \
             another place",
            found.0, pool.0
        ));
    }
    match number {
        Some(number) if number == node.0 => Ok(()),
        Some(number) => Err(format!(
            "is the drive of node {number}: say node.id = {number}, or give node {} a place of its own",
            node.0
        )),
        None => Err("has a label that is cut off".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drive_is_taken_by_its_own_node_only() {
        let label = encode(PoolId(7 << 100), NodeId(3));
        assert!(is_of_a_pool(&label));
        assert_eq!(check(&label, PoolId(7 << 100), NodeId(3)), Ok(()));
        let other = check(&label, PoolId(7 << 100), NodeId(4)).unwrap_err();
        assert!(other.contains("node.id = 3"), "{other}");
        let other = check(&label, PoolId(8), NodeId(3)).unwrap_err();
        assert!(other.contains("this pool is 0000"), "{other}");
        assert!(check(b"", PoolId(8), NodeId(3)).unwrap_err().contains("no pool"));
        assert!(check(&label[..26], PoolId(7 << 100), NodeId(3)).is_err());
    }
}

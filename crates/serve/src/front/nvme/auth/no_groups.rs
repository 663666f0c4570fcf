//! In the place of the groups where a build has none (feature `dh`): the challenge goes as it is.

/// None: the challenge goes as it is.
const NULL: u8 = 0;

/// Draws bytes that nobody can guess; false if the system has none.
pub type Draw = fn(&mut [u8]) -> bool;

/// There are none.
#[derive(Default)]
pub struct Groups;

impl Groups {
    /// The one that is none, if it is among these.
    pub fn choose(offered: &[u8]) -> Option<u8> {
        offered.contains(&NULL).then_some(NULL)
    }

    /// What the other end needs: nothing.
    pub fn public(&self, group: u8, _draw: Draw) -> Option<Vec<u8>> {
        (group == NULL).then(Vec::new)
    }

    /// No secret is shared.
    pub fn shared(&self, _group: u8, _theirs: &[u8], _draw: Draw) -> Option<Vec<u8>> {
        None
    }
}

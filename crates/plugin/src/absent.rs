//! What stands for [`Module`] in a build without WebAssembly: a type of which there is no value, so that
//! whoever serves policies is written once, and the compiler knows that none of these can be one.

use crate::{Kind, LoadError};
use ftl::policy::Chosen;
use ftl::policy::stream::Shape;

/// A module. This build has none.
#[derive(Clone, Debug)]
pub struct Module(Never);

/// Inside, so that the code that has a module at hand is not called unreachable.
#[derive(Clone, Debug)]
enum Never {}

impl Module {
    /// Says that this build has nothing to compile a module with.
    ///
    /// # Errors
    /// Always [`LoadError::NotBuilt`].
    pub fn load(_: &str, _: &[u8]) -> Result<Self, LoadError> {
        Err(LoadError::NotBuilt)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        match self.0 {}
    }

    /// What a policy of it is called.
    pub fn policy_name(&self) -> String {
        match self.0 {}
    }

    /// Bytes of the module.
    pub fn bytes(&self) -> usize {
        match self.0 {}
    }

    /// The decisions it can make.
    pub fn kinds(&self) -> &[Kind] {
        match self.0 {}
    }

    /// A policy for a decision.
    ///
    /// # Errors
    /// None: there is no module to ask.
    pub fn make(&self, _: &str, _: Shape) -> Result<Chosen, String> {
        match self.0 {}
    }
}

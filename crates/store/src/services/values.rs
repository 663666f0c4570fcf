//! Values by key.

use super::engine::{Change, Engine};
use super::key::{self, At, KeyRange};
use super::scan::{Bounds, Page, page};
use super::{Refused, Service};

/// Longest value of the key-value service, and of a cell.
pub const VALUE_BYTES_MAX: usize = 1 << 20;

/// A put of a value, where the room of the store allows it.
pub(super) fn put(at: At, value: Vec<u8>) -> Result<Change, Refused> {
    if value.len() > VALUE_BYTES_MAX {
        return Err(too_large(value.len() as u64));
    }
    Ok(Change::Put { slice: at.slice, key: at.key, value })
}

/// What is said of a value that is too large.
pub fn too_large(bytes: u64) -> Refused {
    Refused::TooLarge(format!(
        "a value of {bytes} bytes: at most {VALUE_BYTES_MAX} are allowed: larger ones are files (`/fs`)"
    ))
}

impl Service {
    /// What a put of a value changes.
    pub fn put_value(&self, key: &[u8], value: Vec<u8>) -> Result<Change, Refused> {
        self.admit(value.len())?;
        put(key::value(key, self.slices())?, value)
    }

    /// What its deletion changes.
    pub fn delete_value(&self, key: &[u8]) -> Result<Change, Refused> {
        let At { slice, key } = key::value(key, self.slices())?;
        Ok(Change::Delete { slice, key })
    }

    /// The value of a key.
    pub fn value(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Refused> {
        let At { slice, key } = key::value(key, self.slices())?;
        self.engine().get(slice, &key)
    }

    /// The same as far as it is in memory; `None` if units would have to be asked.
    pub fn value_in_memory(&self, key: &[u8]) -> Result<Option<Option<Vec<u8>>>, Refused> {
        let At { slice, key } = key::value(key, self.slices())?;
        self.engine().get_in_memory(slice, &key)
    }

    /// Values in the order of their keys, of all slices or of one; keys are those of the service.
    pub fn values(
        &self,
        prefix: &[u8],
        (from, to): (Option<&[u8]>, Option<&[u8]>),
        slice: Option<u32>,
        bounds: Bounds,
    ) -> Result<Page, Refused> {
        let range = key::values(prefix, from, to);
        let page = match slice {
            None => self.page(&range, bounds)?,
            Some(slice) => {
                self.has_slice(slice)?;
                page(self.engine(), slice..slice + 1, &range, bounds)?
            }
        };
        let name = |key: Vec<u8>| key::value_name(&key).unwrap_or_default().to_vec();
        let pairs = page.pairs.into_iter().map(|(key, value)| (name(key), value));
        Ok(Page { pairs: pairs.collect(), next: page.next.map(name) })
    }

    /// The first pairs of a range in all slices.
    pub(super) fn page(&self, range: &KeyRange, bounds: Bounds) -> Result<Page, Refused> {
        let engine: &dyn Engine = self.engine();
        page(engine, 0..engine.slices(), range, bounds)
    }
}

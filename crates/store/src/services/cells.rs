//! Cells of tables: a row is in one slice, so its cells change in one piece and are read in one range.

use super::engine::{Change, Each};
use super::key::{self, At, Cell, KeyRange, after};
use super::scan::Bounds;
use super::{Refused, Service, values};

/// Cells in order, and behind which one the rest begins.
pub type Cells = (Vec<(Cell, Vec<u8>)>, Option<Cell>);

impl Service {
    /// What a put of a cell changes.
    pub fn put_cell(&self, cell: &Cell, value: Vec<u8>) -> Result<Change, Refused> {
        self.admit(value.len())?;
        values::put(cell.at(self.slices())?, value)
    }

    /// What its deletion changes.
    pub fn delete_cell(&self, cell: &Cell) -> Result<Change, Refused> {
        let At { slice, key } = cell.at(self.slices())?;
        Ok(Change::Delete { slice, key })
    }

    /// What the deletion of a row changes.
    pub fn delete_row(&self, table: &[u8], row: &[u8]) -> Result<Change, Refused> {
        let (slice, range) = key::row(table, row, self.slices())?;
        Ok(Change::DeleteRange { slice, range })
    }

    /// The value of a cell.
    pub fn cell(&self, cell: &Cell) -> Result<Option<Vec<u8>>, Refused> {
        let At { slice, key } = cell.at(self.slices())?;
        self.engine().get(slice, &key)
    }

    /// The same as far as it is in memory; `None` if units would have to be asked.
    pub fn cell_in_memory(&self, cell: &Cell) -> Result<Option<Option<Vec<u8>>>, Refused> {
        let At { slice, key } = cell.at(self.slices())?;
        self.engine().get_in_memory(slice, &key)
    }

    /// The cells of a row, of one family or of all.
    pub fn row(
        &self,
        (table, row): (&[u8], &[u8]),
        family: Option<&[u8]>,
        bounds: Bounds,
    ) -> Result<Cells, Refused> {
        let (slice, range) = key::row(table, row, self.slices())?;
        let (mut cells, mut bytes, mut more) = (Vec::new(), 0, None);
        let mut last: Option<Cell> = None;
        let each: &mut Each<'_> = &mut |key, value| {
            let Some(cell) = Cell::of(key) else { return true };
            if family.is_some_and(|family| family != cell.family) {
                return true;
            }
            if cells.len() == bounds.count || bytes > bounds.bytes {
                more = last.take();
                return false;
            }
            bytes += key.len() + value.len();
            last = Some(cell.clone());
            cells.push((cell, value.to_vec()));
            true
        };
        self.engine().scan(slice, &range, each)?;
        Ok((cells, more))
    }

    /// Cells of a table, or of all, in order: those of the rows in `rows`, behind the cell `behind`, of one family or of all.
    pub fn cells(
        &self,
        table: Option<&[u8]>,
        rows: (Option<&[u8]>, Option<&[u8]>),
        (behind, family): (Option<&Cell>, Option<&[u8]>),
        bounds: Bounds,
    ) -> Result<Cells, Refused> {
        let mut range = key::cells(table, rows.0, rows.1);
        if let Some(behind) = behind {
            range.from = range.from.max(after(&behind.at(1)?.key));
        }
        let (mut cells, mut bytes) = (Vec::new(), 0);
        loop {
            let left =
                Bounds { count: bounds.count - cells.len(), bytes: bounds.bytes - bytes, ..bounds };
            let page = self.page(&range, left)?;
            let mut last = None;
            for (key, value) in page.pairs {
                let Some(cell) = Cell::of(&key) else { continue };
                last = Some(cell.clone());
                if family.is_none_or(|family| family == cell.family) {
                    bytes += key.len() + value.len();
                    cells.push((cell, value));
                }
            }
            let is_full = cells.len() >= bounds.count || bytes >= bounds.bytes;
            match page.next {
                None => return Ok((cells, None)),
                Some(_) if is_full => return Ok((cells, last)),
                Some(next) => range = KeyRange { from: next, to: range.to },
            }
        }
    }
}

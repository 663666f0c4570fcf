//! What is under way in a part of a drive, by small numbers that travel as tokens.

/// Entries by index, whose places are used again.
#[derive(Debug)]
pub struct Table<T> {
    list: Vec<T>,
    free: Vec<u32>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { list: Vec::new(), free: Vec::new() }
    }
}

impl<T> Table<T> {
    /// Keeps an entry and says where.
    pub fn take(&mut self, entry: T) -> u32 {
        match self.free.pop() {
            Some(index) => {
                self.list[index as usize] = entry;
                index
            }
            None => {
                self.list.push(entry);
                (self.list.len() - 1) as u32
            }
        }
    }

    /// The entry is over: its place may be used again.
    pub fn give(&mut self, index: u32) {
        self.free.push(index);
    }
}

impl<T> std::ops::Index<u32> for Table<T> {
    type Output = T;
    fn index(&self, index: u32) -> &T {
        &self.list[index as usize]
    }
}

impl<T> std::ops::IndexMut<u32> for Table<T> {
    fn index_mut(&mut self, index: u32) -> &mut T {
        &mut self.list[index as usize]
    }
}

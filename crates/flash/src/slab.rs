//! A table of things in flight, named by a small number that is reused.

/// Entries by index; indices of removed entries are given out again, the last one first.
#[derive(Clone, Debug)]
pub struct Slab<T> {
    entries: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    /// Adds an entry and returns its index.
    pub fn insert(&mut self, entry: T) -> u32 {
        if let Some(index) = self.free.pop() {
            self.entries[index as usize] = Some(entry);
            return index;
        }
        self.entries.push(Some(entry));
        self.entries.len() as u32 - 1
    }

    /// Takes an entry out.
    ///
    /// # Panics
    /// If there is none at `index`.
    pub fn remove(&mut self, index: u32) -> T {
        let entry = self.entries[index as usize].take().expect("the entry is there");
        self.free.push(index);
        entry
    }

    /// The entry at `index`, if there is one.
    pub fn get(&self, index: u32) -> Option<&T> {
        self.entries.get(index as usize)?.as_ref()
    }

    /// The entry at `index`, to change it.
    pub fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.entries.get_mut(index as usize)?.as_mut()
    }

    /// Entries held.
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// True if nothing is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All entries with their indices.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let numbered = self.entries.iter().enumerate();
        numbered.filter_map(|(index, entry)| Some((index as u32, entry.as_ref()?)))
    }
}

impl<T> std::ops::Index<u32> for Slab<T> {
    type Output = T;
    fn index(&self, index: u32) -> &T {
        self.get(index).expect("the entry is there")
    }
}

impl<T> std::ops::IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, index: u32) -> &mut T {
        self.get_mut(index).expect("the entry is there")
    }
}

#[cfg(test)]
mod tests {
    use super::Slab;

    #[test]
    fn indices_are_reused_and_never_shared() {
        let mut slab = Slab::default();
        let (a, b) = (slab.insert('a'), slab.insert('b'));
        assert_eq!(slab.remove(a), 'a');
        assert!(slab.get(a).is_none());
        assert_eq!(slab.insert('c'), a);
        assert_eq!((slab[b], slab[a], slab.len()), ('b', 'c', 2));
    }
}

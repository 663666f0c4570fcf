//! Numbered storage for what is in flight. A removed item keeps its memory for the next one, so
//! the steady state allocates nothing.

/// Items by index; a free index is reused.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slab<T> {
    items: Vec<T>,
    free: Vec<u32>,
}

impl<T: Default> Slab<T> {
    /// The index of an item left as its last user left it. Reset what matters.
    pub fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.items.push(T::default());
            (self.items.len() - 1) as u32
        })
    }

    /// Gives an index back.
    pub fn give(&mut self, index: u32) {
        self.free.push(index);
    }

    /// Items in use.
    pub fn in_use(&self) -> usize {
        self.items.len() - self.free.len()
    }

    /// Every index in use, in order. It takes memory and looks at every index: not for each request.
    pub fn live(&self) -> Vec<u32> {
        let mut used = vec![true; self.items.len()];
        self.free.iter().for_each(|&index| used[index as usize] = false);
        self.indices().filter(|&index| used[index as usize]).collect()
    }

    /// Every index ever used, in order; the caller knows which are live.
    pub fn indices(&self) -> std::ops::Range<u32> {
        0..self.items.len() as u32
    }
}

impl<T> std::ops::Index<u32> for Slab<T> {
    type Output = T;
    fn index(&self, index: u32) -> &T {
        &self.items[index as usize]
    }
}

impl<T> std::ops::IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, index: u32) -> &mut T {
        &mut self.items[index as usize]
    }
}

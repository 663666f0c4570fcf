//! The lines of a cache: which block each holds, which are dirty, and which was used least recently.
//!
//! Any line may hold any block. Clean lines that nobody uses are in a list by last use, from which
//! lines are taken when none is free; dirty lines are found by address.
//!
//! Invariants:
//! - a block is in at most one line, and `line_of` and `block` name each other;
//! - a line in use (`users`), a dirty one or one being cleaned is never in the list, so never taken;
//! - `dirty` has a bit for each block whose line is dirty, and no other.

/// No line, no block.
pub const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Line {
    /// What it holds, or [`NONE`].
    block: u32,
    /// Towards those used more recently, and less; [`NONE`] at the ends.
    newer: u32,
    older: u32,
    /// I/Os that read or write the line now.
    users: u32,
    /// Writes of them.
    writers: u32,
    is_dirty: bool,
    is_cleaned: bool,
    /// Written since the cleaning began.
    is_rewritten: bool,
    is_listed: bool,
}

/// See the head of this file.
pub struct Lines {
    lines: Vec<Line>,
    line_of: Vec<u32>,
    free: Vec<u32>,
    newest: u32,
    oldest: u32,
    listed: u32,
    dirty: Vec<u64>,
    dirty_count: u32,
}

impl Lines {
    /// `lines` empty lines for a device of `blocks`.
    pub fn new(lines: u32, blocks: u32) -> Self {
        let empty = Line {
            block: NONE,
            newer: NONE,
            older: NONE,
            users: 0,
            writers: 0,
            is_dirty: false,
            is_cleaned: false,
            is_rewritten: false,
            is_listed: false,
        };
        Self {
            lines: vec![empty; lines as usize],
            line_of: vec![NONE; blocks as usize],
            free: (0..lines).rev().collect(),
            newest: NONE,
            oldest: NONE,
            listed: 0,
            dirty: vec![0; blocks.div_ceil(64) as usize],
            dirty_count: 0,
        }
    }

    /// The line that holds `block`, or [`NONE`].
    pub fn find(&self, block: u32) -> u32 {
        self.line_of[block as usize]
    }

    /// Lines that may be taken.
    pub fn available(&self) -> u32 {
        self.free.len() as u32 + self.listed
    }

    /// Share of the lines that is dirty.
    pub fn dirty_share(&self) -> f64 {
        f64::from(self.dirty_count) / self.lines.len() as f64
    }

    /// An I/O begins to use a line: it stays what it is until [`Self::release`].
    pub fn hold(&mut self, line: u32, writes: bool) {
        self.unlist(line);
        let entry = &mut self.lines[line as usize];
        entry.users += 1;
        entry.writers += u32::from(writes);
        if writes {
            entry.is_rewritten = true;
            if !entry.is_dirty {
                entry.is_dirty = true;
                let block = entry.block;
                self.dirty_count += 1;
                self.dirty[(block / 64) as usize] |= 1 << (block % 64);
            }
        }
    }

    /// Whether a write of the line changes what the cache has to remember of it.
    pub fn is_dirty(&self, line: u32) -> bool {
        self.lines[line as usize].is_dirty
    }

    /// The I/O is done with the line.
    pub fn release(&mut self, line: u32, wrote: bool) {
        let entry = &mut self.lines[line as usize];
        entry.users -= 1;
        entry.writers -= u32::from(wrote);
        self.list(line);
    }

    /// Takes a line for `block`, which is in none: a free one, or the clean one used least recently.
    /// The caller holds it. `None` if there is no such line.
    pub fn take(&mut self, block: u32) -> Option<u32> {
        debug_assert_eq!(self.find(block), NONE);
        let line = match self.free.pop() {
            Some(line) => line,
            None if self.oldest == NONE => return None,
            None => {
                let line = self.oldest;
                self.unlist(line);
                self.line_of[self.lines[line as usize].block as usize] = NONE;
                line
            }
        };
        self.lines[line as usize].block = block;
        self.line_of[block as usize] = line;
        Some(line)
    }

    /// Forgets `block` if its line is clean and nobody uses it; false if it stays.
    pub fn forget(&mut self, block: u32) -> bool {
        let line = self.find(block);
        if line == NONE || !self.lines[line as usize].is_listed {
            return line == NONE;
        }
        self.unlist(line);
        self.line_of[block as usize] = NONE;
        self.lines[line as usize].block = NONE;
        self.free.push(line);
        true
    }

    /// The first block from `from` on whose line is dirty, or [`NONE`].
    pub fn next_dirty(&self, from: u32) -> u32 {
        let mut word = (from / 64) as usize;
        let mut mask = u64::MAX << (from % 64);
        while word < self.dirty.len() {
            let bits = self.dirty[word] & mask;
            if bits != 0 {
                return word as u32 * 64 + bits.trailing_zeros();
            }
            mask = u64::MAX;
            word += 1;
        }
        NONE
    }

    /// Begins to clean the line of a block if it may: its data is there, and nobody does it already.
    pub fn begin_clean(&mut self, block: u32) -> bool {
        let line = self.find(block);
        if line == NONE {
            return false;
        }
        let entry = &mut self.lines[line as usize];
        let may = entry.is_dirty && !entry.is_cleaned && entry.writers == 0;
        if may {
            (entry.is_cleaned, entry.is_rewritten) = (true, false);
        }
        may
    }

    /// What the line of `block` held when its cleaning began is in the device behind, or not.
    pub fn end_clean(&mut self, block: u32, is_there: bool) {
        let line = self.find(block);
        let entry = &mut self.lines[line as usize];
        entry.is_cleaned = false;
        if is_there && !entry.is_rewritten {
            entry.is_dirty = false;
            self.dirty_count -= 1;
            self.dirty[(block / 64) as usize] &= !(1 << (block % 64));
        }
        self.list(line);
    }

    /// Puts a line at the young end of the list if nothing keeps it from there.
    fn list(&mut self, line: u32) {
        let entry = &mut self.lines[line as usize];
        if entry.users > 0 || entry.is_dirty || entry.is_cleaned || entry.is_listed {
            return;
        }
        (entry.is_listed, entry.newer, entry.older) = (true, NONE, self.newest);
        match self.newest {
            NONE => self.oldest = line,
            newest => self.lines[newest as usize].newer = line,
        }
        self.newest = line;
        self.listed += 1;
    }

    fn unlist(&mut self, line: u32) {
        let Line { newer, older, is_listed, .. } = self.lines[line as usize];
        if !is_listed {
            return;
        }
        match newer {
            NONE => self.newest = older,
            newer => self.lines[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.lines[older as usize].newer = newer,
        }
        self.lines[line as usize].is_listed = false;
        self.listed -= 1;
    }
}

//! Several slices as one order: what is next of each is held, and the least of these comes first.

use super::Refused;
use super::engine::Engine;
use super::key::{KeyRange, after};
use std::collections::VecDeque;
use std::thread;

/// Where an answer ends, though there is more.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Bounds {
    /// Most things in it.
    pub count: usize,
    /// Bytes of keys and values after which it takes no more.
    pub bytes: usize,
    /// With values; else these are empty.
    pub values: bool,
}

/// A key of the engine with its value.
pub type Pair = (Vec<u8>, Vec<u8>);

/// A part of a range, in order.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Page {
    /// What is in it.
    pub pairs: Vec<Pair>,
    /// Where the rest begins, if there may be more.
    pub next: Option<Vec<u8>>,
}

/// Pairs that are asked of a slice at a time, as far as its part of the bytes allows.
const COUNT_AT_A_TIME: usize = 256;

/// What is next of a slice.
struct Cursor {
    slice: u32,
    range: KeyRange,
    ahead: VecDeque<Pair>,
    ended: bool,
}

/// How much is read of a slice at a time.
#[derive(Clone, Copy)]
struct Piece {
    count: usize,
    bytes: usize,
    values: bool,
}

impl Cursor {
    fn is_spent(&self) -> bool {
        self.ahead.is_empty() && !self.ended
    }

    fn read(&mut self, engine: &dyn Engine, piece: Piece) -> Result<(), Refused> {
        let (mut taken, mut count, mut cut) = (0, 0, false);
        engine.scan(self.slice, &self.range, &mut |key, value| {
            let value = if piece.values { value } else { &[] };
            taken += key.len() + value.len();
            count += 1;
            self.ahead.push_back((key.to_vec(), value.to_vec()));
            // Not one further to see whether there is more: a value may be large, and is read then.
            cut = count == piece.count || taken > piece.bytes;
            !cut
        })?;
        self.ended = !cut;
        if let Some((last, _)) = self.ahead.back() {
            self.range.from = after(last);
        }
        Ok(())
    }
}

/// Reads on in every slice that is spent, and with these in those that will be next: their units work at a time.
fn read_on(
    engine: &dyn Engine,
    cursors: &mut [Cursor],
    piece: Piece,
    wanted: usize,
) -> Result<(), Refused> {
    if !cursors.iter().any(Cursor::is_spent) {
        return Ok(());
    }
    // What comes next is not behind as many heads as are wanted.
    let mut heads: Vec<&[u8]> =
        cursors.iter().filter_map(|cursor| cursor.ahead.front()).map(|(key, _)| &**key).collect();
    heads.sort_unstable();
    let last = heads.get(wanted.saturating_sub(1)).or(heads.last()).map(|&key| key.to_vec());
    let is_next = |cursor: &Cursor| match cursor.ahead.front() {
        Some((key, _)) => cursor.ahead.len() == 1 && !cursor.ended && Some(key) <= last.as_ref(),
        None => !cursor.ended,
    };
    let mut due: Vec<&mut Cursor> = cursors.iter_mut().filter(|cursor| is_next(cursor)).collect();
    let Some(own) = due.pop() else { return Ok(()) };
    // Keys alone are small, and are in memory soon.
    if !piece.values {
        due.into_iter().try_for_each(|cursor| cursor.read(engine, piece))?;
        return own.read(engine, piece);
    }
    thread::scope(|scope| {
        let threads = due.into_iter().filter_map(|cursor| {
            thread::Builder::new().spawn_scoped(scope, move || cursor.read(engine, piece)).ok()
        });
        let others: Vec<_> = threads.collect();
        let own = own.read(engine, piece);
        let read = others.into_iter().map(|other| other.join().expect("an engine does not panic"));
        read.fold(own, Result::and)
    })?;
    // Those for which there was no thread.
    let mut left = cursors.iter_mut().filter(|cursor| cursor.is_spent());
    left.try_for_each(|cursor| cursor.read(engine, piece))
}

/// The first pairs of a range in these slices.
pub fn page(
    engine: &dyn Engine,
    slices: impl Iterator<Item = u32>,
    range: &KeyRange,
    bounds: Bounds,
) -> Result<Page, Refused> {
    let new = |slice| Cursor { slice, range: range.clone(), ahead: VecDeque::new(), ended: false };
    let mut cursors: Vec<Cursor> = slices.map(new).collect();
    let parts = cursors.len().max(1);
    let count = bounds.count.div_ceil(parts).clamp(1, COUNT_AT_A_TIME);
    let piece = Piece { count, bytes: bounds.bytes / parts, values: bounds.values };
    let (mut page, mut taken) = (Page::default(), 0);
    loop {
        let is_full = page.pairs.len() == bounds.count || taken > bounds.bytes;
        if let Some((last, _)) = page.pairs.last()
            && is_full
            && cursors.iter().any(Cursor::is_spent)
        {
            // Nothing is read to see what comes next, or whether anything does: values may be large.
            page.next = Some(after(last));
            return Ok(page);
        }
        let mean = (taken / page.pairs.len().max(1)).max(1);
        let wanted =
            (bounds.count - page.pairs.len()).min(bounds.bytes.saturating_sub(taken) / mean);
        read_on(engine, &mut cursors, piece, wanted)?;
        let heads = cursors.iter_mut().filter(|cursor| !cursor.ahead.is_empty());
        let least = heads.min_by(|a, b| a.ahead[0].0.cmp(&b.ahead[0].0));
        let Some(pair) = least.and_then(|cursor| cursor.ahead.pop_front()) else { return Ok(page) };
        if is_full && !page.pairs.is_empty() {
            page.next = Some(pair.0);
            return Ok(page);
        }
        taken += pair.0.len() + pair.1.len();
        page.pairs.push(pair);
    }
}

#[cfg(test)]
mod tests {
    use super::super::engine::Change;
    use super::super::{Memory, key};
    use super::*;

    #[test]
    fn slices_come_as_one_order_in_pages_of_any_size() {
        let engine = Memory::new(5);
        let mut expected = Vec::new();
        for number in 0..300_u32 {
            let at = key::value(format!("{number:05}").as_bytes(), 5).unwrap();
            expected.push((at.key.clone(), vec![7; number as usize]));
            let put = Change::Put { slice: at.slice, key: at.key, value: vec![7; number as usize] };
            engine.write(&[&put], false).unwrap();
        }
        for (count, bytes) in [(1, 9), (7, 1 << 20), (1000, 1 << 20), (1000, 700), (256, 0)] {
            let (mut range, mut all) = (key::values(&[], None, None), Vec::new());
            loop {
                let bounds = Bounds { count, bytes, values: true };
                let page = page(&engine, 0..5, &range, bounds).unwrap();
                assert!(page.pairs.len() <= count);
                let sizes = page.pairs.iter().map(|(key, value)| key.len() + value.len());
                let last = page.pairs.last().map_or(0, |(key, value)| key.len() + value.len());
                assert!(sizes.sum::<usize>() <= bytes + last + last);
                all.extend(page.pairs);
                let Some(next) = page.next else { break };
                range.from = next;
            }
            assert_eq!(all, expected, "{count} {bytes}");
        }
        let bounds = Bounds { count: 3, bytes: 1 << 20, values: false };
        let page = page(&engine, 0..5, &key::values(b"0001", None, None), bounds).unwrap();
        assert!(
            page.pairs.iter().all(|(key, value)| key.starts_with(b"k0001") && value.is_empty())
        );
        // Where it is known without another read it is told as it is.
        assert_eq!(page.next, Some(b"k00013".to_vec()));
    }

    #[test]
    fn a_page_of_one_slice_reads_what_it_gives_and_nothing_more() {
        let engine = Memory::new(1);
        for number in 0..100_u32 {
            let key = key::value(format!("{number:05}").as_bytes(), 1).unwrap().key;
            engine.write(&[&Change::Put { slice: 0, key, value: vec![7; 1000] }], false).unwrap();
        }
        let range = key::values(&[], None, None);
        let bounds = Bounds { count: 16, bytes: 1 << 20, values: true };
        let first = page(&engine, 0..1, &range, bounds).unwrap();
        assert_eq!((first.pairs.len(), engine.scanned()), (16, 16));
        // By its bytes, too.
        let few = Bounds { count: 100, bytes: 5000, values: true };
        let pairs = page(&engine, 0..1, &range, few).unwrap().pairs.len();
        assert_eq!(engine.scanned(), 16 + pairs as u64);
    }
}

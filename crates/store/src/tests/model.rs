//! What a store must hold, told from what was asked of it alone: a model that keeps every state since the last sync.

use super::world::{Mishap, RAW_BYTES, Random, World};
use crate::late::Whose;
use crate::{Entry, Error, Opening, Store, Writer};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

/// What a name means.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Node {
    Folder,
    Table(Rc<Vec<u8>>),
    /// By its number in [`Model::smalls`].
    Small(usize),
}

type Names = BTreeMap<String, Node>;

#[derive(Clone, Default)]
struct Small {
    bytes: Vec<u8>,
    pushed: usize,
    synced: usize,
}

#[derive(Default)]
struct Model {
    /// The last one is now; the first one was synced. What failed may have happened, so it is one more.
    names: Vec<Names>,
    /// Tables that may be on their way, the oldest first: the path, what it is, and what was there before. They may be there
    /// or not, in any of the above.
    late: Vec<(String, Node, Option<Node>)>,
    smalls: Vec<Small>,
}

enum Open {
    Table(String, Writer, Vec<u8>),
    Small(usize, Writer),
}

pub struct Run {
    world: World,
    store: Option<Arc<Store>>,
    model: Model,
    open: Vec<Open>,
    random: Random,
    nonce: u64,
}

const TABLES: [&str; 4] = ["/db/1.sst", "/db/2.sst", "/db/3.sst", "/db/4.sst"];
const SMALLS: [&str; 5] =
    ["/db/1.log", "/db/2.log", "/db/MANIFEST", "/db/CURRENT", "/db/CURRENT.new"];

impl Run {
    pub fn new(seed: u64, volume_blocks: u64, puts_at_once: usize) -> Self {
        let world = World::new(seed, volume_blocks);
        world.lock().puts_at_once = puts_at_once;
        let names = Names::from([("/db".to_owned(), Node::Folder)]);
        let model = Model { names: vec![names], ..Model::default() };
        let random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let mut run = Self { world, store: None, model, open: Vec::new(), random, nonce: seed };
        assert!(run.open());
        let store = run.store.as_ref().unwrap();
        store.create_folder("/db").and_then(|()| store.sync()).unwrap();
        run
    }

    /// Fills the journal with this many changes that lead nowhere.
    pub fn wear(&mut self, pairs: u32) {
        let store = self.store.as_ref().unwrap();
        for pair in 0..pairs {
            store.create_folder("/w").and_then(|()| store.delete_folder("/w")).unwrap();
            if pair % 100 == 0 {
                store.sync().unwrap();
            }
        }
        store.sync().unwrap();
    }

    pub fn world(&self) -> &World {
        &self.world
    }

    /// Opens the store; false if the mishap came first.
    pub fn open(&mut self) -> bool {
        self.nonce += 1000;
        let (volume, blocks) = (Box::new(self.world.clone()), Box::new(self.world.clone()));
        match Store::open(volume, blocks, self.nonce, Opening { new: true, damaged: false }) {
            Ok((store, _)) => self.store = Some(store),
            Err(error) => assert!(error.to_string().contains("no power"), "{error}"),
        }
        self.store.is_some()
    }

    /// The process is gone with all that it had open, and with its threads.
    pub fn die(&mut self) {
        self.open.clear();
        if let Some(store) = self.store.take() {
            store.late.failed("/", Whose::All);
        }
    }

    /// What is on its way arrives, and is durable.
    pub fn sync(&mut self) -> Result<(), Error> {
        self.store.as_ref().unwrap().sync()?;
        self.model.late.clear();
        self.synced();
        Ok(())
    }

    /// Does something; `Err` is what the store said.
    pub fn step(&mut self) -> Result<(), Error> {
        let store = Arc::clone(self.store.as_ref().unwrap());
        match self.random.draw(16) {
            0 => self.change(
                |store| store.create_folder("/db/a/b"),
                |names| {
                    names.insert("/db/a".into(), Node::Folder);
                    names.insert("/db/a/b".into(), Node::Folder);
                },
            ),
            1 => self.sync(),
            2 => self.create_small(&store),
            3 | 4 => self.create_table(&store),
            5..=9 => self.append(),
            10 | 11 => self.end_one(),
            12 => self.rename(),
            13 => self.delete(),
            14 => self.reopen(&store),
            _ => store.erase().map(|_| self.synced()),
        }
    }

    fn now(&self) -> &Names {
        self.model.names.last().unwrap()
    }

    fn synced(&mut self) {
        let now = self.now().clone();
        self.model.names = vec![now];
        for small in &mut self.model.smalls {
            small.synced = small.synced.max(small.pushed);
        }
    }

    /// A change of names, which takes place in the model whether the store says so or not.
    fn change(
        &mut self,
        ask: impl FnOnce(&Store) -> Result<(), Error>,
        change: impl FnOnce(&mut Names),
    ) -> Result<(), Error> {
        let mut names = self.now().clone();
        change(&mut names);
        // Folders come one by one, so a state between is one too.
        if names.contains_key("/db/a") && !self.now().contains_key("/db/a") {
            let mut between = self.now().clone();
            between.insert("/db/a".into(), Node::Folder);
            self.model.names.push(between);
        }
        self.model.names.push(names);
        ask(self.store.as_ref().unwrap())
    }

    fn create_small(&mut self, store: &Arc<Store>) -> Result<(), Error> {
        let path = SMALLS[self.random.draw(SMALLS.len() as u64) as usize];
        let number = self.model.smalls.len();
        self.model.smalls.push(Small::default());
        let mut names = self.now().clone();
        names.insert(path.into(), Node::Small(number));
        self.model.names.push(names);
        let writer = store.writer(path, false)?;
        self.open.push(Open::Small(number, writer));
        Ok(())
    }

    fn create_table(&mut self, store: &Arc<Store>) -> Result<(), Error> {
        let path = TABLES[self.random.draw(TABLES.len() as u64) as usize];
        self.open.retain(|open| !matches!(open, Open::Table(other, ..) if other == path));
        let writer = store.writer(path, false)?;
        self.open.push(Open::Table(path.into(), writer, Vec::new()));
        Ok(())
    }

    fn reopen(&mut self, store: &Arc<Store>) -> Result<(), Error> {
        let path = SMALLS[self.random.draw(SMALLS.len() as u64) as usize];
        let Some(Node::Small(number)) = self.now().get(path).cloned() else { return Ok(()) };
        // Whoever writes it has lost it.
        self.open.retain(|open| !matches!(open, Open::Small(other, _) if *other == number));
        let writer = store.writer(path, true)?;
        let small = &mut self.model.smalls[number];
        small.pushed = small.bytes.len();
        self.open.push(Open::Small(number, writer));
        Ok(())
    }

    fn append(&mut self) -> Result<(), Error> {
        let Some(which) = (self.open.len() as u64).checked_sub(1) else { return Ok(()) };
        let which = self.random.draw(which + 1) as usize;
        let long = if self.random.draw(4) == 0 { 3 * RAW_BYTES } else { 600 };
        let count = self.random.draw(long) as usize;
        let fill = self.random.draw(256) as u8;
        let bytes: Vec<u8> = (0..count).map(|i| fill ^ (i as u8) ^ ((i >> 8) as u8)).collect();
        match &mut self.open[which] {
            Open::Table(_, writer, all) => {
                all.extend(&bytes);
                writer.append(&bytes)
            }
            Open::Small(number, writer) => {
                let there = self.model.names.last().unwrap().values();
                if !there.into_iter().any(|node| *node == Node::Small(*number)) {
                    assert!(matches!(
                        writer.append(&bytes),
                        Err(Error::NotFound(_) | Error::Io(_))
                    ));
                    self.open.remove(which);
                    return Ok(());
                }
                let small = &mut self.model.smalls[*number];
                small.bytes.extend(&bytes);
                writer.append(&bytes)?;
                if self.random.draw(2) == 0 {
                    writer.push()?;
                    small.pushed = small.bytes.len();
                }
                Ok(())
            }
        }
    }

    /// Syncs or closes one of the open files.
    fn end_one(&mut self) -> Result<(), Error> {
        let Some(which) = (self.open.len() as u64).checked_sub(1) else { return Ok(()) };
        let which = self.random.draw(which + 1) as usize;
        let sync = self.random.draw(2) == 0;
        let late = self.world.lock().puts_at_once > 1;
        let mut synced = sync;
        if let Open::Table(path, _, bytes) = &self.open[which] {
            let (mut names, table) = (self.now().clone(), Node::Table(Rc::new(bytes.clone())));
            let before = names.insert(path.clone(), table.clone());
            if late {
                self.model.late.push((path.clone(), table, before));
            }
            self.model.names.push(names);
            synced &= !late;
        }
        let ended = match &mut self.open[which] {
            Open::Table(_, writer, _) if sync => writer.sync(),
            Open::Table(_, writer, _) => writer.close(),
            Open::Small(number, writer) => {
                let gone = !self
                    .model
                    .names
                    .last()
                    .unwrap()
                    .values()
                    .any(|node| *node == Node::Small(*number));
                if gone {
                    self.open.remove(which);
                    return Ok(());
                }
                let ended = if sync { writer.sync() } else { writer.close() };
                if ended.is_ok() {
                    let small = &mut self.model.smalls[*number];
                    small.pushed = small.bytes.len();
                }
                ended
            }
        };
        ended?;
        if synced {
            self.synced();
        }
        if !sync {
            self.open.remove(which);
        }
        Ok(())
    }

    fn rename(&mut self) -> Result<(), Error> {
        let kind = if self.random.draw(2) == 0 { &TABLES[..] } else { &SMALLS[..] };
        let mut draw = || kind[self.random.draw(kind.len() as u64) as usize];
        let (from, to) = (draw(), draw());
        if !self.now().contains_key(from) || from == to {
            return Ok(());
        }
        // Whoever writes a table has lost it with its name.
        self.open
            .retain(|open| !matches!(open, Open::Table(path, ..) if path == from || path == to));
        self.change(
            |store| store.rename(from, to),
            |names| {
                let node = names.remove(from).unwrap();
                names.insert(to.into(), node);
            },
        )
    }

    fn delete(&mut self) -> Result<(), Error> {
        let kind = if self.random.draw(2) == 0 { &TABLES[..] } else { &SMALLS[..] };
        let path = kind[self.random.draw(kind.len() as u64) as usize];
        if !self.now().contains_key(path) {
            return Ok(());
        }
        self.open.retain(|open| !matches!(open, Open::Table(other, ..) if other == path));
        self.change(|store| store.delete(path), |names| drop(names.remove(path)))
    }

    /// The store that was opened again holds one of the states that it may hold; the model goes on from there.
    pub fn check(&mut self, mishap: Mishap, context: &str) {
        let store = Arc::clone(self.store.as_ref().unwrap());
        let found = walk(&store, "/");
        let states = self.model.names.iter().rev();
        let candidates = states.flat_map(|names| without_some(names, &self.model.late));
        let mut why = Vec::new();
        let state = candidates.into_iter().find(|names| {
            let same = self.same(&store, names, &found, mishap);
            why.extend(same.as_ref().err().cloned());
            same.is_ok()
        });
        let state = state.unwrap_or_else(|| panic!("{context}: {found:?} is none of {why:#?}"));
        self.model.late.clear();
        for (path, node) in &state {
            if let Node::Small(number) = node {
                let small = &mut self.model.smalls[*number];
                small.bytes = contents(&store, path);
                (small.pushed, small.synced) = (small.bytes.len(), small.bytes.len());
            }
        }
        self.model.names = vec![state];
        self.check_blocks(&store, context);
    }

    /// A store of which a block is an older copy of itself says so, or holds one of the states that it may hold; whether it
    /// said so.
    pub fn is_told_or_right(&self, world: &World, context: &str) -> bool {
        let (volume, blocks) = (Box::new(world.clone()), Box::new(world.clone()));
        let store = match Store::open(volume, blocks, 9, Opening::default()) {
            Ok((store, _)) => store,
            Err(Error::Damaged(_)) => return true,
            Err(error) => panic!("{context}: {error}"),
        };
        let found = walk(&store, "/");
        let same = |names: &Names| self.same(&store, names, &found, Mishap::Older);
        let why: Vec<_> = self.model.names.iter().rev().map(same).collect();
        assert!(why.iter().any(Result::is_ok), "{context}: {found:?} is none of {why:#?}");
        found.iter().any(|path| {
            store.find(path).unwrap().entry != Entry::Folder && read_all(&store, path).is_err()
        })
    }

    /// Nothing is on the units but what files have.
    fn check_blocks(&self, store: &Arc<Store>, context: &str) {
        store.settle(&mut store.catalog());
        store.erase().unwrap();
        let tables = self.now().iter().filter(|(_, node)| matches!(node, Node::Table(_)));
        let blocks: usize = tables
            .map(|(path, _)| match store.find(path).unwrap().entry {
                Entry::Table(table) => table.numbers.len(),
                other => panic!("{context}: {path} is {other:?}"),
            })
            .sum();
        assert_eq!(self.world.lock().raw.len(), blocks, "{context}: blocks that no file has");
    }

    /// A small file has what it must.
    fn has(&self, store: &Arc<Store>, path: &str, small: &Small, mishap: Mishap) -> bool {
        let bytes = match read_all(store, path) {
            Ok(bytes) => bytes,
            Err(Error::Damaged(_)) if mishap == Mishap::Older => return true,
            Err(error) => panic!("{path}: {error}"),
        };
        let is_lost = matches!(mishap, Mishap::Cut | Mishap::Older);
        let least = if is_lost { small.synced } else { small.pushed };
        bytes.len() >= least && small.bytes.starts_with(&bytes)
    }

    /// `Err` says what is not as `names` would have it.
    fn same(
        &self,
        store: &Arc<Store>,
        names: &Names,
        found: &[String],
        mishap: Mishap,
    ) -> Result<(), String> {
        if names.keys().ne(found.iter()) {
            return Err(format!("{:?}", names.keys()));
        }
        for (path, node) in names {
            let entry = store.find(path).unwrap().entry;
            let good = match (node, &entry) {
                (Node::Folder, Entry::Folder) => true,
                (Node::Table(bytes), Entry::Table(_)) => contents(store, path) == **bytes,
                (Node::Small(number), Entry::Small(_)) => {
                    self.has(store, path, &self.model.smalls[*number], mishap)
                }
                _ => false,
            };
            if !good {
                let told = match node {
                    Node::Small(number) => {
                        let small = &self.model.smalls[*number];
                        let (all, synced) = (small.bytes.len(), small.synced);
                        let there = read_all(store, path).unwrap_or_default();
                        let same =
                            there.iter().zip(&small.bytes).take_while(|(a, b)| a == b).count();
                        let pushed = small.pushed;
                        format!(
                            "{} bytes, {same} of them right; synced {synced}, pushed {pushed}, of {all}",
                            there.len()
                        )
                    }
                    Node::Table(bytes) => {
                        let there = contents(store, path);
                        let same = there.iter().zip(&**bytes).take_while(|(a, b)| a == b).count();
                        format!("{} bytes, {same} of them right, of {}", there.len(), bytes.len())
                    }
                    Node::Folder => "not a folder".into(),
                };
                return Err(format!("{path}: {entry:?}: {told}"));
            }
        }
        Ok(())
    }
}

/// All bytes of a file, read in odd pieces.
pub fn read_all(store: &Arc<Store>, path: &str) -> Result<Vec<u8>, Error> {
    let reader = store.reader(path)?;
    let (mut all, mut piece) = (Vec::new(), vec![0; 10_001]);
    loop {
        match reader.read(all.len() as u64, &mut piece)? {
            0 => return Ok(all),
            count => all.extend(&piece[..count]),
        }
    }
}

/// These names with each of these tables or with what was there before.
fn without_some(names: &Names, late: &[(String, Node, Option<Node>)]) -> Vec<Names> {
    let mut all = vec![names.clone()];
    for (path, table, before) in late.iter().rev() {
        let is_same = |node: &Node| match (node, table) {
            (Node::Table(one), Node::Table(other)) => Rc::ptr_eq(one, other),
            _ => false,
        };
        for at in 0..all.len() {
            if all[at].get(path).is_some_and(is_same) {
                let mut names = all[at].clone();
                match before {
                    Some(before) => drop(names.insert(path.clone(), before.clone())),
                    None => drop(names.remove(path)),
                }
                all.push(names);
            }
        }
    }
    all
}

fn walk(store: &Store, folder: &str) -> Vec<String> {
    let mut all = Vec::new();
    for name in store.children(folder).unwrap() {
        let path = format!("{}/{name}", folder.trim_end_matches('/'));
        if store.find(&path).unwrap().entry == Entry::Folder {
            all.extend(walk(store, &path));
        }
        all.push(path);
    }
    all.sort();
    all
}

/// Likewise, of a file that can be read.
pub fn contents(store: &Arc<Store>, path: &str) -> Vec<u8> {
    read_all(store, path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

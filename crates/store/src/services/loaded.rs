//! RocksDB as the engine: a library that `./x rocksdb` builds (crates/store/rocksdb/engine.cc) and that is loaded when a store is
//! served, so that nothing else of Weir needs RocksDB to be built or run.

use super::Refused;
use super::engine::{Change, Each, Engine, Table};
use super::key::KeyRange;
use crate::remote::Addresses;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr;
use std::time::Duration;

/// As in weir_engine.h.
const VERSION: u32 = 6;
const NOT_IN_MEMORY: c_int = 100;
/// Codes of weir_store.h.
const NOT_FOUND: c_int = 1;
const FULL: c_int = 2;
const OWNED: c_int = 3;
const DAMAGED: c_int = 4;
const INVALID: c_int = 6;
const UNREACHABLE: c_int = 7;

#[repr(C)]
struct Handle {
    _opaque: [u8; 0],
}

#[repr(C)]
struct Place {
    units: *const c_char,
    control: *const c_char,
    token: *const c_char,
    volume: *const c_char,
    cache_bytes: u64,
    read_micros: u64,
    sst_blocks: u32,
    how: c_int,
}

#[repr(C)]
struct File {
    slice: u32,
    level: u32,
    bytes: u64,
    name: *const c_char,
    damage: *const c_char,
    smallest: *const u8,
    smallest_bytes: usize,
    largest: *const u8,
    largest_bytes: usize,
}

type Reason = *mut *mut c_char;
type Take = extern "C" fn(*mut c_void, *const u8, usize);
type EachPair = extern "C" fn(*mut c_void, *const u8, usize, *const u8, usize) -> c_int;
type EachFile = extern "C" fn(*mut c_void, *const File);
type Told = extern "C" fn(*mut c_void, *const c_char);

/// The functions of the library, which stays loaded until the process ends.
#[derive(Clone, Copy)]
struct Functions {
    free: unsafe extern "C" fn(*mut c_char),
    open: unsafe extern "C" fn(*const Place, Reason) -> *mut Handle,
    close: unsafe extern "C" fn(*mut Handle),
    repair: unsafe extern "C" fn(*const Place, Told, *mut c_void, Reason) -> c_int,
    slices: unsafe extern "C" fn(*const Handle) -> u32,
    block_bytes: unsafe extern "C" fn(*const Handle) -> u64,
    add_slice: unsafe extern "C" fn(*mut Handle, Reason) -> c_int,
    write: unsafe extern "C" fn(*mut Handle, *const u8, usize, c_int, Reason) -> c_int,
    takes_writes: unsafe extern "C" fn(*mut Handle, c_int, Reason) -> c_int,
    get: unsafe extern "C" fn(
        *mut Handle,
        u32,
        *const u8,
        usize,
        c_int,
        Take,
        *mut c_void,
        Reason,
    ) -> c_int,
    scan: unsafe extern "C" fn(
        *mut Handle,
        u32,
        *const u8,
        usize,
        *const u8,
        usize,
        EachPair,
        *mut c_void,
        Reason,
    ) -> c_int,
    property: unsafe extern "C" fn(*mut Handle, u32, *const c_char) -> u64,
    count: unsafe extern "C" fn(*mut Handle, *const c_char) -> u64,
    files: unsafe extern "C" fn(*mut Handle, EachFile, *mut c_void),
    verify: unsafe extern "C" fn(*mut Handle, *const c_char, Reason) -> c_int,
    compact: unsafe extern "C" fn(*mut Handle, u32, Reason) -> c_int,
}

/// # Safety
/// It is a function of this type.
unsafe fn function<F: Copy>(found: *mut c_void) -> F {
    assert_eq!(size_of::<F>(), size_of::<*mut c_void>(), "a pointer to a function");
    // SAFETY: by contract, and of one size.
    unsafe { std::mem::transmute_copy::<*mut c_void, F>(&found) }
}

/// What the dynamic linker said last.
fn linker_error() -> String {
    // SAFETY: the text is valid until the next call of the linker on this thread.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() {
            return "it cannot be loaded".into();
        }
        CStr::from_ptr(text).to_string_lossy().into_owned()
    }
}

impl Functions {
    fn load(path: &Path) -> Result<Self, Refused> {
        let shown = path.display();
        let text = c_text(&path.to_string_lossy())?;
        // SAFETY: a text that ends with a zero. What the library does when it is loaded is C++'s own.
        let library = unsafe { libc::dlopen(text.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            let error = linker_error();
            return Err(Refused::Usage(format!(
                "{shown}: {error}: `./x rocksdb` builds the engine for the RocksDB of this machine"
            )));
        }
        let find = |name: &CStr| -> Result<*mut c_void, Refused> {
            // SAFETY: the library is open.
            let found = unsafe { libc::dlsym(library, name.as_ptr()) };
            let old =
                || format!("{shown}: is not the engine of this weir: `./x rocksdb` builds it anew");
            (!found.is_null()).then_some(found).ok_or_else(|| Refused::Usage(old()))
        };
        // SAFETY: the version says that the functions are those of weir_engine.h as they are declared above.
        unsafe {
            let version: unsafe extern "C" fn() -> u32 = function(find(c"weir_engine_version")?);
            let found = version();
            if found != VERSION {
                return Err(Refused::Usage(format!(
                    "{shown}: is an engine of version {found}, and this weir takes {VERSION}: `./x rocksdb` \
                     builds it anew"
                )));
            }
            Ok(Self {
                free: function(find(c"weir_engine_free")?),
                open: function(find(c"weir_engine_open")?),
                close: function(find(c"weir_engine_close")?),
                repair: function(find(c"weir_engine_repair")?),
                slices: function(find(c"weir_engine_slices")?),
                block_bytes: function(find(c"weir_engine_block_bytes")?),
                add_slice: function(find(c"weir_engine_add_slice")?),
                write: function(find(c"weir_engine_write")?),
                takes_writes: function(find(c"weir_engine_takes_writes")?),
                get: function(find(c"weir_engine_get")?),
                scan: function(find(c"weir_engine_scan")?),
                property: function(find(c"weir_engine_property")?),
                count: function(find(c"weir_engine_count")?),
                files: function(find(c"weir_engine_files")?),
                verify: function(find(c"weir_engine_verify")?),
                compact: function(find(c"weir_engine_compact")?),
            })
        }
    }

    /// The engine's reason, which is given back.
    fn reason(&self, reason: *mut c_char) -> String {
        if reason.is_null() {
            return "the engine gives no reason".into();
        }
        // SAFETY: the engine made it, and nobody has it after this.
        unsafe {
            let text = CStr::from_ptr(reason).to_string_lossy().into_owned();
            (self.free)(reason);
            text
        }
    }

    fn told(&self, code: c_int, reason: *mut c_char) -> Result<(), Refused> {
        if code == 0 {
            return Ok(());
        }
        let text = self.reason(reason);
        Err(match code {
            FULL => Refused::Full(text),
            DAMAGED => Refused::Damaged(text),
            INVALID => Refused::Usage(text),
            UNREACHABLE => Refused::Unready(text),
            OWNED => Refused::Failed(format!("{text}: this process writes nothing more")),
            _ => Refused::Failed(text),
        })
    }
}

fn c_text(text: &str) -> Result<CString, Refused> {
    CString::new(text).map_err(|_| Refused::Usage(format!("{text:?}: holds a zero byte")))
}

/// What a store is opened for.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Mode {
    /// To be used. One is made on an empty volume if nothing is on the units.
    #[default]
    Used,
    /// The same, and one may be made beside raw blocks of others.
    New,
    /// To read what is left of one that misses raw blocks, and is sure to be what was written last.
    Left,
    /// The same, and also what may be older than that.
    LeftOlder,
}

impl Mode {
    /// Nothing is changed.
    pub fn is_only_read(self) -> bool {
        matches!(self, Self::Left | Self::LeftOlder)
    }

    /// As weir_store.h and weir_engine.h have it.
    fn how(self) -> c_int {
        match self {
            Self::Used => 0,
            Self::New => 1,
            Self::Left => 2,
            Self::LeftOlder => 2 + 4,
        }
    }
}

/// How a store is opened.
#[derive(Clone, Copy, Debug)]
pub struct Opened {
    /// What for.
    pub mode: Mode,
    /// Bytes of SSTs that are kept in memory.
    pub cache_bytes: u64,
    /// How long units may take to answer a read that somebody waits for.
    pub read_time: Duration,
    /// Raw blocks of an SST that compaction makes, at most: the more, the fuller they are, and the more of them are kept free.
    pub sst_blocks: u32,
}

/// RocksDB on a store of this process.
pub struct Loaded {
    functions: Functions,
    handle: *mut Handle,
    slices: u32,
    sst_blocks: u32,
    mode: Mode,
}

// SAFETY: RocksDB's functions may be called by any thread, and by many at a time; slices are only added before it is shared.
unsafe impl Send for Loaded {}
// SAFETY: as above.
unsafe impl Sync for Loaded {}

/// Has `ask` called with a place as the engine reads it, whose texts are there during the call.
fn at<T>(
    addresses: &Addresses,
    how: Opened,
    ask: impl FnOnce(&Place) -> Result<T, Refused>,
) -> Result<T, Refused> {
    let units = c_text(&addresses.units)?;
    let control = c_text(&addresses.control)?;
    let token = addresses.token.as_deref().map(c_text).transpose()?;
    let volume = c_text(&addresses.volume)?;
    ask(&Place {
        units: units.as_ptr(),
        control: control.as_ptr(),
        token: token.as_ref().map_or(ptr::null(), |token| token.as_ptr()),
        volume: volume.as_ptr(),
        cache_bytes: how.cache_bytes,
        read_micros: u64::try_from(how.read_time.as_micros()).unwrap_or(u64::MAX),
        sst_blocks: how.sst_blocks,
        how: how.mode.how(),
    })
}

impl Loaded {
    /// Opens the store with the library's engine; one that is new has no slices yet.
    pub fn open(library: &Path, addresses: &Addresses, how: Opened) -> Result<Self, Refused> {
        let functions = Functions::load(library)?;
        at(addresses, how, |place| Self::open_at(functions, place, how))
    }

    fn open_at(functions: Functions, place: &Place, how: Opened) -> Result<Self, Refused> {
        let mut reason = ptr::null_mut();
        // SAFETY: all texts outlive the call.
        let handle = unsafe { (functions.open)(place, &raw mut reason) };
        if handle.is_null() {
            return Err(Refused::Failed(functions.reason(reason)));
        }
        // SAFETY: it was opened.
        let slices = unsafe { (functions.slices)(handle) };
        Ok(Self { functions, handle, slices, sst_blocks: how.sst_blocks, mode: how.mode })
    }

    /// Makes small files of the engine anew that are not what was written, as far as other files have what they said; what was
    /// done. Nobody may have the store.
    pub fn repair(
        library: &Path,
        addresses: &Addresses,
        how: Opened,
    ) -> Result<Vec<String>, Refused> {
        let functions = Functions::load(library)?;
        at(addresses, how, |place| {
            let (mut told, mut reason) = (Vec::<String>::new(), ptr::null_mut());
            let context = (&raw mut told).cast();
            // SAFETY: all texts, and the list, outlive the call.
            let code = unsafe { (functions.repair)(place, each_text, context, &raw mut reason) };
            functions.told(code, reason).map(|()| told)
        })
    }

    /// Only the first of its slices are the store's.
    pub fn shrink(&mut self, slices: u32) {
        self.slices = self.slices.min(slices);
    }

    /// Adds slices until there are so many.
    pub fn grow(&mut self, slices: u32) -> Result<(), Refused> {
        while self.slices < slices {
            let mut reason = ptr::null_mut();
            // SAFETY: nobody else has the engine yet.
            let code = unsafe { (self.functions.add_slice)(self.handle, &raw mut reason) };
            self.functions.told(code, reason)?;
            self.slices += 1;
        }
        Ok(())
    }
}

impl Loaded {
    /// A code, the value if there is one, and the engine's reason.
    fn find(
        &self,
        (slice, key): (u32, &[u8]),
        only_memory: bool,
    ) -> (c_int, Option<Vec<u8>>, *mut c_char) {
        let (mut value, mut reason) = (None::<Vec<u8>>, ptr::null_mut());
        let context = (&raw mut value).cast();
        // SAFETY: key and value are there during the call.
        let code = unsafe {
            (self.functions.get)(
                self.handle,
                slice,
                key.as_ptr(),
                key.len(),
                only_memory.into(),
                take_value,
                context,
                &raw mut reason,
            )
        };
        (code, value, reason)
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // SAFETY: nobody uses it any more.
        unsafe { (self.functions.close)(self.handle) };
    }
}

/// # Safety
/// There are so many bytes, and they stay as long as the result is used.
unsafe fn slice<'a>(bytes: *const u8, count: usize) -> &'a [u8] {
    if count == 0 {
        return &[];
    }
    // SAFETY: by contract.
    unsafe { std::slice::from_raw_parts(bytes, count) }
}

extern "C" fn take_value(context: *mut c_void, value: *const u8, bytes: usize) {
    // SAFETY: what `get` gave, and the engine's value during this call.
    unsafe { *context.cast::<Option<Vec<u8>>>() = Some(slice(value, bytes).to_vec()) };
}

extern "C" fn each_pair(
    context: *mut c_void,
    key: *const u8,
    key_bytes: usize,
    value: *const u8,
    value_bytes: usize,
) -> c_int {
    // SAFETY: what `scan` gave, and the engine's bytes during this call.
    let (each, key, value) = unsafe {
        (&mut *context.cast::<&mut Each<'_>>(), slice(key, key_bytes), slice(value, value_bytes))
    };
    c_int::from(each(key, value))
}

extern "C" fn each_file(context: *mut c_void, file: *const File) {
    // SAFETY: what `tables` gave, and the engine's file during this call.
    let (tables, file) = unsafe { (&mut *context.cast::<Vec<Table>>(), &*file) };
    // SAFETY: a text that ends with a zero, and bytes that are there.
    let (name, smallest, largest) = unsafe {
        (
            CStr::from_ptr(file.name).to_string_lossy().into_owned(),
            slice(file.smallest, file.smallest_bytes).to_vec(),
            slice(file.largest, file.largest_bytes).to_vec(),
        )
    };
    let damage = (!file.damage.is_null()).then(|| {
        // SAFETY: a text that ends with a zero.
        unsafe { CStr::from_ptr(file.damage) }.to_string_lossy().into_owned()
    });
    let (slice, level, bytes) = (file.slice, file.level, file.bytes);
    tables.push(Table { slice, level, bytes, name, damage, smallest, largest });
}

extern "C" fn each_text(context: *mut c_void, text: *const c_char) {
    // SAFETY: what `repair` gave, and a text of the engine that ends with a zero.
    unsafe {
        let text = CStr::from_ptr(text).to_string_lossy().into_owned();
        (*context.cast::<Vec<String>>()).push(text);
    }
}

impl Engine for Loaded {
    fn slices(&self) -> u32 {
        self.slices
    }

    fn block_bytes(&self) -> u64 {
        // SAFETY: it is open.
        unsafe { (self.functions.block_bytes)(self.handle) }
    }

    fn sst_blocks(&self) -> u32 {
        self.sst_blocks
    }

    fn write(&self, changes: &[&Change], durable: bool) -> Result<(), Refused> {
        let mut batch = Vec::with_capacity(changes.iter().map(|change| change.bytes()).sum());
        for change in changes {
            change.encode(&mut batch);
        }
        let mut reason = ptr::null_mut();
        let (bytes, count) = (batch.as_ptr(), batch.len());
        // SAFETY: the batch is there during the call.
        let code = unsafe {
            (self.functions.write)(self.handle, bytes, count, durable.into(), &raw mut reason)
        };
        self.functions.told(code, reason)
    }

    fn takes_writes(&self, go_on: bool) -> Result<(), Refused> {
        let mut reason = ptr::null_mut();
        // SAFETY: it is open.
        let code =
            unsafe { (self.functions.takes_writes)(self.handle, go_on.into(), &raw mut reason) };
        self.functions.told(code, reason)
    }

    fn get(&self, slice: u32, key: &[u8]) -> Result<Option<Vec<u8>>, Refused> {
        let (code, value, reason) = self.find((slice, key), false);
        match code {
            NOT_FOUND if reason.is_null() => Ok(None),
            code => self.functions.told(code, reason).map(|()| value),
        }
    }

    fn get_in_memory(&self, slice: u32, key: &[u8]) -> Result<Option<Option<Vec<u8>>>, Refused> {
        let (code, value, reason) = self.find((slice, key), true);
        match code {
            NOT_IN_MEMORY => Ok(None),
            NOT_FOUND if reason.is_null() => Ok(Some(None)),
            code => self.functions.told(code, reason).map(|()| Some(value)),
        }
    }

    fn is_only_read(&self) -> bool {
        self.mode.is_only_read()
    }

    fn scan(&self, slice: u32, range: &KeyRange, each: &mut Each<'_>) -> Result<(), Refused> {
        let mut each: &mut Each<'_> = each;
        let mut reason = ptr::null_mut();
        // SAFETY: the range and `each` are there during the call.
        let code = unsafe {
            (self.functions.scan)(
                self.handle,
                slice,
                range.from.as_ptr(),
                range.from.len(),
                range.to.as_ptr(),
                range.to.len(),
                each_pair,
                (&raw mut each).cast(),
                &raw mut reason,
            )
        };
        self.functions.told(code, reason)
    }

    fn property(&self, slice: u32, name: &str) -> u64 {
        let Ok(name) = c_text(name) else { return 0 };
        // SAFETY: the name is there during the call.
        unsafe { (self.functions.property)(self.handle, slice, name.as_ptr()) }
    }

    fn count(&self, name: &str) -> u64 {
        let Ok(name) = c_text(name) else { return 0 };
        // SAFETY: the name is there during the call.
        unsafe { (self.functions.count)(self.handle, name.as_ptr()) }
    }

    fn tables(&self) -> Vec<Table> {
        let mut tables = Vec::<Table>::new();
        // SAFETY: the list is there during the call.
        unsafe { (self.functions.files)(self.handle, each_file, (&raw mut tables).cast()) };
        tables
    }

    fn verify(&self, table: &str) -> Result<(), Refused> {
        let name = c_text(table)?;
        let mut reason = ptr::null_mut();
        // SAFETY: the name is there during the call.
        let code = unsafe { (self.functions.verify)(self.handle, name.as_ptr(), &raw mut reason) };
        self.functions.told(code, reason)
    }

    fn compact(&self, slice: u32) -> Result<(), Refused> {
        let mut reason = ptr::null_mut();
        // SAFETY: it is open.
        let code = unsafe { (self.functions.compact)(self.handle, slice, &raw mut reason) };
        self.functions.told(code, reason)
    }
}

//! The store for C: `crates/store/rocksdb/weir_store.h` has the same in C, and says what each function is for.
//!
//! Every function that can fail returns a code, and leaves the reason for this thread's [`weir_store_error`].

use crate::layout::Layout;
use crate::remote::{ASKING_MAX, Addresses, Extents, KeyLock, Lock, RemoteBlocks, RemoteVolume};
use crate::{Error, Opening, RawBlocks, Reader, Store, Volume, Wanted, Writer};
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::io::Read;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

const NOT_FOUND: c_int = 1;
const FULL: c_int = 2;
const OWNED: c_int = 3;
const DAMAGED: c_int = 4;
const IO: c_int = 5;
const INVALID: c_int = 6;
const UNREACHABLE: c_int = 7;

const NEW: c_int = 1;
const READ_LEFT: c_int = 2;

thread_local! {
    static REASON: RefCell<CString> = RefCell::default();
}

/// A store that this process owns.
pub struct Handle {
    store: Arc<Store>,
    _lock: Option<Lock>,
    _key: KeyLock,
}

/// What is at a path.
#[repr(C)]
pub struct Found {
    /// 1 for a folder, 0 for a file.
    folder: c_int,
    size: u64,
    modified: u64,
}

fn code(error: &Error) -> c_int {
    match error {
        Error::NotFound(_) => NOT_FOUND,
        Error::Full(_) | Error::UnitFull(_) => FULL,
        // Nothing that this process does will help either.
        Error::Owned(_) | Error::Foreign(_) => OWNED,
        Error::Damaged(_) => DAMAGED,
        Error::Io(_) | Error::Taken(_) => IO,
        Error::Unreachable(_) => UNREACHABLE,
        Error::Unfit(_) | Error::Usage(_) => INVALID,
    }
}

fn told<T>(result: Result<T, Error>) -> Result<T, c_int> {
    result.map_err(|error| {
        let text = error.to_string().replace('\0', "?");
        REASON.set(CString::new(text).unwrap_or_default());
        code(&error)
    })
}

fn answer(result: Result<(), Error>) -> c_int {
    told(result).err().unwrap_or(0)
}

/// # Safety
/// `text` is null or a string that ends with a zero.
unsafe fn text<'a>(text: *const c_char) -> Result<&'a str, Error> {
    if text.is_null() {
        return Err(Error::Usage("a name is missing".into()));
    }
    // SAFETY: not null, and by contract a string.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Error::Usage(format!("{text:?}: a name in the store is UTF-8")))
}

/// # Safety
/// `bytes` holds `count` bytes, unless `count` is 0.
unsafe fn bytes_of<'a>(bytes: *const u8, count: usize) -> &'a [u8] {
    if count == 0 {
        return &[];
    }
    // SAFETY: by contract.
    unsafe { slice::from_raw_parts(bytes, count) }
}

/// The reason of what failed last on this thread; good until the next failure on it.
#[unsafe(no_mangle)]
pub extern "C" fn weir_store_error() -> *const c_char {
    REASON.with_borrow(|reason| reason.as_ptr())
}

fn open(addresses: &Addresses, how: Opening) -> Result<Handle, Error> {
    let lock = Lock::take(&addresses.volume)?;
    let blocks = blocks(addresses)?;
    let mut volume = RemoteVolume::open(&addresses.volume)?;
    let take = |key| KeyLock::take(key, &addresses.volume);
    let known = Layout::key_of(&mut volume)?.map(take).transpose()?;
    let (store, eraser) = Store::open(Box::new(volume), blocks, drawn()?, how)?;
    // One that was made just now.
    let key = known.map_or_else(|| take(store.key()), Ok)?;
    // What is not erased now is when the store is opened again.
    let erase = move || eraser.run(|error| eprintln!("weir: blocks to erase: {error}"));
    let thread = std::thread::Builder::new().name("eraser".into()).spawn(erase);
    thread.map_err(|error| Error::Io(format!("no thread: {error}")))?;
    Ok(Handle { store, _lock: lock, _key: key })
}

/// The units, or the extents of a volume in their place.
fn blocks(addresses: &Addresses) -> Result<Box<dyn RawBlocks>, Error> {
    if !addresses.control.is_empty() {
        return Ok(Box::new(RemoteBlocks::open(addresses)?));
    }
    let uri = addresses.units.clone();
    let dial = move || Ok(Box::new(RemoteVolume::open(&uri)?) as Box<dyn Volume>);
    Ok(Box::new(Extents::open(Box::new(dial))?))
}

/// A number that nobody else draws.
fn drawn() -> Result<u64, Error> {
    let mut bytes = [0; 8];
    let source = std::fs::File::open("/dev/urandom");
    source
        .and_then(|mut source| source.read_exact(&mut bytes))
        .map_err(|error| Error::Io(format!("/dev/urandom: {error}")))?;
    Ok(u64::from_le_bytes(bytes))
}

/// Opens the store; null if that fails.
///
/// # Safety
/// The texts end with a zero; `token` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_store_open(
    units: *const c_char,
    control: *const c_char,
    token: *const c_char,
    volume: *const c_char,
    how: c_int,
) -> *mut Handle {
    // SAFETY: by contract.
    let addresses = unsafe {
        let token = (!token.is_null()).then(|| text(token)).transpose();
        let texts = text(units).and_then(|units| Ok((units, text(control)?, text(volume)?)));
        texts.and_then(|(units, control, volume)| {
            Ok(Addresses {
                units: units.into(),
                control: control.into(),
                token: token?.map(Into::into),
                volume: volume.into(),
            })
        })
    };
    let how = Opening { new: how & NEW != 0, damaged: how & READ_LEFT != 0 };
    let opened = addresses.and_then(|addresses| open(&addresses, how));
    told(opened).map_or(std::ptr::null_mut(), |handle| Box::into_raw(Box::new(handle)))
}

/// Closes the store.
///
/// # Safety
/// It was opened, and nothing of it is in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_store_close(store: *mut Handle) {
    if !store.is_null() {
        // SAFETY: made by `weir_store_open`.
        let handle = unsafe { Box::from_raw(store) };
        // Names that were changed last are as safe as if they had been synced, and nothing is on its way when another
        // process may have the store.
        handle.store.sync().ok();
    }
}

/// Calls `each` with every file of which raw blocks were missing when the store was opened, and with what is known of it.
///
/// # Safety
/// `each` may be called with `context`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_store_missing(
    store: &Handle,
    each: extern "C" fn(*mut std::ffi::c_void, *const c_char, *const c_char),
    context: *mut std::ffi::c_void,
) {
    for missing in store.store.missing() {
        let why = format!("raw block {:032x} is not on the units", missing.id);
        let (Ok(path), Ok(why)) = (CString::new(missing.path), CString::new(why)) else { continue };
        each(context, path.as_ptr(), why.as_ptr());
    }
}

/// What is at a path.
///
/// # Safety
/// All are of the right kind; `into` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_store_find(
    store: &Handle,
    path: *const c_char,
    into: *mut Found,
) -> c_int {
    // SAFETY: by contract.
    let found = unsafe { text(path) }.and_then(|path| store.store.look(path));
    answer(found.map(|found| {
        if !into.is_null() {
            let folder = c_int::from(found.folder);
            let found = Found { folder, size: found.size, modified: found.modified };
            // SAFETY: by contract.
            unsafe { into.write(found) };
        }
    }))
}

/// Calls `each` with every name in a folder.
///
/// # Safety
/// The path is a string; `each` may be called with `context`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_store_children(
    store: &Handle,
    path: *const c_char,
    each: extern "C" fn(*mut std::ffi::c_void, *const c_char),
    context: *mut std::ffi::c_void,
) -> c_int {
    // SAFETY: by contract.
    let names = unsafe { text(path) }.and_then(|path| store.store.children(path));
    answer(names.map(|names| {
        for name in names.into_iter().filter_map(|name| CString::new(name).ok()) {
            each(context, name.as_ptr());
        }
    }))
}

/// Makes a folder.
///
/// # Safety
/// The path is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_store_create_folder(store: &Handle, path: *const c_char) -> c_int {
    // SAFETY: by contract.
    answer(unsafe { text(path) }.and_then(|path| store.store.create_folder(path)))
}

/// Removes an empty folder.
///
/// # Safety
/// The path is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_store_delete_folder(store: &Handle, path: *const c_char) -> c_int {
    // SAFETY: by contract.
    answer(unsafe { text(path) }.and_then(|path| store.store.delete_folder(path)))
}

/// Gives a file or folder another name.
///
/// # Safety
/// The paths are strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_store_rename(
    store: &Handle,
    from: *const c_char,
    to: *const c_char,
) -> c_int {
    // SAFETY: by contract.
    let paths = unsafe { text(from).and_then(|from| Ok((from, text(to)?))) };
    answer(paths.and_then(|(from, to)| store.store.rename(from, to)))
}

/// Removes a file.
///
/// # Safety
/// The path is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_store_delete(store: &Handle, path: *const c_char) -> c_int {
    // SAFETY: by contract.
    answer(unsafe { text(path) }.and_then(|path| store.store.delete(path)))
}

/// Shortens a small file.
///
/// # Safety
/// The path is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_store_truncate(
    store: &Handle,
    path: *const c_char,
    size: u64,
) -> c_int {
    // SAFETY: by contract.
    answer(unsafe { text(path) }.and_then(|path| store.store.truncate(path, size)))
}

/// Makes every change of names durable, and waits for the tables of a folder that are on their way.
///
/// # Safety
/// The folder is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_store_sync(store: &Handle, folder: *const c_char) -> c_int {
    // SAFETY: by contract.
    answer(unsafe { text(folder) }.and_then(|folder| store.store.sync_folder(folder)))
}

/// Makes every change of names durable, and waits for no table.
#[unsafe(no_mangle)]
pub extern "C" fn weir_store_sync_names(store: &Handle) -> c_int {
    answer(store.store.sync_names())
}

/// Bytes that small files may still take.
#[unsafe(no_mangle)]
pub extern "C" fn weir_store_free_small_bytes(store: &Handle) -> u64 {
    store.store.free_small_bytes()
}

/// What the store has done since it was opened, and how many units and puts at a time there are; 0 for what it does not know.
///
/// # Safety
/// The name is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_store_count(store: &Handle, name: *const c_char) -> u64 {
    let counts = store.store.counts();
    // SAFETY: by contract.
    match unsafe { text(name) } {
        Ok("raw_blocks_put") => counts.raw_blocks_put,
        Ok("table_bytes_put") => counts.table_bytes_put,
        Ok("raw_blocks_erased") => counts.raw_blocks_erased,
        Ok("reads") => counts.reads,
        Ok("read_bytes") => counts.read_bytes,
        Ok("units") => store.store.units().into(),
        Ok("puts_max") => ASKING_MAX as u64,
        Ok("newer_raw_blocks") => store.store.newer(),
        _ => 0,
    }
}

/// Bytes of a raw block.
#[unsafe(no_mangle)]
pub extern "C" fn weir_store_block_bytes(store: &Handle) -> u64 {
    store.store.block_bytes()
}

/// Opens a file for writing; null if that fails.
///
/// # Safety
/// The path is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_store_writer(
    store: &Handle,
    path: *const c_char,
    go_on: c_int,
) -> *mut Writer {
    // SAFETY: by contract.
    let writer = unsafe { text(path) }.and_then(|path| store.store.writer(path, go_on != 0));
    told(writer).map_or(std::ptr::null_mut(), |writer| Box::into_raw(Box::new(writer)))
}

/// Appends.
///
/// # Safety
/// There are so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_writer_append(
    writer: &mut Writer,
    bytes: *const u8,
    count: usize,
) -> c_int {
    // SAFETY: by contract.
    answer(writer.append(unsafe { bytes_of(bytes, count) }))
}

/// What was appended outlives this process.
#[unsafe(no_mangle)]
pub extern "C" fn weir_writer_push(writer: &mut Writer) -> c_int {
    answer(writer.push())
}

/// What was appended is durable.
#[unsafe(no_mangle)]
pub extern "C" fn weir_writer_sync(writer: &mut Writer) -> c_int {
    answer(writer.sync())
}

/// Bytes so far.
#[unsafe(no_mangle)]
pub extern "C" fn weir_writer_size(writer: &Writer) -> u64 {
    writer.size()
}

/// Ends the writing; what is left is to free it.
#[unsafe(no_mangle)]
pub extern "C" fn weir_writer_close(writer: &mut Writer) -> c_int {
    answer(writer.close())
}

/// Gives back the memory of a writer.
///
/// # Safety
/// It was opened, and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_writer_free(writer: *mut Writer) {
    if !writer.is_null() {
        // SAFETY: made by `weir_store_writer`.
        drop(unsafe { Box::from_raw(writer) });
    }
}

/// Opens a file to read it; null if that fails.
///
/// # Safety
/// The path is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_store_reader(store: &Handle, path: *const c_char) -> *mut Reader {
    // SAFETY: by contract.
    let reader = unsafe { text(path) }.and_then(|path| store.store.reader(path));
    told(reader).map_or(std::ptr::null_mut(), |reader| Box::into_raw(Box::new(reader)))
}

/// The time that a reader gives the units; 0 is no bound but the store's own.
fn patience(micros: u64) -> Option<Duration> {
    (micros > 0).then(|| Duration::from_micros(micros))
}

/// Reads `count` bytes at `offset`; less at the end of the file. `done` tells how many. Units may take `micros` to answer.
///
/// # Safety
/// There is room for so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_reader_read(
    reader: &Reader,
    offset: u64,
    into: *mut u8,
    count: usize,
    micros: u64,
    done: &mut usize,
) -> c_int {
    *done = 0;
    if count == 0 {
        return 0;
    }
    // SAFETY: by contract.
    let into = unsafe { slice::from_raw_parts_mut(into, count) };
    let mut wanted = [Wanted::new(offset, into)];
    reader.read_many(&mut wanted, patience(micros));
    let [Wanted { read, .. }] = wanted;
    answer(read.map(|count| *done = count))
}

/// A part of a file that is wanted.
#[repr(C)]
pub struct ReadRequest {
    offset: u64,
    into: *mut u8,
    count: usize,
    /// How much of it there was.
    done: usize,
    code: c_int,
}

/// Reads many parts at a time; units may take `micros` to answer.
///
/// # Safety
/// There are so many, and in each room for as many bytes as it says, which no other shares.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_reader_read_many(
    reader: &Reader,
    reads: *mut ReadRequest,
    count: usize,
    micros: u64,
) {
    if count == 0 {
        return;
    }
    // SAFETY: by contract.
    let reads = unsafe { slice::from_raw_parts_mut(reads, count) };
    let wanted = |read: &ReadRequest| {
        let into: &mut [u8] = match read.count {
            0 => &mut [],
            // SAFETY: by contract.
            count => unsafe { slice::from_raw_parts_mut(read.into, count) },
        };
        Wanted::new(read.offset, into)
    };
    let mut wanted: Vec<Wanted<'_>> = reads.iter().map(wanted).collect();
    reader.read_many(&mut wanted, patience(micros));
    let results: Vec<Result<usize, Error>> = wanted.into_iter().map(|one| one.read).collect();
    for (read, result) in reads.iter_mut().zip(results) {
        (read.done, read.code) = match told(result) {
            Ok(done) => (done, 0),
            Err(code) => (0, code),
        };
    }
}

/// A number that no other file of the store has.
#[unsafe(no_mangle)]
pub extern "C" fn weir_reader_unique(reader: &Reader) -> u64 {
    reader.unique()
}

/// Gives back the memory of a reader.
///
/// # Safety
/// It was opened, and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_reader_free(reader: *mut Reader) {
    if !reader.is_null() {
        // SAFETY: made by `weir_store_reader`.
        drop(unsafe { Box::from_raw(reader) });
    }
}

//! Devices in a plain file or on a block device: the header, and where each shard's part lies. The
//! layout is told in `medium/direct.rs`. The header is sector 0, numbers little-endian:
//!
//! | bytes | holds |
//! |---|---|
//! | 0..8 | `b"WEIRFILE"` |
//! | 8..12 | version, 1 |
//! | 12..16 | shards |
//! | 16..32 | uuid |
//! | 32..36 | units of each shard |
//! | 36..40 | blocks of each unit |
//! | 40..44 | program units of each block |
//! | 44..48 | logical blocks of each shard |
//! | 48..52 | CRC-32C of the bytes before |

use super::{DeviceError, Mode, Shape, lock};
use crate::medium::{
    DirectStore, Fence, Medium, PAGE_BYTES, Place, RECORD_BYTES, SLOTS_PER_PAGE, Store,
    encode_generation,
};
use flash::{BLOCK_BYTES, Geometry};
use nand::{BlockRecord, Faults, Nand, Profile};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;

const MAGIC: &[u8; 8] = b"WEIRFILE";
const VERSION: u32 = 1;
const SECTOR: u64 = BLOCK_BYTES as u64;
/// Program units of an erase block of 4 MiB.
const PAGES_PER_BLOCK: u32 = 64;
const BLOCK_FILE_BYTES: u64 = PAGES_PER_BLOCK as u64 * PAGE_BYTES;
const GENERATION_AT: u64 = SECTOR;

/// The rules of a file as those of flash without delays.
pub fn profile() -> Profile {
    let text = format!(
        "name = \"file\"\npage_bytes = {}\noob_bytes = 512\npages_per_block = {PAGES_PER_BLOCK}\n\
         planes = 1\nbits_per_cell = 1\npairing = \"none\"\nread_ns = [0]\nprogram_ns = [0]\n\
         erase_ns = 0\ncommand_ns = 0\nbus_ns_per_byte = 0.0\ncache_read = true\n\
         cache_program = true\npartial_read = true\nqueue_depth = 8\nendurance = 100_000\n\
         factory_bad_max = 0.0\necc_bits_per_kib = 8\n\
         [rber]\nepsilon = 0.0\nalpha = 0.0\nk = 1.0\nbeta = 0.0\nm = 1.0\nn = 1.0\ngamma = 0.0\n\
         p = 1.0\nq = 1.0\n",
        SLOTS_PER_PAGE as usize * BLOCK_BYTES
    );
    Profile::parse(&text).expect("a test parses this text")
}

/// True if a device was made here.
pub fn exists(path: &Path) -> bool {
    let mut magic = [0; 8];
    File::open(path).and_then(|file| file.read_exact_at(&mut magic, 0)).is_ok() && magic == *MAGIC
}

/// Writes the records and opens the parts. They become a device by [`commit`].
pub fn create(path: &Path, shards: u32, shape: Shape) -> Result<(Vec<Medium>, File), DeviceError> {
    let plain = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
    let plain = plain.map_err(DeviceError::io(path, "open"))?;
    let file = lock_file(path, plain)?;
    if exists(path) {
        return Err(DeviceError::Exists(path.into()));
    }
    let nand = shape.nand(&profile(), &Faults::default(), 0)?;
    let geometry = nand.geometry();
    let bytes = places(&geometry, shards, 0).1;
    let metadata = file.metadata().map_err(DeviceError::io(path, "examine"))?;
    if metadata.file_type().is_block_device() {
        let mut reader = &file;
        let end = io::Seek::seek(&mut reader, io::SeekFrom::End(0));
        let found = end.map_err(DeviceError::io(path, "size"))?;
        if found < bytes {
            let reason = format!("has {found} bytes where the volumes and the OP need {bytes}");
            return Err(DeviceError::invalid(path, reason, "make the volumes smaller"));
        }
    } else {
        file.set_len(bytes).map_err(DeviceError::io(path, "size"))?;
    }
    let failed = "write the records";
    for place in places(&geometry, shards, 0).0 {
        let records: Vec<u8> = nand.records().flat_map(|(_, record)| record.encode()).collect();
        file.write_all_at(&records, place.records_at).map_err(DeviceError::io(path, failed))?;
    }
    lock::write_generation(&file, path, GENERATION_AT, 0)?;
    // What was there before is no device until `commit`.
    file.write_all_at(&[0; BLOCK_BYTES], 0).map_err(DeviceError::io(path, "clear the header"))?;
    open_parts(path, file, (shards, shape), Mode::ReadWrite)
}

/// Writes the header: from now on there is a device.
pub fn commit(
    path: &Path,
    file: &File,
    shards: u32,
    shape: Shape,
    uuid: u128,
) -> Result<(), DeviceError> {
    let mut header = Vec::from(MAGIC);
    header.extend(VERSION.to_le_bytes());
    header.extend(shards.to_le_bytes());
    header.extend(uuid.to_le_bytes());
    let geometry = shape.nand(&profile(), &Faults::default(), 0)?.geometry();
    let Geometry { units, blocks_per_unit, pages_per_block, .. } = geometry;
    for number in [units, blocks_per_unit, pages_per_block, shape.logical_blocks] {
        header.extend(number.to_le_bytes());
    }
    header.extend(flash::crc(&header).to_le_bytes());
    file.write_all_at(&header, 0).map_err(DeviceError::io(path, "write the header"))?;
    file.sync_all().map_err(DeviceError::io(path, "sync"))
}

/// Opens what [`create`] made.
pub fn open(path: &Path, mode: Mode) -> Result<(Vec<Medium>, File), DeviceError> {
    if !path.exists() {
        return Err(DeviceError::Missing(path.into()));
    }
    let writable = mode == Mode::ReadWrite;
    let file = OpenOptions::new().read(true).write(writable).open(path);
    let file = lock_file(path, file.map_err(DeviceError::io(path, "open"))?)?;
    let parts = read_header(path, &file)?;
    open_parts(path, file, parts, mode)
}

fn lock_file(path: &Path, file: File) -> Result<File, DeviceError> {
    match lock::try_lock(&file).map_err(DeviceError::io(path, "lock"))? {
        true => Ok(file),
        false => Err(DeviceError::Locked { path: path.into(), pid: None }),
    }
}

/// Where the shards' parts lie, and the end of the last.
fn places(geometry: &Geometry, shards: u32, generation: u64) -> (Vec<Place>, u64) {
    let blocks = u64::from(geometry.blocks());
    let records_bytes = (blocks * RECORD_BYTES as u64).next_multiple_of(SECTOR);
    let blocks_start =
        (2 * SECTOR + u64::from(shards) * records_bytes).next_multiple_of(BLOCK_FILE_BYTES);
    let place = |shard: u64| Place {
        records_at: 2 * SECTOR + shard * records_bytes,
        blocks_at: blocks_start + shard * blocks * BLOCK_FILE_BYTES,
        generation,
    };
    let end = blocks_start + u64::from(shards) * blocks * BLOCK_FILE_BYTES;
    ((0..u64::from(shards)).map(place).collect(), end)
}

fn read_header(path: &Path, file: &File) -> Result<(u32, Shape), DeviceError> {
    let mend = "restore it from a backup, or format the device anew";
    let mut header = [0; 52];
    file.read_exact_at(&mut header, 0).map_err(DeviceError::io(path, "read the header"))?;
    let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| header[at + i]));
    if header[..8] != *MAGIC {
        return Err(DeviceError::invalid(path, "holds no device of Weir", "see `weir format`"));
    }
    if word(8) != VERSION {
        let reason = format!("version {}: this build reads version {VERSION}", word(8));
        return Err(DeviceError::invalid(path, reason, "use the build that made the device"));
    }
    if word(48) != flash::crc(&header[..48]) || word(12) == 0 || word(40) != PAGES_PER_BLOCK {
        return Err(DeviceError::invalid(path, "the header is damaged", mend));
    }
    let shape = Shape {
        channels: word(32),
        dies_per_channel: 1,
        blocks_per_plane: word(36),
        logical_blocks: word(44),
    };
    Ok((word(12), shape))
}

fn open_parts(
    path: &Path,
    file: File,
    (shards, shape): (u32, Shape),
    mode: Mode,
) -> Result<(Vec<Medium>, File), DeviceError> {
    let writable = mode == Mode::ReadWrite;
    let mut generation = lock::read_generation(&file, path, GENERATION_AT)?;
    if writable {
        generation += 1;
        lock::write_generation(&file, path, GENERATION_AT, generation)?;
    }
    let mut media = Vec::new();
    let mut nand = shape.nand(&profile(), &Faults::default(), 0)?;
    for place in places(&nand.geometry(), shards, generation).0 {
        let mut options = OpenOptions::new();
        options.read(true).write(writable).custom_flags(libc::O_DIRECT);
        let direct = options.open(path).map_err(DeviceError::io(path, "open for direct I/O"))?;
        let clone = file.try_clone().map_err(DeviceError::io(path, "open"))?;
        let fence = Fence { file: clone, expected: encode_generation(generation) };
        let store = DirectStore::open(direct, &nand.geometry(), place, &fence)
            .map_err(DeviceError::io(path, "read the records"))?;
        restore(path, &mut nand, &store)?;
        media.push(Medium::new(nand, Store::Direct(store), false));
        nand = shape.nand(&profile(), &Faults::default(), 0)?;
    }
    Ok((media, file))
}

fn restore(path: &Path, nand: &mut Nand, store: &DirectStore) -> Result<(), DeviceError> {
    let blocks: Vec<_> = nand.records().map(|(block, _)| block).collect();
    for block in blocks {
        let Some(mut record) = BlockRecord::decode(&store.stored_record(block)) else {
            let reason = format!("the record of block {} is damaged", block.0);
            let mend = "restore it from a backup, or format the device anew";
            return Err(DeviceError::invalid(path, reason, mend));
        };
        if !record.bad {
            let pointer = store.write_pointer(block, record.erase_count);
            record.write_pointer = pointer.map_err(DeviceError::io(path, "look for pages"))?;
        }
        nand.restore(block, record);
    }
    Ok(())
}

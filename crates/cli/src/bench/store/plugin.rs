//! The processor time of the store below RocksDB for a read of an SST: what the plug-in adds to an unchanged program.

use super::super::cpu_ns;
use super::served::{folder, run};
use ::store::remote::{Addresses, RemoteBlocks, RemoteVolume};
use ::store::{Opening, Store, Wanted};
use flash::Random;
use std::path::Path;
use std::sync::Arc;

const BLOCKS: u64 = 12;
const READ_BYTES: usize = 4096;
const BATCH: usize = 44;
const BATCHES: usize = 1000;

/// Microseconds for a read of 4 KiB in batches of 44, with the kernel's part; and what one by one takes.
pub fn cost() -> Result<(f64, String), String> {
    let folder = folder();
    let at = |name: &str| folder.0.join(name);
    let raw = ["serve", "--raw", "--profile", "instant", "--channels", "4", "--gang", "2"];
    let more = ["--dies-per-channel", "2", "--capacity", "256MiB", "--http", "none"];
    let _units = run(&[&raw[..], &more].concat(), &at("cost-units"), "nbd.sock")?;
    let small = ["serve", "--profile", "instant", "--capacity", "64MiB", "--http", "none"];
    let _small = run(&small, &at("cost-small"), "nbd.sock")?;
    let store = opened(&at("cost-units"), &at("cost-small")).map_err(|error| error.to_string())?;
    let size = BLOCKS * store.block_bytes();
    let written = || -> Result<(), ::store::Error> {
        let mut writer = store.writer("/1.sst", false)?;
        writer.append(&vec![7; size as usize])?;
        writer.sync()
    };
    written().map_err(|error| error.to_string())?;
    let batched = each(&store, size, BATCH, BATCHES)?;
    let alone = each(&store, size, 1, BATCHES)?;
    let note =
        format!("4 KiB, in batches of {BATCH}; one by one {alone:.1}; with the kernel's part");
    Ok((batched, note))
}

fn opened(units: &Path, small: &Path) -> Result<Arc<Store>, ::store::Error> {
    let socket = |data: &Path| data.join("nbd.sock").to_string_lossy().into_owned();
    let addresses = Addresses {
        units: format!("nbd+unix:///?socket={}", socket(units)),
        control: units.join("control.sock").to_string_lossy().into_owned(),
        token: None,
        volume: format!("nbd+unix:///default?socket={}", socket(small)),
    };
    let (blocks, volume) =
        (RemoteBlocks::open(&addresses)?, RemoteVolume::open(&addresses.volume)?);
    Ok(Store::open(Box::new(volume), Box::new(blocks), 1, Opening::default())?.0)
}

/// Processor time of this process for a read, in microseconds.
fn each(store: &Arc<Store>, size: u64, batch: usize, batches: usize) -> Result<f64, String> {
    let reader = store.reader("/1.sst").map_err(|error| error.to_string())?;
    let (mut random, mut into) = (Random::new(3), vec![0; batch * READ_BYTES]);
    let before = cpu_ns();
    for _ in 0..batches {
        let parts = into.chunks_mut(READ_BYTES);
        let places = size / READ_BYTES as u64;
        let mut wanted: Vec<Wanted<'_>> =
            parts.map(|part| Wanted::new(random.below(places) * READ_BYTES as u64, part)).collect();
        reader.read_many(&mut wanted, None);
        for one in wanted {
            one.read.map_err(|error| error.to_string())?;
        }
    }
    Ok((cpu_ns() - before) as f64 / 1e3 / (batches * batch) as f64)
}

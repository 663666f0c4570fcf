//! What a read of a raw block through a store takes: writes a table of some blocks, reads pieces of it at random, so many at
//! a time by each thread, and tells the rate. The processor time of the process is what `time` says of it, with reads and with none.
//!
//! ```text
//! time cargo run --release -p store --example reads -- weir-units weir-small 16 4096 1 100000 44
//! ```

use std::error::Error;
use std::time::Instant;
use store::remote::{Addresses, Lock, RemoteBlocks, RemoteVolume};
use store::{Opening, RawBlocks, Reader, Store, Wanted};

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [units, small, blocks, bytes, threads, reads, at_once] = &words[..] else {
        return Err("give the folders of the units and of the volume, blocks, bytes of a read, threads, reads, and how \
                    many are asked at a time"
            .into());
    };
    let addresses = Addresses {
        units: format!("nbd+unix:///?socket={units}/nbd.sock"),
        control: format!("{units}/control.sock"),
        token: None,
        volume: format!("nbd+unix:///default?socket={small}/nbd.sock"),
    };
    let (count, bytes): (u64, u64) = (blocks.parse()?, bytes.parse()?);
    let (threads, reads): (u64, u64) = (threads.parse()?, reads.parse()?);
    let at_once: u64 = at_once.parse()?;
    let _lock = Lock::take(&addresses.volume)?;
    let blocks = RemoteBlocks::open(&addresses)?;
    let block_bytes = blocks.block_bytes();
    let volume = RemoteVolume::open(&addresses.volume)?;
    let (store, _eraser) = Store::open(
        Box::new(volume),
        Box::new(blocks),
        std::process::id().into(),
        Opening::default(),
    )?;

    let begun = Instant::now();
    let mut writer = store.writer("/reads.sst", false)?;
    let block: Vec<u8> = (0..block_bytes).map(|i| (i / 512) as u8).collect();
    for _ in 0..count {
        writer.append(&block)?;
    }
    writer.sync()?;
    let rate = (count * block_bytes) as f64 / begun.elapsed().as_secs_f64() / 1e6;
    println!("{count} blocks of {block_bytes} bytes written at {rate:.0} MB/s");

    let reader = store.reader("/reads.sst")?;
    let pieces = (count * block_bytes / bytes).max(1);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for thread in 1..=threads {
            let reader = &reader;
            scope.spawn(move || read_some(reader, thread, (bytes, pieces), (reads, at_once)));
        }
    });
    let (took, all) = (begun.elapsed().as_secs_f64(), threads * reads);
    let (each, rate) = (took * 1e6 / reads.max(1) as f64, (all * bytes) as f64 / took / 1e6);
    println!(
        "{all} reads of {bytes} bytes by {threads} threads, {at_once} at a time, {each:.1} us each: {rate:.0} MB/s"
    );
    store.delete("/reads.sst")?;
    store.erase()?;
    Ok(())
}

fn read_some(
    reader: &Reader,
    seed: u64,
    (bytes, pieces): (u64, u64),
    (reads, at_once): (u64, u64),
) {
    let (mut into, mut random) = (vec![0; (bytes * at_once) as usize], seed);
    for _ in 0..reads.div_ceil(at_once) {
        let mut wanted: Vec<Wanted<'_>> = into
            .chunks_mut(bytes as usize)
            .map(|into| {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                Wanted::new((random >> 33) % pieces * bytes, into)
            })
            .collect();
        reader.read_many(&mut wanted, None);
        for one in wanted {
            assert_eq!(one.read, Ok(one.into.len()), "the table is there");
        }
    }
}

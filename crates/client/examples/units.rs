//! Writes, reads back and erases a raw block of every unit of a running server, and tells what the
//! unit then says of itself.
//!
//! ```text
//! weir serve --raw --memory --capacity 256MiB --socket /tmp/weir.sock
//! cargo run -p client --example units -- 'nbd+unix:///?socket=/tmp/weir.sock' weir-data/control.sock
//! ```

use client::{Device, Place};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let uri = args.next().ok_or("give the address: nbd+unix:///?socket=PATH or nbd://HOST:PORT")?;
    let mut device = Device::open(&uri)?;
    if let Some(http) = args.next() {
        device = device.with_http(http.parse::<Place>()?);
    }
    for number in 0..device.units() {
        let mut unit = device.unit(number)?;
        let shape = unit.shape();
        let last = unit.raw_blocks() - 1;
        let offset = u64::from(last) * shape.raw_block_bytes;
        let bytes: Vec<u8> = (0..shape.raw_block_bytes).map(|i| (i / 4096) as u8).collect();

        unit.erase(last)?;
        unit.write(offset, &bytes)?;
        let mut granule = vec![0; shape.granule_bytes as usize];
        let at = shape.raw_block_bytes / 2 / shape.granule_bytes * shape.granule_bytes;
        unit.read(offset + at, &mut granule)?;
        assert_eq!(granule[0], bytes[at as usize], "what was written is read");
        if let Err(refused) = unit.write(offset, &bytes) {
            println!("unit {number}: written twice: {refused}");
        }
        unit.erase(last)?;
        println!("unit {number}: {} bytes written, read back, erased", bytes.len());
        if let Ok(status) = unit.status() {
            println!(
                "unit {number}: {} raw blocks erased, {} full, erase counts {} to {}",
                status.raw_blocks_erased,
                status.raw_blocks_full,
                status.erase_count_min,
                status.erase_count_max
            );
        }
    }
    Ok(())
}

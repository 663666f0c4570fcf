//! A store on three servers for the figures, and what is asked of it.

use super::super::cpu_ns;
use super::super::nbd::{Folder, Server, cpu_seconds, serve};
use super::{CHANNELS, VALUE_BYTES};
use client::store::{Range, Store};
use client::{Error, Place};
use flash::Random;
use serde_json::Value;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Who puts, side by side.
const WRITERS: u64 = 16;
/// Values that a scan asks for at a time.
const SCAN_VALUES: usize = 16;
/// How long a request is tried again that was told to.
const AGAIN_MAX: Duration = Duration::from_secs(300);
const AGAIN_EVERY: Duration = Duration::from_millis(50);
/// What has not changed in this time does not any more.
const SETTLED_AFTER: Duration = Duration::from_secs(3);

/// What SSTs lie on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Drive {
    /// Raw units.
    Raw,
    /// A block volume.
    Conventional,
}

impl fmt::Display for Drive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Raw => "raw units",
            Self::Conventional => "a conventional drive",
        })
    }
}

/// What was moved, and with what.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// GB a second of the flash's time.
    pub gb: f64,
    /// Processors that all processes together were busy on.
    pub processors: f64,
}

/// Gets beside puts: SSTs of which RocksDB says that they are written.
pub struct Beside {
    /// As long as it took.
    pub load: Load,
    /// What of it is new, in GB a second.
    pub put_gb: f64,
    /// Raw blocks that were put, those of compactions that have not ended too.
    pub block_gb: f64,
    /// Seconds that each get took.
    pub took: Vec<f64>,
}

/// A store on two servers.
pub struct Served {
    drive: Drive,
    dilate: u32,
    values: u64,
    units: PathBuf,
    control: PathBuf,
    servers: [Server; 3],
}

/// Where the devices are, until it is dropped.
pub fn folder() -> Folder {
    Folder::at(std::env::temp_dir())
}

/// MiB of the conventional volume: the SSTs, and room to compact them.
fn volume_mib(values: u64) -> u64 {
    values * (VALUE_BYTES as u64) * 2 / (1 << 20) + 1024
}

impl Served {
    /// Starts what is in the folder, or makes it.
    pub fn start(
        folder: &Path,
        drive: Drive,
        (dilate, sst_blocks): (u32, u32),
        values: u64,
    ) -> Result<Self, String> {
        let at = |name: &str| folder.join(name);
        let (times, channels) = (dilate.to_string(), CHANNELS.to_string());
        let flash = ["--profile", "mlc-25nm", "--channels", &channels, "--dies-per-channel", "2"];
        let capacity = match drive {
            Drive::Raw => format!("{}MiB", values * (VALUE_BYTES as u64) * 4 / (1 << 20) + 2048),
            Drive::Conventional => format!("{}MiB", volume_mib(values)),
        };
        let how = match drive {
            Drive::Raw => {
                &["--raw", "--gang", "2", "--read-granule", "8KiB", "--erase", "background"][..]
            }
            Drive::Conventional => &["--op-percent", "28"],
        };
        let size = ["--capacity", &capacity, "--dilate", &times, "--http", "none"];
        let units = run(&[&["serve"][..], how, &flash, &size].concat(), &at("units"), "nbd.sock")?;
        let small = ["serve", "--profile", "instant", "--capacity", "2GiB", "--http", "none"];
        let small = run(&small, &at("small"), "nbd.sock")?;
        let (places, control) = ([at("units"), at("small")], at("store").join("control.sock"));
        let places = places.each_ref().map(|place| place.to_string_lossy());
        let tables = if drive == Drive::Raw { "--units" } else { "--tables" };
        let store = ["store", "serve", tables, &places[0], "--small", &places[1], "--http", "none"];
        let sst_blocks = sst_blocks.to_string();
        let how = ["--cache", "32MiB", "--read-time", "170s", "--sst-blocks", &sst_blocks];
        let store = [&store[..], &how].concat();
        let store = run(&store, &at("store"), "control.sock")?;
        let units_control = at("units").join("control.sock");
        let servers = [store, units, small];
        Ok(Self { drive, dilate, values, units: units_control, control, servers })
    }

    fn client(&self) -> Store {
        Store::at(self.control.as_path())
    }

    /// Puts what is got later, and compacts it.
    pub fn fill(&self) -> Result<(), String> {
        let next = AtomicU64::new(0);
        side_by_side(WRITERS, |_| {
            let (store, mut value) = (self.client(), vec![0; VALUE_BYTES]);
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= self.values {
                    return Ok(());
                }
                fill(&mut value, number);
                again(|| store.put(&key(number), &value))?;
            }
        })?;
        self.compact()
    }

    /// Writes all of it anew, and waits until what that freed is erased.
    pub fn compact(&self) -> Result<(), String> {
        again(|| self.client().compact())?;
        settled(|| self.weights()).map(drop)
    }

    /// What this took, in the flash's time.
    fn load(&self, work: impl FnOnce() -> Result<u64, String>) -> Result<Load, String> {
        let processor = || -> Result<f64, String> {
            let servers = self.servers.iter().map(|server| cpu_seconds(server.child.id()));
            Ok(servers.sum::<Result<f64, String>>()? + cpu_ns() as f64 / 1e9)
        };
        let (begun, before) = (Instant::now(), processor()?);
        let bytes = work()?;
        let took = begun.elapsed().as_secs_f64();
        let processors = (processor()? - before) / took;
        Ok(Load { gb: bytes as f64 / took * f64::from(self.dilate) / 1e9, processors })
    }

    /// Clients that get values in batches, and how long each batch took in seconds.
    pub fn gets(
        &self,
        (clients, batch): (u64, usize),
        time: Duration,
    ) -> Result<(Load, Vec<f64>), String> {
        let mut all = Vec::new();
        let load = self.load(|| {
            let end = Instant::now() + time;
            let got = side_by_side(clients, |client| {
                let (store, mut random) = (self.client(), Random::new(client + 1));
                let (mut bytes, mut took) = (0, Vec::new());
                while Instant::now() < end {
                    let keys: Vec<_> = (0..batch).map(|_| key(random.below(self.values))).collect();
                    let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
                    let begun = Instant::now();
                    let values = again(|| store.get_all(&keys))?;
                    took.push(begun.elapsed().as_secs_f64());
                    bytes += values.iter().flatten().map(Vec::len).sum::<usize>() as u64;
                }
                Ok((bytes, took))
            })?;
            let bytes = got.iter().map(|(bytes, _)| bytes).sum();
            all = got.into_iter().flat_map(|(_, took)| took).collect();
            Ok(bytes)
        })?;
        Ok((load, all))
    }

    /// Clients that read the values of one slice each in order, with so many threads, each from a place of its own on.
    pub fn scans(&self, clients: u64, threads: u64, time: Duration) -> Result<Load, String> {
        let status = self.client().status().map_err(|error| error.to_string())?;
        let slices = status["slices"].as_array().map_or(1, |all| all.len().max(1)) as u64;
        self.load(|| {
            let end = Instant::now() + time;
            let read = side_by_side(clients * threads, |thread| {
                let (store, mut bytes) = (self.client(), 0);
                let slice = Some((thread / threads % slices) as u32);
                let mut from = key(self.values * (thread % threads) / threads);
                while Instant::now() < end {
                    let (from_key, limit) = (Some(&from[..]), SCAN_VALUES);
                    let range = Range { from: from_key, limit, slice, ..Range::default() };
                    let (pairs, next) = again(|| store.scan(&range))?;
                    bytes += pairs.iter().map(|(_, value)| value.len()).sum::<usize>() as u64;
                    from = next.unwrap_or_else(|| key(0));
                }
                Ok(bytes)
            })?;
            Ok(read.into_iter().sum())
        })
    }

    /// Gets of single values while as much is put as is taken.
    pub fn gets_beside_puts(&self, time: Duration) -> Result<Beside, String> {
        let (stop, put) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let puts = scope.spawn(|| self.puts(&stop, &put));
            // An SST is counted when it is whole, and the first ones take 8 s: what is measured begins and ends with as many under
            // way, and as far.
            std::thread::sleep(time);
            let (mut took, begun, before) =
                (Vec::new(), Instant::now(), put.load(Ordering::Relaxed));
            let blocks_before = self.block_bytes_put()?;
            let load = self.load(|| {
                let before = self.written()?;
                took = self.gets((8, 1), time)?.1;
                Ok(self.written()? - before)
            });
            let scale = f64::from(self.dilate) / begun.elapsed().as_secs_f64() / 1e9;
            let put_gb =
                ((put.load(Ordering::Relaxed) - before) * VALUE_BYTES as u64) as f64 * scale;
            let block_gb = (self.block_bytes_put()? - blocks_before) * scale;
            stop.store(true, Ordering::Relaxed);
            puts.join().map_err(|_| "the puts panicked".to_owned())??;
            Ok(Beside { load: load?, put_gb, block_gb, took })
        })
    }

    /// Puts over what is there, so that compaction has to drop the old values.
    fn puts(&self, stop: &AtomicBool, put: &AtomicU64) -> Result<(), String> {
        side_by_side(WRITERS, |writer| {
            let (store, mut value) = (self.client(), vec![0; VALUE_BYTES]);
            let mut random = Random::new(1000 + writer);
            while !stop.load(Ordering::Relaxed) {
                fill(&mut value, random.next_u64());
                let key = key(random.below(self.values));
                again(|| store.put(&key, &value))?;
                put.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        })
        .map(drop)
    }

    /// Bytes of SSTs that RocksDB has written.
    fn written(&self) -> Result<u64, String> {
        let flushed = self.metric("weir_store_flush_written_bytes_total")?;
        Ok((flushed + self.metric("weir_store_compaction_written_bytes_total")?) as u64)
    }

    /// Bytes of the raw blocks that were put. RocksDB counts those of a compaction when that ends.
    fn block_bytes_put(&self) -> Result<f64, String> {
        let status = self.client().status().map_err(|error| error.to_string())?;
        let block_bytes = status["room"]["raw_block_bytes"].as_f64().unwrap_or(0.0);
        Ok(self.metric("weir_store_raw_blocks_put_total")? * block_bytes)
    }

    fn metric(&self, name: &str) -> Result<f64, String> {
        let text = client::http::get(&Place::from(self.control.as_path()), "/metrics")?;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let value = line.and_then(|value| value.parse().ok());
        value.ok_or_else(|| format!("/metrics tells no {name}"))
    }

    fn units_told(&self, path: &str) -> Result<Value, String> {
        let text = client::http::get(&Place::from(self.units.as_path()), path)?;
        serde_json::from_str(&text).map_err(|error| format!("{path}: {error}"))
    }

    /// Raw blocks with something in them, of each channel.
    pub fn weights(&self) -> Result<Vec<u32>, String> {
        if self.drive == Drive::Conventional {
            return Ok(Vec::new());
        }
        let told = self.units_told("/units")?;
        let units = told["units"].as_array().cloned().unwrap_or_default();
        let full = |unit: &Value| unit["raw_blocks_full"].as_u64().unwrap_or(0) as u32;
        Ok(units.iter().map(full).collect())
    }

    /// Bytes of SSTs for each byte of the raw blocks that they lie in.
    pub fn filled(&self) -> Result<f64, String> {
        let status = self.client().status().map_err(|error| error.to_string())?;
        let bytes = status["table_bytes"].as_f64().unwrap_or(0.0);
        let block = status["room"]["raw_block_bytes"].as_f64().unwrap_or(0.0);
        let blocks: u32 = self.weights()?.iter().sum();
        Ok(if blocks == 0 { 0.0 } else { bytes / (f64::from(blocks) * block) })
    }

    /// Written to the flash for what the store wrote, since the server began, once nothing more is on its way to it: a block
    /// counts for the store when it is sent.
    pub fn waf(&self) -> Result<Option<f64>, String> {
        settled(|| Ok(self.units_told("/status")?["waf"].as_f64()))
    }
}

/// What this tells when it tells the same for a while.
fn settled<T: PartialEq>(told: impl Fn() -> Result<T, String>) -> Result<T, String> {
    let (begun, mut before) = (Instant::now(), told()?);
    loop {
        std::thread::sleep(SETTLED_AFTER);
        let now = told()?;
        if now == before || begun.elapsed() > AGAIN_MAX {
            return Ok(now);
        }
        before = now;
    }
}

/// A part of this very program as a server.
pub fn run(words: &[&str], data: &Path, socket: &str) -> Result<Server, String> {
    let program = std::env::current_exe().map_err(|error| format!("where is weir? {error}"))?;
    let mut command = Command::new(program);
    command.args(words).arg("--data").arg(data);
    serve("weir", command, &data.join(socket)).map_err(|why| {
        format!("{why}: `weir {}` says more; `./x rocksdb` builds the engine", words.join(" "))
    })
}

/// Asks again what is refused for a moment, as the answer says.
fn again<T>(ask: impl Fn() -> Result<T, Error>) -> Result<T, String> {
    let begun = Instant::now();
    loop {
        match ask() {
            Ok(done) => return Ok(done),
            Err(Error::Refused { code: 503 | 507, .. }) if begun.elapsed() < AGAIN_MAX => {
                std::thread::sleep(AGAIN_EVERY);
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// What each of so many threads made.
fn side_by_side<T: Send>(
    threads: u64,
    work: impl Fn(u64) -> Result<T, String> + Sync,
) -> Result<Vec<T>, String> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..threads).map(|at| scope.spawn(move || work(at))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err("a thread panicked".into())))
            .collect()
    })
}

fn key(number: u64) -> Vec<u8> {
    format!("{number:08}").into_bytes()
}

fn fill(value: &mut [u8], number: u64) {
    let mut random = Random::new(number + 1);
    for piece in value.chunks_exact_mut(8) {
        piece.copy_from_slice(&random.next_u64().to_le_bytes());
    }
}

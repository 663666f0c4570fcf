//! RocksDB of `weir store` on SDF's flash, in the shapes of SDF's Figures 10 to 14: values of 512 KiB, batches of them got at
//! random, scans, puts with real compaction. 44 channels of it in real time are more than a small machine can move, so
//! the clock of the flash is slowed [`DILATE`] times (`weir serve --dilate`); all figures are in the flash's own time.
//!
//! Beside a figure stands what the flash could do at most for the same requests: for batches that is less than its whole
//! bandwidth, as values that are drawn meet on channels by chance.

use super::nbd::{Folder, Server, serve};
use super::{Figure, Goal, Request};
use crate::output::Progress;
use client::Store;
use client::store::Range;
use flash::Random;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const GROUP: &str = "store";
const UNIT: &str = "GB/s";
/// The clock of the flash is slowed so many times.
const DILATE: u32 = 10;
const CHANNELS: u64 = 44;
const VALUE_BYTES: usize = 512 << 10;
/// Values that are there when something is measured: 8 or so on each channel.
const VALUES: u64 = 352;
/// Read at a time from a channel (SDF's Table 4; 37.9 MB/s), and in all.
const CHANNEL_GB: f64 = 0.0379;
const READ_GB: f64 = 1.669;
/// Written, erases included.
const WRITE_GB: f64 = 0.96;
/// Threads of a scanning client.
const SCANNERS: u64 = 6;
/// A put of 8 MB has a channel so long.
const BLOCK_MS: f64 = 383.0;
/// Clients, each of which waits for a batch before it asks for the next, and how many it asks for at a time.
const GETS: [(u64, usize); 9] =
    [(1, 1), (1, 8), (1, 16), (1, 32), (1, 44), (4, 44), (8, 44), (4, 8), (8, 8)];

/// All figures of the group.
pub fn figures(request: &mut Request<'_>) {
    if let Err(why) = measure(request) {
        (request.sink)(Figure::missing(GROUP, UNIT, Goal::AtLeast(0.0), &why));
    }
}

fn measure(request: &mut Request<'_>) -> Result<(), String> {
    let seconds = if request.quick { 4 } else { 15 };
    let mut progress = Progress::new(GROUP);
    let folder = Folder::at(std::env::temp_dir());
    // As quickly as the machine can; only what is measured is paced.
    progress.tell("starting 44 channels");
    let filling = Served::start(&folder.0, 1)?;
    filling.fill(&mut progress)?;
    drop(filling);
    let served = Served::start(&folder.0, DILATE)?;
    for (clients, batch) in GETS {
        let name = format!("store-gets-{clients}x{batch}");
        if request.wants(&name) {
            progress.tell(&name);
            let (bytes, _) = served.gets((clients, batch), Duration::from_secs(seconds))?;
            let (rate, ideal) = (served.rate(bytes, seconds), ideal(clients, batch));
            let note = format!(
                "{:.0} % of {ideal:.3}, which the flash can at most for these",
                rate / ideal * 100.0
            );
            let goal = Goal::AtLeast(ideal * 0.95);
            (request.sink)(Figure::new(name, rate, UNIT, goal).note(noted(&note)));
        }
    }
    for clients in [1, 4, 8] {
        let name = format!("store-scan-{clients}x{SCANNERS}");
        if request.wants(&name) {
            progress.tell(&name);
            let bytes = served.scans(clients * SCANNERS, Duration::from_secs(seconds))?;
            let rate = served.rate(bytes, seconds);
            let share = rate / READ_GB * 100.0;
            let note = format!("{share:.0} % of the flash, by {} threads", clients * SCANNERS);
            let goal = Goal::AtLeast(READ_GB * 0.95);
            (request.sink)(Figure::new(name, rate, UNIT, goal).note(noted(&note)));
        }
    }
    for figure in served.writes(seconds, &mut progress)? {
        if request.wants(&figure.name) {
            (request.sink)(figure);
        }
    }
    Ok(())
}

fn noted(note: &str) -> String {
    format!("{note}; in the flash's time, which is slowed {DILATE} times")
}

/// Bandwidth of clients that each ask for a batch of values on channels that are drawn, and wait for all of it: channels serve
/// in order, each alone.
fn ideal(clients: u64, batch: usize) -> f64 {
    let took = VALUE_BYTES as f64 / 1e9 / CHANNEL_GB;
    let mut random = Random::new(1);
    let mut free = [0.0_f64; CHANNELS as usize];
    let mut ready = vec![0.0_f64; clients as usize];
    let rounds = 400 * clients;
    for _ in 0..rounds {
        let next = ready.iter_mut().min_by(|one, other| one.total_cmp(other));
        let Some(next) = next else { return 0.0 };
        let mut end = *next;
        for _ in 0..batch {
            let channel = &mut free[random.below(CHANNELS) as usize];
            *channel = channel.max(*next) + took;
            end = end.max(*channel);
        }
        *next = end;
    }
    let end = ready.into_iter().fold(0.0, f64::max);
    (rounds * batch as u64 * VALUE_BYTES as u64) as f64 / end / 1e9
}

/// A store on two servers.
struct Served {
    control: PathBuf,
    _store: Server,
    _units: Server,
    _small: Server,
}

impl Served {
    fn start(folder: &Path, dilate: u32) -> Result<Self, String> {
        let at = |name: &str| folder.join(name);
        let (dilate, channels) = (dilate.to_string(), CHANNELS.to_string());
        let units =
            ["serve", "--raw", "--gang", "2", "--read-granule", "8KiB", "--erase", "background"];
        let flash = ["--profile", "mlc-25nm", "--channels", &channels, "--dies-per-channel", "2"];
        let size = ["--capacity", "6GiB", "--dilate", &dilate, "--http", "none"];
        let units = run(&[&units[..], &flash, &size].concat(), &at("units"), "nbd.sock")?;
        let small = ["serve", "--profile", "instant", "--capacity", "2GiB", "--http", "none"];
        let small = run(&small, &at("small"), "nbd.sock")?;
        let (places, control) = ([at("units"), at("small")], at("store").join("control.sock"));
        let places = places.each_ref().map(|place| place.to_string_lossy());
        let store =
            ["store", "serve", "--units", &places[0], "--small", &places[1], "--http", "none"];
        let store = [&store[..], &["--slices", "8", "--cache", "32MiB"]].concat();
        let store = run(&store, &at("store"), "control.sock")?;
        Ok(Self { control, _store: store, _units: units, _small: small })
    }

    fn client(&self) -> Store {
        Store::at(self.control.as_path())
    }

    /// Bandwidth in the flash's own time.
    fn rate(&self, bytes: u64, seconds: u64) -> f64 {
        bytes as f64 / seconds as f64 * f64::from(DILATE) / 1e9
    }

    /// Puts what is got later, and compacts it.
    fn fill(&self, progress: &mut Progress) -> Result<(), String> {
        let next = AtomicU64::new(0);
        let put = || -> Result<(), String> {
            let (store, mut value) = (self.client(), vec![0; VALUE_BYTES]);
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= VALUES {
                    return Ok(());
                }
                fill(&mut value, number);
                store.put(&key(number), &value).map_err(|error| error.to_string())?;
            }
        };
        progress.tell("putting what is read later");
        side_by_side(8, |_| put())?;
        progress.tell("compacting it");
        self.client().compact().map_err(|error| error.to_string())
    }

    /// Bytes of values that clients got in batches, and how long each batch took in seconds.
    fn gets(
        &self,
        (clients, batch): (u64, usize),
        time: Duration,
    ) -> Result<(u64, Vec<f64>), String> {
        let end = Instant::now() + time;
        let got = side_by_side(clients, |client| {
            let (store, mut random) = (self.client(), Random::new(client + 1));
            let (mut bytes, mut took) = (0, Vec::new());
            while Instant::now() < end {
                let keys: Vec<_> = (0..batch).map(|_| key(random.below(VALUES))).collect();
                let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
                let begun = Instant::now();
                let values = store.get_all(&keys).map_err(|error| error.to_string())?;
                took.push(begun.elapsed().as_secs_f64());
                bytes += values.iter().flatten().map(Vec::len).sum::<usize>() as u64;
            }
            Ok((bytes, took))
        })?;
        let bytes = got.iter().map(|(bytes, _)| bytes).sum();
        Ok((bytes, got.into_iter().flat_map(|(_, took)| took).collect()))
    }

    /// Bytes of values that threads read in order, each from a place of its own on.
    fn scans(&self, threads: u64, time: Duration) -> Result<u64, String> {
        let end = Instant::now() + time;
        let read = side_by_side(threads, |thread| {
            let (store, mut bytes) = (self.client(), 0);
            let mut from = key(VALUES * thread / threads);
            while Instant::now() < end {
                let range = Range { from: Some(&from), limit: 16, ..Range::default() };
                let (pairs, next) = store.scan(&range).map_err(|error| error.to_string())?;
                bytes += pairs.iter().map(|(_, value)| value.len()).sum::<usize>() as u64;
                from = next.unwrap_or_else(|| key(0));
            }
            Ok(bytes)
        })?;
        Ok(read.into_iter().sum())
    }

    /// Puts as quickly as they are taken, and what gets notice of it.
    fn writes(&self, seconds: u64, progress: &mut Progress) -> Result<Vec<Figure>, String> {
        progress.tell("gets alone");
        let time = Duration::from_secs(seconds);
        let (_, alone) = self.gets((8, 1), time)?;
        let stop = AtomicBool::new(false);
        let before = self.written()?;
        progress.tell("gets beside puts with compaction");
        let (beside, put) = std::thread::scope(|scope| {
            let puts = scope.spawn(|| self.puts(&stop));
            let gets = self.gets((8, 1), time);
            stop.store(true, Ordering::Relaxed);
            let put = puts.join().map_err(|_| "the puts panicked".to_owned())?;
            Ok::<_, String>((gets?.1, put?))
        })?;
        let written = self.written()? - before;
        let (rate, puts) = (self.rate(written, seconds), self.rate(put, seconds));
        let note = format!("of which {puts:.3} are new; SDF's 0.96 with erases");
        let writes = Figure::new("store-writes", rate, UNIT, Goal::AtLeast(WRITE_GB * 0.9));
        let (alone, beside) = (p99_ms(alone), p99_ms(beside));
        let note_p99 =
            format!("{alone:.0} without puts; a put of 8 MB has a channel for {BLOCK_MS:.0}");
        let goal = Goal::AtMost(BLOCK_MS);
        let tail = Figure::new("store-get-p99-compaction", beside, "ms", goal);
        Ok(vec![writes.note(noted(&note)), tail.note(noted(&note_p99))])
    }

    /// Puts new values until it is told to stop; their bytes.
    fn puts(&self, stop: &AtomicBool) -> Result<u64, String> {
        let next = AtomicU64::new(0);
        side_by_side(8, |_| {
            let (store, mut value) = (self.client(), vec![0; VALUE_BYTES]);
            while !stop.load(Ordering::Relaxed) {
                let number = next.fetch_add(1, Ordering::Relaxed);
                fill(&mut value, number);
                // Over those that are there, so that compaction has to drop the old ones.
                store.put(&key(number * 7 % VALUES), &value).map_err(|error| error.to_string())?;
            }
            Ok(())
        })?;
        Ok(next.into_inner() * VALUE_BYTES as u64)
    }

    /// Bytes of SSTs that RocksDB has written.
    fn written(&self) -> Result<u64, String> {
        let text = client::http::get(&client::Place::from(self.control.as_path()), "/metrics")?;
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.and_then(|value| value.parse::<f64>().ok())
                .ok_or_else(|| format!("/metrics tells no {name}"))
        };
        let flushed = value("weir_store_flush_written_bytes_total")?;
        Ok((flushed + value("weir_store_compaction_written_bytes_total")?) as u64)
    }
}

/// A part of this very program as a server.
fn run(words: &[&str], data: &Path, socket: &str) -> Result<Server, String> {
    let program = std::env::current_exe().map_err(|error| format!("where is weir? {error}"))?;
    let mut command = Command::new(program);
    command.args(words).arg("--data").arg(data).stdin(Stdio::null());
    serve("weir", command, &data.join(socket)).map_err(|why| {
        format!("{why}: `weir {}` says more; `./x rocksdb` builds the engine", words.join(" "))
    })
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

fn p99_ms(mut took: Vec<f64>) -> f64 {
    took.sort_by(f64::total_cmp);
    let at = took.len() * 99 / 100;
    took.get(at).map_or(0.0, |seconds| seconds * 1e3 / f64::from(DILATE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_flash_can_at_most_grows_with_clients_and_batches_up_to_all_of_it() {
        let of = GETS.map(|(clients, batch)| ideal(clients, batch));
        // One value at a time: one channel.
        assert!((of[0] - CHANNEL_GB).abs() < 0.001, "{of:?}");
        assert!(of[0] < of[1] && of[1] < of[2] && of[2] < of[3] && of[3] < of[4], "{of:?}");
        assert!(of[4] < of[5] && of[5] < of[6] && of[6] < READ_GB, "{of:?}");
        // An independent model of Figure 10, of the same flash, says 0.432 for a batch of 44, and 1.304 for eight clients.
        assert!((0.40..0.47).contains(&of[4]) && (1.2..1.4).contains(&of[6]), "{of:?}");
    }
}

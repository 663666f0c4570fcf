use flash::{Instant, SECOND};
use lab::device_file::{DeviceSpec, Scale};
use lab::load::{Client, Pace, Window, run};
use lab::target::Target;
use lab::workload::Pattern;
#[derive(Default)]
struct Null(std::collections::VecDeque<(u64, u64)>, std::collections::VecDeque<lab::target::Done>);
impl Target for Null {
    fn bytes(&self) -> u64 {
        1 << 36
    }
    fn submit(&mut self, now: Instant, token: u64, _: lab::target::Io) -> Result<(), lab::Failure> {
        self.0.push_back((now.0 + 100_000, token));
        Ok(())
    }
    fn deadline(&self) -> Option<Instant> {
        self.0.front().map(|x| Instant(x.0))
    }
    fn advance(&mut self, now: Instant) -> Result<(), lab::Failure> {
        while let Some(&(at, token)) = self.0.front() {
            if at > now.0 {
                break;
            }
            self.0.pop_front();
            self.1.push_back(lab::target::Done { token, result: Ok(()), at: Instant(at) });
        }
        Ok(())
    }
    fn take_done(&mut self) -> Option<lab::target::Done> {
        self.1.pop_front()
    }
    fn counts(&self) -> lab::target::TargetCounts {
        Default::default()
    }
    fn queue_at(&self, _: u64) -> u32 {
        0
    }
}
fn cpu() -> f64 {
    let t = std::fs::read_to_string("/proc/self/stat").unwrap();
    let f: Vec<&str> = t.rsplit(')').next().unwrap().split_whitespace().collect();
    (f[11].parse::<f64>().unwrap() + f[12].parse::<f64>().unwrap()) / 100.0
}
fn bench() {
    let spec = DeviceSpec::builtin("gen3").unwrap();
    for (reads, cache) in [(1.0, true), (1.0, false), (0.7, false), (0.0, true)] {
        for front in [false, true] {
            let mut config = spec.front.clone();
            config.firmware.relocate_page_ns = 0;
            if !cache {
                config.cache = None;
            }
            let mut target: Box<dyn Target> = if front {
                Box::new(lab::ssd::Front::new(Null::default(), config))
            } else {
                Box::new(Null::default())
            };
            let c =
                Client { reads, pace: Pace::Depth(256), ios_max: 4_000_000, ..Client::default() };
            let t = cpu();
            let seen = run(
                &mut *target,
                &[c],
                Window { start: Instant(0), warmup_ns: 0, measure_ns: 1 << 50 },
                1,
            )
            .unwrap()
            .remove(0);
            let t = cpu() - t;
            println!(
                "reads {reads} cache {cache} front {front}: {:.0} ns CPU a request ({} ios)",
                t * 1e9 / 4e6,
                seen.reads_ended + seen.writes_ended
            );
        }
    }
}
fn main() {
    if std::env::args().nth(1).as_deref() == Some("bench") {
        return bench();
    }
    let args: Vec<String> = std::env::args().collect();
    let text = std::fs::read_to_string(&args[1]).unwrap();
    let spec = DeviceSpec::parse(&text).map_err(|e| e.to_string()).unwrap();
    let blocks: u32 = args[2].parse().unwrap();
    let t0 = std::time::Instant::now();
    let mut target = spec.build(Scale::BlocksPerPlane(blocks), &Default::default(), 1).unwrap();
    println!(
        "{} {:.2} GB usable, built in {:?}",
        spec.name,
        target.bytes() as f64 / 1e9,
        t0.elapsed()
    );
    let mut now = 0u64;
    let mut go = |target: &mut Box<dyn Target>, c: Client, secs: f64, label: &str| {
        let w = Window {
            start: Instant(now),
            warmup_ns: if c.ios_max > 0 { 0 } else { SECOND / 20 },
            measure_ns: (secs * 1e9) as u64,
        };
        let before = target.counts();
        let t0 = std::time::Instant::now();
        let seen = run(&mut **target, &[c.clone()], w, 1).unwrap().remove(0);
        let mut idle = now + w.warmup_ns + w.measure_ns;
        if c.ios_max > 0 {
            idle = now + seen.measured_ns;
        }
        // drain
        loop {
            target.advance(Instant(idle)).unwrap();
            while target.take_done().is_some() {}
            match target.deadline() {
                Some(d) if d.0 < idle + 20 * SECOND => idle = d.0,
                _ => break,
            }
        }
        now = idle;
        let after = target.counts();
        let l = if c.reads > 0.5 { &seen.reads } else { &seen.writes };
        println!(
            "{label:28} {:.4} GB/s {:.0} IOPS  mean {:.3} ms min {:.3} max {:.3} dev {:.3}  n {} over50 {:.4} errors {} WAF {:.3} [{:?}]",
            (seen.bytes_read + seen.bytes_written) as f64 / seen.measured_ns as f64,
            seen.per_second(seen.reads_ended + seen.writes_ended),
            l.mean_ns() / 1e6,
            l.min_ns() as f64 / 1e6,
            l.max_ns() as f64 / 1e6,
            l.deviation_ns() / 1e6,
            l.count(),
            l.share_over(50_000_000),
            seen.errors,
            (after.bytes_programmed - before.bytes_programmed) as f64
                / (after.bytes_written - before.bytes_written).max(1) as f64,
            t0.elapsed()
        );
    };
    for what in &args[3..] {
        let base = Client::default();
        let total = target.bytes();
        match what.as_str() {
            "fill" => {
                let n = total / (1 << 20);
                go(
                    &mut target,
                    Client {
                        bytes: 1 << 20,
                        pattern: Pattern::Sequential,
                        pace: Pace::Depth(4),
                        ios_max: n / 1,
                        ..base
                    },
                    1e4,
                    "fill",
                )
            }
            "table4" => {
                for (kib, secs) in [(8u64, 0.3), (16, 0.3), (64, 0.3), (8192, 1.0)] {
                    let pace = Pace::Depth(if kib > 1000 { 8 } else { 256 });
                    go(
                        &mut target,
                        Client { bytes: kib << 10, reads: 1.0, pace, ..base.clone() },
                        secs,
                        &format!("read {kib}K"),
                    );
                }
            }
            "w8m" => go(
                &mut target,
                Client { bytes: 8 << 20, pace: Pace::Depth(8), ..base },
                3.0,
                "write 8M depth 8",
            ),
            "age" => {
                let n = total / (8 << 20) * 3 / 2;
                go(
                    &mut target,
                    Client { bytes: 8 << 20, pace: Pace::Depth(1), ios_max: n, ..base },
                    1e4,
                    "age 8M x3",
                )
            }
            "age4" => {
                let n = total / 4096 * 2;
                go(
                    &mut target,
                    Client { bytes: 4096, pace: Pace::Depth(32), ios_max: n / 32 * 32, ..base },
                    1e5,
                    "age 4K x2",
                )
            }
            "sync8" => go(
                &mut target,
                Client { bytes: 8 << 20, pace: Pace::Depth(1), ..base },
                60.0,
                "write 8M sync",
            ),
            "sync352" => go(
                &mut target,
                Client { bytes: 352 << 20, pace: Pace::Depth(1), ..base },
                60.0,
                "write 352M sync",
            ),
            "r4" => go(
                &mut target,
                Client { bytes: 4096, reads: 1.0, pace: Pace::Depth(1024), ..base },
                0.3,
                "read 4K 1024",
            ),
            "r4s" => go(
                &mut target,
                Client { bytes: 4096, reads: 1.0, pace: Pace::Depth(1), ..base },
                0.3,
                "read 4K sync",
            ),
            x => panic!("{x}"),
        }
    }
}

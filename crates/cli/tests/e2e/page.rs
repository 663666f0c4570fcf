//! The page of a server under load, in a real browser: every chart has points in view, every unit its cell, and no script
//! fails. The browser runs in virtual time, so its polls take no longer than the server's answers; what it draws is the
//! history that the server has from real ones.

use crate::nbd::Client;
use crate::scratch::Scratch;
use crate::server::Server;
use crate::tools::{output, pattern, said};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longest until the server has a history of the load.
const PATIENCE: Duration = Duration::from_secs(60);
const BLOCK: u64 = 4096;

/// The charts that a device with a fast tier has.
const CHARTS: [&str; 8] =
    ["read_latency", "write_latency", "iops", "bandwidth", "waf", "gc", "fast", "wear"];

#[test]
fn the_page_draws_what_a_server_under_load_does_and_no_script_of_it_fails() {
    let scratch = Scratch::new("page");
    let fast = scratch.path().join("fast");
    let fast = fast.to_str().expect("UTF-8");
    let server =
        Server::start(&scratch, &["--profile", "instant", "--capacity", "64MiB", "--fast", fast]);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| load(server.connect(), &over));
        let looked = std::panic::catch_unwind(|| {
            wait_for_history(&server);
            look(&scratch, &format!("http://{}/", server.http()))
        });
        over.store(true, Ordering::Relaxed);
        let (dom, log) = looked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let units = count(&dom, "data-unit=");
        assert!(units >= 2 && count(&dom, "class=\"fast") >= 1, "{units} units\n{dom}");
        judge(&dom, &log).unwrap_or_else(|fault| panic!("{fault}\n{log}\n{dom}"));
        // Whoever takes this test for a page that works must know that it finds one that does not.
        let empty = dom.replace("data-points=\"", "data-points=\"0\" data-was=\"");
        let failed = format!("[1:1:INFO:CONSOLE:3] \"Uncaught TypeError: x\"\n{log}");
        let nobody = dom.replace("data-polls=", "data-none=");
        for (dom, log) in [(&empty, &log), (&dom, &failed), (&nobody, &log)] {
            assert!(judge(dom, log).is_err(), "{log}\n{dom}");
        }
    });
    server.terminate();
}

/// Overwrites at random and reads, so that GC has work, until it is over.
fn load(mut client: Client, over: &AtomicBool) {
    let mut random = flash::Random::new(7);
    let blocks = client.size / BLOCK;
    let data = pattern(1, 64 * BLOCK as usize);
    (0..blocks / 64).for_each(|chunk| client.write(chunk * 64 * BLOCK, &data));
    while !over.load(Ordering::Relaxed) {
        let at = random.next_u64() % (blocks - 4) * BLOCK;
        client.write(at, &data[..4 * BLOCK as usize]);
        client.read(random.next_u64() % blocks * BLOCK, BLOCK as u32);
        // The machine is also somebody else's.
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Until the server knows of some steps with reads and writes.
fn wait_for_history(server: &Server) {
    let place = client::Place::from(server.http());
    let deadline = Instant::now() + PATIENCE;
    loop {
        let text = client::http::get(&place, "/history").expect("a history");
        let history: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let asked = |name: &str| {
            let column = history["fine"][name].as_array().expect("a column");
            column.iter().filter(|value| value.as_f64().is_some_and(|value| value > 0.0)).count()
        };
        if asked("read_p99_ns") >= 3 && asked("write_p99_ns") >= 3 && asked("erases_per_sec") >= 1 {
            return;
        }
        assert!(Instant::now() < deadline, "no history of the load: {text}");
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// What a browser made of a page after some polls, and what its console said.
fn look(scratch: &Scratch, url: &str) -> (String, String) {
    let profile = scratch.path().join("browser");
    let profile = format!("--user-data-dir={}", Path::new(&profile).display());
    let seen = output(
        "chromium",
        &[
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-dev-shm-usage",
            "--enable-logging=stderr",
            "--window-size=1280,2000",
            "--virtual-time-budget=7000",
            "--dump-dom",
            &profile,
            url,
        ],
    );
    assert!(seen.status.success(), "chromium: {}\n{}", seen.status, said(&seen));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&seen.stdout), text(&seen.stderr))
}

/// Whether the page is as it should be, or what is wrong.
fn judge(dom: &str, log: &str) -> Result<(), String> {
    // A script that throws, a file that is not there, and what the page's own rules forbid are told there.
    if let Some(told) = log.lines().find(|line| line.contains(":CONSOLE")) {
        return Err(format!("the console of the browser has something: {told}"));
    }
    let polls = number(dom, "<body", "data-polls").unwrap_or(0);
    if polls < 3 {
        return Err(format!("the page has asked {polls} times"));
    }
    for chart in CHARTS {
        let points = number(dom, &format!("id=\"chart_{chart}\""), "data-points").unwrap_or(0);
        if points == 0 {
            return Err(format!("the chart {chart} is empty"));
        }
    }
    for (id, holds) in [("volumes", "default"), ("state", "running"), ("commands", "nbd-client")] {
        let part = dom.split(&format!("id=\"{id}\"")).nth(1).unwrap_or_default();
        let end = part.find("</section>").or(part.find("</span>")).unwrap_or(part.len());
        if !part[..end].contains(holds) {
            return Err(format!("{id} does not tell {holds}"));
        }
    }
    Ok(())
}

/// The number of an attribute of the element whose tag holds `mark`.
fn number(dom: &str, mark: &str, attribute: &str) -> Option<u64> {
    let at = dom.find(mark)?;
    let begin = dom[..at + 1].rfind('<')?;
    let tag = &dom[begin..begin + dom[begin..].find('>')?];
    let value = tag.split(&format!("{attribute}=\"")).nth(1)?;
    value.split('"').next()?.parse().ok()
}

fn count(dom: &str, mark: &str) -> usize {
    dom.matches(mark).count()
}

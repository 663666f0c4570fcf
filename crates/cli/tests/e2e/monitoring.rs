//! The dashboard and the alert rules of `monitoring/`, loaded into a real Prometheus that scrapes a real server: every
//! rule is evaluated, every query of the dashboard is answered, and every metric that they name is one of the server's.

use crate::scratch::Scratch;
use crate::server::Server;
use crate::tools::{find, output, pattern, said, skipped};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(180);

/// The folder of what is tested.
fn monitoring(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../monitoring").join(name)
}

/// A program of Prometheus: that of the search path, or of the package that `./x setup` unpacks.
fn program(test: &str, name: &str) -> Option<PathBuf> {
    let binary = Path::new(env!("CARGO_BIN_EXE_weir"));
    let target = binary.ancestors().nth(2);
    let unpacked = target.map(|target| target.join("prometheus/usr/bin").join(name));
    let found = find(name).or(unpacked.filter(|path| path.exists()));
    if found.is_none() {
        skipped(test, &format!("there is no {name}: `./x setup` fetches it"));
    }
    found
}

/// Killed when it is dropped.
struct Prometheus {
    child: Child,
    place: client::Place,
    log: PathBuf,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Prometheus {
    /// One that scrapes `target` every second, with our rules.
    fn start(program: &Path, scratch: &Scratch, target: &str, more: &[&str]) -> Self {
        let rules = monitoring("weir-rules.yml").canonicalize().expect("the rules");
        let config = format!(
            "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\nrule_files: [{}]\n\
             scrape_configs: [{{ job_name: weir, static_configs: [{{ targets: [\"{target}\"] }}] }}]\n",
            rules.display()
        );
        let file = scratch.file("prometheus.yml");
        fs::write(&file, config).expect("a config");
        // Somebody else may take it in between: then Prometheus says so and the test fails.
        let free = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
        let address = free.expect("a free port");
        let log = scratch.path().join("prometheus.log");
        let child = Command::new(program)
            .arg(format!("--config.file={file}"))
            .arg(format!("--storage.tsdb.path={}", scratch.path().join("tsdb").display()))
            .arg(format!("--web.listen-address={address}"))
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log).expect("a log"))
            .spawn()
            .expect("prometheus starts");
        Self { child, place: client::Place::from(address), log }
    }

    fn ask(&self, path: &str) -> Result<Value, String> {
        let body = client::http::get(&self.place, path)?;
        serde_json::from_str(&body).map_err(|error| format!("{path}: {error}: {body}"))
    }

    /// Asks, each time after `work`, until each of these queries has found something.
    fn until_found(&self, mut wanted: Vec<String>, mut work: impl FnMut()) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            work();
            wanted.retain(|query| !self.query(query).is_ok_and(|series| series > 0));
            if wanted.is_empty() {
                return;
            }
            let told = || fs::read_to_string(&self.log).unwrap_or_default();
            assert!(Instant::now() < deadline, "nothing is found by {wanted:#?}\n{}", told());
            std::thread::sleep(Duration::from_millis(500));
        }
    }

    /// How many series a query finds.
    fn query(&self, query: &str) -> Result<usize, String> {
        let escaped: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let answer = self.ask(&format!("/api/v1/query?query={escaped}"))?;
        let series = answer["data"]["result"].as_array().ok_or(format!("{query}: {answer}"))?;
        Ok(series.len())
    }
}

/// What every query of the dashboard asks, with values for what somebody chooses in Grafana.
fn dashboard_queries() -> Vec<String> {
    let text = fs::read_to_string(monitoring("grafana-weir.json")).expect("the dashboard");
    let dashboard: Value = serde_json::from_str(&text).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels").iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let asked = targets.map(|target| target["expr"].as_str().expect("a query").to_owned());
    asked
        .map(|query| query.replace("$__rate_interval", "1m").replace("$instance", ".*"))
        .map(|query| query.replace("$volume", ".*"))
        .collect()
}

/// The metrics of Weir that a text names, without what a histogram adds.
fn named(text: &str) -> BTreeSet<String> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let words = text.split(|c| !is_word(c)).filter(|word| word.starts_with("weir_"));
    let base = |word: &str| {
        let of_histogram = word.starts_with("weir_request_duration_seconds_");
        let ending = ["_bucket", "_count", "_sum"].iter().find_map(|end| word.strip_suffix(end));
        ending.filter(|_| of_histogram).unwrap_or(word).to_owned()
    };
    words.map(base).collect()
}

#[test]
fn a_real_prometheus_evaluates_every_rule_and_answers_every_query_of_the_dashboard() {
    let test = "a_real_prometheus_evaluates_every_rule";
    let Some(program) = program(test, "prometheus") else { return };
    let scratch = Scratch::new("monitoring");
    let fast = scratch.path().join("fast");
    let fast = fast.to_str().expect("UTF-8");
    let server =
        Server::start(&scratch, &["--profile", "instant", "--capacity", "64MiB", "--fast", fast]);
    let target = server.http();
    let prometheus = Prometheus::start(&program, &scratch, &target.to_string(), &[]);
    let mut client = server.connect();
    let data = pattern(3, 1 << 20);
    let queries = dashboard_queries();
    assert!(queries.len() >= 40, "{} queries", queries.len());
    // Until all that there must be something to say of is told: rates need some scrapes with load between them, and
    // how soon these come is for the machine to say.
    let recorded = ["weir:waf:ratio_rate5m", "weir:request_duration_seconds:p99_rate5m"];
    let wanted = queries.into_iter().chain(recorded.map(str::to_owned)).collect();
    prometheus.until_found(wanted, || {
        (0..8).for_each(|at| client.write(at << 20, &data));
        client.read(0, 1 << 20);
    });
    let rules = prometheus.ask("/api/v1/rules").expect("rules");
    let groups = rules["data"]["groups"].as_array().expect("groups").iter();
    let rules: Vec<&Value> = groups.flat_map(|group| group["rules"].as_array().unwrap()).collect();
    assert!(rules.len() >= 17, "{} rules", rules.len());
    for rule in rules {
        assert_eq!(rule["health"], "ok", "{rule}");
        assert_ne!(rule["state"], "firing", "nothing is wrong with this server: {rule}");
    }
    names_are_the_servers(&server);
    server.terminate();
}

#[test]
fn a_prometheus_that_takes_native_histograms_gets_the_latencies_as_such_and_everything_else() {
    let Some(program) = program("a_prometheus_that_takes_native_histograms", "prometheus") else {
        return;
    };
    let scratch = Scratch::new("native-histograms");
    let server = Server::start(&scratch, &["--profile", "instant", "--capacity", "64MiB"]);
    let more = ["--enable-feature=native-histograms"];
    let prometheus = Prometheus::start(&program, &scratch, &server.http().to_string(), &more);
    let mut client = server.connect();
    (0..100).for_each(|at| client.write(at * 4096, &pattern(at, 4096)));
    let of_writes = "weir_request_duration_seconds{volume=\"default\",op=\"write\"}";
    let wanted = vec![
        format!("histogram_count({of_writes}) == 100"),
        // No write takes a nanosecond or an hour; a bucket is 9 % wide.
        format!("histogram_quantile(0.5, {of_writes}) > 1e-7 < 60"),
        format!("histogram_quantile(1, {of_writes}) * 100 >= 0.99 * histogram_sum({of_writes})"),
        "weir_host_blocks_written_total{shard=\"0\"} == 100".into(),
        "weir_build_info{version!=\"\"} == 1".into(),
        "weir_unit_bands_free > 0".into(),
    ];
    prometheus.until_found(wanted, || ());
    server.terminate();
}

fn names_are_the_servers(server: &Server) {
    let place = client::Place::from(server.http());
    let metrics = client::http::get(&place, "/metrics").expect("metrics");
    let types = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let known: BTreeSet<String> = types.map(str::to_owned).collect();
    for file in ["weir-rules.yml", "weir-rules-test.yml", "grafana-weir.json"] {
        let text = fs::read_to_string(monitoring(file)).expect("a file");
        let unknown: Vec<String> = named(&text).difference(&known).cloned().collect();
        assert!(unknown.is_empty(), "{file} names what no server has: {unknown:?}");
        assert!(named(&text).len() > 5, "{file}");
    }
}

#[test]
fn the_alerts_fire_when_they_should_and_not_before() {
    let test = "the_alerts_fire_when_they_should";
    let Some(promtool) = program(test, "promtool") else { return };
    let promtool = promtool.to_str().expect("UTF-8");
    for (action, file) in [
        ("check", "weir-rules.yml"),
        ("test", "weir-rules-test.yml"),
        ("check", "weir-store-rules.yml"),
        ("test", "weir-store-rules-test.yml"),
    ] {
        let file = monitoring(file);
        let told = output(promtool, &[action, "rules", file.to_str().expect("UTF-8")]);
        assert!(told.status.success(), "{}", said(&told));
    }
}

//! The config of a part of a pool: `[pool]` says which pool and who this part is, `[plane]` where its control plane
//! is. One file may serve several parts: each reads what it needs, and all of it is checked.

use super::PoolError;
use super::doors::Caller;
use super::tls::{self, Identity, IdentityFiles};
use crate::config::{ConfigError, ConfigErrors, Section};
use crate::files;
use flash::{MICROSECOND, MILLISECOND, SECOND};
use pool::controller::Settings;
use pool::controller::policy::POLICIES;
use pool::profile::Quantile;
use pool::words::{MEMBERS_MAX, PoolId};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use toml::Table;

/// What a part of a pool is told.
#[derive(Clone, Debug, PartialEq)]
pub struct PartConfig {
    /// Which pool.
    pub pool: PoolId,
    /// Who this part is.
    pub identity: IdentityFiles,
    /// The control plane.
    pub plane: PlaneSection,
    /// The controller, if there is one here.
    pub controller: Option<ControllerSection>,
}

/// `[controller]`.
#[derive(Clone, Debug, PartialEq)]
pub struct ControllerSection {
    /// Where it listens for reports.
    pub listen: SocketAddr,
    /// Where others find it, if that is elsewhere.
    pub address: SocketAddr,
    /// Without a sign of life for so long, another one takes its place.
    pub lease_ns: u64,
    /// What it plans by.
    pub settings: Settings,
    /// Most connections that it serves at a time.
    pub clients_max: usize,
}

/// `[plane]`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PlaneSection {
    /// Where it is.
    pub at: PlaneAt,
    /// An answer that takes longer does not come.
    pub timeout_ns: u64,
    /// Where Weir's own listens, if not at the address that others connect to.
    pub listen: Option<SocketAddr>,
    /// The folder of its log.
    pub data: PathBuf,
    /// Most connections that it serves at a time.
    pub clients_max: usize,
}

/// Where the control plane of a pool is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum PlaneAt {
    /// Weir's own, `weir pool plane`.
    Embedded(SocketAddr),
    /// Members of an etcd cluster.
    Etcd(Vec<String>),
}

impl std::fmt::Display for PlaneAt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Embedded(address) => write!(f, "{address}"),
            Self::Etcd(members) => f.write_str(&members.join(", ")),
        }
    }
}

/// All that it takes to connect to the control plane.
#[derive(Clone, Debug)]
pub struct PlaneConfig {
    /// Of which pool.
    pub pool: PoolId,
    /// Where it is.
    pub at: PlaneAt,
    /// An answer that takes longer does not come.
    pub timeout_ns: u64,
    /// Who connects.
    pub identity: Identity,
    /// Its files, for who reads them itself.
    pub files: IdentityFiles,
}

impl PlaneConfig {
    /// This part as others meet it; its certificate names it.
    pub(crate) fn caller(&self) -> Caller {
        let name = self.files.certificate.file_stem().unwrap_or_default().to_string_lossy();
        Caller { pool: self.pool, identity: self.identity.clone(), name: name.into_owned() }
    }
}

impl PartConfig {
    /// Reads a config file.
    ///
    /// # Errors
    /// All that is wrong with it, by key.
    pub fn load(path: &Path) -> Result<Self, PoolError> {
        load(path, Self::parse)
    }

    /// Reads a config. Relative paths in it are relative to `base`, the folder of the file.
    ///
    /// # Errors
    /// As [`PartConfig::load`].
    pub fn parse(text: &str, base: &Path) -> Result<Self, ConfigErrors> {
        let mut table = crate::config::table(text)?;
        // One file may serve several parts: those that read these sections check them.
        OF_OTHERS.iter().for_each(|section| drop(table.remove(*section)));
        Self::of_table(table, base)
    }

    /// The same of the sections of this config.
    pub(super) fn of_table(table: Table, base: &Path) -> Result<Self, ConfigErrors> {
        let mut errors = Vec::new();
        let mut root = Section::new("", table, &mut errors);
        let pool = pool(root.section("pool"), base);
        let plane = plane(root.section("plane"), base);
        let has_controller = root.has("controller");
        let controller = controller(root.section("controller"), has_controller);
        root.finish(&["pool", "plane", "controller"]);
        match (errors.is_empty(), pool, plane) {
            (true, Some((pool, identity)), Some(plane)) => {
                Ok(Self { pool, identity, plane, controller })
            }
            _ => Err(ConfigErrors(errors)),
        }
    }

    /// Reads the certificates, to connect to the control plane.
    ///
    /// # Errors
    /// The file that cannot be used.
    pub fn plane(&self) -> Result<PlaneConfig, PoolError> {
        Ok(PlaneConfig {
            pool: self.pool,
            at: self.plane.at.clone(),
            timeout_ns: self.plane.timeout_ns,
            identity: tls::load(&self.identity, self.pool)?,
            files: self.identity.clone(),
        })
    }
}

/// Reads a config file by `parse`, which gets the folder of the file.
pub(super) fn load<T>(
    path: &Path,
    parse: impl FnOnce(&str, &Path) -> Result<T, ConfigErrors>,
) -> Result<T, PoolError> {
    let text = files::read_named_text(path).map_err(|error| PoolError::File {
        path: path.into(),
        reason: format!("cannot be read: {error}: name a config of the pool with --config"),
    })?;
    let in_file = |errors: ConfigErrors| {
        let ConfigErrors(mut errors) = errors;
        for error in &mut errors {
            error.key = format!("{}: {}", path.display(), error.key);
        }
        PoolError::Config(ConfigErrors(errors))
    };
    parse(&text, path.parent().unwrap_or(Path::new("."))).map_err(in_file)
}

/// Sections of nodes and of clients of volumes.
const OF_OTHERS: [&str; 11] = [
    "node", "client", "device", "raw", "runtime", "ftl", "nbd", "http", "control", "plugin",
    "server",
];

const ID_EXAMPLE: &str = "\"(32 hexadecimal digits, from weir pool certs)\"";

/// `[pool]`.
fn pool(mut section: Section<'_>, base: &Path) -> Option<(PoolId, IdentityFiles)> {
    let id = needed(&mut section, "id", ID_EXAMPLE);
    let id = id.and_then(|text| match u128::from_str_radix(&text, 16) {
        Ok(id) if text.len() == 32 => Some(PoolId(id)),
        _ => {
            let reason = "must be the 32 hexadecimal digits of a pool";
            section.refuse("id", &format!("{text:?}"), reason, ID_EXAMPLE);
            None
        }
    });
    let mut file = |key, example| needed(&mut section, key, example).map(|file| base.join(file));
    let authority = file("authority", "\"certs/authority.pem\"");
    let certificate = file("certificate", "\"certs/node-1.pem\"");
    let key = file("key", "\"certs/node-1.key\"");
    section.finish(&["id", "authority", "certificate", "key"]);
    let identity = IdentityFiles { authority: authority?, certificate: certificate?, key: key? };
    Some((id?, identity))
}

/// `[plane]`.
fn plane(mut section: Section<'_>, base: &Path) -> Option<PlaneSection> {
    let (embedded, etcd) = (section.has("address"), section.has("etcd"));
    let address = section.address("address", ADDRESS_EXAMPLE);
    let members = section.texts("etcd", ETCD_EXAMPLE);
    let at = match (embedded, etcd) {
        (true, true) => {
            let reason = "there is `address`, too, and a pool has one control plane: leave one out";
            section.refuse("etcd", "", reason, ETCD_EXAMPLE);
            None
        }
        (false, false) => {
            let reason = "is missing, and so is `etcd`: a pool needs a control plane";
            section.refuse("address", "", reason, ADDRESS_EXAMPLE);
            None
        }
        (true, false) => address.map(PlaneAt::Embedded),
        (false, true) => etcd_members(&mut section, members),
    };
    let listen = section.address("listen", ADDRESS_EXAMPLE);
    let data = section.text("data", "\"plane-data\"").unwrap_or("plane-data".to_owned());
    let timeout_ns = section.duration("timeout", "\"1s\"").unwrap_or(SECOND);
    if !(100 * MILLISECOND..=60 * SECOND).contains(&timeout_ns) {
        section.refuse("timeout", &format!("{timeout_ns} ns"), "must be 100ms to 60s", "\"1s\"");
    }
    let clients_max = section.integer("clients_max", 1, 1 << 16, "1000").unwrap_or(1000) as usize;
    section.finish(&["address", "etcd", "listen", "data", "timeout", "clients_max"]);
    Some(PlaneSection { at: at?, timeout_ns, listen, data: base.join(data), clients_max })
}

const ADDRESS_EXAMPLE: &str = "\"10.0.0.1:7400\"";
const ETCD_EXAMPLE: &str = "[\"https://10.0.0.1:2379\"]";

/// `[controller]`.
fn controller(mut section: Section<'_>, is_there: bool) -> Option<ControllerSection> {
    if is_there && !section.has("listen") {
        section.refuse("listen", "", "is missing", LISTEN_EXAMPLE);
    }
    let listen = section.address("listen", LISTEN_EXAMPLE);
    let elsewhere = section.address("address", LISTEN_EXAMPLE);
    if let Some(address) = elsewhere.or(listen).filter(|address| address.ip().is_unspecified()) {
        let reason = "is no address that others can connect to: set controller.address";
        section.refuse("listen", &format!("{address}"), reason, LISTEN_EXAMPLE);
    }
    let settings = settings(&mut section);
    let lease_ns = section.duration("lease", "\"3s\"").unwrap_or(3 * SECOND);
    if !(SECOND..=60 * SECOND).contains(&lease_ns) {
        section.refuse("lease", &format!("{lease_ns} ns"), "must be 1s to 60s", "\"3s\"");
    }
    let clients_max = section.integer("clients_max", 1, 1 << 16, "4000").unwrap_or(4000) as usize;
    section.finish(&[
        "listen",
        "address",
        "policy",
        "replicas",
        "slo",
        "slo_quantile",
        "period",
        "slot",
        "lease",
        "clients_max",
    ]);
    let listen = listen?;
    let address = elsewhere.unwrap_or(listen);
    Some(ControllerSection { listen, address, lease_ns, settings, clients_max })
}

const LISTEN_EXAMPLE: &str = "\"10.0.0.1:7401\"";

/// What a controller plans by.
fn settings(section: &mut Section<'_>) -> Settings {
    let mut settings = Settings::default();
    let names = POLICIES.map(|(name, _)| name);
    if let Some(policy) = section.choice("policy", &names) {
        settings.policy = policy;
    }
    if let Some(replicas) = section.integer("replicas", 1, MEMBERS_MAX as u64, "2") {
        settings.replicas = replicas as u32;
    }
    let quantiles = ["p90", "p50", "p99", "p999", "p9999"];
    settings.slo.quantile = match section.choice("slo_quantile", &quantiles).as_deref() {
        Some("p50") => Quantile::P50,
        Some("p99") => Quantile::P99,
        Some("p999") => Quantile::P999,
        Some("p9999") => Quantile::P9999,
        _ => Quantile::P90,
    };
    let mut within = |key: &str, example: &str, least: u64, most: u64| {
        let ns = section.duration(key, example)?;
        if (least..=most).contains(&ns) {
            return Some(ns);
        }
        let reason = format!("must be {} us to {} us", least / MICROSECOND, most / MICROSECOND);
        section.refuse(key, &format!("{ns} ns"), reason, example);
        None
    };
    if let Some(ns) = within("slo", "\"1ms\"", 10 * MICROSECOND, 10 * SECOND) {
        settings.slo.us = ns as f64 / MICROSECOND as f64;
    }
    let period_ns = within("period", "\"100ms\"", 10 * MILLISECOND, 10 * SECOND);
    settings.period_ns = period_ns.unwrap_or(settings.period_ns);
    let slot_ns = within("slot", "\"300ms\"", 10 * MILLISECOND, 60 * SECOND);
    settings.slot_ns = slot_ns.unwrap_or(settings.slot_ns);
    // Plans are late now and then: what is in force must outlive that.
    settings.valid_ns = settings.valid_ns.max(10 * settings.period_ns);
    settings.silent_ns = settings.silent_ns.max(10 * settings.period_ns);
    settings
}

/// Plain HTTP would let anybody on the way change who owns a volume.
fn etcd_members(section: &mut Section<'_>, members: Vec<String>) -> Option<PlaneAt> {
    let is_near = |rest: &str| rest.parse().is_ok_and(|at: SocketAddr| at.ip().is_loopback());
    for member in &members {
        let near = member.strip_prefix("http://").is_some_and(is_near);
        if !near && member.strip_prefix("https://").is_none_or(str::is_empty) {
            let reason = "must be URLs that begin with https:// (or http:// and 127.0.0.1:PORT)";
            section.refuse("etcd", &format!("{member:?}"), reason, ETCD_EXAMPLE);
            return None;
        }
    }
    if members.is_empty() {
        section.refuse("etcd", "[]", "must name a member", ETCD_EXAMPLE);
        return None;
    }
    Some(PlaneAt::Etcd(members))
}

fn needed(section: &mut Section<'_>, key: &str, example: &str) -> Option<String> {
    if !section.has(key) {
        section.refuse(key, "", "is missing", example);
    }
    section.text(key, example)
}

impl From<ConfigErrors> for PoolError {
    fn from(errors: ConfigErrors) -> Self {
        Self::Config(errors)
    }
}

impl From<ConfigError> for PoolError {
    fn from(error: ConfigError) -> Self {
        Self::Config(ConfigErrors(vec![error]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOL: &str = "[pool]\nid = \"000000000000000000000000000000ff\"\nauthority = \"a\"\n\
                        certificate = \"b\"\nkey = \"c\"\n";

    fn parse(text: &str) -> Result<PartConfig, String> {
        PartConfig::parse(text, Path::new("/base")).map_err(|errors| errors.to_string())
    }

    #[test]
    fn a_part_is_told_its_pool_itself_and_where_the_plane_is() {
        let config = parse(&format!("{POOL}[plane]\naddress = \"127.0.0.1:7\"\n")).expect("whole");
        assert_eq!(config.pool, PoolId(255));
        assert_eq!(config.identity.key, Path::new("/base/c"));
        assert_eq!(config.plane.at, PlaneAt::Embedded(([127, 0, 0, 1], 7).into()));
        assert_eq!(config.plane.data, Path::new("/base/plane-data"));
        let text = format!("{POOL}[plane]\netcd = [\"https://a:2379\", \"http://127.0.0.1:1\"]\n");
        let PlaneAt::Etcd(members) = parse(&text).expect("whole").plane.at else {
            panic!("etcd was named")
        };
        assert_eq!(members.len(), 2);
    }

    #[test]
    fn the_config_of_a_client_or_node_serves_who_asks_the_plane_too() {
        for section in OF_OTHERS {
            let text = format!("{POOL}[plane]\naddress = \"127.0.0.1:7\"\n[{section}]\n");
            assert_eq!(parse(&text).expect(section).pool, PoolId(255));
        }
    }

    #[test]
    fn a_controller_is_told_what_it_plans_by_and_where_others_find_it() {
        let parse = |keys: &str| {
            let text = format!("{POOL}[plane]\naddress = \"127.0.0.1:7\"\n[controller]\n{keys}");
            parse(&text).map(|config| config.controller.expect("it is there"))
        };
        let plain = parse("listen = \"10.0.0.1:7401\"\n").expect("whole");
        assert_eq!((plain.address, plain.settings), (plain.listen, Settings::default()));
        let keys = "listen = \"0.0.0.0:7401\"\naddress = \"10.0.0.1:7401\"\npolicy = \"ring\"\n\
                    slo = \"500us\"\nslo_quantile = \"p99\"\nperiod = \"1s\"\n";
        let told = parse(keys).expect("whole");
        assert_eq!((told.settings.slo.us, told.settings.policy.as_str()), (500.0, "ring"));
        assert_eq!((told.settings.period_ns, told.settings.valid_ns), (SECOND, 10 * SECOND));
        for (keys, said) in [
            ("policy = \"ring\"\n", "controller.listen"),
            ("listen = \"0.0.0.0:7401\"\n", "controller.address"),
            ("listen = \"10.0.0.1:1\"\npolicy = \"best\"\n", "solver"),
            ("listen = \"10.0.0.1:1\"\nperiod = \"1ms\"\n", "controller.period"),
        ] {
            let text = parse(keys).expect_err(keys);
            assert!(text.contains(said), "{keys}: {text}");
        }
    }

    #[test]
    fn what_is_missing_unknown_or_wrong_is_told_by_key_all_at_once() {
        let text = parse("[pool]\nid = \"xyz\"\nkeyy = 1\n[plane]\ntimeout = \"1h\"\n[plan]\n")
            .expect_err("nothing is right");
        for part in
            ["pool.id", "pool.authority", "pool.keyy", "plane.timeout", "plane.address", "plan:"]
        {
            assert!(
                text.contains(part) || text.contains(&part.replace(':', " =")),
                "{part}: {text}"
            );
        }
        for (line, key) in [
            ("etcd = [\"http://10.0.0.1:2379\"]", "https"),
            ("etcd = []", "member"),
            ("etcd = [\"https://a:1\"]\naddress = \"1.1.1.1:1\"", "one control plane"),
            ("address = \"nowhere\"", "IP address"),
        ] {
            let text = parse(&format!("{POOL}[plane]\n{line}\n")).expect_err(line);
            assert!(text.contains(key), "{line}: {text}");
        }
    }
}

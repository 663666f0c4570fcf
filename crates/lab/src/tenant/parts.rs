//! Which tenants a device has, and how it is divided among them.

use super::database::{self, Database};
use super::lsm::{self, Lsm};
use super::recorded::{Recorded, Request};
use super::ring::Ring;
use super::{Program, Tenant, Tenants};
use flash::Random;
use std::path::PathBuf;
use std::sync::Arc;

/// What a tenant runs.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// MySQL (InnoDB) under TPC-C.
    Mysql,
    /// Cassandra under YCSB-A; whether its file system trims.
    Cassandra {
        /// Deleted files are trimmed.
        trims: bool,
    },
    /// PostgreSQL under TPC-B, at the size at which it was recorded.
    Postgresql,
    /// SQLite under YCSB-A, likewise.
    Sqlite,
    /// A log that is kept for one round of its part.
    Log,
    /// A recorded trace.
    Recorded(PathBuf),
}

/// A tenant, as an experiment says it.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// In tables.
    pub name: String,
    /// What it runs.
    pub kind: Kind,
    /// Its share of the device.
    pub share: f64,
    /// Connections, clients, or requests in flight; 0 for those of the source.
    pub depth: u32,
    /// Processor time of a transaction; `None` for that of the source.
    pub think_ns: Option<u64>,
    /// What it does is kept.
    pub profiled: bool,
}

/// Reads a trace: its requests, and the bytes they span.
pub type ReadTrace<'a> = &'a mut dyn FnMut(&PathBuf) -> Result<(Arc<Vec<Request>>, u64), String>;

/// Tenants in a row on a device of `bytes`, each from a whole MiB on. `recorded` reads a trace.
pub fn parts(
    parts: &[Part],
    bytes: u64,
    seed: u64,
    recorded: ReadTrace<'_>,
) -> Result<Tenants, String> {
    const MIB: u64 = 1 << 20;
    let mut random = Random::new(seed);
    let (mut base, mut tenants) = (0, Vec::new());
    for part in parts {
        let wrong = |why: String| format!("tenant {:?}: {why}", part.name);
        let room = (bytes as f64 * part.share) as u64 / MIB * MIB;
        let seed = random.next_u64();
        let fits = |wanted: u64| {
            let why = format!("needs {wanted} bytes, and its share of the device is {room}");
            if wanted <= room { Ok(()) } else { Err(wrong(why)) }
        };
        let program: Box<dyn Program> = match &part.kind {
            Kind::Mysql | Kind::Postgresql | Kind::Sqlite => {
                let config = database_config(part, room);
                fits(config.bytes())?;
                Box::new(Database::new(config, seed).map_err(wrong)?)
            }
            Kind::Cassandra { trims } => {
                let mut config = lsm::Config::cassandra(room, or(part.depth, 32));
                config.trims = *trims;
                config.think_ns = part.think_ns.unwrap_or(config.think_ns);
                Box::new(Lsm::new(config, seed).map_err(wrong)?)
            }
            Kind::Log => Box::new(Ring::new(room, APPEND_BYTES).map_err(wrong)?),
            Kind::Recorded(path) => {
                let (requests, span) = recorded(path).map_err(wrong)?;
                fits(span)?;
                Box::new(Recorded::new(requests, span, or(part.depth, 1)))
            }
        };
        tenants.push(Tenant::new(&part.name, base, program, part.profiled));
        base += room;
    }
    Ok(Tenants::new(tenants))
}

/// Of a log, at a time.
const APPEND_BYTES: u64 = 32 << 10;

fn or(depth: u32, default: u32) -> u32 {
    if depth == 0 { default } else { depth }
}

fn database_config(part: &Part, room: u64) -> database::Config {
    let mut config = match part.kind {
        Kind::Postgresql => database::Config::postgresql_tpcb(),
        Kind::Sqlite => database::Config::sqlite_ycsba(),
        _ => database::Config::innodb_tpcc_in(room),
    };
    config.connections = or(part.depth, config.connections);
    config.think_ns = part.think_ns.unwrap_or(config.think_ns);
    config
}

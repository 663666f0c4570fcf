//! A pool as a device: a volume on unlike drives of many machines, with its client, its controller, a network and
//! nodes whose drives are as slow as published profiles say.

use super::Scale;
use super::parse::{one_of, required, settings};
use crate::driver::{REQUEST_BLOCKS_MAX, Sim};
use crate::medium::Medium;
use crate::pool::cluster::{Cluster, NodePlan};
use crate::pool::drive::Episodes;
use crate::pool::medium::{PLANE_NS, PoolMedium};
use crate::pool::network::Wire;
use crate::pool::volume::{Event, PoolVolume, Trouble};
use flash::{BLOCK_BYTES, FastTier, Geometry, Instant, Pairing};
use ftl::{FormatOptions, Ftl, Settings};
use nand::{KeyError, Keys};
use pool::client::Config;
use pool::controller::{self, policy::POLICIES};
use pool::profile::{LoadModel, PEAK_US, Profile, Quantile, Slo};
use pool::words::{DomainId, Generation, MEMBERS_MAX, NodeId, VolumeId};
use std::cell::RefCell;
use std::rc::Rc;

/// See the head of this file.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolChoice {
    /// Profiles of the drives, one a node.
    pub drives: Vec<String>,
    /// Failure domains that the nodes are spread over in turn.
    pub domains: u32,
    /// What the client goes by.
    pub client: ClientChoice,
    /// What the controller goes by.
    pub controller: controller::Settings,
    /// Between all of them.
    pub wire: Wire,
    /// A transaction of the control plane.
    pub plane_ns: u64,
    /// Lanes of the volume, and bands of each.
    pub lanes: u32,
    /// Likewise.
    pub bands_per_lane: u32,
    /// Blocks of the volume over those of its bands.
    pub utilization: f64,
    /// Of the FTL.
    pub settings: Settings,
    /// What befalls a node.
    pub event: Option<EventChoice>,
}

/// See [`Config`].
#[derive(Clone, Debug, PartialEq)]
pub struct ClientChoice {
    /// When it reads twice.
    pub hedging: String,
    /// Whether it goes by what nodes say of their congestion.
    pub congestion: bool,
}

/// What befalls a node, and when: after the volume was written over so often.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EventChoice {
    /// Of [`PoolChoice::drives`].
    pub node: u32,
    /// What.
    pub trouble: Trouble,
    /// Its first filling counts.
    pub after: f64,
}

const PAGES: u32 = 32;
const SLOTS_PER_PAGE: u32 = 4;
const QUANTILES: [(&str, Quantile); 3] =
    [("p90", Quantile::P90), ("p99", Quantile::P99), ("p999", Quantile::P999)];

/// The tables `[pool]`, `[ftl]` and `[event]`.
pub(super) fn choice(keys: &mut Keys) -> Result<PoolChoice, KeyError> {
    let mut ftl = required(keys, "ftl", "utilization = 0.43")?;
    let utilization = ftl.number("utilization", 0.01, 0.99, "0.43")?;
    let settings = settings(&mut ftl)?;
    ftl.refuse_unknown()?;
    let event = event(keys)?;
    let mut keys = required(keys, "pool", "drives = [\"sdm000024c8d\", \"s39wna0kc01659\"]")?;
    let drives = drives(&mut keys)?;
    let nodes = drives.len() as u32;
    if let Some(event) = event.filter(|event| event.node >= nodes) {
        let reason = format!("there are {nodes} drives, counted from 0");
        return Err(keys.refuse("event.node", event.node, reason, "0"));
    }
    let domains = keys.integer_or("domains", 1, nodes, nodes)?;
    let most = domains.min(MEMBERS_MAX as u32);
    let replicas = keys.integer_or("replicas", 1, most, most.min(2))?;
    let choice = PoolChoice {
        domains,
        client: ClientChoice {
            hedging: one_of(&mut keys, "hedging", &["quantile", "none"])?,
            congestion: if keys.has("congestion") { keys.flag("congestion")? } else { true },
        },
        controller: controller(&mut keys, replicas)?,
        wire: wire(&mut keys)?,
        plane_ns: time_or(&mut keys, "plane_ns", PLANE_NS)?,
        lanes: keys.integer_or("lanes", 1, 4096, 84)?,
        bands_per_lane: keys.integer_or("bands_per_lane", 4, 1 << 16, 13)?,
        drives,
        utilization,
        settings,
        event,
    };
    keys.refuse_unknown()?;
    Ok(choice)
}

fn drives(keys: &mut Keys) -> Result<Vec<String>, KeyError> {
    let example = "[\"sdm000024c8d\", \"s39wna0kc01659\"]";
    let drives = keys.texts("drives", example)?;
    let unknown = drives.iter().find(|name| Profile::builtin(name).is_none());
    if let Some(unknown) = unknown {
        let known = Profile::names().collect::<Vec<_>>().join(", ");
        let reason = format!("no profile of that name; there are {known}");
        return Err(keys.refuse("drives", format!("{unknown:?}"), reason, example));
    }
    Ok(drives)
}

fn controller(keys: &mut Keys, replicas: u32) -> Result<controller::Settings, KeyError> {
    let default = controller::Settings::default();
    let policies = POLICIES.map(|(name, _)| name);
    let policy = if keys.has("policy") {
        one_of(keys, "policy", &policies)?
    } else {
        default.policy.clone()
    };
    let quantile = one_of(keys, "quantile", &QUANTILES.map(|(name, _)| name))?;
    let quantile = QUANTILES.iter().find(|(name, _)| *name == quantile);
    let quantile = quantile.expect("it is one of them").1;
    let slo = Slo { quantile, us: keys.number_or("slo_us", 1.0, 1e6, PEAK_US)? };
    Ok(controller::Settings {
        slo,
        replicas,
        policy,
        period_ns: time_or(keys, "period_ns", default.period_ns)?,
        slot_ns: time_or(keys, "slot_ns", default.slot_ns)?,
        ..default
    })
}

fn wire(keys: &mut Keys) -> Result<Wire, KeyError> {
    let default = Wire::default();
    Ok(Wire {
        delay_ns: time_or(keys, "delay_ns", default.delay_ns)?,
        jitter_ns: time_or(keys, "jitter_ns", default.jitter_ns)?,
        bytes_per_s: keys.large_or("bytes_per_s", 1 << 44, default.bytes_per_s)?,
        ..default
    })
}

fn event(keys: &mut Keys) -> Result<Option<EventChoice>, KeyError> {
    let Some(mut keys) = keys.table("event", "node = 0")? else { return Ok(None) };
    let trouble = match one_of(&mut keys, "trouble", &["slow", "lost"])?.as_str() {
        "lost" => Trouble::Lost,
        _ => Trouble::Slow(keys.number("times", 1.0, 1e6, "100.0")?),
    };
    let node = keys.integer("node", 0, u32::MAX, "0")?;
    let event = EventChoice { node, trouble, after: keys.number("after", 0.0, 1e6, "3.0")? };
    keys.refuse_unknown()?;
    Ok(Some(event))
}

fn time_or(keys: &mut Keys, key: &str, default: u64) -> Result<u64, KeyError> {
    if keys.has(key) { keys.time(key, &default.to_string()) } else { Ok(default) }
}

impl PoolChoice {
    fn geometry(&self, bands_per_lane: u32) -> Geometry {
        Geometry {
            units: self.lanes,
            blocks_per_unit: bands_per_lane,
            pages_per_block: PAGES,
            slots_per_page: SLOTS_PER_PAGE,
            pairing: Pairing::None,
            durable_at_completion: true,
            suspend: false,
            queue_depth: 64,
            endurance: 1_000_000,
            open_blocks_max: 0,
            fast: FastTier::NONE,
        }
    }

    fn config(&self, geometry: Geometry, seed: u64) -> Config {
        let ClientChoice { hedging, congestion } = self.client.clone();
        let replicas = self.controller.replicas;
        let config = Config::new(VolumeId(1), Generation(1), geometry, replicas);
        Config { seed, hedging, congestion, ..config }
    }

    fn profiles(&self) -> impl Iterator<Item = Profile> + '_ {
        let known = |name: &String| Profile::builtin(name).expect("the file was checked");
        self.drives.iter().map(known)
    }

    /// Bytes of bands, and of the volume.
    pub(super) fn bytes(&self) -> (f64, f64) {
        let flash = self.geometry(self.bands_per_lane).slots() as f64 * BLOCK_BYTES as f64;
        (flash, (flash * self.utilization).floor())
    }

    /// Requests of 4 KiB a second that the drives carry by their profiles: reads alone, and writes alone.
    pub(super) fn peaks(&self) -> (f64, f64) {
        let model = |profile| LoadModel::new(&profile, self.controller.slo, 1.0).ok();
        let models = self.profiles().filter_map(model);
        models.fold((0.0, 0.0), |sum, model| (sum.0 + model.peak(0.0), sum.1 + model.peak(100.0)))
    }

    /// Makes it, formatted and empty.
    pub(super) fn build(&self, scale: Scale, seed: u64) -> Result<PoolVolume, String> {
        let slo = self.controller.slo;
        let profiles: Vec<Profile> = self.profiles().collect();
        let plans = (0..).zip(&profiles).map(|(id, profile)| {
            let (domain, seed) = (DomainId(id % self.domains), seed ^ u64::from(id));
            NodePlan::of(profile, domain, Episodes::default(), slo, seed)
                .map_err(|why| why.to_string())
        });
        let plans: Vec<NodePlan> = plans.collect::<Result<_, String>>()?;
        let cluster = Rc::new(RefCell::new(Cluster::new(plans, self.wire, seed)));
        let geometry = self.geometry(scale.of(self.bands_per_lane)?);
        geometry.validate()?;
        let mut medium = PoolMedium::new(cluster.clone(), self.config(geometry, seed))?;
        medium.set_plane_ns(self.plane_ns);
        let settings = Settings { seed, ..self.settings.clone() };
        settings.validate(&geometry)?;
        let logical_blocks = (geometry.slots() as f64 * self.utilization) as u32;
        let options = FormatOptions { logical_blocks, uuid: super::build::UUID, label: Vec::new() };
        let ftl = Ftl::format(geometry, &medium.health(), options, settings.clone())?;
        let relocation = settings.relocation_blocks;
        let mut sim = Sim::new(ftl, medium, REQUEST_BLOCKS_MAX, relocation, settings, Instant(0));
        sim.run_until_ready().map_err(|why| why.to_string())?;
        let (controller, delay_ns) = (self.controller.clone(), self.wire.delay_ns);
        let mut volume =
            PoolVolume::new(sim, cluster, VolumeId(1), &profiles, controller, delay_ns)?;
        if let Some(EventChoice { node, trouble, after }) = self.event {
            let after_blocks = (f64::from(logical_blocks) * after) as u64;
            volume.set_event(Event { node: NodeId(node), trouble, after_blocks });
        }
        Ok(volume)
    }
}

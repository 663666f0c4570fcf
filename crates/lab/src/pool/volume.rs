//! A volume of a pool as a [`Target`]: its client, and a controller that plans every 100 ms of what it is told.
//!
//! Invariant: the controller hears and says nothing but what messages could carry: what nodes and clients saw
//! of the last period, weights and modes back, each a delay of the network later.

use super::cluster::{Cluster, Seen};
use super::medium::PoolMedium;
use super::waits::WaitsSeen;
use crate::driver::{Failure, Sim};
use crate::target::{Done, Io, IoKind, Rules, SimTarget, Target, TargetCounts};
use flash::{BLOCK_BYTES, Instant, SECOND};
use ftl::Ftl;
use pool::client::Plan;
use pool::controller::solver::{self, Demand, Drive, Fleet, Shape, Terms};
use pool::controller::weights::Weights;
use pool::controller::{Controller, Input, NodeSeen, Output, Settings, VolumeSeen};
use pool::profile::{LoadModel, Profile, ProfileError};
use pool::words::{Members, NodeId, VolumeId};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// What befalls a node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Trouble {
    /// Its drive is so many times slower than its profile from then on.
    Slow(f64),
    /// Its power is cut.
    Lost,
}

/// Something that befalls a node while the volume is used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Event {
    /// Which.
    pub node: NodeId,
    /// What.
    pub trouble: Trouble,
    /// When so many blocks of the volume were written.
    pub after_blocks: u64,
}

/// See the head of this file.
pub struct PoolVolume {
    inner: SimTarget<Ftl, PoolMedium>,
    cluster: Rc<RefCell<Cluster>>,
    volume: VolumeId,
    controller: Controller,
    period_ns: u64,
    /// When what was seen is told next.
    tells_at: Instant,
    /// Weights on their way.
    coming: VecDeque<(Instant, Weights)>,
    delay_ns: u64,
    /// The drives as their profiles are, and what a plan of them keeps to.
    ideal: (Fleet, Terms),
    event: Option<Event>,
    blocks_written: u64,
    /// Blocks that were asked for since it was told.
    reads: u64,
    writes: u64,
    counted: TargetCounts,
    /// Bytes that the host wrote, and that were programmed, of the last periods.
    written: f64,
    programmed: f64,
    waits: Option<WaitsSeen>,
}

/// Of what was counted before so much counts on when a period is over: a period in which hardly anything was
/// written says nothing about write amplification.
const FADES: f64 = 0.8;

impl PoolVolume {
    /// Of a volume that is ready, on nodes with these profiles, by their names.
    ///
    /// # Errors
    /// What of the settings, or of a profile, makes no sense.
    pub fn new(
        sim: Sim<Ftl, PoolMedium>,
        cluster: Rc<RefCell<Cluster>>,
        volume: VolumeId,
        profiles: &[Profile],
        settings: Settings,
        delay_ns: u64,
    ) -> Result<Self, String> {
        let now = sim.now();
        let ideal = ideal(&cluster.borrow(), profiles, &settings).map_err(|why| why.to_string())?;
        let period_ns = settings.period_ns;
        let mut controller = Controller::new(now, settings).map_err(|why| why.to_string())?;
        for ((node, domain), profile) in cluster.borrow().nodes().zip(profiles) {
            let input = Input::Node { node, domain, profile: profile.clone() };
            controller.handle(now, input).map_err(|why: ProfileError| why.to_string())?;
        }
        let inner = SimTarget::new(sim);
        Ok(Self {
            counted: inner.counts(),
            inner,
            cluster,
            volume,
            controller,
            period_ns,
            tells_at: now + period_ns,
            coming: VecDeque::new(),
            delay_ns,
            ideal,
            event: None,
            blocks_written: 0,
            reads: 0,
            writes: 0,
            written: 0.0,
            programmed: 0.0,
            waits: None,
        })
    }

    /// Looks so often from now on at what writes wait for; what was seen since this was last called.
    pub fn look_at_waits(&mut self, every_ns: u64) -> Option<WaitsSeen> {
        self.waits.replace(WaitsSeen::new(self.now(), every_ns))
    }

    /// This befalls a node, once.
    pub fn set_event(&mut self, event: Event) {
        self.event = Some(event);
    }

    /// What is to befall a node befalls it, if it is time.
    fn befall(&mut self, now: Instant) {
        let Some(event) = self.event.take_if(|event| self.blocks_written >= event.after_blocks)
        else {
            return;
        };
        let mut cluster = self.cluster.borrow_mut();
        match event.trouble {
            Trouble::Slow(times) => cluster.slow(event.node, times),
            Trouble::Lost => cluster.kill(now, event.node),
        }
    }

    /// The volume's FTL and its client.
    pub fn sim(&self) -> &Sim<Ftl, PoolMedium> {
        self.inner.sim()
    }

    /// The controller, for what it explains.
    pub fn controller(&self) -> &Controller {
        &self.controller
    }

    /// The nodes, to have something happen to them.
    pub fn cluster(&self) -> &Rc<RefCell<Cluster>> {
        &self.cluster
    }

    fn next(&self) -> Instant {
        let coming = self.coming.front().map_or(Instant(u64::MAX), |&(at, _)| at);
        let look = self.waits.as_ref().map_or(Instant(u64::MAX), WaitsSeen::deadline);
        coming.min(look).min(self.tells_at).min(self.controller.deadline())
    }

    /// All that the controller has to do with is done at `now`.
    fn turn(&mut self, now: Instant) -> Result<(), Failure> {
        let wrong = |why: ProfileError| Failure(why.to_string());
        if let Some(waits) = &mut self.waits {
            waits.look(now, self.inner.sim());
        }
        if self.tells_at <= now {
            self.tells_at = now + self.period_ns;
            for input in self.seen() {
                self.controller.handle(now, input).map_err(wrong)?;
            }
        }
        if self.controller.deadline() <= now {
            self.controller.handle(now, Input::Deadline).map_err(wrong)?;
        }
        while let Some(Output::Weights(weights)) = self.controller.poll() {
            self.coming.push_back((now + self.delay_ns, weights));
        }
        while self.coming.front().is_some_and(|&(at, _)| at <= now) {
            let (_, weights) = self.coming.pop_front().expect("it was seen");
            self.obey(now, &weights);
        }
        Ok(())
    }

    fn obey(&mut self, now: Instant, weights: &Weights) {
        for of in &weights.nodes {
            self.cluster.borrow_mut().set_mode(now, of.node, of.mode);
        }
        let plan = Plan::of(weights, now);
        self.inner.sim_mut().medium_mut().plan(now, plan);
        self.weigh();
    }

    /// The FTL goes by what the client says of its lanes.
    fn weigh(&mut self) {
        let sim = self.inner.sim_mut();
        if sim.medium().has_weights()
            && let Some(weights) = sim.medium_mut().take_weights()
        {
            sim.ftl_mut().set_unit_weights(&weights);
        }
    }

    /// What nodes and clients saw since they last told.
    fn seen(&mut self) -> Vec<Input> {
        let per_s = SECOND as f64 / self.period_ns as f64;
        let seen = self.cluster.borrow_mut().take_seen();
        if let Some(waits) = &mut self.waits {
            waits.see(&seen);
        }
        let mut inputs: Vec<Input> = (0..)
            .zip(seen)
            .map(|(node, Seen { reads, writes, tail_ns })| {
                let seen = NodeSeen {
                    reads: reads as f64 * per_s,
                    writes: writes as f64 * per_s,
                    tail_us: tail_ns as f64 / 1e3,
                    ..NodeSeen::default()
                };
                Input::NodeSeen(NodeId(node), seen)
            })
            .collect();
        let counts = self.inner.counts();
        let since = counts.since(&self.counted);
        self.counted = counts;
        self.written = FADES * self.written + since.bytes_written as f64;
        self.programmed = FADES * self.programmed + since.bytes_programmed as f64;
        let block = BLOCK_BYTES as f64;
        let waf = (self.programmed / self.written.max(block)).max(1.0);
        let (reads, writes) = (std::mem::take(&mut self.reads), std::mem::take(&mut self.writes));
        let (reads, writes) = (reads as f64 * per_s, writes as f64 * per_s);
        let volume = VolumeSeen { reads, writes, waf, ..VolumeSeen::default() };
        inputs.push(Input::VolumeSeen(self.volume, volume));
        inputs.push(Input::Held(self.held()));
        inputs
    }

    /// Bands by who holds them.
    fn held(&self) -> Vec<(Members, u64)> {
        let mut held: BTreeMap<Vec<NodeId>, u64> = BTreeMap::new();
        for band in self.inner.sim().medium().remote().directory().bands() {
            *held.entry(band.nodes.clone()).or_default() += u64::from(band.pages);
        }
        held.into_iter().filter_map(|(nodes, pages)| Some((Members::new(&nodes)?, pages))).collect()
    }
}

/// The drives with all that their profiles say, none of it held back.
fn ideal(
    cluster: &Cluster,
    profiles: &[Profile],
    settings: &Settings,
) -> Result<(Fleet, Terms), ProfileError> {
    let mut fleet = Fleet::default();
    let mut domains: Vec<_> = cluster.nodes().map(|(_, domain)| domain).collect();
    domains.sort_unstable();
    domains.dedup();
    fleet.domains = domains.len();
    for (shape, ((_, domain), profile)) in cluster.nodes().zip(profiles).enumerate() {
        let model = LoadModel::new(profile, settings.slo, 1.0)?;
        fleet.shapes.push(Shape::new(&model.points()));
        fleet.drives.push(Drive {
            shape,
            scale: 1.0,
            domain: domains.binary_search(&domain).expect("it is one of them"),
            reads_max: f64::INFINITY,
            writes_max: f64::INFINITY,
        });
    }
    let (is_local, is_apart) = (settings.is_local, settings.is_apart);
    let terms = Terms { replicas: settings.replicas, is_local, is_apart, ..Terms::default() };
    Ok((fleet, terms))
}

impl Target for PoolVolume {
    fn bytes(&self) -> u64 {
        self.inner.bytes()
    }

    fn flash_bytes(&self) -> u64 {
        self.inner.flash_bytes()
    }

    fn rules(&self) -> Rules {
        self.inner.rules()
    }

    fn now(&self) -> Instant {
        self.inner.now()
    }

    fn submit(&mut self, now: Instant, token: u64, io: Io) -> Result<(), Failure> {
        self.advance(now)?;
        let blocks = io.bytes.div_ceil(BLOCK_BYTES as u64);
        match io.kind {
            IoKind::Read => self.reads += blocks,
            IoKind::Write => {
                self.writes += blocks;
                self.blocks_written += blocks;
            }
            IoKind::Erase | IoKind::Flush => {}
        }
        self.befall(now);
        self.inner.submit(now, token, io)?;
        self.weigh();
        Ok(())
    }

    fn deadline(&self) -> Option<Instant> {
        Some(self.inner.deadline().map_or(self.next(), |at| at.min(self.next())))
    }

    fn advance(&mut self, now: Instant) -> Result<(), Failure> {
        while self.next() <= now {
            let next = self.next().max(self.inner.now());
            self.inner.advance(next)?;
            self.turn(next)?;
        }
        self.inner.advance(now)?;
        self.weigh();
        Ok(())
    }

    fn take_done(&mut self) -> Option<Done> {
        self.inner.take_done()
    }

    fn counts(&self) -> TargetCounts {
        self.inner.counts()
    }

    fn counter(&self, name: &str) -> u64 {
        self.inner.counter(name)
    }

    fn erase_count_max(&self) -> u32 {
        self.inner.erase_count_max()
    }

    fn queue_at(&self, offset: u64) -> u32 {
        self.inner.queue_at(offset)
    }

    fn bound(&self, reads: f64, writes: f64, waf: f64) -> Option<f64> {
        let (fleet, terms) = &self.ideal;
        let demand = Demand::of_clients(reads, writes, terms.replicas, waf);
        Some(solver::peak(fleet, demand, *terms) * (reads + writes))
    }
}

//! Engines without a server: time is virtual, so that nothing waits for emulated flash.

use crate::backend::Backend;
use crate::runtime::ring::Ring;
use crate::runtime::shard::{AnyCore, CoreFormat, CoreSettings, Engine, Milestone};
use flash::{Instant, SECOND};
use ftl::{Input, MountReport};

/// Mounts or formats, jumping over emulated time. Returns when that ended and what it found.
pub(crate) fn start_engine(
    mut medium: Box<dyn Backend>,
    format: Option<CoreFormat>,
    settings: CoreSettings,
    ring: &mut Ring,
) -> Result<(Engine, Instant, MountReport), String> {
    if format.is_none() {
        medium.begin_mount();
    }
    let (geometry, health) = (*medium.geometry(), medium.health());
    let core = AnyCore::start(geometry, &health, format, settings.clone())?;
    let mut engine = Engine::new(core, medium, &settings);
    let mut now = Instant(0);
    let reason = match run_until_milestone(&mut engine, ring, &mut now) {
        Ok(Milestone::Ready(Ok(report))) => return Ok((engine, now, report)),
        Ok(Milestone::Ready(Err(error))) => error.to_string(),
        Ok(_) => "the FTL stopped before it was ready".into(),
        Err(reason) => reason,
    };
    ring.free(engine);
    Err(reason)
}

/// While there is no room below, a checkpoint rests and is tried again; for so long.
const NO_ROOM_TIME: u64 = 10 * SECOND;

/// Goes on in virtual time until the engine reaches a milestone.
pub(crate) fn run_until_milestone(
    engine: &mut Engine,
    ring: &mut Ring,
    now: &mut Instant,
) -> Result<Milestone, String> {
    let begun = *now;
    loop {
        virtual_turn(engine, ring, now)?;
        if let Some(milestone) = engine.milestone() {
            return Ok(milestone);
        }
        // Rests take no time here, and each try erases what the one before has written.
        let refused_at = engine.core.room_refused_at();
        if refused_at.is_some_and(|at| at >= begun + NO_ROOM_TIME) {
            let file = engine.medium.full_file();
            let place = file.map_or_else(String::new, |file| format!("{}: ", file.display()));
            return Err(format!("{place}the file system or disk below is full: make room there"));
        }
        if ring.under_way() == 0 && engine.deadline().is_none() {
            return Err(format!("it neither goes on nor ends: {}", engine.core.explain()));
        }
    }
}

/// One turn without waiting for emulated time: if only time is awaited, it has come.
pub(crate) fn virtual_turn(
    engine: &mut Engine,
    ring: &mut Ring,
    now: &mut Instant,
) -> Result<(), String> {
    engine.turn(*now, ring);
    if let Some(lost) = engine.medium.lost() {
        return Err(lost.to_string());
    }
    if ring.under_way() > 0 {
        let mut done = Vec::new();
        let entered = ring.enter(None, &mut done);
        entered.map_err(|error| format!("{}: {error}", ring.report().name))?;
        for done in done {
            engine.io_done(*now, done, ring);
        }
    } else if let Some(deadline) = engine.deadline() {
        *now = deadline.max(*now);
    }
    Ok(())
}

/// Stops the FTL of an engine in virtual time; `Err` if not everything is durable.
pub(crate) fn stop_engine(
    engine: &mut Engine,
    ring: &mut Ring,
    now: &mut Instant,
) -> Result<(), String> {
    engine.core.handle(*now, Input::Shutdown);
    match run_until_milestone(engine, ring, now)? {
        Milestone::Stopped(true) => Ok(()),
        _ => Err("not everything could be made durable".into()),
    }
}

//! Mapping of volumes, switched while the FTL runs: `page`, whose entries of the map stay in DRAM, or
//! `cached`, whose entries may leave it. Where the whole map is in DRAM, all are mapped by page.
//!
//! A switch says what is to be, which costs the same for any volume; piece by piece it becomes so
//! later, a few at a time, as what is to stay has to be read first.
//!
//! Invariants:
//! - a switch is refused unless there are frames for all that is to stay, so its loads end;
//! - at most [`LOADS_MAX`] reads go on for it, and no more than [`STEP_PIECES`] pieces are looked at at
//!   a time: it holds nobody up, and no request waits for it.

use crate::config::MapVolume;
use crate::map::bytes_min_to_hold;
use crate::whole::Ftl;
use crate::whole::Phase;
use crate::whole::switch::Switch;
use flash::{Instant, MICROSECOND};
use std::collections::VecDeque;
use std::ops::Range;

/// What mappings are called.
pub const MAPPINGS: &[&str] = &["page", "cached"];

/// Reads at a time for pieces that are to stay.
const LOADS_MAX: usize = 2;

/// Pieces looked at in a step.
const STEP_PIECES: u32 = 256;

/// Between two steps.
const STEP_NS: u64 = 100 * MICROSECOND;

/// How one volume is mapped.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct MapStatus {
    /// First logical block of the volume.
    pub first: u32,
    /// Its logical blocks.
    pub blocks: u32,
    /// One of [`MAPPINGS`].
    pub mapping: &'static str,
    /// Blocks that the last switch has yet to look at, at most.
    pub blocks_to_come: u32,
}

/// Pieces that a switch has yet to look at, in the order of the switches.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mapping {
    todo: VecDeque<Range<u32>>,
    step_at: Instant,
}

fn name(page: bool) -> &'static str {
    if page { "page" } else { "cached" }
}

impl Ftl {
    /// Takes the device for one volume if the settings tell of none.
    pub(crate) fn set_up_mapping(&mut self) {
        if self.settings.map_volumes.is_empty() {
            // How large the device is, a mount has yet to find.
            self.settings.map_volumes.push(MapVolume { blocks: 0..u32::MAX, page: false });
        }
    }

    /// The volumes that `decision` is about: "mapping" for all, or "mapping/N".
    pub(crate) fn mapping_volumes(&self, decision: &str) -> Result<Range<usize>, String> {
        let count = self.settings.map_volumes.len();
        let Some((_, text)) = decision.split_once('/') else { return Ok(0..count) };
        match text.parse() {
            Ok(index) if index < count => Ok(index..index + 1),
            _ => Err(format!("{text:?} is no volume's number: there are {count}, from 0")),
        }
    }

    /// Whether the volumes of `decision` could be mapped as `to`; `Err` says why not.
    pub(crate) fn check_mapping(&self, decision: &str, to: &str) -> Result<(), String> {
        let volumes = self.mapping_volumes(decision)?;
        if !MAPPINGS.contains(&to) {
            let known = MAPPINGS.join(", ");
            return Err(format!("no mapping is called {to:?}; there are {known}"));
        }
        match (self.map.is_cached(), to) {
            (true, "page") => self.check_map_memory(volumes),
            (false, "cached") => {
                Err("mapping = cached: the whole map is in DRAM, and no part of it may \
                 leave; say [ftl] map_memory in the config, for example \"110MiB\", and start again"
                    .into())
            }
            _ => Ok(()),
        }
    }

    /// Whether there are frames for all the pieces that stay if these volumes are mapped by page.
    fn check_map_memory(&self, volumes: Range<usize>) -> Result<(), String> {
        let all = self.settings.map_volumes.iter().enumerate();
        let stay = all.filter(|(index, volume)| volume.page || volumes.contains(index));
        let stay: Vec<_> = stay.map(|(_, volume)| self.blocks_there(volume)).collect();
        let piece = self.settings.map_piece_blocks;
        let wanted = bytes_min_to_hold(self.geometry.slots() as u32, piece, &stay);
        let has = self.settings.map_bytes;
        if wanted <= has {
            return Ok(());
        }
        Err(format!(
            "mapping = page: what would stay in DRAM works with {wanted} bytes of map_memory and more, in \
             each shard; there are {has}: say more in the config, or map another volume as cached"
        ))
    }

    fn blocks_there(&self, volume: &MapVolume) -> Range<u32> {
        let end = volume.blocks.end.min(self.map.blocks());
        volume.blocks.start.min(end)..end
    }

    /// Maps the volumes of `switch` as it says, and returns how they were mapped.
    pub(crate) fn put_mapping(&mut self, switch: &Switch<'_>) -> Result<String, String> {
        self.check_mapping(switch.decision, switch.name)?;
        let mut from = String::new();
        for index in self.mapping_volumes(switch.decision)? {
            let volume = &mut self.settings.map_volumes[index];
            crate::whole::switch::join(&mut from, name(volume.page));
            volume.page = switch.name == "page";
            let blocks = self.blocks_there(&self.settings.map_volumes[index]);
            if let Some(cached) = self.map.cached().filter(|_| !blocks.is_empty()) {
                let pieces = cached.piece(blocks.start)..cached.piece(blocks.end - 1) + 1;
                self.switches.mapping.todo.push_back(pieces);
            }
        }
        Ok(from)
    }

    /// One step towards what the last switches of mappings said.
    pub(crate) fn mapping_pump(&mut self) {
        if self.mapping_deadline().is_none_or(|at| self.now < at) {
            return;
        }
        self.switches.mapping.step_at = self.now + STEP_NS;
        for _ in 0..STEP_PIECES {
            let Some(piece) = self.switches.mapping.todo.front().map(|pieces| pieces.start) else {
                return;
            };
            if !self.hold_piece(piece) {
                return;
            }
            let pieces =
                self.switches.mapping.todo.front_mut().expect("its first one was looked at");
            pieces.start += 1;
            if pieces.start == pieces.end {
                self.switches.mapping.todo.pop_front();
            }
        }
    }

    /// Makes `piece` stay in DRAM, or lets it leave. False if it has to be loaded, and cannot now.
    fn hold_piece(&mut self, piece: u32) -> bool {
        let Some(cached) = self.map.cached_mut() else { return true };
        let blocks = cached.blocks_of(piece);
        let touches = |volume: &MapVolume| {
            volume.page && volume.blocks.start < blocks.end && blocks.start < volume.blocks.end
        };
        let stays = self.settings.map_volumes.iter().any(touches);
        cached.hold(piece, stays);
        if !stays || cached.is_resident(piece) || cached.is_unused(piece) {
            return true;
        }
        if self.loads_for_nobody() >= LOADS_MAX {
            return false;
        }
        self.load_piece(piece)
    }

    /// When to take the next step.
    pub(crate) fn mapping_deadline(&self) -> Option<Instant> {
        let runs = matches!(self.phase, Phase::Running | Phase::ReadOnly);
        (runs && !self.switches.mapping.todo.is_empty()).then_some(self.switches.mapping.step_at)
    }

    /// How each volume is mapped.
    pub(crate) fn mapping_status(&self) -> Vec<MapStatus> {
        let status = |volume: &MapVolume| {
            let own = self.blocks_there(volume);
            let to_come = |pieces: &Range<u32>| {
                let Some(cached) = self.map.cached() else { return 0 };
                let first = cached.blocks_of(pieces.start).start.max(own.start);
                cached.blocks_of(pieces.end - 1).end.min(own.end).saturating_sub(first)
            };
            let (first, blocks) = (own.start, own.len() as u32);
            let to_come = self.switches.mapping.todo.iter().map(to_come).max().unwrap_or(0);
            let mapping = name(volume.page || !self.map.is_cached());
            MapStatus { first, blocks, mapping, blocks_to_come: to_come }
        };
        self.settings.map_volumes.iter().map(status).collect()
    }
}

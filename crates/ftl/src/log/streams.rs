//! Streams to append points: asks the stream policy of the block's volume, and keeps what the policy
//! is told about each band.
//!
//! A volume has an append point for each of its handles, for the host and for relocation. How many
//! it gets depends on the spare bands, as each keeps a band open that GC cannot use. Append points
//! are never taken away, as bands, pages and moves name them; those that a switch of policies leaves
//! without a stream are *idle*, and their open bands and pages are filled by others, before these open
//! any of their own and whether or not there are bands to spare.
//!
//! Invariants:
//! - a policy's answer beyond the handles is counted and replaced by the default's;
//! - a band's origin counts only for the policy that filled it.

use crate::config::StreamVolume;
use crate::format::{POISONED, is_slot};
use crate::log::points::{NONE, Point};
use crate::policy::stream::{
    self, HANDLES_MAX, Handles, MoveView, Origin, Shape, StreamPolicy, WriteView,
};
use crate::policy::{Fault, Purpose};
use crate::space::RESERVE_BANDS;
use crate::space::filling::Filling;
use crate::whole::Ftl;
use flash::{BlockId, Hint, SlotId};

/// Writes that a policy is told of at a time: about as many cache misses as a processor has under way.
const WARM_BATCH: usize = 32;

/// What one stream policy has.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StreamStatus {
    /// First logical block of its volume.
    pub first: u32,
    /// Logical blocks of its volume.
    pub blocks: u32,
    /// The policy in force, with its parameters.
    pub stream: String,
    /// Placement handles for the host.
    pub handles_host: u8,
    /// Placement handles for relocation.
    pub handles_moved: u8,
    /// Fewer than the policy would use, for want of spare bands.
    pub handles_short: bool,
    /// Slots that went to flash by each handle of the host, since the policy has it.
    pub slots_host: Vec<u64>,
    /// The same by each handle for relocation.
    pub slots_moved: Vec<u64>,
    /// Bytes of its tables.
    pub memory_bytes: u64,
}

struct Volume {
    first: u32,
    end: u32,
    name: String,
    policy: Box<dyn StreamPolicy>,
    /// Which policy in the order of their coming, from 1: tells its bands from others'.
    number: u32,
    uses_age: bool,
    /// Its policy has tables to look into.
    has_tables: bool,
    /// What GC moves goes where the host's first handle goes.
    together: bool,
    handles: Handles,
    /// Append points by handle, with idle ones behind `handles`.
    host: Vec<u16>,
    moved: Vec<u16>,
    /// On a two-tier device: for destage, and for what stays on the fast tier, one for each handle of
    /// the host.
    destaged: Vec<u16>,
    kept: Vec<u16>,
}

/// What an append point of a volume is for.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Role {
    Host,
    Moved,
    Destaged,
    Kept,
}

impl Volume {
    /// It has fewer handles than its policy would use.
    fn is_short(&self) -> bool {
        let wanted = self.policy.handles();
        self.handles.host < wanted.host || self.handles.moved < wanted.moved
    }
}

/// See the head of this file.
#[derive(Default)]
pub(crate) struct Streams {
    /// The last one is all that belongs to no other.
    volumes: Vec<Volume>,
    policies_made: u32,
    /// An idle point may have a page that it has begun.
    pages_left: bool,
    /// An idle point may have an open band.
    pub bands_left: bool,
}

impl Streams {
    #[inline]
    fn index_of(&self, lba: u32) -> usize {
        let last = self.volumes.len() - 1;
        let inside = |volume: &Volume| volume.first <= lba && lba < volume.end;
        self.volumes[..last].iter().position(inside).unwrap_or(last)
    }

    /// Tells the policies that `lbas` are about to be written.
    pub fn warm(&self, lbas: impl Iterator<Item = u32>) {
        if !self.volumes.iter().any(|volume| volume.has_tables) {
            return;
        }
        let (mut batch, mut count, mut owner) = ([0; WARM_BATCH], 0, 0);
        for lba in lbas {
            let index = self.index_of(lba);
            if count == batch.len() || index != owner {
                self.volumes[owner].policy.warm(&batch[..count]);
                (count, owner) = (0, index);
            }
            batch[count] = lba - self.volumes[index].first;
            count += 1;
        }
        self.volumes[owner].policy.warm(&batch[..count]);
    }

    fn handles_in_use(&self) -> u32 {
        let sum =
            |volume: &Volume| u32::from(volume.handles.host) + u32::from(volume.handles.moved);
        self.volumes.iter().map(sum).sum()
    }

    /// What each volume has.
    pub fn status(&self, points: &[Point]) -> Vec<StreamStatus> {
        let slots = |of: &[u16], handles: u8| {
            let of = of.iter().take(usize::from(handles));
            of.map(|&point| points[usize::from(point)].slots).collect()
        };
        let status = |volume: &Volume| StreamStatus {
            first: volume.first,
            blocks: volume.end - volume.first,
            stream: volume.name.clone(),
            handles_host: volume.handles.host,
            handles_moved: volume.handles.moved,
            handles_short: volume.is_short(),
            slots_host: slots(&volume.host, volume.handles.host),
            slots_moved: slots(&volume.moved, volume.handles.moved),
            memory_bytes: volume.policy.memory_bytes(),
        };
        self.volumes.iter().map(status).collect()
    }

    pub fn volumes(&self) -> usize {
        self.volumes.len()
    }

    /// The name of the policy of volume `index`.
    pub fn name(&self, index: usize) -> &str {
        &self.volumes[index].name
    }

    /// What broke the policy of volume `index` since it was asked last.
    pub fn fault(&mut self, index: usize) -> Option<Fault> {
        self.volumes[index].policy.fault()
    }

    pub fn memory_bytes(&self) -> u64 {
        self.volumes.iter().map(|volume| volume.policy.memory_bytes()).sum()
    }
}

impl Ftl {
    /// Makes the append points and policies of the settings, for the logical blocks there are.
    pub(crate) fn set_up_streams(&mut self) -> Result<(), String> {
        self.points.clear();
        self.streams = Streams::default();
        let rest = StreamVolume {
            first: 0,
            blocks: self.map.blocks(),
            stream: self.settings.policies.stream.clone(),
        };
        // The one of all others comes first, so that its points do.
        let mut volumes = self.settings.volumes.clone();
        volumes.insert(0, rest);
        for volume in volumes {
            let end = volume.first.saturating_add(volume.blocks).min(self.map.blocks());
            let first = volume.first.min(end);
            let policy = stream::by_name(&volume.stream, self.stream_shape(end - first))?;
            self.streams.volumes.push(Volume {
                first,
                end,
                name: volume.stream,
                uses_age: false,
                has_tables: false,
                together: false,
                policy,
                number: 0,
                handles: Handles { host: 1, moved: 1 },
                host: Vec::new(),
                moved: Vec::new(),
                destaged: Vec::new(),
                kept: Vec::new(),
            });
            self.grant_handles(self.streams.volumes.len() - 1);
        }
        self.streams.volumes.rotate_left(1);
        Ok(())
    }

    /// What the stream policy of volume `index` is made for; the last volume is the rest.
    pub(crate) fn shape_of_volume(&self, index: usize) -> Option<Shape> {
        let volume = self.streams.volumes.get(index)?;
        Some(self.stream_shape(volume.end - volume.first))
    }

    fn stream_shape(&self, blocks: u32) -> Shape {
        Shape { blocks, handles: self.settings.handles }
    }

    /// Puts `policy` in charge of volume `index`; returns who was.
    pub(crate) fn put_stream(
        &mut self,
        index: usize,
        name: &str,
        policy: Box<dyn StreamPolicy>,
    ) -> Box<dyn StreamPolicy> {
        if index >= self.settings.volumes.len() {
            self.policies.names.stream = name.into();
        }
        let volume = &mut self.streams.volumes[index];
        volume.name = name.into();
        let before = std::mem::replace(&mut volume.policy, policy);
        self.grant_handles(index);
        // What was asked for and is not placed yet is asked for again.
        for at in 0..self.host.writes.len() {
            let request = self.host.writes[at];
            let entry = &mut self.host.requests[request];
            if !entry.is_atomic() {
                entry.decided = entry.placed;
            }
        }
        self.room_changes += 1;
        self.stirred = true;
        before
    }

    /// Gives volume `index` as many append points as its policy wants and the spare bands allow.
    fn grant_handles(&mut self, index: usize) {
        self.streams.policies_made += 1;
        let volume = &mut self.streams.volumes[index];
        volume.number = self.streams.policies_made;
        volume.uses_age = volume.policy.uses_age();
        volume.has_tables = volume.policy.memory_bytes() > 0;
        let wanted = volume.policy.handles();
        // On two tiers the host's handles are on the other one.
        volume.together = wanted.moved == 0 && !self.geometry.is_tiered();
        let bounded = |handles: u8| handles.clamp(1, HANDLES_MAX);
        let wanted = Handles { host: bounded(wanted.host), moved: bounded(wanted.moved) };
        volume.handles = Handles { host: 1, moved: 1 };
        let extra = self.handles_max().saturating_sub(self.streams.handles_in_use());
        let granted = granted(wanted, self.settings.handles, extra);
        self.streams.volumes[index].handles = granted;
        self.provide_points(index, Role::Host, usize::from(granted.host));
        self.provide_points(index, Role::Moved, usize::from(granted.moved));
        if self.geometry.is_tiered() {
            self.provide_points(index, Role::Destaged, usize::from(granted.host));
            self.provide_points(index, Role::Kept, usize::from(granted.host));
        }
    }

    fn provide_points(&mut self, index: usize, role: Role, count: usize) {
        let volume = &mut self.streams.volumes[index];
        let (list, purpose) = match role {
            Role::Host => (&mut volume.host, Purpose::Host),
            Role::Moved => (&mut volume.moved, Purpose::Relocate),
            Role::Destaged => (&mut volume.destaged, Purpose::Destage),
            // It appends where the host does, and by the same rules.
            Role::Kept => (&mut volume.kept, Purpose::Host),
        };
        while list.len() < count {
            list.push(self.points.len() as u16);
            self.points.push(Point::new(purpose, self.geometry.units));
            self.points.last_mut().expect("just pushed").keeps = role == Role::Kept;
        }
        let list = list.clone();
        for (at, &point) in list.iter().enumerate() {
            let point = usize::from(point);
            // What is destaged is for the policy where it put the host's write.
            let origin =
                if role == Role::Moved { Origin::Moved(at as u8) } else { Origin::Host(at as u8) };
            let idle = at >= count;
            // Padding it would cost as much as it holds, with every switch.
            self.streams.pages_left |= idle && self.points[point].page != NONE;
            self.streams.bands_left |= idle && self.points[point].has_open();
            let number = self.streams.volumes[index].number;
            (self.points[point].idle, self.points[point].origin) = (idle, (number, origin));
        }
    }

    /// Most handles of all volumes together: a third of the bands that are not needed for data, so
    /// that GC finds the rest to work with, and as many as may be open.
    fn handles_max(&self) -> u32 {
        let slow = self.geometry.capacity_units() as usize;
        let gone = self.units.iter().take(slow).filter(|unit| unit.gone).count() as u32;
        let good = (self.geometry.capacity_blocks())
            .saturating_sub(gone * self.geometry.blocks_per_unit)
            .saturating_sub(self.bands.failing + 2 * self.layout.bands + RESERVE_BANDS);
        let data = self.map.blocks().div_ceil(self.geometry.slots_per_block());
        let slow = (good.saturating_sub(data) / 3).min(self.handles_max_open());
        if self.geometry.is_tiered() { slow.min(self.handles_max_fast()) } else { slow }
    }

    /// Bands that GC keeps free beside the usual, so that each of its handles finds one to open.
    pub(crate) fn bands_for_streams(&self) -> u32 {
        let moved = |volume: &Volume| u32::from(volume.handles.moved) - 1;
        self.streams.volumes.iter().map(moved).sum()
    }

    /// The append point for relocations that no policy is asked about.
    pub(crate) fn relocate_point(&self) -> usize {
        let last = self.streams.volumes.last().expect("there is always one");
        usize::from(last.moved[0])
    }

    /// The append point for what could not be programmed in `slot`: of the same tier.
    pub(crate) fn point_again(&self, slot: SlotId) -> usize {
        if !self.geometry.is_fast(self.bands.block_of(slot)) {
            return self.relocate_point();
        }
        let last = self.streams.volumes.last().expect("there is always one");
        usize::from(last.host[0])
    }

    /// The append point that the stream policy wants for the next block of a write. Each block is
    /// asked about once, however long it waits for room, and an atomic write as one.
    pub(crate) fn wished_point(&mut self, index: u32, hint: Hint) -> usize {
        let entry = &self.host.requests[index];
        let at = entry.placed;
        if entry.decided <= at && (entry.decided == 0 || !entry.is_atomic()) {
            let point = self.choose_host_point(entry.lba + at, at > 0, hint);
            let entry = &mut self.host.requests[index];
            (entry.decided, entry.point) = (at + 1, point as u16);
        }
        usize::from(self.host.requests[index].point)
    }

    /// The append point that the policy wants for a block that the host writes.
    fn choose_host_point(&mut self, lba: u32, continues: bool, hint: Hint) -> usize {
        let index = self.streams.index_of(lba);
        let volume = &mut self.streams.volumes[index];
        let now = self.sequence_next;
        let slot = if volume.uses_age { self.map.peek(lba) } else { None };
        let slot = slot.unwrap_or(POISONED);
        let age = is_slot(slot).then(|| {
            let band = &self.bands[self.bands.block_of(SlotId(slot))];
            now.saturating_sub(band.filling.written_at())
        });
        let handles = volume.handles;
        let lba = lba - volume.first;
        let view = WriteView { lba, continues, hint, now, age, handles };
        let mut handle = volume.policy.place_write(&view);
        if handle >= handles.host {
            self.counters.policy_invalid += 1;
            handle = hint.handle % handles.host;
        }
        usize::from(volume.host[usize::from(handle)])
    }

    /// The append point that the policy wants for a block that GC moves out of `block`.
    pub(crate) fn choose_move_point(&mut self, lba: u32, block: BlockId, sequence: u64) -> u16 {
        let index = self.streams.index_of(lba);
        let volume = &mut self.streams.volumes[index];
        if volume.together {
            return volume.host[0];
        }
        let filling = &self.bands[block].filling;
        let own = filling.policy == volume.number;
        let from = if own { filling.origin } else { Origin::Unknown };
        let (now, handles) = (self.sequence_next, volume.handles);
        let age = now.saturating_sub(sequence);
        let view = MoveView { lba: lba - volume.first, now, age, from, handles };
        let mut handle = volume.policy.place_move(&view);
        if handle >= handles.moved {
            self.counters.policy_invalid += 1;
            handle = 0;
        }
        volume.moved[usize::from(handle)]
    }

    /// The append point for a block that is destaged from `block`: of the handle that the policy gave
    /// it when the host wrote it.
    pub(crate) fn destage_point(&self, lba: u32, block: BlockId) -> u16 {
        let (volume, handle) = self.handle_of(lba, block);
        *volume.destaged.get(handle).unwrap_or(&volume.destaged[0])
    }

    /// The same for a block that stays on the fast tier.
    pub(crate) fn keep_point(&self, lba: u32, block: BlockId) -> u16 {
        let (volume, handle) = self.handle_of(lba, block);
        *volume.kept.get(handle).unwrap_or(&volume.kept[0])
    }

    fn handle_of(&self, lba: u32, block: BlockId) -> (&Volume, usize) {
        let volume = &self.streams.volumes[self.streams.index_of(lba)];
        let filling = &self.bands[block].filling;
        match filling.origin {
            Origin::Host(handle) if filling.policy == volume.number => (volume, handle.into()),
            _ => (volume, 0),
        }
    }

    /// These blocks hold nothing any more.
    pub(crate) fn note_trim(&mut self, first: u32, blocks: u32) {
        let end = first + blocks;
        for volume in &mut self.streams.volumes {
            let (from, to) = (first.max(volume.first), end.min(volume.end));
            if from < to {
                volume.policy.trimmed(from - volume.first, to - from);
            }
        }
    }

    /// `block` is empty and goes back to be erased.
    pub(crate) fn note_reclaimed(&mut self, block: BlockId) {
        let filling = std::mem::take(&mut self.bands[block].filling);
        if self.geometry.is_fast(block) {
            // How long data stays there says nothing of how long it lives.
            return;
        }
        let lifetime = self.sequence_next.saturating_sub(filling.opened_at);
        let mut volumes = self.streams.volumes.iter_mut();
        if let Some(volume) = volumes.find(|volume| volume.number == filling.policy) {
            volume.policy.reclaimed(filling.origin, lifetime);
        }
    }

    /// A band was opened for `point`.
    pub(crate) fn note_opened(&mut self, block: BlockId, point: usize) {
        let (policy, origin) = self.points[point].origin;
        let opened_at = self.sequence_next;
        let kept = self.points[point].keeps;
        self.bands[block].filling =
            Filling { policy, origin, opened_at, kept, ..Filling::default() };
    }

    /// Hands a page that an idle point of the same purpose has begun to `point`, which has none.
    pub(crate) fn adopt_page(&mut self, point: usize) -> bool {
        // The room for an atomic write has been counted as it is.
        if !self.streams.pages_left || self.host.atomic_placing {
            return false;
        }
        let left = |other: &Point| other.idle && other.page != NONE;
        self.streams.pages_left = self.points.iter().any(left);
        let purpose = self.points[point].purpose;
        let alike = |other: &Point| left(other) && other.purpose == purpose;
        let Some(other) = self.points.iter().position(alike) else { return false };
        let page = std::mem::replace(&mut self.points[other].page, NONE);
        self.points[point].page = page;
        let open = self.pages[page].open;
        let unit = self.geometry.unit_of(self.opens[open].block) as usize;
        self.opens[open].point = point as u32;
        // Unless this is the last page of its band; what `point` had open here goes to the idle one.
        if self.points[other].open[unit] == open {
            let own = self.points[point].open.put(unit, open);
            self.points[other].open.put(unit, own);
            if own != NONE {
                self.opens[own].point = other as u32;
            }
        }
        // Where either has a band open is not what it was.
        self.room_changes += 1;
        true
    }

    /// The idle point that has left an open band on `unit` for others to fill.
    pub(crate) fn who_left(&self, unit: usize) -> Option<usize> {
        let left = |point: &Point| {
            let open = point.open[unit];
            // What it is filling is handed on as a page.
            point.idle
                && open != NONE
                && (point.page == NONE || self.pages[point.page].open != open)
        };
        self.points.iter().position(left)
    }

    /// An open band on `unit` that an idle point has left, for `point` to fill.
    pub(crate) fn adopt_band(&mut self, unit: u32, point: usize) -> bool {
        if !self.streams.bands_left {
            return false;
        }
        let at = unit as usize;
        let Some(other) = self.who_left(at) else {
            self.streams.bands_left =
                self.points.iter().any(|point| point.idle && point.has_open());
            return false;
        };
        let open = self.points[other].open.put(at, NONE);
        self.opens[open].point = point as u32;
        self.points[point].open.put(at, open);
        // Where either has a band open is not what it was.
        self.room_changes += 1;
        true
    }
}

/// What of `wanted` can be had with `extra` handles beside one of each kind; at least `always` for
/// the host.
fn granted(wanted: Handles, always: u8, extra: u32) -> Handles {
    let host = u32::from(wanted.host.min(always).max(1));
    let extra = extra.saturating_sub(host - 1);
    let (more_host, more_moved) = (u32::from(wanted.host) - host, u32::from(wanted.moved) - 1);
    if more_host + more_moved <= extra {
        return wanted;
    }
    // Both kinds shrink alike.
    let got_host = (extra * more_host).div_ceil(more_host + more_moved);
    Handles { host: (host + got_host) as u8, moved: (1 + extra - got_host) as u8 }
}

//! Bodies of requests and of answers, within a bounded memory: a request waits for its part of it before more of its body is
//! read than a little, and until then the client's bytes stay in its socket. Who sends slowly loses its part to whoever waits.

use super::query::bad;
use super::refusal;
use ::store::services::key::KEY_BYTES_MAX;
use ::store::services::{Bounds, Refused, VALUE_BYTES_MAX};
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use http_body_util::BodyExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

/// How long a request waits for its part of the memory, or for its turn.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a client may take for the next bytes of a body.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// A body that has a place which others wait for comes at this pace, but for so long.
const BYTES_PER_SEC_MIN: u64 = 64 << 10;
const SLOW_MAX: Duration = Duration::from_secs(2);
/// How often it is looked whether others wait.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// So much of a body is received without a place: who sends nothing more never has one.
const PLACELESS_BYTES: usize = 64 << 10;
/// Memory in KiB: of bodies; of answers that units are read for; of ranges; of answers that are in memory. Apart, so that none
/// of them waits for another.
const BODIES_KIB: usize = 64 << 10;
const ANSWERS_KIB: usize = 256 << 10;
const LISTS_KIB: usize = 256 << 10;
const QUICK_KIB: usize = 32 << 10;
/// Files that are written, and that are read, at a time; each has a few pieces in memory.
pub const STREAMS_MAX: usize = 32;

/// Places that bodies have while they come.
#[derive(Clone)]
struct Places {
    free: Arc<Semaphore>,
    /// How many wait for one.
    waiting: Arc<AtomicUsize>,
}

impl Places {
    fn new(count: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(count)), waiting: Arc::default() }
    }

    async fn take(&self, count: u32) -> Result<Place, Response> {
        let waits = Waits::new(&self.waiting);
        let part = part(Arc::clone(&self.free).acquire_many_owned(count)).await?;
        drop(waits);
        Ok(Place { part, waiting: Arc::clone(&self.waiting), since: Instant::now(), bytes: 0 })
    }
}

/// Somebody waits, as long as it is there.
struct Waits<'a>(&'a AtomicUsize);

impl<'a> Waits<'a> {
    fn new(waiting: &'a AtomicUsize) -> Self {
        waiting.fetch_add(1, Ordering::Relaxed);
        Self(waiting)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The place of a body, which whoever is slow loses to whoever waits.
pub struct Place {
    part: Part,
    waiting: Arc<AtomicUsize>,
    since: Instant,
    bytes: u64,
}

impl Place {
    /// The next bytes of the body; `None` at its end.
    pub async fn next(&mut self, body: &mut Body) -> Result<Option<Bytes>, Response> {
        let asked = Instant::now();
        loop {
            let granted = SLOW_MAX + Duration::from_millis(self.bytes * 1000 / BYTES_PER_SEC_MIN);
            let others = self.waiting.load(Ordering::Relaxed);
            if asked.elapsed() >= SILENCE_MAX || others > 0 && self.since.elapsed() > granted {
                return Err(stopped_coming());
            }
            if let Some(bytes) = came(body, LOOK_EVERY).await? {
                self.bytes += bytes.as_ref().map_or(0, |bytes| bytes.len() as u64);
                return Ok(bytes);
            }
        }
    }
}

/// What all requests together may take.
#[derive(Clone)]
pub struct Memory {
    bodies: Places,
    uploads: Places,
    answers: Arc<Semaphore>,
    quick: Arc<Semaphore>,
    lists: Arc<Semaphore>,
    downloads: Arc<Semaphore>,
}

/// A part of it, given back when it is dropped.
pub type Part = OwnedSemaphorePermit;

impl Memory {
    /// All of it.
    pub fn new() -> Self {
        let of = |count| Arc::new(Semaphore::new(count));
        Self {
            bodies: Places::new(BODIES_KIB),
            uploads: Places::new(STREAMS_MAX),
            answers: of(ANSWERS_KIB),
            quick: of(QUICK_KIB),
            lists: of(LISTS_KIB),
            downloads: of(STREAMS_MAX),
        }
    }

    /// For an answer of so many bytes, which units are read for.
    pub async fn answer(&self, bytes: usize) -> Result<Part, Response> {
        part(Arc::clone(&self.answers).acquire_many_owned(kib(bytes))).await
    }

    /// The same for one that is in memory.
    pub async fn quick_answer(&self, bytes: usize) -> Result<Part, Response> {
        part(Arc::clone(&self.quick).acquire_many_owned(kib(bytes))).await
    }

    /// For a range of so many slices.
    pub async fn list(&self, bounds: Bounds, slices: u32) -> Result<Part, Response> {
        let each = KEY_BYTES_MAX + if bounds.values { VALUE_BYTES_MAX } else { 0 };
        // The last one of each slice goes beyond its part of the bound.
        let slices = slices as usize;
        let bytes = ((bounds.count + slices) * each).min(bounds.bytes + slices * each);
        part(Arc::clone(&self.lists).acquire_many_owned(kib(bytes))).await
    }

    /// For a file that comes.
    pub async fn upload(&self) -> Result<Place, Response> {
        self.uploads.take(1).await
    }

    /// For a file that goes.
    pub async fn download(&self) -> Result<Part, Response> {
        part(Arc::clone(&self.downloads).acquire_owned()).await
    }

    /// A whole body of at most `most` bytes, with the memory that it takes.
    pub async fn receive(
        &self,
        head: &HeaderMap,
        mut body: Body,
        most: usize,
        too_large: impl Fn(u64) -> Refused,
    ) -> Result<(Vec<u8>, Option<Part>), Response> {
        let announced = announced(head)?;
        if let Some(bytes) = announced.filter(|&bytes| bytes > most as u64) {
            return Err(super::refused(too_large(bytes)));
        }
        let (mut all, mut place) = (Vec::new(), None::<Place>);
        loop {
            let next = match &mut place {
                Some(place) => place.next(&mut body).await?,
                None => came(&mut body, SILENCE_MAX).await?.ok_or_else(stopped_coming)?,
            };
            let Some(bytes) = next else { break };
            if all.len() + bytes.len() > most {
                return Err(super::refused(too_large((all.len() + bytes.len()) as u64)));
            }
            all.extend_from_slice(&bytes);
            if place.is_none() && all.len() > PLACELESS_BYTES {
                let bytes = announced.map_or(most, |bytes| bytes as usize);
                place = Some(self.bodies.take(kib(bytes)).await?);
                all.reserve_exact(bytes.saturating_sub(all.len()));
            }
        }
        Ok((all, place.map(|place| place.part)))
    }
}

fn kib(bytes: usize) -> u32 {
    bytes.div_ceil(1024).clamp(1, BODIES_KIB) as u32
}

/// What an answer of so many bytes does not need of its part is given back.
pub fn shrink(mut part: Part, bytes: usize) -> Part {
    let surplus = part.num_permits().saturating_sub(kib(bytes) as usize);
    drop(part.split(surplus));
    part
}

/// What is waited for, within a bounded time.
pub async fn part(
    waits: impl Future<Output = Result<Part, tokio::sync::AcquireError>>,
) -> Result<Part, Response> {
    match timeout(PATIENCE, waits).await {
        Ok(Ok(part)) => Ok(part),
        _ => {
            let reason = "too much is under way: try again in a moment";
            Err(refusal(StatusCode::SERVICE_UNAVAILABLE, reason))
        }
    }
}

/// The bytes that a head announces.
pub fn announced(head: &HeaderMap) -> Result<Option<u64>, Response> {
    let Some(value) = head.get(header::CONTENT_LENGTH) else { return Ok(None) };
    let bytes = value.to_str().ok().and_then(|text| text.parse().ok());
    bytes.map(Some).ok_or_else(|| bad("Content-Length: must be a number of bytes"))
}

fn stopped_coming() -> Response {
    let reason = "the body stopped coming, or came slowly while others waited: nothing was written: send it again";
    refusal(StatusCode::REQUEST_TIMEOUT, reason)
}

/// What comes of a body within a time: bytes, or its end; `None` if nothing does.
async fn came(body: &mut Body, time: Duration) -> Result<Option<Option<Bytes>>, Response> {
    loop {
        let Ok(frame) = timeout(time, body.frame()).await else { return Ok(None) };
        let Some(frame) = frame else { return Ok(Some(None)) };
        let cut = |_| bad("the body was cut off: nothing was written: send it again");
        // What is no data are trailers, of which nothing is known here.
        if let Ok(bytes) = frame.map_err(cut)?.into_data() {
            return Ok(Some(Some(bytes)));
        }
    }
}

//! Bodies of requests, within a bounded memory: a request waits for its part of it before its body is read, and until then
//! the client's bytes stay in its socket.

use super::query::bad;
use super::refusal;
use ::store::services::Refused;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use http_body_util::BodyExt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// How long a client may take for the next bytes of a body, and a request for its part of the memory.
const PATIENCE: Duration = Duration::from_secs(30);
/// Memory of bodies and of answers at a time, in KiB.
const KIB_MAX: usize = 96 << 10;
/// Answers of many keys, each of which may be large, at a time.
const LISTS_MAX: usize = 4;
/// Files that are written or read at a time; each has a few pieces in memory.
const STREAMS_MAX: usize = 32;

/// What all requests together may take.
#[derive(Clone)]
pub struct Memory {
    kib: Arc<Semaphore>,
    lists: Arc<Semaphore>,
    streams: Arc<Semaphore>,
}

/// A part of it, given back when it is dropped.
pub type Part = OwnedSemaphorePermit;

impl Memory {
    /// All of it.
    pub fn new() -> Self {
        let of = |count| Arc::new(Semaphore::new(count));
        Self { kib: of(KIB_MAX), lists: of(LISTS_MAX), streams: of(STREAMS_MAX) }
    }

    /// For so many bytes.
    pub async fn bytes(&self, bytes: usize) -> Result<Part, Response> {
        let kib = bytes.div_ceil(1024).min(KIB_MAX) as u32;
        part(Arc::clone(&self.kib).acquire_many_owned(kib)).await
    }

    /// For an answer of many keys.
    pub async fn list(&self) -> Result<Part, Response> {
        part(Arc::clone(&self.lists).acquire_owned()).await
    }

    /// For a file.
    pub async fn stream(&self) -> Result<Part, Response> {
        part(Arc::clone(&self.streams).acquire_owned()).await
    }

    /// A whole body of at most `most` bytes, with the memory that it takes.
    pub async fn receive(
        &self,
        head: &HeaderMap,
        mut body: Body,
        most: usize,
        too_large: impl Fn(u64) -> Refused,
    ) -> Result<(Vec<u8>, Part), Response> {
        let announced = announced(head)?;
        if let Some(bytes) = announced.filter(|&bytes| bytes > most as u64) {
            return Err(super::refused(too_large(bytes)));
        }
        let part = self.bytes(announced.map_or(most, |bytes| bytes as usize)).await?;
        let mut all = Vec::with_capacity(announced.unwrap_or(0) as usize);
        while let Some(bytes) = next(&mut body).await? {
            if all.len() + bytes.len() > most {
                return Err(super::refused(too_large((all.len() + bytes.len()) as u64)));
            }
            all.extend_from_slice(&bytes);
        }
        Ok((all, part))
    }
}

async fn part(
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

/// The next bytes of a body; `None` at its end.
pub async fn next(body: &mut Body) -> Result<Option<Bytes>, Response> {
    loop {
        let Ok(frame) = timeout(PATIENCE, body.frame()).await else {
            let reason = "the body stopped coming: nothing was written: send it again";
            return Err(refusal(StatusCode::REQUEST_TIMEOUT, reason));
        };
        let Some(frame) = frame else { return Ok(None) };
        let cut = |_| bad("the body was cut off: nothing was written: send it again");
        // What is no data are trailers, of which nothing is known here.
        if let Ok(bytes) = frame.map_err(cut)?.into_data() {
            return Ok(Some(bytes));
        }
    }
}

//! Blocks by ID over HTTP: `PUT`, `GET` and `DELETE /blocks/{id}`, and `GET /blocks` to list them.
//!
//! All of it needs the right to see data ([`super::doors`]), the list too: an ID holds its owner's key.
//!
//! A put is answered when it is durable, a delete when it will stay deleted. Back-pressure: a request
//! with data takes one of a few places, each with the memory of a block, before its body is read; until
//! there is one, the client's bytes stay in its socket.

use super::doors::Access;
use super::routes::Routes;
use super::{ANSWER_TIME, refusal};
use crate::runtime::buffer::Buffer;
use crate::runtime::shard::{IdAnswer, IdRequest, IdWork, RawShape, whole_blocks};
use crate::server::Control;
use axum::body::Body;
use axum::extract::{Json, Path, RawQuery, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, delete, get, put};
use bytes::Bytes;
use flash::RequestError;
use ftl::raw::ids::{Id, IdError};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::timeout;

/// How long a client may take for the next bytes of a body, and a request for a place.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long the units may take: a put may wait for erases.
const WORK_TIME: Duration = Duration::from_secs(120);
/// Most requests with data at a time.
const PLACES_MAX: usize = 64;
/// Most blocks in one answer of a list.
const LIST_MAX: usize = 10_000;
const LIST_DEFAULT: usize = 1000;

#[derive(Clone)]
struct Blocks {
    control: Control,
    shape: Option<RawShape>,
    places: Arc<Semaphore>,
}

/// The routes of this file.
pub fn routes(routes: Routes, control: &Control) -> Routes {
    let shape = control.raw();
    let places = shape.map_or(1, |shape| places(&shape, control.buffer_bytes_max()));
    let blocks =
        Blocks { control: control.clone(), shape, places: Arc::new(Semaphore::new(places)) };
    let of = |handler: MethodRouter<Blocks>| handler.with_state(blocks.clone());
    routes
        .with(Method::GET, "/blocks", Access::Private, of(get(list)))
        .with(Method::GET, "/blocks/{id}", Access::Private, of(get(read)))
        .with(Method::PUT, "/blocks/{id}", Access::Change, of(put(write)))
        .with(Method::DELETE, "/blocks/{id}", Access::Change, of(delete(erase)))
}

/// As many blocks as fit into the memory for requests; but all units can write at a time, however little that is: a unit that has no
/// block stands still. Half as many again may wait for units that are busy, so that they keep no other unit waiting.
fn places(shape: &RawShape, buffer_bytes_max: usize) -> usize {
    let fit = buffer_bytes_max / shape.raw_block_bytes() as usize;
    let units = shape.lanes.lanes as usize;
    fit.max(units + units / 2).min(PLACES_MAX)
}

/// Memory of a block with its place, given back when it was sent.
struct Loan {
    buffer: Buffer,
    bytes: usize,
    _place: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Loan {
    fn as_ref(&self) -> &[u8] {
        &self.buffer.bytes()[..self.bytes]
    }
}

impl Blocks {
    async fn place(&self) -> Result<OwnedSemaphorePermit, Response> {
        match timeout(PATIENCE, Arc::clone(&self.places).acquire_owned()).await {
            Ok(Ok(place)) => Ok(place),
            _ => {
                let reason = "too many blocks are under way: try again in a moment";
                Err(refusal(StatusCode::SERVICE_UNAVAILABLE, reason))
            }
        }
    }

    /// Does it. The place is given back with the answer's memory, also if the client has gone.
    async fn ask(
        &self,
        id: Id,
        work: IdWork,
        place: Option<OwnedSemaphorePermit>,
    ) -> Result<(Option<Buffer>, Option<OwnedSemaphorePermit>), Response> {
        let (sender, receiver) = oneshot::channel::<(IdAnswer, Option<OwnedSemaphorePermit>)>();
        let answer = move |answer| drop(sender.send((answer, place)));
        self.control.id(IdRequest { id, work, answer: Box::new(answer) });
        match timeout(WORK_TIME, receiver).await {
            Ok(Ok(((Ok(()), buffer), place))) => Ok((buffer, place)),
            Ok(Ok(((Err(error), _), _))) => Err(refused(error)),
            _ => {
                let reason = "the units do not answer: the server is stopping, or stuck; a put or \
                              delete may have happened or not: ask for the block";
                Err(refusal(StatusCode::SERVICE_UNAVAILABLE, reason))
            }
        }
    }
}

async fn write(
    State(blocks): State<Blocks>,
    Path(id): Path<String>,
    head: HeaderMap,
    body: Body,
) -> Response {
    put_block(&blocks, &id, &head, body).await.unwrap_or_else(|refused| refused)
}

async fn put_block(
    blocks: &Blocks,
    id: &str,
    head: &HeaderMap,
    body: Body,
) -> Result<Response, Response> {
    let shape = blocks.shape.ok_or_else(no_raw_units)?;
    let id: Id = id.parse().map_err(refused)?;
    let block_bytes = shape.raw_block_bytes();
    let announced = head.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let announced: Option<u64> = announced.and_then(|text| text.parse().ok());
    if announced.is_some_and(|bytes| bytes != block_bytes) {
        let larger = announced > Some(block_bytes);
        return Err(wrong_size(block_bytes, larger));
    }
    let place = blocks.place().await?;
    let buffer = receive(body, shape).await?;
    blocks.ask(id, IdWork::Put(buffer), Some(place)).await?;
    let unit = id.number() % u64::from(shape.lanes.lanes);
    Ok((StatusCode::CREATED, Json(json!({ "id": id.to_string(), "unit": unit }))).into_response())
}

/// The body, which must be one block.
async fn receive(mut body: Body, shape: RawShape) -> Result<Buffer, Response> {
    let block_bytes = shape.raw_block_bytes();
    let mut buffer = Buffer::new(shape.lanes.slots);
    let mut at = 0;
    loop {
        let Ok(frame) = timeout(PATIENCE, body.frame()).await else {
            let reason = "the body stopped coming: nothing was written: put it again";
            return Err(refusal(StatusCode::REQUEST_TIMEOUT, reason));
        };
        let Some(frame) = frame else { break };
        let Ok(frame) = frame else {
            let reason = "the body was cut off: nothing was written: put it again";
            return Err(refusal(StatusCode::BAD_REQUEST, reason));
        };
        let Ok(bytes) = frame.into_data() else { continue };
        let Some(room) = buffer.bytes_mut().get_mut(at..at + bytes.len()) else {
            return Err(wrong_size(block_bytes, true));
        };
        room.copy_from_slice(&bytes);
        at += bytes.len();
    }
    match at as u64 == block_bytes {
        true => Ok(buffer),
        false => Err(wrong_size(block_bytes, false)),
    }
}

fn wrong_size(block_bytes: u64, larger: bool) -> Response {
    let code = if larger { StatusCode::PAYLOAD_TOO_LARGE } else { StatusCode::BAD_REQUEST };
    refusal(code, &IdError::WrongSize { block_bytes }.to_string())
}

async fn read(State(blocks): State<Blocks>, Path(id): Path<String>, head: HeaderMap) -> Response {
    fetch(&blocks, &id, &head).await.unwrap_or_else(|refused| refused)
}

async fn fetch(blocks: &Blocks, id: &str, head: &HeaderMap) -> Result<Response, Response> {
    let shape = blocks.shape.ok_or_else(no_raw_units)?;
    let id: Id = id.parse().map_err(refused)?;
    let block_bytes = shape.raw_block_bytes();
    let range = match head.get(header::RANGE) {
        None => None,
        Some(value) => {
            let range = value.to_str().ok().and_then(|text| range_of(text, block_bytes));
            Some(range.ok_or_else(|| bad_range(shape))?)
        }
    };
    let (first, bytes) = range.unwrap_or((0, block_bytes));
    let granule = u64::from(shape.granule_bytes);
    if !first.is_multiple_of(granule) || !bytes.is_multiple_of(granule) {
        return Err(bad_range(shape));
    }
    let (Some(at), Some(count)) = (whole_blocks(first), whole_blocks(bytes)) else {
        return Err(bad_range(shape));
    };
    let place = blocks.place().await?;
    let (buffer, place) = blocks.ask(id, IdWork::Get(at, Buffer::new(count)), Some(place)).await?;
    let (Some(buffer), Some(place)) = (buffer, place) else {
        return Err(refusal(StatusCode::INTERNAL_SERVER_ERROR, "a read without its memory"));
    };
    let loan = Loan { buffer, bytes: bytes as usize, _place: place };
    let body = Body::from(Bytes::from_owner(loan));
    let kind = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::ACCEPT_RANGES, "bytes".to_owned()),
    ];
    if range.is_none() {
        return Ok((StatusCode::OK, kind, body).into_response());
    }
    let place = format!("bytes {first}-{}/{block_bytes}", first + bytes - 1);
    Ok((StatusCode::PARTIAL_CONTENT, kind, [(header::CONTENT_RANGE, place)], body).into_response())
}

/// First byte and bytes of a `Range` header with one range, cut at the end of the block as RFC 9110
/// says; `None` if there is nothing to read or it asks for several.
pub fn range_of(text: &str, block_bytes: u64) -> Option<(u64, u64)> {
    let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
    let (first, last) = (first.trim(), last.trim());
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(first) || !digits(last) {
        return None;
    }
    let (first, end) = match (first.is_empty(), last.is_empty()) {
        (true, true) => return None,
        (true, false) => (block_bytes.saturating_sub(last.parse().ok()?), block_bytes),
        (false, true) => (first.parse().ok()?, block_bytes),
        (false, false) => {
            // As far as there is something, however large the number is.
            let end = last.parse::<u64>().unwrap_or(u64::MAX).saturating_add(1);
            (first.parse().ok()?, end.min(block_bytes))
        }
    };
    (first < end).then(|| (first, end - first))
}

fn bad_range(shape: RawShape) -> Response {
    let (granule_bytes, block_bytes) = (shape.granule_bytes.into(), shape.raw_block_bytes());
    let whole = [(header::CONTENT_RANGE, format!("bytes */{block_bytes}"))];
    (whole, refused(IdError::BadRange { granule_bytes, block_bytes })).into_response()
}

async fn erase(State(blocks): State<Blocks>, Path(id): Path<String>) -> Response {
    delete_block(&blocks, &id).await.unwrap_or_else(|refused| refused)
}

async fn delete_block(blocks: &Blocks, id: &str) -> Result<Response, Response> {
    blocks.shape.ok_or_else(no_raw_units)?;
    let id: Id = id.parse().map_err(refused)?;
    blocks.ask(id, IdWork::Delete, None).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn list(State(blocks): State<Blocks>, RawQuery(query): RawQuery) -> Response {
    listed(&blocks, query.as_deref().unwrap_or_default()).await.unwrap_or_else(|refused| refused)
}

async fn listed(blocks: &Blocks, query: &str) -> Result<Response, Response> {
    let shape = blocks.shape.ok_or_else(no_raw_units)?;
    let (after, count) = list_query(query).map_err(|why| refusal(StatusCode::BAD_REQUEST, &why))?;
    let (sender, receiver) = oneshot::channel();
    blocks.control.list_ids(after, count, move |list| drop(sender.send(list)));
    let Ok(Ok(list)) = timeout(ANSWER_TIME, receiver).await else {
        let reason = "the shard does not answer: it is stopping, or stuck";
        return Err(refusal(StatusCode::SERVICE_UNAVAILABLE, reason));
    };
    let list = list.map_err(refused)?;
    let entries = list.blocks.iter().map(|block| {
        json!({ "id": block.id.to_string(), "unit": block.lane, "raw_block": block.raw_block })
    });
    let more = list.blocks.last().filter(|_| list.blocks.len() == count);
    let counts = list.counts;
    Ok(Json(json!({
        "blocks": entries.collect::<Vec<Value>>(),
        "next": more.map(|block| block.id.to_string()),
        "block_bytes": shape.raw_block_bytes(),
        "granule_bytes": shape.granule_bytes,
        "counts": {
            "puts": counts.puts,
            "puts_waited": counts.puts_waited,
            "gets": counts.gets,
            "deletes": counts.deletes,
            "errors": counts.errors,
        },
    }))
    .into_response())
}

fn no_raw_units() -> Response {
    let reason = "this server serves a block device; blocks have IDs on raw units only: make a device \
                  with `weir format --raw`, or try `weir serve --raw --memory`";
    refusal(StatusCode::NOT_FOUND, reason)
}

/// `after=ID&limit=N`, both as one likes.
fn list_query(query: &str) -> Result<(Option<u64>, usize), String> {
    let (mut after, mut count) = (None, LIST_DEFAULT);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("after", id)) => {
                after = Some(id.parse::<Id>().map_err(|error| format!("after: {error}"))?.number());
            }
            Some(("limit", limit)) => {
                let limit = limit.parse().ok().filter(|limit| (1..=LIST_MAX).contains(limit));
                count = limit.ok_or_else(|| format!("limit: must be 1 to {LIST_MAX}"))?;
            }
            _ => return Err(format!("{pair}: a list knows after=ID and limit=N")),
        }
    }
    Ok((after, count))
}

fn refused(error: IdError) -> Response {
    let code = match error {
        IdError::BadId | IdError::WrongSize { .. } => StatusCode::BAD_REQUEST,
        IdError::PageWrites | IdError::Exists { .. } | IdError::Busy => StatusCode::CONFLICT,
        IdError::ReadOnly => StatusCode::FORBIDDEN,
        IdError::Unknown | IdError::OtherKey => StatusCode::NOT_FOUND,
        IdError::BadRange { .. } => StatusCode::RANGE_NOT_SATISFIABLE,
        IdError::Full { .. } | IdError::Units(RequestError::NoSpace) => {
            StatusCode::INSUFFICIENT_STORAGE
        }
        IdError::Units(RequestError::ShuttingDown) => StatusCode::SERVICE_UNAVAILABLE,
        IdError::Units(RequestError::Busy | RequestError::NotErased) => StatusCode::CONFLICT,
        IdError::Units(_) => StatusCode::INTERNAL_SERVER_ERROR,
    };
    refusal(code, &error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ftl::raw::Lanes;

    #[test]
    fn a_range_header_names_bytes_of_the_block_or_nothing() {
        for (text, range) in [
            ("bytes=0-8191", Some((0, 8192))),
            ("bytes=8192-", Some((8192, 57_344))),
            ("bytes=-8192", Some((57_344, 8192))),
            ("bytes=0-99999999", Some((0, 65_536))),
            ("bytes=65536-", None),
            ("bytes=9-8", None),
            ("bytes=-0", None),
            ("bytes=-", None),
            ("bytes=0-1,4-5", None),
            ("bytes=+1-4", None),
            ("bytes=0-18446744073709551615", Some((0, 65_536))),
            ("bytes=1-99999999999999999999999", Some((1, 65_535))),
            ("blocks=0-1", None),
            ("", None),
        ] {
            assert_eq!(range_of(text, 65_536), range, "{text}");
        }
    }

    #[test]
    fn every_unit_has_a_place_for_a_block_however_little_memory_requests_have() {
        let shape = |lanes| RawShape {
            lanes: Lanes { lanes, gang: 1, raw_blocks: 2, pages: 512, slots: 2048 },
            page_bytes: 16 << 10,
            granule_bytes: 8 << 10,
        };
        assert_eq!(places(&shape(4), 256 << 20), 32);
        assert_eq!(places(&shape(4), 1 << 20), 6);
        assert_eq!(places(&shape(1), 1 << 20), 1);
        // SDF's 44 channels once stood still a quarter of the time.
        assert_eq!(places(&shape(44), 256 << 20), PLACES_MAX);
        assert_eq!(places(&shape(1000), 256 << 20), PLACES_MAX);
    }

    #[test]
    fn a_list_takes_a_start_and_a_limit_and_tells_what_else_is_wrong() {
        assert_eq!(list_query(""), Ok((None, LIST_DEFAULT)));
        let after = "after=0000000000000007000000000000000a&limit=3";
        assert_eq!(list_query(after), Ok((Some(10), 3)));
        for bad in ["after=1", "limit=0", "limit=10001", "count=3", "after"] {
            assert!(list_query(bad).is_err(), "{bad}");
        }
    }
}

//! Values by key: `PUT`, `GET` and `DELETE /kv/KEY`, ranges by `GET /kv`, many at a time by `POST /kv`.

use super::body::{Part, shrink};
use super::listed::Listed;
use super::query::{Query, bad, behind, decoded};
use super::{Store, refusal};
use ::store::services::key::KEY_BYTES_MAX;
use ::store::services::{Change, Refused, Service, VALUE_BYTES_MAX, too_large};
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use client::{frames, percent};
use tokio::task::JoinSet;

const ROOT: &str = "/kv/";
/// Keys of one request.
const MANY_MAX: usize = 10_000;
/// Bytes of a request of many keys.
const MANY_BYTES_MAX: usize = 16 << 20;
/// Bytes of the values that answer one.
const ANSWER_BYTES_MAX: usize = 32 << 20;
/// Parts that a request of many keys is read in at a time, each from one unit: as many as SDF has channels.
const READERS: usize = 44;

pub const BYTES: HeaderValue = HeaderValue::from_static("application/octet-stream");

pub async fn write(State(store): State<Store>, uri: Uri, head: HeaderMap, body: Body) -> Response {
    put(&store, &uri, &head, body).await.unwrap_or_else(|refused| refused)
}

async fn put(store: &Store, uri: &Uri, head: &HeaderMap, body: Body) -> Result<Response, Response> {
    Query::of(uri)?.end()?;
    let key = decoded(behind(uri, ROOT))?;
    let (value, _part) = store.memory.receive(head, body, VALUE_BYTES_MAX, too_large).await?;
    let change = store.service.put_value(&key, value).map_err(super::refused)?;
    store.commit(vec![change]).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

pub async fn read(State(store): State<Store>, uri: Uri) -> Response {
    fetch(&store, &uri).await.unwrap_or_else(|refused| refused)
}

async fn fetch(store: &Store, uri: &Uri) -> Result<Response, Response> {
    Query::of(uri)?.end()?;
    let key = decoded(behind(uri, ROOT))?;
    let of = move |service: &Service, from| match from {
        Where::Memory => service.value_in_memory(&key),
        Where::Units => service.value(&key).map(Some),
    };
    read_one(store, of).await
}

/// Where a value is looked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Where {
    /// Only there: no unit is asked.
    Memory,
    /// Wherever it is.
    Units,
}

/// A value that `of` finds: what is in memory is answered without a turn at the units, whatever they do.
pub async fn read_one(
    store: &Store,
    of: impl Fn(&Service, Where) -> Result<Option<Option<Vec<u8>>>, Refused> + Clone + Send + 'static,
) -> Result<Response, Response> {
    let part = store.memory.quick_answer(VALUE_BYTES_MAX).await?;
    let again = of.clone();
    if let Some(value) = store.ask_memory(move |service| again(service, Where::Memory)).await? {
        return Ok(found(value, part));
    }
    drop(part);
    let part = store.memory.answer(VALUE_BYTES_MAX).await?;
    let value = store.ask(move |service| of(service, Where::Units)).await?;
    Ok(found(value.flatten(), part))
}

/// A value, or that there is none. Its memory is given back when it was sent.
fn found(value: Option<Vec<u8>>, part: Part) -> Response {
    match value {
        Some(value) => {
            let part = shrink(part, value.len());
            ([(header::CONTENT_TYPE, BYTES)], lent(value, part)).into_response()
        }
        None => refusal(StatusCode::NOT_FOUND, "there is no such value"),
    }
}

/// Bytes that keep their part of the memory until they are sent.
pub fn lent(bytes: Vec<u8>, part: Part) -> Body {
    struct Lent(Vec<u8>, #[expect(dead_code, reason = "held as long as the bytes")] Part);
    impl AsRef<[u8]> for Lent {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    Body::from(Bytes::from_owner(Lent(bytes, part)))
}

pub async fn remove(State(store): State<Store>, uri: Uri) -> Response {
    delete(&store, &uri).await.unwrap_or_else(|refused| refused)
}

async fn delete(store: &Store, uri: &Uri) -> Result<Response, Response> {
    Query::of(uri)?.end()?;
    let key = decoded(behind(uri, ROOT))?;
    let change = store.service.delete_value(&key).map_err(super::refused)?;
    store.commit(vec![change]).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

pub async fn list(State(store): State<Store>, uri: Uri, head: HeaderMap) -> Response {
    listed(&store, &uri, &head).await.unwrap_or_else(|refused| refused)
}

async fn listed(store: &Store, uri: &Uri, head: &HeaderMap) -> Result<Response, Response> {
    let mut query = Query::of(uri)?;
    let bounds = query.bounds()?;
    let (prefix, from, to) = (query.take("prefix"), query.take("from"), query.take("to"));
    let slice = query.take_number("slice")?;
    query.end()?;
    let slices = if slice.is_some() { 1 } else { store.service.slices() };
    let part = store.memory.list(bounds, slices).await?;
    let prefix = prefix.unwrap_or_default();
    let ask = move |service: &Service| {
        service.values(&prefix, (from.as_deref(), to.as_deref()), slice, bounds)
    };
    let page = store.ask(ask).await?;
    let next = page.next.map(|key| percent::encode(&key));
    let answer = Listed { kind: "values", name: "key", with_values: bounds.values, encoded: false };
    Ok(answer.of(page.pairs, next, head, part))
}

pub async fn many(State(store): State<Store>, uri: Uri, head: HeaderMap, body: Body) -> Response {
    for_many(&store, &uri, &head, body).await.unwrap_or_else(|refused| refused)
}

async fn for_many(
    store: &Store,
    uri: &Uri,
    head: &HeaderMap,
    body: Body,
) -> Result<Response, Response> {
    let mut query = Query::of(uri)?;
    let what = query.take("do");
    query.end()?;
    let (frames, part) = receive(store, head, body).await?;
    match what.as_deref() {
        Some(b"write") => write_many(store, frames).await,
        Some(b"get") => {
            drop(part);
            get_many(store, frames).await
        }
        _ => Err(bad("do: must be get or write: for example POST /kv?do=get")),
    }
}

/// Keys and values of a request of many.
pub async fn receive(
    store: &Store,
    head: &HeaderMap,
    body: Body,
) -> Result<(Vec<frames::Frame>, Option<Part>), Response> {
    let too_large = |bytes: u64| {
        Refused::TooLarge(format!(
            "a request of {bytes} bytes: at most {MANY_BYTES_MAX} are allowed: send several"
        ))
    };
    let (body, part) = store.memory.receive(head, body, MANY_BYTES_MAX, too_large).await?;
    let frames = frames::decode(&body).ok_or_else(|| {
        bad("the body is cut off, or is none of keys and values: for each two lengths of 4 bytes, little-endian, then \
             both (docs/store.md)")
    })?;
    if frames.len() > MANY_MAX {
        return Err(bad(&format!(
            "{} keys: at most {MANY_MAX} are allowed: send several",
            frames.len()
        )));
    }
    Ok((frames, part))
}

async fn write_many(store: &Store, frames: Vec<frames::Frame>) -> Result<Response, Response> {
    let change = |(key, value): frames::Frame| -> Result<Change, Refused> {
        match value {
            Some(value) => store.service.put_value(&key, value),
            None => store.service.delete_value(&key),
        }
    };
    let changes: Result<Vec<Change>, Refused> = frames.into_iter().map(change).collect();
    store.commit(changes.map_err(super::refused)?).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Reads from as many units as have some of the keys.
async fn get_many(store: &Store, frames: Vec<frames::Frame>) -> Result<Response, Response> {
    let keys: Vec<Vec<u8>> = frames.into_iter().map(|(key, _)| key).collect();
    if let Some(key) = keys.iter().find(|key| key.is_empty() || key.len() > KEY_BYTES_MAX) {
        return Err(bad(&format!(
            "a key has {} bytes: 1 to {KEY_BYTES_MAX} are allowed",
            key.len()
        )));
    }
    let most = (keys.len() * VALUE_BYTES_MAX).min(ANSWER_BYTES_MAX);
    let part = store.memory.answer(most).await?;
    let at_a_time = keys.len().div_ceil(READERS).max(1);
    let mut readers = JoinSet::new();
    for (first, keys) in keys.chunks(at_a_time).enumerate() {
        let (store, keys) = (store.clone(), keys.to_vec());
        readers.spawn(async move {
            let read = move |service: &Service| {
                keys.iter().map(|key| service.value(key)).collect::<Result<Vec<_>, Refused>>()
            };
            (first, store.ask(read).await)
        });
    }
    let mut parts: Vec<Vec<Option<Vec<u8>>>> = vec![Vec::new(); keys.len().div_ceil(at_a_time)];
    let mut bytes = 0;
    while let Some(read) = readers.join_next().await {
        let stopped = |_| refusal(StatusCode::SERVICE_UNAVAILABLE, "the store is ending");
        let (first, values) = read.map_err(stopped)?;
        let values = values?;
        bytes += values.iter().flatten().map(Vec::len).sum::<usize>();
        if bytes > ANSWER_BYTES_MAX {
            return Err(super::refused(Refused::TooLarge(format!(
                "the values have more than {ANSWER_BYTES_MAX} bytes together: ask for fewer at a time"
            ))));
        }
        parts[first] = values;
    }
    let mut body = Vec::with_capacity(bytes);
    for (key, value) in keys.iter().zip(parts.into_iter().flatten()) {
        frames::encode(key, value.as_deref(), &mut body);
    }
    let part = shrink(part, body.len());
    Ok(([(header::CONTENT_TYPE, BYTES)], lent(body, part)).into_response())
}

//! Immutable files: `PUT`, `GET` and `DELETE /fs/PATH`; a path that ends with a slash is a folder, which is listed; a rename is
//! `POST /fs/PATH?to=PATH`. Bytes go through piece by piece, in both directions.

use super::body::{self, Part};
use super::query::{Query, bad, behind, decoded_text};
use super::values::BYTES;
use super::{Store, refusal};
use crate::control::range_of;
use ::store::services::key::FilePath;
use ::store::services::{Bounds, Entry, File, PIECE_BYTES, Refused, Service, Upload};
use axum::body::{Body, Bytes};
use axum::extract::{Json, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use hyper::body::{Frame, SizeHint};
use serde_json::{Value, json};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc;

const ROOT: &str = "/fs/";
/// Pieces that were read and wait to be sent.
const AHEAD: usize = 1;

fn path_of(uri: &Uri) -> Result<FilePath, Response> {
    let text = decoded_text(behind(uri, ROOT))?;
    if text.ends_with('/') {
        return Err(bad("a slash at the end means a folder: name a file"));
    }
    FilePath::parse(&text).map_err(super::refused)
}

/// A file that is being written. What there is of it is taken back unless it becomes one, whoever ends it.
struct Writing {
    service: Arc<Service>,
    upload: Option<Upload>,
}

impl Drop for Writing {
    fn drop(&mut self) {
        let Some(upload) = self.upload.take() else { return };
        let service = Arc::clone(&self.service);
        let give_up = move || {
            if let Err(why) = service.give_up(&upload) {
                tracing::warn!(
                    "a file that was not written to its end is taken back when the store is opened: {why}"
                );
            }
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(give_up)),
            Err(_) => give_up(),
        }
    }
}

pub async fn write(State(store): State<Store>, uri: Uri, head: HeaderMap, body: Body) -> Response {
    put(&store, &uri, &head, body).await.unwrap_or_else(|refused| refused)
}

async fn put(
    store: &Store,
    uri: &Uri,
    head: &HeaderMap,
    mut body: Body,
) -> Result<Response, Response> {
    Query::of(uri)?.end()?;
    let path = path_of(uri)?;
    body::announced(head)?;
    let mut place = store.memory.upload().await?;
    let service = Arc::clone(&store.service);
    let begun = store.ask(move |of| {
        let upload = of.begin_file(&path)?;
        Ok(Writing { service, upload: Some(upload) })
    });
    let mut writing = begun.await?;
    let mut piece = Vec::new();
    while let Some(mut bytes) = place.next(&mut body).await? {
        while !bytes.is_empty() {
            let room = PIECE_BYTES - piece.len();
            piece.extend_from_slice(&bytes.split_to(bytes.len().min(room)));
            if piece.len() == PIECE_BYTES {
                writing = append(store, writing, std::mem::take(&mut piece)).await?;
            }
        }
    }
    if !piece.is_empty() {
        writing = append(store, writing, piece).await?;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let entry = store
        .ask(move |service| {
            let upload = writing.upload.take();
            let ended = || Refused::Failed("a file without its pieces".into());
            service.finish(upload.ok_or_else(ended)?, now)
        })
        .await?;
    Ok((StatusCode::CREATED, Json(json!({ "bytes": entry.bytes }))).into_response())
}

async fn append(store: &Store, mut writing: Writing, piece: Vec<u8>) -> Result<Writing, Response> {
    let work = move |service: &Service| {
        if let Some(upload) = &mut writing.upload {
            service.append(upload, piece)?;
        }
        Ok(writing)
    };
    store.ask(work).await
}

pub async fn read(State(store): State<Store>, uri: Uri, head: HeaderMap) -> Response {
    let path = behind(&uri, ROOT);
    let answer = match path.is_empty() || path.ends_with('/') {
        true => list(&store, &uri).await,
        false => fetch(&store, &uri, &head).await,
    };
    answer.unwrap_or_else(|refused| refused)
}

async fn fetch(store: &Store, uri: &Uri, head: &HeaderMap) -> Result<Response, Response> {
    Query::of(uri)?.end()?;
    let path = path_of(uri)?;
    let of = path.clone();
    let entry = store.ask(move |service| service.entry(&of)).await?;
    let range = match head.get(header::RANGE) {
        None => None,
        Some(value) => {
            let range = value.to_str().ok().and_then(|text| range_of(text, entry.bytes));
            Some(range.ok_or_else(|| bad_range(&entry))?)
        }
    };
    let part = store.memory.download().await?;
    let (first, bytes) = range.unwrap_or((0, entry.bytes));
    let (sender, pieces) = mpsc::channel(AHEAD);
    tokio::spawn(send(store.clone(), path, entry, (first, bytes), sender));
    let body = Body::new(Pieces { pieces, left: bytes, _part: part });
    let kind =
        [(header::CONTENT_TYPE, BYTES), (header::ACCEPT_RANGES, HeaderValue::from_static("bytes"))];
    // A file never changes: its id says which it is.
    let tag = [(header::ETAG, format!("\"{:016x}\"", entry.id))];
    if range.is_none() {
        return Ok((StatusCode::OK, kind, tag, body).into_response());
    }
    let place = format!("bytes {first}-{}/{}", first + bytes - 1, entry.bytes);
    let place = [(header::CONTENT_RANGE, place)];
    Ok((StatusCode::PARTIAL_CONTENT, kind, tag, place, body).into_response())
}

fn bad_range(entry: &Entry) -> Response {
    let whole = [(header::CONTENT_RANGE, format!("bytes */{}", entry.bytes))];
    let reason = format!(
        "Range: must be one range within the {} bytes of the file: bytes=0-99",
        entry.bytes
    );
    (whole, refusal(StatusCode::RANGE_NOT_SATISFIABLE, &reason)).into_response()
}

/// Reads the pieces one after the other, as the client takes them.
async fn send(
    store: Store,
    path: FilePath,
    entry: Entry,
    (first, bytes): (u64, u64),
    sender: mpsc::Sender<Result<Bytes, axum::BoxError>>,
) {
    let (mut at, end, piece_bytes) = (first, first + bytes, PIECE_BYTES as u64);
    while at < end {
        let (number, of) = ((at / piece_bytes) as u32, path.clone());
        // The client sees that the body ends too early; why, the log says.
        let told = move |service: &Service| {
            let read = service.piece(&of, &entry, number);
            read.inspect_err(|why| tracing::warn!("a file that is being read: {why}"))
        };
        let piece = match store.ask(told).await {
            Ok(piece) => Bytes::from(piece),
            Err(_) => return drop(sender.send(Err("the file cannot be read on".into())).await),
        };
        let from = (at % piece_bytes) as usize;
        let to = piece.len().min(from + (end - at) as usize);
        at += (to - from) as u64;
        if sender.send(Ok(piece.slice(from..to))).await.is_err() {
            return;
        }
    }
}

/// The body of an answer that comes in pieces.
struct Pieces {
    pieces: mpsc::Receiver<Result<Bytes, axum::BoxError>>,
    left: u64,
    _part: Part,
}

impl hyper::body::Body for Pieces {
    type Data = Bytes;
    type Error = axum::BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::BoxError>>> {
        self.pieces.poll_recv(cx).map(|piece| match piece {
            Some(Ok(bytes)) => {
                self.left -= (bytes.len() as u64).min(self.left);
                Some(Ok(Frame::data(bytes)))
            }
            Some(Err(why)) => Some(Err(why)),
            None if self.left > 0 => Some(Err("the file ends too early".into())),
            None => None,
        })
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

async fn list(store: &Store, uri: &Uri) -> Result<Response, Response> {
    let mut query = Query::of(uri)?;
    let (count, all) = (query.count()?, query.flag("all")?);
    let after = query.take_text("behind")?;
    query.end()?;
    let text = decoded_text(behind(uri, ROOT))?;
    let folder = match text.is_empty() {
        true => None,
        false => Some(FilePath::parse(&text).map_err(super::refused)?),
    };
    let _part = store.memory.list(Bounds { count, bytes: 0, values: false }, 1).await?;
    let work = move |service: &Service| match all {
        true if folder.is_some() => {
            Err(Refused::Usage("all: lists every file of the store: ask it of /fs/ itself".into()))
        }
        true => {
            let after = after.as_deref().map(FilePath::parse).transpose()?;
            service.all_files(after.as_ref(), count)
        }
        false => match after.as_deref() {
            Some(name) if name.contains('/') || FilePath::parse(name).is_err() => {
                Err(Refused::Usage("behind: must be a name in the folder".into()))
            }
            after => service.list(folder.as_ref(), after, count),
        },
    };
    let (files, more) = store.ask(work).await?;
    let next = files.last().filter(|_| more).map(|file| file.name.clone());
    let told: Vec<Value> = files.iter().map(file_json).collect();
    Ok(Json(json!({ "files": told, "next": next })).into_response())
}

fn file_json(file: &File) -> Value {
    let entry = file.entry.as_ref();
    json!({
        "name": file.name,
        "folder": file.is_folder,
        "bytes": entry.map(|entry| entry.bytes),
        "modified": entry.map(|entry| entry.modified),
    })
}

pub async fn rename(State(store): State<Store>, uri: Uri) -> Response {
    renamed(&store, &uri).await.unwrap_or_else(|refused| refused)
}

async fn renamed(store: &Store, uri: &Uri) -> Result<Response, Response> {
    let mut query = Query::of(uri)?;
    let to = query.take_text("to")?;
    query.end()?;
    let to = to.ok_or_else(|| bad("to: the new path: for example POST /fs/a/draft?to=a/final"))?;
    let from = decoded_text(behind(uri, ROOT))?;
    let from = FilePath::parse(&from).map_err(super::refused)?;
    let to = FilePath::parse(&to).map_err(super::refused)?;
    let files = store.ask(move |service| service.rename(&from, &to)).await?;
    Ok(Json(json!({ "files": files })).into_response())
}

pub async fn remove(State(store): State<Store>, uri: Uri) -> Response {
    delete(&store, &uri).await.unwrap_or_else(|refused| refused)
}

async fn delete(store: &Store, uri: &Uri) -> Result<Response, Response> {
    Query::of(uri)?.end()?;
    let path = path_of(uri)?;
    store.ask(move |service| service.delete_file(&path)).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

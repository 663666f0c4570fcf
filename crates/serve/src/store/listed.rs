//! Ranges as answers: frames for programs that ask so, else JSON whose bytes are percent-encoded. A part is encoded when the one
//! before has gone: who does not read has no more in memory than what was read for it, and nobody waits until a large
//! answer is encoded.

use super::body::{Part, shrink};
use super::values::BYTES;
use ::store::services::Pair;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use client::{frames, percent};
use hyper::body::{Frame, SizeHint};
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::vec;

/// Where the rest of a range begins.
const NEXT: &str = "weir-next";
const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// Pairs are encoded together until they have so many bytes.
const CHUNK_BYTES: usize = 64 << 10;

/// Around the name of a thing, its key and its value.
const BEGIN: &str = "{\"";
const COLON: &str = "\":\"";
const VALUE: &str = "\",\"value\":\"";
const END: &str = "\"}";

/// How a list is told.
#[derive(Clone, Copy)]
pub struct Listed {
    /// What its things are called.
    pub kind: &'static str,
    /// What the name of one is called.
    pub name: &'static str,
    /// Whether values are told.
    pub with_values: bool,
    /// Names are parts of URLs already.
    pub encoded: bool,
}

impl Listed {
    /// These pairs, which keep their part of the memory until they are sent.
    pub fn of(
        self,
        pairs: Vec<Pair>,
        next: Option<String>,
        head: &HeaderMap,
        part: Part,
    ) -> Response {
        let bytes = pairs.iter().map(|(key, value)| key.len() + value.len()).sum();
        let part = shrink(part, bytes);
        if wants_frames(head) {
            let body = Chunks::new(pairs, None, String::new(), String::new(), part);
            let mut response = ([(header::CONTENT_TYPE, BYTES)], Body::new(body)).into_response();
            if let Some(next) = next.and_then(|next| HeaderValue::try_from(next).ok()) {
                response.headers_mut().insert(NEXT, next);
            }
            return response;
        }
        let head = format!("{{\"{}\":[", self.kind);
        let next = next.map_or("null".into(), |next| format!("\"{next}\""));
        let body = Chunks::new(pairs, Some(self), head, format!("],\"next\":{next}}}"), part);
        ([(header::CONTENT_TYPE, JSON)], Body::new(body)).into_response()
    }

    fn name_bytes(self, key: &[u8]) -> usize {
        if self.encoded { key.len() } else { percent::length(key) }
    }

    /// Appends one.
    fn encode(self, (key, value): &Pair, into: &mut Vec<u8>) {
        into.extend([BEGIN, self.name, COLON].concat().as_bytes());
        match self.encoded {
            true => into.extend(key),
            false => percent::append(key, into),
        }
        if self.with_values {
            into.extend(VALUE.as_bytes());
            percent::append(value, into);
        }
        into.extend(END.as_bytes());
    }

    fn length(self, (key, value): &Pair) -> usize {
        let value = if self.with_values { VALUE.len() + percent::length(value) } else { 0 };
        let around = BEGIN.len() + self.name.len() + COLON.len() + END.len();
        around + self.name_bytes(key) + value
    }
}

fn wants_frames(head: &HeaderMap) -> bool {
    head.get(header::ACCEPT).is_some_and(|accept| accept == BYTES)
}

/// The body of such an answer.
struct Chunks {
    pairs: vec::IntoIter<Pair>,
    /// `None` for frames.
    json: Option<Listed>,
    /// What comes before the next pair.
    before: Vec<u8>,
    tail: Vec<u8>,
    /// Bytes that have not gone.
    left: u64,
    _part: Part,
}

impl Chunks {
    fn new(pairs: Vec<Pair>, json: Option<Listed>, head: String, tail: String, part: Part) -> Self {
        let each = pairs.iter().map(|pair| match json {
            Some(listed) => listed.length(pair),
            None => frames::length(pair),
        });
        let commas = if json.is_some() { pairs.len().saturating_sub(1) } else { 0 };
        let left = (each.sum::<usize>() + commas + head.len() + tail.len()) as u64;
        let (before, tail) = (head.into_bytes(), tail.into_bytes());
        Self { pairs: pairs.into_iter(), json, before, tail, left, _part: part }
    }

    fn next(&mut self) -> Option<Bytes> {
        let mut chunk = Vec::new();
        while chunk.len() < CHUNK_BYTES {
            let Some(pair) = self.pairs.next() else {
                chunk.append(&mut self.before);
                chunk.append(&mut self.tail);
                break;
            };
            chunk.append(&mut self.before);
            match self.json {
                Some(listed) => {
                    listed.encode(&pair, &mut chunk);
                    if !self.pairs.as_slice().is_empty() {
                        self.before.push(b',');
                    }
                }
                None => frames::encode(&pair.0, Some(&pair.1), &mut chunk),
            }
        }
        self.left -= chunk.len() as u64;
        (!chunk.is_empty()).then(|| chunk.into())
    }
}

impl hyper::body::Body for Chunks {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.next().map(|chunk| Ok(Frame::data(chunk))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::sync::Arc;
    use tokio::sync::Semaphore;

    fn part() -> Part {
        Arc::new(Semaphore::new(1)).try_acquire_owned().expect("it has one")
    }

    /// What comes, of which it says beforehand how much it is.
    fn all(mut chunks: Chunks) -> Vec<u8> {
        let (said, mut bytes) = (chunks.left, Vec::new());
        while let Some(chunk) = chunks.next() {
            assert!(chunk.len() < 4 * CHUNK_BYTES, "{}", chunk.len());
            bytes.extend(&chunk);
        }
        assert_eq!((bytes.len() as u64, chunks.left), (said, 0));
        bytes
    }

    #[test]
    fn an_answer_of_any_length_is_as_long_as_it_says_and_comes_in_small_parts() {
        for (count, bytes) in [(0, 0), (1, 0), (1, 40_000), (700, 300), (40, 40_000)] {
            let pair = |n: usize| (format!("k\"{n}").into_bytes(), vec![n as u8; bytes]);
            let pairs: Vec<Pair> = (0..count).map(pair).collect();
            let framed =
                all(Chunks::new(pairs.clone(), None, String::new(), String::new(), part()));
            let frames = pairs.iter().cloned().map(|(key, value)| (key, Some(value)));
            assert_eq!(frames::decode(&framed), Some(frames.collect()));
            for with_values in [false, true] {
                let listed = Listed { kind: "values", name: "key", with_values, encoded: false };
                let chunks =
                    Chunks::new(pairs.clone(), Some(listed), "[".into(), "]".into(), part());
                let told: Value = serde_json::from_slice(&all(chunks)).expect("JSON");
                let expected = pairs.iter().map(|(key, value)| match with_values {
                    true => json!({ "key": percent::encode(key), "value": percent::encode(value) }),
                    false => json!({ "key": percent::encode(key) }),
                });
                assert_eq!(told, expected.collect::<Value>());
            }
        }
    }
}

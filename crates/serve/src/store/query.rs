//! What a URL says: names in its path and values in its query, all of any bytes, percent-encoded.

use super::refusal;
use ::store::services::Bounds;
use axum::extract::Request;
use axum::http::{StatusCode, Uri};
use axum::middleware::Next;
use axum::response::Response;
use client::percent;

/// Things in an answer, unless the query says how many.
const COUNT_DEFAULT: usize = 1000;
const COUNT_MAX: usize = 10_000;
/// Bytes of keys and values in an answer.
const ANSWER_BYTES_MAX: usize = 8 << 20;

/// An answer that says what is wrong with a request.
pub fn bad(reason: &str) -> Response {
    refusal(StatusCode::BAD_REQUEST, reason)
}

/// The part of the path behind `root`, as it was sent.
pub fn behind<'a>(uri: &'a Uri, root: &str) -> &'a str {
    uri.path().strip_prefix(root).unwrap_or_default()
}

/// The bytes that a part of a path stands for.
pub fn decoded(text: &str) -> Result<Vec<u8>, Response> {
    let wrong = || {
        bad(&format!(
            "{text}: `%` is followed by two hex digits: a `%` itself is `%25`, a slash in a name `%2F`"
        ))
    };
    percent::decode(text).ok_or_else(wrong)
}

/// The same if it has to be text.
pub fn decoded_text(text: &str) -> Result<String, Response> {
    String::from_utf8(decoded(text)?).map_err(|_| bad(&format!("{text}: a path is UTF-8")))
}

/// For what takes no query at all.
pub async fn none(request: Request, next: Next) -> Response {
    match Query::of(request.uri()).and_then(Query::end) {
        Ok(()) => next.run(request).await,
        Err(refused) => refused,
    }
}

/// A query, of which each value is asked for once.
pub struct Query {
    pairs: Vec<(String, Vec<u8>)>,
    known: Vec<&'static str>,
}

impl Query {
    /// Reads it.
    pub fn of(uri: &Uri) -> Result<Self, Response> {
        let mut pairs: Vec<(String, Vec<u8>)> = Vec::new();
        for pair in uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if pairs.iter().any(|(known, _)| known == name) {
                return Err(bad(&format!("{name}: is there twice")));
            }
            pairs.push((name.into(), decoded(value)?));
        }
        Ok(Self { pairs, known: Vec::new() })
    }

    /// The value of a name.
    pub fn take(&mut self, name: &'static str) -> Option<Vec<u8>> {
        self.known.push(name);
        let at = self.pairs.iter().position(|(of, _)| of == name)?;
        Some(self.pairs.swap_remove(at).1)
    }

    /// The same as text.
    pub fn take_text(&mut self, name: &'static str) -> Result<Option<String>, Response> {
        let text = self.take(name).map(String::from_utf8).transpose();
        text.map_err(|_| bad(&format!("{name}: must be UTF-8")))
    }

    /// `true` or `false`, which it is unless it is said.
    pub fn flag(&mut self, name: &'static str) -> Result<bool, Response> {
        match self.take(name).as_deref() {
            None | Some(b"false") => Ok(false),
            Some(b"true" | b"") => Ok(true),
            Some(_) => Err(bad(&format!("{name}: must be true or false"))),
        }
    }

    /// How much an answer may have: `limit`, and `values=true`.
    pub fn bounds(&mut self) -> Result<Bounds, Response> {
        let (count, values) = (self.count()?, self.flag("values")?);
        Ok(Bounds { count, bytes: ANSWER_BYTES_MAX, values })
    }

    /// `limit`.
    pub fn count(&mut self) -> Result<usize, Response> {
        let Some(text) = self.take("limit") else { return Ok(COUNT_DEFAULT) };
        let count = std::str::from_utf8(&text).ok().and_then(|text| text.parse().ok());
        let count = count.filter(|count| (1..=COUNT_MAX).contains(count));
        count.ok_or_else(|| bad(&format!("limit: must be 1 to {COUNT_MAX}")))
    }

    /// A number from 0 on.
    pub fn take_number(&mut self, name: &'static str) -> Result<Option<u32>, Response> {
        let number = |text: Vec<u8>| std::str::from_utf8(&text).ok().and_then(|it| it.parse().ok());
        let wrong = || bad(&format!("{name}: must be a number from 0 on"));
        self.take(name).map(|text| number(text).ok_or_else(wrong)).transpose()
    }

    /// Nothing else may be there: it would be taken for heeded.
    pub fn end(self) -> Result<(), Response> {
        match self.pairs.first() {
            None => Ok(()),
            Some((name, _)) if self.known.is_empty() => {
                Err(bad(&format!("{name}: nothing is asked for here")))
            }
            Some((name, _)) => {
                Err(bad(&format!("{name}: what is known here is {}", self.known.join(", "))))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(text: &str) -> Result<Query, Response> {
        Query::of(&format!("http://weir/kv?{text}").parse().expect("a URI"))
    }

    #[test]
    fn a_query_is_read_whole_or_refused() {
        let mut good = query("from=a%00%26&limit=7&values=true").unwrap();
        let bounds = good.bounds().unwrap();
        assert_eq!((bounds.count, bounds.values), (7, true));
        assert_eq!(good.take("from"), Some(b"a\0&".to_vec()));
        assert_eq!(good.take("to"), None);
        assert!(good.end().is_ok());
        for bad in [
            "from=%f",
            "from=a&from=b",
            "limit=0",
            "limit=10001",
            "limit=x",
            "values=yes",
            "other=1",
        ] {
            let read = query(bad).and_then(|mut query| {
                query.bounds()?;
                query.take("from");
                query.end()
            });
            assert_eq!(read.unwrap_err().status(), StatusCode::BAD_REQUEST, "{bad}");
        }
    }
}

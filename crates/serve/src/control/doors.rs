//! Who may do what over HTTP.
//!
//! - Over the control socket everything: its permissions say who may connect.
//! - Over TCP, without a token, only looking (GET and HEAD), and not at data: any user of the machine,
//!   and any web page in a browser on it, reaches a loopback address. With the token of the config
//!   everything.
//! - Over TCP only requests that name this machine: a page of another name that has its name resolve
//!   here (DNS rebinding) tells its own in `Host`.
//! - Nowhere a request of a page that is not our own: `Origin` tells. No CORS header is ever sent, so
//!   such a page does not see answers either.

use super::refusal;
use super::token::Token;
use crate::config::HttpConfig;
use crate::server::ServeError;
use axum::Extension;
use axum::extract::{Request, State};
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// From the connection, or the last answer, to the end of a request's head, where no config says it.
const HEAD_TIME: Duration = Duration::from_secs(20);

/// What a route needs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Access {
    /// Anybody may look.
    Open,
    /// It tells data, or the keys to them.
    Private,
    /// It changes something.
    Change,
}

/// How a request came in.
#[derive(Clone, Copy, Debug)]
pub enum Door {
    /// Over the control socket.
    Control {
        /// The user of the process that connected.
        user: Option<u32>,
    },
    /// Over TCP.
    Tcp {
        /// Who asks.
        peer: SocketAddr,
        /// Where.
        local: SocketAddr,
    },
}

impl fmt::Display for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Control { user: Some(user) } => write!(f, "control, user {user}"),
            Self::Control { user: None } => f.write_str("control"),
            Self::Tcp { peer, .. } => write!(f, "http {peer}"),
        }
    }
}

/// Whether a request may see data and change things.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Right(pub bool);

/// The rules of a server.
#[derive(Debug, Default)]
pub struct Rules {
    /// The configured address: its IP names us.
    ip: Option<IpAddr>,
    hosts: Vec<String>,
    token: Option<Token>,
    head_time: Option<Duration>,
}

/// Why a request is not even looked at.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Refused {
    /// `Host` is missing, there twice, or not text.
    BadHost,
    ForeignHost,
    ForeignOrigin,
    BadToken,
    NoToken,
    /// There is no token that would help.
    ReadOnly,
}

impl Rules {
    /// Those that the config asks for; makes the file of the token if it is to be made.
    ///
    /// # Errors
    /// What is wrong with the token.
    pub fn of(config: Option<&HttpConfig>) -> Result<Self, ServeError> {
        let Some(config) = config else { return Ok(Self::default()) };
        let load = |path: &std::path::PathBuf| {
            Token::load_or_make(path).map_err(|reason| ServeError::Listen {
                address: path.display().to_string(),
                reason,
            })
        };
        let token = config.token_file.as_ref().map(load).transpose()?;
        let head_time = Some(Duration::from_nanos(config.head_timeout_ns));
        let (ip, hosts) = (Some(config.address.ip()), config.hosts.clone());
        Ok(Self { ip, hosts, token, head_time })
    }

    /// How long the head of a request may take.
    pub fn head_time(&self) -> Duration {
        self.head_time.unwrap_or(HEAD_TIME)
    }

    fn admit(&self, door: &Door, head: &Parts) -> Result<Right, Refused> {
        let host = only(&head.headers, header::HOST).ok_or(Refused::BadHost)?;
        let named = head.uri.authority().map(|authority| authority.as_str());
        let origin = only(&head.headers, header::ORIGIN).ok_or(Refused::ForeignOrigin)?;
        if origin.is_some_and(|origin| !is_own_page(origin, named.or(host))) {
            return Err(Refused::ForeignOrigin);
        }
        let Door::Tcp { local, .. } = door else { return Ok(Right(true)) };
        // Whatever its version: who names nobody does not say that he means us.
        if host.or(named).is_none() {
            return Err(Refused::BadHost);
        }
        if ![host, named].into_iter().flatten().all(|host| self.is_us(host, local.ip())) {
            return Err(Refused::ForeignHost);
        }
        let shown = only(&head.headers, header::AUTHORIZATION).ok_or(Refused::BadToken)?;
        let right = match (shown, &self.token) {
            (None, _) => false,
            (Some(shown), Some(token)) if token.is_shown(shown) => true,
            _ => return Err(Refused::BadToken),
        };
        if !right && head.method != Method::GET && head.method != Method::HEAD {
            return Err(self.without_right());
        }
        Ok(Right(right))
    }

    fn without_right(&self) -> Refused {
        if self.token.is_some() { Refused::NoToken } else { Refused::ReadOnly }
    }

    /// True if `authority`, a name with or without a port, is this machine's.
    fn is_us(&self, authority: &str, local: IpAddr) -> bool {
        let name = name_of(authority);
        if let Ok(ip) = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
            let (ip, ours) = (ip.to_canonical(), [Some(local), self.ip]);
            let is_ours = || ours.into_iter().flatten().any(|own| own.to_canonical() == ip);
            // Named in the config: the server may be reached there through another machine.
            let is_named = || {
                let named = self.hosts.iter().filter_map(|host| host.parse::<IpAddr>().ok());
                named.into_iter().any(|named| named.to_canonical() == ip)
            };
            return ip.is_loopback() || ((is_ours() || is_named()) && !ip.is_unspecified());
        }
        let known = self.hosts.iter().map(String::as_str).chain(["localhost"]);
        known.into_iter().any(|known| known.eq_ignore_ascii_case(name))
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let (code, reason) = match self {
            Self::BadHost => (StatusCode::BAD_REQUEST, "a request names one host (header Host)"),
            Self::ForeignHost => (
                StatusCode::FORBIDDEN,
                "the request is for another host: ask for this one by a loopback name, by the \
                 address it listens at, or by a name in http.hosts of its config",
            ),
            Self::ForeignOrigin => {
                (StatusCode::FORBIDDEN, "a web page of another origin may not ask this server")
            }
            Self::BadToken => (
                StatusCode::UNAUTHORIZED,
                "this is not the token of this server: see http.token_file of its config",
            ),
            Self::NoToken => (
                StatusCode::UNAUTHORIZED,
                "over TCP this needs the token (`Authorization: Bearer ...`, http.token_file of the \
                 config); the control socket needs none: curl --unix-socket weir-data/control.sock",
            ),
            Self::ReadOnly => (
                StatusCode::FORBIDDEN,
                "over TCP this server only tells its state: use its control socket, for example curl \
                 --unix-socket weir-data/control.sock http://weir/..., or `weir ctl`; or set \
                 http.token_file",
            ),
        };
        let mut response = refusal(code, reason);
        if code == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
        }
        response
    }
}

/// The text of a header that may be there once; `None` if it is there twice or is no text.
fn only(headers: &HeaderMap, name: HeaderName) -> Option<Option<&str>> {
    let mut all = headers.get_all(name).iter();
    match (all.next(), all.next()) {
        (None, _) => Some(None),
        (Some(value), None) => value.to_str().ok().map(Some),
        _ => None,
    }
}

/// A page of ours was loaded from the very host that it now asks.
fn is_own_page(origin: &str, host: Option<&str>) -> bool {
    let from = origin.split_once("://").map(|(_, from)| from);
    from.zip(host).is_some_and(|(from, host)| from.eq_ignore_ascii_case(host))
}

/// The name or IP address of `name:port`.
fn name_of(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        // A colon within brackets belongs to the address.
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => authority,
    }
}

/// Lets in what the rules admit; every request passes it, whatever it asks for.
pub async fn guard(
    State(rules): State<Arc<Rules>>,
    Extension(door): Extension<Door>,
    request: Request,
    next: Next,
) -> Response {
    let (mut head, body) = request.into_parts();
    let mut response = match rules.admit(&door, &head) {
        Ok(right) => {
            head.extensions.insert(right);
            next.run(Request::from_parts(head, body)).await
        }
        Err(refused) => refused.into_response(),
    };
    // No page may use an answer as a part of its own, whatever its browser thinks it is.
    for (name, value) in [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Lets in who has the right. In front of each route that is not open.
pub async fn need_right(
    State(rules): State<Arc<Rules>>,
    Extension(right): Extension<Right>,
    request: Request,
    next: Next,
) -> Response {
    match right {
        Right(true) => next.run(request).await,
        Right(false) => rules.without_right().into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> Rules {
        let hosts = vec!["flash.example.org".into(), "10.9.9.9".into()];
        Rules { ip: "10.1.2.3".parse().ok(), hosts, ..Rules::default() }
    }

    #[test]
    fn only_names_of_this_machine_are_us() {
        let local = "192.168.7.7".parse().unwrap();
        for us in [
            "localhost",
            "LocalHost:1",
            "127.0.0.1",
            "127.9.9.9:80",
            "[::1]",
            "[::1]:8420",
            "10.1.2.3:8420",
            "192.168.7.7",
            "flash.example.org:8420",
            "10.9.9.9:8420",
            "[::ffff:127.0.0.1]",
        ] {
            assert!(rules().is_us(us, local), "{us}");
        }
        for other in [
            "",
            "evil.example",
            "localhost.evil.example",
            "evil.localhost",
            "127.0.0.1.evil.example",
            "10.1.2.4",
            "0.0.0.0",
            "[::]",
            "user@localhost",
            "localhost:80:80",
            "flash.example.org.",
            "2130706433",
        ] {
            assert!(!rules().is_us(other, local), "{other}");
        }
    }

    #[test]
    fn a_page_is_our_own_only_if_it_came_from_the_host_it_asks() {
        let host = Some("localhost:8420");
        assert!(is_own_page("http://localhost:8420", host));
        for foreign in ["http://localhost:3000", "http://localhost", "null", "", "http://evil:8420"]
        {
            assert!(!is_own_page(foreign, host), "{foreign}");
        }
        assert!(!is_own_page("http://localhost", None));
    }
}

//! etcd's JSON gateway: a request, an answer, or a stream of answers, over HTTP/1.1. Every member of a cluster serves
//! it beside gRPC, at the same address.

use super::super::config::PlaneConfig;
use super::super::tls::server_name;
use crate::sockets;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, Response, header};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde_json::Value;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// One member of a cluster, with connections that are kept.
#[derive(Clone)]
pub struct Gateway {
    member: String,
    /// Host and port.
    authority: String,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    idle: Arc<Mutex<Vec<Connection>>>,
    timeout: Duration,
}

/// A connection; what moves its bytes ends with it.
struct Connection {
    requests: SendRequest<Full<Bytes>>,
    driver: AbortHandle,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Why there is no answer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum GatewayError {
    /// The member cannot be reached, or does not do its work.
    Unavailable(String),
    /// It has refused, by a code of gRPC and in words.
    Refused(u64, String),
}

/// More connections than that are not kept.
const IDLE_MAX: usize = 8;
/// No answer is as long: one to a range has some 1,000 small values.
const ANSWER_BYTES_MAX: usize = 256 << 20;
/// A member that does not answer the kernel for so long is gone.
const PATIENCE: Duration = Duration::from_secs(6);

/// Codes of gRPC.
pub const INVALID: u64 = 3;
/// Likewise.
pub const NOT_FOUND: u64 = 5;
/// Likewise.
pub const EXHAUSTED: u64 = 8;
/// Likewise.
const UNAVAILABLE: u64 = 14;
/// Likewise: a request took too long there, or was given up.
const LATE: [u64; 3] = [1, 2, 4];

impl Gateway {
    /// The gateway of a member, `http://ADDRESS` or `https://HOST:PORT`. Nothing is connected yet.
    pub fn new(member: &str, config: &PlaneConfig) -> Self {
        let secret = member.strip_prefix("https://");
        let rest = secret.unwrap_or(member.trim_start_matches("http://"));
        // The name in its certificate is the pool's, as of all parts.
        let connector = TlsConnector::from(Arc::clone(&config.identity.client));
        Self {
            member: member.to_owned(),
            authority: rest.trim_end_matches('/').to_owned(),
            tls: secret.map(|_| (connector, server_name(config.pool))),
            idle: Arc::default(),
            timeout: Duration::from_nanos(config.timeout_ns),
        }
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// There is none in time, or it is a refusal.
    pub async fn call(&self, path: &str, body: &Value) -> Result<Value, GatewayError> {
        let asked = async {
            let (connection, response) = self.send(path, body).await?;
            let is_good = response.status().is_success();
            let collected = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
            let bytes = collected.map_err(|error| self.broken(&*error))?.to_bytes();
            let answer: Value = serde_json::from_slice(&bytes).map_err(|_| self.strange())?;
            self.keep(connection);
            if is_good { self.checked(answer) } else { Err(self.refusal(&answer)) }
        };
        timeout(self.timeout, asked).await.map_err(|_| self.late())?
    }

    /// Asks for a stream of answers, and waits for its beginning.
    ///
    /// # Errors
    /// It does not begin in time, or is a refusal.
    pub async fn stream(&self, path: &str, body: &Value) -> Result<Answers, GatewayError> {
        let asked = async {
            let (connection, response) = self.send(path, body).await?;
            let (gateway, bytes) = (self.clone(), Vec::new());
            Ok(Answers { gateway, body: response.into_body(), bytes, _connection: connection })
        };
        timeout(self.timeout, asked).await.map_err(|_| self.late())?
    }

    async fn send(
        &self,
        path: &str,
        body: &Value,
    ) -> Result<(Connection, Response<Incoming>), GatewayError> {
        let mut connection = match self.take() {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let request = Request::post(path)
            .header(header::HOST, &self.authority)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body.to_string())));
        let request = request.map_err(|error| self.broken(&error))?;
        let sent = connection.requests.send_request(request).await;
        let response = sent.map_err(|error| self.broken(&error))?;
        Ok((connection, response))
    }

    fn take(&self) -> Option<Connection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        std::iter::from_fn(|| idle.pop()).find(|connection| connection.requests.is_ready())
    }

    fn keep(&self, connection: Connection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX {
            idle.push(connection);
        }
    }

    async fn connect(&self) -> Result<Connection, GatewayError> {
        let stream = TcpStream::connect(&self.authority).await;
        let stream = stream.map_err(|error| self.broken(&error))?;
        sockets::prepare(&stream, PATIENCE);
        match &self.tls {
            None => self.shake(stream).await,
            Some((connector, name)) => {
                let stream = connector.connect(name.clone(), stream).await;
                self.shake(stream.map_err(|error| self.broken(&error))?).await
            }
        }
    }

    async fn shake(
        &self,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    ) -> Result<Connection, GatewayError> {
        let shaken = handshake(TokioIo::new(stream)).await;
        let (requests, driver) = shaken.map_err(|error| self.broken(&error))?;
        // What ends it is told to whoever waits for an answer.
        let driver = tokio::spawn(async move { drop(driver.await) }).abort_handle();
        Ok(Connection { requests, driver })
    }

    /// An answer, or what a stream says instead of one.
    fn checked(&self, mut answer: Value) -> Result<Value, GatewayError> {
        match answer.get("error") {
            Some(Value::Object(_)) => Err(self.refusal(&answer["error"])),
            Some(_) => Err(self.refusal(&answer)),
            None => Ok(match answer.get_mut("result") {
                Some(result) => result.take(),
                None => answer,
            }),
        }
    }

    fn refusal(&self, answer: &Value) -> GatewayError {
        let code = answer["code"].as_u64().or(answer["grpc_code"].as_u64()).unwrap_or(UNAVAILABLE);
        let text = answer["message"].as_str().or(answer["error"].as_str()).unwrap_or("no reason");
        if code == UNAVAILABLE || LATE.contains(&code) {
            return GatewayError::Unavailable(format!("{}: {text}", self.member));
        }
        GatewayError::Refused(code, format!("{}: {text}", self.member))
    }

    fn broken(&self, error: &dyn std::fmt::Display) -> GatewayError {
        GatewayError::Unavailable(format!("{}: {error}", self.member))
    }

    fn strange(&self) -> GatewayError {
        GatewayError::Unavailable(format!(
            "{}: does not speak as etcd's JSON gateway does: is etcd 3.4 or later there?",
            self.member
        ))
    }

    fn late(&self) -> GatewayError {
        GatewayError::Unavailable(format!("{}: does not answer in time", self.member))
    }
}

/// A stream of answers, one a line.
pub struct Answers {
    gateway: Gateway,
    body: Incoming,
    bytes: Vec<u8>,
    _connection: Connection,
}

impl Answers {
    /// The next one; `None` at the end.
    ///
    /// # Errors
    /// The stream broke, or says why it ends.
    pub async fn next(&mut self) -> Result<Option<Value>, GatewayError> {
        loop {
            if let Some(end) = self.bytes.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.bytes.drain(..=end).collect();
                let answer = serde_json::from_slice(&line).map_err(|_| self.gateway.strange())?;
                return self.gateway.checked(answer).map(Some);
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(self.gateway.broken(&error)),
                Some(Ok(frame)) => {
                    let more = frame.into_data().unwrap_or_default();
                    if self.bytes.len() + more.len() > ANSWER_BYTES_MAX {
                        return Err(self.gateway.strange());
                    }
                    self.bytes.extend(more);
                }
            }
        }
    }
}

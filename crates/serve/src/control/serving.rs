//! Connections of HTTP: how many there are, and how long they may take.
//!
//! A client has a bounded time for the head of a request, a least pace for its body, and for taking
//! the answer; nothing else keeps a connection. When there are as many as there may be, a newcomer
//! takes the place of the one that has been without a request for longest, so that a crowd that only
//! holds connections open keeps nobody out.

use super::doors::Door;
use crate::rated::Rated;
use crate::runtime::shard::Clock;
use crate::sockets;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{Request, Response};
use flash::Instant;
use http_body_util::BodyExt;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, UnixListener};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Sleep, sleep};

/// How long a client may keep a body or an answer waiting, beside what its pace grants.
const PATIENCE: Duration = Duration::from_secs(30);
/// The least pace of a body and of taking an answer.
const BYTES_PER_SEC_MIN: u64 = 16 << 10;
/// Most bytes of a request's head.
const HEAD_BYTES_MAX: usize = 32 << 10;
const HEADERS_MAX: usize = 64;
/// After an accept that failed, as it does without descriptors.
const ACCEPT_AGAIN: Duration = Duration::from_millis(200);
/// How long the peer of a TCP connection may be silent for the kernel.
const PEER_PATIENCE: Duration = Duration::from_secs(60);

/// Where clients come from.
pub enum Listener {
    /// A socket in the file system.
    Unix(UnixListener),
    /// An address.
    Tcp(TcpListener),
}

impl Listener {
    /// One that is bound already. Within a runtime.
    pub fn unix(socket: OwnedFd) -> io::Result<Self> {
        let listener = std::os::unix::net::UnixListener::from(socket);
        listener.set_nonblocking(true)?;
        UnixListener::from_std(listener).map(Self::Unix)
    }

    /// The same at an address.
    pub fn tcp(socket: OwnedFd) -> io::Result<Self> {
        let listener = std::net::TcpListener::from(socket);
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener).map(Self::Tcp)
    }

    async fn accept(&self) -> io::Result<(Box<dyn Stream>, Door)> {
        match self {
            Self::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                let user = stream.peer_cred().ok().map(|peer| peer.uid());
                Ok((Box::new(stream), Door::Control { user }))
            }
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                sockets::prepare(&stream, PEER_PATIENCE);
                let local = stream.local_addr()?;
                Ok((Box::new(stream), Door::Tcp { peer, local }))
            }
        }
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A connection.
struct Client {
    /// Requests that are being answered.
    busy: Arc<AtomicUsize>,
    end: AbortHandle,
}

/// What the clients of a listener may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at a time.
    pub clients_max: usize,
    /// From the connection, or the last answer, to the end of a request's head.
    pub head_time: Duration,
}

/// Serves the clients of a listener for ever.
pub async fn serve(listener: Listener, router: Router, limits: Limits) {
    let clock = Clock::starting_at(Instant(0));
    let unaccepted = Rated::default();
    let mut tasks = JoinSet::new();
    let mut clients: VecDeque<Client> = VecDeque::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = tasks.join_next() => {
                clients.retain(|client| !client.end.is_finished());
                continue;
            }
        };
        let (stream, door) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                if let Some(more) = unaccepted.admit(clock.now()) {
                    tracing::warn!(%error, more, "a client of HTTP could not be accepted");
                }
                sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        while clients.len() >= limits.clients_max {
            make_room(&mut clients, &mut tasks).await;
        }
        let busy = Arc::new(AtomicUsize::new(0));
        let talk = converse(stream, door, router.clone(), Arc::clone(&busy), limits.head_time);
        let end = tasks.spawn(talk);
        clients.push_back(Client { busy, end });
    }
}

/// Ends the oldest connection without a request; if all have one, waits for one to end.
async fn make_room(clients: &mut VecDeque<Client>, tasks: &mut JoinSet<()>) {
    let idle = clients.iter().position(|client| client.busy.load(Ordering::Relaxed) == 0);
    if let Some(client) = idle.and_then(|idle| clients.remove(idle)) {
        client.end.abort();
    }
    tasks.join_next().await;
    clients.retain(|client| !client.end.is_finished());
}

/// All requests of a client.
async fn converse(
    stream: Box<dyn Stream>,
    door: Door,
    router: Router,
    busy: Arc<AtomicUsize>,
    head_time: Duration,
) {
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |request: Request<Incoming>| {
        let at_work = AtWork::new(&busy);
        let mut request = request.map(|body| Body::new(Paced::new(body)));
        request.extensions_mut().insert(door);
        let answer = router.call(request);
        async move {
            let response: Response<Body> = answer.await?;
            // Until the answer is sent, or given up.
            Ok::<_, std::convert::Infallible>(response.map(|body| {
                Body::new(body.map_frame(move |frame| {
                    let _ = &at_work;
                    frame
                }))
            }))
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head_time)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .serve_connection(TokioIo::new(Patient::new(stream)), service);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection of HTTP ends");
    }
}

/// A request is being answered as long as this is there.
struct AtWork(Arc<AtomicUsize>);

impl AtWork {
    fn new(busy: &Arc<AtomicUsize>) -> Self {
        busy.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(busy))
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The time that a peer may keep us waiting: some, and more for each byte it moved.
struct Pace {
    waited: Duration,
    moved: u64,
    waiting: Option<(tokio::time::Instant, Pin<Box<Sleep>>)>,
}

impl Pace {
    fn new() -> Self {
        Self { waited: Duration::ZERO, moved: 0, waiting: None }
    }

    /// The peer moved so many bytes.
    fn moved(&mut self, bytes: usize) {
        if let Some((since, _)) = self.waiting.take() {
            self.waited += since.elapsed();
        }
        self.moved += bytes as u64;
    }

    /// Nothing moves: ready when that has lasted too long.
    fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let granted = PATIENCE + Duration::from_millis(self.moved * 1000 / BYTES_PER_SEC_MIN);
        let left = granted.saturating_sub(self.waited);
        let now = tokio::time::Instant::now();
        let (_, alarm) = self.waiting.get_or_insert_with(|| (now, Box::pin(sleep(left))));
        alarm.as_mut().poll(cx)
    }
}

/// The body of a request, which must come at a least pace.
struct Paced {
    body: Incoming,
    pace: Pace,
}

impl Paced {
    fn new(body: Incoming) -> Self {
        Self { body, pace: Pace::new() }
    }
}

impl hyper::body::Body for Paced {
    type Data = Bytes;
    type Error = axum::BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            let bytes = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref());
            let bytes = bytes.map_or(0, Bytes::len);
            self.pace.moved(bytes);
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        ready!(self.pace.poll_over(cx));
        Poll::Ready(Some(Err("the body comes too slowly".into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A stream whose peer must take what is written at a least pace.
struct Patient {
    stream: Box<dyn Stream>,
    pace: Pace,
}

impl Patient {
    fn new(stream: Box<dyn Stream>) -> Self {
        Self { stream, pace: Pace::new() }
    }

    fn paced(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(result) => {
                self.pace.moved(*result.as_ref().unwrap_or(&0));
                Poll::Ready(result)
            }
            Poll::Pending => {
                ready!(self.pace.poll_over(cx));
                Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
            }
        }
    }
}

impl AsyncRead for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl AsyncWrite for Patient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.paced(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.paced(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_may_keep_us_waiting_as_long_as_its_bytes_are_worth() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            // A timer of no time at all is due with the next turn of the runtime.
            let over = async |pace: &mut Pace| {
                let waiting = std::future::poll_fn(|cx| pace.poll_over(cx));
                tokio::time::timeout(Duration::from_millis(300), waiting).await.is_ok()
            };
            let mut pace = Pace::new();
            assert!(!over(&mut pace).await, "a new one has patience");
            pace.waited = PATIENCE;
            pace.waiting = None;
            assert!(over(&mut pace).await, "which ends");
            pace.moved(10 * BYTES_PER_SEC_MIN as usize);
            assert!(!over(&mut pace).await, "bytes are worth more of it");
            pace.moved(0);
            pace.waited += Duration::from_secs(10);
            assert!(over(&mut pace).await, "and not for ever");
        });
    }
}

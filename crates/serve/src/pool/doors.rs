//! Connections between parts of a pool that speak [`pool::control::wire`]: mutual TLS, then a hello each way.

use super::PoolError;
use super::frames::{self, FrameError, LARGE_AT_A_TIME, Messages};
use super::tls::{Identity, server_name};
use crate::sockets;
use pool::control::wire::{Hello, Message};
use pool::words::PoolId;
use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::io::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

/// What comes from the other side.
pub type From = Messages<ReadHalf<TlsStream<TcpStream>>>;
/// What goes there.
pub type To = WriteHalf<TlsStream<TcpStream>>;

/// From the first packet to the hello.
const HELLO_WITHIN: Duration = Duration::from_secs(5);

/// A peer that does not answer the kernel for so long is gone.
const PATIENCE: Duration = Duration::from_secs(6);

/// A runtime for one thread.
///
/// # Errors
/// What the system says.
pub fn runtime() -> Result<tokio::runtime::Runtime, PoolError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| PoolError::System { doing: "start a runtime of the pool", error })
}

/// Listens at `address`.
///
/// # Errors
/// Why not.
pub fn listen(
    runtime: &tokio::runtime::Runtime,
    address: SocketAddr,
) -> Result<(TcpListener, SocketAddr), PoolError> {
    let _entered = runtime.enter();
    let listener = sockets::bind_tcp(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        let bound = listener.local_addr()?;
        Ok((TcpListener::from_std(listener)?, bound))
    });
    listener.map_err(|error| PoolError::Listen { address, error })
}

/// A thread with a name.
///
/// # Errors
/// What the system says.
pub fn thread<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, PoolError> {
    std::thread::Builder::new()
        .name(name.into())
        .spawn(run)
        .map_err(|error| PoolError::System { doing: "start a thread", error })
}

/// Who dials.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Of which pool.
    pub pool: PoolId,
    /// By what it is known.
    pub identity: Identity,
    /// What it calls itself.
    pub name: String,
}

impl Caller {
    /// Connects, and hears who answers. `what` should run there.
    ///
    /// # Errors
    /// Where and why not, in words.
    pub async fn dial(&self, address: SocketAddr, what: &str) -> Result<(From, To, Hello), String> {
        match timeout(HELLO_WITHIN, self.begin(address, what)).await {
            Ok(Ok(reached)) => Ok(reached),
            Ok(Err(reason)) => Err(format!("{address}: {reason}")),
            Err(_) => Err(format!("{address}: does not answer: does `{what}` run there?")),
        }
    }

    async fn begin(&self, address: SocketAddr, what: &str) -> Result<(From, To, Hello), String> {
        let stream = TcpStream::connect(address)
            .await
            .map_err(|error| format!("{error}: does `{what}` run there?"))?;
        sockets::prepare(&stream, PATIENCE);
        let connector = TlsConnector::from(Arc::clone(&self.identity.client));
        let stream = connector.connect(server_name(self.pool), stream).await.map_err(|error| {
            format!("{error}: its certificate has to be of this pool's authority, and so has ours")
        })?;
        let (read, mut to) = tokio::io::split(TlsStream::from(stream));
        let mut from = Messages::new(read, Arc::new(Semaphore::new(LARGE_AT_A_TIME)));
        let name = self.name.chars().take(NAME_LETTERS_MAX).collect();
        let hello = Message::Hello(Hello { pool: self.pool, name, plane: None });
        let refused = |error: FrameError| match error {
            FrameError::Ended => {
                "it ended the connection at once: is our certificate of its authority?".to_owned()
            }
            error => error.to_string(),
        };
        frames::send(&mut to, &hello).await.map_err(refused)?;
        match from.next().await.map_err(refused)? {
            Message::Hello(hello) if hello.pool == self.pool => Ok((from, to, hello)),
            _ => Err("what answers there is not of this pool".to_owned()),
        }
    }
}

/// Of the widest letters so many fit what a hello may have.
const NAME_LETTERS_MAX: usize = 16;

/// Lets the parts of a pool in.
pub struct Doors {
    /// Whose parts.
    pub pool: PoolId,
    /// By what they know us.
    pub identity: Identity,
    /// What is served, in words.
    pub what: &'static str,
    /// Most at a time.
    pub clients_max: usize,
}

impl Doors {
    /// Accepts for ever. Who has not shown a certificate yet counts apart: of these the oldest goes where there are too
    /// many, so that connections that say nothing keep nobody out. `serve` has a number for each connection, and ends it by ending.
    pub async fn open<F, T>(self, listener: TcpListener, serve: F)
    where
        F: Fn(u64, From, To) -> T + Send + Sync + 'static,
        T: Future<Output = Result<(), FrameError>> + Send,
    {
        let acceptor = TlsAcceptor::from(Arc::clone(&self.identity.server));
        let clients = Arc::new(Semaphore::new(self.clients_max));
        let large = Arc::new(Semaphore::new(LARGE_AT_A_TIME));
        let serve = Arc::new(serve);
        let (pool, what) = (self.pool, self.what);
        let greeting: Arc<Mutex<BTreeMap<u64, AbortHandle>>> = Arc::default();
        let mut tasks = tokio::task::JoinSet::new();
        for client in 1.. {
            while tasks.try_join_next().is_some() {}
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Out of descriptors, most likely: others give some back.
                    tracing::warn!(%error, "{what} cannot accept a client");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let (acceptor, large, serve) =
                (acceptor.clone(), Arc::clone(&large), Arc::clone(&serve));
            let (clients, unknown) = (Arc::clone(&clients), Arc::clone(&greeting));
            let task = tasks.spawn(async move {
                let let_in = let_in(pool, &acceptor, large, stream).await;
                lock(&unknown).remove(&client);
                let permit = clients.try_acquire_owned();
                let served = match (let_in, permit) {
                    (Ok((from, to)), Ok(_permit)) => serve(client, from, to).await,
                    (Ok(_), Err(_)) => {
                        tracing::warn!(
                            "{what} has as many clients as clients_max allows: one is sent away"
                        );
                        return;
                    }
                    (Err(error), _) => Err(error),
                };
                if let Err(error) = served {
                    tracing::debug!(client, "a client of {what}: {error}");
                }
            });
            // The task runs only after this: both are of one thread.
            let mut unknown = lock(&greeting);
            unknown.insert(client, task);
            if unknown.len() > GREETING_MAX
                && let Some((oldest, task)) = unknown.pop_first()
            {
                tracing::debug!(oldest, "{what} has too many that do not greet: one is sent away");
                task.abort();
            }
        }
    }
}

/// Connections at a time that have not greeted yet.
const GREETING_MAX: usize = 64;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn let_in(
    pool: PoolId,
    acceptor: &TlsAcceptor,
    large: Arc<Semaphore>,
    stream: TcpStream,
) -> Result<(From, To), FrameError> {
    sockets::prepare(&stream, PATIENCE);
    let begun = timeout(HELLO_WITHIN, async {
        let stream = TlsStream::from(acceptor.accept(stream).await?);
        let (read, to) = tokio::io::split(stream);
        let mut from = Messages::new(read, large);
        match from.next().await? {
            Message::Hello(hello) if hello.pool == pool => Ok((from, to)),
            _ => Err(FrameError::Ended),
        }
    });
    begun.await.map_err(|_| FrameError::Slow)?
}

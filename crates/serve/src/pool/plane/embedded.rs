//! A connection to Weir's own control plane.

use super::super::config::PlaneConfig;
use super::super::frames::{self, FrameError, LARGE_AT_A_TIME, Messages};
use super::super::tls::server_name;
use super::link::{ASKS_MAX, Session};
use crate::sockets;
use pool::control::contract::{PlaneAnswer, PlaneAsk, PlaneAskId};
use pool::control::wire::{Hello, Message};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// From the first packet to the plane's hello.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// A plane that does not answer the kernel for so long is gone.
const PATIENCE: Duration = Duration::from_secs(6);

/// Connects, and hears how far the plane has come.
///
/// # Errors
/// Where and why not, in words.
pub async fn connect(address: SocketAddr, config: &PlaneConfig) -> Result<Session, String> {
    match timeout(CONNECT_WITHIN, begin(address, config)).await {
        Ok(Ok(session)) => Ok(session),
        Ok(Err(reason)) => Err(format!("{address}: {reason}")),
        Err(_) => Err(format!("{address}: does not answer: is it the control plane's address?")),
    }
}

async fn begin(address: SocketAddr, config: &PlaneConfig) -> Result<Session, String> {
    let stream = TcpStream::connect(address)
        .await
        .map_err(|error| format!("{error}: does `weir pool plane` run there?"))?;
    sockets::prepare(&stream, PATIENCE);
    let connector = TlsConnector::from(Arc::clone(&config.identity.client));
    let stream = connector.connect(server_name(config.pool), stream).await.map_err(|error| {
        format!("{error}: its certificate has to be of this pool's authority, and so has ours")
    })?;
    let (read, mut write) = tokio::io::split(stream);
    let mut messages = Messages::new(read, Arc::new(Semaphore::new(LARGE_AT_A_TIME)));
    let name = config.files.certificate.file_stem().unwrap_or_default().to_string_lossy();
    let name: String = name.chars().take(NAME_LETTERS_MAX).collect();
    let hello = Message::Hello(Hello { pool: config.pool, name, plane: None });
    let refused = |error: FrameError| match error {
        FrameError::Ended => {
            "it ended the connection at once: is our certificate of its authority?".to_owned()
        }
        error => error.to_string(),
    };
    frames::send(&mut write, &hello).await.map_err(refused)?;
    let facts = match messages.next().await.map_err(refused)? {
        Message::Hello(Hello { pool, plane: Some(facts), .. }) if pool == config.pool => facts,
        _ => return Err("what answers there is not this pool's control plane".to_owned()),
    };
    let (asks, from) = mpsc::channel(ASKS_MAX);
    let (to, answers) = mpsc::unbounded_channel();
    let driver = Box::pin(async move {
        let trouble = tokio::select! {
            Err(error) = read_answers(messages, to) => error,
            Err(error) = write_asks(write, from) => error,
            else => FrameError::Ended,
        };
        format!("{address}: {trouble}")
    });
    Ok(Session { asks, answers, driver, facts })
}

/// Of the widest letters so many fit what a hello may have.
const NAME_LETTERS_MAX: usize = 16;

async fn read_answers(
    mut from: Messages<impl AsyncRead + Unpin>,
    to: mpsc::UnboundedSender<(u64, PlaneAnswer)>,
) -> Result<(), FrameError> {
    loop {
        if let Message::Answer { id, answer } = from.next().await? {
            // Nobody takes it: the link is about to end.
            to.send((id.0, answer)).ok();
        }
    }
}

async fn write_asks(
    mut to: impl AsyncWrite + Unpin,
    mut from: mpsc::Receiver<(u64, PlaneAsk)>,
) -> Result<(), FrameError> {
    while let Some((number, ask)) = from.recv().await {
        let message = Message::Ask { id: PlaneAskId(number), ask };
        to.write_all(&message.encode()?).await?;
        if from.is_empty() {
            to.flush().await?;
        }
    }
    Ok(())
}

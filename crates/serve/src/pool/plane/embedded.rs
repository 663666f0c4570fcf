//! A connection to Weir's own control plane.

use super::super::config::PlaneConfig;
use super::super::frames::{FrameError, Messages};
use super::link::{ASKS_MAX, Session};
use pool::control::contract::{PlaneAnswer, PlaneAsk, PlaneAskId};
use pool::control::wire::Message;
use std::net::SocketAddr;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

/// Connects, and hears how far the plane has come.
///
/// # Errors
/// Where and why not, in words.
pub async fn connect(address: SocketAddr, config: &PlaneConfig) -> Result<Session, String> {
    let (messages, write, hello) = config.caller().dial(address, "weir pool plane").await?;
    let other = || format!("{address}: what answers there is another part of this pool");
    let facts = hello.plane.ok_or_else(other)?;
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

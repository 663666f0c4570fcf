//! Messages of [`pool::control::wire`] over a stream of bytes.

use pool::control::wire::{BODY_BYTES_MAX, Decoded, HEAD_BYTES, Message, decode};
use pool::wire::WireError;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// What ends a connection.
#[derive(Debug)]
pub enum FrameError {
    /// The stream.
    Io(io::Error),
    /// What came is no message, or what should go does not fit one.
    Wire(WireError),
    /// The other side ended it.
    Ended,
    /// A message began, and did not end in time.
    Slow,
}

impl std::fmt::Display for FrameError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io(error) => write!(f, "{error}"),
            Self::Wire(error) => write!(f, "{error}"),
            Self::Ended => f.write_str("the other side ended the connection"),
            Self::Slow => f.write_str("a message took too long to come"),
        }
    }
}

impl From<io::Error> for FrameError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Ended,
            _ => Self::Io(error),
        }
    }
}

impl From<WireError> for FrameError {
    fn from(error: WireError) -> Self {
        Self::Wire(error)
    }
}

/// Takes messages off a stream. Large ones of all streams that share `large` share its permits, so that many
/// peers at once do not fill the memory.
pub struct Messages<R> {
    from: R,
    bytes: Vec<u8>,
    large: Arc<Semaphore>,
}

/// Messages above this size are large: there are few of them.
const SMALL_BYTES_MAX: usize = 64 << 10;
/// A large message has to come within this time.
const LARGE_WITHIN: Duration = Duration::from_secs(10);
/// So many large messages at a time suit a server.
pub const LARGE_AT_A_TIME: usize = 8;

impl<R: AsyncRead + Unpin> Messages<R> {
    pub fn new(from: R, large: Arc<Semaphore>) -> Self {
        Self { from, bytes: Vec::new(), large }
    }

    /// The next message. Nothing is lost where it is not waited for to the end.
    ///
    /// # Errors
    /// The connection is of no use any more.
    pub async fn next(&mut self) -> Result<Message, FrameError> {
        loop {
            match decode(&self.bytes)? {
                Decoded::Message { message, bytes } => {
                    self.bytes.drain(..bytes);
                    // What a large message took is given back.
                    self.bytes.shrink_to(SMALL_BYTES_MAX);
                    return Ok(message);
                }
                Decoded::More(wanted) if wanted > SMALL_BYTES_MAX => {
                    let permit = Arc::clone(&self.large).acquire_owned().await;
                    let permit = permit.expect("nobody closes it");
                    let rest = self.large(wanted, permit);
                    timeout(LARGE_WITHIN, rest).await.map_err(|_| FrameError::Slow)??;
                }
                Decoded::More(_) => self.read().await?,
            }
        }
    }

    async fn large(&mut self, wanted: usize, _: OwnedSemaphorePermit) -> Result<(), FrameError> {
        while self.bytes.len() < wanted {
            self.read().await?;
        }
        Ok(())
    }

    async fn read(&mut self) -> Result<(), FrameError> {
        self.bytes.reserve(READ_BYTES);
        match self.from.read_buf(&mut self.bytes).await? {
            0 => Err(FrameError::Ended),
            _ => Ok(()),
        }
    }
}

const READ_BYTES: usize = 8 << 10;
const _: () = assert!(HEAD_BYTES < READ_BYTES && SMALL_BYTES_MAX < BODY_BYTES_MAX);

/// Sends one message.
///
/// # Errors
/// The connection is of no use any more.
pub async fn send(to: &mut (impl AsyncWrite + Unpin), message: &Message) -> Result<(), FrameError> {
    to.write_all(&message.encode()?).await?;
    to.flush().await?;
    Ok(())
}

//! TLS of a connection, on either side.

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, Connection, ServerConfig};
use rustls::{ClientConnection, ServerConnection};
use std::io::{Read, Write};
use std::sync::Arc;

/// The session, and what was decrypted.
pub struct Crypt {
    session: Box<Connection>,
    plain: Vec<u8>,
    /// What of it is not dealt with.
    at: usize,
}

impl Crypt {
    /// Of a connection that was accepted.
    pub fn accept(config: &Arc<ServerConfig>) -> Result<Self, rustls::Error> {
        Ok(Self::of(Connection::Server(ServerConnection::new(Arc::clone(config))?)))
    }

    /// Of a connection that was made to whoever may call himself `name`.
    pub fn connect(
        config: &Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> Result<Self, rustls::Error> {
        Ok(Self::of(Connection::Client(ClientConnection::new(Arc::clone(config), name)?)))
    }

    fn of(mut session: Connection) -> Self {
        // What may wait to be sent is bounded by who says it.
        session.set_buffer_limit(None);
        Self { session: Box::new(session), plain: Vec::new(), at: 0 }
    }

    /// Takes what came.
    pub fn take(&mut self, mut cipher: &[u8]) -> Result<(), rustls::Error> {
        let failed = |error: std::io::Error| rustls::Error::General(error.to_string());
        if self.at > 0 {
            self.plain.drain(..self.at);
            self.at = 0;
        }
        while !cipher.is_empty() {
            if self.session.read_tls(&mut cipher).map_err(failed)? == 0 {
                // The other side has said that it says no more: what comes behind is not looked at.
                break;
            }
            let state = self.session.process_new_packets()?;
            let old = self.plain.len();
            self.plain.resize(old + state.plaintext_bytes_to_read(), 0);
            if self.plain.len() > old {
                self.session.reader().read_exact(&mut self.plain[old..]).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// The handshake has not ended.
    pub fn is_handshaking(&self) -> bool {
        self.session.is_handshaking()
    }

    /// The handshake has something to send.
    pub fn wants_send(&self) -> bool {
        self.session.wants_write()
    }

    /// What was decrypted and not dealt with.
    pub fn plain(&self) -> &[u8] {
        &self.plain[self.at..]
    }

    /// So much of it is.
    pub fn consume(&mut self, bytes: usize) {
        self.at += bytes;
    }

    /// What is to be sent for these bytes, and for the handshake.
    pub fn seal<'a>(&mut self, slices: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
        for slice in slices {
            // Writing to a session without a limit only copies.
            self.session.writer().write_all(slice).expect("the session buffers all");
        }
        let mut cipher = Vec::new();
        while self.session.wants_write() {
            self.session.write_tls(&mut cipher).expect("memory takes all");
        }
        cipher
    }
}

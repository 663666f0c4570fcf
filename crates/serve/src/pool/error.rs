//! What keeps a part of a pool from its work.

use super::tls::TlsError;
use crate::config::ConfigErrors;
use pool::control::LogError;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The place, what is wrong, and the mend.
#[derive(Debug)]
pub enum PoolError {
    /// A config file.
    Config(ConfigErrors),
    /// A certificate or a key.
    Tls(TlsError),
    /// A file that cannot be used.
    File {
        /// Which.
        path: PathBuf,
        /// Why, and what to do.
        reason: String,
    },
    /// The log of the control plane.
    Log {
        /// Where it is.
        path: PathBuf,
        /// What is wrong with it.
        error: LogError,
    },
    /// Nobody can listen there.
    Listen {
        /// Where.
        address: SocketAddr,
        /// What the system says.
        error: io::Error,
    },
    /// The control plane cannot be used.
    Plane {
        /// Where it should be.
        place: String,
        /// Why, and what to do.
        reason: String,
    },
    /// What is served.
    Serve(crate::server::ServeError),
    /// The system refuses something that it grants otherwise.
    System {
        /// What was tried.
        doing: &'static str,
        /// What it says.
        error: io::Error,
    },
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(errors) => write!(f, "{errors}"),
            Self::Tls(error) => write!(f, "{error}"),
            Self::File { path, reason } => write!(f, "{}: {reason}", path.display()),
            Self::Log { path, error } => write!(f, "{}: {error}", path.display()),
            Self::Listen { address, error } => {
                write!(f, "{address}: cannot listen: {error}: choose another address or port")
            }
            Self::Plane { place, reason } => write!(f, "{place}: {reason}"),
            Self::Serve(error) => error.fmt(f),
            Self::System { doing, error } => write!(f, "cannot {doing}: {error}"),
        }
    }
}

impl std::error::Error for PoolError {}

impl From<crate::server::ServeError> for PoolError {
    fn from(error: crate::server::ServeError) -> Self {
        Self::Serve(error)
    }
}

//! Certificate and key of the NBD server.

use crate::files;
use rustls::ServerConfig;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where they are.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TlsFiles {
    /// The certificate, and what it is signed by, in PEM.
    pub certificate: PathBuf,
    /// Its private key in PEM.
    pub key: PathBuf,
}

/// What is wrong with a file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TlsError {
    /// Which.
    pub path: PathBuf,
    /// Why it cannot be used, and what to do.
    pub reason: String,
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.reason)
    }
}

impl std::error::Error for TlsError {}

/// Reads certificate and key.
pub fn load(files: &TlsFiles) -> Result<Arc<ServerConfig>, TlsError> {
    let certificates = certificates(&files.certificate)?;
    let key = private_key(&files.key)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let refused = |e: rustls::Error| TlsError {
        path: files.key.clone(),
        reason: format!("does not go with the certificate, or is of an unknown kind: {e}"),
    };
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(refused)?
        .with_no_client_auth()
        .with_single_cert(certificates, key)
        .map_err(refused)?;
    Ok(Arc::new(config))
}

/// The certificates of a file; at least one.
pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = pem_of(path)
        .and_then(|pem| CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>());
    let read = read.and_then(|all| match all.is_empty() {
        true => Err(pem::Error::NoItemsFound),
        false => Ok(all),
    });
    read.map_err(|error| bad_pem(path, &error, "a certificate"))
}

/// The private key of a file.
pub(crate) fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let read = pem_of(path).and_then(|pem| PrivateKeyDer::from_pem_slice(&pem));
    read.map_err(|error| bad_pem(path, &error, "a private key"))
}

fn pem_of(path: &Path) -> Result<Vec<u8>, pem::Error> {
    files::read(path, files::TEXT_BYTES_MAX).map_err(pem::Error::Io)
}

fn bad_pem(path: &Path, error: &pem::Error, what: &str) -> TlsError {
    let reason = format!("cannot be read as {what} in PEM: {error}");
    TlsError { path: path.into(), reason }
}

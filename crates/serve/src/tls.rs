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
#[derive(Debug)]
pub struct TlsError {
    path: PathBuf,
    reason: String,
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.reason)
    }
}

impl std::error::Error for TlsError {}

/// Reads certificate and key.
pub fn load(files: &TlsFiles) -> Result<Arc<ServerConfig>, TlsError> {
    let certificates = pem_of(&files.certificate)
        .and_then(|pem| CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>())
        .map_err(|e| bad_pem(&files.certificate, &e, "a certificate"))?;
    if certificates.is_empty() {
        return Err(bad_pem(&files.certificate, &pem::Error::NoItemsFound, "a certificate"));
    }
    let key = pem_of(&files.key)
        .and_then(|pem| PrivateKeyDer::from_pem_slice(&pem))
        .map_err(|e| bad_pem(&files.key, &e, "a private key"))?;
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

fn pem_of(path: &Path) -> Result<Vec<u8>, pem::Error> {
    files::read(path, files::TEXT_BYTES_MAX).map_err(pem::Error::Io)
}

fn bad_pem(path: &Path, error: &pem::Error, what: &str) -> TlsError {
    let reason = format!("cannot be read as {what} in PEM: {error}");
    TlsError { path: path.into(), reason }
}

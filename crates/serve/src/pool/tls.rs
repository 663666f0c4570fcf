//! Who belongs to a pool: whoever has a certificate of the pool's authority. All parts of it talk over TLS 1.3,
//! both sides show their certificate, and the name in it is the pool's: so addresses may change, and no part takes
//! one of another pool for its own.

use super::PoolError;
pub use crate::tls::TlsError;
use pool::words::PoolId;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::client::verify_server_name;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::version::TLS13;
use rustls::{
    ClientConfig, DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig,
    SignatureScheme,
};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where the certificates of a part are, in PEM.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct IdentityFiles {
    /// The certificate of the pool's authority.
    pub authority: PathBuf,
    /// The certificate of this part, and what it is signed by.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// What a part of a pool shows the others, and by what it knows them.
#[derive(Clone)]
pub struct Identity {
    /// For who is connected to.
    pub server: Arc<ServerConfig>,
    /// For who connects.
    pub client: Arc<ClientConfig>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Identity")
    }
}

/// The name that stands in every certificate of a pool.
pub fn name(pool: PoolId) -> String {
    format!("{:032x}.weir-pool", pool.0)
}

/// [`name`], as clients check it.
pub fn server_name(pool: PoolId) -> ServerName<'static> {
    ServerName::try_from(name(pool)).expect("two labels of letters and digits are a name")
}

/// Reads and checks the certificates of a part.
///
/// # Errors
/// The file that cannot be used, why, and what to do.
pub fn load(files: &IdentityFiles, pool: PoolId) -> Result<Identity, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let roots = Arc::new(roots(&files.authority)?);
    let chain = certificates(&files.certificate)?;
    let key = || private_key(&files.key);
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), provider.clone())
            .build()
            .map_err(|error| TlsError {
            path: files.authority.clone(),
            reason: format!(
                "cannot be used as an authority: {error}: name the pool's authority.pem"
            ),
        })?;
    let verifier = Arc::new(OfPool { chain: verifier, name: server_name(pool) });
    is_ours(files, verifier.as_ref(), &chain)?;
    let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| no_pair(files, &error))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain.clone(), key()?)
        .map_err(|error| no_pair(files, &error))?;
    let client = client(provider, roots, chain, key()?).map_err(|error| no_pair(files, &error))?;
    Ok(Identity { server: Arc::new(server), client: Arc::new(client) })
}

/// Takes whom the authority has signed, for this pool: an authority may have other pools, too.
#[derive(Debug)]
struct OfPool {
    chain: Arc<dyn ClientCertVerifier>,
    name: ServerName<'static>,
}

impl ClientCertVerifier for OfPool {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.chain.verify_client_cert(end_entity, intermediates, now)?;
        verify_server_name(&ParsedCertificate::try_from(end_entity)?, &self.name)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chain.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chain.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}

fn client(
    provider: Arc<CryptoProvider>,
    roots: Arc<RootCertStore>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ClientConfig, rustls::Error> {
    ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
}

/// What the others would refuse is refused here, where somebody reads why.
fn is_ours(
    files: &IdentityFiles,
    verifier: &dyn ClientCertVerifier,
    chain: &[CertificateDer<'_>],
) -> Result<(), TlsError> {
    let (own, intermediates) = chain.split_first().expect("looked at when it was read");
    match verifier.verify_client_cert(own, intermediates, UnixTime::now()) {
        Ok(_) => Ok(()),
        Err(error) => Err(TlsError {
            path: files.certificate.clone(),
            reason: format!(
                "other parts of the pool would refuse it: {error}: it must be signed by the \
                 authority in {} and be in force now; `weir pool certs` makes one",
                files.authority.display()
            ),
        }),
    }
}

fn roots(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| TlsError {
            path: path.into(),
            reason: format!("holds no authority: {error}: name the pool's authority.pem"),
        })?;
    }
    Ok(roots)
}

/// At least one.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    crate::tls::certificates(path).map_err(with_mend)
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    crate::tls::private_key(path).map_err(with_mend)
}

fn with_mend(TlsError { path, reason }: TlsError) -> TlsError {
    TlsError { path, reason: format!("{reason}: `weir pool certs` makes one") }
}

fn no_pair(files: &IdentityFiles, error: &rustls::Error) -> TlsError {
    let certificate = files.certificate.display();
    let reason =
        format!("does not go with {certificate}, or is of an unknown kind: {error}: name its key");
    TlsError { path: files.key.clone(), reason }
}

impl From<TlsError> for PoolError {
    fn from(error: TlsError) -> Self {
        Self::Tls(error)
    }
}

#[cfg(test)]
mod tests {
    use super::super::certs;
    use super::*;
    use rustls::{ClientConnection, ServerConnection};
    use std::io;

    /// A folder with certificates of a pool, which goes with it.
    fn folder(name: &str, pool: PoolId) -> certs::Scratch {
        certs::Scratch::new(&format!("tls-{name}"), pool, &["a", "b"])
    }

    /// Hands bytes to and fro until both are through or one of them refuses.
    fn shake(client: &Identity, server: &Identity, pool: PoolId) -> Result<(), String> {
        let client_config = Arc::clone(&client.client);
        let mut client = ClientConnection::new(client_config, server_name(pool)).expect("a name");
        let mut server = ServerConnection::new(Arc::clone(&server.server)).expect("a config");
        for _ in 0..10 {
            let mut bytes = Vec::new();
            client.write_tls(&mut bytes).expect("memory");
            feed(&bytes, |bytes| server.read_tls(bytes))?;
            server.process_new_packets().map_err(|error| format!("the server: {error}"))?;
            bytes.clear();
            server.write_tls(&mut bytes).expect("memory");
            feed(&bytes, |bytes| client.read_tls(bytes))?;
            client.process_new_packets().map_err(|error| format!("the client: {error}"))?;
        }
        match client.is_handshaking() || server.is_handshaking() {
            true => Err("it does not end".to_owned()),
            false => Ok(()),
        }
    }

    fn feed(
        mut bytes: &[u8],
        mut to: impl FnMut(&mut dyn io::Read) -> io::Result<usize>,
    ) -> Result<(), String> {
        while !bytes.is_empty() {
            to(&mut bytes).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    #[test]
    fn parts_of_a_pool_know_each_other_and_nobody_else() {
        let (pool, other) = (PoolId(7), PoolId(8));
        let (ours, theirs) = (folder("ours", pool), folder("theirs", pool));
        let neighbour = folder("neighbour", other);
        let load_as =
            |from: &certs::Scratch, part: &str, pool| load(&from.files(part), pool).expect("sound");
        let load = |from: &certs::Scratch, part: &str| load_as(from, part, pool);
        let (a, b) = (load(&ours, "a"), load(&ours, "b"));
        assert_eq!(shake(&a, &b, pool), Ok(()));
        assert_eq!(shake(&b, &a, pool), Ok(()));
        // The name is the pool's own: with another one, the right authority does not help.
        let refused = shake(&a, &b, other).expect_err("of another pool");
        assert!(refused.starts_with("the client"), "{refused}");
        let stranger = load(&theirs, "a");
        let refused = shake(&stranger, &a, pool).expect_err("of another authority");
        assert!(refused.starts_with("the client"), "{refused}");
        // A stranger that trusts everybody of ours still shows its own certificate.
        let mixed = Identity { server: a.server.clone(), client: mixed_client(&ours, &theirs) };
        let refused = shake(&mixed, &a, pool).expect_err("its certificate is not ours");
        assert!(refused.starts_with("the server"), "{refused}");
        let nobody = Identity { server: a.server.clone(), client: without_certificate(&ours) };
        let refused = shake(&nobody, &a, pool).expect_err("it shows none");
        assert!(refused.starts_with("the server"), "{refused}");
        assert!(shake(&load_as(&neighbour, "a", other), &a, pool).is_err());
    }

    fn mixed_client(trusts: &certs::Scratch, shows: &certs::Scratch) -> Arc<ClientConfig> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let roots = Arc::new(roots(&trusts.files("a").authority).expect("sound"));
        let files = shows.files("a");
        let chain = certificates(&files.certificate).expect("sound");
        Arc::new(
            client(provider, roots, chain, private_key(&files.key).expect("sound")).expect("one"),
        )
    }

    fn without_certificate(trusts: &certs::Scratch) -> Arc<ClientConfig> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let roots = Arc::new(roots(&trusts.files("a").authority).expect("sound"));
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .expect("it has it")
            .with_root_certificates(roots)
            .with_no_client_auth();
        Arc::new(config)
    }

    #[test]
    fn what_cannot_be_used_is_refused_by_file_with_a_mend() {
        let (ours, theirs) = (folder("files", PoolId(7)), folder("files-other", PoolId(7)));
        let sound = ours.files("a");
        let missing = ours.folder().join("nothing.pem");
        let refusal =
            |files: IdentityFiles| load(&files, PoolId(7)).expect_err("of no use").to_string();
        let text = refusal(IdentityFiles { authority: missing.clone(), ..sound.clone() });
        assert!(text.contains("nothing.pem") && text.contains("weir pool certs"), "{text}");
        let text = refusal(IdentityFiles { key: missing, ..sound.clone() });
        assert!(text.contains("nothing.pem") && text.contains("private key"), "{text}");
        let text = refusal(IdentityFiles { key: ours.files("b").key, ..sound.clone() });
        assert!(text.contains("b.key") && text.contains("a.pem"), "{text}");
        let authority = theirs.files("a").authority;
        let text = refusal(IdentityFiles { authority, ..sound.clone() });
        assert!(text.contains("a.pem") && text.contains("would refuse it"), "{text}");
        let text = refusal(IdentityFiles { certificate: sound.key.clone(), ..sound });
        assert!(text.contains("as a certificate"), "{text}");
    }
}

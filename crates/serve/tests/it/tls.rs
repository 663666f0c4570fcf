//! NBD over TLS.

use crate::client::Client;
use crate::{Folder, MEMORY, pattern};
use rustls::pki_types::{CertificateDer, ServerName};
use serve::{Config, Server};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

type TlsStream = rustls::StreamOwned<rustls::ClientConnection, UnixStream>;

fn start_with_tls(folder: &Folder) -> (Server, CertificateDer<'static>) {
    let made = rcgen::generate_simple_self_signed(vec!["weir.test".into()]).unwrap();
    std::fs::write(folder.0.join("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(folder.0.join("key.pem"), made.signing_key.serialize_pem()).unwrap();
    let text = format!(
        "{MEMORY}\n[nbd]\nunix = \"nbd.sock\"\ntls = \"required\"\n\
         tls_certificate = \"cert.pem\"\ntls_key = \"key.pem\"\n[http]\nenabled = false\n"
    );
    let config = Config::parse(&text, &folder.0).unwrap();
    (Server::start(&config).unwrap_or_else(|error| panic!("{error}")), made.cert.der().clone())
}

fn option(number: u32) -> Vec<u8> {
    let mut option = Vec::from(b"IHAVEOPT");
    option.extend(number.to_be_bytes());
    option.extend(0u32.to_be_bytes());
    option
}

fn connect(folder: &Folder, certificate: &CertificateDer<'static>) -> Client<TlsStream> {
    let mut socket = UnixStream::connect(folder.socket()).unwrap();
    socket.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
    socket.read_exact(&mut [0; 18]).unwrap();
    socket.write_all(&3u32.to_be_bytes()).unwrap();
    socket.write_all(&option(5)).unwrap();
    let mut consent = [0; 20];
    socket.read_exact(&mut consent).unwrap();
    assert_eq!(consent[12..16], 1u32.to_be_bytes(), "the server agrees to TLS");
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("weir.test").unwrap();
    let session = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    Client::choose(rustls::StreamOwned::new(session, socket), "data").unwrap()
}

#[test]
fn clients_speak_through_tls_and_only_through_it() {
    let folder = Folder::new();
    let (server, certificate) = start_with_tls(&folder);
    assert!(Client::connect(&folder.socket(), "data").is_err(), "plaintext is refused");
    let mut client = connect(&folder, &certificate);
    let mut other = connect(&folder, &certificate);
    for round in 0..20u64 {
        let bytes = pattern(round, 1 + round as usize * 31_337);
        client.write(round * 1000, &bytes).unwrap();
        client.flush().unwrap();
        assert!(other.read(round * 1000, bytes.len()).unwrap() == bytes, "round {round}");
    }
    server.shut_down().unwrap();
}

#[test]
fn a_client_that_sends_no_tls_after_asking_for_it_is_dropped() {
    let folder = Folder::new();
    let (server, certificate) = start_with_tls(&folder);
    let mut socket = UnixStream::connect(folder.socket()).unwrap();
    socket.read_exact(&mut [0; 18]).unwrap();
    socket.write_all(&3u32.to_be_bytes()).unwrap();
    socket.write_all(&option(5)).unwrap();
    socket.read_exact(&mut [0; 20]).unwrap();
    socket.write_all(b"this is not TLS, this is not TLS, this is not TLS").unwrap();
    let mut rest = Vec::new();
    socket.read_to_end(&mut rest).ok();
    connect(&folder, &certificate).write(0, &[1; 10]).unwrap();
    server.shut_down().unwrap();
}

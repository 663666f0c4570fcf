//! TLS required: a client that trusts the server's authority is served, a plaintext one is refused,
//! and one that trusts another authority does not go on.

use crate::nbd::Client;
use crate::scratch::Scratch;
use crate::server::Server;
use crate::tools::{output, pattern, run, said};
use std::fs;

/// A whole config of a server that insists on TLS. The one place here that knows its keys.
fn config(scratch: &Scratch, certificates: &str) -> String {
    let data = scratch.data();
    let data = data.display();
    format!(
        "[device]\npath = \"{data}\"\nprofile = \"instant\"\n\
         [[volume]]\nname = \"default\"\nsize = \"64MiB\"\n\
         [nbd]\nunix = \"{data}/nbd.sock\"\ntls = \"required\"\n\
         tls_certificate = \"{certificates}/server-cert.pem\"\n\
         tls_key = \"{certificates}/server-key.pem\"\n"
    )
}

/// A certificate authority with a server's and a client's certificate, in libnbd's layout.
fn make_certificates(directory: &str) {
    fs::create_dir_all(directory).unwrap();
    let file = |name: &str| format!("{directory}/{name}");
    let ec = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
    let (ca_key, ca) = (file("ca-key.pem"), file("ca-cert.pem"));
    let mut args = vec!["req", "-x509", "-days", "2", "-subj", "/CN=weir test authority"];
    args.extend(ec);
    args.extend(["-keyout", &ca_key, "-out", &ca]);
    args.extend(["-addext", "keyUsage=critical,keyCertSign,cRLSign"]);
    run("openssl", &args);
    for who in ["server", "client"] {
        let (key, request) = (file(&format!("{who}-key.pem")), file(&format!("{who}.csr")));
        let (certificate, extensions) = (file(&format!("{who}-cert.pem")), file("extensions"));
        let subject = format!("/CN={who}");
        let mut args = vec!["req", "-new", "-subj", &subject];
        args.extend(ec);
        args.extend(["-keyout", &key, "-out", &request]);
        run("openssl", &args);
        fs::write(
            &extensions,
            format!(
                "basicConstraints=CA:FALSE\nsubjectAltName=DNS:localhost,IP:127.0.0.1\n\
                 extendedKeyUsage={who}Auth\n"
            ),
        )
        .unwrap();
        let mut args = vec!["x509", "-req", "-days", "2", "-in", &request, "-CA", &ca];
        args.extend(["-CAkey", &ca_key, "-CAcreateserial", "-extfile", &extensions]);
        args.extend(["-out", &certificate]);
        run("openssl", &args);
    }
}

#[test]
fn tls_is_required_when_the_config_says_so() {
    let scratch = Scratch::new("tls");
    let (ours, theirs) = (scratch.file("pki"), scratch.file("other-pki"));
    make_certificates(&ours);
    make_certificates(&theirs);
    let path = scratch.file("weir.toml");
    fs::write(&path, config(&scratch, &ours)).unwrap();
    let server = Server::start(&scratch, &["--config", &path]);

    let socket = server.socket();
    let uri = |certificates: &str| {
        format!("nbds+unix:///default?socket={}&tls-certificates={certificates}", socket.display())
    };
    let info = run("nbdinfo", &[&uri(&ours)]);
    assert!(info.contains("TLS"), "{info}");
    let (image, back) = (scratch.file("image"), scratch.file("back"));
    fs::write(&image, pattern(1, 64 << 20)).unwrap();
    run("nbdcopy", &["--flush", &image, &uri(&ours)]);
    run("nbdcopy", &[&uri(&ours), &back]);
    assert!(fs::read(&image).unwrap() == fs::read(&back).unwrap(), "the image survived TLS");

    assert!(Client::connect(&socket, "default").is_err(), "a plaintext client is refused");
    let plain = output("nbdinfo", &[&server.uri()]);
    assert!(!plain.status.success(), "a plaintext nbdinfo is refused: {}", said(&plain));
    // QEMU, because libnbd never verifies the server on a Unix socket.
    let verified = |certificates: &str| {
        let credentials =
            format!("tls-creds-x509,id=tls,endpoint=client,verify-peer=yes,dir={certificates}");
        let image = format!(
            "driver=nbd,server.type=unix,server.path={},export=default,tls-creds=tls,\
             tls-hostname=localhost",
            socket.display()
        );
        output("qemu-img", &["info", "--object", &credentials, "--image-opts", &image])
    };
    let friend = verified(&ours);
    assert!(friend.status.success(), "the server proves who it is: {}", said(&friend));
    let stranger = verified(&theirs);
    assert!(
        !stranger.status.success(),
        "a client of another authority went on: {}",
        said(&stranger)
    );
    run("nbdinfo", &[&uri(&ours)]);
    server.terminate();
}

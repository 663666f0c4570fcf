//! Who may do what over HTTP: every method of every path, behind every door.

use crate::{Folder, config, config_with, http};
use serve::{Config, Server};
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// What a request needs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Needs {
    Nothing,
    /// The right to see data.
    Right,
    /// The right to change something.
    Change,
}
use Needs::{Change, Nothing, Right};

/// Every route. One that is missing here, or is here and not there, fails the test.
const ROUTES: &[(&str, &str, Needs)] = &[
    ("GET", "/", Nothing),
    ("GET", "/page/{file}", Nothing),
    ("GET", "/history", Nothing),
    ("GET", "/status", Nothing),
    ("GET", "/units", Nothing),
    ("GET", "/units/{unit}", Nothing),
    ("GET", "/metrics", Nothing),
    ("GET", "/healthz", Nothing),
    ("GET", "/readyz", Nothing),
    ("GET", "/openapi.json", Nothing),
    ("GET", "/slow", Nothing),
    ("GET", "/fast", Nothing),
    ("GET", "/policy", Nothing),
    ("GET", "/volumes", Nothing),
    ("GET", "/blocks", Right),
    ("GET", "/blocks/{id}", Right),
    ("PUT", "/blocks/{id}", Change),
    ("DELETE", "/blocks/{id}", Change),
    ("POST", "/policy", Change),
    ("POST", "/fast/detach", Change),
    ("PUT", "/plugins/{name}", Change),
    ("POST", "/volumes", Change),
    ("PATCH", "/volumes/{name}", Change),
    ("DELETE", "/volumes/{name}", Change),
    ("POST", "/volumes/{name}/clones", Change),
    ("POST", "/volumes/{name}/snapshots", Change),
];

const METHODS: &[&str] =
    &["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW"];

const RAW: &str = "[device]\nkind = \"memory\"\nmode = \"raw\"\ncapacity = \"32MiB\"";

/// Refused at the door: by status, whatever the route would say.
const AT_THE_DOOR: [u16; 2] = [401, 403];

struct Setup {
    server: Server,
    token: String,
    _folder: Folder,
}

impl Setup {
    fn new(with_token: bool) -> Self {
        let folder = Folder::new();
        let file = if with_token { "token_file = \"token\"" } else { "" };
        let server = Server::start(&config_with(&folder.0, RAW, "", file)).unwrap();
        let token = fs::read_to_string(folder.0.join("token")).unwrap_or_default();
        Self { server, token: token.trim().into(), _folder: folder }
    }

    fn tcp(&self, method: &str, path: &str, head: &str) -> (u16, String) {
        let address = self.server.ready().http.unwrap();
        http::over_tcp(address, method, path, head, b"")
    }

    fn control(&self, method: &str, path: &str, head: &str) -> (u16, String) {
        http::over_unix(self.server.ready().control.as_ref().unwrap(), method, path, head, b"")
    }
}

/// A path that one may ask for.
fn path_of(pattern: &str) -> String {
    let path =
        pattern.replace("{unit}", "0").replace("{name}", "none").replace("{file}", "page.js");
    path.replace("{id}", "000000000000b10c00000000000000ff")
}

/// The methods and paths that the API describes.
fn described(setup: &Setup) -> BTreeSet<(String, String)> {
    let (_, api) = setup.tcp("GET", "/openapi.json", "Host: localhost\r\n");
    let api: serde_json::Value = serde_json::from_str(&api).unwrap();
    let mut all = BTreeSet::new();
    for (path, methods) in api["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys().filter(|key| *key != "parameters") {
            all.insert((method.to_uppercase(), path.clone()));
        }
    }
    all
}

/// What the table says of a request; of what it does not name, a GET finds nothing and anything else
/// would change something.
fn needs(method: &str, path: &str) -> Needs {
    let method = if method == "HEAD" { "GET" } else { method };
    let known = ROUTES.iter().find(|route| (route.0, route.1) == (method, path));
    known.map_or(if method == "GET" { Nothing } else { Change }, |route| route.2)
}

#[test]
fn every_method_of_every_path_is_refused_or_not_behind_every_door_as_the_table_says() {
    let (plain, guarded) = (Setup::new(false), Setup::new(true));
    let mut listed: BTreeSet<(String, String)> = BTreeSet::new();
    listed.extend(ROUTES.iter().map(|route| (route.0.to_owned(), route.1.to_owned())));
    assert_eq!(described(&plain), listed, "openapi.json and this table name the same routes");

    let bearer = format!("Host: localhost\r\nAuthorization: Bearer {}\r\n", guarded.token);
    let wrong = format!("Host: localhost\r\nAuthorization: Bearer {}\r\n", "0".repeat(64));
    let foreign_host = bearer.replace("localhost", "evil.example");
    let foreign_page = format!("{bearer}Origin: http://evil.example\r\n");
    let paths: BTreeSet<&str> = ROUTES.iter().map(|route| route.1).chain(["/nothing"]).collect();
    for &pattern in &paths {
        let path = path_of(pattern);
        for &method in METHODS.iter().filter(|method| **method != "CONNECT") {
            let needs = needs(method, pattern);
            let place = format!("{method} {pattern}");
            // What is let in is answered by the route, with anything but a refusal at the door.
            let check = |answer: (u16, String), expected: Option<u16>, door: &str| {
                let (status, body) = answer;
                match expected {
                    Some(expected) => assert_eq!(status, expected, "{place}, {door}: {body}"),
                    None => assert!(!AT_THE_DOOR.contains(&status), "{place}, {door}: {body}"),
                }
            };
            let without = |code: u16| (needs != Nothing).then_some(code);
            let plain_head = "Host: localhost\r\n";
            check(plain.tcp(method, &path, plain_head), without(403), "TCP, there is no token");
            check(guarded.tcp(method, &path, plain_head), without(401), "TCP, no token shown");
            check(guarded.tcp(method, &path, &bearer), None, "TCP, the token");
            check(guarded.tcp(method, &path, &wrong), Some(401), "TCP, a bad token");
            check(plain.tcp(method, &path, &wrong), Some(401), "TCP, a token of nobody");
            check(guarded.tcp(method, &path, &foreign_host), Some(403), "a foreign host");
            check(guarded.tcp(method, &path, &foreign_page), Some(403), "a foreign page");
            check(guarded.control(method, &path, "Host: weir\r\n"), None, "the control socket");
            let page = "Host: weir\r\nOrigin: http://evil.example\r\n";
            check(guarded.control(method, &path, page), Some(403), "a foreign page, control");
        }
    }
    for setup in [plain, guarded] {
        setup.server.shut_down().unwrap();
    }
}

/// What is answered to these bytes.
fn answer(mut stream: impl Read + Write, bytes: &[u8]) -> String {
    stream.write_all(bytes).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn a_request_for_another_host_or_of_another_page_is_refused_however_it_is_said() {
    let setup = Setup::new(false);
    let port = setup.server.ready().http.unwrap().port();
    for (head, expected) in [
        (format!("Host: localhost:{port}\r\n"), 200),
        (format!("Host: 127.0.0.1:{port}\r\n"), 200),
        (format!("Host: [::1]:{port}\r\n"), 200),
        (format!("Host: LOCALHOST:{port}\r\nOrigin: http://localhost:{port}\r\n"), 200),
        ("Host: evil.example\r\n".into(), 403),
        (format!("Host: evil.example:{port}\r\n"), 403),
        ("Host: localhost.evil.example\r\n".into(), 403),
        ("Host: 0.0.0.0\r\n".into(), 403),
        ("Host: \r\n".into(), 403),
        (String::new(), 400),
        ("Host: localhost\r\nHost: evil.example\r\n".into(), 400),
        ("Host: localhost\r\nOrigin: null\r\n".into(), 403),
        (format!("Host: localhost:{port}\r\nOrigin: http://localhost:3000\r\n"), 403),
        (format!("Host: localhost:{port}\r\nOrigin: http://localhost:{port}.evil\r\n"), 403),
    ] {
        let (status, body) = setup.tcp("GET", "/status", &head);
        assert_eq!(status, expected, "{head:?}: {body}");
    }
    // Whatever its version, over TCP a request names us; the control socket has no name.
    let bare = b"GET /status HTTP/1.0\r\n\r\n";
    let address = setup.server.ready().http.unwrap();
    assert!(
        answer(std::net::TcpStream::connect(address).unwrap(), bare).starts_with("HTTP/1.0 400")
    );
    let control = setup.server.ready().control.clone().unwrap();
    assert!(answer(UnixStream::connect(control).unwrap(), bare).starts_with("HTTP/1.0 200"));
    // The address in the first line wins over the header.
    let (status, _) = setup.tcp("GET", "http://evil.example/status", "Host: localhost\r\n");
    assert_eq!(status, 403);
    setup.server.shut_down().unwrap();
}

#[test]
fn no_answer_lets_a_page_of_another_origin_see_it() {
    use std::io::{Read, Write};
    let setup = Setup::new(false);
    for (method, path) in [("GET", "/status"), ("OPTIONS", "/policy"), ("GET", "/nothing")] {
        let mut stream = std::net::TcpStream::connect(setup.server.ready().http.unwrap()).unwrap();
        let head =
            format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let answer = answer.to_ascii_lowercase();
        assert!(!answer.contains("access-control-"), "{answer}");
        assert!(answer.contains("x-content-type-options: nosniff"), "{answer}");
        assert!(answer.contains("cross-origin-resource-policy: same-origin"), "{answer}");
    }
    setup.server.shut_down().unwrap();
}

#[test]
fn tags_of_raw_blocks_are_told_only_to_who_may_read_the_blocks() {
    let setup = Setup::new(true);
    let bytes = setup.server.ready().raw.unwrap().raw_block_bytes() as usize;
    let control = setup.server.ready().control.clone().unwrap();
    let id = "000000000000b10c0000000000000000";
    let put = http::over_unix(
        &control,
        "PUT",
        &format!("/blocks/{id}"),
        "Host: weir\r\n",
        &vec![7; bytes],
    );
    assert_eq!(put.0, 201, "{}", put.1);
    let bearer = format!("Host: localhost\r\nAuthorization: Bearer {}\r\n", setup.token);
    for (answer, told) in [
        (setup.tcp("GET", "/units/0", "Host: localhost\r\n"), false),
        (setup.tcp("GET", "/units/0", &bearer), true),
        (setup.control("GET", "/units/0", "Host: weir\r\n"), true),
    ] {
        let unit: serde_json::Value = serde_json::from_str(&answer.1).unwrap();
        let tag = &unit["raw_blocks"][0]["tag"];
        assert_eq!(tag.as_str(), told.then_some(id), "{unit}");
    }
    setup.server.shut_down().unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn sockets_are_their_owners_unless_the_config_says_more_and_never_everybodys() {
    let folder = Folder::new();
    let server = Server::start(&config(&folder.0, RAW)).unwrap();
    let control = server.ready().control.clone().unwrap();
    assert_eq!((mode(&folder.socket()), mode(&control)), (0o600, 0o600));
    server.shut_down().unwrap();
    assert!(!control.exists() && !folder.socket().exists(), "both go with the server");

    let nbd = "unix_mode = \"0666\"\nunix_group = \"0\"";
    let more = "[control]\nunix_mode = \"660\"";
    let server = Server::start(&config_with(&folder.0, RAW, nbd, more)).unwrap();
    assert_eq!((mode(&folder.socket()), mode(&control)), (0o666, 0o660));
    server.shut_down().unwrap();

    for (wrong, key) in [
        ("[control]\nunix_mode = \"0666\"", "control.unix_mode"),
        ("[control]\nunix_mode = \"0o7\"", "control.unix_mode"),
        ("[control]\nunix_group = \"no-such-group\"", "control.unix_group"),
        ("[nbd]\nunix = \"s\"\nunix_mode = \"4600\"", "nbd.unix_mode"),
        ("[nbd]\ntcp = \"0.0.0.0:10809\"", "nbd.tcp"),
        ("[nbd]\ntcp = \"[::]:10809\"", "nbd.tcp"),
        ("[nbd]\ntcp = \"192.168.0.1:10809\"", "nbd.tcp"),
        ("[nbd]\ntcp_timeout = \"1ms\"", "nbd.tcp_timeout"),
        ("[http]\naddress = \"0.0.0.0:8420\"", "http.address"),
        ("[http]\naddress = \"10.0.0.1:8420\"", "http.address"),
        ("[http]\nhosts = [\"\"]", "http.hosts"),
    ] {
        let errors = Config::parse(wrong, &folder.0).unwrap_err().to_string();
        assert!(errors.starts_with(key), "{wrong}: {errors}");
    }
    for right in [
        "[nbd]\ntcp = \"0.0.0.0:10809\"\ntcp_plain = true",
        "[nbd]\ntcp = \"0.0.0.0:1\"\ntls = \"required\"\ntls_certificate = \"c\"\ntls_key = \"k\"",
        "[nbd]\ntcp = \"127.3.2.1:10809\"",
        "[nbd]\ntcp = \"[::1]:10809\"",
        "[http]\naddress = \"0.0.0.0:8420\"\nremote = true",
        "[http]\naddress = \"0.0.0.0:8420\"\nenabled = false",
    ] {
        Config::parse(right, &folder.0).unwrap_or_else(|error| panic!("{right}: {error}"));
    }
}

#[test]
fn a_socket_of_somebody_else_is_refused_and_stays() {
    let folder = Folder::new();
    let control = folder.0.join("control.sock");
    let refused = |place: &Path, words: &str| {
        let error = Server::start(&config(&folder.0, RAW)).err().expect("refused").to_string();
        assert!(error.contains(words) && error.contains(place.to_str().unwrap()), "{error}");
        assert!(place.symlink_metadata().is_ok(), "what is there stays");
    };
    // Somebody answers there: with another protocol, or not at all.
    let listener = std::os::unix::net::UnixListener::bind(&control).unwrap();
    refused(&control, "in use");
    drop(listener);
    fs::remove_file(&control).unwrap();
    // Nobody does, and it is another user's. Only root can make such a thing for the test.
    drop(std::os::unix::net::UnixListener::bind(&control).unwrap());
    if std::os::unix::fs::chown(&control, Some(65_534), None).is_ok() {
        refused(&control, "user 65534");
        std::os::unix::fs::chown(&control, Some(0), None).unwrap();
    }
    // A link to a file is no socket.
    fs::remove_file(&control).unwrap();
    fs::write(folder.0.join("precious"), "bytes").unwrap();
    std::os::unix::fs::symlink("precious", &control).unwrap();
    refused(&control, "no socket");
    fs::remove_file(&control).unwrap();
    // A server takes no file with it that is not its own any more.
    let server = Server::start(&config(&folder.0, RAW)).unwrap();
    fs::remove_file(&control).unwrap();
    fs::write(&control, "another's").unwrap();
    server.shut_down().unwrap();
    assert_eq!(fs::read_to_string(&control).unwrap(), "another's");
}

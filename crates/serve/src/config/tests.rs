//! What a config may say, and how it is told that it is wrong.

use super::*;

fn errors(text: &str) -> Vec<ConfigError> {
    Config::parse(text, Path::new("/base")).unwrap_err().0
}

#[test]
fn an_empty_file_is_a_config() {
    let config = Config::parse("", Path::new("/base")).unwrap();
    assert!(
        matches!(&config.device.kind, Kind::Nand { path, .. } if path == Path::new("/base/weir-data"))
    );
    assert_eq!(config.nbd.listen, [Listen::Unix("/base/weir.sock".into())]);
    assert_eq!(config.device.volumes.len(), 1);
    assert!(config.http.unwrap().ip().is_loopback());
}

#[test]
fn all_errors_are_told_at_once_with_key_value_reason_and_example() {
    let found = errors(
        "[device]\nkind = \"tape\"\nprofile = \"slcc\"\nop_percent = 0\nshards = 3\nchannels = 4\n\
         [device.faults]\nfactory_bad = 2\n[[volume]]\nname = \"a/b\"\nsize = \"8 GB of them\"\n\
         [[volume]]\nsize = \"1000KB\"\n[nbd]\ntls = \"required\"\ntcp = \"localhost\"\nbusy_poll = \"1s\"\n\
         [http]\naddress = 5\n[ftl]\nappend_wait = \"soon\"\nhandels = 2\n",
    );
    let keys: Vec<&str> = found.iter().map(|error| error.key.as_str()).collect();
    assert_eq!(
        keys,
        [
            "volume[0].name",
            "volume[0].size",
            "volume[1].name",
            "volume[1].size",
            "device.kind",
            "device.profile",
            "device.op_percent",
            "device.channels",
            "device.faults.factory_bad",
            "nbd.tcp",
            "nbd.tls_certificate",
            "nbd.busy_poll",
            "http.address",
            "ftl.append_wait",
            "ftl.handels",
        ],
        "{found:#?}"
    );
    assert!(found.iter().all(|e| !e.reason.is_empty() && !e.example.is_empty()), "{found:#?}");
    let unknown = found.last().unwrap().to_string();
    assert!(unknown.contains("ftl.handels = 2") && unknown.ends_with("handles = ..."), "{unknown}");
}

#[test]
fn what_is_not_toml_is_told_with_its_line() {
    let found = errors("[device]\npath = \n");
    assert!(found[0].reason.contains("line 2"), "{found:?}");
}

#[test]
fn sections_reach_the_settings() {
    let config = Config::parse(
        "[device]\nkind = \"memory\"\nshards = 2\n[[volume]]\nname = \"a\"\nsize = \"64MiB\"\n\
         read_only = true\n[ftl]\nhandles = 4\nappend_wait = \"1ms\"\n[http]\nenabled = false\n\
         [nbd]\nbusy_poll = \"20us\"\n",
        Path::new("."),
    )
    .unwrap();
    assert!(matches!(config.device.kind, Kind::Memory { .. }));
    let volume = VolumeOptions { name: "a".into(), blocks: 16384, read_only: true };
    assert_eq!(config.device.volumes, [volume]);
    assert_eq!((config.ftl.handles, config.ftl.append_wait_ns), (4, 1_000_000));
    assert_eq!((config.device.channels, config.http), (4, None));
    assert_eq!(config.nbd.busy_poll_ns, 20_000);
}

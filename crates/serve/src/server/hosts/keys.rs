//! The file with the secrets of NVMe hosts: a line for each host, its name and secret, and behind them, for hosts that want
//! to know who serves them, the controller's. Who is not in it may not connect.

use crate::front::nvme::{HostKeys, Keys, Secret};
use crate::{files, random};
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Reads it, for a subsystem of this name.
///
/// # Errors
/// Where and what is wrong, and the mend. No secret is repeated.
pub fn read(path: &Path, subsystem: &str) -> Result<Keys, String> {
    let shown = path.display();
    let wrong = |reason: &str| format!("nvme.keys_file: {shown}: {reason}");
    let opened = files::open_named(path, OpenOptions::new().read(true));
    let file = opened.map_err(|error| wrong(&error.to_string()))?;
    let metadata = file.metadata().map_err(|error| wrong(&error.to_string()))?;
    if metadata.mode() & 0o077 != 0 {
        return Err(wrong("others may read or write it: chmod 600 it, if they did not already"));
    }
    // SAFETY: no memory is involved.
    let us = unsafe { libc::geteuid() };
    expect_owner(metadata.uid(), us).map_err(|reason| wrong(&reason))?;
    let text = files::rest_of_text(file).map_err(|error| wrong(&error.to_string()))?;
    let hosts = parse(&text, subsystem).map_err(|reason| wrong(&reason))?;
    if hosts.is_empty() {
        return Err(wrong(
            "names no host, so that none could connect: each has a line, NQN SECRET",
        ));
    }
    Ok(Keys::new(hosts, draw))
}

/// Its owner reads all secrets and can add some: that is the server's user, or root.
fn expect_owner(owner: u32, us: u32) -> Result<(), String> {
    if owner == us || owner == 0 {
        return Ok(());
    }
    Err(format!(
        "is user {owner}'s, who reads and changes it, and the server's user is {us}: chown it to that one, or to root"
    ))
}

fn parse(text: &str, subsystem: &str) -> Result<BTreeMap<String, HostKeys>, String> {
    let mut hosts = BTreeMap::new();
    let lines = (1..).zip(text.lines().map(str::trim));
    for (number, line) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
        let wrong = |reason: &str| {
            format!(
                "line {number}: {reason}; it must be NQN SECRET, or NQN SECRET CONTROLLER-SECRET, with secrets of \
                 `nvme gen-dhchap-key`"
            )
        };
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let (nqn, secret, of_controller) = match words[..] {
            [nqn, secret] => (nqn, secret, None),
            [nqn, secret, of_controller] => (nqn, secret, Some(of_controller)),
            _ => return Err(wrong("has another number of words")),
        };
        if !nqn.starts_with("nqn.") {
            return Err(wrong("does not begin with a host's name (nqn. ...)"));
        }
        let host = Secret::parse(secret, nqn).map_err(|why| wrong(&format!("the secret {why}")))?;
        let controller = of_controller.map(|text| Secret::parse(text, subsystem)).transpose();
        let controller =
            controller.map_err(|why| wrong(&format!("the controller's secret {why}")))?;
        if hosts.insert(nqn.to_owned(), HostKeys { host, controller }).is_some() {
            return Err(wrong("is of a host that has a line already"));
        }
    }
    Ok(hosts)
}

/// Numbers of the system.
fn draw(bytes: &mut [u8]) -> bool {
    bytes.chunks_mut(16).all(|part| match random::number() {
        Ok(number) => {
            part.copy_from_slice(&number.to_le_bytes()[..part.len()]);
            true
        }
        Err(_) => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    /// 32 bytes of zeroes.
    const SECRET: &str = "DHHC-1:00:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAACtVQoZ:";

    #[test]
    fn each_host_has_a_line_and_a_wrong_one_is_told_without_its_secret() {
        let text = format!("# hosts\n\nnqn.a {SECRET}\n  nqn.b {SECRET} {SECRET}\n");
        let hosts = parse(&text, "nqn.weir").unwrap();
        assert_eq!(hosts.len(), 2);
        assert!(hosts["nqn.a"].controller.is_none() && hosts["nqn.b"].controller.is_some());
        for (line, why) in [
            ("nqn.a", "number of words"),
            (&*format!("a {SECRET}"), "host's name"),
            (&format!("nqn.a {}", SECRET.replace(":00:", ":07:")), "the secret names a hash"),
            (&format!("nqn.a {SECRET} DHHC"), "the controller's secret does not begin"),
            (&format!("nqn.a {SECRET}\nnqn.a {SECRET}"), "line 2: is of a host"),
        ] {
            let told = parse(line, "nqn.weir").unwrap_err();
            assert!(told.contains(why) && !told.contains("AAAA"), "{line}: {told}");
        }
    }

    #[test]
    fn a_file_that_others_read_or_that_names_nobody_is_refused() {
        let path = std::env::temp_dir().join(format!("weir-keys-{}", std::process::id()));
        let mode = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        fs::write(&path, format!("nqn.a {SECRET}\n")).unwrap();
        mode(0o640);
        assert!(read(&path, "nqn.weir").err().unwrap().contains("chmod 600"));
        mode(0o600);
        let keys = read(&path, "nqn.weir").unwrap();
        assert!(keys.knows("nqn.a") && !keys.knows("nqn.b"));
        let told = expect_owner(1, 2).unwrap_err();
        assert!(told.contains("user 1's") && told.contains("chown"), "{told}");
        assert!(expect_owner(0, 2).is_ok() && expect_owner(2, 2).is_ok());
        // Nobody writes to this one, and it is not waited for.
        let pipe = path.with_extension("fifo");
        let name = std::ffi::CString::new(pipe.to_str().unwrap()).unwrap();
        // SAFETY: the name is a string that ends.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        assert!(read(&pipe, "nqn.weir").err().unwrap().contains("no plain file"));
        fs::remove_file(pipe).unwrap();
        fs::write(&path, "# nobody\n").unwrap();
        assert!(read(&path, "nqn.weir").err().unwrap().contains("names no host"));
        fs::remove_file(&path).unwrap();
        assert!(read(&path, "nqn.weir").err().unwrap().contains("nvme.keys_file"));
    }
}

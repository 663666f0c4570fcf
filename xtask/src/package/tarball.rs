//! The tarball: a folder that runs where it is unpacked, and can be copied to a prefix.

use super::{Made, Pack, copy, deb, tar, tree, write};
use crate::root;
use std::path::PathBuf;

/// Makes it and returns where it is.
pub fn make(made: &Made) -> Result<PathBuf, String> {
    let name = format!("weir-{}-{}", made.version, made.architecture);
    let folder = made.work.join(&name);
    tree::lay_out(made, &folder, "/usr/local")?;
    copy(&root().join("packaging/weir.toml"), &folder.join("etc/weir/weir.toml"))?;
    let text = README.replace("VERSION", &made.version).replace("NEEDS", &deb::needs(made)?);
    write(&folder.join("README"), text)?;
    let to = made.to.join(format!("{name}.tar.gz"));
    tar(made, (&made.work, &[&name]), 0, Pack::Gzip, &to)?;
    Ok(to)
}

const README: &str = "\
Weir VERSION

It needs, in Debian's words: NEEDS. Any newer Linux has that.

As it is, without installing anything:

    bin/weir serve              # a device in ./weir-data; it prints how to connect

As a service of systemd, as root:

    cp -r bin share lib /usr/local/
    mkdir -p /etc/weir && cp -n etc/weir/weir.toml /etc/weir/
    systemd-sysusers /usr/local/lib/sysusers.d/weir.conf
    systemd-tmpfiles --create /usr/local/lib/tmpfiles.d/weir.conf
    systemctl daemon-reload && systemctl enable --now weir

share/doc/weir/install.md tells more.
";

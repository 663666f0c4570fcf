//! The Debian package. What the binary needs of other packages `dpkg-shlibdeps` finds out.

use super::{Made, copy, make_folder, run, said, tree, write};
use crate::root;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Makes it and returns where it is.
pub fn make(made: &Made) -> Result<PathBuf, String> {
    let stage = made.work.join("deb");
    tree::lay_out(made, &stage.join("usr"), "/usr")?;
    copy(&root().join("packaging/weir.toml"), &stage.join("etc/weir/weir.toml"))?;
    let documents = stage.join("usr/share/doc/weir");
    copy(&root().join("packaging/deb/copyright"), &documents.join("copyright"))?;
    let changes = documents.join("changelog");
    copy(&root().join("CHANGELOG.md"), &changes)?;
    run("gzip", [OsStr::new("--no-name"), OsStr::new("-9"), changes.as_os_str()])?;
    let control = stage.join("DEBIAN");
    make_folder(&control)?;
    for script in ["postinst", "prerm", "postrm"] {
        let to = control.join(script);
        copy(&root().join("packaging/deb").join(script), &to)?;
        permit(&to, 0o755)?;
    }
    write(&control.join("conffiles"), "/etc/weir/weir.toml\n")?;
    let kib = run("du", [OsStr::new("-sk"), OsStr::new("--apparent-size"), stage.as_os_str()])?;
    let kib = kib.split_whitespace().next().unwrap_or("0").to_owned();
    write(&control.join("control"), description(made, &kib)?)?;
    permit_all(&stage)?;
    let to = made.to.join(format!("weir_{}_{}.deb", made.version, made.architecture));
    let compress: &[&str] = if made.level == "-1" { &["-Zgzip", "-z1"] } else { &["-Zxz"] };
    let mut command = Command::new("dpkg-deb");
    command.args(["--root-owner-group"]).args(compress).arg("--build").arg(&stage).arg(&to);
    said(command.env("SOURCE_DATE_EPOCH", &made.seconds))?;
    Ok(to)
}

fn description(made: &Made, kib: &str) -> Result<String, String> {
    Ok(format!(
        "Package: weir\nVersion: {}\nArchitecture: {}\nMaintainer: The Weir authors <weir@localhost>\n\
         Installed-Size: {kib}\nSection: admin\nPriority: optional\n\
         Depends: {}, init-system-helpers (>= 1.52), systemd | systemd-standalone-sysusers, \
         systemd | systemd-standalone-tmpfiles\nRecommends: libnbd-bin | nbd-client\n\
         Description: host-managed flash served as block devices\n \
         Weir owns flash and serves it over NBD and NVMe/TCP. The host decides where data goes, when\n \
         flash is erased, and which policy rules. The flash may be emulated: raw NAND with its rules,\n \
         timing, wear and faults, in a sparse file.\n",
        made.version,
        made.architecture,
        needs(made)?,
    ))
}

/// The packages whose libraries the binary is linked with, with the least versions that have what it uses.
pub fn needs(made: &Made) -> Result<String, String> {
    let folder = made.work.join("needs");
    let control = "Source: weir\n\nPackage: weir\nArchitecture: any\n";
    write(&folder.join("debian/control"), control)?;
    let mut command = Command::new("dpkg-shlibdeps");
    let said = said(command.arg("-O").arg("-e").arg(&made.binary).current_dir(&folder))?;
    let needs = said.trim().strip_prefix("shlibs:Depends=");
    Ok(needs.ok_or(format!("dpkg-shlibdeps says {said:?}"))?.into())
}

fn permit(path: &Path, mode: u32) -> Result<(), String> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .map_err(|error| format!("{}: {error}", path.display()))
}

/// The permissions that Debian wants, whatever those of the checkout are.
fn permit_all(folder: &Path) -> Result<(), String> {
    permit(folder, 0o755)?;
    for path in tree::sorted(folder)? {
        if path.is_dir() {
            permit_all(&path)?;
        } else {
            let runs = path.metadata().is_ok_and(|found| found.permissions().mode() & 0o100 != 0);
            permit(&path, if runs { 0o755 } else { 0o644 })?;
        }
    }
    Ok(())
}

//! The OCI image: a folder of blobs named by their SHA-256, in a tar file that `podman load`, `docker load` and
//! `skopeo` take. There is no distribution in it: below is a layer with the libraries that the binary is linked
//! with, above it one with the binary and its config, and one with the folders that it writes to.

use super::{Made, Pack, copy, make_folder, run, tar, write};
use crate::root;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The number of the user that it runs as: nobody's on most machines, and the same in every version, as the
/// files of a device are his.
const USER: u32 = 65532;
/// Where a device and its sockets are.
const VOLUMES: [&str; 2] = ["var/lib/weir", "run/weir"];

/// Makes it and returns where it is.
pub fn make(made: &Made) -> Result<PathBuf, String> {
    let folder = made.work.join("image");
    make_folder(&folder.join("blobs/sha256"))?;
    let layers = [
        layer(made, &folder, ("libraries", 0, &["."]), libraries)?,
        layer(made, &folder, ("weir", 0, &["."]), weir)?,
        layer(made, &folder, ("volumes", USER, &VOLUMES), volumes)?,
    ];
    let created =
        run("date", ["--utc", &format!("--date=@{}", made.seconds), "+%Y-%m-%dT%H:%M:%SZ"])?;
    let labels = json!({
        "org.opencontainers.image.title": "weir",
        "org.opencontainers.image.version": made.version,
        "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
    });
    let config = json!({
        "created": created.trim(),
        "architecture": made.architecture,
        "os": "linux",
        "config": {
            "User": format!("{USER}:{USER}"),
            "Entrypoint": ["/usr/bin/weir"],
            "Cmd": ["serve", "--config", "/etc/weir/weir.toml"],
            "WorkingDir": "/var/lib/weir",
            "Volumes": { "/var/lib/weir": {}, "/run/weir": {} },
            "StopSignal": "SIGTERM",
            "Labels": labels,
        },
        "rootfs": { "type": "layers", "diff_ids": layers.each_ref().map(|layer| &layer.unpacked) },
        "history": layers.each_ref().map(|layer| json!({ "created_by": layer.name })),
    });
    let config = blob(&folder, &config, "application/vnd.oci.image.config.v1+json")?;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config,
        "layers": layers.each_ref().map(|layer| &layer.descriptor),
    });
    let mut manifest = blob(&folder, &manifest, "application/vnd.oci.image.manifest.v1+json")?;
    // What podman and docker call it when it is loaded; a tag has no other signs.
    let name = format!("weir:{}", made.version.replace(['+', '~'], "-"));
    manifest["annotations"] = json!({
        "org.opencontainers.image.ref.name": name,
        "io.containerd.image.name": format!("docker.io/library/{name}"),
    });
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [manifest],
    });
    write(&folder.join("index.json"), index.to_string())?;
    write(&folder.join("oci-layout"), json!({ "imageLayoutVersion": "1.0.0" }).to_string())?;
    let to = made.to.join(format!("weir-{}-{}.oci.tar", made.version, made.architecture));
    tar(made, (&folder, &["."]), 0, Pack::Plain, &to)?;
    Ok(to)
}

struct Layer {
    name: &'static str,
    /// As the manifest names it.
    descriptor: Value,
    /// The digest of the tar file within.
    unpacked: String,
}

type Fill = fn(&Made, &Path) -> Result<(), String>;

fn layer(
    made: &Made,
    folder: &Path,
    (name, owner, names): (&'static str, u32, &[&str]),
    fill: Fill,
) -> Result<Layer, String> {
    let stage = made.work.join(format!("layer-{name}"));
    make_folder(&stage)?;
    fill(made, &stage)?;
    let packed = made.work.join(format!("{name}.tar.gz"));
    let plain = made.work.join(format!("{name}.tar"));
    tar(made, (&stage, names), owner, Pack::Plain, &plain)?;
    let unpacked = format!("sha256:{}", sha256(&plain)?);
    run("gzip", ["--no-name", made.level, &plain.to_string_lossy()])?;
    let descriptor = keep(folder, &packed, "application/vnd.oci.image.layer.v1.tar+gzip")?;
    Ok(Layer { name, descriptor, unpacked })
}

/// The program's interpreter and libraries, under the names that it was linked with, and the user.
fn libraries(made: &Made, stage: &Path) -> Result<(), String> {
    let said = run("ldd", [&made.binary])?;
    let mut found = 0;
    for word in said.split_whitespace().filter(|word| word.starts_with('/')) {
        copy(Path::new(word), &stage.join(word.trim_start_matches('/')))?;
        found += 1;
    }
    if found < 2 {
        return Err(format!("ldd tells of no libraries: {said}"));
    }
    write(
        &stage.join("etc/passwd"),
        format!("root:x:0:0::/root:/nologin\nweir:x:{USER}:{USER}::/var/lib/weir:/nologin\n"),
    )?;
    write(&stage.join("etc/group"), format!("root:x:0:\nweir:x:{USER}:\n"))
}

/// The binary, its config, and room for what the library of C may want to put down.
fn weir(made: &Made, stage: &Path) -> Result<(), String> {
    copy(&made.binary, &stage.join("usr/bin/weir"))?;
    copy(&root().join("packaging/weir.toml"), &stage.join("etc/weir/weir.toml"))?;
    let folder = stage.join("tmp");
    make_folder(&folder)?;
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o1777))
        .map_err(|error| format!("{}: {error}", folder.display()))
}

/// The folders of device and sockets, which alone are the user's.
fn volumes(_: &Made, stage: &Path) -> Result<(), String> {
    VOLUMES.iter().try_for_each(|volume| make_folder(&stage.join(volume)))
}

fn blob(folder: &Path, value: &Value, media: &str) -> Result<Value, String> {
    let path = folder.join("blob");
    write(&path, value.to_string())?;
    keep(folder, &path, media)
}

/// Moves a file to where its digest says, and returns its descriptor.
fn keep(folder: &Path, path: &Path, media: &str) -> Result<Value, String> {
    let digest = sha256(path)?;
    let size = path.metadata().map_err(|error| format!("{}: {error}", path.display()))?.len();
    let to = folder.join("blobs/sha256").join(&digest);
    fs::rename(path, &to).map_err(|error| format!("{}: {error}", to.display()))?;
    Ok(json!({ "mediaType": media, "digest": format!("sha256:{digest}"), "size": size }))
}

fn sha256(path: &Path) -> Result<String, String> {
    let said = run("sha256sum", [path])?;
    Ok(said.split_whitespace().next().unwrap_or_default().to_owned())
}

//! Makes the authority of a pool and certificates of its parts. A pool needs no other authority, and whoever has
//! one of his own may use that: the certificates only have to name the pool ([`super::tls::name`]).

use super::PoolError;
use super::tls::{self, IdentityFiles};
use crate::files;
use pool::words::PoolId;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// What was made.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Made {
    /// Whose parts they are.
    pub pool: PoolId,
    /// Whether the authority is new, too.
    pub authority_is_new: bool,
    /// Of each part that was named.
    pub parts: Vec<IdentityFiles>,
}

/// Files of a folder of certificates.
const AUTHORITY: &str = "authority.pem";
const AUTHORITY_KEY: &str = "authority.key";
const POOL: &str = "pool.id";
const NAME_BYTES_MAX: usize = 64;

/// Certificates hold for so many years.
const YEARS: i32 = 10;

/// Makes certificates of `parts` in `folder`, and the authority that signs them if there is none yet, of the pool
/// whose number is `drawn`.
///
/// # Errors
/// The file that is there already or cannot be made; nothing is ever overwritten.
pub fn make(folder: &Path, drawn: PoolId, parts: &[&str]) -> Result<Made, PoolError> {
    if let Some(part) = parts.iter().find(|part| !is_name(part)) {
        return Err(failed(
            &folder.join(part),
            "is no name of a part: take letters, digits and - (at most 64), but not \"authority\"",
        ));
    }
    // Looked at before anything is made, so that a mistake leaves nothing behind.
    for part in parts {
        let IdentityFiles { certificate, key, .. } = part_files(folder, part);
        if let Some(there) = [certificate, key].iter().find(|path| path.exists()) {
            return Err(failed(there, "is there already: name another part, or remove it first"));
        }
    }
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(|error| failed(folder, &error.to_string()))?;
    let authority_is_new = !folder.join(AUTHORITY).exists();
    let (pool, key) = match authority_is_new {
        true => new_authority(folder, drawn)?,
        false => known_authority(folder)?,
    };
    let issuer = Issuer::new(authority_params(pool), key);
    for part in parts {
        make_part(folder, part, pool, &issuer)?;
    }
    let parts = parts.iter().map(|part| part_files(folder, part)).collect();
    Ok(Made { pool, authority_is_new, parts })
}

fn part_files(folder: &Path, part: &str) -> IdentityFiles {
    IdentityFiles {
        authority: folder.join(AUTHORITY),
        certificate: folder.join(format!("{part}.pem")),
        key: folder.join(format!("{part}.key")),
    }
}

fn is_name(part: &str) -> bool {
    let letters = part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    letters && (1..=NAME_BYTES_MAX).contains(&part.len()) && part != "authority"
}

fn new_authority(folder: &Path, pool: PoolId) -> Result<(PoolId, KeyPair), PoolError> {
    let path = folder.join(AUTHORITY);
    let key = KeyPair::generate().map_err(|error| failed(&path, &error.to_string()))?;
    let certificate = authority_params(pool).self_signed(&key);
    let certificate = certificate.map_err(|error| failed(&path, &error.to_string()))?;
    write(&folder.join(AUTHORITY_KEY), 0o600, &key.serialize_pem())?;
    write(&folder.join(POOL), 0o644, &format!("{:032x}\n", pool.0))?;
    // Last: it is what says that the others are there.
    write(&path, 0o644, &certificate.pem())?;
    Ok((pool, key))
}

fn known_authority(folder: &Path) -> Result<(PoolId, KeyPair), PoolError> {
    let read = |path: &PathBuf| {
        files::read_text(path).map_err(|error| failed(path, &format!("cannot be read: {error}")))
    };
    let (id, key) = (folder.join(POOL), folder.join(AUTHORITY_KEY));
    let pool = u128::from_str_radix(read(&id)?.trim(), 16);
    let pool =
        pool.map_err(|_| failed(&id, "does not hold the 32 hexadecimal digits of a pool"))?;
    let pair = KeyPair::from_pem(&read(&key)?);
    let pair = pair.map_err(|error| failed(&key, &format!("is no private key: {error}")))?;
    Ok((PoolId(pool), pair))
}

/// The same each time, so that the authority can sign again without its own certificate being taken apart.
fn authority_params(pool: PoolId) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, format!("Weir pool {:032x}", pool.0));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    in_force(&mut params);
    params
}

fn make_part(
    folder: &Path,
    part: &str,
    pool: PoolId,
    issuer: &Issuer<'_, KeyPair>,
) -> Result<(), PoolError> {
    let files = part_files(folder, part);
    let refused = |error: rcgen::Error| failed(&files.certificate, &error.to_string());
    let mut params = CertificateParams::new([tls::name(pool)]).map_err(refused)?;
    params.distinguished_name.push(DnType::CommonName, part);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    in_force(&mut params);
    let key = KeyPair::generate().map_err(refused)?;
    let certificate = params.signed_by(&key, issuer).map_err(refused)?;
    write(&files.key, 0o600, &key.serialize_pem())?;
    write(&files.certificate, 0o644, &certificate.pem())
}

/// From a day before this one, as clocks differ, for [`YEARS`].
fn in_force(params: &mut CertificateParams) {
    const SECONDS_A_YEAR: u64 = 31_556_952;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let year = 1970 + (now.map_or(0, |now| now.as_secs()) / SECONDS_A_YEAR) as i32;
    params.not_before = date_time_ymd(year - 1, 12, 31);
    params.not_after = date_time_ymd(year + YEARS, 12, 31);
}

fn write(path: &Path, mode: u32, text: &str) -> Result<(), PoolError> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(mode);
    let written = files::open(path, &mut options).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    written.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => failed(path, "is there already, and is not overwritten"),
        _ => failed(path, &format!("cannot be written: {error}")),
    })
}

fn failed(path: &Path, reason: &str) -> PoolError {
    PoolError::File { path: path.into(), reason: reason.to_owned() }
}

/// A folder of certificates for a test; it goes when it is dropped.
#[cfg(test)]
pub(crate) struct Scratch {
    folder: PathBuf,
}

#[cfg(test)]
impl Scratch {
    pub(crate) fn new(name: &str, pool: PoolId, parts: &[&str]) -> Self {
        let name = format!("weir-pool-{}-{name}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&folder);
        make(&folder.join("certs"), pool, parts).expect("a fresh folder");
        Self { folder }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn files(&self, part: &str) -> IdentityFiles {
        part_files(&self.folder.join("certs"), part)
    }
}

#[cfg(test)]
impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn parts_are_added_to_an_authority_and_nothing_is_overwritten() {
        let scratch = Scratch::new("certs", PoolId(9), &["plane"]);
        let folder = scratch.folder().join("certs");
        let made = make(&folder, PoolId(10), &["node-1", "node-2"]).expect("more parts");
        assert!(!made.authority_is_new && made.pool == PoolId(9), "the authority that was there");
        for files in &made.parts {
            assert!(tls::load(files, PoolId(9)).is_ok(), "{files:?}");
            let mode = files.key.metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "keys are their owner's");
        }
        let before = std::fs::read(folder.join("node-1.pem")).unwrap();
        let refused = make(&folder, PoolId(9), &["node-3", "node-1"]).expect_err("it is there");
        assert!(refused.to_string().contains("node-1.pem"), "{refused}");
        assert!(!folder.join("node-3.pem").exists(), "a mistake leaves nothing behind");
        assert_eq!(std::fs::read(folder.join("node-1.pem")).unwrap(), before);
        for bad in ["", "../x", "authority", "a b"] {
            assert!(make(&folder, PoolId(9), &[bad]).is_err(), "{bad:?}");
        }
    }
}

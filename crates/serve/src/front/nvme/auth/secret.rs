//! Secrets of hosts and controllers, as `nvme gen-dhchap-key` writes them: `DHHC-1:HH:BASE64:`, where HH names the hash that
//! binds the secret to the name of whose it is, and the bytes end with their CRC-32.

use super::Hash;
use crate::base64;
use std::fmt;

const PREFIX: &str = "DHHC-1:";
/// What a secret is bound with, beside a name.
const SUFFIX: &[u8] = b"NVMe-over-Fabrics";

/// A secret, as it is used: bound to whose it is. It is shown to nobody.
#[derive(Clone, Eq, PartialEq)]
pub struct Secret(Vec<u8>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// That of the host or subsystem of this name.
    ///
    /// # Errors
    /// What is wrong with the text, which is not repeated.
    pub fn parse(text: &str, nqn: &str) -> Result<Self, &'static str> {
        let rest = text.strip_prefix(PREFIX).ok_or("does not begin with DHHC-1:")?;
        let (kind, rest) = rest.split_once(':').ok_or("has no hash")?;
        let letters = rest.strip_suffix(':').ok_or("does not end with a colon")?;
        let bytes = base64::decode(letters).ok_or("is no base64")?;
        let (key, sum) = bytes.split_last_chunk::<4>().ok_or("is too short")?;
        if ![32, 48, 64].contains(&key.len()) {
            return Err("must have 32, 48 or 64 bytes");
        }
        if crc(key) != u32::from_le_bytes(*sum) {
            return Err("is damaged: its checksum is another");
        }
        let hash = match kind {
            "00" => return Ok(Self(key.into())),
            "01" => Hash::Sha256,
            "02" => Hash::Sha384,
            "03" => Hash::Sha512,
            _ => return Err("names a hash that there is not: 00 to 03"),
        };
        Ok(Self(hash.hmac(key, &[nqn.as_bytes(), SUFFIX].concat())))
    }

    /// The key.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// CRC-32 as Ethernet has it.
fn crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 }
        })
    })
}

#[cfg(test)]
pub fn text_of(key: &[u8], kind: &str) -> String {
    let bytes = [key, &crc(key).to_le_bytes()].concat();
    format!("{PREFIX}{kind}:{}:", base64::encode(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_the_standard() {
        assert_eq!(crc(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn a_secret_is_taken_as_it_was_made_and_wrong_ones_say_why() {
        let key: Vec<u8> = (0..32).collect();
        let plain = Secret::parse(&text_of(&key, "00"), "nqn.a").unwrap();
        assert_eq!(plain.bytes(), key);
        let bound = Secret::parse(&text_of(&key, "01"), "nqn.a").unwrap();
        assert_ne!(bound, Secret::parse(&text_of(&key, "01"), "nqn.b").unwrap());
        assert_eq!(Secret::parse(&text_of(&key, "03"), "nqn.a").unwrap().bytes().len(), 64);
        let good = text_of(&key, "00");
        for (text, why) in [
            ("DHHC-2:00:AAAA:".into(), "DHHC-1"),
            (good.replace(":00:", ":04:"), "hash"),
            (good.trim_end_matches(':').into(), "colon"),
            (good.replace("AAEC", "AAED"), "damaged"),
            (good.replace("AAEC", "A#EC"), "base64"),
            (text_of(&key[..31], "00"), "32, 48 or 64"),
        ] {
            let told = Secret::parse(&text, "nqn.a").unwrap_err();
            assert!(told.contains(why), "{text}: {told}");
        }
        assert_eq!(format!("{plain:?}"), "Secret");
    }
}

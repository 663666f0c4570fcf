//! The published profiles of fifteen real drives.

macro_rules! profiles {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("../../../../devices/profiles/", $name, ".csv")))),*]
    };
}

pub(super) const TEXTS: [(&str, &str); 15] = profiles![
    "s39wna0kb01161",
    "s39wna0kc01659",
    "s39wna0kc02077",
    "s39wna0kc02078",
    "s39wna0kc02087",
    "s39wna0kc02089",
    "s47ana0m400877",
    "s47ana0m400923",
    "s47ana0m403316",
    "s47ana0m403318",
    "s47ana0m403393",
    "s5cvna0n101050",
    "sdm000015a60",
    "sdm00001c5d1",
    "sdm000024c8d",
];

//! A device profile: what a data sheet says about a part, read from a TOML file.
//!
//! [`Profile::parse`] is the edge: it checks every key, and the error names the key, its value, what
//! is wrong and an example. After that nobody checks again. The bandwidth and latency that follow
//! from a profile by arithmetic stand beside it; the tests hold the emulator to them.

use crate::Layout;
use crate::keys::{KeyError, KeyErrors, Keys, read_whole};
use flash::{BLOCK_BYTES, FastTier, Geometry, Pairing};
use serde::Serialize;

/// A kind of flash. All times in nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Profile {
    /// Short name, as in `Profile::builtin`.
    pub name: String,
    /// One line for people.
    pub description: String,
    /// Where the numbers come from.
    pub source: String,
    /// Data bytes of one page of one plane.
    pub page_bytes: u32,
    /// Bytes beside them that travel with a page.
    pub oob_bytes: u32,
    /// Pages of an erase block.
    pub pages_per_block: u32,
    /// Planes of a die; a program or erase always uses all of them.
    pub planes: u32,
    /// Levels of a wordline: 1 for SLC to 4 for QLC.
    pub bits_per_cell: u32,
    /// "none", "adjacent" (the pages of a wordline follow each other) or "staircase".
    pub pairing: String,
    /// tR by level of the page, lowest first; repeated if shorter than `bits_per_cell`.
    pub read_ns: Vec<u64>,
    /// tPROG by level of the page, lowest first; repeated if shorter than `bits_per_cell`.
    pub program_ns: Vec<u64>,
    /// tBERS.
    pub erase_ns: u64,
    /// Command and address cycles: before tR, before a program's data, before tBERS.
    pub command_ns: u64,
    /// Channel bus: 1000 / (MT/s) for 8 bits.
    pub bus_ns_per_byte: f64,
    /// From an urgent read's arrival until a running erase yields; 0 if it cannot.
    pub suspend_erase_ns: u64,
    /// From an urgent read's arrival until a running program yields; 0 if it cannot.
    pub suspend_program_ns: u64,
    /// The next page is read from the cells while the last one leaves over the bus.
    pub cache_read: bool,
    /// The next page comes in over the bus while the last one is programmed.
    pub cache_program: bool,
    /// A read moves only the bytes asked for, not the whole page of each plane it touches.
    pub partial_read: bool,
    /// With that: so many bytes of each block of 4 KiB are all that a host reads of it, so only they leave the
    /// chip; what the FTL reads for itself is whole. 0: a host reads whole blocks.
    #[serde(skip_serializing_if = "is_zero")]
    pub host_read_bytes: u32,
    /// Commands that a die takes at once.
    pub queue_depth: u32,
    /// Most blocks that may be partly programmed at a time, as on a zoned device; 0 for no such limit.
    #[serde(skip_serializing_if = "is_zero")]
    pub open_blocks_max: u32,
    /// Units of which only one works at a time, as the dies of a package with one set of control lines; with
    /// `planes = 1` also the planes of a die. 1: each is by itself.
    #[serde(skip_serializing_if = "is_one")]
    pub chip_units: u32,
    /// A command is given only while no data is on its channel's bus, or waits for it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub commands_wait: bool,
    /// Program/erase cycles a block is specified for.
    pub endurance: u32,
    /// Most blocks that the maker lets be bad, as a fraction.
    pub factory_bad_max: f64,
    /// Bits that the ECC corrects in each KiB.
    pub ecc_bits_per_kib: u32,
    /// Raw bit errors by wear, age and reads.
    pub rber: Rber,
}

/// The coefficients of the raw bit error rate after `c` program/erase cycles, `t` days and `r` reads
/// (Kim et al., FAST 2019): `epsilon + alpha c^k + beta c^m t^n + gamma c^p r^q`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Rber {
    /// Errors of a fresh block.
    pub epsilon: f64,
    /// Wear: factor.
    pub alpha: f64,
    /// Wear: exponent of the cycles.
    pub k: f64,
    /// Retention: factor.
    pub beta: f64,
    /// Retention: exponent of the cycles.
    pub m: f64,
    /// Retention: exponent of the days.
    pub n: f64,
    /// Read disturb: factor.
    pub gamma: f64,
    /// Read disturb: exponent of the cycles.
    pub p: f64,
    /// Read disturb: exponent of the reads.
    pub q: f64,
}

impl Rber {
    /// The share of bits that read wrong after `cycles` erases, `days` since the program and
    /// `reads` of the block since its erase.
    pub fn rate(&self, cycles: u32, days: f64, reads: u32) -> f64 {
        let (c, r) = (f64::from(cycles), f64::from(reads));
        let rate = self.epsilon
            + self.alpha * libm::pow(c, self.k)
            + self.beta * libm::pow(c, self.m) * libm::pow(days, self.n)
            + self.gamma * libm::pow(c, self.p) * libm::pow(r, self.q);
        rate.clamp(0.0, 0.5)
    }

    fn from_keys(keys: &mut Keys) -> Result<Self, KeyError> {
        const EXAMPLE: &str = "{ epsilon = 1.48e-3, ... }";
        let Some(mut keys) = keys.table("rber", "epsilon = 1.48e-3")? else {
            let reason = "this key is missing; it is a table of nine coefficients".into();
            return Err(keys.refuse("rber", "", reason, EXAMPLE));
        };
        let rber = Self {
            epsilon: keys.number("epsilon", 0.0, 0.5, "1.48e-3")?,
            alpha: keys.number("alpha", 0.0, 1.0, "3.90e-10")?,
            k: keys.number("k", 0.0, 10.0, "2.05")?,
            beta: keys.number("beta", 0.0, 1.0, "6.28e-5")?,
            m: keys.number("m", 0.0, 10.0, "0.14")?,
            n: keys.number("n", 0.0, 10.0, "0.54")?,
            gamma: keys.number("gamma", 0.0, 1.0, "3.73e-9")?,
            p: keys.number("p", 0.0, 10.0, "0.33")?,
            q: keys.number("q", 0.0, 10.0, "1.71")?,
        };
        keys.refuse_unknown()?;
        Ok(rber)
    }
}

impl Profile {
    /// Reads a profile file whole, or says all that is wrong with it.
    pub fn parse(toml_text: &str) -> Result<Self, KeyErrors> {
        read_whole(toml_text, |text| Self::from_keys(Keys::parse("profile", text, EXAMPLE)?))
    }

    fn from_keys(mut keys: Keys) -> Result<Self, KeyError> {
        let mut profile = Self {
            name: keys.text("name", "\"tlc\"")?,
            description: keys.text_or("description", "\"planar TLC\"")?,
            source: keys.text_or("source", "\"the data sheet\"")?,
            page_bytes: keys.integer("page_bytes", 512, 1 << 18, "16384")?,
            oob_bytes: keys.integer("oob_bytes", 0, 1 << 16, "1088")?,
            pages_per_block: keys.integer("pages_per_block", 1, 1 << 16, "384")?,
            planes: keys.integer("planes", 1, 16, "2")?,
            bits_per_cell: keys.integer("bits_per_cell", 1, 8, "3")?,
            pairing: keys.text("pairing", "\"adjacent\"")?,
            read_ns: keys.times("read_ns", "[56_500, 77_500, 106_000]")?,
            program_ns: keys.times("program_ns", "[820_500, 2_225_000, 5_734_000]")?,
            erase_ns: keys.time("erase_ns", "3_000_000")?,
            command_ns: keys.time("command_ns", "200")?,
            bus_ns_per_byte: keys.number("bus_ns_per_byte", 0.0, 1e6, "3.0")?,
            suspend_erase_ns: keys.time_or_0("suspend_erase_ns")?,
            suspend_program_ns: keys.time_or_0("suspend_program_ns")?,
            cache_read: keys.flag("cache_read")?,
            cache_program: keys.flag("cache_program")?,
            partial_read: keys.flag("partial_read")?,
            host_read_bytes: keys.integer_or("host_read_bytes", 0, BLOCK_BYTES as u32, 0)?,
            queue_depth: keys.integer_or("queue_depth", 1, 8, 2)?,
            open_blocks_max: keys.integer_or("open_blocks_max", 0, 1 << 20, 0)?,
            chip_units: keys.integer_or("chip_units", 1, 64, 1)?,
            commands_wait: keys.flag_or_false("commands_wait")?,
            endurance: keys.integer("endurance", 1, 1 << 30, "3000")?,
            factory_bad_max: keys.number("factory_bad_max", 0.0, 0.5, "0.0195")?,
            ecc_bits_per_kib: keys.integer("ecc_bits_per_kib", 0, 4096, "72")?,
            rber: Rber::default(),
        };
        profile.rber = Rber::from_keys(&mut keys)?;
        keys.refuse_unknown()?;
        profile.validate()?;
        Ok(profile)
    }

    /// A profile that comes with Weir.
    pub fn builtin(name: &str) -> Option<Self> {
        let index = BUILTIN_NAMES.iter().position(|&known| known == name)?;
        Some(Self::parse(BUILTIN_TEXTS[index]).expect("the tests parse every built-in profile"))
    }

    /// A profile that comes with Weir, with `changes` in the place of its own keys.
    pub fn builtin_changed(name: &str, changes: Keys) -> Option<Result<Self, KeyError>> {
        let index = BUILTIN_NAMES.iter().position(|&known| known == name)?;
        let keys = Keys::parse("profile", BUILTIN_TEXTS[index], EXAMPLE);
        Some(keys.and_then(|mut keys| {
            keys.change(changes);
            Self::from_keys(keys)
        }))
    }

    /// The profile of these keys, with some of them changed.
    pub fn of_keys(mut keys: Keys, changes: Option<Keys>) -> Result<Self, KeyError> {
        changes.into_iter().for_each(|changes| keys.change(changes));
        Self::from_keys(keys)
    }

    /// The names that [`Profile::builtin`] knows.
    pub fn builtin_names() -> &'static [&'static str] {
        &BUILTIN_NAMES
    }

    /// Nothing takes any time: the emulator answers at once and keeps no event queue.
    pub fn is_instant(&self) -> bool {
        self.read_ns.iter().chain(&self.program_ns).all(|&ns| ns == 0)
            && self.erase_ns == 0
            && self.command_ns == 0
            && self.bus_ns_per_byte == 0.0
    }

    /// Mean latency of an idle device for a read of `bytes` from the start of a page: command, tR,
    /// and what travels over the bus.
    pub fn read_latency_ns(&self, bytes: u64) -> u64 {
        let mean = (0..self.pages_per_block).map(|page| self.page_read_ns(page)).sum::<u64>()
            / u64::from(self.pages_per_block);
        self.command_ns + mean + self.bus_ns(self.read_wire_bytes(0, bytes))
    }

    /// Bytes per second of reads of whole program units that `layout` cannot exceed: the bus or the
    /// dies, whichever is slower.
    pub fn raw_read_bandwidth(&self, layout: &Layout) -> f64 {
        let unit_bytes = self.program_unit_bytes() as f64;
        let bus_ns = self.bus_ns(self.program_unit_wire_bytes()) as f64;
        let array_ns = |page| (self.command_ns + self.page_read_ns(page)) as f64;
        // With a cache register, each page's time in the cells hides its neighbour's on the bus.
        let die_ns = if self.cache_read {
            self.mean_ns(|page| array_ns(page).max(bus_ns))
        } else {
            self.mean_ns(|page| array_ns(page) + bus_ns)
        };
        // What leaves goes before new commands, so the chips of a channel come to read in step.
        let chips = f64::from(layout.dies_per_channel / self.chip_units);
        let held_ns = if self.commands_wait { bus_ns * (chips - 1.0) } else { 0.0 };
        self.channels_rate(layout, unit_bytes, bus_ns, die_ns + held_ns)
    }

    /// Bytes per second of programs that `layout` cannot exceed.
    pub fn raw_program_bandwidth(&self, layout: &Layout) -> f64 {
        let unit_bytes = self.program_unit_bytes() as f64;
        let bus_ns = (self.command_ns + self.bus_ns(self.program_unit_wire_bytes())) as f64;
        let array_ns = |page| self.page_program_ns(page) as f64;
        let die_ns = if self.cache_program {
            self.mean_ns(|page| array_ns(page).max(bus_ns))
        } else {
            self.mean_ns(|page| array_ns(page) + bus_ns)
        };
        self.channels_rate(layout, unit_bytes, bus_ns, die_ns)
    }

    /// Bytes per second of erases: every die erases on its own.
    pub fn raw_erase_bandwidth(&self, layout: &Layout) -> f64 {
        let block_bytes = self.program_unit_bytes() as f64 * f64::from(self.pages_per_block);
        let erase_ns = (self.command_ns + self.erase_ns) as f64;
        self.channels_rate(layout, block_bytes, 0.0, erase_ns)
    }

    /// Bytes that `layout` still offers when as many blocks are bad as the maker allows.
    pub fn capacity_bytes_min(&self, layout: &Layout) -> u64 {
        let blocks = (f64::from(layout.blocks_per_plane) * (1.0 - self.factory_bad_max)) as u64;
        u64::from(layout.channels)
            * u64::from(layout.dies_per_channel)
            * blocks
            * u64::from(self.pages_per_block)
            * self.program_unit_bytes()
    }

    /// The shape of `layout` in this flash. Not yet validated.
    pub(crate) fn geometry(&self, layout: &Layout) -> Geometry {
        Geometry {
            units: layout.channels.saturating_mul(layout.dies_per_channel),
            blocks_per_unit: layout.blocks_per_plane,
            pages_per_block: self.pages_per_block,
            slots_per_page: (self.program_unit_bytes() / BLOCK_BYTES as u64) as u32,
            pairing: self.pairing_rule(),
            durable_at_completion: true,
            suspend: self.suspend_erase_ns > 0 || self.suspend_program_ns > 0,
            queue_depth: self.queue_depth,
            endurance: self.endurance,
            open_blocks_max: self.open_blocks_max,
            fast: FastTier::NONE,
        }
    }

    /// Bytes per second of all channels, when each is held up by its bus or by its chips.
    fn channels_rate(&self, layout: &Layout, bytes: f64, bus_ns: f64, die_ns: f64) -> f64 {
        let chips_ns = die_ns / f64::from(layout.dies_per_channel / self.chip_units);
        f64::from(layout.channels) * bytes * 1e9 / bus_ns.max(chips_ns)
    }

    pub(crate) fn page_read_ns(&self, page: u32) -> u64 {
        self.read_ns[self.level(page) % self.read_ns.len()]
    }

    pub(crate) fn page_program_ns(&self, page: u32) -> u64 {
        self.program_ns[self.level(page) % self.program_ns.len()]
    }

    /// How long `bytes` take on the channel bus.
    pub(crate) fn bus_ns(&self, bytes: u64) -> u64 {
        (bytes as f64 * self.bus_ns_per_byte).round() as u64
    }

    /// Data bytes of the same page of every plane.
    pub(crate) fn program_unit_bytes(&self) -> u64 {
        u64::from(self.planes) * u64::from(self.page_bytes)
    }

    /// Bytes that a program moves.
    pub(crate) fn program_unit_wire_bytes(&self) -> u64 {
        u64::from(self.planes) * u64::from(self.page_bytes + self.oob_bytes)
    }

    /// Bytes that a read of `bytes` from `offset` of a program unit moves: those with their share
    /// of the OOB, or every plane's page that it touches.
    pub(crate) fn read_wire_bytes(&self, offset: u64, bytes: u64) -> u64 {
        let (page, oob) = (u64::from(self.page_bytes), u64::from(self.oob_bytes));
        if self.partial_read {
            return bytes + (bytes * oob).div_ceil(page);
        }
        let planes = (offset + bytes).div_ceil(page) - offset / page;
        planes * (page + oob)
    }

    /// Likewise for a host's read of so many slots, of each of which it may want a part only.
    pub(crate) fn host_read_wire_bytes(&self, offset: u64, slots: u64) -> u64 {
        match u64::from(self.host_read_bytes) {
            0 => self.read_wire_bytes(offset, slots * BLOCK_BYTES as u64),
            asked => self.read_wire_bytes(offset, slots * asked),
        }
    }

    fn pairing_rule(&self) -> Pairing {
        match self.pairing.as_str() {
            "adjacent" => Pairing::Adjacent(self.bits_per_cell),
            "staircase" => Pairing::Staircase,
            _ => Pairing::None,
        }
    }

    /// Which level of its wordline a page is, 0 the lowest.
    fn level(&self, page: u32) -> usize {
        match self.pairing_rule() {
            Pairing::Staircase => {
                let mut partners = Pairing::Staircase.earlier_partners(page, self.pages_per_block);
                usize::from(partners.next().is_some())
            }
            Pairing::None | Pairing::Adjacent(_) => (page % self.bits_per_cell) as usize,
        }
    }

    fn mean_ns(&self, page_ns: impl Fn(u32) -> f64) -> f64 {
        let sum: f64 = (0..self.pages_per_block).map(page_ns).sum();
        sum / f64::from(self.pages_per_block)
    }

    /// The rules that tie several keys together.
    fn validate(&self) -> Result<(), KeyError> {
        let wrong = |key: &str, value: &dyn std::fmt::Display, reason: String, example: &str| {
            Err(KeyError {
                file: "profile",
                key: key.into(),
                value: value.to_string(),
                reason,
                example: format!("{key} = {example}"),
            })
        };
        if !self.program_unit_bytes().is_multiple_of(BLOCK_BYTES as u64) {
            let reason = format!("{} planes of it are not whole 4 KiB slots", self.planes);
            return wrong("page_bytes", &self.page_bytes, reason, "16384");
        }
        if self.program_unit_bytes() / BLOCK_BYTES as u64 > 64 {
            let reason = format!("{} planes of it exceed 64 slots of 4 KiB", self.planes);
            return wrong("page_bytes", &self.page_bytes, reason, "16384");
        }
        if !["none", "adjacent", "staircase"].contains(&self.pairing.as_str()) {
            let reason = "must be \"none\", \"adjacent\" or \"staircase\"".into();
            return wrong("pairing", &format!("{:?}", self.pairing), reason, "\"adjacent\"");
        }
        if self.pairing == "staircase" && self.bits_per_cell != 2 {
            let reason = "\"staircase\" is the page order of two-bit cells".into();
            return wrong("bits_per_cell", &self.bits_per_cell, reason, "2");
        }
        if self.pairing == "staircase"
            && (self.pages_per_block % 2 == 1 || self.pages_per_block < 4)
        {
            let reason = "\"staircase\" needs an even number of pages, at least 4".into();
            return wrong("pages_per_block", &self.pages_per_block, reason, "256");
        }
        if self.pairing == "adjacent" && !self.pages_per_block.is_multiple_of(self.bits_per_cell) {
            let reason = format!("must be a multiple of the {} levels", self.bits_per_cell);
            let example = (self.bits_per_cell * 128).to_string();
            return wrong("pages_per_block", &self.pages_per_block, reason, &example);
        }
        if (self.chip_units > 1 || self.commands_wait) && (self.cache_read || self.cache_program) {
            let reason = "cache_read and cache_program overlap commands, which chip_units above 1 \
                          and commands_wait forbid";
            return wrong("cache_read", &self.cache_read, reason.into(), "false");
        }
        if self.host_read_bytes > 0 && !self.partial_read {
            let reason = "a part of a block can leave the chip only with partial_read".into();
            return wrong("host_read_bytes", &self.host_read_bytes, reason, "0");
        }
        for (key, times) in [("read_ns", &self.read_ns), ("program_ns", &self.program_ns)] {
            if times.len() as u32 > self.bits_per_cell {
                let reason = format!("more entries than the {} levels", self.bits_per_cell);
                return wrong(key, &format!("{times:?}"), reason, "[50_000]");
            }
        }
        Ok(())
    }
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn is_one(number: &u32) -> bool {
    *number == 1
}

const EXAMPLE: &str = "page_bytes = 16384";

const BUILTIN_NAMES: [&str; 7] = ["instant", "slc", "mlc-50nm", "mlc-25nm", "tlc", "qlc", "optane"];

const BUILTIN_TEXTS: [&str; 7] = [
    include_str!("../profiles/instant.toml"),
    include_str!("../profiles/slc.toml"),
    include_str!("../profiles/mlc-50nm.toml"),
    include_str!("../profiles/mlc-25nm.toml"),
    include_str!("../profiles/tlc.toml"),
    include_str!("../profiles/qlc.toml"),
    include_str!("../profiles/optane.toml"),
];

#[cfg(test)]
mod tests {
    use super::Profile;

    #[test]
    fn every_builtin_profile_parses_and_names_itself() {
        for name in Profile::builtin_names() {
            let profile = Profile::builtin(name).expect("listed");
            assert_eq!(&profile.name, name);
            assert_eq!(profile.is_instant(), *name == "instant");
            assert!(!profile.source.is_empty(), "{name} says where it comes from");
        }
        assert!(Profile::builtin("plc").is_none());
    }

    #[test]
    fn a_profile_error_names_key_value_reason_and_example() {
        let text = include_str!("../profiles/tlc.toml");
        let cases = [
            ("planes = 2", "planes = 0", "planes = 0: must be a whole number from 1 to 16"),
            ("planes = 2", "", "planes: this key is missing; for example: planes = 2"),
            ("planes = 2", "planes = \"two\"", "planes = \"two\": must be a whole number"),
            ("planes = 2", "planes = 2\nplains = 3", "plains = 3: no such key"),
            ("planes = 2", "planes = ", "the file: not TOML"),
            ("page_bytes = 16384", "page_bytes = 1000", "not whole 4 KiB slots"),
            ("\"adjacent\"", "\"triangle\"", "pairing = \"triangle\": must be \"none\""),
            ("\"adjacent\"", "\"staircase\"", "bits_per_cell = 3: \"staircase\""),
            ("pages_per_block = 384", "pages_per_block = 385", "multiple of the 3 levels"),
            ("[56_500, 77_500, 106_000]", "[]", "read_ns = []: must be a list"),
            ("[56_500, 77_500, 106_000]", "[1, 2, 3, 4]", "more entries than the 3 levels"),
            ("[56_500, 77_500, 106_000]", "[-1]", "read_ns = [-1]: must be a list"),
            ("erase_ns = 3_000_000", "erase_ns = 3.5", "erase_ns = 3.5: must be whole nanoseconds"),
            ("epsilon = 1.48e-3", "epsilon = nan", "rber.epsilon = nan: must be a number"),
            ("q = 1.71", "", "rber.q: this key is missing"),
            ("cache_read = true", "cache_read = 1", "cache_read = 1: must be true or false"),
            (
                "partial_read = true",
                "partial_read = false\nhost_read_bytes = 1024",
                "host_read_bytes = 1024: a part of a block can leave the chip only with",
            ),
        ];
        for (from, to, expected) in cases {
            let message = Profile::parse(&text.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(message.contains(expected), "{from} -> {to}: {message}");
            assert!(message.contains("for example: "), "{message}");
        }
    }

    #[test]
    fn all_that_is_wrong_with_a_profile_is_told_at_once() {
        let text = include_str!("../profiles/tlc.toml");
        let text = text
            .replacen("planes = 2", "planes = 0\nplains = 3", 1)
            .replacen("q = 1.71", "", 1)
            .replacen("erase_ns = 3_000_000", "", 1)
            .replacen("\"adjacent\"", "\"triangle\"", 1);
        let message = Profile::parse(&text).unwrap_err().to_string();
        let told: Vec<&str> = message.lines().collect();
        assert_eq!(told[0], "profile: 5 keys are wrong:");
        for (line, key) in told[1..].iter().zip([
            "planes = 0: must be",
            "erase_ns: this key is missing",
            "rber.q: this key is missing",
            "plains = 3: no such key",
            "pairing = \"triangle\": must be",
        ]) {
            assert!(line.starts_with(&format!("  profile: {key}")), "{line}");
        }
    }

    #[test]
    fn a_staircase_has_as_many_lower_as_upper_pages() {
        let profile = Profile::builtin("mlc-25nm").unwrap();
        let upper = (0..256).filter(|&page| profile.level(page) == 1).count();
        assert_eq!(upper, 128);
        assert_eq!(
            [0, 1, 2, 3, 4, 253, 254, 255].map(|page| profile.level(page)),
            [0, 0, 1, 0, 1, 0, 1, 1]
        );
    }

    #[test]
    fn the_sdf_profile_has_the_raw_bandwidth_of_sdf() {
        let profile = Profile::builtin("mlc-25nm").unwrap();
        let sdf = crate::Layout { channels: 44, dies_per_channel: 2, blocks_per_plane: 2048 };
        assert!((profile.raw_read_bandwidth(&sdf) / 1.669e9 - 1.0).abs() < 0.001);
        assert!((profile.raw_program_bandwidth(&sdf) / 1.010e9 - 1.0).abs() < 0.001);
        assert_eq!(profile.read_latency_ns(8192), 175 + 75_000 + 216_000);
        assert!(profile.capacity_bytes_min(&sdf) > 720_000_000_000, "SDF sells 700 GB of 738");
    }
}

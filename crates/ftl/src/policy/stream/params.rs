//! The parameters in a policy's name: `sfr:handles=8,decay=1GiB`.

use super::{HANDLES_MAX, Shape};
use flash::{BLOCK_BYTES, quantity};

/// Taken apart; each parameter is taken out once.
pub struct Params<'a> {
    text: &'a str,
    name: &'a str,
    given: Vec<(&'a str, &'a str)>,
    known: Vec<&'static str>,
}

impl<'a> Params<'a> {
    pub fn parse(text: &'a str) -> Result<Self, String> {
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        let mut given: Vec<(&str, &str)> = Vec::new();
        for part in rest.split(',').filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').ok_or_else(|| {
                format!("policy {text:?}: {part:?} is not KEY=VALUE, for example handles=4")
            })?;
            if given.iter().any(|(other, _)| *other == key) {
                return Err(format!("policy {text:?}: {key} is given twice"));
            }
            given.push((key, value));
        }
        Ok(Self { text, name, given, known: Vec::new() })
    }

    pub fn name(&self) -> &'a str {
        self.name
    }

    fn take(&mut self, key: &'static str) -> Option<&'a str> {
        self.known.push(key);
        let at = self.given.iter().position(|(other, _)| *other == key)?;
        Some(self.given.swap_remove(at).1)
    }

    fn refuse(&self, key: &str, value: &str, reason: &str) -> String {
        format!("policy {:?}: {key} = {value}: {reason}", self.text)
    }

    /// A whole number within a range.
    pub fn number(
        &mut self,
        key: &'static str,
        (min, max): (u64, u64),
        default: u64,
    ) -> Result<u64, String> {
        let Some(value) = self.take(key) else { return Ok(default) };
        value.parse().ok().filter(|number| (min..=max).contains(number)).ok_or_else(|| {
            let reason = format!("must be a whole number from {min} to {max}, as {default} is");
            self.refuse(key, value, &reason)
        })
    }

    /// A number above 1.
    pub fn base(&mut self, default: f64) -> Result<f64, String> {
        let Some(value) = self.take("base") else { return Ok(default) };
        let number = value.parse::<f64>().ok().filter(|base| (1.01..=1000.0).contains(base));
        number.ok_or_else(|| self.refuse("base", value, "must be a number from 1.01 to 1000"))
    }

    /// How many host handles.
    pub fn handles(&mut self, default: u8) -> Result<u8, String> {
        let range = (1, u64::from(HANDLES_MAX));
        self.number("handles", range, u64::from(default)).map(|number| number as u8)
    }

    /// A size, in blocks.
    pub fn blocks(&mut self, key: &'static str, default: u64) -> Result<u64, String> {
        let Some(value) = self.take(key) else { return Ok(default) };
        let bytes = quantity::bytes(value).filter(|&bytes| bytes >= BLOCK_BYTES as u64);
        bytes.map(|bytes| bytes / BLOCK_BYTES as u64).ok_or_else(|| {
            self.refuse(key, value, "must be a size of at least 4KiB, for example 1GiB")
        })
    }

    /// A size, or so many percent of the volume's, in blocks: what is counted in overwrites of a volume
    /// means the same for a large one.
    pub fn blocks_or_share(
        &mut self,
        key: &'static str,
        shape: Shape,
        default: u64,
    ) -> Result<u64, String> {
        let given = self.given.iter().find(|(other, _)| *other == key).map(|&(_, value)| value);
        let Some(percent) = given.and_then(|value| value.strip_suffix('%')) else {
            return self.blocks(key, default);
        };
        self.take(key);
        let percent = percent.parse::<f64>().ok().filter(|share| (0.1..=10_000.0).contains(share));
        let percent = percent.ok_or_else(|| {
            let reason = "must be 0.1% to 10000% of the volume, for example 100%";
            self.refuse(key, given.unwrap_or_default(), reason)
        })?;
        Ok(((f64::from(shape.blocks) * percent / 100.0) as u64).max(1))
    }

    /// The size of a chunk as the power of two of its blocks, and how many chunks the volume has.
    pub fn chunk(&mut self, shape: Shape, default: u64) -> Result<(u32, usize), String> {
        let blocks = self.blocks("chunk", default)?;
        if !blocks.is_power_of_two() || blocks > 1 << 24 {
            let bytes = format!("{}KiB", blocks * 4);
            let reason = "must be a power of two up to 64GiB, for example 1MiB";
            return Err(self.refuse("chunk", &bytes, reason));
        }
        let shift = blocks.trailing_zeros();
        Ok((shift, (u64::from(shape.blocks).div_ceil(blocks)).max(1) as usize))
    }

    /// Refuses what was not taken.
    pub fn finish(self) -> Result<(), String> {
        let Some((key, _)) = self.given.first() else { return Ok(()) };
        let known = if self.known.is_empty() { "none".into() } else { self.known.join(", ") };
        Err(format!("policy {:?}: no parameter is called {key:?}; there are {known}", self.text))
    }
}

/// AutoStream's chunk, 1 MiB.
pub const CHUNK_BLOCKS: u64 = (1 << 20) / BLOCK_BYTES as u64;

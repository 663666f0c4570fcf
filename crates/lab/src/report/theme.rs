//! Colours: one palette for light ground and one for dark, told apart by people who see red and
//! green alike.
//!
//! Weir's series are cool, the baselines warm, the source's are ink and hollow, bounds are grey: the
//! origin is seen before the name is read. Every colour stands at least 3:1 against its ground.

/// What a colour is for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Role {
    /// Behind everything.
    Ground,
    /// Text and the source's points.
    Ink,
    /// Labels, notes, axes.
    Muted,
    /// Grid lines.
    Grid,
    /// The n-th series of Weir.
    Weir(usize),
    /// The n-th baseline.
    Baseline(usize),
    /// The n-th bound.
    Bound(usize),
}

/// How colours are written into a drawing.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Theme {
    /// As they are, for light ground: files stand alone and go onto slides.
    Light,
    /// As variables, which the page around the drawing sets.
    Page,
}

/// Name of the variable, on light ground, on dark ground.
const COLOURS: [(&str, &str, &str); 17] = [
    ("ground", "#ffffff", "#15181c"),
    ("ink", "#1b1f24", "#f0f2f4"),
    ("muted", "#57606a", "#a3adb8"),
    ("grid", "#e3e7eb", "#2c323a"),
    ("weir-0", "#0072b2", "#56b4e9"),
    ("weir-1", "#00886b", "#2fc6a2"),
    ("weir-2", "#7b4fb5", "#b79bf0"),
    ("weir-3", "#2b8fc9", "#8fd0ff"),
    ("weir-4", "#4a7d00", "#a6cf5a"),
    ("baseline-0", "#d55e00", "#ff8f4f"),
    ("baseline-1", "#a87700", "#f0c340"),
    ("baseline-2", "#b5407f", "#f08cc0"),
    ("baseline-3", "#8c4a2f", "#d9a184"),
    ("baseline-4", "#c23b3b", "#ff7b7b"),
    ("bound-0", "#6e7781", "#8b95a1"),
    ("bound-1", "#7f7266", "#a89a8c"),
    ("bound-2", "#667a6e", "#8fa899"),
];
/// Series of one origin before colours come again.
const SERIES_COLOURS: usize = 5;
const BOUND_COLOURS: usize = 3;

impl Theme {
    /// The colour as an attribute's value.
    pub fn colour(self, role: Role) -> String {
        let (name, light, _) = COLOURS[index(role)];
        match self {
            Self::Light => light.to_owned(),
            Self::Page => format!("var(--{name})"),
        }
    }
}

fn index(role: Role) -> usize {
    match role {
        Role::Ground => 0,
        Role::Ink => 1,
        Role::Muted => 2,
        Role::Grid => 3,
        Role::Weir(nth) => 4 + nth % SERIES_COLOURS,
        Role::Baseline(nth) => 4 + SERIES_COLOURS + nth % SERIES_COLOURS,
        Role::Bound(nth) => 4 + 2 * SERIES_COLOURS + nth % BOUND_COLOURS,
    }
}

/// The variables for a style sheet: those of light ground, and those of dark.
pub fn variables() -> (String, String) {
    let mut sheets = (String::new(), String::new());
    for (name, light, dark) in COLOURS {
        sheets.0.push_str(&format!("--{name}:{light};"));
        sheets.1.push_str(&format!("--{name}:{dark};"));
    }
    sheets
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Relative luminance, as the contrast rules for the web define it.
    fn luminance(colour: &str) -> f64 {
        let channel = |at: usize| {
            let value = f64::from(u8::from_str_radix(&colour[at..at + 2], 16).unwrap()) / 255.0;
            if value <= 0.040_45 { value / 12.92 } else { libm::pow((value + 0.055) / 1.055, 2.4) }
        };
        0.2126 * channel(1) + 0.7152 * channel(3) + 0.0722 * channel(5)
    }

    fn contrast(one: &str, other: &str) -> f64 {
        let (one, other) = (luminance(one), luminance(other));
        (one.max(other) + 0.05) / (one.min(other) + 0.05)
    }

    #[test]
    fn every_colour_stands_out_from_its_ground() {
        let (_, light_ground, dark_ground) = COLOURS[0];
        for (name, light, dark) in &COLOURS[1..] {
            let needed = match *name {
                "grid" => 1.1,
                "ink" | "muted" => 4.5,
                _ => 3.0,
            };
            assert!(contrast(light, light_ground) >= needed, "{name} on light");
            assert!(contrast(dark, dark_ground) >= needed, "{name} on dark");
        }
    }
}

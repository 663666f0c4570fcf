//! What a module exports, version 1: the names of the functions and their signatures. Everything is
//! `i32` or `i64`; addresses are offsets into the module's memory.

use std::fmt;

/// The version that `weir_abi` answers.
pub const VERSION: i32 = 1;

/// A decision that a module can make.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// Which band to reclaim.
    Victim,
    /// Which data lives together.
    Stream,
    /// When to erase.
    Erase,
    /// Which free band to open, and when cold data moves.
    Wear,
    /// Which unit takes a page.
    Unit,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Victim, Self::Stream, Self::Erase, Self::Wear, Self::Unit];

    /// The FTL's word for the decision.
    pub fn decision(self) -> &'static str {
        match self {
            Self::Victim => "victim",
            Self::Stream => "stream",
            Self::Erase => "erase",
            Self::Wear => "wear",
            Self::Unit => "unit",
        }
    }

    fn functions(self) -> impl Iterator<Item = &'static Function> {
        let prefix = self.decision();
        FUNCTIONS.iter().filter(move |function| {
            function.name.split_once('_').is_some_and(|(start, _)| start == prefix)
        })
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.decision())
    }
}

/// Parameters and results, one letter each: `i` for `i32`, `l` for `i64`.
pub type Signature = (String, String);

/// A function that the host calls.
struct Function {
    name: &'static str,
    params: &'static str,
    results: &'static str,
    required: bool,
}

const fn function(
    name: &'static str,
    params: &'static str,
    results: &'static str,
    required: bool,
) -> Function {
    Function { name, params, results, required }
}

/// docs/policies.md says what each is given and answers.
const FUNCTIONS: &[Function] = &[
    function("weir_abi", "", "i", true),
    function("victim_room", "ii", "i", true),
    function("victim_pick", "iil", "i", true),
    function("stream_start", "i", "i", true),
    function("stream_write", "iiiill", "i", true),
    function("stream_move", "iiill", "i", false),
    function("stream_trim", "ii", "", false),
    function("stream_reclaimed", "il", "", false),
    function("erase_now", "iillii", "i", true),
    function("wear_room", "i", "i", true),
    function("wear_pick", "ii", "i", true),
    function("wear_move", "ii", "i", false),
    function("unit_room", "i", "i", true),
    function("unit_pick", "iiiilll", "i", true),
];

/// The names of all functions that a module may export for the host.
pub fn functions() -> impl Iterator<Item = &'static str> {
    FUNCTIONS.iter().map(|function| function.name)
}

/// The decisions that a module with these exports makes.
///
/// # Errors
/// What is missing, or not as it must be.
pub fn kinds(exports: &[(String, Option<Signature>)]) -> Result<Vec<Kind>, String> {
    if !exports.iter().any(|(name, signature)| name == "memory" && signature.is_none()) {
        return Err("the module exports no memory called \"memory\"".into());
    }
    let find = |wanted: &str| exports.iter().find(|(name, _)| name == wanted);
    let check = |function: &Function| match find(function.name) {
        None if function.required => Err(format!(
            "the module lacks the function {}({})",
            function.name,
            words(function.params)
        )),
        Some((name, Some((params, results))))
            if params == function.params && results == function.results =>
        {
            debug_assert_eq!(name, function.name);
            Ok(())
        }
        Some(_) => Err(format!(
            "the export {} must be a function of ({}) that answers ({})",
            function.name,
            words(function.params),
            words(function.results)
        )),
        None => Ok(()),
    };
    check(&FUNCTIONS[0])?;
    // A misspelt function would never be called, and its author would wonder.
    let prefixed = |name: &str| Kind::ALL.iter().any(|kind| begins(name, *kind));
    let known = |name: &str| FUNCTIONS.iter().any(|function| function.name == name);
    if let Some((name, _)) = exports.iter().find(|(name, _)| prefixed(name) && !known(name)) {
        let names: Vec<&str> = FUNCTIONS.iter().map(|function| function.name).collect();
        return Err(format!("no function is called {name}; there are {}", names.join(", ")));
    }
    let mut kinds = Vec::new();
    for kind in Kind::ALL {
        if exports.iter().any(|(name, _)| begins(name, kind)) {
            kind.functions().try_for_each(check)?;
            kinds.push(kind);
        }
    }
    if kinds.is_empty() {
        return Err("the module exports no policy: it needs the functions of victim_pick, \
                    stream_write, erase_now, wear_pick or unit_pick"
            .into());
    }
    Ok(kinds)
}

fn begins(name: &str, kind: Kind) -> bool {
    name.strip_prefix(kind.decision()).is_some_and(|rest| rest.starts_with('_'))
}

fn words(letters: &str) -> String {
    let word = |letter| if letter == 'i' { "i32" } else { "i64" };
    letters.chars().map(word).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(list: &[(&str, &str, &str)]) -> Result<Vec<Kind>, String> {
        let mut exports = vec![("memory".to_owned(), None)];
        exports.push(("weir_abi".into(), Some((String::new(), "i".into()))));
        for (name, params, results) in list {
            exports.push(((*name).into(), Some(((*params).into(), (*results).into()))));
        }
        kinds(&exports)
    }

    #[test]
    fn a_module_is_of_the_kinds_whose_functions_it_has() {
        let victim = [("victim_room", "ii", "i"), ("victim_pick", "iil", "i")];
        assert_eq!(of(&victim), Ok(vec![Kind::Victim]));
        let both = [victim[0], victim[1], ("erase_now", "iillii", "i")];
        assert_eq!(of(&both), Ok(vec![Kind::Victim, Kind::Erase]));
        assert_eq!(of(&[("erase_now", "iillii", "i"), ("fib", "i", "i")]), Ok(vec![Kind::Erase]));
    }

    #[test]
    fn what_is_missing_wrong_or_misspelt_is_named() {
        for (exports, said) in [
            (&[][..], "exports no policy"),
            (&[("victim_pick", "iil", "i")][..], "lacks the function victim_room(i32, i32)"),
            (&[("erase_now", "ii", "i")][..], "erase_now must be a function of (i32, i32, i64"),
            (&[("erase_now", "iillii", "i"), ("erase_then", "", "")][..], "is called erase_then"),
        ] {
            let error = of(exports).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
        assert!(kinds(&[]).unwrap_err().contains("memory"));
    }
}

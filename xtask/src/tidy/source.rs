//! Rules for Rust source: lengths, and words that mean "not finished". Works on the text with
//! comments, strings and characters blanked out, so that a brace in a string closes nothing.

/// Longest file, without its `#[cfg(test)]` tail.
const FILE_LINES_MAX: usize = 800;
/// Longest function, from the line of its `fn` to its closing brace.
const FUNCTION_LINES_MAX: usize = 70;
/// Macros that say "not finished".
const FORBIDDEN: &[&str] = &["todo!", "unimplemented!", "dbg!"];

/// The faults of one file.
pub fn check(name: &str, text: &str) -> Vec<String> {
    let masked = mask(text);
    let mut faults = Vec::new();
    let is_test = name.contains("/tests/") || name.ends_with("/tests.rs");
    let lines = lines_without_tests(&masked);
    if !is_test && lines > FILE_LINES_MAX {
        faults.push(format!("{name}: {lines} lines without tests; at most {FILE_LINES_MAX}"));
    }
    for function in functions(&masked) {
        if function.lines > FUNCTION_LINES_MAX {
            faults.push(format!(
                "{name}:{}: fn {} has {} lines; at most {FUNCTION_LINES_MAX}",
                function.first_line, function.name, function.lines
            ));
        }
    }
    for (index, line) in masked.lines().enumerate() {
        for word in FORBIDDEN.iter().filter(|word| contains_word(line, word)) {
            faults.push(format!("{name}:{}: {word} is not finished work", index + 1));
        }
    }
    if !text.starts_with("//!") && !text.starts_with("#![") {
        faults.push(format!("{name}:1: begin with a `//!` line that says what the file is for"));
    }
    faults
}

/// Lines before the unit tests at the end of a file.
fn lines_without_tests(masked: &str) -> usize {
    let lines: Vec<&str> = masked.lines().collect();
    let tail = (0..lines.len()).find(|&index| {
        lines[index].starts_with("#[cfg(test)]")
            && lines.get(index + 1).is_some_and(|next| next.trim_start().starts_with("mod "))
    });
    tail.unwrap_or(lines.len())
}

#[derive(Debug, PartialEq)]
struct Function {
    name: String,
    first_line: usize,
    lines: usize,
}

/// Every function with a body. Functions inside functions count for both.
fn functions(masked: &str) -> Vec<Function> {
    let bytes = masked.as_bytes();
    let mut found = Vec::new();
    for (at, _) in masked.match_indices("fn ") {
        if at > 0 && is_word(bytes[at - 1]) {
            continue;
        }
        let rest = masked[at + 3..].trim_start();
        let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        if name.is_empty() {
            continue; // a function pointer's type
        }
        if let Some(end) = body_end(&bytes[at..]) {
            let line_of = |position: usize| masked[..position].matches('\n').count() + 1;
            let first_line = line_of(at);
            found.push(Function { name, first_line, lines: line_of(at + end) - first_line + 1 });
        }
    }
    found
}

/// Where the body of the function that starts here ends; `None` if it has none.
fn body_end(bytes: &[u8]) -> Option<usize> {
    let (mut braces, mut brackets) = (0, 0);
    for (index, byte) in bytes.iter().enumerate() {
        match byte {
            b'(' | b'[' => brackets += 1,
            b')' | b']' => brackets -= 1,
            b'{' => braces += 1,
            b'}' => {
                braces -= 1;
                if braces == 0 && brackets == 0 {
                    return Some(index);
                }
            }
            // `[u8; 4]` in the signature has a semicolon too.
            b';' if braces == 0 && brackets == 0 => return None,
            _ => {}
        }
    }
    None
}

/// The text with the insides of comments, strings and characters turned to spaces. Lines and byte
/// positions stay what they were.
fn mask(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let end = token_end(bytes, at);
        if end == at {
            out.push(bytes[at]);
            at += 1;
            continue;
        }
        out.extend(bytes[at..end].iter().map(|&byte| if byte == b'\n' { b'\n' } else { b' ' }));
        at = end;
    }
    String::from_utf8(out).expect("whole tokens were blanked")
}

/// The end of the comment, string or character that starts at `at`; `at` itself if none does.
fn token_end(bytes: &[u8], at: usize) -> usize {
    let rest = &bytes[at..];
    if rest.starts_with(b"//") {
        return at + rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len());
    }
    if rest.starts_with(b"/*") {
        return at + block_comment_length(rest);
    }
    if at > 0 && is_word(bytes[at - 1]) && rest[0] != b'"' && rest[0] != b'\'' {
        return at; // the r of `for`, the b of `verb`
    }
    if let Some(length) = raw_string_length(rest) {
        return at + length;
    }
    match rest {
        [b'"', ..] => at + quoted_length(rest, b'"'),
        [b'b', b'\'', ..] => at + 1 + quoted_length(&rest[1..], b'\''),
        // 'a' and '\n', but not the lifetime 'a.
        [b'\'', b'\\', ..] => at + quoted_length(rest, b'\''),
        [b'\'', ..] => {
            let text = std::str::from_utf8(rest).unwrap_or_default();
            match text.char_indices().nth(2) {
                Some((length, '\'')) => at + length + 1,
                _ => at,
            }
        }
        _ => at,
    }
}

/// `r"..."`, `r#"..."#`, `br"..."`.
fn raw_string_length(rest: &[u8]) -> Option<usize> {
    let prefix = usize::from(rest.first() == Some(&b'b'));
    if rest.get(prefix) != Some(&b'r') {
        return None;
    }
    let hashes = rest[prefix + 1..].iter().take_while(|&&byte| byte == b'#').count();
    let open = prefix + 1 + hashes;
    if rest.get(open) != Some(&b'"') {
        return None;
    }
    let mut close = vec![b'"'];
    close.resize(1 + hashes, b'#');
    let inside = &rest[open + 1..];
    let length = inside.windows(close.len()).position(|window| window == close)?;
    Some(open + 1 + length + close.len())
}

fn quoted_length(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != quote {
        at += if rest[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(rest.len())
}

/// Block comments nest.
fn block_comment_length(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        if rest[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

fn contains_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| at == 0 || !is_word(line.as_bytes()[at - 1]))
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

#[cfg(test)]
mod tests {
    use super::{Function, check, functions, lines_without_tests, mask};

    #[test]
    fn strings_comments_and_characters_hold_no_braces() {
        let text = r##"fn a() { "}\"}"; r#"}"}"#; '}'; '\''; b'}'; /* } /* } */ } */ // }
        let x: &'static str = "é}"; }"##;
        let masked = mask(text);
        assert_eq!(masked.matches('}').count(), 1, "{masked}");
        assert_eq!(masked.len(), text.len());
        assert!(masked.contains("&'static str"), "a lifetime is not a character: {masked}");
    }

    #[test]
    fn a_function_is_as_long_as_its_body() {
        let text = "trait T { fn none(&self, x: [u8; 4]); }\nfn two() {\n}\n\
                    fn three(f: fn(u8) -> u8) -> [u8; 2] {\n if x { }\n}\n";
        let function =
            |name: &str, first_line, lines| Function { name: name.to_owned(), first_line, lines };
        assert_eq!(functions(&mask(text)), [function("two", 2, 2), function("three", 4, 3)]);
    }

    #[test]
    fn the_test_tail_does_not_count() {
        let text = "//! x\nfn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\n";
        assert_eq!(lines_without_tests(text), 2);
        assert_eq!(lines_without_tests("#[cfg(test)]\nfn c() {}\n"), 2);
    }

    #[test]
    fn each_rule_finds_its_fault() {
        let long = format!("//! x\nfn long() {{\n{}}}\n", "    a();\n".repeat(70));
        assert_eq!(check("a.rs", &long), ["a.rs:2: fn long has 72 lines; at most 70"]);
        let file = format!("//! x\n{}", "const A: u8 = 0;\n".repeat(800));
        assert_eq!(check("a.rs", &file), ["a.rs: 801 lines without tests; at most 800"]);
        assert!(check("crates/a/tests/it/b.rs", &file).is_empty(), "tests may be long");
        let unfinished = concat!("//! x\nfn a() { to", "do!() } // tod", "o!\n");
        assert_eq!(check("a.rs", unfinished).len(), 1);
        assert_eq!(check("a.rs", "fn a() {}\n").len(), 1, "no head");
    }
}

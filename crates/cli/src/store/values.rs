//! `weir store put`, `get`, `delete` and `scan`: values by key.

use super::{At, Value, missing, print_bytes, print_line, told};
use crate::output::print_json;
use crate::{End, Failure};
use clap::builder::NonEmptyStringValueParser;
use client::percent;
use client::store::Range;
use serde_json::json;

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    weir store put user:7 --value Ada\n  \
    weir store put trace web.csv.gz")]
pub struct PutArgs {
    /// Its key: 1 to 1024 bytes
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    key: String,
    #[command(flatten)]
    value: Value,
    #[command(flatten)]
    at: At,
}

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    weir store put user:7 --value Ada\n  \
    weir store get user:7\n\n\
    It ends with status 1 if there is none.")]
pub struct GetArgs {
    /// Its key
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    key: String,
    #[command(flatten)]
    at: At,
}

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    weir store delete user:7 user:8\n\n\
    All are deleted in one piece; one that is not there is none to delete.")]
pub struct DeleteArgs {
    /// Their keys
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    #[arg(required = true)]
    keys: Vec<String>,
    #[command(flatten)]
    at: At,
}

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    weir store scan --prefix user:\n  \
    weir store scan --from user:1 --to user:5 --limit 100 --json | jq -r '.values[].key'\n  \
    weir store scan --slice 3\n\n\
    In JSON keys and values are percent-encoded, as in a URL.")]
pub struct ScanArgs {
    /// Only keys that begin so
    #[arg(long, value_name = "TEXT", default_value = "")]
    prefix: String,
    /// From this key on
    #[arg(long, value_name = "KEY")]
    from: Option<String>,
    /// Up to, not with, this key
    #[arg(long, value_name = "KEY")]
    to: Option<String>,
    /// At most so many [default: all]
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Only what is in this slice, as `weir store status` numbers them: who reads all slices side by side reads quickest
    #[arg(long, value_name = "N")]
    slice: Option<u32>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    at: At,
}

/// Puts one.
pub fn put(args: &PutArgs) -> Result<End, Failure> {
    let value = args.value.bytes()?;
    args.at.store()?.put(args.key.as_bytes(), &value).map_err(told)?;
    Ok(End::Good)
}

/// Prints one.
pub fn get(args: &GetArgs) -> Result<End, Failure> {
    match args.at.store()?.get(args.key.as_bytes()).map_err(told)? {
        Some(value) => print_bytes(&value).map(|()| End::Good),
        None => Ok(missing(&args.key)),
    }
}

/// Deletes some.
pub fn delete(args: &DeleteArgs) -> Result<End, Failure> {
    let changes = args.keys.iter().map(|key| (key.as_bytes(), None));
    args.at.store()?.write(changes).map_err(told)?;
    Ok(End::Good)
}

/// Lists some.
pub fn scan(args: &ScanArgs) -> Result<End, Failure> {
    let store = args.at.store()?;
    let bytes = |text: &Option<String>| text.as_ref().map(|text| text.clone().into_bytes());
    let (mut from, to) = (bytes(&args.from), bytes(&args.to));
    let mut left = args.limit.unwrap_or(usize::MAX);
    let mut list = Vec::new();
    while left > 0 {
        let range = Range {
            prefix: args.prefix.as_bytes(),
            from: from.as_deref(),
            to: to.as_deref(),
            limit: left.min(1000),
            slice: args.slice,
        };
        let (pairs, next) = store.scan(&range).map_err(told)?;
        left -= pairs.len().min(left);
        for (key, value) in pairs {
            match args.json {
                true => list.push(
                    json!({ "key": percent::encode(&key), "value": percent::encode(&value) }),
                ),
                false => print_line(&[&key], &value),
            }
        }
        from = next;
        if from.is_none() {
            break;
        }
    }
    if args.json {
        print_json(&json!({ "values": list }));
    }
    Ok(End::Good)
}

//! `weir store table`: cells by row, family and column.

use super::{At, Value, missing, print_bytes, print_line, told};
use crate::output::print_json;
use crate::{End, Failure};
use client::percent;
use client::store::{Cell, Cells, Range};
use serde_json::json;

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    weir store table put links example.org to www.example.com --value anchor\n  \
    weir store table get links example.org\n  \
    weir store table scan links --from a --to m\n  \
    weir store table delete links example.org\n\n\
    A table is there as soon as it has a cell. All cells of a row are in one slice.")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Put a cell
    #[command(after_help = "Examples:\n  \
        weir store table put links example.org to www.example.com --value anchor")]
    Put {
        #[command(flatten)]
        name: Name,
        #[command(flatten)]
        value: Value,
        #[command(flatten)]
        at: At,
    },
    /// Print a cell as it is, or a row's cells
    #[command(after_help = "Examples:\n  \
        weir store table put links example.net to www.example.com --value anchor\n  \
        weir store table get links example.net to www.example.com\n  \
        weir store table get links example.net --json\n\n\
        It ends with status 1 if there is none.")]
    Get {
        #[command(flatten)]
        named: Named,
        /// Print JSON, whose names and values are percent-encoded
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        at: At,
    },
    /// Delete a cell, or a row
    #[command(after_help = "Examples:\n  \
        weir store table delete links example.org to www.example.com\n  \
        weir store table delete links example.org")]
    Delete {
        #[command(flatten)]
        named: Named,
        #[command(flatten)]
        at: At,
    },
    /// List the cells of a range of rows, in order
    #[command(after_help = "Examples:\n  \
        weir store table scan links\n  \
        weir store table scan links --from a --to m --family to --json | jq -r '.cells[].cell'")]
    Scan {
        /// Its name
        table: String,
        /// From this row on
        #[arg(long, value_name = "ROW")]
        from: Option<String>,
        /// Up to, not with, this row
        #[arg(long, value_name = "ROW")]
        to: Option<String>,
        /// Only cells of this family
        #[arg(long, value_name = "NAME")]
        family: Option<String>,
        /// At most so many cells [default: all]
        #[arg(long, value_name = "N")]
        limit: Option<usize>,
        /// Print JSON, whose names and values are percent-encoded
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        at: At,
    },
}

/// The name of a cell.
#[derive(clap::Args)]
struct Name {
    /// Its table
    table: String,
    /// Its row
    row: String,
    /// Its family of columns
    family: String,
    /// Its column; may be empty ('')
    column: String,
}

/// The name of a cell or of a row.
#[derive(clap::Args)]
struct Named {
    /// Its table
    table: String,
    /// Its row
    row: String,
    /// Of a cell: its family of columns
    #[arg(requires = "column")]
    family: Option<String>,
    /// Of a cell: its column
    column: Option<String>,
}

impl Named {
    fn cell(&self) -> Option<Cell> {
        let (family, column) = (self.family.as_deref()?, self.column.as_deref()?);
        Some(Cell::new(&self.table, &self.row, family, column))
    }
}

/// Does what is asked.
pub fn run(args: &Args) -> Result<End, Failure> {
    match &args.command {
        Command::Put { name, value, at } => {
            let cell = Cell::new(&name.table, &name.row, &name.family, &name.column);
            at.store()?.put_cell(&cell, &value.bytes()?).map_err(told)?;
            Ok(End::Good)
        }
        Command::Get { named, json, at } => get(named, *json, at),
        Command::Delete { named, at } => {
            let (table, row) = (named.table.as_bytes(), named.row.as_bytes());
            match named.cell() {
                Some(cell) => at.store()?.delete_cell(&cell).map_err(told)?,
                None => at.store()?.delete_row(table, row).map_err(told)?,
            }
            Ok(End::Good)
        }
        Command::Scan { .. } => scan(&args.command),
    }
}

fn get(named: &Named, json: bool, at: &At) -> Result<End, Failure> {
    let store = at.store()?;
    if let Some(cell) = named.cell() {
        return match store.cell(&cell).map_err(told)? {
            Some(value) if json => {
                print_json(&json!({ "cell": cell.path(), "value": percent::encode(&value) }));
                Ok(End::Good)
            }
            Some(value) => print_bytes(&value).map(|()| End::Good),
            None => Ok(missing(&cell.path())),
        };
    }
    let row = named.row.as_bytes();
    let end = [row, &[0]].concat();
    let rows = Range { from: Some(row), to: Some(&end), ..Range::default() };
    let mut page = |behind: Option<&Cell>| {
        store.cells(Some(named.table.as_bytes()), &rows, (behind, None)).map_err(told)
    };
    match print_all(json && !is_empty(&mut page)?, usize::MAX, &mut page)? {
        0 => Ok(missing(&named.row)),
        _ => Ok(End::Good),
    }
}

fn scan(command: &Command) -> Result<End, Failure> {
    let Command::Scan { table, from, to, family, limit, json, at } = command else {
        return Ok(End::Good);
    };
    let store = at.store()?;
    let bytes = |text: &'_ Option<String>| text.as_ref().map(|text| text.clone().into_bytes());
    let (from, to, family) = (bytes(from), bytes(to), bytes(family));
    let rows = Range { from: from.as_deref(), to: to.as_deref(), ..Range::default() };
    let mut page = |behind: Option<&Cell>| {
        store.cells(Some(table.as_bytes()), &rows, (behind, family.as_deref())).map_err(told)
    };
    print_all(*json, limit.unwrap_or(usize::MAX), &mut page)?;
    Ok(End::Good)
}

type NextPage<'a> = dyn FnMut(Option<&Cell>) -> Result<Cells, Failure> + 'a;

fn is_empty(page: &mut NextPage<'_>) -> Result<bool, Failure> {
    Ok(page(None)?.0.is_empty())
}

/// Prints cells page by page; how many.
fn print_all(json: bool, limit: usize, page: &mut NextPage<'_>) -> Result<usize, Failure> {
    let (mut list, mut count, mut behind) = (Vec::new(), 0, None);
    loop {
        let (cells, next) = page(behind.as_ref())?;
        for (cell, value) in cells {
            if count == limit {
                break;
            }
            count += 1;
            match json {
                true => list.push(json!({ "cell": cell.path(), "value": percent::encode(&value) })),
                false => print_line(&[&cell.row, &cell.family, &cell.column], &value),
            }
        }
        behind = next;
        if behind.is_none() || count == limit {
            break;
        }
    }
    if json {
        print_json(&json!({ "cells": list }));
    }
    Ok(count)
}

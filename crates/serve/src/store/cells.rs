//! Cells of tables: `/table/TABLE/ROW/FAMILY/COLUMN`, rows by `/table/TABLE/ROW`, ranges of rows by `GET /table/TABLE`.

use super::Store;
use super::listed::Listed;
use super::query::{Query, bad, behind, decoded};
use super::values::{Where, read_one, receive};
use ::store::services::key::Cell;
use ::store::services::{Bounds, Refused, Service, VALUE_BYTES_MAX, too_large};
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use client::store::Cell as Named;

const ROOT: &str = "/table/";
const CELLS: Listed = Listed { kind: "cells", name: "cell", with_values: true, encoded: true };

/// What a path names.
enum Target {
    Table(Vec<u8>),
    Row(Vec<u8>, Vec<u8>),
    Cell(Cell),
}

impl Target {
    fn of(uri: &Uri) -> Result<Self, Response> {
        let path = behind(uri, ROOT);
        let names: Vec<Vec<u8>> = path.split('/').map(decoded).collect::<Result<_, _>>()?;
        match <[Vec<u8>; 4]>::try_from(names) {
            Ok([table, row, family, column]) => Ok(Self::Cell(Cell { table, row, family, column })),
            Err(names) => match &names[..] {
                [table] => Ok(Self::Table(table.clone())),
                [table, row] => Ok(Self::Row(table.clone(), row.clone())),
                _ => Err(unnamed()),
            },
        }
    }

    fn cell(uri: &Uri) -> Result<Cell, Response> {
        match Self::of(uri)? {
            Self::Cell(cell) => Ok(cell),
            _ => Err(unnamed()),
        }
    }
}

fn unnamed() -> Response {
    bad(
        "a cell is /table/TABLE/ROW/FAMILY/COLUMN, a row /table/TABLE/ROW; a slash in a name is %2F, and an empty column \
         nothing behind the last slash",
    )
}

pub async fn write(State(store): State<Store>, uri: Uri, head: HeaderMap, body: Body) -> Response {
    put(&store, &uri, &head, body).await.unwrap_or_else(|refused| refused)
}

async fn put(store: &Store, uri: &Uri, head: &HeaderMap, body: Body) -> Result<Response, Response> {
    Query::of(uri)?.end()?;
    let cell = Target::cell(uri)?;
    let (value, _part) = store.memory.receive(head, body, VALUE_BYTES_MAX, too_large).await?;
    let change = store.service.put_cell(&cell, value).map_err(super::refused)?;
    store.commit(vec![change]).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

pub async fn many(State(store): State<Store>, uri: Uri, head: HeaderMap, body: Body) -> Response {
    write_many(&store, &uri, &head, body).await.unwrap_or_else(|refused| refused)
}

/// Puts and, without a value, deletes cells by their paths: all or none.
async fn write_many(
    store: &Store,
    uri: &Uri,
    head: &HeaderMap,
    body: Body,
) -> Result<Response, Response> {
    let mut query = Query::of(uri)?;
    let what = query.take("do");
    query.end()?;
    if what.as_deref() != Some(b"write") {
        return Err(bad("do: must be write: for example POST /table?do=write"));
    }
    let (frames, _part) = receive(store, head, body).await?;
    let mut changes = Vec::with_capacity(frames.len());
    for (path, value) in frames {
        let path = String::from_utf8_lossy(&path).into_owned();
        let cell = Named::of_path(&path).ok_or_else(unnamed)?;
        let Named { table, row, family, column } = cell;
        let cell = Cell { table, row, family, column };
        let change = match value {
            Some(value) => store.service.put_cell(&cell, value),
            None => store.service.delete_cell(&cell),
        };
        changes.push(change.map_err(super::refused)?);
    }
    store.commit(changes).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

pub async fn remove(State(store): State<Store>, uri: Uri) -> Response {
    delete(&store, &uri).await.unwrap_or_else(|refused| refused)
}

async fn delete(store: &Store, uri: &Uri) -> Result<Response, Response> {
    Query::of(uri)?.end()?;
    let change = match Target::of(uri)? {
        Target::Cell(cell) => store.service.delete_cell(&cell),
        Target::Row(table, row) => store.service.delete_row(&table, &row),
        Target::Table(_) => return Err(unnamed()),
    };
    store.commit(vec![change.map_err(super::refused)?]).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

pub async fn read(State(store): State<Store>, uri: Uri, head: HeaderMap) -> Response {
    fetch(&store, &uri, &head).await.unwrap_or_else(|refused| refused)
}

async fn fetch(store: &Store, uri: &Uri, head: &HeaderMap) -> Result<Response, Response> {
    match Target::of(uri)? {
        Target::Cell(cell) => {
            Query::of(uri)?.end()?;
            let of = move |service: &Service, from| match from {
                Where::Memory => service.cell_in_memory(&cell),
                Where::Units => service.cell(&cell).map(Some),
            };
            read_one(store, of).await
        }
        Target::Row(table, row) => {
            let mut query = Query::of(uri)?;
            let (bounds, family) = (query.bounds()?, query.take("family"));
            query.end()?;
            let work =
                move |service: &Service| service.row((&table, &row), family.as_deref(), bounds);
            told(store, head, bounds, work).await
        }
        Target::Table(table) => ranged(store, uri, head, Some(table)).await,
    }
}

pub async fn list(State(store): State<Store>, uri: Uri, head: HeaderMap) -> Response {
    ranged(&store, &uri, &head, None).await.unwrap_or_else(|refused| refused)
}

async fn ranged(
    store: &Store,
    uri: &Uri,
    head: &HeaderMap,
    table: Option<Vec<u8>>,
) -> Result<Response, Response> {
    let mut query = Query::of(uri)?;
    let mut bounds = query.bounds()?;
    bounds.values = true;
    let (from, to, family) = (query.take("from"), query.take("to"), query.take("family"));
    let after = query.take_text("behind")?;
    query.end()?;
    if table.as_ref().is_some_and(Vec::is_empty) {
        return Err(unnamed());
    }
    if table.is_none() && (from.is_some() || to.is_some()) {
        return Err(bad("from, to: are rows of one table: name it, as in /table/links?from=a"));
    }
    let after = match after {
        None => None,
        Some(text) => {
            let named = Named::of_path(&text)
                .ok_or_else(|| bad("behind: must be the `next` of an answer"))?;
            let Named { table, row, family, column } = named;
            Some(Cell { table, row, family, column })
        }
    };
    let work = move |service: &Service| {
        let (rows, family) = ((from.as_deref(), to.as_deref()), family.as_deref());
        service.cells(table.as_deref(), rows, (after.as_ref(), family), bounds)
    };
    told(store, head, bounds, work).await
}

/// Cells by their paths.
async fn told(
    store: &Store,
    head: &HeaderMap,
    bounds: Bounds,
    work: impl FnOnce(&Service) -> Result<(Vec<(Cell, Vec<u8>)>, Option<Cell>), Refused>
    + Send
    + 'static,
) -> Result<Response, Response> {
    let bounds = Bounds { values: true, ..bounds };
    let part = store.memory.list(bounds, store.service.slices()).await?;
    let (cells, next) = store.ask(work).await?;
    let path = |cell: Cell| {
        let Cell { table, row, family, column } = cell;
        Named { table, row, family, column }.path()
    };
    let pairs = cells.into_iter().map(|(cell, value)| (path(cell).into_bytes(), value)).collect();
    Ok(CELLS.of(pairs, next.map(path), head, part))
}

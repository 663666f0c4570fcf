//! The page at `/`, and what it is made of under `/page/`. All of it is in the binary; nothing is built and nothing
//! comes from elsewhere: the browser is told to load from here only. Charts are drawn by uPlot (MIT, `uplot/`),
//! version 1.6.32 as its authors publish it.

use super::doors::Access;
use super::refusal;
use super::routes::Routes;
use axum::extract::Path;
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";

const PAGE: &str = include_str!("index.html");
/// By name: what each is, and all of it.
const FILES: [(&str, &str, &str); 7] = [
    ("page.css", STYLE, include_str!("page.css")),
    ("page.js", SCRIPT, include_str!("page.js")),
    ("charts.js", SCRIPT, include_str!("charts.js")),
    ("units.js", SCRIPT, include_str!("units.js")),
    ("uplot.js", SCRIPT, include_str!("uplot/uPlot.iife.min.js")),
    ("uplot.css", STYLE, include_str!("uplot/uPlot.min.css")),
    ("uplot-license.txt", TEXT, include_str!("uplot/LICENSE")),
];

/// Scripts, styles and questions come from and go to this server, whatever somebody gets into the page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The routes of this file.
pub fn routes(routes: Routes) -> Routes {
    routes.get("/", Access::Open, || async { told(HTML, PAGE) }).get(
        "/page/{file}",
        Access::Open,
        file,
    )
}

async fn file(Path(name): Path<String>) -> Response {
    match FILES.iter().find(|(known, ..)| *known == name) {
        Some(&(_, kind, text)) => told(kind, text),
        None => {
            let known = FILES.map(|(known, ..)| known).join(", ");
            refusal(StatusCode::NOT_FOUND, &format!("no {name} belongs to the page: {known} do"))
        }
    }
}

/// A server of another version may come at the same address: nothing is kept without asking.
fn told(kind: &'static str, text: &'static str) -> Response {
    const CSP: HeaderName = header::CONTENT_SECURITY_POLICY;
    let head = [(header::CONTENT_TYPE, kind), (CSP, POLICY), (header::CACHE_CONTROL, "no-cache")];
    (head, text).into_response()
}

//! Raw units as a table for people, from the JSON that `weir status` and `weir inspect` print.

use crate::output::table;
use crate::size::count;
use serde_json::Value;

/// One row a unit.
pub fn text(units: &[Value]) -> String {
    let heads = [
        "  unit",
        "queued",
        "busy s",
        "erased",
        "open",
        "full",
        "torn",
        "erases",
        "bad",
        "spare",
        "last reason",
    ];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for unit in units {
        let number = |key: &str| unit[key].as_u64().unwrap_or(0);
        let queued = number("reads_queued") + number("writes_queued") + number("erases_queued");
        let gone = if unit["gone"] == true { " GONE" } else { "" };
        rows.push(vec![
            format!("  {}{gone}", unit["unit"]),
            queued.to_string(),
            format!("{:.1}", number("busy_ns") as f64 / 1e9),
            count(number("raw_blocks_erased") + number("raw_blocks_erasing")),
            count(number("raw_blocks_open")),
            count(number("raw_blocks_full")),
            count(number("raw_blocks_torn")),
            format!("{} to {}", number("erase_count_min"), number("erase_count_max")),
            count(number("blocks_bad")),
            count(number("blocks_spare")),
            unit["last_reason"].as_str().unwrap_or_default().to_owned(),
        ]);
    }
    table(&rows)
}

/// The shape of raw units in a line.
pub fn shape(raw: &Value) -> String {
    let size = |key: &str| crate::size::bytes(raw[key].as_u64().unwrap_or(0));
    format!(
        "{} units of {} raw blocks of {}, pages of {}, reads of {}",
        raw["units"],
        raw["raw_blocks_per_unit"],
        size("raw_block_bytes"),
        size("page_bytes"),
        size("granule_bytes"),
    )
}

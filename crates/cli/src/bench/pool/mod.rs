//! What a pool costs on this machine: one client and four nodes with drives in memory that take no time, each a
//! process of its own, all links in mutual TLS over loopback, so that all that is measured is software. Beside it, in
//! the same minutes, the same volume served by one process (`weir serve`), and what the links alone cost ([`paths`]).

mod paths;
mod running;
mod take_over;
mod turn;

use super::Request;

/// All figures of a pool.
pub fn figures(request: &mut Request<'_>) {
    turn::figures(request);
    paths::figures(request);
    take_over::figures(request);
}

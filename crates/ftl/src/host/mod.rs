//! Requests of the host, from the call to the reply.

pub(crate) mod group;
pub(crate) mod in_flight;
pub(crate) mod requests;
pub(crate) mod shares;
pub(crate) mod waiting;

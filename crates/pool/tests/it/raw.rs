//! The raw store alone.

//! Why slots are filled: the parts of a write amplification.

/// Slots by why they were filled, from the counters of an FTL. What it counts as relocated has what left the fast tier,
/// and what stayed there when its band was reclaimed.
pub fn filled(counter: impl Fn(&str) -> u64) -> [(&'static str, u64); 6] {
    let (destaged, kept) = (counter("slots_destaged"), counter("slots_kept"));
    [
        ("host", counter("host_blocks_written")),
        ("gc", counter("slots_relocated").saturating_sub(destaged + kept)),
        ("destage", destaged),
        ("kept", kept),
        ("padding", counter("slots_padded")),
        ("checkpoint", counter("slots_checkpointed")),
    ]
}

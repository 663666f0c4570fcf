//! A hostile guest, and a hostile hypervisor: any bytes as the memory of a ring, or as messages; see `serve::vhost_hostile`.

/// Runs the target on one input.
pub fn run(input: &[u8]) {
    serve::vhost_hostile::run(input);
}

//! A hostile host of NVMe over TCP: any bytes against one queue; see `serve::nvme_hostile`.

/// Runs the target on one input.
pub fn run(input: &[u8]) {
    serve::nvme_hostile::run(input);
}

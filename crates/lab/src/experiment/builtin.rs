//! The experiments that come with Weir: a file in `experiments/` and a line here.

/// Names and texts, in the order of `weir lab list`.
const BUILTIN: &[(&str, &str)] = &[
    ("sdf-bandwidth", include_str!("../../../../experiments/sdf-bandwidth.toml")),
    ("sdf-write-bandwidth", include_str!("../../../../experiments/sdf-write-bandwidth.toml")),
    ("sdf-channels", include_str!("../../../../experiments/sdf-channels.toml")),
    ("sdf-write-latency", include_str!("../../../../experiments/sdf-write-latency.toml")),
    ("sdf-slices-reads", include_str!("../../../../experiments/sdf-slices-reads.toml")),
    ("sdf-slices-sizes", include_str!("../../../../experiments/sdf-slices-sizes.toml")),
    ("sdf-capacity", include_str!("../../../../experiments/sdf-capacity.toml")),
    ("sdf-scans-writes", include_str!("../../../../experiments/sdf-scans-writes.toml")),
    ("tssd-sweep", include_str!("../../../../experiments/tssd-sweep.toml")),
    ("tssd-means", include_str!("../../../../experiments/tssd-means.toml")),
    ("tssd-applications", include_str!("../../../../experiments/tssd-applications.toml")),
    ("tssd-small", include_str!("../../../../experiments/tssd-small.toml")),
    ("autostream-containers", include_str!("../../../../experiments/autostream-containers.toml")),
    ("autostream-best", include_str!("../../../../experiments/autostream-best.toml")),
    ("autostream-loads", include_str!("../../../../experiments/autostream-loads.toml")),
    ("autostream-held-out", include_str!("../../../../experiments/autostream-held-out.toml")),
    ("autostream-traces", include_str!("../../../../experiments/autostream-traces.toml")),
    ("wsr-table", include_str!("../../../../experiments/wsr-table.toml")),
    ("mqsim", include_str!("../../../../experiments/mqsim.toml")),
    ("hot-cold-theory", include_str!("../../../../experiments/hot-cold-theory.toml")),
    ("pool-unlike-90", include_str!("../../../../experiments/pool-unlike-90.toml")),
    ("pool-unlike-70", include_str!("../../../../experiments/pool-unlike-70.toml")),
    ("pool-unlike-50", include_str!("../../../../experiments/pool-unlike-50.toml")),
    ("pool-held-out", include_str!("../../../../experiments/pool-held-out.toml")),
    ("pool-policies", include_str!("../../../../experiments/pool-policies.toml")),
    ("pool-p99", include_str!("../../../../experiments/pool-p99.toml")),
    ("pool-three", include_str!("../../../../experiments/pool-three.toml")),
    ("pool-needed", include_str!("../../../../experiments/pool-needed.toml")),
    ("pool-slow", include_str!("../../../../experiments/pool-slow.toml")),
    ("pool-lost", include_str!("../../../../experiments/pool-lost.toml")),
    ("profiles", include_str!("../../../../experiments/profiles.toml")),
];

/// The names of all.
pub fn builtin_names() -> Vec<&'static str> {
    BUILTIN.iter().map(|(name, _)| *name).collect()
}

/// The file of that name.
pub fn builtin(name: &str) -> Option<&'static str> {
    BUILTIN.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

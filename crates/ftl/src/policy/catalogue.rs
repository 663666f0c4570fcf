//! Every built-in policy in one list, for people: docs/policies.md is this list, and a test holds it
//! to that.

/// A built-in policy.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Entry {
    /// What it decides: one of [`super::DECISIONS`], "mapping", or "replica".
    pub decision: &'static str,
    /// Its name.
    pub name: &'static str,
    /// Its parameters, as they are written behind the name.
    pub params: &'static str,
    /// What it does, in a few words.
    pub about: &'static str,
}

const fn entry(
    decision: &'static str,
    name: &'static str,
    params: &'static str,
    about: &'static str,
) -> Entry {
    Entry { decision, name, params, about }
}

/// All of them, decision by decision.
pub const CATALOGUE: &[Entry] = &[
    entry("victim", "greedy", "", "the band with the fewest valid slots"),
    entry("victim", "cost-benefit", "", "space gained over slots moved, weighed by age (LFS)"),
    entry(
        "victim",
        "age-adaptive",
        ":N = 0 (to 1024; 0 for all)",
        "cost-benefit whose ages count up to twice their mean: near greedy where all data is alike",
    ),
    entry("victim", "d-choices", ":N = 10 (1 to 1024)", "the best of N bands drawn at random"),
    entry("victim", "fifo", "", "the oldest band"),
    entry("wear", "none", "", "the first free band, whatever its wear"),
    entry("wear", "dynamic", "", "the least worn free band"),
    entry(
        "wear",
        "static",
        ":N = 32 (2 or more)",
        "as dynamic; cold data goes to worn bands, and moves when bands are N erases apart",
    ),
    entry(
        "wear",
        "rejuvenation",
        ":P = 10 (1 to 50)",
        "as static, but bands may be apart by P % of the erases left: the window closes as flash ages",
    ),
    entry("wear", "asked", "", "as static, but data moves only when the application asks"),
    entry("erase", "eager", "", "as soon as a band is empty"),
    entry("erase", "idle", "", "when the unit had nothing to do for `idle`"),
    entry("erase", "read-first", "", "not on a unit where a host read waits"),
    entry("erase", "asked", "", "only when the application asks, or space runs out"),
    entry("unit", "shortest-queue", "", "the unit with the fewest programs waiting"),
    entry("unit", "weighted-queue", "", "the unit with the least time of commands waiting (LOCS)"),
    entry(
        "unit",
        "compaction-aware",
        "",
        "as weighted-queue among the units that GC does not work on (LOCS)",
    ),
    entry("unit", "round-robin", "", "each unit in its turn"),
    entry("unit", "static", "", "by the logical address"),
    entry(
        "stream",
        "none",
        "handles=1 (1 to 16), moved=1 (0 or 1)",
        "by the request's handle; GC's data apart, with moved=0 not even that",
    ),
    entry(
        "stream",
        "hint",
        "handles=4 (1 to 16), moved=handles (0 to handles)",
        "by the lifetime class that the host gives",
    ),
    entry(
        "stream",
        "multiq",
        "handles=8 (1 to 16), chunk=1MiB, base=2 (1.01 to 1000)",
        "AutoStream's Multi-Q",
    ),
    entry(
        "stream",
        "sfr",
        "handles=8 (1 to 16), chunk=1MiB, base=2 (1.01 to 1000), decay=25% (of the volume, or a size)",
        "AutoStream's sequentiality, frequency and recency",
    ),
    entry(
        "stream",
        "sepbit",
        "near=4, far=16, window=16",
        "SepBIT: by the age of what is overwritten",
    ),
    entry(
        "stream",
        "midas",
        "handles=8 (3 to 16 in all), epoch=a quarter of the volume, spare=10",
        "MiDAS: what dies young apart, the rest by age in groups that a model sizes",
    ),
    entry(
        "stream",
        "interval",
        "handles=8 (2 to 16), window=4 (1 to 64), chunk=4KiB",
        "by the mean of the last update intervals; groups that live equally long are one",
    ),
    entry("profile", "none", "", "nothing: each decision is its policy's"),
    entry("profile", "auto", "", "one of those below, by what the host reads and writes"),
    entry(
        "profile",
        "read-mostly",
        "",
        "greedy, read-first, weighted-queue, and a read service level of 5 ms",
    ),
    entry("profile", "mixed", "", "cost-benefit, read-first, weighted-queue"),
    entry("profile", "small-writes", "", "cost-benefit, idle, shortest-queue"),
    entry("mapping", "page", "", "a volume's entries of the map stay in DRAM"),
    entry("mapping", "cached", "", "they may leave it (with `map_memory`)"),
    entry("replica", "unit-queue", "", "the copy whose unit has the shortest queue (lab)"),
    entry("replica", "device-queue", "", "the copy whose device has the shortest queue (lab)"),
    entry("replica", "round-robin", "", "each copy in its turn (lab)"),
    entry("replica", "first", "", "always the first copy (lab)"),
];

/// Those for one decision.
pub fn of(decision: &str) -> impl Iterator<Item = &'static Entry> {
    CATALOGUE.iter().filter(move |entry| entry.decision == decision)
}

#[cfg(test)]
mod tests {
    use super::of;
    use crate::policy::profile::PROFILES;
    use crate::policy::replica::REPLICAS;
    use crate::policy::stream::STREAMS;
    use crate::policy::{ERASES, UNITS, VICTIMS, WEARS};

    #[test]
    fn every_policy_is_in_the_catalogue_in_the_order_of_its_list() {
        let lists = [
            ("victim", VICTIMS),
            ("wear", WEARS),
            ("erase", ERASES),
            ("unit", UNITS),
            ("stream", STREAMS),
            ("profile", PROFILES),
            ("mapping", crate::map::volumes::MAPPINGS),
            ("replica", REPLICAS),
        ];
        for (decision, names) in lists {
            let listed: Vec<&str> = of(decision).map(|entry| entry.name).collect();
            assert_eq!(listed, names, "{decision}");
        }
    }
}

//! Real clients against the real server: each test starts the built `weir` in a directory of its
//! own and drives it with the tools people use (libnbd, QEMU, fio, Python, file systems of the
//! running kernel), or with the small NBD client of [`nbd`] where a tool cannot do what is needed:
//! 16 writes in flight at the instant of a `kill -9`, or plain nonsense on the wire.
//!
//! The tests share nothing and use no fixed port, so they run in parallel. They need the packages
//! that `./x test` installs; a missing tool fails with its name, it does not pass as a skip. Only
//! tests that need root, a device of the machine (`/dev/fuse`) or a guest may step aside, by
//! [`tools::skipped`]: `./x test` tells which did, and in CI that is a failure.
//!
//! With `WEIR_E2E_DRIVER=threads` every `weir` runs where the system refuses io_uring, as in many
//! containers; `./x test` runs a part of the tests so.
//!
//! `WEIR_E2E_BINARY=/usr/bin/weir cargo test -p cli --test e2e` drives another binary.

mod advise;
mod atomic;
mod attach;
mod attach_zoned;
mod below;
mod chaos;
mod clients;
mod disk;
mod drivers;
mod etcd;
mod examples;
mod experiments;
mod faults;
mod fenced;
mod filesystems;
mod grow;
mod guest;
mod hostile;
mod kill;
mod modules;
mod monitoring;
mod nbd;
mod nvme;
mod nvme_auth;
mod nvme_zones;
mod offline;
mod order;
mod output;
mod packages;
mod page;
mod policies;
mod pool;
mod pool_up;
mod profile;
mod python;
mod raw;
mod refusals;
mod refuse;
mod replay;
mod restart;
mod rocksdb;
mod scratch;
mod server;
mod snapshots;
mod store;
mod store_crash;
mod store_faults;
mod store_left;
mod store_small;
mod strangers;
mod tier;
mod tls;
mod tools;
mod trace;
mod vhost;
mod volume_limits;
mod volume_tool;
mod volumes;
mod zoned;

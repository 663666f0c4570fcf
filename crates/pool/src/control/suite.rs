//! What any control plane must do, in small steps that a driver of one can run against it: the embedded plane does
//! in this crate's tests, etcd in those of whoever drives it.

use super::contract::{
    Change, Check, KEY_BYTES_MAX, Kept, LeaseId, PlaneAnswer, PlaneAsk, PlaneRefusal,
    VALUE_BYTES_MAX,
};
use flash::{MILLISECOND, SECOND};

/// A plane that is held to the contract. It holds no key at or behind `suite/`.
pub trait UnderTest {
    /// Asks and waits for the answer.
    fn ask(&mut self, ask: PlaneAsk) -> PlaneAnswer;
    /// Begins a watch; what comes is told by [`UnderTest::watched`].
    fn watch(&mut self, from: String, to: String, since: u64);
    /// All answers to the watch so far, in order.
    fn watched(&mut self) -> Vec<PlaneAnswer>;
    /// Lets time pass.
    fn pass(&mut self, ns: u64);
    /// Ends the plane and starts it anew, if it can be.
    fn restart(&mut self);
}

/// Runs every step; a step that fails panics and says what was expected.
pub fn hold(plane: &mut dyn UnderTest) {
    revisions_tell_whether_a_key_changed(plane);
    a_commit_changes_all_or_nothing(plane);
    ranges_come_in_order_and_in_parts(plane);
    what_is_out_of_bounds_is_refused(plane);
    watches_tell_of_what_comes_and_what_came(plane);
    keys_go_with_their_lease(plane);
    what_was_committed_is_there_after_a_restart(plane);
}

fn key(name: &str) -> String {
    format!("suite/{name}")
}

fn put(name: &str, value: &[u8]) -> Change {
    Change::Put { key: key(name), value: value.to_vec(), lease: None }
}

fn commit(plane: &mut dyn UnderTest, checks: &[(&str, u64)], changes: Vec<Change>) -> PlaneAnswer {
    let check = |(name, revision): &(&str, u64)| Check { key: key(name), revision: *revision };
    let checks = checks.iter().map(check).collect();
    plane.ask(PlaneAsk::Commit { checks, changes })
}

fn committed(plane: &mut dyn UnderTest, checks: &[(&str, u64)], changes: Vec<Change>) -> u64 {
    match commit(plane, checks, changes) {
        PlaneAnswer::Committed { revision } => revision,
        other => panic!("a commit whose checks hold is made: {other:?}"),
    }
}

fn get(plane: &mut dyn UnderTest, name: &str) -> Option<Kept> {
    match plane.ask(PlaneAsk::Get { key: key(name) }) {
        PlaneAnswer::Value { kept, .. } => kept,
        other => panic!("a get is answered with a value: {other:?}"),
    }
}

fn revisions_tell_whether_a_key_changed(plane: &mut dyn UnderTest) {
    assert_eq!(get(plane, "a"), None, "the suite begins with nothing");
    let first = committed(plane, &[("a", 0)], vec![put("a", b"1")]);
    assert_eq!(get(plane, "a"), Some(Kept { value: b"1".to_vec(), revision: first }));
    let second = committed(plane, &[("a", first)], vec![put("a", b"1")]);
    assert!(second > first, "the same value again is a change, too");
    committed(plane, &[], vec![put("b", b"2")]);
    assert_eq!(get(plane, "a").map(|kept| kept.revision), Some(second), "another key's change");
    committed(plane, &[("a", second)], vec![Change::Delete { key: key("a") }]);
    assert_eq!(get(plane, "a"), None);
    let again = committed(plane, &[("a", 0)], vec![put("a", b"3")]);
    assert!(again > second, "a key that is back does not have a revision that it had");
}

fn a_commit_changes_all_or_nothing(plane: &mut dyn UnderTest) {
    let a = get(plane, "a").expect("it was put");
    let changes = vec![put("a", b"x"), put("c", b"x"), Change::Delete { key: key("b") }];
    let answer = commit(plane, &[("a", a.revision), ("c", 1)], changes.clone());
    assert_eq!(answer, PlaneAnswer::NotCommitted { found: vec![Some(a.clone()), None] });
    assert_eq!(get(plane, "a"), Some(a.clone()));
    assert!(get(plane, "b").is_some() && get(plane, "c").is_none());
    let revision = committed(plane, &[("a", a.revision), ("c", 0)], changes);
    assert_eq!(get(plane, "c"), Some(Kept { value: b"x".to_vec(), revision }));
    assert_eq!(get(plane, "a").map(|kept| kept.revision), Some(revision), "one revision for all");
    assert_eq!(get(plane, "b"), None);
    // A commit that changes nothing tells whether its checks hold.
    committed(plane, &[("a", revision), ("b", 0)], Vec::new());
    let answer = commit(plane, &[("b", 1)], Vec::new());
    assert_eq!(answer, PlaneAnswer::NotCommitted { found: vec![None] });
    assert_eq!(get(plane, "a").map(|kept| kept.revision), Some(revision));
}

fn ranges_come_in_order_and_in_parts(plane: &mut dyn UnderTest) {
    let changes = (0..9).rev().map(|at| put(&format!("range/{at}"), &[at])).collect();
    committed(plane, &[], changes);
    let mut found = Vec::new();
    let mut from = key("range/");
    loop {
        let ask = PlaneAsk::Range { from: from.clone(), to: key("range/8"), limit: 3 };
        let PlaneAnswer::Values { kept, more, .. } = plane.ask(ask) else {
            panic!("a range is answered with values");
        };
        assert!(kept.len() <= 3 && (!more || !kept.is_empty()));
        found.extend(kept.iter().map(|(_, kept)| kept.value[0]));
        if !more {
            break;
        }
        from = format!("{}\0", kept.last().expect("there is more").0);
    }
    assert_eq!(found, [0, 1, 2, 3, 4, 5, 6, 7], "without the end");
    let ask = PlaneAsk::Range { from: key("z"), to: key("a"), limit: 3 };
    assert!(
        matches!(plane.ask(ask), PlaneAnswer::Values { kept, more: false, .. } if kept.is_empty())
    );
}

fn what_is_out_of_bounds_is_refused(plane: &mut dyn UnderTest) {
    let invalid = PlaneAnswer::Refused(PlaneRefusal::Invalid);
    assert_eq!(commit(plane, &[], vec![put("twice", b"1"), put("twice", b"2")]), invalid);
    assert_eq!(commit(plane, &[], vec![put("large", &vec![0; VALUE_BYTES_MAX + 1])]), invalid);
    assert_eq!(commit(plane, &[], vec![put(&"k".repeat(KEY_BYTES_MAX), b"1")]), invalid);
    committed(plane, &[], vec![put("large", &vec![7; VALUE_BYTES_MAX])]);
    assert_eq!(get(plane, "large").map(|kept| kept.value.len()), Some(VALUE_BYTES_MAX));
    committed(plane, &[], vec![Change::Delete { key: key("large") }]);
}

fn watches_tell_of_what_comes_and_what_came(plane: &mut dyn UnderTest) {
    let before = committed(plane, &[], vec![put("watch/1", b"1")]);
    let missed = committed(plane, &[], vec![put("watch/2", b"2")]);
    plane.watch(key("watch/"), key("watch0"), before);
    committed(plane, &[], vec![put("elsewhere", b"3")]);
    let last = committed(plane, &[], vec![Change::Delete { key: key("watch/1") }]);
    let mut told = plane.watched().into_iter();
    assert_eq!(told.next(), Some(PlaneAnswer::Watching));
    let mut seen = Vec::new();
    for answer in told {
        let PlaneAnswer::Changed { changes, revision } = answer else {
            panic!("a watch tells of changes: {answer:?}");
        };
        assert!(revision >= missed && revision <= last);
        seen.extend(changes.into_iter().map(|(key, kept)| (key, kept.map(|kept| kept.value))));
    }
    assert_eq!(seen, [(key("watch/2"), Some(b"2".to_vec())), (key("watch/1"), None)]);
}

fn grant(plane: &mut dyn UnderTest, ttl_ns: u64) -> LeaseId {
    match plane.ask(PlaneAsk::Grant { ttl_ns }) {
        PlaneAnswer::Lease { lease, ttl_ns: given } => {
            assert!(given >= ttl_ns, "as long as was asked, or longer");
            lease
        }
        other => panic!("a lease is granted: {other:?}"),
    }
}

fn keys_go_with_their_lease(plane: &mut dyn UnderTest) {
    let lease = grant(plane, 2 * SECOND);
    let under = |name: &str| Change::Put { key: key(name), value: vec![1], lease: Some(lease) };
    committed(plane, &[], vec![under("leased/1"), under("leased/2"), under("leased/3")]);
    committed(plane, &[], vec![put("leased/2", b"kept")]);
    for _ in 0..4 {
        plane.pass(SECOND);
        let kept = plane.ask(PlaneAsk::Keep { lease });
        assert!(matches!(kept, PlaneAnswer::Lease { .. }), "{kept:?}");
    }
    assert!(get(plane, "leased/1").is_some(), "it was kept alive for longer than its time");
    plane.pass(10 * SECOND + MILLISECOND);
    assert_eq!(get(plane, "leased/1"), None);
    assert!(get(plane, "leased/2").is_some(), "it was put anew without the lease");
    assert_eq!(plane.ask(PlaneAsk::Keep { lease }), PlaneAnswer::NoLease);
    assert_eq!(commit(plane, &[], vec![under("leased/1")]), PlaneAnswer::NoLease);
    let other = grant(plane, 2 * SECOND);
    let change = Change::Put { key: key("leased/1"), value: vec![1], lease: Some(other) };
    committed(plane, &[], vec![change]);
    assert_eq!(plane.ask(PlaneAsk::Revoke { lease: other }), PlaneAnswer::Done);
    assert_eq!(get(plane, "leased/1"), None);
}

fn what_was_committed_is_there_after_a_restart(plane: &mut dyn UnderTest) {
    let lease = grant(plane, 5 * SECOND);
    let change = Change::Put { key: key("leased/4"), value: vec![4], lease: Some(lease) };
    let revision = committed(plane, &[], vec![change, put("a", b"last")]);
    plane.restart();
    assert_eq!(get(plane, "a"), Some(Kept { value: b"last".to_vec(), revision }));
    assert!(get(plane, "leased/4").is_some(), "the lease has its time again");
    committed(plane, &[("a", revision)], vec![put("a", b"later")]);
    plane.pass(20 * SECOND);
    assert_eq!(get(plane, "leased/4"), None, "and not for ever");
}

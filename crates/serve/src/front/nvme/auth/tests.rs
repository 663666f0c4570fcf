//! A host that knows the protocol, and one that lies in each message and order.

use super::*;

const NAMES: Names<'static> = Names { host: "nqn.host", subsystem: "nqn.weir" };

fn draw(bytes: &mut [u8]) -> bool {
    bytes.fill(0x5a);
    true
}

fn keys(controller: bool) -> Keys {
    let parse = |byte, nqn| Secret::parse(&text_of(&[byte; 32], "01"), nqn).unwrap();
    let host = parse(1, NAMES.host);
    let controller = controller.then(|| parse(2, NAMES.subsystem));
    Keys::new([(NAMES.host.to_owned(), HostKeys { host, controller })].into(), draw)
}

/// An offer of these hashes and groups.
fn negotiate(hashes: &[u8], groups: &[u8]) -> Vec<u8> {
    let mut message = vec![COMMON, NEGOTIATE, 0, 0, 9, 0, 0, 1];
    let mut descriptor = [0; DESCRIPTOR_BYTES];
    (descriptor[0], descriptor[2], descriptor[3]) =
        (PROTOCOL, hashes.len() as u8, groups.len() as u8);
    descriptor[HASHES_AT..][..hashes.len()].copy_from_slice(hashes);
    descriptor[GROUPS_AT..][..groups.len()].copy_from_slice(groups);
    message.extend(descriptor);
    message
}

/// The answer of a host that has this secret to a challenge; its own challenge is of bytes 3, if it has one.
fn reply(challenge: &[u8], secret: &Secret, wants_ours: bool) -> (Vec<u8>, Option<Vec<u8>>) {
    let len = usize::from(challenge[6]);
    let hash = Hash::choose(&[challenge[8]]).unwrap();
    let (value, public) = challenge[HEAD_BYTES..].split_at(len);
    let groups = Groups::default();
    let mine: Draw = |bytes| {
        bytes.fill(0x77);
        true
    };
    let session = (!public.is_empty())
        .then(|| hash.digest(&groups.shared(challenge[9], public, mine).unwrap()));
    let tied = |value: &[u8]| match &session {
        Some(key) => hash.hmac(key, value),
        None => value.to_vec(),
    };
    let ends = Ends { transaction: 9, names: NAMES };
    let public = groups.public(challenge[9], mine).unwrap();
    let mut message = head(CHAP, REPLY, 9);
    (message[6], message[8]) = (len as u8, wants_ours.into());
    message[10..12].copy_from_slice(&(public.len() as u16).to_le_bytes());
    message[12] = 4;
    let asked = ends.host(&tied(value), u32_at(challenge, 12));
    message.extend(hash.hmac(secret.bytes(), &asked));
    message.extend(vec![3; len]);
    message.extend(public);
    let known = keys(true).hosts[NAMES.host].controller.clone().unwrap();
    let asked = ends.controller(&tied(&vec![3; len]), 4);
    let expected = wants_ours.then(|| hash.hmac(known.bytes(), &asked));
    (message, expected)
}

fn host_secret() -> Secret {
    keys(false).hosts[NAMES.host].host.clone()
}

/// A dialogue whose challenge the host has, and that.
fn challenged(keys: &Keys, hashes: &[u8], groups: &[u8]) -> (Dialogue, Vec<u8>) {
    let mut dialogue = Dialogue::default();
    dialogue.hear(&negotiate(hashes, groups), keys, NAMES);
    let told = dialogue.tell(4096, keys);
    assert_eq!((told.failed, &told.message[..2]), (None, &[CHAP, CHALLENGE][..]));
    (dialogue, told.message)
}

/// That a dialogue has failed so, and stays so.
fn fails(mut dialogue: Dialogue, keys: &Keys, failed: Failed) {
    let told = dialogue.tell(4096, keys);
    assert_eq!(told.failed, Some(failed));
    assert_eq!((&told.message[..2], told.message[7]), (&[COMMON, FAILURE1][..], failed as u8));
    dialogue.hear(&negotiate(&[1], &[0]), keys, NAMES);
    assert!(dialogue.tell(4096, keys).failed.is_some() && !dialogue.is_done());
}

#[test]
fn a_host_that_knows_its_secret_is_let_in_by_each_hash_with_and_without_a_group() {
    for (hash, group) in [(1, 0), (2, 0), (3, 0), (1, 1), (3, 2)] {
        let keys = keys(false);
        let (mut dialogue, challenge) = challenged(&keys, &[hash], &[group]);
        dialogue.hear(&reply(&challenge, &host_secret(), false).0, &keys, NAMES);
        assert!(!dialogue.is_done(), "not before it is told");
        let told = dialogue.tell(4096, &keys);
        assert_eq!((told.failed, &told.message[..2]), (None, &[CHAP, SUCCESS1][..]));
        assert_eq!((told.message[8], told.message.len()), (0, HEAD_BYTES));
        assert_eq!(usize::from(told.message[6]), Hash::choose(&[hash]).unwrap().len());
        assert!(dialogue.is_done());
        // It may do it again, and counts as before meanwhile.
        dialogue.hear(&negotiate(&[hash], &[group]), &keys, NAMES);
        assert!(dialogue.is_done() && dialogue.tell(4096, &keys).failed.is_none());
    }
}

#[test]
fn a_host_that_wants_the_controllers_answer_is_let_in_when_it_has_found_it_right() {
    for group in [0, 1] {
        let keys = keys(true);
        let (mut dialogue, challenge) = challenged(&keys, &[3, 2], &[group]);
        let (reply, expected) = reply(&challenge, &host_secret(), true);
        dialogue.hear(&reply, &keys, NAMES);
        let told = dialogue.tell(4096, &keys);
        assert_eq!((told.failed, told.message[8]), (None, 1));
        assert_eq!(Some(&told.message[HEAD_BYTES..]), expected.as_deref());
        assert!(!dialogue.is_done());
        dialogue.hear(&head(CHAP, SUCCESS2, 9), &keys, NAMES);
        assert!(dialogue.is_done());
    }
    // One that finds it wrong is not.
    let keys = keys(true);
    let (mut dialogue, challenge) = challenged(&keys, &[1], &[0]);
    dialogue.hear(&reply(&challenge, &host_secret(), true).0, &keys, NAMES);
    dialogue.tell(4096, &keys);
    dialogue.hear(&head(COMMON, 0xf1, 9), &keys, NAMES);
    fails(dialogue, &keys, Failed::Secret);
}

#[test]
fn another_secret_another_host_and_a_controller_without_a_secret_are_failures() {
    let (known, both) = (keys(false), keys(true));
    let other = Secret::parse(&text_of(&[7; 32], "01"), NAMES.host).unwrap();
    let (mut dialogue, challenge) = challenged(&known, &[1], &[0]);
    dialogue.hear(&reply(&challenge, &other, false).0, &known, NAMES);
    fails(dialogue, &known, Failed::Secret);
    let (mut dialogue, challenge) = challenged(&known, &[1], &[1]);
    let stranger = Names { host: "nqn.stranger", ..NAMES };
    dialogue.hear(&reply(&challenge, &host_secret(), false).0, &known, stranger);
    fails(dialogue, &known, Failed::Secret);
    let (mut dialogue, challenge) = challenged(&known, &[1], &[0]);
    dialogue.hear(&reply(&challenge, &host_secret(), true).0, &known, NAMES);
    fails(dialogue, &known, Failed::Secret);
    // An answer to another challenge.
    let (mut dialogue, mut challenge) = challenged(&both, &[1], &[0]);
    challenge[HEAD_BYTES] ^= 1;
    dialogue.hear(&reply(&challenge, &host_secret(), false).0, &both, NAMES);
    fails(dialogue, &both, Failed::Secret);
}

#[test]
fn an_offer_that_cannot_be_met_says_what_is_missing() {
    let keys = keys(false);
    let with = |at: usize, byte: u8| {
        let mut message = negotiate(&[1], &[0]);
        message[at] = byte;
        message
    };
    for (message, failed) in [
        (negotiate(&[9], &[0]), Failed::Hash),
        (negotiate(&[], &[0]), Failed::Hash),
        (negotiate(&[1], &[7]), Failed::Group),
        (with(8, 2), Failed::Protocol),
        (with(7, 0), Failed::Protocol),
        (with(7, 2), Failed::Payload),
        (with(6, 1), Failed::Channel),
        (with(10, 31), Failed::Payload),
        (with(11, 255), Failed::Payload),
        (negotiate(&[1], &[0])[..7].to_vec(), Failed::Payload),
        (negotiate(&[1], &[0])[..71].to_vec(), Failed::Payload),
        (Vec::new(), Failed::Payload),
        (vec![0], Failed::Payload),
    ] {
        let mut dialogue = Dialogue::default();
        dialogue.hear(&message, &keys, NAMES);
        fails(dialogue, &keys, failed);
    }
}

#[test]
fn a_reply_that_lies_about_itself_is_a_failure() {
    let keys = keys(true);
    for group in [0, 1] {
        let (_, challenge) = challenged(&keys, &[1], &[group]);
        let (good, _) = reply(&challenge, &host_secret(), true);
        let with = |at: usize, byte: u8| {
            let mut message = good.clone();
            message[at] = byte;
            message
        };
        let mut bad = vec![with(4, 8), with(6, 31), with(6, 0), with(8, 2), with(11, 255)];
        bad.extend((2..good.len()).step_by(13).map(|end| good[..end].to_vec()));
        if group == 0 {
            bad.push([&with(10, 1)[..], &[1]].concat());
        } else {
            // Values that give the secret away.
            let at = good.len() - 256;
            bad.push([&good[..at], &[0; 256]].concat());
            bad.push([&good[..at], &[0; 255], &[1]].concat());
        }
        for message in bad {
            let (mut dialogue, _) = challenged(&keys, &[1], &[group]);
            dialogue.hear(&message, &keys, NAMES);
            fails(dialogue, &keys, Failed::Payload);
        }
    }
}

#[test]
fn what_comes_out_of_turn_is_a_failure_in_every_stage() {
    let keys = keys(true);
    let order = |say: &dyn Fn(&mut Dialogue)| {
        let (mut dialogue, _) = challenged(&keys, &[1], &[0]);
        say(&mut dialogue);
        fails(dialogue, &keys, Failed::Order);
    };
    let hear = |dialogue: &mut Dialogue, message: &[u8]| dialogue.hear(message, &keys, NAMES);
    order(&|dialogue| hear(dialogue, &negotiate(&[1], &[0])));
    order(&|dialogue| hear(dialogue, &head(CHAP, SUCCESS2, 9)));
    order(&|dialogue| hear(dialogue, &head(CHAP, CHALLENGE, 9)));
    // It asks before it has said anything, or twice.
    fails(Dialogue::default(), &keys, Failed::Order);
    order(&|_| ());
    let mut early = Dialogue::default();
    hear(&mut early, &head(CHAP, REPLY, 9));
    fails(early, &keys, Failed::Order);
    let mut unasked = Dialogue::default();
    hear(&mut unasked, &negotiate(&[1], &[0]));
    hear(&mut unasked, &negotiate(&[1], &[0]));
    fails(unasked, &keys, Failed::Order);
    // There is no room for what it is told.
    let mut narrow = Dialogue::default();
    hear(&mut narrow, &negotiate(&[1], &[0]));
    assert_eq!(narrow.tell(47, &keys).failed, Some(Failed::Payload));
    // Another dialogue's end.
    let (mut dialogue, challenge) = challenged(&keys, &[1], &[0]);
    hear(&mut dialogue, &reply(&challenge, &host_secret(), true).0);
    dialogue.tell(4096, &keys);
    hear(&mut dialogue, &head(CHAP, SUCCESS2, 10));
    fails(dialogue, &keys, Failed::Secret);
}

#[test]
fn whatever_is_said_nothing_panics_and_nobody_is_let_in() {
    let keys = keys(true);
    let mut random = flash::Random::new(11);
    let kinds = [NEGOTIATE, CHALLENGE, REPLY, SUCCESS1, SUCCESS2, FAILURE1, 0xf1];
    for round in 0..20_000 {
        let mut dialogue = Dialogue::default();
        for _ in 0..random.below(5) {
            let len = random.below(200) as usize;
            let mut message: Vec<u8> = (0..len).map(|_| random.below(256) as u8).collect();
            if len > 7 && random.below(8) > 0 {
                message[..2].copy_from_slice(&[
                    random.below(2) as u8,
                    kinds[random.below(kinds.len() as u64) as usize],
                ]);
                (message[6], message[7]) = (random.below(2) as u8 * 32, random.below(3) as u8);
            }
            dialogue.hear(&message, &keys, NAMES);
            if random.below(2) == 0 {
                dialogue.tell(random.below(4097) as usize, &keys);
            }
            assert!(!dialogue.is_done(), "round {round}");
        }
    }
}

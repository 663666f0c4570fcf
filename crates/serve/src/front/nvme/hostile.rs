//! A host that sends any bytes, split anywhere, against a driver that keeps the contract of [`Front`]: what a fuzz
//! target runs. Nothing may panic, no limit may be passed, and what is finished is forgotten.
//!
//! The first byte of an input chooses the set-up, the second the sizes of the pieces; the rest is the stream.

use super::*;
use crate::front::Payload;
use crate::volume::{Failure, Request, ZoneWork};
use ftl::raw::zones::{Zone, ZoneState};
use subsystem::Host;

struct Driver {
    client: NvmeClient,
    /// Of a queue for I/O: the admin queue, whose end would end it.
    _admin: Option<Seat>,
    out: Vec<u8>,
    /// Whose data comes next in the stream.
    taking: Option<Ticket>,
    /// Requests that are not finished.
    open: Vec<(Ticket, Request)>,
    /// Those of them that have all they need.
    ready: VecDeque<Ticket>,
    over: bool,
}

/// A queue as the set-up wants it: before its first byte, or the admin queue or one for I/O, connected.
fn client(setup: u8) -> (NvmeClient, Option<Seat>) {
    let handles = Handles { count: 4, first: 1, apart: true };
    let (block_shift, zones, hosts) = (12, None, Vec::new());
    let namespace = Namespace {
        number: 1,
        blocks: 1 << 40,
        block_shift,
        zones,
        handles,
        atomic: Atomic { blocks: 4, border_every: 256, border_first: 5 },
        read_only: false,
        uuid: 1,
        hosts,
    };
    let hidden = Namespace { number: 2, hosts: vec!["nqn.other".into()], ..namespace.clone() };
    let read_only = Namespace { number: 3, read_only: true, blocks: 300, ..namespace.clone() };
    let shape = ZoneShape { size: 64, capacity: 48, open_max: 2, active_max: 3 };
    let zoned = Namespace {
        number: 4,
        blocks: 1024,
        block_shift: 13,
        zones: Some(shape),
        handles: Handles::default(),
        ..namespace.clone()
    };
    let namespaces = vec![namespace, hidden, read_only, zoned];
    let timings = (SECOND, 1);
    let subsystem = Subsystem::new("nqn.weir".into(), "7".into(), namespaces, Vec::new(), timings);
    let mut subsystem = subsystem.with_placement(1 << 20);
    if setup & 0b1000 != 0 {
        subsystem = subsystem.with_keys(keys());
    }
    let subsystem = Arc::new(subsystem);
    let mut client = NvmeClient::new(Instant(0), Arc::clone(&subsystem), None);
    if setup & 0b100 != 0 {
        return (client, None);
    }
    let digest = setup & 1 != 0;
    client.agreed = Some(Agreed { header_digest: digest, data_digest: digest, data_align: 4 });
    let host = Host { nqn: "nqn.host".into(), id: [1; 16] };
    let admin = subsystem.open(host.clone(), false).expect("the first controller");
    admin.controller.configuration.store(1, Ordering::Release);
    admin.controller.granted.store(2, Ordering::Release);
    client.entries = 32;
    if setup & 0b10 != 0 {
        let queue = subsystem.join(&host, admin.controller.id, 1).expect("a queue that is granted");
        client.seat = Some(queue);
        return (client, Some(admin));
    }
    client.seat = Some(admin);
    (client, None)
}

/// The secret of the host, of 32 bytes of zeroes, and the same of the controller.
fn keys() -> Keys {
    const TEXT: &str = "DHHC-1:00:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAACtVQoZ:";
    let secret = || Secret::parse(TEXT, "nqn.host").expect("it is one");
    let keys = HostKeys { host: secret(), controller: Some(secret()) };
    // The same numbers each time, so that an input does the same each time.
    let draw = |bytes: &mut [u8]| {
        bytes.fill(0x5a);
        true
    };
    Keys::new([("nqn.host".to_owned(), keys)].into(), draw)
}

impl Driver {
    fn event(&mut self, event: Event) {
        match event {
            Event::Opened | Event::Answered | Event::Refused(_) => {}
            Event::StartTls => panic!("there is no TLS here"),
            Event::Close => self.over = true,
            Event::Data(ticket) => {
                assert!(self.client.payload_left() > 0, "data that is none");
                self.taking = Some(ticket);
            }
            Event::Whole(ticket) | Event::Spoilt(ticket) => self.ready.push_back(ticket),
            Event::Request(ticket, request) => {
                assert!(self.open.iter().all(|(other, _)| *other != ticket), "a name twice");
                self.open.push((ticket, request));
                if self.client.payload_left() > 0 {
                    self.taking = Some(ticket);
                } else if request.kind.takes_data() {
                    assert!(self.client.asks_for_data(ticket, &mut self.out), "no data at all");
                } else {
                    self.ready.push_back(ticket);
                }
            }
        }
    }

    /// Answers those that are ready, but `left` of them.
    fn answer(&mut self, left: usize) {
        while self.ready.len() > left {
            let ticket = self.ready.pop_front().expect("there are some");
            let at = self.open.iter().position(|(open, _)| *open == ticket).expect("it is open");
            let (_, request) = self.open.swap_remove(at);
            let zone = Zone { index: 7, state: ZoneState::Full, written: 9, cut_short: true };
            let answer = match (request.kind, request.offset % 3) {
                (Kind::Zones { most, .. }, _) => Answer::Zones(&[zone][..most.min(1) as usize], 1),
                (_, 0) => Answer::Failed(Failure::Differs),
                (Kind::Zone(ZoneWork::Append { .. }), _) => Answer::Placed(request.offset),
                _ => Answer::Done,
            };
            if self.client.answer(ticket, answer, &mut self.out) {
                let data = vec![0; request.len as usize];
                self.client.after_data(ticket, &mut std::iter::once(&data[..]), &mut self.out);
            }
            self.client.finish(ticket);
        }
    }

    /// Offers bytes; says how many were taken.
    fn step(&mut self, now: Instant, bytes: &[u8]) -> usize {
        let left = self.client.payload_left() as usize;
        if left > 0 {
            let taken = left.min(bytes.len());
            self.client.payload_received(taken);
            if taken == left {
                let ticket = self.taking.take().expect("somebody's data");
                let data = vec![0; left];
                match self.client.payload_ended(&mut std::iter::once(&data[..])) {
                    Payload::Whole | Payload::Spoilt => self.ready.push_back(ticket),
                    Payload::More => {}
                }
            }
            return taken;
        }
        let received = self.client.receive(now, bytes, &mut self.out);
        assert!(received.consumed > 0 && received.consumed <= bytes.len(), "a stall, or too much");
        if let Some(event) = received.event {
            self.event(event);
        }
        received.consumed
    }

    fn check(&self) {
        let client = &self.client;
        assert!(client.held.len() <= 256, "an incomplete head is short");
        assert!(client.outstanding <= u32::from(client.entries) + EVENTS_MAX as u32);
        assert!(client.waiting.len() <= usize::from(client.entries) * 256);
        assert_eq!(client.in_flight() as usize, self.open.len());
    }
}

/// Runs one input.
pub fn run(input: &[u8]) {
    let [setup, pieces, stream @ ..] = input else { return };
    let (client, admin) = client(*setup);
    let mut driver = Driver {
        client,
        _admin: admin,
        out: Vec::new(),
        taking: None,
        open: Vec::new(),
        ready: VecDeque::new(),
        over: false,
    };
    let (mut at, mut now) = (0, 0);
    while at < stream.len() && !driver.over {
        let end = stream.len().min(at + 1 + usize::from(*pieces));
        now += 1000;
        at += driver.step(Instant(now), &stream[at..end]);
        while let Some(event) = driver.client.resume() {
            driver.event(event);
        }
        driver.check();
        driver.answer(usize::from(*setup >> 4));
        if !driver.client.accepts_more(driver.out.len()) {
            driver.out.clear();
        }
    }
    driver.client.shut_down();
    driver.answer(0);
    for (ticket, _) in std::mem::take(&mut driver.open) {
        // Nobody will bring its data any more.
        driver.client.finish(ticket);
    }
    let client = &driver.client;
    assert_eq!((client.in_flight(), client.bytes, client.due), (0, 0, 0), "all is forgotten");
}

//! NBD requests from a real socket: aligned or not, on one shard and on two.

use crate::client::{Client, READ, TRIM, WRITE, ZEROES};
use crate::{FILE, FOLDER, Folder, MEMORY, pattern, start};
use flash::Random;
use std::io::{Read, Write};

/// Random reads, writes, zeroes, trims of any alignment over two connections, compared with a
/// plain array.
fn random_requests_match_an_array(device: &str, seed: u64, steps: u32) {
    let folder = Folder::new();
    let server = start(&folder, device);
    let mut clients: Vec<Client> =
        (0..2).map(|_| Client::connect(&folder.socket(), "data").unwrap()).collect();
    let span = 3 << 20;
    let (mut random, mut model) = (Random::new(seed), vec![0u8; span]);
    for step in 0..steps {
        let client = &mut clients[random.below(2) as usize];
        let longest = [100, 5000, 300_000][random.below(3) as usize];
        let len = 1 + random.below(longest) as usize;
        let mut offset = random.below((span - len) as u64) as usize;
        let mut len = len;
        if random.chance(0.5) {
            offset &= !4095;
            len = len.next_multiple_of(4096).min(span - offset);
        }
        let at = format!("seed {seed}, step {step}: {len} bytes at {offset}");
        let range = offset..offset + len;
        match random.below(10) {
            0..4 => {
                let bytes = pattern(seed ^ u64::from(step), len);
                client.write(offset as u64, &bytes).expect(&at);
                model[range].copy_from_slice(&bytes);
            }
            4 => {
                client.simple(ZEROES, offset as u64, len as u32).expect(&at);
                model[range].fill(0);
            }
            5 => {
                // Only whole blocks are forgotten.
                client.simple(TRIM, offset as u64, len as u32).expect(&at);
                let (first, end) = (offset.next_multiple_of(4096), (offset + len) & !4095);
                model[first.min(end)..end].fill(0);
            }
            6 => client.flush().expect(&at),
            _ => assert!(client.read(offset as u64, len).expect(&at) == model[range], "{at}"),
        }
    }
    assert!(clients[0].read(0, span).unwrap() == model, "seed {seed}");
    drop(clients);
    server.shut_down().unwrap();
}

#[test]
fn requests_of_any_alignment_match_an_array_on_one_shard() {
    random_requests_match_an_array(MEMORY, 1, 400);
}

#[test]
fn requests_of_any_alignment_match_an_array_on_two_shards() {
    random_requests_match_an_array(&format!("{MEMORY}\nshards = 2"), 2, 400);
}

#[test]
fn requests_of_any_alignment_match_an_array_on_emulated_flash_in_files() {
    random_requests_match_an_array(FOLDER, 3, 200);
}

#[test]
fn requests_of_any_alignment_match_an_array_on_a_plain_file() {
    random_requests_match_an_array(FILE, 4, 200);
}

/// Many small writes into the same blocks at once: none may undo another.
#[test]
fn unaligned_writes_in_flight_together_do_not_undo_each_other() {
    for device in [MEMORY.to_string(), format!("{MEMORY}\nshards = 2"), FOLDER.to_string()] {
        let folder = Folder::new();
        let server = start(&folder, &device);
        let mut clients: Vec<Client> =
            (0..2).map(|_| Client::connect(&folder.socket(), "data").unwrap()).collect();
        let (piece, count) = (100u64, 120u64);
        let base = (1 << 20) - 6000; // across a stripe
        for round in 0..5 {
            for i in 0..count {
                let client = &mut clients[i as usize % 2];
                client.send(WRITE, base + i * piece, piece as u32).unwrap();
                client.stream.write_all(&[(round * 50 + i) as u8; 100]).unwrap();
            }
            for i in 0..count {
                assert_eq!(clients[i as usize % 2].reply().unwrap().1, 0);
            }
            let found = clients[0].read(base, (piece * count) as usize).unwrap();
            for i in 0..count as usize {
                let wanted = (round as usize * 50 + i) as u8;
                let bytes = &found[i * 100..i * 100 + 100];
                assert!(bytes.iter().all(|&byte| byte == wanted), "{device}: piece {i}");
            }
        }
        server.shut_down().unwrap();
    }
}

#[test]
fn a_deep_queue_of_reads_is_answered_whole() {
    let folder = Folder::new();
    let server = start(&folder, MEMORY);
    let mut client = Client::connect(&folder.socket(), "data").unwrap();
    let bytes = pattern(9, 1 << 20);
    client.write(0, &bytes).unwrap();
    let mut offsets = std::collections::BTreeMap::new();
    for i in 0..1000u64 {
        let offset = i * 997 % ((1 << 20) - 4096);
        offsets.insert(client.send(READ, offset, 4096).unwrap(), offset as usize);
        if i >= 100 {
            expect_read(&mut client, &mut offsets, &bytes);
        }
    }
    while !offsets.is_empty() {
        expect_read(&mut client, &mut offsets, &bytes);
    }
    server.shut_down().unwrap();
}

fn expect_read(
    client: &mut Client,
    offsets: &mut std::collections::BTreeMap<u64, usize>,
    bytes: &[u8],
) {
    let (cookie, error) = client.reply().unwrap();
    assert_eq!(error, 0);
    let offset = offsets.remove(&cookie).expect("asked for");
    let mut data = vec![0; 4096];
    client.stream.read_exact(&mut data).unwrap();
    assert!(data == bytes[offset..offset + 4096]);
}

#[test]
fn a_read_only_volume_refuses_what_changes_it() {
    let folder = Folder::new();
    let device =
        format!("[[volume]]\nname = \"gold\"\nsize = \"8MiB\"\nread_only = true\n{MEMORY}");
    let server = start(&folder, &device);
    let mut client = Client::connect(&folder.socket(), "gold").unwrap();
    assert_eq!(client.size, 8 << 20);
    assert_eq!(client.flags & 2, 2, "the client is told");
    assert_eq!(client.write(0, &[1; 4096]), Err(1));
    assert_eq!(client.simple(TRIM, 0, 4096), Err(1));
    assert_eq!(client.read(0, 4096), Ok(vec![0; 4096]));
    server.shut_down().unwrap();
}

#[test]
fn volumes_do_not_reach_into_each_other() {
    let folder = Folder::new();
    let volume = |name: &str| format!("[[volume]]\nname = \"{name}\"\nsize = \"5MiB\"\n");
    let device = format!("{}{}{MEMORY}\nshards = 2", volume("a"), volume("b"));
    let server = start(&folder, &device);
    let mut a = Client::connect(&folder.socket(), "a").unwrap();
    let mut b = Client::connect(&folder.socket(), "b").unwrap();
    a.write((5 << 20) - 5000, &[1; 5000]).unwrap();
    b.write(0, &[2; 5000]).unwrap();
    assert_eq!(a.write((5 << 20) - 10, &[3; 11]), Err(28), "beyond the end");
    assert_eq!(a.read((5 << 20) - 5000, 5000), Ok(vec![1; 5000]));
    assert_eq!(b.read(0, 5000), Ok(vec![2; 5000]));
    server.shut_down().unwrap();
}

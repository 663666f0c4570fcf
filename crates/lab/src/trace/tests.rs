//! Whole files: every format through reader and writer, Weir's own format against random records
//! and damage, packed files, and the repairs.

use super::{
    ADDRESS_MAX, Context, Format, LENGTH_MAX, Op, Options, Reader, Record, Repairs, Text,
    TraceError, Writer, weir,
};
use proptest::prelude::*;
use std::io::{Cursor, Write};

/// The record of a sound line.
pub(super) fn line(text: &Text, line: &str) -> Record {
    let record = (text.parse)(line, &mut Context::new(512, 'D'));
    record.expect("a sound line").expect("a record")
}

/// What is said of a malformed line.
pub(super) fn refused(text: &Text, line: &str) -> String {
    (text.parse)(line, &mut Context::new(512, 'D')).expect_err("a malformed line")
}

/// A few sound lines of every text format.
pub(super) const SAMPLES: [(Format, &str); 12] = [
    (Format::Msr, "128000000000000007,web,1,Write,4096,8192,515"),
    (Format::Systor, "Timestamp,Response,IOType,LUN,Offset,Size\n1.5,,W,3,0,4096"),
    (Format::Systor, "1455000000.25,0.0015,R,3,512,1024"),
    (Format::CloudPhysics, "1,5,2a,4096,2\n1,6,28,512,9"),
    (Format::Alibaba, "419,W,126703644672,4096,1577808000000046"),
    (Format::Tencent, "1538323200,12582912,8,1,1283"),
    (Format::Spc, "2,20,3584,w,0.026214"),
    (Format::Blkparse, "8,0 3 11 0.009507758 697 D WS 223490 + 8 [jbd2]"),
    (Format::Blkparse, "8,0 3 11 0.009507758 697 Q WS 223490 + 8 [jbd2]"),
    (Format::Fio, "fio version 2 iolog\na add\na read 0 512"),
    (Format::BlockRq, "0.000207,RA,0,32,mkfs.ext4"),
    (Format::Mqsim, "77000 4 8 16 0"),
];

fn read(bytes: &[u8], options: &Options) -> Result<(Vec<Record>, Repairs), TraceError> {
    let mut reader = Reader::from_read("trace", Cursor::new(bytes.to_vec()), options)?;
    let records = reader.by_ref().collect::<Result<_, _>>()?;
    Ok((records, reader.repairs().clone()))
}

fn text(bytes: &str, options: &Options) -> Result<(Vec<Record>, Repairs), String> {
    read(bytes.as_bytes(), options).map_err(|error| error.to_string())
}

fn encoded(records: &[Record]) -> Vec<u8> {
    let mut encoder = weir::Encoder::new(Vec::new()).unwrap();
    records.iter().for_each(|record| encoder.write(record).unwrap());
    encoder.finish().unwrap()
}

const WRITE: Record = Record {
    time_ns: 0,
    op: Op::Write,
    fua: false,
    offset: 4096,
    length: 8192,
    volume: 4,
    response_ns: None,
};

#[test]
fn time_begins_with_the_first_record_and_blank_lines_and_comments_are_nothing() {
    let (records, repairs) =
        text("# made by hand\n77000 4 8 16 0\n\n78000 4 8 16 0\r\n", &Options::default()).unwrap();
    assert_eq!(records, [WRITE, Record { time_ns: 1000, ..WRITE }]);
    assert_eq!(repairs, Repairs::default());
}

#[test]
fn a_malformed_line_is_an_error_with_its_place_or_skipped_and_counted() {
    let bytes = "77000 4 8 16 0\n78000 4 8 16 9\n79000 4 8 16 0\n";
    let error = text(bytes, &Options::default()).unwrap_err();
    assert!(error.starts_with("trace: line 2: ") && error.contains("78000 4 8 16 9"), "{error}");
    let options = Options { skip_bad: true, ..Options::default() };
    let (records, repairs) = text(bytes, &options).unwrap();
    assert_eq!((records.len(), repairs.skipped), (2, 1));
    assert_eq!(repairs.first_skipped, Some(error));
}

#[test]
fn time_that_runs_backwards_is_an_error_or_moved_up_and_counted() {
    let bytes = "77000 4 8 16 0\n76000 4 8 16 0\n79000 4 8 16 0\n";
    let error = text(bytes, &Options::default()).unwrap_err();
    assert!(error.contains("line 2") && error.contains("--repair time"), "{error}");
    let options = Options { repair_time: true, ..Options::default() };
    let (records, repairs) = text(bytes, &options).unwrap();
    assert_eq!(records.iter().map(|record| record.time_ns).collect::<Vec<_>>(), [0, 0, 2000]);
    assert_eq!((repairs.times_moved, repairs.skipped), (1, 0));
}

#[test]
fn records_that_no_device_could_take_are_errors() {
    for (line, why) in [
        ("1 0 8 0 0", "no bytes"),
        ("1 0 8 9999999999 0", "longer"),
        ("1 0 36028797018963967 16 0", "beyond any device"),
        ("1 0 9223372036854775808 16 0", "beyond any device"),
    ] {
        let options = Options { format: Some(Format::Mqsim), ..Options::default() };
        let error = text(line, &options).unwrap_err();
        assert!(error.contains("line 1") && error.contains(why), "{line}: {error}");
    }
}

#[test]
fn other_sectors_are_larger() {
    let options = Options { sector_bytes: 4096, ..Options::default() };
    let (records, _) = text("77000 4 8 16 0\n", &options).unwrap();
    assert_eq!((records[0].offset, records[0].length), (8 * 4096, 16 * 4096));
}

#[test]
fn a_file_of_no_format_is_told_and_an_empty_one_too() {
    let error = text("hello\n", &Options::default()).unwrap_err();
    assert!(error.contains("hello") && error.contains("--format"), "{error}");
    assert!(text("", &Options::default()).is_err());
    let options = Options { format: Some(Format::Spc), ..Options::default() };
    assert_eq!(text("", &options).unwrap().0, []);
}

#[test]
fn packed_files_are_read_and_a_cut_one_is_told() {
    let bytes = "77000 4 8 16 0\n78000 4 8 16 0\n";
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(bytes.as_bytes()).unwrap();
    let gzip = gzip.finish().unwrap();
    let zstd = zstd::encode_all(bytes.as_bytes(), 1).unwrap();
    let plain = read(bytes.as_bytes(), &Options::default()).unwrap();
    assert_eq!(read(&gzip, &Options::default()).unwrap(), plain);
    assert_eq!(read(&zstd, &Options::default()).unwrap(), plain);
    let options = Options { format: Some(Format::Mqsim), ..Options::default() };
    assert!(read(&gzip[..gzip.len() - 5], &options).is_err());
    assert!(read(&zstd[..zstd.len() - 5], &options).is_err());
}

#[test]
fn every_format_that_is_written_reads_back() {
    let folder = std::env::temp_dir().join(format!("weir-trace-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let mut records = [WRITE; 3];
    // Whole seconds, because one format knows no other time.
    records[1] = Record { time_ns: 5_000_000_000, op: Op::Read, offset: 1 << 40, ..WRITE };
    records[2] = Record { time_ns: 6_000_000_000, length: 512, ..WRITE };
    for format in Format::ALL.into_iter().filter(|format| Writer::can_write(*format)) {
        for packed in ["", ".gz", ".zst"] {
            let path = folder.join(format!("{}{packed}", format.name()));
            let mut writer = Writer::create(&path, format).unwrap();
            records.iter().for_each(|record| writer.write(record).unwrap());
            assert!(!path.exists(), "not there before it is complete");
            assert_eq!(writer.finish().unwrap(), 3);
            let mut reader = Reader::open(&path, &Options::default()).unwrap();
            assert_eq!(reader.format(), format);
            let found: Vec<Record> = reader.by_ref().map(Result::unwrap).collect();
            let expected = records.iter().zip(&found).map(|(record, found)| Record {
                // Some formats have no volumes, number them anew, or always have a response.
                volume: found.volume,
                response_ns: found.response_ns,
                ..*record
            });
            assert_eq!(found, expected.collect::<Vec<_>>(), "{}", format.name());
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn what_a_format_cannot_hold_is_told() {
    let path = std::env::temp_dir().join(format!("weir-unfit-{}", std::process::id()));
    let mut writer = Writer::create(&path, Format::Mqsim).unwrap();
    let trim = Record { op: Op::Trim, ..WRITE };
    let error = writer.write(&trim).unwrap_err().to_string();
    assert!(error.contains("mqsim") && error.contains("--drop-unfit"), "{error}");
    let odd = Record { offset: 1, ..WRITE };
    assert!(writer.write(&odd).unwrap_err().to_string().contains("sectors"));
    drop(writer);
    assert!(!path.with_extension("partial").exists(), "what is not complete goes away");
    assert!(matches!(
        Writer::create(&path, Format::Blkparse),
        Err(super::WriteError::ReadOnly { .. })
    ));
}

#[test]
fn weirs_format_is_as_documented() {
    let records = [
        WRITE,
        Record { time_ns: 300, offset: 12288, ..WRITE },
        Record {
            time_ns: 301,
            op: Op::Flush,
            fua: false,
            offset: 0,
            length: 0,
            volume: 4,
            response_ns: Some(5),
        },
    ];
    let bytes = encoded(&records);
    let payload = [
        // Write; volume and length follow: +0 ns, volume 4, +8 sectors, 16 sectors.
        0x31, 0, 4, 16, 16, //
        // Write, where the last one ended: +300 ns.
        0x01, 0xac, 0x02, 0, //
        // Flush; response and length follow: +1 ns, -40 sectors, no length, 5 ns.
        0x2b, 1, 79, 0, 5,
    ];
    assert_eq!(&bytes[..8], b"WeirTrc\x01");
    assert_eq!(bytes[8..16], [14, 0, 0, 0, 3, 0, 0, 0]);
    assert_eq!(bytes[16..30], payload);
    assert_eq!(bytes[30..34], flash::crc(&bytes[8..30]).to_le_bytes());
    assert_eq!(bytes[34..42], [0; 8]);
    assert_eq!(bytes[42..], flash::crc(&[0; 8]).to_le_bytes());
    assert_eq!(read(&bytes, &Options::default()).unwrap().0, records);
}

#[test]
fn a_damaged_or_cut_file_of_weirs_format_is_never_misread() {
    let records: Vec<Record> =
        (0..10_000).map(|i| Record { time_ns: i * 7, offset: i * i * 512, ..WRITE }).collect();
    let bytes = encoded(&records);
    let options = Options { skip_bad: true, ..Options::default() };
    for end in (9..bytes.len()).step_by(997) {
        let (found, repairs) = read(&bytes[..end], &options).unwrap();
        assert_eq!(repairs.skipped, 1, "a file of {end} bytes");
        assert_eq!(found, records[..found.len()]);
        assert!(read(&bytes[..end], &Options::default()).is_err());
    }
    for at in (8..bytes.len()).step_by(491) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        let error = read(&damaged, &Options::default());
        assert!(error.is_err(), "byte {at}");
        let (found, repairs) = read(&damaged, &options).unwrap();
        assert!(repairs.skipped > 0 && found.len() < records.len());
    }
    let mut version = bytes.clone();
    version[7] = 2;
    let options = Options { format: Some(Format::Weir), ..Options::default() };
    assert!(read(&version, &options).unwrap_err().to_string().contains("version 2"));
}

/// What every record of a reader must be.
fn verify(record: &Record, last_ns: Option<u64>) {
    assert!(record.time_ns >= last_ns.unwrap_or(0) && (last_ns.is_some() || record.time_ns == 0));
    assert!(record.offset + record.length <= ADDRESS_MAX);
    match record.op {
        Op::Read | Op::Write => assert!((1..=LENGTH_MAX).contains(&record.length)),
        Op::Trim => assert!(record.length > 0),
        Op::Flush => assert_eq!((record.offset, record.length), (0, 0)),
    }
}

#[test]
fn no_change_of_sound_bytes_makes_a_reader_panic_or_break_its_promises() {
    let seed = std::env::var("LAB_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    println!("seed {seed}");
    let mut random = flash::Random::new(seed);
    let records: Vec<Record> =
        (0..9).map(|i| Record { time_ns: i * 7, offset: i * i * 512, ..WRITE }).collect();
    let mut sound: Vec<Vec<u8>> =
        SAMPLES.iter().map(|(_, text)| format!("{text}\n").repeat(3).into_bytes()).collect();
    sound.push(encoded(&records));
    for _ in 0..20_000 {
        let mut bytes = sound[random.below(sound.len() as u64) as usize].clone();
        for _ in 0..=random.below(4) {
            let at = random.below(bytes.len() as u64) as usize;
            match random.below(3) {
                0 => bytes[at] = b"0123456789,. \n-RWDFN\xff\x00"[random.below(22) as usize],
                1 => drop(bytes.remove(at)),
                _ => bytes.insert(at, b"0129,. \nW\xff"[random.below(10) as usize]),
            }
            if bytes.is_empty() {
                break;
            }
        }
        let pick = random.below(2 * Format::ALL.len() as u64) as usize;
        let options = Options {
            format: Format::ALL.get(pick).copied(),
            skip_bad: random.chance(0.5),
            repair_time: random.chance(0.5),
            ..Options::default()
        };
        let Ok(reader) = Reader::from_read("trace", Cursor::new(bytes), &options) else { continue };
        let mut last_ns = None;
        for record in reader.filter_map(Result::ok) {
            verify(&record, last_ns);
            last_ns = Some(record.time_ns);
        }
    }
}

fn any_record() -> impl Strategy<Value = Record> {
    let op = prop_oneof![Just(Op::Read), Just(Op::Write), Just(Op::Trim), Just(Op::Flush)];
    let unit = prop_oneof![Just(1u64), Just(512), Just(4096)];
    let offset = prop_oneof![0..1u64 << 20, 0..ADDRESS_MAX - (1 << 40)];
    let length = prop_oneof![1..200u64, 1..LENGTH_MAX / 4096];
    let response = proptest::option::of(any::<u64>());
    let time = prop_oneof![0..1_000_000u64, 0..1u64 << 40];
    (op, unit, offset, length, (time, 0..3u32, any::<u32>()), any::<bool>(), response).prop_map(
        |(op, unit, offset, length, (time_ns, few, many), fua, response_ns)| {
            let (offset, length) = (offset / unit * unit, length * unit);
            let volume = if few < 2 { few } else { many };
            let fua = fua && matches!(op, Op::Write | Op::Trim);
            match op {
                Op::Flush => Record { time_ns, op, fua, offset: 0, length: 0, volume, response_ns },
                _ => Record { time_ns, op, fua, offset, length, volume, response_ns },
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Times are drawn as gaps, so that they are in order.
    #[test]
    fn weirs_format_gives_back_what_was_written(
        mut records in proptest::collection::vec(any_record(), 1..6000),
    ) {
        let mut time_ns = 0;
        for record in &mut records {
            time_ns += record.time_ns;
            record.time_ns = time_ns;
        }
        records[0].time_ns = 0;
        let found = read(&encoded(&records), &Options::default()).map_err(|error| {
            TestCaseError::fail(error.to_string())
        })?;
        prop_assert_eq!(found.0, records);
    }

    #[test]
    fn no_bytes_make_a_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        for format in Format::ALL {
            let options = Options { format: Some(format), skip_bad: true, ..Options::default() };
            let _ = read(&bytes, &options);
        }
    }
}

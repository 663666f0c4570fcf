//! CloudPhysics CSV, one virtual disk, with a header line: `version, time, op, size, LBN`. Time
//! counts microseconds, `op` is the SCSI command in hexadecimal, size counts bytes and LBN sectors.
//! Commands that are neither reads, writes, unmaps nor flushes are passed over.

use super::fields::{commas, sector};
use super::{Context, Op, Reason, Record, Text};
use flash::MICROSECOND;

pub(super) const TEXT: Text =
    Text { parse, header: Some("version,time,op,size,LBN"), print: Some(print) };

fn parse(line: &str, context: &mut Context) -> Result<Option<Record>, Reason> {
    if line.starts_with(|first: char| first.is_ascii_alphabetic()) {
        return Ok(None);
    }
    let mut fields = commas(line);
    fields.number("version")?;
    let time_ns = fields.time("time", MICROSECOND)?;
    let op = fields.text("op")?;
    let length = fields.number("size")?;
    let block = fields.number("LBN")?;
    fields.end()?;
    let code = u8::from_str_radix(op.trim_start_matches("0x"), 16)
        .map_err(|_| format!("the op is {op:?}: must be a SCSI command in hexadecimal, as 2a"))?;
    let op = match code {
        0x08 | 0x28 | 0xa8 | 0x88 => Op::Read,
        0x0a | 0x2a | 0xaa | 0x8a => Op::Write,
        0x42 => Op::Trim,
        0x35 | 0x91 => Op::Flush,
        _ => return Ok(None),
    };
    let (offset, _) = context.sectors(block, 0)?;
    Ok(Some(Record { time_ns, op, fua: false, offset, length, volume: 0, response_ns: None }))
}

fn print(record: &Record, _: &mut Context) -> Result<String, Reason> {
    let op = match record.op {
        Op::Read => "28",
        Op::Write => "2a",
        Op::Trim => "42",
        Op::Flush => "35",
    };
    let sector = sector(record.offset)?;
    Ok(format!("1,{},{op},{},{sector}", record.time_ns / MICROSECOND, record.length))
}

#[cfg(test)]
mod tests {
    use super::TEXT;
    use crate::trace::tests::{line, refused};
    use crate::trace::{Op, Record};

    #[test]
    fn a_line_is_a_record_and_other_commands_are_none() {
        let expected = Record {
            time_ns: 5_000,
            op: Op::Write,
            fua: false,
            offset: 1024,
            length: 4096,
            volume: 0,
            response_ns: None,
        };
        assert_eq!(line(&TEXT, "1,5,2a,4096,2"), expected);
        assert_eq!(line(&TEXT, "1, 5, 0x28, 4096, 2"), Record { op: Op::Read, ..expected });
        let mut context = crate::trace::Context::new(512, 'D');
        assert_eq!((TEXT.parse)("1,5,12,36,0", &mut context), Ok(None));
        assert_eq!((TEXT.parse)("version,time,op,size,LBN", &mut context), Ok(None));
    }

    #[test]
    fn malformed_lines_name_the_field() {
        assert!(refused(&TEXT, "1,5,zz,4096,2").contains("SCSI"));
        assert!(refused(&TEXT, "1,5,28,4096").contains("LBN"));
        assert!(refused(&TEXT, "1,5,28,4096,18446744073709551615").contains("beyond"));
    }
}

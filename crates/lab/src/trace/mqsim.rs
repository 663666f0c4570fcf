//! MQSim's and DiskSim's ASCII, words between spaces:
//! `time in ns, device, LBA in sectors, sectors, 0 write or 1 read`.

use super::fields::{sector, words};
use super::{Context, Op, Reason, Record, Text};

pub(super) const TEXT: Text = Text { parse, header: None, print: Some(print) };

fn parse(line: &str, context: &mut Context) -> Result<Option<Record>, Reason> {
    let mut fields = words(line);
    let time_ns = fields.number("time")?;
    let volume = fields.volume("device")?;
    let sector = fields.number("LBA")?;
    let sectors = fields.number("number of sectors")?;
    let op = match fields.text("type")? {
        "0" => Op::Write,
        "1" => Op::Read,
        other => return Err(format!("the type is {other:?}: must be 0 for write or 1 for read")),
    };
    fields.end()?;
    let (offset, length) = context.sectors(sector, sectors)?;
    Ok(Some(Record { time_ns, op, fua: false, offset, length, volume, response_ns: None }))
}

fn print(record: &Record, _: &mut Context) -> Result<String, Reason> {
    let op = match record.op {
        Op::Read => 1,
        Op::Write => 0,
        Op::Trim | Op::Flush => return Err("is neither a read nor a write".into()),
    };
    let (sector, sectors) = (sector(record.offset)?, sector(record.length)?);
    Ok(format!("{} {} {sector} {sectors} {op}", record.time_ns, record.volume))
}

#[cfg(test)]
mod tests {
    use super::TEXT;
    use crate::trace::tests::{line, refused};
    use crate::trace::{Op, Record};

    #[test]
    fn a_line_is_a_record() {
        let expected = Record {
            time_ns: 77_000,
            op: Op::Write,
            fua: false,
            offset: 4096,
            length: 8192,
            volume: 4,
            response_ns: None,
        };
        assert_eq!(line(&TEXT, "77000 4 8 16 0"), expected);
        assert_eq!(line(&TEXT, " 77000\t4 8 16 1 "), Record { op: Op::Read, ..expected });
    }

    #[test]
    fn malformed_lines_name_the_field() {
        assert!(refused(&TEXT, "77000 4 8 16 2").contains("type"));
        assert!(refused(&TEXT, "77000 4 8 16 1 9").contains("too many"));
        assert!(refused(&TEXT, "77000.5 4 8 16 1").contains("time"));
    }
}

//! Tencent CBS CSV, sectors and whole seconds: `time, offset, size, 0 read or 1 write, volume`.
//! Requests of one second have the same time.

use super::fields::{commas, sector};
use super::{Context, Op, Reason, Record, Text};
use flash::SECOND;

pub(super) const TEXT: Text = Text { parse, header: None, print: Some(print) };

fn parse(line: &str, context: &mut Context) -> Result<Option<Record>, Reason> {
    if line.starts_with("Timestamp") {
        return Ok(None);
    }
    let mut fields = commas(line);
    let time_ns = fields.time("time", SECOND)?;
    let offset = fields.number("offset")?;
    let length = fields.number("size")?;
    let op = match fields.text("type")? {
        "0" => Op::Read,
        "1" => Op::Write,
        other => return Err(format!("the type is {other:?}: must be 0 for read or 1 for write")),
    };
    let volume = fields.volume("volume")?;
    fields.end()?;
    let (offset, length) = context.sectors(offset, length)?;
    Ok(Some(Record { time_ns, op, fua: false, offset, length, volume, response_ns: None }))
}

fn print(record: &Record, _: &mut Context) -> Result<String, Reason> {
    let op = match record.op {
        Op::Read => 0,
        Op::Write => 1,
        Op::Trim | Op::Flush => return Err("is neither a read nor a write".into()),
    };
    let (offset, length) = (sector(record.offset)?, sector(record.length)?);
    Ok(format!("{},{offset},{length},{op},{}", record.time_ns / SECOND, record.volume))
}

#[cfg(test)]
mod tests {
    use super::TEXT;
    use crate::trace::tests::{line, refused};
    use crate::trace::{Op, Record};

    #[test]
    fn a_line_is_a_record() {
        let expected = Record {
            time_ns: 1_538_323_200_000_000_000,
            op: Op::Write,
            fua: false,
            offset: 6_442_450_944,
            length: 4096,
            volume: 1283,
            response_ns: None,
        };
        assert_eq!(line(&TEXT, "1538323200,12582912,8,1,1283"), expected);
    }

    #[test]
    fn malformed_lines_name_the_field() {
        assert!(refused(&TEXT, "1538323200,12582912,8,2,1283").contains("type"));
        assert!(refused(&TEXT, "1538323200,12582912,8,1").contains("volume"));
        assert!(refused(&TEXT, "x,12582912,8,1,1").contains("time"));
    }
}

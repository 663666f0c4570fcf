//! SPC, as of the UMass repository: `ASU, LBA in sectors, size in bytes, R or W, time in seconds`.
//! Further fields, which the specification allows, are passed over.

use super::fields::{commas, read_or_write, seconds, sector};
use super::{Context, Op, Reason, Record, Text};
use flash::SECOND;

pub(super) const TEXT: Text = Text { parse, header: None, print: Some(print) };

fn parse(line: &str, context: &mut Context) -> Result<Option<Record>, Reason> {
    let mut fields = commas(line);
    let volume = fields.volume("ASU")?;
    let sector = fields.number("LBA")?;
    let length = fields.number("size")?;
    let op = read_or_write(fields.text("operation")?)?;
    let time_ns = fields.time("time", SECOND)?;
    let (offset, _) = context.sectors(sector, 0)?;
    Ok(Some(Record { time_ns, op, fua: false, offset, length, volume, response_ns: None }))
}

fn print(record: &Record, _: &mut Context) -> Result<String, Reason> {
    let op = match record.op {
        Op::Read => 'R',
        Op::Write => 'W',
        Op::Trim | Op::Flush => return Err("is neither a read nor a write".into()),
    };
    let (sector, time) = (sector(record.offset)?, seconds(record.time_ns));
    Ok(format!("{},{sector},{},{op},{time}", record.volume, record.length))
}

#[cfg(test)]
mod tests {
    use super::TEXT;
    use crate::trace::tests::{line, refused};
    use crate::trace::{Op, Record};

    #[test]
    fn a_line_is_a_record() {
        let expected = Record {
            time_ns: 26_214_000,
            op: Op::Write,
            fua: false,
            offset: 10_240,
            length: 3584,
            volume: 2,
            response_ns: None,
        };
        assert_eq!(line(&TEXT, "2,20,3584,w,0.026214"), expected);
        assert_eq!(line(&TEXT, "2, 20, 3584, W, 0.026214, 7, more"), expected);
    }

    #[test]
    fn malformed_lines_name_the_field() {
        assert!(refused(&TEXT, "2,20,3584,q,0.02").contains("operation"));
        assert!(refused(&TEXT, "2,20,3584,w").contains("time"));
        assert!(refused(&TEXT, "").contains("ASU"));
    }
}

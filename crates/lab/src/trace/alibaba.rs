//! Alibaba block traces CSV, bytes and microseconds: `device, R or W, offset, length, time`.

use super::fields::{commas, read_or_write};
use super::{Context, Op, Reason, Record, Text};
use flash::MICROSECOND;

pub(super) const TEXT: Text = Text { parse, header: None, print: Some(print) };

fn parse(line: &str, _: &mut Context) -> Result<Option<Record>, Reason> {
    if line.starts_with("device") {
        return Ok(None);
    }
    let mut fields = commas(line);
    let volume = fields.volume("device")?;
    let op = read_or_write(fields.text("operation")?)?;
    let offset = fields.number("offset")?;
    let length = fields.number("length")?;
    let time_ns = time_of(fields.number("time")?)?;
    fields.end()?;
    Ok(Some(Record { time_ns, op, fua: false, offset, length, volume, response_ns: None }))
}

fn time_of(microseconds: u64) -> Result<u64, Reason> {
    (microseconds.checked_mul(MICROSECOND))
        .ok_or_else(|| format!("the time is {microseconds} us: beyond 584 years"))
}

fn print(record: &Record, _: &mut Context) -> Result<String, Reason> {
    let op = match record.op {
        Op::Read => 'R',
        Op::Write => 'W',
        Op::Trim | Op::Flush => return Err("is neither a read nor a write".into()),
    };
    let Record { offset, length, volume, .. } = record;
    Ok(format!("{volume},{op},{offset},{length},{}", record.time_ns / MICROSECOND))
}

#[cfg(test)]
mod tests {
    use super::TEXT;
    use crate::trace::tests::{line, refused};
    use crate::trace::{Op, Record};

    #[test]
    fn a_line_is_a_record() {
        let expected = Record {
            time_ns: 1_577_808_000_000_046_000,
            op: Op::Write,
            fua: false,
            offset: 126_703_644_672,
            length: 4096,
            volume: 419,
            response_ns: None,
        };
        assert_eq!(line(&TEXT, "419,W,126703644672,4096,1577808000000046"), expected);
    }

    #[test]
    fn malformed_lines_name_the_field() {
        assert!(refused(&TEXT, "419,X,0,4096,1").contains("operation"));
        assert!(refused(&TEXT, "419,W,0,4096,1.5").contains("time"));
        assert!(refused(&TEXT, "419,W,0,4096,18446744073709551615").contains("584"));
        assert!(refused(&TEXT, "4294967296,W,0,4096,1").contains("32 bits"));
    }
}

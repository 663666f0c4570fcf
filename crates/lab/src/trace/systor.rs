//! SYSTOR '17 CSV, bytes and seconds with a fraction, with a header line:
//! `Timestamp,Response,IOType,LUN,Offset,Size`. An empty response is one that was not recorded.

use super::fields::{commas, read_or_write, seconds, time};
use super::{Context, Op, Reason, Record, Text};
use flash::SECOND;

pub(super) const TEXT: Text =
    Text { parse, header: Some("Timestamp,Response,IOType,LUN,Offset,Size"), print: Some(print) };

fn parse(line: &str, _: &mut Context) -> Result<Option<Record>, Reason> {
    if line.starts_with("Timestamp") {
        return Ok(None);
    }
    let mut fields = commas(line);
    let time_ns = fields.time("time", SECOND)?;
    let response = fields.text("response time")?;
    let op = read_or_write(fields.text("operation")?)?;
    let volume = fields.volume("LUN")?;
    let offset = fields.number("offset")?;
    let length = fields.number("size")?;
    fields.end()?;
    let response_ns = match response {
        "" => None,
        text => Some(time(text, SECOND).ok_or_else(|| {
            format!("the response time is {text:?}: must be a number of seconds or empty")
        })?),
    };
    Ok(Some(Record { time_ns, op, fua: false, offset, length, volume, response_ns }))
}

fn print(record: &Record, _: &mut Context) -> Result<String, Reason> {
    let op = match record.op {
        Op::Read => 'R',
        Op::Write => 'W',
        Op::Trim | Op::Flush => return Err("is neither a read nor a write".into()),
    };
    let Record { offset, length, volume, .. } = record;
    let response = record.response_ns.map(seconds).unwrap_or_default();
    Ok(format!("{},{response},{op},{volume},{offset},{length}", seconds(record.time_ns)))
}

#[cfg(test)]
mod tests {
    use super::TEXT;
    use crate::trace::tests::{line, refused};
    use crate::trace::{Op, Record};

    #[test]
    fn a_line_is_a_record_and_the_header_is_none() {
        let mut expected = Record {
            time_ns: 1_455_000_000_250_000_000,
            op: Op::Read,
            fua: false,
            offset: 512,
            length: 1024,
            volume: 3,
            response_ns: Some(1_500_000),
        };
        assert_eq!(line(&TEXT, "1455000000.25,0.0015,R,3,512,1024"), expected);
        expected.response_ns = None;
        assert_eq!(line(&TEXT, "1455000000.25,,R,3,512,1024"), expected);
        let mut context = crate::trace::Context::new(512, 'D');
        let header = (TEXT.parse)("Timestamp,Response,IOType,LUN,Offset,Size", &mut context);
        assert_eq!(header, Ok(None));
    }

    #[test]
    fn malformed_lines_name_the_field() {
        assert!(refused(&TEXT, "1.0,x,R,3,512,1024").contains("response time"));
        assert!(refused(&TEXT, "1.0,,R,99999999999,512,1024").contains("32 bits"));
        assert!(refused(&TEXT, "1.0,,R,3,512").contains("size"));
    }
}

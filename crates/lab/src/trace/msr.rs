//! MSR Cambridge CSV, bytes and Windows file times:
//! `time in 100 ns since 1601, host, disk, Read or Write, offset, size, response time in 100 ns`.
//! A volume is a host and a disk, named `host.disk`.

use super::fields::{commas, read_or_write};
use super::{Context, Op, Reason, Record, Text};

pub(super) const TEXT: Text = Text { parse, header: None, print: Some(print) };

fn parse(line: &str, context: &mut Context) -> Result<Option<Record>, Reason> {
    let mut fields = commas(line);
    let time_ns = fields.time("time", 100)?;
    let host = fields.text("host")?;
    let disk = fields.number("disk")?;
    let op = read_or_write(fields.text("operation")?)?;
    let offset = fields.number("offset")?;
    let length = fields.number("size")?;
    let response_ns = Some(fields.time("response time", 100)?);
    fields.end()?;
    let volume = context.names.number(&format!("{host}.{disk}"))?;
    Ok(Some(Record { time_ns, op, fua: false, offset, length, volume, response_ns }))
}

fn print(record: &Record, _: &mut Context) -> Result<String, Reason> {
    let op = match record.op {
        Op::Read => "Read",
        Op::Write => "Write",
        Op::Trim | Op::Flush => return Err("is neither a read nor a write".into()),
    };
    let Record { offset, length, volume, .. } = record;
    let response = record.response_ns.unwrap_or(0) / 100;
    Ok(format!("{},weir,{volume},{op},{offset},{length},{response}", record.time_ns / 100))
}

#[cfg(test)]
mod tests {
    use super::TEXT;
    use crate::trace::tests::{line, refused};
    use crate::trace::{Op, Record};

    #[test]
    fn a_line_is_a_record_and_volumes_are_hosts_and_disks() {
        let expected = Record {
            time_ns: 12_800_000_000_000_000_700,
            op: Op::Write,
            fua: false,
            offset: 4096,
            length: 8192,
            volume: 0,
            response_ns: Some(51_500),
        };
        assert_eq!(line(&TEXT, "128000000000000007,web,1,Write,4096,8192,515"), expected);
        let read = line(&TEXT, "128000000000000007,web,1,read,4096,8192,515");
        assert_eq!(read, Record { op: Op::Read, ..expected });
    }

    #[test]
    fn malformed_lines_name_the_field() {
        assert!(refused(&TEXT, "1,web,1,Write,4096,8192").contains("response time"));
        assert!(refused(&TEXT, "1,web,1,Trim,4096,8192,5").contains("operation"));
        assert!(refused(&TEXT, "1,web,x,Read,4096,8192,5").contains("disk"));
        assert!(refused(&TEXT, "1,web,1,Read,4096,8192,5,6").contains("too many"));
        assert!(refused(&TEXT, "999999999999999999999,web,1,Read,0,1,5").contains("time"));
    }
}

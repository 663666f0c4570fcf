//! fio's I/O log. Version 2: `file action [offset length]`, where `wait` lets so many microseconds
//! go by; version 3: `time in us, file, action [offset length]`. The first line tells the version.
//! A volume is a file, by its name; `add`, `open` and `close` are passed over.

use super::fields::{number, words};
use super::{Context, Op, Reason, Record, Text};
use flash::MICROSECOND;

pub(super) const TEXT: Text = Text { parse, header: Some(HEADER), print: Some(print) };

const HEADER: &str = "fio version 3 iolog";

fn parse(line: &str, context: &mut Context) -> Result<Option<Record>, Reason> {
    if let Some(version) = line.strip_prefix("fio version ") {
        context.version = match version {
            "2 iolog" => 2,
            "3 iolog" => 3,
            _ => return Err("must be version 2 or 3".into()),
        };
        return Ok(None);
    }
    let mut fields = words(line);
    match context.version {
        2 => {}
        3 => context.clock_ns = fields.time("time", MICROSECOND)?,
        _ => return Err("the first line must be \"fio version 3 iolog\", or of version 2".into()),
    }
    let file = fields.text("file")?;
    let action = fields.text("action")?;
    let offset = fields.optional();
    let length = fields.optional();
    fields.end()?;
    let op = match action {
        "add" | "open" | "close" => return Ok(None),
        "wait" => {
            let text = offset.ok_or("ends before the time to wait")?;
            let wait = number(text, "time to wait")?.checked_mul(MICROSECOND);
            let later = wait.and_then(|wait| context.clock_ns.checked_add(wait));
            context.clock_ns = later.ok_or("waits beyond 584 years")?;
            return Ok(None);
        }
        "read" => Op::Read,
        "write" => Op::Write,
        "trim" => Op::Trim,
        "sync" | "datasync" | "sync_file_range" | "syncfs" => Op::Flush,
        _ => return Err(format!("the action is {action:?}: must be read, write, trim or sync")),
    };
    let (offset, length) = match (op, offset, length) {
        (Op::Flush, ..) => (0, 0),
        (_, Some(offset), Some(length)) => (number(offset, "offset")?, number(length, "length")?),
        _ => return Err("ends before the offset and the length".into()),
    };
    let volume = context.names.number(file)?;
    let time_ns = context.clock_ns;
    Ok(Some(Record { time_ns, op, fua: false, offset, length, volume, response_ns: None }))
}

fn print(record: &Record, context: &mut Context) -> Result<String, Reason> {
    let action = match record.op {
        Op::Read => "read",
        Op::Write => "write",
        Op::Trim => "trim",
        Op::Flush => "sync",
    };
    let Record { offset, length, .. } = record;
    let (file, time) = (format!("volume{}", record.volume), record.time_ns / MICROSECOND);
    let files = context.names.names.len();
    context.names.number(&file)?;
    // fio wants a file added and opened before its first action.
    let opening = if context.names.names.len() > files {
        format!("{time} {file} add\n{time} {file} open\n")
    } else {
        String::new()
    };
    Ok(format!("{opening}{time} {file} {action} {offset} {length}"))
}

#[cfg(test)]
mod tests {
    use super::{Context, TEXT};
    use crate::trace::{Op, Record};

    fn all(text: &str) -> Vec<Record> {
        let mut context = Context::new(512, 'D');
        let records = text.lines().map(|line| (TEXT.parse)(line, &mut context));
        records.filter_map(|record| record.expect("a sound line")).collect()
    }

    #[test]
    fn version_2_has_waits_and_version_3_has_times() {
        let expected = [
            Record {
                time_ns: 0,
                op: Op::Write,
                fua: false,
                offset: 4096,
                length: 512,
                volume: 0,
                response_ns: None,
            },
            Record {
                time_ns: 300_000,
                op: Op::Trim,
                fua: false,
                offset: 0,
                length: 8192,
                volume: 1,
                response_ns: None,
            },
        ];
        let two = "fio version 2 iolog\na add\na open\na write 4096 512\na wait 100\nb wait 200\n\
                   b trim 0 8192\nb close";
        assert_eq!(all(two), expected);
        let three = "fio version 3 iolog\n0 a open\n0 a write 4096 512\n300 b trim 0 8192";
        assert_eq!(all(three), expected);
    }

    #[test]
    fn a_sync_needs_no_range_and_may_have_one() {
        let text = "fio version 3 iolog\n1 a sync\n2 a datasync 557056 0";
        assert!(all(text).iter().all(|record| record.op == Op::Flush && record.length == 0));
    }

    #[test]
    fn malformed_lines_name_the_field() {
        let refused = |header: &str, line: &str| {
            let mut context = Context::new(512, 'D');
            (TEXT.parse)(header, &mut context).expect("a sound header");
            (TEXT.parse)(line, &mut context).expect_err("a malformed line")
        };
        assert!(refused("fio version 3 iolog", "1 a leap 0 1").contains("leap"));
        assert!(refused("fio version 3 iolog", "1 a read 0").contains("length"));
        assert!(refused("fio version 2 iolog", "a wait x").contains("wait"));
        let mut context = Context::new(512, 'D');
        assert!((TEXT.parse)("a read 0 1", &mut context).unwrap_err().contains("first line"));
        assert!((TEXT.parse)("fio version 4 iolog", &mut context).is_err());
    }
}

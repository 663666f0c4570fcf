//! The kernel's block_rq events as CSV: `time in seconds, RWBS letters, sector, sectors, process`.
//! What the letters mean says [`super::fields::rwbs`]; the process is passed over. A request of
//! neither kind (`N`) that moves nothing is passed over.

use super::fields::{commas, rwbs, seconds, sector};
use super::{Context, Op, Reason, Record, Text};
use flash::SECOND;

pub(super) const TEXT: Text = Text { parse, header: None, print: Some(print) };

fn parse(line: &str, context: &mut Context) -> Result<Option<Record>, Reason> {
    let mut fields = commas(line);
    let time_ns = fields.time("time", SECOND)?;
    let letters = fields.text("letters")?;
    let (op, fua) = rwbs(letters)?;
    let sector = fields.number("sector")?;
    let sectors = fields.number("number of sectors")?;
    // A process may have a comma in its name.
    fields.text("process")?;
    if sectors == 0 && letters.starts_with('N') {
        return Ok(None);
    }
    let (offset, length) = context.sectors(sector, sectors)?;
    Ok(Some(Record { time_ns, op, fua, offset, length, volume: 0, response_ns: None }))
}

fn print(record: &Record, _: &mut Context) -> Result<String, Reason> {
    let letters = match (record.op, record.fua) {
        (Op::Read, _) => "R",
        (Op::Write, false) => "W",
        (Op::Write, true) => "WF",
        (Op::Trim, false) => "D",
        (Op::Trim, true) => "DF",
        (Op::Flush, _) => "FF",
    };
    let (sector, sectors) = (sector(record.offset)?, sector(record.length)?);
    Ok(format!("{},{letters},{sector},{sectors},weir", seconds(record.time_ns)))
}

#[cfg(test)]
mod tests {
    use super::TEXT;
    use crate::trace::tests::{line, refused};
    use crate::trace::{Op, Record};

    #[test]
    fn a_line_is_a_record() {
        let expected = Record {
            time_ns: 1_000_207_000,
            op: Op::Write,
            fua: true,
            offset: 4096,
            length: 16384,
            volume: 0,
            response_ns: None,
        };
        assert_eq!(line(&TEXT, "1.000207,WFS,8,32,some,process"), expected);
        let trim = Record { op: Op::Trim, fua: false, ..expected };
        assert_eq!(line(&TEXT, "1.000207,DS,8,32,x"), trim);
        let flush = Record { op: Op::Flush, offset: 0, length: 0, ..trim };
        assert_eq!(line(&TEXT, "1.000207,FF,0,0,x"), flush);
        let mut context = crate::trace::Context::new(512, 'D');
        assert_eq!((TEXT.parse)("1.0,N,0,0,x", &mut context), Ok(None));
    }

    #[test]
    fn malformed_lines_name_the_field() {
        assert!(refused(&TEXT, "1.0,QQ,8,32,x").contains("letters"));
        assert!(refused(&TEXT, "1.0,W,8,32").contains("process"));
        assert!(refused(&TEXT, "1.0,W,-8,32,x").contains("sector"));
    }
}

//! What `blkparse` prints by default:
//! `major,minor cpu sequence seconds.ns pid action RWBS [sector + sectors] [process]`.
//!
//! One action makes a record ('D', issued to the driver, unless another is chosen); lines of the
//! others, messages, and the summary at the end are passed over. A volume is a device, named
//! `major,minor`.

use super::fields::{number, rwbs, words};
use super::{Context, Reason, Record, Text};
use flash::SECOND;

pub(super) const TEXT: Text = Text { parse, header: None, print: None };

/// The actions there are.
pub(super) const ACTIONS: &str = "ACDFGIMPQRSTUXBmn";

fn parse(line: &str, context: &mut Context) -> Result<Option<Record>, Reason> {
    // "CPU0 (8,0):" opens the summary, or "Total" if there is one processor.
    context.summary |= ["CPU", "Total", "Input file", "Throughput"]
        .iter()
        .any(|head| line.trim_start().starts_with(head));
    if context.summary {
        return Ok(None);
    }
    let mut fields = words(line);
    let device = fields.text("device")?;
    let (major, minor) = device
        .split_once(',')
        .ok_or_else(|| format!("the device is {device:?}: must be major,minor"))?;
    number(major, "device's major number")?;
    number(minor, "device's minor number")?;
    fields.number("cpu")?;
    fields.number("sequence")?;
    let time_ns = fields.time("time", SECOND)?;
    fields.number("process id")?;
    let action = fields.text("action")?;
    let mut letters = action.chars();
    let action = match (letters.next(), letters.next()) {
        (Some(letter), None) if ACTIONS.contains(letter) => letter,
        _ => return Err(format!("the action is {action:?}: must be one of {ACTIONS}")),
    };
    if action != context.action {
        return Ok(None);
    }
    let letters = fields.text("letters")?;
    let (op, fua) = rwbs(letters)?;
    let (offset, length) = match fields.optional() {
        Some(text) if !text.starts_with(['[', '(']) => {
            let sector = number(text, "sector")?;
            match fields.optional() {
                Some("+") => context.sectors(sector, fields.number("number of sectors")?)?,
                _ => return Err("the sector has no \"+ sectors\" behind it".into()),
            }
        }
        _ => (0, 0),
    };
    if length == 0 && letters.starts_with('N') {
        return Ok(None);
    }
    let volume = context.names.number(device)?;
    Ok(Some(Record { time_ns, op, fua, offset, length, volume, response_ns: None }))
}

#[cfg(test)]
mod tests {
    use super::TEXT;
    use crate::trace::tests::{line, refused};
    use crate::trace::{Context, Op, Record};

    #[test]
    fn the_chosen_action_makes_the_records() {
        let expected = Record {
            time_ns: 9_507_758,
            op: Op::Write,
            fua: false,
            offset: 114_427_392,
            length: 4096,
            volume: 0,
            response_ns: None,
        };
        let issued = "  8,0    3       11     0.009507758   697  D  WS 223491 + 8 [jbd2/sda1-8]";
        assert_eq!(line(&TEXT, issued), Record { offset: 223_491 * 512, ..expected });
        let queued = issued.replace(" D ", " Q ");
        let mut context = Context::new(512, 'D');
        assert_eq!((TEXT.parse)(&queued, &mut context), Ok(None));
        context.action = 'Q';
        assert!(matches!((TEXT.parse)(&queued, &mut context), Ok(Some(_))));
        assert_eq!((TEXT.parse)(issued, &mut context), Ok(None));
        assert_eq!(context.names.names, ["8,0"]);
    }

    #[test]
    fn flushes_have_no_sectors_and_the_summary_is_passed_over() {
        let flush = line(&TEXT, "8,0 1 5 1.5 0 D FN [kworker/1:1H]");
        assert_eq!((flush.op, flush.length), (Op::Flush, 0));
        let mut context = Context::new(512, 'D');
        for text in ["CPU0 (8,0):", " Reads Queued:           1,        4KiB", "what else"] {
            assert_eq!((TEXT.parse)(text, &mut context), Ok(None), "{text}");
        }
        let mut context = Context::new(512, 'D');
        let message = "8,0 3 0 0.1 697 m N cfq697 insert_request";
        assert_eq!((TEXT.parse)(message, &mut context), Ok(None));
    }

    #[test]
    fn malformed_lines_name_the_field() {
        assert!(refused(&TEXT, "sda 3 1 0.1 7 D W 1 + 8 [x]").contains("device"));
        assert!(refused(&TEXT, "8,0 3 1 0.1 7 ? W 1 + 8 [x]").contains("action"));
        assert!(refused(&TEXT, "8,0 3 1 0.1 7 D W 1 8 [x]").contains("sectors"));
        assert!(refused(&TEXT, "8,0 3 1 0.1 7 D W one + 8 [x]").contains("sector"));
    }
}

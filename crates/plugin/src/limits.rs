//! What a module may have, looked at in one pass before it is compiled. A compiler takes more than
//! in proportion to some of it: to how deep blocks nest, and to how many locals are carried over how
//! many blocks. Modules that people write stay far below each of these bounds.
//!
//! Nothing here is trusted to be all: who compiles for a server bounds the compiler's time and memory
//! as well.

use wasmparser::{FunctionBody, Operator, Parser, Payload};

/// Functions, types, globals, exports, tables, and segments of data and elements: of each so many.
const ITEMS_MAX: u32 = 2_000;

/// Bytes of one function.
const FUNCTION_BYTES_MAX: usize = 64 << 10;

/// Parameters and results of a function or a block.
const PARAMS_MAX: usize = 64;

/// Locals of one function, without its parameters.
const LOCALS_MAX: u64 = 1_000;

/// Locals of all functions.
const LOCALS_ALL_MAX: u64 = 20_000;

/// How deep blocks nest. A `match` of so many arms is as deep.
const DEPTH_MAX: u32 = 300;

/// Targets of all `br_table`s.
const TARGETS_MAX: u64 = 20_000;

/// Of one function: its locals times its blocks and branches, each of which may carry all of them.
const CARRIED_MAX: u64 = 400_000;

/// Memory and table as they begin: pages of 64 KiB, and entries.
const PAGES_MAX: u64 = 1_024;
const ENTRIES_MAX: u64 = 10_000;

/// `Err` if the module is broken, or has too much of something.
///
/// # Errors
/// What, and how much it may have.
pub fn check(bytes: &[u8]) -> Result<(), String> {
    let mut counted = Counted::default();
    for payload in Parser::new(0).parse_all(bytes) {
        counted.section(payload.map_err(broken)?)?;
    }
    Ok(())
}

#[derive(Default)]
struct Counted {
    locals: u64,
    targets: u64,
}

impl Counted {
    fn section(&mut self, payload: Payload<'_>) -> Result<(), String> {
        match payload {
            Payload::TypeSection(types) => {
                at_most("types", types.count(), ITEMS_MAX)?;
                for group in types {
                    for of in group.map_err(broken)?.types() {
                        if let wasmparser::CompositeInnerType::Func(of) = &of.composite_type.inner {
                            let most = of.params().len().max(of.results().len());
                            at_most("parameters or results", most, PARAMS_MAX)?;
                        }
                    }
                }
                Ok(())
            }
            Payload::ImportSection(all) => at_most("imports", all.count(), ITEMS_MAX),
            Payload::FunctionSection(all) => at_most("functions", all.count(), ITEMS_MAX),
            Payload::GlobalSection(all) => at_most("globals", all.count(), ITEMS_MAX),
            Payload::ExportSection(all) => at_most("exports", all.count(), ITEMS_MAX),
            Payload::ElementSection(all) => at_most("element segments", all.count(), ITEMS_MAX),
            Payload::DataSection(all) => at_most("data segments", all.count(), ITEMS_MAX),
            Payload::TableSection(tables) => {
                at_most("tables", tables.count(), 10)?;
                for table in tables {
                    let entries = table.map_err(broken)?.ty.initial;
                    at_most("entries of a table", entries, ENTRIES_MAX)?;
                }
                Ok(())
            }
            Payload::MemorySection(memories) => {
                at_most("memories", memories.count(), 1)?;
                for memory in memories {
                    at_most("pages of memory", memory.map_err(broken)?.initial, PAGES_MAX)?;
                }
                Ok(())
            }
            Payload::CodeSectionEntry(body) => self.function(&body),
            _ => Ok(()),
        }
    }

    fn function(&mut self, body: &FunctionBody<'_>) -> Result<(), String> {
        let bytes = body.range().end - body.range().start;
        at_most("bytes in one function", bytes, FUNCTION_BYTES_MAX)?;
        let mut locals = 0u64;
        for run in body.get_locals_reader().map_err(broken)? {
            locals += u64::from(run.map_err(broken)?.0);
        }
        at_most("locals in one function", locals, LOCALS_MAX)?;
        self.locals += locals;
        at_most("locals in all functions", self.locals, LOCALS_ALL_MAX)?;
        let (mut depth, mut branches) = (0u32, 0u64);
        for operator in body.get_operators_reader().map_err(broken)? {
            match operator.map_err(broken)? {
                Operator::Block { .. } | Operator::Loop { .. } | Operator::If { .. } => {
                    depth += 1;
                    branches += 1;
                    at_most("blocks within another", depth, DEPTH_MAX)?;
                }
                Operator::End => depth = depth.saturating_sub(1),
                Operator::Else | Operator::Br { .. } | Operator::BrIf { .. } => branches += 1,
                Operator::BrTable { targets } => {
                    self.targets += u64::from(targets.len());
                    branches += u64::from(targets.len());
                    at_most("targets of br_table", self.targets, TARGETS_MAX)?;
                }
                _ => {}
            }
        }
        let carried = locals.saturating_mul(branches);
        at_most("locals times branches in one function", carried, CARRIED_MAX)
    }
}

fn broken(error: wasmparser::BinaryReaderError) -> String {
    format!("{error}")
}

fn at_most<T: PartialOrd + std::fmt::Display>(what: &str, found: T, most: T) -> Result<(), String> {
    if found <= most {
        return Ok(());
    }
    Err(format!("it has {found} {what}, and at most {most} are compiled: make it simpler"))
}

//! What keeps memory alive after its handle is freed.
//!
//! A driver counts references to physical memory: a duplicate, a mapping into a GPU address space and an exported file each
//! hold one. Who accounts by handle loses sight of such memory, and its owner gains it.

use anyhow::Context;
use rmclient::{Card, Form, Status};
use rmprogram::{Allocation, CardExports, CardMemory, Error, GpuRange, Uvm};
use serde_json::{Map, Value, json};

use super::Outcome;
use crate::JSON_VERSION;

/// Size of the piece: whole large pages, so that every way accepts it.
const PIECE_BYTES: u64 = 2 << 20;
/// Where it is mapped.
const MAPPED_AT: u64 = 1 << 36;

/// How one way behaved.
#[derive(Debug)]
enum Seen {
    /// The way itself was refused.
    Refused(Error),
    /// Bytes in use with the handle freed, and after the way had ended; both above what was in use before.
    Kept {
        without_handle_bytes: u64,
        after_bytes: u64,
    },
}

/// Tries every way.
///
/// # Errors
/// A call other than the way itself that failed.
pub fn run(card: &Card<'_>) -> anyhow::Result<Outcome> {
    let ways: [(&str, Seen); 3] = [
        ("duplicate", duplicate(card).context("duplicate")?),
        ("mapping", mapping(card).context("mapping")?),
        ("export", export(card).context("export")?),
    ];
    let mut document = Map::new();
    let mut lines = Vec::new();
    let mut wrong = false;
    for (way, seen) in &ways {
        let (line, row) = match seen {
            Seen::Refused(error) => {
                let name = error.status().and_then(Status::name);
                (format!("refused: {error}"), json!({"refused": name}))
            }
            Seen::Kept {
                without_handle_bytes,
                after_bytes,
            } => {
                wrong |= *without_handle_bytes < PIECE_BYTES || *after_bytes > 0;
                (
                    format!(
                        "{without_handle_bytes} bytes in use without a handle, {after_bytes} after"
                    ),
                    json!({"without_handle_bytes": without_handle_bytes, "after_bytes": after_bytes}),
                )
            }
        };
        lines.push(format!("{way}: {line}"));
        document.insert((*way).to_owned(), row);
    }
    Ok(Outcome {
        text: lines.join("\n"),
        json: json!({
            "version": JSON_VERSION, "load": "references", "piece_bytes": PIECE_BYTES, "ways": Value::Object(document),
        }),
        code: u8::from(wrong),
    })
}

/// Bytes in use above `before_bytes`.
fn more_than(card: &Card<'_>, before_bytes: u64) -> Result<u64, Error> {
    Ok(card.memory()?.used_bytes().saturating_sub(before_bytes))
}

fn piece(card: &Card<'_>) -> Result<(u64, Allocation), Error> {
    let before_bytes = card.memory()?.used_bytes();
    Ok((before_bytes, card.allocate(Form::Short, PIECE_BYTES)?))
}

fn duplicate(card: &Card<'_>) -> Result<Seen, Error> {
    let (before_bytes, piece) = piece(card)?;
    let copy = match card.duplicate(piece.handle) {
        Ok(copy) => copy,
        Err(error) => return refused(card, &piece, error),
    };
    card.free(piece.handle)?;
    let without_handle_bytes = more_than(card, before_bytes)?;
    card.free(copy)?;
    Ok(Seen::Kept {
        without_handle_bytes,
        after_bytes: more_than(card, before_bytes)?,
    })
}

fn mapping(card: &Card<'_>) -> Result<Seen, Error> {
    let uvm = Uvm::open(card.client())?;
    let uuid = card.uuid()?;
    uvm.register(uuid)?;
    let space = card.va_space()?;
    uvm.register_va_space(uuid, space)?;
    let (before_bytes, piece) = piece(card)?;
    let range = GpuRange {
        base: MAPPED_AT,
        length_bytes: piece.bytes,
    };
    uvm.create_range(range)?;
    if let Err(error) = uvm.map(range, uuid, piece.handle) {
        uvm.free_range(range)?;
        return refused(card, &piece, error);
    }
    card.free(piece.handle)?;
    let without_handle_bytes = more_than(card, before_bytes)?;
    uvm.free_range(range)?;
    Ok(Seen::Kept {
        without_handle_bytes,
        after_bytes: more_than(card, before_bytes)?,
    })
}

/// The memory of an export goes when its file is closed. That is no call which anybody need notice at once, so what is in use
/// afterwards is not judged.
fn export(card: &Card<'_>) -> Result<Seen, Error> {
    let (before_bytes, piece) = piece(card)?;
    let file = match card.export(piece.handle) {
        Ok(file) => file,
        Err(error) => return refused(card, &piece, error),
    };
    card.free(piece.handle)?;
    let without_handle_bytes = more_than(card, before_bytes)?;
    drop(file);
    Ok(Seen::Kept {
        without_handle_bytes,
        after_bytes: 0,
    })
}

fn refused(card: &Card<'_>, piece: &Allocation, error: Error) -> Result<Seen, Error> {
    card.free(piece.handle)?;
    Ok(Seen::Refused(error))
}

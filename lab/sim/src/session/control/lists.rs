//! Lists in parameters, and in blocks of their own.

use crate::refusal::Refusal;
use nvabi::bytes::{put_u32, u32_at};
use nvabi::status::NV_ERR_INVALID_ARGUMENT;

const INVALID: Refusal = Refusal(NV_ERR_INVALID_ARGUMENT);

/// Words one behind the other; refused where there is no room for them.
pub(super) fn put_words(block: &mut [u8], at: usize, words: &[u32]) -> Result<(), Refusal> {
    for (word, place) in words.iter().zip((at..).step_by(4)) {
        if !put_u32(block, place, *word) {
            return Err(INVALID);
        }
    }
    Ok(())
}

/// `{count; {index, data}[]}` in one block.
pub(super) fn fill_info(
    block: &mut [u8],
    at: usize,
    answer: impl Fn(u32) -> u32,
) -> Result<(), Refusal> {
    let count = u32_at(block, 0).ok_or(INVALID)?;
    fill_entries(block.get_mut(at..).ok_or(INVALID)?, count, answer)
}

/// The same, with the entries in a block of their own.
pub(super) fn fill_list(
    list: Option<&mut Vec<u8>>,
    count: u32,
    answer: impl Fn(u32) -> u32,
) -> Result<(), Refusal> {
    match list {
        Some(list) => fill_entries(list, count, answer),
        None if count == 0 => Ok(()),
        None => Err(INVALID),
    }
}

fn fill_entries(
    entries: &mut [u8],
    count: u32,
    answer: impl Fn(u32) -> u32,
) -> Result<(), Refusal> {
    const ENTRY_BYTES: usize = 8;
    let bytes = usize::try_from(count)
        .ok()
        .and_then(|count| count.checked_mul(ENTRY_BYTES))
        .ok_or(INVALID)?;
    for entry in entries
        .get_mut(..bytes)
        .ok_or(INVALID)?
        .chunks_exact_mut(ENTRY_BYTES)
    {
        let index = u32_at(entry, 0).unwrap_or(0);
        put_u32(entry, 4, answer(index));
    }
    Ok(())
}

//! Little-endian fields in a byte block: every access is checked, none panics.

/// Reads a `u8` at `at`; `None` beyond the block's end.
#[must_use]
pub fn u8_at(block: &[u8], at: usize) -> Option<u8> {
    block.get(at).copied()
}

/// Reads a `u16` at `at`; `None` beyond the block's end.
#[must_use]
pub fn u16_at(block: &[u8], at: usize) -> Option<u16> {
    array_at(block, at).map(u16::from_le_bytes)
}

/// Reads a `u32` at `at`; `None` beyond the block's end.
#[must_use]
pub fn u32_at(block: &[u8], at: usize) -> Option<u32> {
    array_at(block, at).map(u32::from_le_bytes)
}

/// Reads a `u64` at `at`; `None` beyond the block's end.
#[must_use]
pub fn u64_at(block: &[u8], at: usize) -> Option<u64> {
    array_at(block, at).map(u64::from_le_bytes)
}

/// Reads `N` bytes at `at`; `None` beyond the block's end.
#[must_use]
pub fn array_at<const N: usize>(block: &[u8], at: usize) -> Option<[u8; N]> {
    block.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// A text's bytes at `at`, up to its zero, `longest` bytes or the block's end.
#[must_use]
pub fn text_at(block: &[u8], at: usize, longest: usize) -> &[u8] {
    let text = block.get(at..).unwrap_or_default();
    let text = text.get(..longest).unwrap_or(text);
    text.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Writes bytes at `at`; `false`, and nothing written, beyond the block's end.
pub fn put(block: &mut [u8], at: usize, value: &[u8]) -> bool {
    let Some(end) = at.checked_add(value.len()) else {
        return false;
    };
    match block.get_mut(at..end) {
        Some(target) => {
            target.copy_from_slice(value);
            true
        }
        None => false,
    }
}

/// Writes a `u32` at `at`; `false` beyond the block's end.
pub fn put_u32(block: &mut [u8], at: usize, value: u32) -> bool {
    put(block, at, &value.to_le_bytes())
}

/// Writes a `u64` at `at`; `false` beyond the block's end.
pub fn put_u64(block: &mut [u8], at: usize, value: u64) -> bool {
    put(block, at, &value.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_ends_at_its_zero_or_its_longest() {
        assert_eq!(text_at(b"ab\0cd", 0, 5), b"ab");
        assert_eq!(text_at(b"abcd", 1, 2), b"bc");
        assert_eq!(text_at(b"ab", 1, usize::MAX), b"b");
        assert_eq!(text_at(b"ab", 7, 5), b"");
    }
}

//! `ld.so.cache`: read, and added to, without glibc's own `ldconfig`.
//!
//! The layout is that of glibc's `dl-cache.h`: a head of 48 bytes, entries of 24 bytes in descending order of their names
//! (digits compare as numbers), strings, and since glibc 2.33 extensions, all of which name strings by their offset from
//! the head. Before glibc 2.32 an older table is in front; glibc reads a file without it as well.

use arch::Arch;
use std::cmp::Ordering;

pub(crate) const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
const OLD_MAGIC: &[u8] = b"ld.so-1.7.0\0";
pub(crate) const HEAD_BYTES: usize = 48;
const ENTRY_BYTES: usize = 24;
const OLD_HEAD_BYTES: usize = 16;
const OLD_ENTRY_BYTES: usize = 12;
const EXTENSION_MAGIC: u32 = 0xeaa4_2174;
/// `cache_extension_tag_glibc_hwcaps`: an array of offsets of strings.
const EXTENSION_HWCAPS: u32 = 1;

/// An image may let all entries name one long text, and all extensions one field: reading it must cost no more than an
/// honest one.
const TEXTS_MAX_BYTES: usize = 16 << 20;
const TEXT_MAX_BYTES: usize = 4096;
const SECTIONS_MAX: usize = 16;
const NAMES_MAX: usize = 4096;

/// Offsets in the head.
const COUNT_AT: usize = 20;
const STRINGS_AT: usize = 24;
const EXTENSIONS_AT: usize = 32;

/// Of a library for this machine's own programs (`_DL_CACHE_DEFAULT_ID`).
pub(crate) const NATIVE: u32 = Arch::NATIVE.libraries().linker_cache_flags;

/// Of a 32-bit library beside them.
pub(crate) const X86: u32 = 0x0003;

/// One library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// What programs ask for.
    pub(crate) name: String,
    /// Where it is.
    pub(crate) path: String,
    /// For which programs: [`NATIVE`], [`X86`], others.
    pub(crate) flags: u32,
}

/// A cache whose every offset was checked.
#[derive(Debug)]
struct Cache<'a> {
    /// From the head on.
    bytes: &'a [u8],
    count: usize,
    /// Of the extensions, if there are any.
    extensions: Option<usize>,
}

/// All entries of a cache, in its order; `None`: it is none that glibc would read.
pub(crate) fn entries(bytes: &[u8]) -> Option<Vec<Entry>> {
    let cache = Cache::read(bytes)?;
    let mut texts_bytes = 0;
    (0..cache.count)
        .map(|at| {
            let entry = cache.entry(at)?;
            texts_bytes += entry.name.len() + entry.path.len();
            (texts_bytes <= TEXTS_MAX_BYTES).then_some(entry)
        })
        .collect()
}

/// The cache with these libraries as well, each before others of its name. What it has already is not added again.
/// `None`: it is none that glibc would read, or too large for it.
pub(crate) fn with(bytes: &[u8], libraries: &[Entry]) -> Option<Vec<u8>> {
    let cache = Cache::read(bytes)?;
    let old = entries(bytes)?;
    let mut added: Vec<&Entry> = Vec::new();
    for library in libraries {
        if !old.contains(library) && !added.contains(&library) {
            added.push(library);
        }
    }
    let shift = added.len().checked_mul(ENTRY_BYTES)?;
    let table_end = HEAD_BYTES + cache.count * ENTRY_BYTES;

    // New strings are behind all else: what is there keeps its place relative to each other.
    let mut strings: Vec<u8> = Vec::new();
    let strings_at = cache.bytes.len().checked_add(shift)?;
    let mut place = |text: &str| -> Option<u32> {
        let at = u32::try_from(strings_at.checked_add(strings.len())?).ok()?;
        strings.extend(text.as_bytes());
        strings.push(0);
        Some(at)
    };
    let mut rows: Vec<(&str, Vec<u8>)> = Vec::with_capacity(old.len() + added.len());
    for (at, entry) in old.iter().enumerate() {
        let start = HEAD_BYTES + at * ENTRY_BYTES;
        let mut row = cache.bytes.get(start..start + ENTRY_BYTES)?.to_vec();
        for field in [4, 8] {
            shift_field(&mut row, field, shift)?;
        }
        rows.push((&entry.name, row));
    }
    for entry in &added {
        let mut row = Vec::with_capacity(ENTRY_BYTES);
        row.extend(entry.flags.to_ne_bytes());
        row.extend(place(&entry.name)?.to_ne_bytes());
        row.extend(place(&entry.path)?.to_ne_bytes());
        row.extend([0; 12]);
        let before = rows
            .iter()
            .position(|(name, _)| by_name(name, &entry.name) != Ordering::Greater)
            .unwrap_or(rows.len());
        rows.insert(before, (&entry.name, row));
    }

    let mut new = cache.bytes.get(..HEAD_BYTES)?.to_vec();
    set(&mut new, COUNT_AT, u32::try_from(rows.len()).ok()?)?;
    let length = u32_at(&new, STRINGS_AT)?.checked_add(u32::try_from(strings.len()).ok()?)?;
    set(&mut new, STRINGS_AT, length)?;
    for (_, row) in rows {
        new.extend(row);
    }
    new.extend(cache.bytes.get(table_end..)?);
    if let Some(extensions) = cache.extensions {
        shift_field(&mut new, EXTENSIONS_AT, shift)?;
        shift_extensions(&mut new, extensions.checked_add(shift)?, shift)?;
    }
    new.extend(strings);
    Some(new)
}

impl<'a> Cache<'a> {
    fn read(file: &'a [u8]) -> Option<Self> {
        let bytes = if file.starts_with(OLD_MAGIC.get(..11)?) {
            let count = usize::try_from(u32_at(file, 12)?).ok()?;
            let end = OLD_HEAD_BYTES.checked_add(count.checked_mul(OLD_ENTRY_BYTES)?)?;
            file.get(end.checked_next_multiple_of(8)?..)?
        } else {
            file
        };
        if !bytes.starts_with(MAGIC) || bytes.len() < HEAD_BYTES {
            return None;
        }
        // 0: not said, before glibc 2.31; 2: little endian, as every machine here.
        if !matches!(bytes.get(28)? & 3, 0 | 2) {
            return None;
        }
        let count = usize::try_from(u32_at(bytes, COUNT_AT)?).ok()?;
        let end = HEAD_BYTES.checked_add(count.checked_mul(ENTRY_BYTES)?)?;
        if end > bytes.len() {
            return None;
        }
        let extensions = match u32_at(bytes, EXTENSIONS_AT)? {
            0 => None,
            at => Some(usize::try_from(at).ok().filter(|at| *at >= end)?),
        };
        Some(Self {
            bytes,
            count,
            extensions,
        })
    }

    fn entry(&self, at: usize) -> Option<Entry> {
        let start = HEAD_BYTES + at * ENTRY_BYTES;
        Some(Entry {
            flags: u32_at(self.bytes, start)?,
            name: self.text(start + 4)?,
            path: self.text(start + 8)?,
        })
    }

    fn text(&self, field: usize) -> Option<String> {
        let at = usize::try_from(u32_at(self.bytes, field)?).ok()?;
        let rest = self.bytes.get(at..)?;
        let end = rest
            .iter()
            .take(TEXT_MAX_BYTES)
            .position(|byte| *byte == 0)?;
        String::from_utf8(rest.get(..end)?.to_vec()).ok()
    }
}

/// Extensions name themselves, and strings, by offsets too.
fn shift_extensions(new: &mut [u8], at: usize, shift: usize) -> Option<()> {
    if u32_at(new, at)? != EXTENSION_MAGIC {
        return None;
    }
    let count = usize::try_from(u32_at(new, at.checked_add(4)?)?).ok()?;
    if count > SECTIONS_MAX {
        return None;
    }
    for section in 0..count {
        let start = at.checked_add(8)?.checked_add(section.checked_mul(16)?)?;
        let tag = u32_at(new, start)?;
        shift_field(new, start + 8, shift)?;
        let from = usize::try_from(u32_at(new, start + 8)?).ok()?;
        let length = usize::try_from(u32_at(new, start + 12)?).ok()?;
        if tag == EXTENSION_HWCAPS {
            if length > 4 * NAMES_MAX {
                return None;
            }
            for field in (0..length).step_by(4) {
                shift_field(new, from.checked_add(field)?, shift)?;
            }
        }
    }
    Some(())
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let field = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes(field.try_into().ok()?))
}

fn set(bytes: &mut [u8], at: usize, value: u32) -> Option<()> {
    bytes
        .get_mut(at..at.checked_add(4)?)?
        .copy_from_slice(&value.to_ne_bytes());
    Some(())
}

fn shift_field(bytes: &mut [u8], at: usize, shift: usize) -> Option<()> {
    let value = u32_at(bytes, at)?.checked_add(u32::try_from(shift).ok()?)?;
    set(bytes, at, value)
}

/// glibc's order of names (`_dl_cache_libcmp`): digits as numbers, and after all other bytes.
fn by_name(one: &str, other: &str) -> Ordering {
    let (mut one, mut other) = (one.as_bytes(), other.as_bytes());
    loop {
        match (one.first(), other.first()) {
            (None, None) => return Ordering::Equal,
            (None, Some(_)) => return Ordering::Less,
            (Some(a), Some(b)) if a.is_ascii_digit() && b.is_ascii_digit() => {
                let (a, b) = (number(&mut one), number(&mut other));
                if a != b {
                    return a.cmp(&b);
                }
            }
            (Some(a), _) if a.is_ascii_digit() => return Ordering::Greater,
            (_, Some(b)) if b.is_ascii_digit() => return Ordering::Less,
            (Some(a), Some(b)) if a != b => return a.cmp(b),
            (Some(_), None) => return Ordering::Greater,
            (Some(_), Some(_)) => {
                one = one.get(1..).unwrap_or_default();
                other = other.get(1..).unwrap_or_default();
            }
        }
    }
}

fn number(text: &mut &[u8]) -> u64 {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (head, rest) = text.split_at(digits);
    *text = rest;
    head.iter().fold(0_u64, |value, digit| {
        value.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'))
    })
}

#[cfg(test)]
pub(super) mod tests;

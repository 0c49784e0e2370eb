//! Copying a call out of the tenant's memory, once, and the answer back into it.

use driver::{Link, Segment};
use nvabi::Release;
use nvabi::bytes::u32_at;
use nvabi::errno::{EFAULT, ESRCH};
use verdict::blocks::{self, Block, Descriptor, Extent};
use verdict::{Op, Refusal};

use crate::memories::{Memories, Target};

/// Copies the struct (segment 0).
///
/// # Errors
/// `EFAULT` when it cannot be read in full.
pub fn argument(tid: i32, op: &Op, address: u64, release: Release) -> Result<Segment, Refusal> {
    let mut bytes = vec![0; op.struct_bytes(release)];
    sys::memory::read_exact(tid, address, &mut bytes)
        .map_err(|_unreadable| Refusal::Errno(EFAULT))?;
    Ok(Segment {
        address,
        link: None,
        bytes,
    })
}

/// Copies the parameters and what they point to, behind the struct that `segments` holds.
///
/// # Errors
/// What `verdict::blocks` refuses, and `EFAULT` for memory that cannot be read.
pub fn parameters(
    tid: i32,
    op: &Op,
    segments: &mut Vec<Segment>,
    release: Release,
) -> Result<(), Refusal> {
    let arg = segments
        .first()
        .map(|first| first.bytes.as_slice())
        .unwrap_or_default();
    let Some(block) = blocks::params(op, arg, release)? else {
        return Ok(());
    };
    let params = copy(tid, block)?;
    let nested = blocks::nested(op, arg, &params.bytes, release)?;
    segments.push(params);
    for block in nested {
        segments.push(copy(tid, block)?);
    }
    Ok(())
}

fn copy(tid: i32, block: Block) -> Result<Segment, Refusal> {
    let mut bytes = vec![0; block.bytes];
    let unreadable = |_error| Refusal::Errno(EFAULT);
    match block.extent {
        Extent::Exact => {
            sys::memory::read_exact(tid, block.address, &mut bytes).map_err(unreadable)?
        }
        // What cannot be read is zero here as it is for the driver, which gets this copy: judged by fewer bytes than are executed, half a
        // field would be none for the one and a value for the other.
        Extent::Window => {
            sys::memory::read(tid, block.address, &mut bytes).map_err(unreadable)?;
        }
    }
    let pointer_at = u32::try_from(block.pointer_at).map_err(|_beyond| Refusal::Errno(EFAULT))?;
    Ok(Segment {
        address: block.address,
        link: Some(Link {
            segment: block.segment,
            pointer_at,
        }),
        bytes,
    })
}

/// Writes back what has changed: from the first changed byte of each block to the last, so that memory next to it, which
/// another thread may be writing, is left alone.
///
/// # Errors
/// `EFAULT` when the tenant's memory is not writable, as the driver would answer.
/// `ESRCH` where the target is the caller's memory no more.
pub fn write_back(target: &Target, before: &[Segment], after: &[Segment]) -> Result<(), Refusal> {
    for (before, after) in before.iter().zip(after) {
        if let Some((at, changed)) = changed_span(&before.bytes, &after.bytes) {
            target
                .write_all(before.address.wrapping_add(at), changed)
                .map_err(|error| match error.raw_os_error() {
                    Some(ESRCH) => Refusal::Errno(ESRCH),
                    _unwritable => Refusal::Errno(EFAULT),
                })?;
        }
    }
    Ok(())
}

fn changed_span<'a>(before: &[u8], after: &'a [u8]) -> Option<(u64, &'a [u8])> {
    let differs = |(old, new): (&u8, &u8)| old != new;
    let first = before.iter().zip(after).position(differs)?;
    let last = before.iter().zip(after).rposition(differs)?;
    Some((u64::try_from(first).ok()?, after.get(first..=last)?))
}

/// A call's blocks as they were read, and as they are to be.
pub(crate) struct Blocks<'a> {
    pub(crate) before: &'a [Segment],
    pub(crate) after: &'a [Segment],
}

impl Blocks<'_> {
    /// Writes an answer into the memory that was opened before the call was last seen to wait. A thread that has executed another
    /// program since an earlier call has other memory.
    ///
    /// # Errors
    /// As [`write_back`].
    pub(crate) fn write_back(
        &self,
        memories: &Memories,
        tid: i32,
        target: Target,
        still_waits: &dyn Fn() -> bool,
    ) -> Result<(), Refusal> {
        let written = write_back(&target, self.before, self.after);
        if written != Err(Refusal::Errno(ESRCH)) {
            return written;
        }
        memories.forget(tid);
        let target = memories.of(tid);
        if !still_waits() {
            return written;
        }
        write_back(&target, self.before, self.after)
    }
}

/// The descriptor that a call names besides the one that it is made on, and its number; a negative one names none.
pub(crate) fn descriptor_number(
    op: &Op,
    segments: &[Segment],
) -> Result<Option<(Descriptor, i32)>, Refusal> {
    let views: Vec<&[u8]> = segments
        .iter()
        .map(|segment| segment.bytes.as_slice())
        .collect();
    let Some(named) = blocks::descriptor(op, &views) else {
        return Ok(None);
    };
    let number = views
        .get(usize::from(named.segment))
        .and_then(|block| u32_at(block, named.at))
        .ok_or(Refusal::Errno(EFAULT))?;
    let number = number.cast_signed();
    Ok((number >= 0).then_some((named, number)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_changed_span_is_written() {
        assert_eq!(changed_span(b"aaaaaa", b"aaaaaa"), None);
        assert_eq!(changed_span(b"aaaaaa", b"abacaa"), Some((1, &b"bac"[..])));
        assert_eq!(changed_span(b"a", b"b"), Some((0, &b"b"[..])));
        assert_eq!(changed_span(b"", b""), None);
    }
}

//! Which memory, apart from the struct, belongs to a call.

use nvabi::bytes::{u32_at, u64_at};
use nvabi::call::Params;
use nvabi::control::{self, Nested};
use nvabi::layout::{nvos21, nvos54, nvos64};
use nvabi::{Release, class, status};

use crate::{Op, Refusal};
use nvabi::errno::EFAULT;

/// Longest block that is copied: the largest control's parameters (perfmon samples) have 55 888 bytes.
pub const MAX_BLOCK_BYTES: usize = 64 * 1024;

/// A block to fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// The segment that holds the pointer.
    pub segment: u8,
    /// Offset of the pointer in it.
    pub pointer_at: usize,
    /// The tenant's address.
    pub address: u64,
    /// Bytes.
    pub bytes: usize,
    /// Whether a shorter readable block will do.
    pub extent: Extent,
}

/// Whether a block must be readable in full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Unreadable memory fails the call with `EFAULT`, as the driver would.
    Exact,
    /// A window over a block whose true length the class decides: what can be read is enough, and the rest is zero.
    Window,
}

/// The parameters of a call, from its struct (segment 0).
///
/// # Errors
/// The refusal that the driver would give: an unknown class or control, a wrong size, serialised parameters.
pub fn params(op: &Op, arg: &[u8], release: Release) -> Result<Option<Block>, Refusal> {
    match op.params() {
        Some(Params::Class) => alloc_params(op, arg, release),
        Some(Params::Control) => control_params(op, arg, release),
        None => Ok(None),
    }
}

fn alloc_params(op: &Op, arg: &[u8], release: Release) -> Result<Option<Block>, Refusal> {
    let long = op.struct_bytes(release) == 48;
    if long && field(arg, nvos64::FLAGS)? & nvos64::FLAG_SERIALISED != 0 {
        return Err(op.refuse(status::NV_ERR_NOT_SUPPORTED, release));
    }
    let class = class::row_of(field(arg, nvos21::H_CLASS)?, release)
        .ok_or_else(|| op.refuse(status::NV_ERR_INVALID_CLASS, release))?;
    let address = u64_at(arg, nvos21::P_PARAMS).ok_or(Refusal::Errno(EFAULT))?;
    let bytes = class.params.of(release);
    if address == 0 || bytes == 0 {
        // Rights are behind the parameters in the order of segments; alone they could be taken for them.
        return if rights(op, arg, release).is_some() {
            Err(op.refuse(status::NV_ERR_INVALID_ARGUMENT, release))
        } else {
            Ok(None)
        };
    }
    let extent = if bytes == class::PARAMS_WINDOW {
        Extent::Window
    } else {
        Extent::Exact
    };
    Ok(Some(Block {
        segment: 0,
        pointer_at: nvos21::P_PARAMS,
        address,
        bytes: bytes as usize,
        extent,
    }))
}

/// The access mask that the long form may point to (`RS_ACCESS_MASK`, 4 bytes).
fn rights(op: &Op, arg: &[u8], release: Release) -> Option<Block> {
    let is_long = op.struct_bytes(release) == 48;
    let address = u64_at(arg, nvos64::P_RIGHTS).filter(|address| is_long && *address != 0)?;
    Some(Block {
        segment: 0,
        pointer_at: nvos64::P_RIGHTS,
        address,
        bytes: 4,
        extent: Extent::Exact,
    })
}

fn control_params(op: &Op, arg: &[u8], release: Release) -> Result<Option<Block>, Refusal> {
    if field(arg, nvos54::FLAGS)? & nvos54::FORBIDDEN_FLAGS != 0 {
        return Err(op.refuse(status::NV_ERR_NOT_SUPPORTED, release));
    }
    let cmd = field(arg, nvos54::CMD)?;
    let control =
        control::row(cmd, release).ok_or_else(|| op.refuse(control::refusal_of(cmd), release))?;
    if field(arg, nvos54::PARAMS_SIZE)? != control.params_bytes {
        return Err(op.refuse(status::NV_ERR_INVALID_ARGUMENT, release));
    }
    let address = u64_at(arg, nvos54::P_PARAMS).ok_or(Refusal::Errno(EFAULT))?;
    if control.params_bytes == 0 {
        return Ok(None);
    }
    if address == 0 {
        return Err(op.refuse(status::NV_ERR_INVALID_ARGUMENT, release));
    }
    Ok(Some(Block {
        segment: 0,
        pointer_at: nvos54::P_PARAMS,
        address,
        bytes: control.params_bytes as usize,
        extent: Extent::Exact,
    }))
}

/// What follows the parameters (segment 1): the blocks that a control's parameters point to, in the order of its row, or
/// an allocation's access mask. NULL pointers name none.
///
/// # Errors
/// `NV_ERR_INVALID_ARGUMENT` for a list that is longer than any that the driver takes.
pub fn nested(op: &Op, arg: &[u8], params: &[u8], release: Release) -> Result<Vec<Block>, Refusal> {
    match op.params() {
        Some(Params::Control) => {}
        Some(Params::Class) => return Ok(rights(op, arg, release).into_iter().collect()),
        None => return Ok(Vec::new()),
    }
    let Some(control) = control::row(field(arg, nvos54::CMD)?, release) else {
        return Ok(Vec::new());
    };
    let mut blocks = Vec::with_capacity(control.nested.len());
    for Nested { pointer_at, length } in control.nested {
        let pointer_at = usize::from(*pointer_at);
        let address = u64_at(params, pointer_at).ok_or(Refusal::Errno(EFAULT))?;
        let bytes = length.bytes(params).ok_or(Refusal::Errno(EFAULT))?;
        if bytes > MAX_BLOCK_BYTES {
            return Err(op.refuse(status::NV_ERR_INVALID_ARGUMENT, release));
        }
        if address != 0 && bytes != 0 {
            blocks.push(Block {
                segment: 1,
                pointer_at,
                address,
                bytes,
                extent: Extent::Exact,
            });
        }
    }
    Ok(blocks)
}

fn field(block: &[u8], at: usize) -> Result<u32, Refusal> {
    u32_at(block, at).ok_or(Refusal::Errno(EFAULT))
}

/// Where a call names an open file by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptor {
    /// Segment.
    pub segment: u8,
    /// Offset of the four bytes.
    pub at: usize,
}

/// Where a call names an open file by its number: in its struct, or in a control's parameters. Where the driver would resolve it in
/// whoever executes the call, the broker puts its own number there, for a duplicate of the caller's file, and the caller's back into the
/// answer.
#[must_use]
pub fn descriptor(op: &Op, segments: &[&[u8]]) -> Option<Descriptor> {
    if let Some(named) = op.descriptor() {
        let at = named.at();
        return Some(Descriptor { segment: 0, at });
    }
    let at = control::spec(op.command(segments.first()?)?)?.descriptor?;
    Some(Descriptor { segment: 1, at })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvabi::bytes::{put_u32, put_u64};
    use nvabi::escape;

    fn control_call(cmd: u32, size: u32, flags: u32) -> Vec<u8> {
        let mut arg = vec![0; 32];
        put_u32(&mut arg, nvos54::CMD, cmd);
        put_u32(&mut arg, nvos54::FLAGS, flags);
        put_u64(&mut arg, nvos54::P_PARAMS, 0x1000);
        put_u32(&mut arg, nvos54::PARAMS_SIZE, size);
        arg
    }

    const CONTROL: Op = Op::Escape(&escape::NV_ESC_RM_CONTROL);
    const R: Release = Release::R570;

    #[test]
    fn a_known_control_names_its_block() {
        let block = params(&CONTROL, &control_call(0x2080_1303, 460, 0), R)
            .unwrap()
            .unwrap();
        assert_eq!(
            (block.address, block.bytes, block.pointer_at),
            (0x1000, 460, nvos54::P_PARAMS)
        );
    }

    #[test]
    fn a_control_is_refused_as_the_driver_would() {
        let status = |status| {
            Err(Refusal::Status {
                status,
                at: nvos54::STATUS,
            })
        };
        assert_eq!(
            params(&CONTROL, &control_call(0xdead_beef, 4, 0), R),
            status(0x56)
        );
        assert_eq!(
            params(&CONTROL, &control_call(0x2080_1303, 436, 0), R),
            status(0x1f)
        );
        for serialised_or_lock_bypass in [1, 2, 4, 7] {
            assert_eq!(
                params(
                    &CONTROL,
                    &control_call(0x2080_1303, 460, serialised_or_lock_bypass),
                    R
                ),
                status(0x56)
            );
        }
    }

    #[test]
    fn nested_lists_are_bounded() {
        let arg = control_call(0x80_0201, 16, 0);
        let mut list = vec![0; 16];
        put_u64(&mut list, 8, 0x2000);
        put_u32(&mut list, 0, 3);
        let blocks = nested(&CONTROL, &arg, &list, R).unwrap();
        assert_eq!(blocks.len(), 1);
        assert_eq!(blocks.first().map(|block| block.bytes), Some(12));
        put_u32(&mut list, 0, u32::MAX);
        assert_eq!(
            nested(&CONTROL, &arg, &list, R),
            Err(Refusal::Status {
                status: 0x1f,
                at: nvos54::STATUS
            })
        );
        put_u32(&mut list, 0, 0);
        assert_eq!(nested(&CONTROL, &arg, &list, R), Ok(vec![]));
    }

    #[test]
    fn an_unknown_class_and_serialised_parameters_are_refused() {
        let mut arg = vec![0; 48];
        let op = Op::Escape(&escape::NV_ESC_RM_ALLOC_LONG);
        put_u32(&mut arg, nvos21::H_CLASS, 0xc2);
        assert_eq!(
            params(&op, &arg, R),
            Err(Refusal::Status {
                status: 0x22,
                at: nvos64::STATUS
            })
        );
        put_u32(&mut arg, nvos21::H_CLASS, 0x40);
        put_u32(&mut arg, nvos64::FLAGS, 1);
        assert_eq!(
            params(&op, &arg, R),
            Err(Refusal::Status {
                status: 0x56,
                at: nvos64::STATUS
            })
        );
    }

    #[test]
    fn an_access_mask_is_copied_too() {
        let op = Op::Escape(&escape::NV_ESC_RM_ALLOC_LONG);
        let mut arg = vec![0; 48];
        put_u32(&mut arg, nvos21::H_CLASS, 0x40);
        put_u64(&mut arg, nvos21::P_PARAMS, 0x1000);
        put_u64(&mut arg, nvos64::P_RIGHTS, 0x2000);
        let blocks = nested(&op, &arg, &[], R).unwrap();
        let seen: Vec<_> = blocks
            .iter()
            .map(|block| (block.segment, block.address, block.bytes))
            .collect();
        assert_eq!(seen, [(0, 0x2000, 4)]);
        put_u64(&mut arg, nvos21::P_PARAMS, 0);
        let refusal = Refusal::Status {
            status: 0x1f,
            at: nvos64::STATUS,
        };
        assert_eq!(params(&op, &arg, R), Err(refusal));
    }
}

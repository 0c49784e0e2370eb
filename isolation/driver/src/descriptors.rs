//! Descriptor numbers in a call: the driver looks them up in whoever makes the ioctl, which is not the tenant.
//!
//! Each must have been replaced by a file of the tenant's; a number that was left as it came would name one of this process's
//! own files. Numbers that the driver only compares (OS events, `rmCtrlFd` of UVM) are the tenant's and stay.
//!
//! Sources: escape.c, osapi.c, rmobjexportimport.c, mem_multicast_fabric.c of open-gpu-kernel-modules 580.105.08.

use nvabi::bytes::u32_at;
use nvabi::layout::nvos54;
use nvabi::{Release, control, escape};

use crate::{Call, Error, FileKind};

/// Where a call holds a number that the driver resolves: segment and offset.
fn resolved(kind: FileKind, call: &Call, release: Release) -> Option<(usize, usize)> {
    match kind {
        FileKind::Ctl | FileKind::Card { .. } => {}
        // UVM_MM_INITIALIZE resolves one, and binds the address space of whoever calls: it stays with the caller.
        FileKind::Uvm | FileKind::UvmTools => return None,
    }
    let row = escape::row(call.cmd, release)?;
    if let Some(descriptor) = row.descriptor {
        return descriptor.resolved().map(|at| (0, at));
    }
    if row.id != escape::Id::Control {
        return None;
    }
    let cmd = u32_at(&call.segments.first()?.bytes, nvos54::CMD)?;
    control::spec(cmd)?.descriptor.map(|at| (1, at))
}

/// Whether every number that the driver would resolve has a file in its place.
///
/// # Errors
/// [`Error::Unsupported`] where one has not; negative numbers name no file anywhere.
pub fn check(kind: FileKind, call: &Call, release: Release) -> Result<(), Error> {
    let Some((segment, at)) = resolved(kind, call, release) else {
        return Ok(());
    };
    let number = call
        .segments
        .get(segment)
        .and_then(|segment| u32_at(&segment.bytes, at));
    let has_file = call
        .fds
        .iter()
        .any(|slot| (usize::from(slot.segment), slot.at as usize) == (segment, at));
    match number {
        Some(number) if number.cast_signed() >= 0 && !has_file => Err(Error::Unsupported(
            "a call that names a descriptor by its number",
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FdSlot, Link, Segment};
    use nvabi::bytes::put_u32;

    fn call(cmd: u32, bytes: usize, number: (usize, i32)) -> Call {
        let mut arg = vec![0; bytes];
        put_u32(&mut arg, number.0, number.1.cast_unsigned());
        Call::own(cmd, arg, None)
    }

    #[test]
    fn a_number_without_its_file_is_not_executed() {
        let release = Release::R570;
        for (row, at) in [
            (escape::NV_ESC_REGISTER_FD, 0),
            (escape::NV_ESC_RM_MAP_MEMORY, 48),
            (escape::NV_ESC_RM_ALLOC_MEMORY, 48),
        ] {
            let bytes = row.size.of(release) as usize;
            let mut with_number = call(row.cmd(release), bytes, (at, 5));
            check(FileKind::Ctl, &with_number, release).unwrap_err();
            with_number.fds.push(FdSlot {
                segment: 0,
                at: u32::try_from(at).unwrap(),
                number: 5,
                file: None,
                fd: std::fs::File::open("/dev/null").unwrap().into(),
            });
            check(FileKind::Ctl, &with_number, release).unwrap();
            let without = call(row.cmd(release), bytes, (at, -1));
            check(FileKind::Ctl, &without, release).unwrap();
        }
    }

    #[test]
    fn neither_is_one_in_a_controls_parameters() {
        let release = Release::R570;
        for (cmd, at) in [(0x3d05, 16), (0x3d06, 0), (0x3d08, 0), (0x3d0b, 0)] {
            let arg = (nvos54::CMD, cmd);
            let mut call = call(escape::NV_ESC_RM_CONTROL.cmd(release), 32, arg);
            let mut params = vec![0; 24];
            put_u32(&mut params, at, 7);
            call.segments.push(Segment {
                address: 0,
                link: Some(Link {
                    segment: 0,
                    pointer_at: 16,
                }),
                bytes: params,
            });
            check(FileKind::Ctl, &call, release).unwrap_err();
            put_u32(&mut call.segments[1].bytes, at, u32::MAX);
            check(FileKind::Ctl, &call, release).unwrap();
        }
    }

    #[test]
    fn what_the_driver_only_compares_passes() {
        let release = Release::R570;
        let event = call(escape::NV_ESC_ALLOC_OS_EVENT.cmd(release), 16, (8, 9));
        check(FileKind::Ctl, &event, release).unwrap();
        check(FileKind::Uvm, &call(33, 9264, (9248, 9)), release).unwrap();
    }
}

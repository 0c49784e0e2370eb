//! `set_mempolicy(2)`: from which memory node a thread gets its pages.
//!
//! UNSAFETY: neither libc nor nix wraps the call.

use std::io;

/// `MPOL_PREFERRED`
const PREFERRED: libc::c_long = 1;
const WORDS: usize = 16;
const BITS: u32 = u64::BITS;

/// Has this thread, and those that it makes from now on, take pages of a node as long as there are any: also those that the kernel
/// takes on its behalf.
///
/// # Errors
/// `EINVAL` for a node that is not there or not allowed, `ENOSYS` of a kernel without nodes.
pub fn prefer(node: u32) -> io::Result<()> {
    let mut mask = [0_u64; WORDS];
    let word = usize::try_from(node / BITS).ok();
    let Some(word) = word.and_then(|word| mask.get_mut(word)) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    *word = 1 << (node % BITS);
    // The kernel looks at one bit fewer than it is told.
    let bits = libc::c_ulong::from(BITS) * mask.len() as libc::c_ulong + 1;
    // SAFETY: set_mempolicy reads the bits that the third argument counts, less one: they are those of `mask`, which outlives the call. It
    // changes nothing but the thread's policy.
    let ret = unsafe { libc::syscall(libc::SYS_set_mempolicy, PREFERRED, mask.as_ptr(), bits) };
    match ret {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_is_not_there_is_refused() {
        // In a thread of its own: the policy is the thread's.
        let refused = std::thread::spawn(|| [prefer(1023), prefer(1024)]).join();
        for result in refused.unwrap() {
            result.unwrap_err();
        }
    }
}

//! Whether this process is root of the host, or of a user namespace alone, as everything of a rootless engine is.

use std::io;

/// What `uid_map` says where no user namespace was made: every number is itself.
const NO_MAP: [&str; 3] = ["0", "0", "4294967295"];

/// The number that files have whose owner the namespace does not know (`/proc/sys/kernel/overflowuid`, where nobody has changed it).
pub(crate) const UNKNOWN_OWNER: u32 = 65534;

/// Whether this process is in a user namespace other than the host's.
///
/// # Errors
/// `/proc/self/uid_map` cannot be read.
pub fn is_in_one() -> io::Result<bool> {
    Ok(is_mapped(&std::fs::read_to_string("/proc/self/uid_map")?))
}

fn is_mapped(map: &str) -> bool {
    !map.split_whitespace().eq(NO_MAP)
}

#[cfg(test)]
mod tests {
    use super::is_mapped;

    #[test]
    fn a_user_namespace_has_a_map_of_its_own() {
        assert!(!is_mapped("         0          0 4294967295\n"));
        for map in [
            "",
            "0 1000 1\n",
            "0 0 4294967294\n",
            "0 1000 1\n1 100000 65536\n",
            "0 0 4294967295\n1 1 1\n",
        ] {
            assert!(is_mapped(map), "{map:?}");
        }
    }
}

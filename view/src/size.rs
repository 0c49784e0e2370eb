//! Sizes as people read them.

/// Bytes in the largest unit that leaves no fraction, but whole MiB from there on: `4096 MiB`, `64 KiB`, `17 B`.
#[must_use]
pub fn human(bytes: u64) -> String {
    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    match bytes {
        0 => "0 MiB".to_owned(),
        _ if bytes.is_multiple_of(MIB) => format!("{} MiB", bytes / MIB),
        // A fraction of a MiB is rounded up in view, so that used and free never promise more than there is.
        _ if bytes > 16 * MIB => format!("{} MiB", bytes.div_ceil(MIB)),
        _ if bytes.is_multiple_of(KIB) => format!("{} KiB", bytes / KIB),
        _ => format!("{bytes} B"),
    }
}

/// What is used of a quota, both in whole MiB rounded up: `64/4096 MiB`; `-` for what is not known.
#[must_use]
pub fn used_of(used_bytes: Option<u64>, quota_bytes: Option<u64>) -> String {
    let mib = |bytes: Option<u64>| {
        bytes.map_or_else(
            || "-".to_owned(),
            |bytes| bytes.div_ceil(1 << 20).to_string(),
        )
    };
    format!("{}/{} MiB", mib(used_bytes), mib(quota_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use_and_quota_share_a_unit() {
        assert_eq!(used_of(Some((64 << 20) + 1), Some(4 << 30)), "65/4096 MiB");
        assert_eq!(used_of(None, Some(1 << 30)), "-/1024 MiB");
        assert_eq!(used_of(Some(0), None), "0/- MiB");
    }

    #[test]
    fn the_unit_leaves_no_fraction_and_large_sizes_are_rounded_up() {
        for (bytes, text) in [
            (0, "0 MiB"),
            (17, "17 B"),
            (64 << 10, "64 KiB"),
            (4 << 30, "4096 MiB"),
            ((32 << 20) + 1, "33 MiB"),
        ] {
            assert_eq!(human(bytes), text);
        }
    }
}

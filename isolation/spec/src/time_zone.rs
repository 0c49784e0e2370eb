//! Files of the host that tell the time zone. Containers often have them bound, writable for want of a `ro`; nobody means to
//! change the host's. Beside a quota they are bound read-only: root in a container must not write what root's programs read.

use std::path::Path;

use host_config::walk::cleaned;

const FILES: [&str; 2] = ["/etc/localtime", "/etc/timezone"];
const FOLDER: &str = "/usr/share/zoneinfo";

/// Whether a mount's source, as the spec writes it, is one.
pub(crate) fn is_one(source: &str) -> bool {
    let path = cleaned(Path::new(source));
    FILES.iter().any(|file| path == Path::new(file)) || path.starts_with(FOLDER)
}

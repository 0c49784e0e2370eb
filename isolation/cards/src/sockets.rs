//! Where a container's sockets are: in its folder, or, where that path is longer than a socket's may be, in one folder for all of them.
//!
//! ```text
//!   <state_dir>/vgpus/moby/<64 digits>/control.sock
//!   <state_dir>/sockets/<32 digits of SHA-256>-control.sock     dockerd's `userns-remap` makes the namespace `moby-100000.100000`
//! ```
//!
//! runc connects by the path that the spec names, so that a descriptor of the folder would not do.

use std::path::{Path, PathBuf};

/// `sun_path` has 108 bytes, one of them for its end.
pub const PATH_BYTES_MAX: usize = 107;

/// Where seccomp listeners are sent.
pub const NOTIFY: &str = "notify.sock";
/// One JSON request a line, one JSON answer a line.
pub const CONTROL: &str = "control.sock";
/// The executor's requests.
pub const EXECUTOR: &str = "executor.sock";
/// All of them.
pub const ALL: [&str; 3] = [NOTIFY, CONTROL, EXECUTOR];

/// The path of one of the sockets of the container whose folder is `<state_dir>/vgpus/<namespace>/<container>`. It may still be too long
/// where the state folder's own path is.
#[must_use]
pub fn of(folder: &Path, name: &str) -> PathBuf {
    let own = folder.join(name);
    if own.as_os_str().len() <= PATH_BYTES_MAX {
        return own;
    }
    let state_dir = folder.ancestors().nth(3);
    let below = state_dir.and_then(|state_dir| folder.strip_prefix(state_dir).ok());
    let (Some(state_dir), Some(below)) = (state_dir, below) else {
        return own;
    };
    let digest = crate::digest(below.as_os_str().as_encoded_bytes());
    state_dir
        .join("sockets")
        .join(format!("{digest:.32}-{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(state_dir: &str, namespace: &str) -> PathBuf {
        let id = "5b6fa3451848caa722bbabe240264a5ae62b3f1f16295b042ad565fc5fa444fe";
        Path::new(state_dir).join("vgpus").join(namespace).join(id)
    }

    #[test]
    fn a_socket_is_in_its_container_s_folder_where_its_path_fits() {
        for namespace in ["moby", "k8s.io", "default", "thirteenbytes"] {
            let folder = folder("/run/cgpu", namespace);
            for name in [NOTIFY, CONTROL] {
                assert_eq!(of(&folder, name), folder.join(name));
            }
        }
    }

    #[test]
    fn a_longer_path_is_a_short_one_beside_the_folders() {
        let mut all = std::collections::BTreeSet::new();
        for namespace in ["moby-100000.100000", "moby-100000.100001", &"n".repeat(128)] {
            for name in ALL {
                let short = of(&folder("/run/cgpu", namespace), name);
                assert!(short.as_os_str().len() <= PATH_BYTES_MAX, "{short:?}");
                assert!(short.starts_with("/run/cgpu/sockets"), "{short:?}");
                assert!(all.insert(short));
            }
        }
        // A successor of another build finds what was bound.
        assert_eq!(
            of(&folder("/run/cgpu", "moby-100000.100000"), CONTROL),
            Path::new("/run/cgpu/sockets/17910e8ad07bdb447dcf024b12345b3f-control.sock")
        );
    }

    #[test]
    fn a_path_that_is_too_long_in_any_form_stays_as_it_is() {
        let deep = format!("/{}", "d".repeat(90));
        let folder = folder(&deep, "moby");
        assert!(of(&folder, CONTROL).as_os_str().len() > PATH_BYTES_MAX);
        // Nothing is above it.
        let bare = PathBuf::from("x".repeat(120));
        assert_eq!(of(&bare, CONTROL), bare.join(CONTROL));
    }
}

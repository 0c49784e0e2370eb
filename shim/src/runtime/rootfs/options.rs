//! Mount options as fstab has them, taken apart. What is no flag is data for the file system.

use nix::mount::MsFlags;

use super::loop_device::Needed;
use crate::error::{Error, Result};

/// Options of one mount.
#[derive(Debug)]
pub(super) struct Parsed {
    pub(super) flags: MsFlags,
    /// Goes into a call of its own.
    pub(super) propagation: MsFlags,
    pub(super) data: Vec<String>,
    /// `uidmap=` and `gidmap=`.
    pub(super) id_maps: Option<IdMaps>,
    /// `loop`: the source is a file that holds a file system.
    pub(super) loop_backed: Option<Needed>,
}

/// Lines as `/proc/PID/uid_map` takes them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct IdMaps {
    pub(super) uids: String,
    pub(super) gids: String,
}

pub(super) fn parse(options: &[String]) -> Result<Parsed> {
    let mut flags = MsFlags::empty();
    let mut propagation = MsFlags::empty();
    let mut data = Vec::new();
    let (mut uids, mut gids) = (None, None);
    let mut on_a_loop = false;
    for option in options {
        if let Some((flag, set)) = flag(option) {
            flags.set(flag, set);
        } else if let Some(how) = propagation_of(option) {
            propagation |= how;
        } else if let Some(map) = option.strip_prefix("uidmap=") {
            uids = Some(id_map(option, map)?);
        } else if let Some(map) = option.strip_prefix("gidmap=") {
            gids = Some(id_map(option, map)?);
        } else if option.starts_with("X-containerd.") {
            return Err(refused(
                option,
                "no option that containerd itself has to consume",
            ));
        } else {
            match option.as_str() {
                "defaults" => {}
                "loop" => on_a_loop = true,
                _ => data.push(option.clone()),
            }
        }
    }
    let id_maps = match (uids, gids) {
        (Some(uids), Some(gids)) => Some(IdMaps { uids, gids }),
        (None, None) => None,
        (Some(uids), None) => return Err(refused(&uids, "uidmap= together with gidmap=")),
        (None, Some(gids)) => return Err(refused(&gids, "gidmap= together with uidmap=")),
    };
    let loop_backed = on_a_loop.then(|| Needed::take(&mut data, flags));
    Ok(Parsed {
        flags,
        propagation,
        data,
        id_maps,
        loop_backed,
    })
}

fn refused(value: &str, allowed: &'static str) -> Error {
    Error::Invalid {
        key: "mount option",
        value: value.to_owned(),
        allowed,
    }
}

/// A flag, and whether the option sets or clears it.
fn flag(option: &str) -> Option<(MsFlags, bool)> {
    Some(match option {
        "rw" => (MsFlags::MS_RDONLY, false),
        "ro" => (MsFlags::MS_RDONLY, true),
        "bind" => (MsFlags::MS_BIND, true),
        "rbind" => (MsFlags::MS_BIND | MsFlags::MS_REC, true),
        "remount" => (MsFlags::MS_REMOUNT, true),
        "nosuid" => (MsFlags::MS_NOSUID, true),
        "suid" => (MsFlags::MS_NOSUID, false),
        "nodev" => (MsFlags::MS_NODEV, true),
        "dev" => (MsFlags::MS_NODEV, false),
        "noexec" => (MsFlags::MS_NOEXEC, true),
        "exec" => (MsFlags::MS_NOEXEC, false),
        "sync" => (MsFlags::MS_SYNCHRONOUS, true),
        "async" => (MsFlags::MS_SYNCHRONOUS, false),
        "dirsync" => (MsFlags::MS_DIRSYNC, true),
        "mand" => (MsFlags::MS_MANDLOCK, true),
        "nomand" => (MsFlags::MS_MANDLOCK, false),
        "noatime" => (MsFlags::MS_NOATIME, true),
        "atime" => (MsFlags::MS_NOATIME, false),
        "nodiratime" => (MsFlags::MS_NODIRATIME, true),
        "diratime" => (MsFlags::MS_NODIRATIME, false),
        "relatime" => (MsFlags::MS_RELATIME, true),
        "norelatime" => (MsFlags::MS_RELATIME, false),
        "strictatime" => (MsFlags::MS_STRICTATIME, true),
        "nostrictatime" => (MsFlags::MS_STRICTATIME, false),
        _ => return None,
    })
}

fn propagation_of(option: &str) -> Option<MsFlags> {
    Some(match option {
        "private" => MsFlags::MS_PRIVATE,
        "rprivate" => MsFlags::MS_PRIVATE | MsFlags::MS_REC,
        "slave" => MsFlags::MS_SLAVE,
        "rslave" => MsFlags::MS_SLAVE | MsFlags::MS_REC,
        "shared" => MsFlags::MS_SHARED,
        "rshared" => MsFlags::MS_SHARED | MsFlags::MS_REC,
        "unbindable" => MsFlags::MS_UNBINDABLE,
        "runbindable" => MsFlags::MS_UNBINDABLE | MsFlags::MS_REC,
        _ => return None,
    })
}

/// `IN_CONTAINER:ON_HOST:COUNT`, several with commas between, as lines of a map file.
fn id_map(option: &str, map: &str) -> Result<String> {
    let wrong = || {
        let allowed =
            "uidmap= or gidmap= with container-id:host-id:size, several with commas between";
        refused(option, allowed)
    };
    let mut lines = String::new();
    for part in map.split(',') {
        let numbers: Option<Vec<u32>> = part
            .split(':')
            .map(|argument| argument.parse().ok())
            .collect();
        match numbers.as_deref() {
            Some([inside, outside, count]) if *count > 0 => {
                lines.push_str(&format!("{inside} {outside} {count}\n"));
            }
            _ => return Err(wrong()),
        }
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(options: &[&str]) -> Result<Parsed> {
        let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
        parse(&options)
    }

    #[test]
    fn options_become_flags_and_the_rest_data() {
        let read = parsed(&[
            "ro",
            "rbind",
            "nosuid",
            "rprivate",
            "defaults",
            "upperdir=/u",
            "index=off",
        ])
        .unwrap();
        assert_eq!(
            read.flags,
            MsFlags::MS_RDONLY | MsFlags::MS_BIND | MsFlags::MS_REC | MsFlags::MS_NOSUID
        );
        assert_eq!(read.propagation, MsFlags::MS_PRIVATE | MsFlags::MS_REC);
        assert_eq!(read.data, ["upperdir=/u", "index=off"]);
        assert!(read.id_maps.is_none() && read.loop_backed.is_none());
        assert!(parsed(&["ro", "rw"]).unwrap().flags.is_empty());
        let internal = parsed(&["X-containerd.mkfs.fs=ext4"]).unwrap_err();
        assert!(internal.to_string().contains("X-containerd.mkfs.fs=ext4"));
    }

    #[test]
    fn maps_come_in_pairs_of_well_formed_lines() {
        let read = parsed(&["uidmap=0:100000:1000,1000:5000:1", "gidmap=0:200000:65536"]).unwrap();
        let maps = IdMaps {
            uids: "0 100000 1000\n1000 5000 1\n".to_owned(),
            gids: "0 200000 65536\n".to_owned(),
        };
        assert_eq!(read.id_maps, Some(maps));
        for wrong in [
            "uidmap=0:1",
            "uidmap=0:1:2:3",
            "uidmap=0:-1:2",
            "uidmap=0:1:0",
            "uidmap=",
            "uidmap=0:1:2,",
        ] {
            let reply = parsed(&[wrong, "gidmap=0:1:2"]).unwrap_err().to_string();
            assert!(reply.contains(wrong) && reply.contains("size"), "{reply}");
        }
        let alone = parsed(&["uidmap=0:1:2"]).unwrap_err().to_string();
        assert!(alone.contains("together with gidmap="), "{alone}");
    }

    #[test]
    fn a_loop_is_as_read_only_as_its_mount() {
        let read = parsed(&["loop", "ro", "direct-io", "noload"]).unwrap();
        let needed = read.loop_backed.unwrap();
        assert!(needed.is_read_only() && needed.is_direct());
        assert_eq!(read.data, ["noload"]);
        assert!(
            !parsed(&["loop"])
                .unwrap()
                .loop_backed
                .unwrap()
                .is_read_only()
        );
    }
}

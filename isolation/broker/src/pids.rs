//! Processes by the numbers that one of them knows them by.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// The number of each process in the PID namespace of `asker`, as the driver gives it (`os_find_ns_pid`, os-interface.c); asker and
/// processes are named by their numbers on the host. A process that the asker cannot see is left out. So is one in a namespace below
/// the asker's, unless the asker's is the host's: `/proc` does not say below which a namespace is.
#[must_use]
pub(crate) fn known_to(asker: i32, processes: &[i32]) -> BTreeMap<i32, u32> {
    let Some(depth) = numbers(asker).map(|own| own.len()) else {
        return BTreeMap::new();
    };
    let namespace = namespace(asker);
    processes
        .iter()
        .filter(|process| {
            depth == 1 || (namespace.is_some() && self::namespace(**process) == namespace)
        })
        .filter_map(|process| Some((*process, *numbers(*process)?.get(depth.checked_sub(1)?)?)))
        .collect()
}

/// One for each namespace that the process is in, from that of the mounted /proc to its own.
fn numbers(process: i32) -> Option<Vec<u32>> {
    let numbers = sys::proc::status_field(process, "NSpid").ok()??;
    let numbers: Result<Vec<u32>, _> = numbers.split_whitespace().map(str::parse).collect();
    numbers.ok().filter(|numbers| !numbers.is_empty())
}

/// Names the namespace, as long as a process is in it.
fn namespace(process: i32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{process}/ns/pid")).ok()
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};
    use std::time::{Duration, Instant};

    use super::*;

    /// Ends a process with all in its namespace.
    struct Ended(Child);

    impl Drop for Ended {
        fn drop(&mut self) {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }

    /// The first process of a new namespace.
    fn first_of_a_namespace() -> (Ended, i32) {
        let arguments = ["--pid", "--fork", "--kill-child", "sleep", "60"];
        let parent = Ended(Command::new("unshare").args(arguments).spawn().unwrap());
        let pid = parent.0.id();
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
            if let Some(Ok(child)) = children.unwrap().split_whitespace().next().map(str::parse) {
                return (parent, child);
            }
            assert!(Instant::now() < end, "no child of {pid}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_process_is_known_by_its_number_in_the_askers_namespace() {
        if !nix::unistd::geteuid().is_root() {
            println!("SKIP: not root");
            return;
        }
        let ours = i32::try_from(std::process::id()).unwrap();
        let (_one, first) = first_of_a_namespace();
        let (_other, second) = first_of_a_namespace();
        let all = [ours, first, second];
        assert_eq!(known_to(first, &all), BTreeMap::from([(first, 1)]));
        assert_eq!(known_to(second, &all), BTreeMap::from([(second, 1)]));
        let seen_from_here = all.map(|pid| (pid, pid.unsigned_abs()));
        if numbers(ours).is_some_and(|numbers| numbers.len() == 1) {
            assert_eq!(known_to(ours, &all), BTreeMap::from(seen_from_here));
        }
        assert_eq!(known_to(i32::MAX, &all), BTreeMap::new());
    }
}

//! Asks SELinux's policy whether engines may trace what runs in containers: brokers run in an engine's domain.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;

use view::doctor::{EngineDomain, Selinux};

use super::standing;

/// Engines whose processes start ours. podman has none that stays.
const DAEMONS: [&str; 3] = ["containerd", "crio", "dockerd"];
/// One file that is containerd where it is executed by that name.
const K3S: &str = "k3s";
/// What policies call the domain of containers; the file names another one.
const CONTAINERS: &str = "system_u:system_r:container_t:s0";
/// Of every answer.
const ANSWER_MOST: usize = 128;

/// As below, of this host.
pub(super) fn of_this_host() -> Option<Selinux> {
    let [selinuxfs, policies, processes] =
        ["/sys/fs/selinux", "/etc/selinux", "/proc"].map(Path::new);
    look(selinuxfs, policies, processes)
}

/// What a kernel with SELinux has at these places; `None`: this one is without it.
fn look(selinuxfs: &Path, policies: &Path, processes: &Path) -> Option<Selinux> {
    let enforce = fs::read_to_string(selinuxfs.join("enforce")).ok()?;
    let containers = label_of_containers(policies).unwrap_or_else(|| CONTAINERS.to_owned());
    let engines: BTreeSet<(String, String)> = standing::of_the_host(processes)
        .filter_map(|process| daemon(&process))
        .collect();
    let engines = engines
        .into_iter()
        .map(|(program, label)| EngineDomain {
            program,
            domain: domain(&label).to_owned(),
            may_trace: may_trace(selinuxfs, &label, &containers),
        })
        .collect();
    Some(Selinux {
        is_enforcing: enforce.trim() == "1",
        containers: domain(&containers).to_owned(),
        engines,
    })
}

/// `user:role:type:level` has the domain third.
fn domain(label: &str) -> &str {
    label.split(':').nth(2).unwrap_or(label)
}

/// An engine and its label. The name of a process is its own to choose, the file that it runs is not.
fn daemon(process: &Path) -> Option<(String, String)> {
    let read = |file| String::from_utf8(standing::beginning(&process.join(file))?).ok();
    let name = read("comm")?;
    let name = name.trim_end();
    let program = standing::program_of(process)?;
    if !DAEMONS.contains(&name) || ![name, K3S].contains(&program.as_str()) {
        return None;
    }
    let label = read("attr/current")?;
    let label = label.trim_end_matches(['\0', '\n']);
    Some((name.to_owned(), label.to_owned()))
}

/// `process = "…"` of the policy that the host's configuration names.
fn label_of_containers(policies: &Path) -> Option<String> {
    let settings = fs::read_to_string(policies.join("config")).ok()?;
    let policy = settings
        .lines()
        .find_map(|line| line.trim().strip_prefix("SELINUXTYPE="))?;
    let contexts = policies.join(policy.trim()).join("contexts/lxc_contexts");
    let contexts = fs::read_to_string(contexts).ok()?;
    let value = contexts.lines().find_map(|line| {
        let (key, value) = line.split_once('=')?;
        (key.trim() == "process").then_some(value)
    })?;
    Some(value.trim().trim_matches('"').to_owned())
}

/// `None`: the policy does not know one of the two, or cannot be asked.
fn may_trace(selinuxfs: &Path, engine: &str, container: &str) -> Option<bool> {
    let class = selinuxfs.join("class/process");
    let number = |path: &Path| {
        let text = fs::read_to_string(path).ok()?;
        text.trim().parse::<u32>().ok()
    };
    let (index, bit) = (
        number(&class.join("index"))?,
        number(&class.join("perms/ptrace"))?,
    );
    // A question is written, and its answer read, on one open file.
    let mut access = OpenOptions::new()
        .read(true)
        .write(true)
        .open(selinuxfs.join("access"))
        .ok()?;
    let question = format!("{engine} {container} {index}");
    access.write_all(question.as_bytes()).ok()?;
    let mut answer = [0; ANSWER_MOST];
    let length = access.read(&mut answer).ok()?;
    let answer = std::str::from_utf8(answer.get(..length)?).ok()?;
    let allowed = u32::from_str_radix(answer.split_whitespace().next()?, 16).ok()?;
    Some(allowed >> bit.checked_sub(1)? & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, name: &str, text: &str) {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// A process of root's in `proc`, with the name that it gives itself.
    fn process(root: &Path, pid: &str, program: &str, name: &str, label: &str) {
        let folder = format!("proc/{pid}");
        write(root, &format!("{folder}/comm"), &format!("{name}\n"));
        write(root, &format!("{folder}/attr/current"), label);
        write(root, &format!("{folder}/status"), "Uid:\t0\t0\t0\t0\n");
        let exe = root.join(folder).join("exe");
        std::os::unix::fs::symlink(format!("/usr/bin/{program}"), exe).unwrap();
    }

    fn domain_of(root: &Path, pid: &str) -> Option<String> {
        let (_, label) = daemon(&root.join("proc").join(pid))?;
        Some(domain(&label).to_owned())
    }

    #[test]
    fn what_a_process_calls_itself_makes_it_no_engine() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let label = "system_u:system_r:container_t:s0\0";
        for (pid, program, name, is_engine) in [
            ("1", "sleep", "containerd", false),
            ("2", "dash", "crio", false),
            ("3", "containerd-fake", "containerd", false),
            ("4", "containerd", "sleep", false),
            ("5", "containerd", "containerd", true),
            ("6", "dockerd (deleted)", "dockerd", true),
            ("7", "k3s", "containerd", true),
        ] {
            process(root, pid, program, name, label);
            assert_eq!(
                domain_of(root, pid).is_some(),
                is_engine,
                "{program} as {name}"
            );
        }
    }

    #[test]
    fn a_kernel_without_selinux_has_no_answer() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(look(root.path(), root.path(), root.path()), None);
    }

    #[test]
    fn labels_are_read_as_kernels_and_policies_write_them() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        write(
            root,
            "policies/config",
            "# x\nSELINUX=enforcing\nSELINUXTYPE=default\n",
        );
        let contexts = "content = \"a:b:c:s0\"\nprocess = \"system_u:system_r:lxc_t:s0\"\n";
        write(root, "policies/default/contexts/lxc_contexts", contexts);
        let policies = root.join("policies");
        assert_eq!(
            label_of_containers(&policies).as_deref(),
            Some("system_u:system_r:lxc_t:s0")
        );
        let init = "system_u:system_r:init_t:s0\0";
        let engine = "system_u:system_r:dockerd_t:s0\0";
        let of_levels = "system_u:system_r:dockerd_t:s0-s0:c0.c1023\n";
        process(root, "1", "systemd", "systemd", init);
        process(root, "7", "dockerd", "dockerd", engine);
        process(root, "8", "containerd", "containerd", of_levels);
        let found = ["1", "7", "8"].map(|pid| domain_of(root, pid));
        let labels = found.each_ref().map(Option::as_deref);
        assert_eq!(labels, [None, Some("dockerd_t"), Some("dockerd_t")]);
        // Without a policy that can be asked nothing is claimed; and a container's process is asked about under no name.
        write(root, "selinux/enforce", "1");
        for (pid, namespace) in [("self", "mnt:[1]"), ("7", "mnt:[1]"), ("8", "mnt:[2]")] {
            let folder = root.join("proc").join(pid).join("ns");
            fs::create_dir_all(&folder).unwrap();
            std::os::unix::fs::symlink(namespace, folder.join("mnt")).unwrap();
        }
        let seen = look(&root.join("selinux"), &policies, &root.join("proc")).unwrap();
        assert!(seen.is_enforcing, "{seen:?}");
        let answers: Vec<_> = seen.engines.iter().map(|engine| engine.may_trace).collect();
        assert_eq!(answers, [None]);
        assert_eq!(seen.containers, "lxc_t");
    }
}

//! SELinux's policy as a distribution ships it, for a guest: compiled here, since a guest would take an hour for it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::cache;
use crate::command::{progress, succeed};
use crate::packages::{Suite, closure, ensure_installed, unpacked};

/// Debian 12's policy has no containers.
const SUITE: Suite = Suite::Trixie;
const POLICY: &str = "selinux-policy-default";

/// The newest format that the guest's kernel reads.
const FORMAT: u32 = 33;

/// The guest has no init that would give an engine a domain of its own: all of the host is `kernel_t`, which gets here what the policy gives
/// to engines.
const ENGINE: &str =
    "(allow kernel_t container_t (process (transition siginh rlimitinh noatsecure)))
(allow kernel_t container_t (process2 (nnp_transition nosuid_transition)))
(allow container_t kernel_t (fd (use)))
(allow container_t kernel_t (fifo_file (read write getattr ioctl append)))
(allow container_t kernel_t (process (sigchld)))
";

/// The folder that is `/etc/selinux` there, with the compiled policy in `default/policy/policy.33`.
///
/// # Errors
/// A reason to skip aloud: no packages.
pub fn policy() -> Result<PathBuf> {
    ensure_installed(&[("runc", "runc"), ("runcon", "coreutils")])?;
    let packages = closure(SUITE, &[POLICY])?;
    let packages: Vec<&str> = packages.iter().map(String::as_str).collect();
    let unpacked = unpacked(SUITE, "selinux-packages", &packages)?;
    let folder = cache::folder().join("selinux");
    let _lock = cache::lock("selinux")?;
    let stamp = format!("{FORMAT} {} {ENGINE}", packages.join(" "));
    cache::once(&folder, &stamp, |at| {
        progress("compiling SELinux's policy");
        succeed(Command::new("cp").arg("-a").arg(unpacked.join(".")).arg(at))?;
        for name in ["bin", "sbin", "lib", "lib64"] {
            let link = at.join(name);
            if link.symlink_metadata().is_err() {
                symlink(format!("usr/{name}"), link)?;
            }
        }
        for name in ["tmp", "var/lib/selinux/default"] {
            fs::create_dir_all(at.join(name))?;
        }
        let settings = at.join("etc/selinux");
        fs::write(
            settings.join("config"),
            "SELINUX=enforcing\nSELINUXTYPE=default\n",
        )?;
        let semanage = settings.join("semanage.conf");
        let text = fs::read_to_string(&semanage).context("no semanage.conf")?;
        fs::write(&semanage, format!("{text}\npolicy-version = {FORMAT}\n"))?;
        fs::write(at.join("tmp/cgpu_engine.cil"), ENGINE)?;
        let modules = at.join("usr/share/selinux/default");
        let names = fs::read_to_string(modules.join(".modules"))?;
        let mut semodule = Command::new("chroot");
        semodule.arg(at);
        semodule.args(["/usr/sbin/semodule", "-n", "-s", "default", "-X", "100"]);
        for name in names.split_whitespace() {
            let file = format!("/usr/share/selinux/default/{name}.pp.bz2");
            semodule.args(["-i", &file]);
        }
        semodule.args(["-i", "/tmp/cgpu_engine.cil"]);
        succeed(&mut semodule)?;
        Ok(())
    })?;
    Ok(folder.join("etc/selinux"))
}

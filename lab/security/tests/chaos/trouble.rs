//! What happens to the processes that hold the tenants: kills, a full state folder, edits of the configuration.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::mount::{MsFlags, mount};
use nix::sys::signal::{Signal, kill};
use nix::sys::statvfs::statvfs;
use nix::unistd::Pid;

use crate::world::{Draws, World};

/// Whom a kill is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Broker,
    Supervisor,
    Shim,
}

impl Role {
    /// Most kills go to brokers: each container has one at every moment, and a kill costs nobody anything.
    fn drawn(draws: &mut Draws) -> Self {
        match draws.below(20) {
            0 => Self::Supervisor,
            1 => Self::Shim,
            _ => Self::Broker,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Broker => "brokers",
            Self::Supervisor => "supervisors",
            Self::Shim => "shims",
        }
    }

    fn program(self) -> &'static str {
        match self {
            Self::Broker | Self::Supervisor => "cgpu-broker",
            Self::Shim => "containerd-shim-cgpu-v2",
        }
    }

    fn is(self, arguments: &[&str]) -> bool {
        match self {
            Self::Broker => arguments.contains(&"--serve"),
            Self::Supervisor => !arguments.contains(&"--serve"),
            Self::Shim => true,
        }
    }
}

/// Makes trouble until then, and leaves the node in order, whatever has failed.
pub(crate) fn make(world: &World, until: Instant) -> Result<()> {
    let made = disturb(world, until);
    let restored = resize_state(world, None);
    made.and(restored)
}

fn disturb(world: &World, until: Instant) -> Result<()> {
    let mut draws = world.draws(1);
    let mut next_disk = Instant::now() + Duration::from_secs(10);
    let mut next_edit = Instant::now() + Duration::from_secs(5);
    let mut full_until: Option<Instant> = None;
    let mut edits = 0;
    while Instant::now() < until {
        kill_one(world, &mut draws);
        let now = Instant::now();
        if full_until.is_some_and(|over| now > over) {
            full_until = None;
            resize_state(world, None)?;
        } else if full_until.is_none() && now > next_disk {
            next_disk = now + Duration::from_secs(15 + draws.below(20));
            if fill_state(world)? {
                full_until = Some(now + Duration::from_millis(500 + draws.below(2500)));
            }
        }
        if now > next_edit {
            next_edit = now + Duration::from_secs(5 + draws.below(10));
            edits += 1;
            edit(world, edits)?;
        }
        std::thread::sleep(Duration::from_millis(100 + draws.below(900)));
    }
    Ok(())
}

/// SIGKILL to a process of ours, by chance. Neighbours lose brokers only: what a killed shim or supervisor costs is theirs to
/// lose, and they are to have no error.
fn kill_one(world: &World, draws: &mut Draws) {
    let role = Role::drawn(draws);
    let victims: Vec<i32> = world
        .rig
        .node
        .running(role.program())
        .into_iter()
        .filter(|pid| {
            let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&bytes);
            let arguments: Vec<&str> = line.split('\0').collect();
            let is_an_attackers = arguments.iter().any(|argument| {
                let last = argument.rsplit('/').next().unwrap_or(argument);
                last.starts_with("attacker-")
            });
            role.is(&arguments) && (role == Role::Broker || is_an_attackers)
        })
        .collect();
    if let Some(victim) = draws.one(&victims)
        && kill(Pid::from_raw(*victim), Signal::SIGKILL).is_ok()
    {
        world.count(&format!("killed {}", role.name()));
    }
}

/// The state folder has no room for another byte: its size becomes what is used of it.
fn fill_state(world: &World) -> Result<bool> {
    let state = statvfs(&world.rig.node.state_dir())?;
    let used = (state.blocks() - state.blocks_free()) * state.fragment_size();
    // Another page may have been taken since, and a smaller size is refused then.
    let is_full = resize_state(world, Some(used)).is_ok();
    if is_full {
        world.count("times the state folder was full");
    }
    Ok(is_full)
}

fn resize_state(world: &World, bytes: Option<u64>) -> Result<()> {
    let size = bytes.map_or_else(|| "50%".to_owned(), |bytes| bytes.max(4096).to_string());
    let options = format!("size={size},mode=0700");
    let path = world.rig.node.state_dir();
    mount(
        None::<&str>,
        &path,
        Some("tmpfs"),
        MsFlags::MS_REMOUNT | MsFlags::MS_NOSUID,
        Some(options.as_str()),
    )
    .with_context(|| format!("{} with size {size}", path.display()))
}

/// Another valid value of a key that brokers of new containers read.
fn edit(world: &World, number: u64) -> Result<()> {
    let millis = 500 + 100 * (number % 5);
    world.rig.node.edit_config(|text| {
        let kept = text.split("\n[isolation]").next().unwrap_or(&text);
        format!(
            "{}\n[isolation]\nreconcile_ms = {millis}\n",
            kept.trim_end()
        )
    })?;
    world.count("edits of the configuration");
    Ok(())
}

//! What is asked of an engine under load.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail, ensure};

use crate::command::{LIMIT, wait_until};

use super::engine::{Ask, Container, Engine};
use super::vgpu::vgpus;

pub(super) fn fifty(engine: &mut dyn Engine) -> Result<()> {
    const CONTAINERS: usize = 50;
    const AT_ONCE: usize = 10;
    /// What an engine keeps open beside its containers comes and goes; a file for each of them, or of the vGPUs, is more.
    const SLACK: usize = 20;
    let engine: &dyn Engine = engine;
    let names: Vec<String> = (0..CONTAINERS).map(|number| format!("n{number}")).collect();
    // As many at once, each thread one after the other.
    let in_threads = |work: &(dyn Fn(usize, &str) -> Result<()> + Sync)| -> Result<()> {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..AT_ONCE)
                .map(|first| {
                    let names = &names;
                    scope.spawn(move || {
                        (first..CONTAINERS).step_by(AT_ONCE).try_for_each(|number| {
                            let name = names.get(number).map_or("", String::as_str);
                            work(number, name).with_context(|| format!("container {name}"))
                        })
                    })
                })
                .collect();
            threads.into_iter().try_for_each(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|_| bail!("a thread of the check panicked"))
            })
        })
    };
    // What an engine opens with its first container it may keep.
    engine.start(&Container::waiting("first"))?;
    engine.remove("first")?;
    let before = open_files(engine)?;
    in_threads(&|number, name| {
        let ask = if number % 2 == 0 {
            Ask::Nothing
        } else {
            Ask::Gib(1)
        };
        engine.start(&Container {
            ask,
            ..Container::waiting(name)
        })
    })?;
    let held: BTreeSet<String> = vgpus(engine)?.into_iter().collect();
    ensure!(held.len() == CONTAINERS / 2, "{} vGPUs", held.len());
    in_threads(&|_, name| {
        ensure!(engine.runs(name)?, "it does not run");
        engine.exec(name, &["true"])?.success()?;
        engine.remove(name)
    })?;
    let left = engine.node().grants();
    ensure!(left.is_empty(), "grants after the removal: {left:?}");
    for program in [
        "containerd-shim-cgpu-v2",
        "containerd-shim-runc-v2",
        "cgpu-broker",
    ] {
        wait_until(&format!("the end of every {program}"), LIMIT, || {
            Ok(engine.node().running(program).is_empty())
        })?;
    }
    let mut after = Vec::new();
    wait_until("the engine to close its files", LIMIT, || {
        after = open_files(engine)?;
        Ok(after
            .iter()
            .zip(&before)
            .all(|(after, before)| *after <= before + SLACK))
    })
    .with_context(|| format!("{before:?} open before, {after:?} after"))
}

/// Open files of each of the engine's daemons.
fn open_files(engine: &dyn Engine) -> Result<Vec<usize>> {
    let daemons = engine.daemons();
    daemons
        .iter()
        .map(|pid| Ok(std::fs::read_dir(format!("/proc/{pid}/fd"))?.count()))
        .collect()
}

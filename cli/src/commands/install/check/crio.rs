//! CRI-O's own reading of its files.

use std::fs;
use std::path::Path;

use anyhow::{Context, bail};

use super::super::change::{Document, Format};
use super::super::engine;
use super::super::plan::{self, AsDefault, InstallRequest};
use super::super::staging::Staging;
use super::{Checked, Subject, Tree, below, default, not_run, with_own_folder};

pub(super) fn crio(subject: &Subject<'_>, program: &Path) -> anyhow::Result<Checked> {
    const MAIN: &str = "/etc/crio/crio.conf";
    const FOLDER: &str = "/etc/crio/crio.conf.d";
    let ask = |tree: &Tree| {
        let own = |path: &str| below(subject.root, path);
        let staging = Staging::of(&own(MAIN))?;
        let main = staging.path().join("crio.conf");
        let folder = staging.path().join("crio.conf.d");
        fs::create_dir(&folder)?;
        match fs::copy(own(MAIN), &main) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => fs::write(&main, "")?,
            other => drop(other.context("copy crio.conf")?),
        }
        for entry in fs::read_dir(own(FOLDER)).into_iter().flatten() {
            let entry = entry?;
            let seen = format!("{FOLDER}/{}", entry.file_name().to_string_lossy());
            if !tree.contains_key(&seen) && entry.path().is_file() {
                fs::copy(entry.path(), folder.join(entry.file_name()))?;
            }
        }
        for (path, text) in tree {
            if let (Some(text), Some((_, name))) = (text, path.rsplit_once('/')) {
                fs::write(folder.join(name), text)?;
            }
        }
        let mut command = with_own_folder(program);
        command
            .arg("--config")
            .arg(&main)
            .arg("--config-dir")
            .arg(&folder)
            .arg("config");
        let reply = engine::run(&mut command)?;
        let shown = staging.path().display().to_string();
        anyhow::Ok((
            reply
                .problem()
                .map(|problem| problem.replace(&shown, "/etc/crio")),
            reply.stdout,
        ))
    };
    let command = format!("{} config", program.display());
    match ask(subject.after)? {
        (None, printed) => {
            default::of_crio(subject, &printed)?;
            if let Some(request) = subject.request {
                if !printed.contains("[crio.runtime.runtimes.") {
                    return Ok(not_run(format!("`{command}` lists no runtimes")));
                }
                crio_would_see(request, &printed)?;
            }
            Ok(Checked::Passed { command })
        }
        (Some(problem), _) if ask(subject.before)?.0.as_ref() == Some(&problem) => Ok(not_run(
            format!("crio says the same of its configuration as it is now: {problem}"),
        )),
        (Some(problem), _) => bail!("CRI-O refuses the new configuration: {problem}"),
    }
}

/// Looks for the runtime in what `crio config` prints: TOML, with what is CRI-O's own default as a comment.
pub(super) fn crio_would_see(request: &InstallRequest, printed: &str) -> anyhow::Result<()> {
    let read = Document::parse(Format::Toml, printed).context("what `crio config` prints")?;
    let at = |path: &[&str]| {
        let value = read.at(&[&["crio", "runtime"], path].concat())?;
        anyhow::Ok(value.and_then(|value| value.as_str().map(str::to_owned)))
    };
    let path = at(&["runtimes", &request.runtime, "runtime_path"])?;
    if path != Some(request.program(plan::WRAPPER)) {
        let path = path.map_or_else(String::new, |path| format!(", but {path}"));
        bail!(
            "CRI-O would not see the runtime {:?}{path}: another file sets it",
            request.runtime
        );
    }
    let default = at(&["default_runtime"])?;
    if request.as_default == AsDefault::Yes && default.as_ref() != Some(&request.runtime) {
        let default = default.unwrap_or_else(|| "its own".to_owned());
        bail!("CRI-O would have {default} as default runtime: another file sets it");
    }
    Ok(())
}

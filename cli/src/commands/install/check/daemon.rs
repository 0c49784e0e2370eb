//! With which flags a dockerd of this host runs.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::plan;

/// The flags of the dockerd of this host that reads the file in its usual place; none where none runs.
pub(super) fn flags_of_the_daemon(program: &Path) -> Vec<String> {
    let own = fs::read_link("/proc/self/ns/mnt").ok();
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter(|process| own.is_some() && fs::read_link(process.path().join("ns/mnt")).ok() == own)
        .filter(|process| is_root_s(&process.path(), program))
        .filter_map(|process| sys::proc::command_line(process.file_name().to_str()?).ok())
        .find_map(|line| dockerd_flags(&line))
        .unwrap_or_default()
}

/// Whether all users of a process are root, and it runs this program: its command line is everybody's to choose, and root starts dockerd with
/// what is in it.
fn is_root_s(process: &Path, program: &Path) -> bool {
    let Some(pid) = process.file_name().and_then(|name| name.to_str()) else {
        return false;
    };
    let users = sys::proc::status_field(pid, "Uid").ok().flatten();
    let is_root = users.is_some_and(|users| users.split_whitespace().all(|user| user == "0"));
    let file = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino()));
    let runs = match (file(&process.join("exe")), file(program)) {
        (Ok(running), Ok(validated)) => running == validated,
        (Err(_), _) | (_, Err(_)) => false,
    };
    is_root && runs
}

/// The flags in a process's command line, if it is a dockerd with the usual file.
pub(super) fn dockerd_flags(line: &[u8]) -> Option<Vec<String>> {
    let text = String::from_utf8(line.to_vec()).ok()?;
    let mut arguments = text.trim_end_matches('\0').split('\0');
    if arguments.next()?.rsplit('/').next() != Some("dockerd") {
        return None;
    }
    let mut flags = Vec::new();
    while let Some(argument) = arguments.next() {
        // `--validate=false` would start it.
        if argument.starts_with("--validate") || argument.starts_with("-validate") {
            continue;
        }
        let file = match argument.strip_prefix("--config-file") {
            Some("") => arguments.next(),
            Some(value) => value.strip_prefix('='),
            None => {
                flags.push(argument.to_owned());
                continue;
            }
        };
        if file != Some(plan::DAEMON_JSON) {
            return None;
        }
    }
    Some(flags)
}

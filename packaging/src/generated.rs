//! Files that are made from the programs' own descriptions of themselves, so that they cannot say something else.

use anyhow::{Context, Result, bail};
use clap::CommandFactory;
use clap_complete::Shell;

use crate::table::{Package, Source};
use crate::{Build, Sources, sbom, third_party, tool};

const COPYRIGHT: &str = "\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: cgpu

Files: *
Copyright: 2026 cgpu developers
License: Apache-2.0

License: Apache-2.0
 On Debian systems the text is in /usr/share/common-licenses/Apache-2.0;
 elsewhere at https://www.apache.org/licenses/LICENSE-2.0.
";

/// Who is named in the packages.
pub(crate) const MAINTAINER: &str = "cgpu developers <maintainers@cgpu.example>";

/// Where the project is.
pub(crate) const HOMEPAGE: &str = "https://cgpu.example";

/// Where the source is, as images say it.
pub(crate) const SOURCE: &str = "https://cgpu.example/source";

/// The files of a row whose source is `generated`: name and bytes.
pub(crate) fn make(
    sources: &Sources<'_>,
    package: &Package,
    what: &str,
) -> Result<Vec<(String, Vec<u8>)>> {
    let build = sources.build;
    let one = |text: String| vec![(what.to_owned(), text.into_bytes())];
    Ok(match what {
        "bash" => completion(what, Shell::Bash),
        "zsh" => completion(what, Shell::Zsh),
        "fish" => completion(what, Shell::Fish),
        "manual" => manual(command())?,
        "kubectl-manual" => {
            let mut pages = manual(kubectl::Options::command())?;
            pages.extend(manual(kubectl::InspectAlone::command())?);
            pages
        }
        "agent-manual" => vec![(what.to_owned(), service_manual(agent::Options::command())?)],
        "tree-manual" => vec![(what.to_owned(), service_manual(tree::Options::command())?)],
        "configuration-manual" => one(configuration_manual(build)?),
        "copyright" => one(COPYRIGHT.to_owned()),
        "debian-changelog" => one(changelog(build, package)?),
        "sbom" | "third-party" => one(parts(sources, package, what)?),
        other => bail!("nothing makes {other}"),
    })
}

/// What the package's programs are made of, for scanners or for people.
fn parts(sources: &Sources<'_>, package: &Package, what: &str) -> Result<String> {
    let (mut host, mut containers) = (Vec::new(), Vec::new());
    for row in sources.table.rows_of(package) {
        match row.source()? {
            Source::Program(name) => host.push(name),
            Source::ForContainers(name) => containers.push(name),
            Source::Repository(_) | Source::Generated(_) => {}
        }
    }
    let parts = sources.crates.of(&host, &containers)?;
    // A static program has in it what a dynamic one loads.
    let dynamic = host.first().filter(|_| !containers.is_empty());
    let dynamic = dynamic.map(|name| sources.build.programs.join(name));
    let libraries = third_party::libraries(sources.build, &sources.crates, dynamic.as_deref())?;
    match what {
        "sbom" => sbom::document(sources.build, &package.name, &parts, &libraries),
        _ => third_party::page(&package.name, &parts, &libraries),
    }
}

fn command() -> clap::Command {
    cli::commands::Arguments::command()
}

fn completion(name: &str, shell: Shell) -> Vec<(String, Vec<u8>)> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command(), "cgpu", &mut text);
    vec![(name.to_owned(), text)]
}

/// A page for the program and for each of its commands.
fn manual(command: clap::Command) -> Result<Vec<(String, Vec<u8>)>> {
    let folder = tempfile::tempdir().context("folder for manual pages")?;
    clap_mangen::generate_to(command, folder.path())?;
    let mut pages = Vec::new();
    for entry in std::fs::read_dir(folder.path())? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        pages.push((name, std::fs::read(entry.path())?));
    }
    Ok(pages)
}

/// A page of administration.
fn service_manual(command: clap::Command) -> Result<Vec<u8>> {
    let mut page = Vec::new();
    let manual = clap_mangen::Man::new(command).section("8");
    manual.render(&mut page)?;
    Ok(page)
}

/// The shipped configuration is its own reference: every key with its default and a comment.
fn configuration_manual(build: &Build) -> Result<String> {
    let path = build.repository.join("configs/cgpu.toml");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let mut page = ".TH cgpu.toml 5 \"\" \"cgpu\" \"File Formats\"\n.SH NAME\ncgpu.toml \\- configuration of cgpu\n.SH DESCRIPTION\nThe file as it is installed:\n.nf\n".to_owned();
    for line in text.lines() {
        // A dot or an apostrophe at a line's beginning is a request of roff's.
        page.push_str("\\&");
        page.push_str(&line.replace('\\', "\\e").replace('-', "\\-"));
        page.push('\n');
    }
    page.push_str(".fi\n.SH SEE ALSO\n.BR cgpu (1)\n");
    Ok(page)
}

fn changelog(build: &Build, package: &Package) -> Result<String> {
    let date = tool::run(
        tool::command("date", build.epoch)
            .args(["--utc", "--rfc-email", "--date"])
            .arg(format!("@{}", build.epoch)),
    )?;
    Ok(format!(
        "cgpu ({}) unstable; urgency=medium\n\n  * Package {} of this version; what changed is in changelog.gz.\n\n -- {MAINTAINER}  {date}",
        build.full_version(),
        package.name
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plugin_has_a_page_for_each_of_its_names() {
        for (command, names) in [
            (
                kubectl::Options::command(),
                &[
                    "kubectl-cgpu.1",
                    "kubectl-cgpu-inspect.1",
                    "kubectl-cgpu-explain.1",
                ][..],
            ),
            (
                kubectl::InspectAlone::command(),
                &["kubectl-inspect-cgpu.1"],
            ),
        ] {
            let pages = manual(command).unwrap();
            for name in names {
                assert!(pages.iter().any(|(page, _)| page == name), "{name}");
            }
        }
    }
}

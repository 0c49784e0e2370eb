//! The newcomer's walk: what a person types in the first hour, and what the programs answer.
//! `integration/walk/` has the transcripts for people to read. The tests here run and compare them,
//! and check that they leave out no command of the documents and no subcommand.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use integration::cache::repository;
use integration::command::succeed;
use integration::own_host;
use integration::programs::Programs;
use integration::skip;
use integration::walk::{Normaliser, Step, Walk};

/// Documents whose commands are walked, in this order.
const DOCUMENTS: [&str; 3] = [
    "README.md",
    "docs/guide/install.md",
    "docs/guide/requests.md",
];

/// What is a command where a document quotes it.
const COMMANDS: [&str; 18] = [
    "cargo",
    "cgpu",
    "cgpu-broker",
    "cgpu-burn",
    "cgpu-executor",
    "cgpu-hook",
    "cgpu-limits",
    "cgpu-runtime",
    "cgpu-sim",
    "cgpu-top",
    "containerd",
    "crio",
    "ctr",
    "docker",
    "dockerd",
    "nerdctl",
    "podman",
    "systemctl",
];

/// What differs from run to run and from machine to machine.
const PATTERNS: [(&str, &str); 22] = [
    ("[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z", "TIME"),
    (
        "(cgpu[a-z0-9-]*(?: smi)?|Version: ) [0-9]+\\.[0-9]+\\.[0-9]+",
        "$1 VERSION",
    ),
    ("Linux [0-9][^ |]*", "Linux RELEASE"),
    ("runc version [^ |,]*", "runc version VERSION"),
    ("commit=\"(?:[0-9a-f]{40}|unknown)\"", "commit=\"COMMIT\""),
    ("/usr/s?bin/runc", "/usr/bin/runc"),
    ("mmap_min_addr = [0-9]+", "mmap_min_addr = N"),
    (
        "^version (1, alone or beside version 2|2)$",
        "version 1 or 2",
    ),
    ("broker [0-9]+ -> [0-9]+", "broker PID -> PID"),
    ("cgpu-run/[0-9]+[-.0-9a-z]*", "cgpu-run/PID"),
    ("[0-9a-f]{64}", "ID"),
    // docker's own choice.
    ("[a-z]+_[a-z]+ \\(moby/[0-9a-f]{12}\\)", "NAME (moby/ID)"),
    ("own/[A-Za-z0-9]{6}", "own/XXXXXX"),
    ("waited [0-9.]+ ms", "waited N ms"),
    ("(?m)^(cgpu_process_cpu_seconds_total\\{.*\\}) .*", "$1 N"),
    ("(?m)^(cgpu_process_memory_bytes\\{.*\\}) .*", "$1 N"),
    ("(?m)^(cgpu_process_threads\\{.*\\}) .*", "$1 N"),
    ("(?m)^(cgpu_calls_total\\{.*\\}) .*", "$1 N"),
    ("(?m)^(cgpu_reconciliations_total\\{.*\\}) .*", "$1 N"),
    ("docker 26\\.[0-9]+", "docker 26.N"),
    ("\\[[0-9]+\\] [0-9]+", "[1] PID"),
    ("(?m)^commit: .*", "commit: N"),
];

/// Columns of tables that do so.
const COLUMNS: [(&str, &str); 7] = [
    ("BROKER", "PID"),
    ("PID", "PID"),
    ("ITS CPU", "N s"),
    ("ITS MEMORY", "N MiB"),
    ("ENTITLED", "N %"),
    ("HAD", "N %"),
    ("HOST MEMORY", "N MiB of N MiB"),
];

fn file(name: &str) -> PathBuf {
    repository().join("integration/walk").join(name)
}

fn read(name: &str) -> Result<Walk> {
    let path = file(name);
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Ok(Walk::parse(&text))
}

/// The release of a kernel that lacks something for which `cgpu doctor` has a note.
fn older_kernel() -> Result<Option<String>> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let mut parts = release
        .split(['.', '-'])
        .map(|part| part.parse::<u32>().ok());
    let version = (parts.next().flatten(), parts.next().flatten());
    Ok((version < (Some(5), Some(19))).then(|| release.trim().to_owned()))
}

/// What a walk needs beside containerd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nothing,
    Docker,
}

/// Runs a walk on a host of its own and compares.
fn walked(test: &str, name: &'static str, beside: Beside) -> Result<()> {
    if let Some(older) = older_kernel()? {
        skip!(
            test,
            "Linux {older}: what is written is of 5.19 and later, which `cgpu doctor` asks for"
        );
    }
    own_host::on_one(test, move |host| {
        if beside == Beside::Docker {
            host.start_docker()?;
        }
        let normaliser = Normaliser::new(host.names(), &PATTERNS, &COLUMNS)?;
        let folder = host.node.root().join("walk");
        fs::create_dir(&folder)?;
        let walked = read(name)?.run(&mut host.shell()?, &folder, &normaliser)?;
        walked.check(&file(name))
    })
}

#[test]
fn the_documents_commands_do_what_is_written() -> Result<()> {
    walked(
        "the_documents_commands_do_what_is_written",
        "documents.md",
        Beside::Docker,
    )
}

#[test]
fn every_help_reads_as_written() -> Result<()> {
    walked("every_help_reads_as_written", "help.md", Beside::Nothing)
}

#[test]
fn every_mistake_gets_the_written_answer() -> Result<()> {
    walked(
        "every_mistake_gets_the_written_answer",
        "mistakes.md",
        Beside::Nothing,
    )
}

/// The commands that a document shows: code spans and lines of code blocks that begin with a
/// program's name and have more words than that.
fn shown(document: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut add = |text: &str| {
        let text = text.split("  #").next().unwrap_or_default().trim();
        let mut arguments = text.split_whitespace();
        let is_command = arguments
            .next()
            .is_some_and(|argument| COMMANDS.contains(&argument));
        if is_command && arguments.next().is_some() && !found.iter().any(|known| known == text) {
            found.push(text.to_owned());
        }
    };
    for line in document.lines() {
        match line.strip_prefix("    ") {
            Some(code) => {
                for command in code.split(';') {
                    add(command);
                }
            }
            None => line.split('`').skip(1).step_by(2).for_each(&mut add),
        }
    }
    found
}

/// Whether a command does what a document shows: it has the same program, subcommand and options.
/// Words in capitals stand for anything.
fn does(command: &str, shown: &str) -> bool {
    let arguments: BTreeSet<&str> = command.split_whitespace().collect();
    let all = shown
        .split_whitespace()
        .map(|argument| argument.trim_matches(['[', ']']));
    let of_it: Vec<&str> = all.collect();
    let subcommand = of_it.iter().take_while(|argument| {
        argument.chars().all(|c| c.is_ascii_lowercase() || c == '-') && !argument.starts_with('-')
    });
    let options = of_it
        .iter()
        .filter(|argument| argument.starts_with("--") && argument.len() > 2);
    subcommand
        .chain(options)
        .all(|argument| arguments.contains(argument))
}

#[test]
fn every_command_of_the_documents_is_walked() -> Result<()> {
    let walk = read("documents.md")?;
    let text = walk.text();
    let (_, not_run) = text
        .split_once("\n# Not run here\n")
        .context("documents.md ends with what is not run")?;
    for name in DOCUMENTS {
        let document = fs::read_to_string(repository().join(name))?;
        let is_heading = |step: &&Step| matches!(step, Step::Prose(line) if line.starts_with("# "));
        let heading = Step::Prose(format!("# {name}"));
        let part = walk
            .steps
            .iter()
            .skip_while(|step| **step != heading)
            .skip(1);
        let mut part: Vec<&Step> = part.take_while(|step| !is_heading(step)).collect();
        for command in shown(&document) {
            if not_run.contains(&format!("- `{command}`: ")) {
                continue;
            }
            let quoted = format!("`{command}`");
            let is_quoted =
                |step: &&Step| matches!(step, Step::Prose(line) if line.contains(&quoted));
            let Some(at) = part.iter().position(is_quoted) else {
                bail!(
                    "{name} shows `{command}`: do it in documents.md, where {name} does, or name it under `Not run here`"
                );
            };
            let behind = part.split_off(at);
            let done = behind
                .iter()
                .skip_while(|step| matches!(step, Step::Prose(_)))
                .map_while(|step| match step {
                    Step::Command { line, .. } => Some(line),
                    Step::Prose(_) => None,
                })
                .any(|line| does(line, &command));
            ensure!(
                done,
                "documents.md quotes `{command}`, and does something else below"
            );
            // README.md is read from the top; the other pages come back to what they have said.
            if name == "README.md" {
                part = behind;
            } else {
                part.extend(behind);
            }
        }
    }
    for line in not_run.lines().filter(|line| line.starts_with("- `")) {
        let (command, _) = line
            .strip_prefix("- `")
            .and_then(|line| line.split_once("`: "))
            .with_context(|| format!("{line}: a command and why it is not run"))?;
        let is_shown = |name: &str| {
            let document = fs::read_to_string(repository().join(name)).unwrap_or_default();
            shown(&document).iter().any(|one| one == command)
        };
        ensure!(
            DOCUMENTS.iter().any(|name| is_shown(name)),
            "no document shows `{command}` any more"
        );
    }
    Ok(())
}

/// The subcommands that a help text lists.
fn subcommands(help: &str) -> Vec<String> {
    let list = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    list.take_while(|line| !line.is_empty())
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_subcommand_has_help() -> Result<()> {
    let programs = Programs::for_tests()?;
    let walk = read("help.md")?;
    let requested: Vec<&str> = walk.commands().collect();
    let is_requested = |line: &str| {
        requested
            .iter()
            .any(|command| *command == line || command.starts_with(&format!("{line} |")))
    };
    let mut needed: Vec<Vec<String>> = Programs::names()
        .map(|name| vec![name.to_owned()])
        .collect();
    while let Some(arguments) = needed.pop() {
        let line = arguments.join(" ");
        ensure!(
            is_requested(&format!("{line} --help")),
            "help.md does not ask `{line} --help`"
        );
        let [program, rest @ ..] = &arguments[..] else {
            bail!("a command has a program")
        };
        if rest.is_empty() {
            ensure!(
                is_requested(&format!("{line} --version")),
                "help.md does not ask `{line} --version`"
            );
        }
        // The OCI runtime's own commands are its own.
        if program == "cgpu-runtime" {
            continue;
        }
        let mut command = Command::new(programs.program(program)?);
        let help = succeed(command.args(rest).arg("--help"))?.stdout;
        needed.extend(subcommands(&help).into_iter().map(|name| {
            let mut arguments = arguments.clone();
            arguments.push(name);
            arguments
        }));
    }
    Ok(())
}

#[test]
fn at_least_thirty_mistakes_are_made() -> Result<()> {
    let walk = read("mistakes.md")?;
    let failed = walk.steps.iter().filter(
        |step| matches!(step, Step::Command { output, .. } if output.contains("[exit code ")),
    );
    ensure!(failed.count() >= 30);
    Ok(())
}

#[test]
fn commands_are_found_in_documents_beside_other_code() {
    let document = "Say `cgpu ps`, `cards` or `cgpu`.\n\n    cgpu run --memory 4Gi -- CMD   # a slice\n    isolation/ nvabi\n    systemctl restart a; systemctl reload b\n";
    assert_eq!(
        shown(document),
        [
            "cgpu ps",
            "cgpu run --memory 4Gi -- CMD",
            "systemctl restart a",
            "systemctl reload b"
        ]
    );
    for (command, shown, is_it) in [
        (
            "cgpu run --memory 1Gi --cards 2 -- true",
            "cgpu run --memory 4Gi [--cards 2] -- CMD",
            true,
        ),
        (
            "cgpu run --memory 1Gi -- true",
            "cgpu run --memory 4Gi [--cards 2] -- CMD",
            false,
        ),
        (
            "cgpu set web --memory 6Gi --compute 40%",
            "cgpu set CONTAINER --memory 6Gi --compute 40%",
            true,
        ),
        ("cgpu ps", "cgpu cards", false),
    ] {
        assert_eq!(does(command, shown), is_it, "{command} / {shown}");
    }
}

/// Where programs and policies have their texts.
const PRINTING: [&str; 10] = [
    "agent",
    "cli",
    "cluster",
    "hook",
    "isolation",
    "kubectl",
    "lab/sim",
    "shim",
    "top",
    "view",
];

fn sources(folder: &Path, into: &mut String) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let stem = path.file_stem().context("a name")?;
        if path.is_dir() {
            if stem != "tests" {
                sources(&path, into)?;
            }
        } else if stem != "tests"
            && let Some("rs" | "yaml") = path.extension().and_then(|kind| kind.to_str())
        {
            into.push_str(&fs::read_to_string(&path)?);
        }
    }
    Ok(())
}

/// Without the breaks inside string literals.
fn joined(source: &str) -> String {
    let mut joined = String::with_capacity(source.len());
    for line in source.lines() {
        let rest = if joined.ends_with('\\') {
            joined.pop();
            line.trim_start()
        } else {
            joined.push('\n');
            line
        };
        joined.push_str(rest);
    }
    joined
}

/// Packages have `docs/guide` alone.
#[test]
fn pages_that_programs_name_are_in_the_packages() -> Result<()> {
    let mut printed = String::new();
    for folder in PRINTING {
        sources(&repository().join(folder), &mut printed)?;
    }
    let configuration = fs::read_to_string(repository().join("configs/cgpu.toml"))?;
    let is_code = |line: &&str| !line.trim_start().starts_with("//");
    let pages: BTreeSet<&str> = printed
        .lines()
        .filter(is_code)
        .chain(configuration.lines())
        .flat_map(|line| line.split("docs/").skip(1))
        .filter_map(|rest| Some(rest.split_at(rest.find(".md")?).0))
        .collect();
    ensure!(pages.len() >= 5, "{pages:?}");
    for page in pages {
        let path = repository().join(format!("docs/{page}.md"));
        ensure!(
            page.starts_with("guide/") && path.is_file(),
            "docs/{page}.md is named, and in no package"
        );
    }
    Ok(())
}

/// The first cell of each row has texts of programs, `…` where they differ.
#[test]
fn programs_print_the_texts_of_the_troubleshooting_page() -> Result<()> {
    let mut printed = String::new();
    for folder in PRINTING {
        sources(&repository().join(folder), &mut printed)?;
    }
    let printed = joined(&printed.replace("\\\"", "\""));
    let page = fs::read_to_string(repository().join("docs/guide/troubleshooting.md"))?;
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    let mut count = 0;
    for row in rows {
        let cell = row.split(" | ").next().context("a cell")?;
        for text in cell.split('`').skip(1).step_by(2) {
            for part in text.split('…').map(str::trim) {
                ensure!(printed.contains(part), "nobody prints {part:?} of {text:?}");
            }
            count += 1;
        }
    }
    ensure!(count >= 30, "{count} texts");
    Ok(())
}

use clap::{CommandFactory, Parser};

use super::{Arguments, HOST_COMMANDS};

/// What stands below a help as examples, each a command line of `cgpu`.
fn examples(help: &str) -> Vec<Vec<String>> {
    let below = help.split_once("\nExample").or_else(|| {
        let text = help.strip_prefix("Example")?;
        Some(("", text))
    });
    let Some((_, below)) = below else {
        return Vec::new();
    };
    let lines = below.lines().filter_map(|line| line.strip_prefix("  "));
    lines
        .filter_map(|line| {
            // A remark is behind some spaces; a shell has the rest.
            let command = line.split("  ").next()?;
            let own = command.split("&&").map(str::trim);
            let own = own.filter(|part| part.starts_with("cgpu ")).last()?;
            let words = own.split(['>', '|']).next()?.split_whitespace();
            Some(words.map(str::to_owned).collect())
        })
        .collect()
}

#[test]
fn every_help_has_examples_that_are_command_lines() {
    let all = Arguments::command();
    let commands = all
        .get_subcommands()
        .filter(|command| !command.is_hide_set());
    for command in std::iter::once(&all).chain(commands) {
        let name = command.get_name();
        let help = command.get_after_help();
        let help = help.unwrap_or_else(|| panic!("{name} has nothing below its help"));
        let examples = examples(&help.to_string());
        assert!(!examples.is_empty(), "{name} has no example");
        for example in examples {
            if let Err(error) = Arguments::try_parse_from(&example) {
                panic!("{}: {error}", example.join(" "));
            }
            let is_own = name == "cgpu" || example.get(1).is_some_and(|word| word == name);
            assert!(is_own, "{} is below {name}", example.join(" "));
        }
    }
}

#[test]
fn the_build_for_containers_knows_all_commands_of_the_host() {
    let all = Arguments::command();
    let shown = all
        .get_subcommands()
        .filter(|command| !command.is_hide_set());
    let host: Vec<&str> = shown
        .map(clap::Command::get_name)
        .filter(|name| !["smi", "version"].contains(name))
        .collect();
    assert_eq!(host, HOST_COMMANDS);
}

#[test]
fn examples_are_found_behind_other_words() {
    let help =
        "Words.\n\nExamples, for people:\n  cd / && cgpu ps -q > x && mv x y\n  cgpu ps      All";
    assert_eq!(
        examples(help),
        [vec!["cgpu", "ps", "-q"], vec!["cgpu", "ps"]]
    );
    assert!(examples("Words.").is_empty());
}

#[test]
fn a_value_with_a_hyphen_is_the_option_s_and_no_other_option() {
    for option in ["--memory", "--compute", "--weight"] {
        Arguments::try_parse_from(["cgpu", "set", "c1", option, "-1"]).unwrap();
    }
}

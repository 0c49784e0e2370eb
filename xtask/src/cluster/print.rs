//! Commands as one would type them, and what they print.

use anyhow::Result;
use integration::cluster::Kubectl;
use integration::command::Outcome;

use super::CLAIMS;

/// Prints a command as one would type it, and what it prints.
pub(super) fn show_with(kubectl: &Kubectl, args: &[&str]) -> Result<Outcome> {
    let quoted: Vec<String> = args
        .iter()
        .map(|arg| {
            if *arg == CLAIMS {
                "\"$CLAIMS\"".to_owned()
            } else if arg.contains(['{', '*', ' ']) {
                format!("'{arg}'")
            } else {
                (*arg).to_owned()
            }
        })
        .collect();
    println!("\n$ kubectl {}", quoted.join(" "));
    let reply = kubectl.run(args)?;
    print_reply(&reply);
    Ok(reply)
}

/// Prints what a command printed, and how it ended.
pub(super) fn print_reply(reply: &Outcome) {
    for text in [&reply.stdout, &reply.stderr] {
        if !text.trim().is_empty() {
            println!("{}", text.trim_end());
        }
    }
    if let Some(code) = reply.code.filter(|code| *code != 0) {
        println!("(exit code {code})");
    }
}

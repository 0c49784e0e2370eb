//! What was asked and what was found: one value, written as JSON for programs and as Markdown for people.

use std::fs;
use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Raised when the JSON changes its shape.
pub(crate) const VERSION: u32 = 1;

/// One run.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) version: u32,
    /// `card` or `simulated`: whether any of this says something about hardware.
    pub(crate) on: String,
    pub(crate) seconds: f64,
    pub(crate) probes: Vec<Outcome>,
}

/// What became of one probe.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) name: String,
    /// The open questions that it bears on, as the project's facts number them.
    pub(crate) questions: Vec<String>,
    pub(crate) seconds: f64,
    pub(crate) state: State,
}

/// How a probe ended.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub(crate) enum State {
    /// It ran; findings may still be "refused" or "absent".
    Ran { findings: Vec<Finding> },
    /// It could not be run here.
    NotRun { why: String },
    /// It failed, or ran into its time limit.
    Failed {
        why: String,
        /// What it had found until then.
        findings: Vec<Finding>,
    },
}

/// One thing found.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub(crate) struct Finding {
    pub(crate) what: String,
    pub(crate) value: Value,
}

impl Report {
    /// Writes `report.json` and `report.md`.
    pub(crate) fn write(&self, folder: &Path) -> anyhow::Result<()> {
        fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
        let json = serde_json::to_string_pretty(self)?;
        for (name, text) in [("report.json", json), ("report.md", self.markdown())] {
            let path = folder.join(name);
            fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        }
        Ok(())
    }

    pub(crate) fn markdown(&self) -> String {
        let mut text = String::from("# Card report\n\n");
        let on = match self.on.as_str() {
            "card" => "Run on a real card.",
            _ => {
                "Run on a **simulated** card: this proves the bundle and says nothing about hardware."
            }
        };
        let ran = self
            .probes
            .iter()
            .filter(|probe| matches!(probe.state, State::Ran { .. }))
            .count();
        text.push_str(&format!(
            "{on} {ran} of {} probes ran, {:.0} s.\n",
            self.probes.len(),
            self.seconds
        ));
        for probe in &self.probes {
            text.push_str(&probe.markdown());
        }
        text
    }
}

impl Outcome {
    fn markdown(&self) -> String {
        let mut text = format!("\n## {}\n\n", self.name);
        if !self.questions.is_empty() {
            text.push_str(&format!("Bears on: {}.\n\n", self.questions.join(", ")));
        }
        let findings = match &self.state {
            State::Ran { findings } => findings,
            State::NotRun { why } => {
                text.push_str(&format!("Not run: {why}.\n"));
                return text;
            }
            State::Failed { why, findings } => {
                text.push_str(&format!(
                    "**Failed** after {:.1} s: {why}\n\n",
                    self.seconds
                ));
                findings
            }
        };
        if findings.is_empty() {
            return text;
        }
        text.push_str("| what | found |\n|---|---|\n");
        for finding in findings {
            text.push_str(&format!(
                "| {} | {} |\n",
                cell(&finding.what),
                cell(&plain(&finding.value))
            ));
        }
        text
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', "<br>")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_reports_what_ran_what_did_not_and_why() {
        let outcome = |name: &str, state| Outcome {
            name: name.to_owned(),
            questions: vec!["abi-5".to_owned()],
            seconds: 1.5,
            state,
        };
        let finding = |what: &str, value: Value| Finding {
            what: what.to_owned(),
            value,
        };
        let report = Report {
            version: VERSION,
            on: "simulated".to_owned(),
            seconds: 3.0,
            probes: vec![
                outcome(
                    "memory",
                    State::Ran {
                        findings: vec![finding("a|b", "x\ny".into()), finding("n", 7.into())],
                    },
                ),
                outcome(
                    "torch",
                    State::NotRun {
                        why: "no torch".to_owned(),
                    },
                ),
                outcome(
                    "knobs",
                    State::Failed {
                        why: "time limit".to_owned(),
                        findings: vec![],
                    },
                ),
            ],
        };
        let text = report.markdown();
        for part in [
            "**simulated**",
            "1 of 3 probes ran",
            "a\\|b | x<br>y",
            "| n | 7 |",
            "Not run: no torch.",
            "**Failed** after 1.5 s: time limit",
            "abi-5",
        ] {
            assert!(text.contains(part), "{part:?} in {text}");
        }
        let again: Report = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
        assert_eq!(again.markdown(), text);
    }
}

//! The policies of `cluster/policies`: against the real API server where it is built, and against what it answered where it is not.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use integration::cluster::{
    ControlPlane, Extent, Recorded, UNTRANSLATED, agent_attempts, apply, cases, check_agents, hash,
    objects, on_control_plane, prepare,
};
use regex::Regex;
use serde_json::Value;

#[test]
fn the_server_answers_as_recorded() -> Result<()> {
    on_control_plane("the_server_answers_as_recorded", Extent::Server, answers)
}

fn answers(plane: &ControlPlane) -> Result<()> {
    apply(&plane.kubectl())?;
    prepare(&plane.kubectl())?;
    let seen = Recorded::of_server(plane)?;
    for case in cases()? {
        case.check(&seen.answers[&case.case])?;
    }
    check_agents(&seen.answers)?;
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        seen.write()?;
    }
    let recorded = Recorded::read()?;
    for (case, answer) in &seen.answers {
        assert_eq!(Some(answer), recorded.answers.get(case), "{case}");
    }
    assert_eq!(seen, recorded);
    Ok(())
}

#[test]
fn recorded_answers_are_of_these_policies_and_these_cases() -> Result<()> {
    let recorded = Recorded::read()?;
    assert_eq!(
        recorded.policies,
        hash()?,
        "cluster/policies has changed: record anew with UPDATE_SNAPSHOTS=1 cargo test -p cgpu-integration --test cluster policies"
    );
    let cases = cases()?;
    for case in &cases {
        let answer = recorded.answers.get(&case.case);
        case.check(answer.with_context(|| format!("no answer to {}", case.case))?)?;
    }
    check_agents(&recorded.answers)?;
    let names: BTreeSet<String> = cases
        .iter()
        .map(|case| case.case.clone())
        .chain(agent_attempts().map(str::to_owned))
        .chain([UNTRANSLATED.to_owned()])
        .collect();
    let answered: BTreeSet<String> = recorded.answers.into_keys().collect();
    assert_eq!(names, answered);
    assert_eq!(
        names.len(),
        cases.len() + agent_attempts().count() + 1,
        "two cases of one name"
    );
    Ok(())
}

/// A rule whose refusal nobody has seen may be one that never refuses.
#[test]
fn every_rule_has_refused_something() -> Result<()> {
    let recorded = Recorded::read()?;
    let mut replies: Vec<&str> = Vec::new();
    for answer in recorded.answers.values() {
        replies.extend(answer.refused.as_deref());
        replies.extend(answer.warnings.iter().map(String::as_str));
    }
    let literal = Regex::new("'([^']*)'")?;
    let mut rules = 0;
    for policy in kind("ValidatingAdmissionPolicy")? {
        for rule in policy["spec"]["validations"].as_array().context("rules")? {
            let text = rule["messageExpression"]
                .as_str()
                .or_else(|| rule["message"].as_str());
            let text = text.with_context(|| {
                format!("{}: a rule without a message", policy["metadata"]["name"])
            })?;
            let parts = literal.captures_iter(text).filter_map(|found| found.get(1));
            let longest = parts
                .map(|part| part.as_str())
                .max_by_key(|part| part.len());
            let longest = longest.unwrap_or(text);
            let is_met = replies.iter().any(|reply| reply.contains(longest));
            ensure!(is_met, "no recorded answer has {longest:?}");
            rules += 1;
        }
    }
    ensure!(rules > 20, "rules are read: {rules}");
    Ok(())
}

fn kind(name: &str) -> Result<Vec<Value>> {
    let mut all = objects()?;
    all.retain(|object| object["kind"] == name);
    ensure!(!all.is_empty(), "no {name}");
    Ok(all)
}

#[test]
fn every_policy_is_bound_and_fails_closed() -> Result<()> {
    for kinds in [
        ("MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"),
        (
            "ValidatingAdmissionPolicy",
            "ValidatingAdmissionPolicyBinding",
        ),
    ] {
        let bindings = kind(kinds.1)?;
        for policy in kind(kinds.0)? {
            let name = &policy["metadata"]["name"];
            let binding = bindings
                .iter()
                .find(|binding| binding["spec"]["policyName"] == *name);
            let binding = binding.with_context(|| format!("{name} is not bound"))?;
            let denies = kinds.0 == "MutatingAdmissionPolicy"
                || binding["spec"]["validationActions"][0] == "Deny";
            let expected = if denies { "Fail" } else { "Ignore" };
            assert_eq!(policy["spec"]["failurePolicy"], expected, "{name}");
        }
    }
    Ok(())
}

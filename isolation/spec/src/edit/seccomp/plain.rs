//! The profile of a container that has no card and may be handed another one's open driver file: the driver's calls fail in it.
//!
//! Nobody listens. What the profile says otherwise stays, its architectures too: 32-bit programs run as they did, and each of its tables of
//! system calls has the rules.

use arch::Arch;
use serde_json::{Map, Value, json};
use verdict::filter;

use super::{
    Call, Outcome, Rules, alternatives, ioctl, is_unconditional, names, restrict, rule_value,
    unusable,
};
use crate::edit::Error;
use crate::json;

/// Closes the driver's calls to a container, in its own profile or in one that allows all else. Whether anything is different now.
///
/// # Errors
/// A profile that cannot be kept exactly beside these rules; the value is then half edited and must be dropped.
pub(in crate::edit) fn close(linux: &mut Map<String, Value>) -> Result<bool, Error> {
    let before = linux.get("seccomp").cloned();
    let profile = json::child_object(linux, "seccomp")?;
    if !profile.contains_key("defaultAction") {
        if !profile.is_empty() {
            return Err(unusable("it has no defaultAction"));
        }
        profile.insert("defaultAction".to_owned(), json!("SCMP_ACT_ALLOW"));
        // A table that is not named ends its callers.
        let tables = Arch::NATIVE.oci_tables();
        profile.insert("architectures".to_owned(), json!(tables));
    }
    let default = Outcome::of(profile, "defaultAction", "defaultErrnoRet")?;
    let rules = json::child_array(profile, "syscalls")?;
    let call = closed_ioctl();
    if is_closed(rules, &default, &call) {
        return Ok(false);
    }
    refuse_supervised_conditions(rules, &call)?;
    restrict(rules, &default, &call)?;
    Ok(before.as_ref() != linux.get("seccomp"))
}

/// Takes back what [`close`] has written: a bundle that is used again may have a card by now.
pub(in crate::edit) fn reopen(linux: &mut Map<String, Value>) -> Result<bool, Error> {
    let Some(profile) = linux.get_mut("seccomp").and_then(Value::as_object_mut) else {
        return Ok(false);
    };
    if !profile.contains_key("defaultAction") {
        return Ok(false);
    }
    let default = Outcome::of(profile, "defaultAction", "defaultErrnoRet")?;
    let rules = profile.get_mut("syscalls").and_then(Value::as_array_mut);
    Ok(rules.is_some_and(|rules| withdraw(rules, &default)))
}

/// The same of a profile's rules. Whether they had been written.
pub(super) fn withdraw(rules: &mut Vec<Value>, default: &Outcome) -> bool {
    let call = closed_ioctl();
    let ours: Vec<Value> = call
        .ours
        .iter()
        .map(|(comparisons, change)| rule_value(call.name, comparisons, &change.outcome(default)))
        .collect();
    if !ours.iter().all(|rule| rules.contains(rule)) {
        return false;
    }
    rules.retain(|rule| !ours.contains(rule));
    // What was allowed of all calls stands in these.
    let rest = |outcome: &Outcome| -> Vec<Value> {
        let rest = call.rest.iter();
        rest.map(|comparisons| rule_value(call.name, comparisons, outcome))
            .collect()
    };
    let whole = rules
        .iter()
        .filter_map(|rule| Outcome::of_rule(rule).ok())
        .find(|outcome| rest(outcome).iter().all(|rule| rules.contains(rule)));
    if let Some(outcome) = whole {
        let rest = rest(&outcome);
        rules.retain(|rule| !rest.contains(rule));
        rules.push(rule_value(call.name, &[], &outcome));
    }
    true
}

fn closed_ioctl() -> Call {
    ioctl(&Rules {
        ioctl: filter::closing_rules(),
    })
}

/// Whether a profile denies all of them already, by these very conditions: another frontend has been here.
fn is_closed(rules: &[Value], default: &Outcome, call: &Call) -> bool {
    let own: Vec<&Value> = rules
        .iter()
        .filter(|rule| names(rule).any(|name| name == call.name))
        .collect();
    // It would swallow them.
    if own.iter().any(|rule| is_unconditional(rule)) {
        return false;
    }
    let denied: Vec<_> = own
        .iter()
        .filter(|rule| {
            Outcome::of_rule(rule)
                .is_ok_and(|outcome| !outcome.is_permissive() && outcome != *default)
        })
        .filter_map(|rule| alternatives(rule, call.name).ok())
        .flatten()
        .collect();
    call.ours
        .iter()
        .all(|(comparisons, _)| denied.contains(comparisons))
}

/// A conditional rule that neither allows nor denies is somebody's who watches these calls: [`restrict`] would drop it where it meets ours.
fn refuse_supervised_conditions(rules: &[Value], call: &Call) -> Result<(), Error> {
    let is_supervised = |rule: &&Value| {
        let outcome = Outcome::of_rule(rule);
        names(rule).any(|name| name == call.name)
            && !is_unconditional(rule)
            && outcome
                .is_ok_and(|outcome| outcome.is_permissive() && outcome.action != "SCMP_ACT_ALLOW")
    };
    match rules.iter().find(is_supervised) {
        None => Ok(()),
        Some(rule) => Err(unusable(format!(
            "it has {} under a condition on {}",
            rule["action"], call.name
        ))),
    }
}

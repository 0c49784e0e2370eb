//! `linux.seccomp`: the broker's calls become notifications, whatever profile the engine chose.
//!
//! What libseccomp does decides the form (`db_rule_add` of 2.5.4, tried with runc 1.1.5 and 1.3.6, crun 1.8.1):
//!
//! - An unconditional rule of a system call swallows every conditional one, before or after it, without a word. So the
//!   call is taken out of every unconditional rule, and what was allowed comes back as conditional rules that together
//!   with ours match everything once.
//! - `SCMP_CMP_EQ` compares 64 bits where the kernel takes 32 of the ioctl's command: only `SCMP_CMP_MASKED_EQ` holds.
//! - A rule whose action is the profile's default is skipped by runc: an errno of ours that equals the default's would
//!   leave its calls to the allowing rules. Another errno is taken then.
//! - Rules apply to every architecture of the profile by their names, and i386 has entries that no rule can see through: its
//!   `mmap` (90) takes a pointer to its arguments, `mmap2` and `ioctl` reach the driver by `compat_ioctl`. So the profile
//!   keeps the native architecture alone: a call by another table ends the caller (libseccomp's action for a foreign
//!   architecture), and a container with a quota runs no 32-bit program.
//!
//! What a profile denies stays denied. What a profile allows by conditions that meet ours only in part cannot be kept
//! exactly, and is refused.

mod comparison;
pub(super) mod plain;

use std::path::Path;

use arch::Arch;
use cards::IoUring;
use serde_json::{Map, Value, json};
use verdict::filter::{self, Action, FilterSpec, IoctlRule, MaskedEq};

use self::comparison::{Comparison, Op, covers, disjoint};
use super::Error;
use super::Plan;
use crate::json;

/// Which calls are the broker's.
#[derive(Debug, Clone)]
pub struct Rules {
    /// On `ioctl`'s command.
    pub ioctl: Vec<IoctlRule>,
}

impl Rules {
    /// No rules: nobody would answer.
    #[must_use]
    pub fn none() -> Self {
        Self { ioctl: Vec::new() }
    }

    /// The rules for a driver.
    #[must_use]
    pub fn of(spec: &FilterSpec) -> Self {
        Self {
            ioctl: filter::ioctl_rules(spec),
        }
    }
}

/// Position of the command among `ioctl`'s arguments.
const COMMAND: u64 = 1;

/// Adds our rules to the container's profile, or makes one.
pub(super) fn install(root: &mut Map<String, Value>, plan: &Plan<'_>) -> Result<(), Error> {
    // Without a broker nobody would answer: every notified call would wait for ever.
    if plan.grant.backend != cards::Backend::Broker {
        return Ok(());
    }
    let linux = json::child_object(root, "linux")?;
    let profile = json::child_object(linux, "seccomp")?;
    if is_ours(profile, plan.listener)? {
        return Ok(());
    }
    if !profile.contains_key("defaultAction") {
        if !profile.is_empty() {
            return Err(unusable("it has no defaultAction"));
        }
        profile.insert("defaultAction".to_owned(), json!("SCMP_ACT_ALLOW"));
    }
    profile.insert("architectures".to_owned(), json!([Arch::NATIVE.oci_name()]));
    let default = Outcome::of(profile, "defaultAction", "defaultErrnoRet")?;
    let rules = json::child_array(profile, "syscalls")?;
    // A bundle that was a plain container's.
    plain::withdraw(rules, &default);
    refuse_other_notifications(&default, rules)?;
    for call in [ioctl(plan.seccomp), mmap(), seccomp()] {
        restrict(rules, &default, &call)?;
    }
    deny(rules, &default, filter::REMAP_FILE_PAGES);
    match plan.grant.isolation.io_uring {
        IoUring::Allow => {}
        IoUring::Deny => {
            for (name, _) in filter::IO_URING {
                deny(rules, &default, name);
            }
        }
    }
    profile.insert(
        "listenerPath".to_owned(),
        json!(plan.listener.display().to_string()),
    );
    profile.insert(
        "listenerMetadata".to_owned(),
        json!(plan.grant.key.to_string()),
    );
    Ok(())
}

/// A container has one listener: with somebody else's, ours could not be.
fn is_ours(profile: &Map<String, Value>, listener: &Path) -> Result<bool, Error> {
    let listener = listener.display().to_string();
    match profile.get("listenerPath").and_then(Value::as_str) {
        Some(path) if path == listener => Ok(true),
        Some(path) if !path.is_empty() => Err(unusable(format!(
            "it names the listener {path:.128}, and a container can have only one; cgpu needs it"
        ))),
        _ => Ok(false),
    }
}

/// A profile's own notifications would come to our broker, which knows nothing of them.
fn refuse_other_notifications(default: &Outcome, rules: &[Value]) -> Result<(), Error> {
    if default.action == NOTIFY {
        return Err(unusable(
            "its defaultAction is SCMP_ACT_NOTIFY; a container can have only one listener, and cgpu needs it",
        ));
    }
    let notifying = rules.iter().find(|rule| rule["action"] == NOTIFY);
    match notifying {
        None => Ok(()),
        Some(rule) => Err(unusable(format!(
            "it sends {:.128} to another listener; a container can have only one, and cgpu needs it",
            names(rule).collect::<Vec<_>>().join(", ")
        ))),
    }
}

/// A call that fails as on a kernel without it, unless the profile denies it in its own way.
fn deny(rules: &mut Vec<Value>, default: &Outcome, name: &str) {
    let mut own = Vec::new();
    let mut kept = Vec::new();
    for rule in std::mem::take(rules) {
        let (ours, others) = without(rule, name);
        own.extend(ours);
        kept.extend(others);
    }
    *rules = kept;
    let denied = own
        .iter()
        .filter(|rule| is_unconditional(rule))
        .find_map(|rule| Outcome::of_rule(rule).ok())
        .filter(|outcome| !outcome.is_permissive());
    let outcome = denied.unwrap_or_else(|| Change::Fail(ENOSYS).outcome(default));
    rules.push(rule_value(name, &[], &outcome));
}

/// What a kernel without a system call answers.
const ENOSYS: u16 = 38;

const NOTIFY: &str = "SCMP_ACT_NOTIFY";

fn unusable(problem: impl Into<String>) -> Error {
    Error::SeccompProfile {
        problem: problem.into(),
    }
}

/// Our rules on one system call.
struct Call {
    name: &'static str,
    /// What becomes different.
    ours: Vec<(Vec<Comparison>, Change)>,
    /// With `ours`, these match every call of this name. They may meet `ours`: libseccomp tests the comparison with more
    /// bits first.
    rest: Vec<Vec<Comparison>>,
}

#[derive(Clone, Copy)]
enum Change {
    Notify,
    Fail(u16),
}

fn ioctl(rules: &Rules) -> Call {
    let ours = rules
        .ioctl
        .iter()
        .map(|rule| {
            let change = match rule.action {
                Action::Notify => Change::Notify,
                Action::Errno(errno) => Change::Fail(errno),
            };
            (vec![Comparison::masked(COMMAND, rule.when)], change)
        })
        .collect();
    let bit = |value| vec![Comparison::masked(COMMAND, MaskedEq { mask: 1, value })];
    Call {
        name: "ioctl",
        ours,
        rest: vec![bit(0), bit(1)],
    }
}

/// Shared mappings of a file at an offset or at a fixed address: `/dev/nvidia-uvm` makes managed memory of them. No two
/// comparisons of the flags hold at once, so that none depends on the order in which libseccomp tests them.
fn mmap() -> Call {
    let (flags, offset) = (3, 5);
    let flags_are = |when| Comparison::masked(flags, when);
    let at = |op| Comparison {
        index: offset,
        op,
        value: filter::MMAP.least_offset_bytes,
        value_two: 0,
    };
    let free = flags_are(filter::MMAP.at_free_addresses());
    let fixed = filter::MMAP.at_fixed_addresses();
    let mut ours = vec![(vec![free, at(Op::GreaterOrEqual)], Change::Notify)];
    ours.extend(fixed.map(|when| (vec![flags_are(when)], Change::Notify)));
    let MaskedEq { mask, value } = filter::MMAP.shared;
    let anonymous = mask & !value;
    let masked = |mask, value| flags_are(MaskedEq { mask, value });
    Call {
        name: "mmap",
        ours,
        rest: vec![
            vec![free, at(Op::Less)],
            vec![masked(mask, 0)],
            vec![masked(anonymous, anonymous)],
        ],
    }
}

/// `seccomp(2)` with the flag NEW_LISTENER. Every other operation than SET_MODE_FILTER fails with that flag set anyway, so
/// that the flag alone is compared; plain filters can be installed as before.
fn seccomp() -> Call {
    let flags = 1;
    let (_set_mode_filter, new_listener) = filter::NEW_LISTENER;
    let clear = MaskedEq {
        mask: new_listener.mask,
        value: 0,
    };
    Call {
        name: "seccomp",
        ours: vec![(
            vec![Comparison::masked(flags, new_listener)],
            Change::Fail(filter::EBUSY),
        )],
        rest: vec![vec![Comparison::masked(flags, clear)]],
    }
}

/// libseccomp leaves a comparison of no bits out: a rule with no other is an unconditional one, and the first of those holds.
fn refuse_empty_masks(rule: &Value, call: &str) -> Result<(), Error> {
    let conditions = rule.get("args").and_then(Value::as_array);
    let compares_nothing = |condition: &Value| {
        condition["op"] == "SCMP_CMP_MASKED_EQ" && condition["value"].as_u64() == Some(0)
    };
    if conditions.into_iter().flatten().any(compares_nothing) {
        return Err(unusable(format!(
            "a condition on {call} compares no bit (SCMP_CMP_MASKED_EQ with value 0); leave the condition out"
        )));
    }
    Ok(())
}

/// Rewrites the rules on one call so that `call.ours` hold in addition to what the profile denies.
fn restrict(rules: &mut Vec<Value>, default: &Outcome, call: &Call) -> Result<(), Error> {
    let mut own = Vec::new();
    for rule in rules.iter() {
        if let (Some(rule), _) = without(rule.clone(), call.name) {
            let outcome = Outcome::of_rule(&rule)?;
            // What equals the profile's default says nothing: runc skips it.
            if outcome != *default {
                refuse_empty_masks(&rule, call.name)?;
                own.push((rule, outcome));
            }
        }
    }
    let unconditional = own
        .iter()
        .find(|(rule, _)| is_unconditional(rule))
        .map(|(_, outcome)| outcome.clone());
    let otherwise = unconditional.as_ref().unwrap_or(default);
    if !otherwise.is_permissive() && (unconditional.is_some() || own.is_empty()) {
        // Denied as a whole, by name or by default: nothing to see for the broker.
        return Ok(());
    }

    let mut kept: Vec<Value> = std::mem::take(rules)
        .into_iter()
        .filter_map(|rule| without(rule, call.name).1)
        .collect();
    for (rule, outcome) in own.into_iter().filter(|(rule, _)| !is_unconditional(rule)) {
        if keep_conditional(&rule, &outcome, otherwise, call)? {
            kept.push(rule);
        }
    }
    *rules = kept;

    for (comparisons, change) in &call.ours {
        if !denied_already(rules, call.name, comparisons) {
            rules.push(rule_value(call.name, comparisons, &change.outcome(default)));
        }
    }
    if let Some(allowed) = unconditional {
        rules.extend(
            call.rest
                .iter()
                .map(|comparisons| rule_value(call.name, comparisons, &allowed)),
        );
    }
    Ok(())
}

impl Change {
    fn outcome(self, default: &Outcome) -> Outcome {
        match self {
            Self::Notify => Outcome {
                action: NOTIFY.to_owned(),
                errno: None,
            },
            Self::Fail(errno) => {
                let outcome = |errno| Outcome {
                    action: "SCMP_ACT_ERRNO".to_owned(),
                    errno: Some(u64::from(errno)),
                };
                let needed = outcome(errno);
                // EINVAL: a refusal that every caller knows too.
                if needed == *default {
                    outcome(22)
                } else {
                    needed
                }
            }
        }
    }
}

/// Whether a conditional rule of the profile stays. Denials stay. An allowance stays if it meets none of ours; if ours
/// cover it, or the call is allowed otherwise anyway, it goes; else it cannot be kept exactly.
fn keep_conditional(
    rule: &Value,
    outcome: &Outcome,
    otherwise: &Outcome,
    call: &Call,
) -> Result<bool, Error> {
    if !outcome.is_permissive() {
        return Ok(true);
    }
    let alternatives = alternatives(rule, call.name)?;
    let meets = |ours: &[Comparison]| alternatives.iter().any(|theirs| !disjoint(theirs, ours));
    if !call.ours.iter().any(|(ours, _)| meets(ours)) {
        return Ok(true);
    }
    let covered = alternatives
        .iter()
        .all(|theirs| call.ours.iter().any(|(ours, _)| covers(ours, theirs)));
    if otherwise.is_permissive() || covered {
        return Ok(false);
    }
    Err(unusable(format!(
        "it allows {} under a condition that meets the card's calls only in part; allow single values (SCMP_CMP_EQ), or all of it",
        call.name
    )))
}

/// The same condition twice with two actions is an error of libseccomp's; the profile's denial holds.
fn denied_already(rules: &[Value], name: &str, comparisons: &[Comparison]) -> bool {
    rules
        .iter()
        .filter(|rule| names(rule).any(|other| other == name))
        .any(|rule| {
            alternatives(rule, name)
                .is_ok_and(|alternatives| alternatives.iter().any(|theirs| theirs == comparisons))
        })
}

/// An action and, for `SCMP_ACT_ERRNO` and `SCMP_ACT_TRACE`, its number.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Outcome {
    action: String,
    errno: Option<u64>,
}

impl Outcome {
    fn of(object: &Map<String, Value>, action_key: &str, errno_key: &str) -> Result<Self, Error> {
        let action = object
            .get(action_key)
            .and_then(Value::as_str)
            .ok_or_else(|| unusable(format!("a rule has no {action_key}")))?;
        // Two names of one action: runc compares the actions, and skips a rule that says what the default says.
        let action = match action {
            "SCMP_ACT_KILL_THREAD" => "SCMP_ACT_KILL",
            other => other,
        };
        // Without a number runc answers EPERM.
        let errno = matches!(action, "SCMP_ACT_ERRNO" | "SCMP_ACT_TRACE")
            .then(|| object.get(errno_key).and_then(Value::as_u64).unwrap_or(1));
        Ok(Self {
            action: action.to_owned(),
            errno,
        })
    }

    fn of_rule(rule: &Value) -> Result<Self, Error> {
        let object = rule
            .as_object()
            .ok_or_else(|| unusable("a rule is not an object"))?;
        Self::of(object, "action", "errnoRet")
    }

    /// Everything that is not known to deny.
    fn is_permissive(&self) -> bool {
        !matches!(
            self.action.as_str(),
            "SCMP_ACT_KILL"
                | "SCMP_ACT_KILL_THREAD"
                | "SCMP_ACT_KILL_PROCESS"
                | "SCMP_ACT_TRAP"
                | "SCMP_ACT_ERRNO"
        )
    }
}

/// A rule's conditions as runc reads them: all hold together, unless one argument is named twice: then any one is enough.
fn alternatives(rule: &Value, call: &str) -> Result<Vec<Vec<Comparison>>, Error> {
    let conditions = rule
        .get("args")
        .and_then(Value::as_array)
        .map_or(&[][..], Vec::as_slice);
    let comparisons = conditions
        .iter()
        .map(|condition| Comparison::of(condition, call))
        .collect::<Result<Vec<_>, _>>()?;
    let repeated = comparisons.iter().enumerate().any(|(at, one)| {
        comparisons
            .iter()
            .take(at)
            .any(|other| other.index == one.index)
    });
    Ok(if repeated {
        comparisons.into_iter().map(|one| vec![one]).collect()
    } else {
        vec![comparisons]
    })
}

fn names(rule: &Value) -> impl Iterator<Item = &str> {
    rule.get("names")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
}

fn is_unconditional(rule: &Value) -> bool {
    rule.get("args")
        .is_none_or(|args| args.is_null() || args.as_array().is_some_and(Vec::is_empty))
}

/// Splits a rule: what it says of this call, and what it says of others. All its other fields stay with both.
fn without(rule: Value, name: &str) -> (Option<Value>, Option<Value>) {
    if !names(&rule).any(|other| other == name) {
        return (None, Some(rule));
    }
    let others: Vec<Value> = names(&rule)
        .filter(|other| *other != name)
        .map(|other| json!(other))
        .collect();
    let mut own = rule.clone();
    set(&mut own, "names", json!([name]));
    if others.is_empty() {
        return (Some(own), None);
    }
    let mut rest = rule;
    set(&mut rest, "names", Value::Array(others));
    (Some(own), Some(rest))
}

/// A rule is an object.
fn set(rule: &mut Value, field: &str, value: Value) {
    if let Some(rule) = rule.as_object_mut() {
        rule.insert(field.to_owned(), value);
    }
}

fn rule_value(name: &str, comparisons: &[Comparison], outcome: &Outcome) -> Value {
    let args: Vec<Value> = comparisons
        .iter()
        .map(|comparison| comparison.value())
        .collect();
    let mut rule = json!({"names": [name], "action": outcome.action, "args": args});
    if let Some(errno) = outcome.errno {
        set(&mut rule, "errnoRet", json!(errno));
    }
    rule
}

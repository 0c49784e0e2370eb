//! Two recordings of one program, compared.

use std::collections::HashMap;

use serde::Serialize;

use super::{Answer, Call, What};

/// A call that the same program got another answer to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Difference {
    /// Which call of the second recording, from 1 on.
    pub(crate) step: usize,
    /// Its name.
    pub(crate) call: String,
    /// The answer in the first recording.
    pub(crate) natively: String,
    /// The answer in the second.
    pub(crate) here: String,
}

/// A call of a recording that cgpu has no row for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Unknown {
    /// What is lacking.
    pub(crate) kind: &'static str,
    /// The call.
    pub(crate) call: String,
    /// How often it was made.
    pub(crate) times: usize,
    /// The first answer.
    pub(crate) answer: String,
}

/// What the second recording's program was refused that the first one's was not, in order: of calls that are alike, the first
/// is compared with the first, the second with the second and so on, since threads mix their calls in any order.
pub(crate) fn differences(native: &[Call], here: &[Call]) -> Vec<Difference> {
    let mut answers: HashMap<&What, Vec<Answer>> = HashMap::new();
    for call in native {
        answers.entry(&call.what).or_default().push(call.answer);
    }
    let mut seen: HashMap<&What, usize> = HashMap::new();
    let mut found = Vec::new();
    for (step, call) in (1..).zip(here) {
        let nth = seen.entry(&call.what).or_default();
        let of_this_kind = answers.get(&call.what);
        let natively =
            of_this_kind.and_then(|answers| answers.get(*nth).or_else(|| answers.last()));
        *nth += 1;
        if let Some(natively) = natively
            && natively.is_success()
            && !call.answer.is_success()
        {
            found.push(Difference {
                step,
                call: call.what.to_string(),
                natively: natively.to_string(),
                here: call.answer.to_string(),
            });
        }
    }
    found
}

/// A control that succeeded in both recordings and whose parameters came back otherwise: what a view rewrites, and what it should have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct OtherAnswer {
    /// Its name.
    pub(crate) call: String,
    /// Which block, 1 for the parameters, and the first byte of it that differs.
    pub(crate) block: usize,
    pub(crate) at: usize,
    /// Up to 16 bytes from there, in hexadecimal.
    pub(crate) natively: String,
    pub(crate) here: String,
}

/// The controls that were answered otherwise, each kind once: the first call of each recording is compared with the first, and so on.
pub(crate) fn other_answers(native: &[Call], here: &[Call]) -> Vec<OtherAnswer> {
    let blocks = |call: &Call| -> Option<Vec<String>> {
        let is_a_control = call.what.is_a_control() && call.answer.is_success();
        let bytes = call.bytes.as_ref().filter(|_| is_a_control)?;
        let unchanged = bytes.answered.is_empty();
        let after = if unchanged {
            &bytes.requested
        } else {
            &bytes.answered
        };
        Some(after.get(1..)?.to_vec())
    };
    let mut natively: HashMap<&What, Vec<Option<Vec<String>>>> = HashMap::new();
    for call in native {
        natively.entry(&call.what).or_default().push(blocks(call));
    }
    let mut seen: HashMap<&What, usize> = HashMap::new();
    let mut found: Vec<OtherAnswer> = Vec::new();
    for call in here {
        let nth = seen.entry(&call.what).or_default();
        let theirs = natively.get(&call.what).and_then(|calls| calls.get(*nth));
        *nth += 1;
        let (Some(Some(theirs)), Some(ours)) = (theirs, blocks(call)) else {
            continue;
        };
        let name = call.what.to_string();
        let differs = (1..)
            .zip(theirs.iter().zip(&ours))
            .find(|(_, (a, b))| a != b);
        if let Some((block, (theirs, ours))) = differs
            && found.iter().all(|it| it.call != name)
        {
            let same = theirs.bytes().zip(ours.bytes()).take_while(|(a, b)| a == b);
            let at = same.count() / 2;
            let cut = |text: &str| text.chars().skip(at * 2).take(32).collect();
            found.push(OtherAnswer {
                call: name,
                block,
                at,
                natively: cut(theirs),
                here: cut(ours),
            });
        }
    }
    found
}

/// Calls without a row, in the order of their first.
pub(crate) fn unknown(calls: &[Call]) -> Vec<Unknown> {
    let mut found: Vec<(&What, Unknown)> = Vec::new();
    for call in calls {
        let Some(kind) = call.what.lacks_a_row() else {
            continue;
        };
        match found.iter_mut().find(|(what, _)| **what == call.what) {
            Some((_, unknown)) => unknown.times += 1,
            None => {
                let unknown = Unknown {
                    kind,
                    call: call.what.to_string(),
                    times: 1,
                    answer: call.answer.to_string(),
                };
                found.push((&call.what, unknown));
            }
        }
    }
    found.into_iter().map(|(_, unknown)| unknown).collect()
}

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

//! Conditions of a profile's rules on a call's arguments.

use serde_json::{Value, json};
use verdict::filter::MaskedEq;

use super::unusable;
use crate::edit::Error;

/// One comparison of an argument, in the OCI specification's terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Comparison {
    pub(super) index: u64,
    pub(super) op: Op,
    pub(super) value: u64,
    /// The value that a masked comparison expects; 0 otherwise.
    pub(super) value_two: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Op {
    NotEqual,
    Less,
    LessOrEqual,
    Equal,
    GreaterOrEqual,
    Greater,
    MaskedEqual,
}

const OPS: [(Op, &str); 7] = [
    (Op::NotEqual, "SCMP_CMP_NE"),
    (Op::Less, "SCMP_CMP_LT"),
    (Op::LessOrEqual, "SCMP_CMP_LE"),
    (Op::Equal, "SCMP_CMP_EQ"),
    (Op::GreaterOrEqual, "SCMP_CMP_GE"),
    (Op::Greater, "SCMP_CMP_GT"),
    (Op::MaskedEqual, "SCMP_CMP_MASKED_EQ"),
];

impl Comparison {
    pub(super) fn masked(index: u64, when: MaskedEq) -> Self {
        Self {
            index,
            op: Op::MaskedEqual,
            value: u64::from(when.mask),
            value_two: u64::from(when.value),
        }
    }

    pub(super) fn of(value: &Value, call: &str) -> Result<Self, Error> {
        let field = |key| value.get(key).and_then(Value::as_u64);
        let op = value.get("op").and_then(Value::as_str);
        let op = OPS
            .iter()
            .find(|(_, name)| op == Some(*name))
            .map(|(op, _)| *op);
        match (field("index"), op, field("value")) {
            (Some(index), Some(op), Some(operand)) => Ok(Self {
                index,
                op,
                value: operand,
                value_two: if op == Op::MaskedEqual {
                    field("valueTwo").unwrap_or(0)
                } else {
                    0
                },
            }),
            _ => Err(unusable(format!(
                "a condition on {call} is not an index, a known operator and a value"
            ))),
        }
    }

    pub(super) fn value(self) -> Value {
        let op = OPS
            .iter()
            .find(|(op, _)| *op == self.op)
            .map_or("", |(_, name)| *name);
        json!({"index": self.index, "value": self.value, "valueTwo": self.value_two, "op": op})
    }

    /// Whether no argument matches both; `false` where that is not certain. `ours` is masked, or a bound.
    fn excludes(self, ours: Self) -> bool {
        if self.index != ours.index {
            return false;
        }
        match (self.op, ours.op) {
            (Op::Equal, Op::MaskedEqual) => self.value & ours.value != ours.value_two,
            (Op::MaskedEqual, Op::MaskedEqual) => {
                (self.value_two ^ ours.value_two) & self.value & ours.value != 0
            }
            // The smallest match of a masked comparison is its value.
            (Op::Less, Op::MaskedEqual) => ours.value_two >= self.value,
            (Op::LessOrEqual, Op::MaskedEqual) => ours.value_two > self.value,
            (Op::Equal, Op::GreaterOrEqual) | (Op::LessOrEqual, Op::GreaterOrEqual) => {
                self.value < ours.value
            }
            (Op::Less, Op::GreaterOrEqual) => self.value <= ours.value,
            _ => false,
        }
    }

    /// Whether every argument that matches `self` matches `ours`; `false` where that is not certain.
    fn is_within(self, ours: Self) -> bool {
        if self.index != ours.index {
            return false;
        }
        match (self.op, ours.op) {
            (Op::Equal, Op::MaskedEqual) => self.value & ours.value == ours.value_two,
            (Op::MaskedEqual, Op::MaskedEqual) => {
                self.value & ours.value == ours.value
                    && self.value_two & ours.value == ours.value_two
            }
            (Op::Equal | Op::GreaterOrEqual, Op::GreaterOrEqual) => self.value >= ours.value,
            _ => false,
        }
    }
}

/// Comparisons of one alternative all hold; one contradiction is enough.
pub(super) fn disjoint(theirs: &[Comparison], ours: &[Comparison]) -> bool {
    ours.iter()
        .any(|ours| theirs.iter().any(|theirs| theirs.excludes(*ours)))
}

pub(super) fn covers(ours: &[Comparison], theirs: &[Comparison]) -> bool {
    ours.iter()
        .all(|ours| theirs.iter().any(|theirs| theirs.is_within(*ours)))
}

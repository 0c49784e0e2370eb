//! A container's share of a card's time: what it was promised, and what its broker says has become of it.

use control::ComputeStatus;
use plan::{CardRules, Policy, Terms};
use serde::{Deserialize, Serialize};

/// A share as documents have it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// How the time is divided: `fair-share`, `preemptive`, `weighted`, `fixed`, `soft` or `native`.
    pub policy: Option<String>,
    /// Cap (fixed) or floor (soft), percent of the card.
    pub percent: Option<u64>,
    /// Relative weight.
    pub weight: Option<u64>,
    /// `high`, `normal` or `low`.
    pub priority: Option<String>,
    /// What it is entitled to among those that are there now, parts of a million; absent where no governor holds it.
    pub entitlement_ppm: Option<u64>,
    /// How well its driver lets it be held: `3` in full … `0` not at all; `-`: nothing could be tried yet.
    pub enforcement_level: Option<String>,
    /// Why by no more.
    pub reason: Option<String>,
    /// Whether the enforcement level holds what was promised.
    pub holds: Option<bool>,
    /// Whether its channels may run now: `open` or `closed`.
    pub gate: Option<String>,
    /// The card's time that it has had since it began, nanoseconds.
    pub used_ns: Option<u64>,
    /// Its part of the last second or so, parts of a million.
    pub used_ppm: Option<u64>,
    /// How long its channels were stopped while it had work, nanoseconds; begins anew with each broker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throttled_ns: Option<u64>,
    /// Calls to the card's scheduler since it began.
    pub knob_calls: Option<u64>,
    /// How long one takes, nanoseconds.
    pub knob_latency_ns: Option<u64>,
    /// How often its governor raised an alarm.
    pub alarms: Option<u64>,
}

impl Share {
    /// What was promised, where no broker has said anything.
    #[must_use]
    pub fn reserved(terms: &Terms) -> Self {
        Self {
            policy: Some(terms.policy.name().to_owned()),
            percent: terms.percent.map(u64::from),
            weight: Some(u64::from(terms.weight)),
            priority: Some(terms.priority.name().to_owned()),
            ..Self::default()
        }
    }

    /// What a broker says, over what was promised.
    #[must_use]
    pub fn reported(reserved: Self, status: Option<&ComputeStatus>) -> Self {
        let Some(ComputeStatus {
            governor,
            used_ns,
            used_ppm,
        }) = status
        else {
            return reserved;
        };
        Self {
            entitlement_ppm: Some(u64::from(governor.entitlement_ppm)),
            enforcement_level: governor
                .enforcement_level
                .map(|level| level.name().to_owned()),
            reason: governor.reason.as_ref().map(ToString::to_string),
            holds: Some(governor.holds),
            gate: Some(governor.gate.name().to_owned()),
            used_ns: *used_ns,
            used_ppm: used_ppm.map(u64::from),
            throttled_ns: governor.throttled_ns,
            knob_calls: Some(governor.counts.calls),
            knob_latency_ns: Some(governor.latency.mean_ns),
            alarms: Some(governor.counts.alarms),
            // The terms that the broker has are those that hold.
            ..Self::reserved(&governor.terms)
        }
    }

    /// The terms in a few words: `fixed 30 %`, `weighted 3`, `native, high`.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = self.policy.clone().unwrap_or_else(|| "-".to_owned());
        if let Some(percent) = self.percent {
            text.push_str(&format!(" {percent} %"));
        }
        let weighs = match self.policy.as_deref() {
            Some("weighted") => true,
            Some("soft") => self.percent.is_none() || self.weight.is_some_and(|weight| weight > 1),
            _ => self.weight.is_some_and(|weight| weight > 1),
        };
        if let Some(weight) = self.weight.filter(|_| weighs) {
            text.push_str(&format!(" weight {weight}"));
        }
        if let Some(priority) = self.priority.as_deref().filter(|name| *name != "normal") {
            text.push_str(&format!(", {priority}"));
        }
        text
    }
}

/// Parts of a million as people read them: `30 %`, `33.3 %`.
#[must_use]
pub fn percent_of(ppm: u64) -> String {
    let tenths = (ppm + 500) / 1_000;
    if tenths.is_multiple_of(10) {
        format!("{} %", tenths / 10)
    } else {
        format!("{}.{} %", tenths / 10, tenths % 10)
    }
}

/// A card's rules, as documents have them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// Of containers that name none.
    pub policy: String,
    /// The most containers with terms.
    pub max_tenants: u32,
    /// `borrow` or `waste`.
    pub idle: plan::Idle,
    /// The most that high priority gets while others wait, percent.
    pub prio_ratio_percent: u32,
}

impl Rules {
    /// In a line.
    #[must_use]
    pub fn text(&self) -> String {
        let idle: &str = self.idle.into();
        format!(
            "policy {}, max tenants {}, idle {idle}, prio ratio {} %",
            self.policy, self.max_tenants, self.prio_ratio_percent
        )
    }
}

impl From<&CardRules> for Rules {
    fn from(rules: &CardRules) -> Self {
        Self {
            policy: Policy::name(rules.policy).to_owned(),
            max_tenants: rules.max_tenants,
            idle: rules.idle,
            prio_ratio_percent: rules.prio_ratio_percent,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plan::Priority;
    use serde_json::json;

    fn fixed() -> Share {
        Share::reserved(&Terms {
            policy: Policy::Fixed,
            percent: Some(30),
            weight: 1,
            priority: Priority::Normal,
        })
    }

    #[test]
    fn what_a_broker_reports_goes_over_what_was_reserved() {
        assert_eq!(fixed().text(), "fixed 30 %");
        let status: ComputeStatus = serde_json::from_value(json!({
            "terms": {"policy": "weighted", "percent": null, "weight": 3, "priority": "high"},
            "entitlement_ppm": 333_333, "enforcement_level": "gate", "holds": true, "window_ns": 0, "slice_us": 0, "tenants": 2,
            "gate": {"state": "closed", "opens_at_ns": 1}, "ratio_enforced": null,
            "reason": {"kind": "refused", "knob": "SET_TIMESLICE", "status": 86},
            "latency": {"mean_ns": 160_000, "p50_ns": 1, "p99_ns": 2, "max_ns": 3},
            "counts": {"calls": 9, "slow": 0, "refused": 0, "lost": 0, "bad_records": 0, "late": 0, "alarms": 1},
            "used_ns": 7, "used_ppm": 250_000
        }))
        .unwrap();
        let reported = Share::reported(fixed(), Some(&status));
        assert_eq!(reported.text(), "weighted weight 3, high");
        assert_eq!(
            (reported.enforcement_level.as_deref(), reported.used_ns),
            (Some("3"), Some(7))
        );
        assert_eq!(
            (reported.gate.as_deref(), reported.knob_calls),
            (Some("closed"), Some(9))
        );
        assert!(
            reported
                .reason
                .unwrap()
                .contains("SET_TIMESLICE with status 0x56")
        );
        // Silence leaves the promise.
        assert_eq!(Share::reported(fixed(), None), fixed());
    }

    #[test]
    fn parts_are_reported_in_percent() {
        for (ppm, text) in [
            (0, "0 %"),
            (300_000, "30 %"),
            (333_333, "33.3 %"),
            (999_999, "100 %"),
            (4_200, "0.4 %"),
            (1_000_000, "100 %"),
        ] {
            assert_eq!(percent_of(ppm), text);
        }
    }
}

//! What a broker may be asked, and its answers, but for the status.

use std::path::PathBuf;

use plan::Terms;
use serde::{Deserialize, Serialize};

use crate::exports::ExportsOf;

/// What may be asked. Whatever cannot be done is answered by `{"error": "…"}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// The account as it is; the answer is a [`Status`](crate::Status).
    Status,
    /// Other quotas from now on; see [`Quotas`]. Cards that are not named keep theirs.
    SetQuota {
        /// By card.
        cards: Vec<NewQuota>,
    },
    /// Other terms for the container's share from now on, which admission has agreed to; see [`NewShares`]. Cards that are not
    /// named keep theirs.
    SetCompute {
        /// By card.
        cards: Vec<NewTerms>,
    },
    /// Compare the ledger with what the driver counts, now. The answer has two lists of [`Drift`](crate::Drift): `drift`, every
    /// card, and `violations`, those on which the driver counts more for the second time.
    Reconcile,
    /// From another broker: see [`PeerExports`](crate::PeerExports).
    ExportsOf(ExportsOf),
    /// Replace the broker by this program, which the supervisor takes from root only; see [`Upgraded`].
    Upgrade {
        /// Its absolute path.
        program: PathBuf,
    },
}

/// A card's quota.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewQuota {
    /// `GPU-…`
    pub uuid: String,
    /// Bytes.
    pub quota_bytes: u64,
}

/// The answer to [`Request::SetQuota`]: the cards that were named, as they are now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quotas {
    /// As they were named.
    pub cards: Vec<Quota>,
}

/// One of [`Quotas`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    /// `GPU-…`
    pub uuid: String,
    /// Quota, bytes.
    pub quota_bytes: u64,
    /// Held and reserved, bytes; it may be more than the quota, and new allocations are refused then.
    pub used_bytes: u64,
}

/// The terms of a container's share of one card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewTerms {
    /// `GPU-…`
    pub uuid: String,
    /// What it is promised.
    pub terms: Terms,
}

/// The answer to [`Request::SetCompute`]: the cards that were named, as they are now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewShares {
    /// As they were named.
    pub cards: Vec<NewTerms>,
}

/// The answer to [`Request::Upgrade`], from the supervisor. After an error the former program serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upgraded {
    /// The broker that served until now.
    pub old_pid: i32,
    /// The broker that serves now.
    pub pid: i32,
    /// For how long calls waited, microseconds.
    pub pause_us: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_one_object_by_its_op_and_an_unknown_key_is_refused() {
        let requested = Request::ExportsOf(ExportsOf {
            fd: 7,
            group: "default/pair".to_owned(),
        });
        let text = serde_json::to_string(&requested).unwrap();
        assert_eq!(text, r#"{"op":"exports_of","fd":7,"group":"default/pair"}"#);
        assert_eq!(serde_json::from_str::<Request>(&text).unwrap(), requested);
        let other = text.replace("\"fd\"", "\"more\":1,\"fd\"");
        serde_json::from_str::<Request>(&other).unwrap_err();
        serde_json::from_str::<Request>(r#"{"op":"stop"}"#).unwrap_err();
    }
}

//! What the driver needs of its node, as a seam: [`crate::Host`] is the node itself.

use std::fmt;
use std::path::PathBuf;

use cards::claims::{ClaimUid, Record};
use cards::placement::Policy;
use cards::{Card, CardRules};
use host_config::config::Strength;

use crate::names::is_label;

/// Why the node could not do it; its text is for people.
pub type Fault = Box<dyn std::error::Error + Send + Sync>;

/// Reserves what a claim was given, durably, and lets its pods in. A claim that is known gets the pods that are new. It asks the driver nothing.
pub type Reserve = Box<dyn FnOnce(&Record) -> Result<(), Fault> + Send>;

/// A node. Its methods may block.
pub trait Node: fmt::Debug + Send + Sync {
    /// Its cards as they are now.
    ///
    /// # Errors
    /// A driver that cannot name its cards, or an account that cannot be read.
    fn cards(&self) -> Result<NodeCards, Fault>;

    /// Why nobody can say how its cards are; `None`: somebody can. It may take a second.
    fn silence(&self) -> Option<String>;

    /// The claims that are prepared on it.
    ///
    /// # Errors
    /// A record that cannot be read.
    fn records(&self) -> Result<Vec<Record>, Fault>;

    /// The folders of the logs of containers (`cards::events`), and whose container each is; `None`: of no pod that is known.
    ///
    /// # Errors
    /// A folder that cannot be read.
    fn logs(&self) -> Result<Vec<(PathBuf, Option<PodOfLog>)>, Fault>;

    /// Asks the driver what a reservation needs, which takes as long as the driver does; what is returned then reserves, or fails with
    /// what does not fit or cannot be written.
    ///
    /// # Errors
    /// A driver that cannot be asked.
    fn prepare(&self) -> Result<Reserve, Fault>;

    /// Lets the pods of a record in to a claim that is prepared with the same shares; another one, or an unknown one, is left as it is.
    ///
    /// # Errors
    /// What cannot be written.
    fn let_in(&self, record: &Record) -> Result<(), Fault>;

    /// Gives that back; an unknown claim is fine.
    ///
    /// # Errors
    /// What cannot be written.
    fn release(&self, claim: &ClaimUid) -> Result<(), Fault>;
}

/// The pod of a container that has a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodOfLog {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod.
    pub name: String,
    /// Its uid, where one of its claims is prepared.
    pub uid: Option<String>,
    /// The container in it.
    pub container: String,
    /// A claim of the pod: name and uid.
    pub claim: Option<(String, String)>,
}

/// A node's cards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeCards {
    /// Release of the driver, for example `570.195.03`.
    pub driver_version: String,
    /// How a card's time is divided.
    pub rules: CardRules,
    /// How well memory is held.
    pub strength: Strength,
    /// Which card comes first.
    pub order: Policy,
    /// The cards, by index.
    pub cards: Vec<NodeCard>,
}

/// A card and what is known of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeCard {
    /// The card.
    pub card: Card,
    /// What is wrong with it.
    pub trouble: Option<Trouble>,
    /// Memory that containers or claims have, bytes.
    pub reserved_bytes: u64,
    /// What of that is outside of the cluster, which does not count it, bytes.
    pub outside_bytes: u64,
}

/// What is wrong with a card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// What kind of thing.
    pub kind: TroubleKind,
    /// For people.
    pub reason: String,
    /// Since when, milliseconds since 1970.
    pub since_unix_ms: u64,
}

/// What can be wrong with a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TroubleKind {
    /// The driver reported this Xid.
    Xid(u32),
    /// The driver has lost it.
    Lost,
    /// Nobody can say how it is.
    Unmonitored,
}

impl NodeCard {
    /// Its name in the cluster. It comes from the UUID and not from a number: claims outlive a reboot, after which numbers can be others'.
    #[must_use]
    pub fn device(&self) -> String {
        device_name(self.card.uuid.as_str())
    }
}

fn device_name(uuid: &str) -> String {
    let plain = uuid.to_ascii_lowercase();
    // A UUID with capitals of its own could be another one's lower case.
    let is_own = uuid.get(4..).is_some_and(|rest| plain.ends_with(rest));
    if is_own && is_label(&plain) {
        return plain;
    }
    format!("gpu-{:.32}", cards::digest(uuid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_named_after_its_card_for_life() {
        assert_eq!(
            device_name("GPU-8d8a6b0f-31c1-4a2c-9a40-0a2b5b1f0001"),
            "gpu-8d8a6b0f-31c1-4a2c-9a40-0a2b5b1f0001"
        );
        let others = [
            "GPU-A",
            "GPU-a",
            "GPU-a-",
            "MIG-a",
            &format!("GPU-{}", "a".repeat(60)),
        ];
        let names: std::collections::BTreeSet<String> =
            others.iter().map(|uuid| device_name(uuid)).collect();
        assert_eq!(names.len(), others.len(), "{names:?}");
        assert!(names.iter().all(|name| is_label(name)), "{names:?}");
    }
}

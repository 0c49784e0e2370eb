//! A namespace with a maximum, and the annotations that the controller keeps of it.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::{Patch, PatchParams};

use super::claim::Claim;
use super::settle::settle;
use crate::api::{self, Connection};
use crate::error::Error;
use crate::quantity;

/// The administrator's: memory that claims may have in all.
const MAX: &str = "cgpu.io/max-memory";
/// What they have or ask for.
const CLAIMED: &str = "cgpu.io/memory-claimed";
/// Claims that may be allocated and are not yet, `uid:bytes` each: what they may be given at most.
const GRANTED: &str = "cgpu.io/memory-granted";
/// What a claim counts for that asks for a whole card.
const CARD: &str = "cgpu.io/card-memory";
/// All that the controller writes.
const KEPT: [&str; 3] = [CLAIMED, GRANTED, CARD];

const FIELD_MANAGER: &str = "cgpu-templates";

/// One of them.
#[derive(Debug)]
pub(super) struct Limited {
    /// `None`: there is none any more, or it is no amount.
    max_bytes: Option<u64>,
    /// Those of [`KEPT`] that are there.
    kept: BTreeMap<&'static str, String>,
    version: Option<String>,
    /// Whether the last write was in vain.
    pub(super) has_failed: bool,
}

/// Uids of claims that may be allocated in this namespace and are not yet. `None`: it has no maximum, or nobody counts there.
pub(crate) fn grants(metadata: &ObjectMeta) -> Option<BTreeSet<String>> {
    let is_limited = metadata.annotations.as_ref()?.contains_key(MAX);
    let (_, limited) = Limited::of(metadata)?;
    (is_limited && limited.kept.contains_key(CLAIMED)).then(|| limited.granted())
}

impl Limited {
    /// `None`: a namespace without a maximum, and without anything of a former one.
    pub(super) fn of(metadata: &ObjectMeta) -> Option<(String, Self)> {
        let annotations = metadata.annotations.as_ref()?;
        let max = annotations.get(MAX);
        let kept = KEPT
            .into_iter()
            .filter_map(|key| Some((key, annotations.get(key)?.clone())));
        let kept: BTreeMap<&str, String> = kept.collect();
        if max.is_none() && kept.is_empty() {
            return None;
        }
        let limited = Self {
            max_bytes: max.and_then(|max| quantity::whole(&Quantity(max.clone()))),
            kept,
            version: metadata.resource_version.clone(),
            has_failed: false,
        };
        Some((metadata.name.clone()?, limited))
    }

    #[cfg(test)]
    pub(super) fn kept(&self, key: &str) -> Option<&str> {
        self.kept.get(key).map(String::as_str)
    }

    /// Uids. A grant of before there were amounts has none, and keeps its place.
    fn granted(&self) -> BTreeSet<String> {
        let grants = self.kept.get(GRANTED).into_iter();
        let grants = grants.flat_map(|grants| grants.split(','));
        let uids = grants.map(|grant| grant.split_once(':').map_or(grant, |(uid, _)| uid));
        let uids = uids.filter(|uid| !uid.is_empty());
        uids.map(str::to_owned).collect()
    }

    fn due<'a>(
        &self,
        claims: impl Iterator<Item = &'a Claim>,
        largest_bytes: u64,
    ) -> BTreeMap<&'static str, String> {
        let Some(max_bytes) = self.max_bytes else {
            return BTreeMap::new();
        };
        let settled = settle(claims, max_bytes, largest_bytes, &self.granted());
        let granted = settled.granted.into_iter();
        let granted: Vec<String> = granted
            .map(|(uid, bytes)| format!("{uid}:{bytes}"))
            .collect();
        BTreeMap::from([
            (CLAIMED, quantity::bytes(settled.claimed_bytes).0),
            (GRANTED, granted.join(",")),
            (CARD, quantity::bytes(largest_bytes).0),
        ])
    }

    /// Writes what differs from what is there.
    ///
    /// # Errors
    /// The server does not answer, or the namespace is another one meanwhile: the next change of it settles it then.
    pub(super) async fn settle<'a>(
        &mut self,
        connection: &Connection,
        name: &str,
        claims: impl Iterator<Item = &'a Claim>,
        largest_bytes: u64,
    ) -> Result<(), Error> {
        let due = self.due(claims, largest_bytes);
        if due == self.kept {
            return Ok(());
        }
        let annotations = KEPT.map(|key| (key, due.get(key)));
        let annotations: BTreeMap<&str, Option<&String>> = annotations.into();
        // Of two controllers one decides: the other one's word is of an older version.
        let patch = Patch::Merge(serde_json::json!({
            "metadata": {"annotations": annotations, "resourceVersion": self.version},
        }));
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let namespaces: Api<Namespace> = connection.all().await?;
        let operation = || format!("annotate namespace {name}");
        let question = namespaces.patch_metadata(name, &params, &patch);
        let written = api::answer(operation, question).await?;
        self.version = written.metadata.resource_version;
        self.kept = due;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn limited(annotations: &Value) -> Option<(String, Limited)> {
        let metadata = json!({"name": "team", "resourceVersion": "7", "annotations": annotations});
        Limited::of(&serde_json::from_value(metadata).unwrap())
    }

    #[test]
    fn a_namespace_has_an_account_while_it_has_a_maximum() {
        assert!(limited(&Value::Null).is_none());
        assert!(limited(&json!({"a": "b"})).is_none());
        let (name, of_max) = limited(&json!({MAX: "64Gi"})).unwrap();
        assert_eq!(name, "team");
        let due = of_max.due(std::iter::empty(), 24 << 30);
        assert_eq!(
            due,
            BTreeMap::from([
                (CLAIMED, "0".to_owned()),
                (GRANTED, String::new()),
                (CARD, "24Gi".to_owned()),
            ])
        );
        // What a former maximum has left is taken away, and so it is where nobody can read the maximum.
        for annotations in [
            json!({CLAIMED: "8Gi"}),
            json!({MAX: "much", GRANTED: "a,b"}),
        ] {
            let (_, former) = limited(&annotations).unwrap();
            assert!(former.due(std::iter::empty(), 1).is_empty());
        }
    }

    #[test]
    fn grants_are_read_as_they_are_written() {
        let (_, limited) = limited(&json!({MAX: "1", GRANTED: "b:7,a:8,,former"})).unwrap();
        let granted: Vec<String> = limited.granted().into_iter().collect();
        assert_eq!(granted, ["a", "b", "former"]);
    }
}

//! The templates that are there, and the few things that are done with them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fit::lean;
use k8s_openapi::api::resource::v1::{ResourceClaimTemplate, ResourceClaimTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, ListParams, PostParams, Preconditions};
use tokio::time::Instant;

use super::needed::{Key, Needed, OF_NAMESPACE_MAX, Waiting};
use super::shape::Shape;
use crate::api::{self, Connection};
use crate::error::Error;
use crate::object_event::{ObjectEvent, Reporter};
use crate::quota;
use crate::reports::Reports;

/// The label of templates that the controller has made.
const MADE_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "cgpu-templates");

/// As whom it reports.
const REPORTER: Reporter = Reporter {
    component: "cgpu.io/templates",
    instance: "cgpu-templates",
};

/// What the server answers to an object that is there already.
const CONFLICT: u16 = 409;

/// What it answers to too many questions, whatever they are.
const TOO_MANY: u16 = 429;

/// The first status by which the fault is the server's: etcd or a webhook does not answer, which may pass in a moment.
const OF_SERVER: u16 = 500;

/// Reads, makes and deletes templates.
pub(super) struct Store {
    connection: Arc<Connection>,
    made: BTreeMap<Key, Made>,
    /// Names that somebody else has taken, or that are refused.
    refused: BTreeSet<Key>,
    /// Whether what the server answered for one of them since they were read may pass in a moment.
    is_busy: bool,
    pub(super) reports: Reports,
    /// Bytes of memory that the cluster's cards have, and how many cards, as far as parts of cards are needed.
    sizes: BTreeMap<u64, usize>,
}

/// A template of ours.
struct Made {
    uid: Option<String>,
    version: Option<String>,
}

impl Store {
    pub(super) fn new(connection: Arc<Connection>) -> Self {
        Self {
            connection,
            made: BTreeMap::new(),
            refused: BTreeSet::new(),
            is_busy: false,
            reports: Reports::default(),
            sizes: BTreeMap::new(),
        }
    }

    pub(super) fn has(&self, key: &Key) -> bool {
        self.made.contains_key(key)
    }

    /// Whether the last try to make it was in vain.
    pub(super) fn is_refused(&self, key: &Key) -> bool {
        self.refused.contains(key)
    }

    /// Whether what is refused may be made in a moment.
    pub(super) fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// Templates that the controller has made.
    pub(super) fn keys(&self) -> Vec<Key> {
        self.made.keys().cloned().collect()
    }

    /// Reads the templates, and the cards' sizes if a part of a card is needed. A template for parts of cards that are others now is
    /// deleted, and made anew where it is needed.
    pub(super) async fn read(&mut self, needed: &Needed) -> Result<(), Error> {
        let is_part = |name: &str| Shape::of_name(name).is_some_and(Shape::is_part);
        if needed.all().any(|((_, name), _)| is_part(name)) {
            self.sizes = quota::sizes(&self.connection).await?;
        }
        let label = format!("{}={}", MADE_BY.0, MADE_BY.1);
        let list = ListParams::default().labels(&label).limit(api::PAGE);
        let (mut made, mut outdated) = (BTreeMap::new(), Vec::new());
        let take = |template: lean::Template| {
            let lean::Template { metadata, spec } = template;
            let key = (
                metadata.namespace.unwrap_or_default(),
                metadata.name.unwrap_or_default(),
            );
            // Somebody else's with our label is not ours to delete.
            let Some(shape) = Shape::of_name(&key.1) else {
                return;
            };
            let is_other = |claim| spec.0.as_ref() != Some(&claim);
            if shape.is_part() && needed.has(&key) && shape.claim(&self.sizes).is_some_and(is_other)
            {
                outdated.push(key.clone());
            }
            let one = Made {
                uid: metadata.uid,
                version: metadata.resource_version,
            };
            made.insert(key, one);
        };
        self.connection
            .each("resourceclaimtemplates", list, take)
            .await?;
        self.made = made;
        self.refused.retain(|key| needed.has(key));
        self.is_busy = false;
        self.reports.begin(Instant::now());
        for key in outdated {
            self.delete(&key).await?;
        }
        Ok(())
    }

    /// Makes a template unless it is there. What the server refuses is reported to the pod that waits ([`Reports`]).
    ///
    /// # Errors
    /// The server does not answer.
    pub(super) async fn ensure(&mut self, key: &Key, waiting: &Waiting) -> Result<(), Error> {
        if self.made.contains_key(key) {
            return Ok(());
        }
        let (namespace, name) = key;
        let Some(shape) = Shape::of_name(name) else {
            return Ok(());
        };
        let from = (namespace.clone(), String::new());
        let of_namespace = self.made.range(from..).map(|((other, _), _)| other);
        let of_namespace = of_namespace.take_while(|other| *other == namespace);
        if of_namespace.count() >= OF_NAMESPACE_MAX {
            return self.leave_out(key, waiting).await;
        }
        if shape.is_part() && self.sizes.is_empty() {
            self.sizes = quota::sizes(&self.connection).await?;
        }
        let Some(spec) = shape.claim(&self.sizes) else {
            return self.refuse(key, waiting, "no node has a card yet").await;
        };
        let template = ResourceClaimTemplate {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                namespace: Some(namespace.clone()),
                labels: Some([(MADE_BY.0.to_owned(), MADE_BY.1.to_owned())].into()),
                ..ObjectMeta::default()
            },
            spec: ResourceClaimTemplateSpec {
                metadata: None,
                spec,
            },
        };
        let templates = self.connection.namespaced_once(namespace).await?;
        let operation = || format!("create resourceclaimtemplate {namespace}/{name}");
        let params = PostParams::default();
        match api::answer(operation, templates.create(&params, &template)).await {
            Ok(ResourceClaimTemplate { metadata, .. }) => {
                tracing::info!(namespace, name, "made");
                self.refused.remove(key);
                let made = Made {
                    uid: metadata.uid,
                    version: metadata.resource_version,
                };
                self.made.insert(key.clone(), made);
                Ok(())
            }
            // Another controller's, or the namespace's own.
            Err(Error::Api {
                status: Some(CONFLICT),
                ..
            }) => {
                self.refused.insert(key.clone());
                Ok(())
            }
            Err(Error::Api {
                status: Some(status),
                why,
                ..
            }) => {
                self.is_busy |= may_pass(status);
                // What lasts is reported when it is refused again.
                let is_first = !self.refused.contains(key);
                if status == TOO_MANY || is_first && may_pass(status) {
                    tracing::debug!(namespace, name, why, "a template is not made yet");
                    self.refused.insert(key.clone());
                    return Ok(());
                }
                self.refuse(key, waiting, &why).await
            }
            Err(error) => Err(error),
        }
    }

    /// Reports that a namespace's pods name too many templates.
    ///
    /// # Errors
    /// There is no connection.
    pub(super) async fn leave_out(&mut self, key: &Key, waiting: &Waiting) -> Result<(), Error> {
        let why = format!("the namespace has {OF_NAMESPACE_MAX} templates of classic pods");
        self.refuse(key, waiting, &why).await
    }

    /// Deletes a template, unless it is another one than was read.
    ///
    /// # Errors
    /// The server does not answer.
    pub(super) async fn delete(&mut self, key: &Key) -> Result<(), Error> {
        let Some(made) = self.made.remove(key) else {
            return Ok(());
        };
        let (namespace, name) = key;
        let templates = self
            .connection
            .namespaced_once::<ResourceClaimTemplate>(namespace)
            .await?;
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: made.uid,
                resource_version: made.version,
            }),
            ..DeleteParams::default()
        };
        let operation = || format!("delete resourceclaimtemplate {namespace}/{name}");
        match api::answer(operation, templates.delete(name, &params)).await {
            Ok(_) => tracing::info!(namespace, name, "collected"),
            // It is gone, or was changed since: the next look reads it anew.
            Err(Error::Api {
                status: Some(404 | CONFLICT),
                ..
            }) => {}
            Err(Error::Api {
                status: Some(status),
                why,
                ..
            }) => {
                tracing::warn!(namespace, name, why, "a template is not collected");
                self.is_busy |= may_pass(status);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    async fn refuse(&mut self, key: &Key, waiting: &Waiting, why: &str) -> Result<(), Error> {
        self.refused.insert(key.clone());
        let (namespace, name) = key;
        // One pod may name many that are refused, and many pods one: the first of them is reported.
        if !self.reports.take(namespace, &waiting.uid, Instant::now()) {
            tracing::debug!(namespace, name, why, "a template cannot be made");
            return Ok(());
        }
        tracing::warn!(namespace, name, why, "a template cannot be made");
        let event = ObjectEvent {
            namespace,
            name: &waiting.name,
            uid: &waiting.uid,
            kind: "Warning",
            reason: "TemplateRefused",
            action: "MakeTemplate",
            message: format!("ResourceClaimTemplate {name}: {why}"),
            reporter: REPORTER,
        };
        let reported = event.report(&self.connection).await;
        if !matches!(reported, Ok(true)) {
            let now = Instant::now();
            self.reports.lost(namespace, &waiting.uid, now);
        }
        reported.map(|_is_taken| ())
    }
}

/// Whether the same question may be answered otherwise in a moment.
fn may_pass(status: u16) -> bool {
    status == TOO_MANY || status >= OF_SERVER
}

//! An event of a pod, as the cluster's controllers report it.

use k8s_openapi::api::core::v1::{Event, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, Time};
use kube::api::PostParams;

use crate::api::{self, Connection};
use crate::error::Error;

/// The API's bound.
const MESSAGE_CHARS_MAX: usize = 1024;

/// What happened, and to which pod.
#[derive(Debug)]
pub(crate) struct ObjectEvent<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
    pub(crate) uid: &'a str,
    /// `Normal` or `Warning`.
    pub(crate) kind: &'static str,
    pub(crate) reason: &'static str,
    pub(crate) action: &'static str,
    pub(crate) message: String,
    /// The controller.
    pub(crate) reporter: Reporter,
}

/// Which controller reports.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reporter {
    pub(crate) component: &'static str,
    pub(crate) instance: &'static str,
}

impl ObjectEvent<'_> {
    /// Reports it; returns whether the server has taken it. A namespace that is going away takes none: nobody waits for events.
    ///
    /// # Errors
    /// There is no connection.
    pub(crate) async fn report(&self, connection: &Connection) -> Result<bool, Error> {
        // Not repeated: a namespace's events may be limited (EventRateLimit), and others wait for the controller.
        let events = connection.namespaced_once::<Event>(self.namespace).await?;
        let operation = || format!("create an event of {}/{}", self.namespace, self.name);
        let event = self.object();
        let reported = api::answer(operation, events.create(&PostParams::default(), &event)).await;
        if let Err(error) = &reported {
            tracing::debug!(error = %host_config::chain(error), "not reported");
        }
        Ok(reported.is_ok())
    }

    fn object(&self) -> Event {
        let now = k8s_openapi::jiff::Timestamp::now();
        Event {
            metadata: ObjectMeta {
                generate_name: Some(format!("{}.", self.name)),
                namespace: Some(self.namespace.to_owned()),
                ..ObjectMeta::default()
            },
            involved_object: ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Pod".to_owned()),
                namespace: Some(self.namespace.to_owned()),
                name: Some(self.name.to_owned()),
                uid: Some(self.uid.to_owned()),
                ..ObjectReference::default()
            },
            type_: Some(self.kind.to_owned()),
            reason: Some(self.reason.to_owned()),
            action: Some(self.action.to_owned()),
            message: Some(self.message.chars().take(MESSAGE_CHARS_MAX).collect()),
            reporting_component: Some(self.reporter.component.to_owned()),
            reporting_instance: Some(self.reporter.instance.to_owned()),
            event_time: Some(MicroTime(now)),
            first_timestamp: Some(Time(now)),
            last_timestamp: Some(Time(now)),
            count: Some(1),
            ..Event::default()
        }
    }
}

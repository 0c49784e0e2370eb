//! An API server of a test's own, without a socket.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use futures_util::{StreamExt, stream};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper::{Request, Response};
use kube::client::Body;
use kube::client::retry::RetryPolicy;
use serde_json::{Value, json};
use sys::sync::lock;
use tower::retry::RetryLayer;
use tower::{BoxError, Layer};

use super::*;

/// What it was asked: method and address.
pub(crate) type Questions = Arc<Mutex<Vec<String>>>;

/// A connection to a server that answers so: method, address and body become status and body. A list is what a watch sees before nothing comes any more.
pub(crate) fn serve(
    answer: impl Fn(&str, &str, &Value) -> (u16, Value) + Send + Sync + 'static,
) -> (Connection, Questions) {
    let questions = Questions::default();
    let (of_service, answer) = (Arc::clone(&questions), Arc::new(answer));
    let service = tower::service_fn(move |request: Request<Body>| {
        let (questions, answer) = (Arc::clone(&of_service), Arc::clone(&answer));
        async move {
            let (parts, body) = request.into_parts();
            let (method, uri) = (parts.method.to_string(), parts.uri.to_string());
            let body = body.collect().await.unwrap().to_bytes();
            let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
            lock(&questions).push(format!("{method} {uri}"));
            let (status, answer) = answer(&method, &uri, &body);
            let answer = match answer {
                Value::Array(events) => silent_after(events),
                answer => Full::from(answer.to_string()).boxed_unsync(),
            };
            let answer = Response::builder().status(status).body(answer);
            Ok::<_, BoxError>(answer.unwrap())
        }
    });
    let connection = Connection::new(Access::default());
    let repeating = RetryLayer::new(RetryPolicy::server_retry()).layer(service.clone());
    *lock(&connection.clients) = Some(Clients {
        repeating: Client::new(repeating, "default"),
        once: Client::new(service, "default"),
    });
    (connection, questions)
}

fn silent_after(events: Vec<Value>) -> UnsyncBoxBody<Bytes, Infallible> {
    let lines = events.into_iter().map(|event| {
        let line = Bytes::from(format!("{event}\n"));
        Ok::<_, Infallible>(Frame::data(line))
    });
    let lines = stream::iter(lines).chain(stream::pending());
    StreamBody::new(lines).boxed_unsync()
}

/// The answer to a list, with where it goes on.
pub(crate) fn page(items: &[Value], next: &str) -> (u16, Value) {
    let list = json!({"metadata": {"resourceVersion": "1", "continue": next}, "items": items});
    (200, list)
}

/// A refusal.
pub(crate) fn refusal(status: u16, message: &str) -> (u16, Value) {
    let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status, "reason": "", "message": message});
    (status, body)
}

//! HTTP/1.1, bounded in everything that a client decides: connections, the head of a request, and time.

use std::rc::Rc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderMap,
    HeaderName, HeaderValue, REFERRER_POLICY, REFRESH, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Method, Request, Response, StatusCode};
use tokio::task::LocalSet;
use view::metrics::text::TextForm;

use crate::connections::Connections;
use crate::listener::{Listener, Stream};
use crate::page;
use crate::pages::Pages;

/// After the system has refused a connection, for example for want of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Answers until the future is dropped.
pub(crate) async fn serve(listener: &Listener, pages: Rc<Pages>) {
    let tasks = LocalSet::new();
    tasks.run_until(accept(listener, pages)).await;
}

async fn accept(listener: &Listener, pages: Rc<Pages>) {
    let mut connections = Connections::default();
    loop {
        let stream = match listener.accept().await {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, "a connection is refused by the system");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let pages = Rc::clone(&pages);
        let answer = move |request: Request<Incoming>| {
            let pages = Rc::clone(&pages);
            async move { answer(&pages, &request).await }
        };
        match stream {
            Stream::Tcp(io) => connections.serve(io, answer).await,
            Stream::Unix(io) => connections.serve(io, answer).await,
        }
    }
}

async fn answer(pages: &Pages, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut refusal = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
        let allowed = HeaderValue::from_static("GET, HEAD");
        refusal.headers_mut().insert(ALLOW, allowed);
        return refusal;
    }
    match request.uri().path() {
        "/" => of_people(pages, request).await,
        "/style.css" => of_type(
            StatusCode::OK,
            "text/css; charset=utf-8",
            Bytes::from_static(page::STYLE.as_bytes()),
        ),
        "/metrics" => {
            let form = form(request.headers());
            match pages.metrics(form).await {
                Ok(page) => of_type(StatusCode::OK, content_type(form), page),
                Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}\n")),
            }
        }
        "/healthz" => text(StatusCode::OK, "ok\n"),
        "/readyz" => match pages.ready().await {
            Ok(()) => text(StatusCode::OK, "ready\n"),
            Err(why) => text(StatusCode::SERVICE_UNAVAILABLE, why + "\n"),
        },
        _ => text(
            StatusCode::NOT_FOUND,
            "cgpu-agent has /, /metrics, /healthz and /readyz\n",
        ),
    }
}

/// The page, which loads itself again unless the reader has paused it.
async fn of_people(pages: &Pages, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    let host = request.headers().get(HOST);
    if !pages.is_meant(host.map(|host| host.to_str().unwrap_or_default())) {
        return text(
            StatusCode::MISDIRECTED_REQUEST,
            "this address has the names localhost and 127.0.0.1 alone\n",
        );
    }
    let mut response = match pages.html().await {
        Ok(page) => of_type(StatusCode::OK, "text/html; charset=utf-8", page),
        Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}\n")),
    };
    let mut set = |name: HeaderName, value| {
        let value = HeaderValue::from_static(value);
        response.headers_mut().insert(name, value);
    };
    set(CONTENT_SECURITY_POLICY, page::POLICY);
    set(X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(REFERRER_POLICY, "no-referrer");
    set(CACHE_CONTROL, "no-store");
    if request.uri().query() != Some("pause") {
        set(REFRESH, page::REFRESH);
    }
    response
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    of_type(status, "text/plain; charset=utf-8", body.into())
}

fn of_type(status: StatusCode, content_type: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    let content_type = HeaderValue::from_static(content_type);
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

fn content_type(form: TextForm) -> &'static str {
    match form {
        TextForm::Openmetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        TextForm::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
    }
}

/// OpenMetrics for those who like it no less than plain text, Prometheus' own form for all others.
fn form(headers: &HeaderMap) -> TextForm {
    let accepted = headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok());
    let ranges: Vec<(String, f32)> = accepted
        .flat_map(|value| value.split(','))
        .map(quality)
        .collect();
    let best = |names: &[&str]| {
        let named = ranges
            .iter()
            .filter(|(range, _)| names.contains(&range.as_str()));
        named.map(|(_, quality)| *quality).fold(0.0, f32::max)
    };
    let openmetrics = best(&["application/openmetrics-text"]);
    if openmetrics > 0.0 && openmetrics >= best(&["text/plain", "text/*", "*/*"]) {
        TextForm::Openmetrics
    } else {
        TextForm::Prometheus
    }
}

/// A media range in small letters, and its quality from 0 to 1 (RFC 9110, section 12.4.2).
fn quality(range: &str) -> (String, f32) {
    let mut parts = range.split(';').map(str::trim);
    let name = parts.next().unwrap_or_default().to_ascii_lowercase();
    let quality = parts.find_map(|part| part.strip_prefix(['q', 'Q'])?.strip_prefix('='));
    let quality = quality.map_or(Ok(1.0), str::parse::<f32>).unwrap_or(0.0);
    (name, quality.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_is_the_one_that_the_client_likes_best() {
        let form_of = |accept: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, accept.parse().unwrap());
            form(&headers)
        };
        // Prometheus 2.42 and 3.
        for accept in [
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;version=1.0.0;q=0.3,*/*;q=0.2",
            "Application/OpenMetrics-Text",
        ] {
            assert_eq!(form_of(accept), TextForm::Openmetrics, "{accept}");
        }
        for accept in [
            "*/*",
            "text/plain;version=0.0.4;q=1,*/*;q=0.1",
            "application/openmetrics-text;q=0.2, text/plain",
            "application/openmetrics-text;q=0, text/html",
            "application/openmetrics-text;q=much",
            ";;;q=,,",
        ] {
            assert_eq!(form_of(accept), TextForm::Prometheus, "{accept}");
        }
        assert_eq!(form(&HeaderMap::new()), TextForm::Prometheus);
    }
}

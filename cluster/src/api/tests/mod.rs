//! The client itself, and a server on a socket.

pub(crate) mod fake;

use fit::lean;
use hyper::header;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::*;

/// Tokens, as questions had them.
type Tokens = Arc<Mutex<Vec<String>>>;

/// A server that answers by the token of a question, and what it was asked with. Returns its address.
async fn listen(answer: impl Fn(&str) -> (u16, Value) + Send + Sync + 'static) -> (String, Tokens) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (answer, tokens) = (Arc::new(answer), Tokens::default());
    let kept = Arc::clone(&tokens);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (answer, tokens) = (Arc::clone(&answer), Arc::clone(&kept));
            let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
                let token = request.headers().get(header::AUTHORIZATION);
                let token = token.map_or("", |token| token.to_str().unwrap()).to_owned();
                let (status, body) = answer(&token);
                lock(&tokens).push(token);
                let response = Response::builder().status(status).body(body.to_string());
                std::future::ready(response)
            });
            tokio::spawn(
                hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service),
            );
        }
    });
    (url, tokens)
}

fn kubeconfig(folder: &tempfile::TempDir, url: &str, token: &str) -> Access {
    let path = folder.path().join("kubeconfig");
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": url}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "users": [{"name": "test", "user": {"token": token}}],
    });
    std::fs::write(&path, config.to_string()).unwrap();
    Access {
        kubeconfig: Some(path),
        server: None,
    }
}

async fn get(connection: &Connection) -> Result<lean::Claim, Error> {
    let claims = connection.namespaced::<lean::Claim>("team-a").await?;
    answer(|| "get a claim".to_owned(), claims.get("c")).await
}

/// A server that has no time for the first question, and answers it thus.
async fn late(status: u16) -> (String, Tokens) {
    let is_late = AtomicBool::new(true);
    listen(move |_| match is_late.swap(false, Ordering::Relaxed) {
        true => fake::refusal(status, "not now"),
        false => (200, json!({"metadata": {"name": "c"}, "spec": {}})),
    })
    .await
}

#[tokio::test]
async fn a_status_that_is_an_answer_is_seen_after_one_question_and_others_pass() {
    let folder = tempfile::tempdir().unwrap();
    for expected in [429, 503, 504] {
        let (url, tokens) = late(expected).await;
        let connection = Connection::new(kubeconfig(&folder, &url, "t"));
        let claims = connection.namespaced_once::<lean::Claim>("team-a").await;
        let claims = claims.unwrap();
        let once = answer(|| "get a claim".to_owned(), claims.get("c"));
        let error = once.await.unwrap_err();
        let Error::Api { status, .. } = error else {
            panic!("{error}");
        };
        assert_eq!((status, lock(&tokens).len()), (Some(expected), 1));
        let (url, tokens) = late(expected).await;
        let connection = Connection::new(kubeconfig(&folder, &url, "t"));
        get(&connection).await.unwrap();
        assert_eq!(lock(&tokens).len(), 2);
    }
}

#[tokio::test]
async fn a_renewed_token_is_read_after_the_former_one_was_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (url, tokens) = listen(|token| match token {
        "Bearer new" => (200, json!({"metadata": {"name": "c"}, "spec": {}})),
        _ => fake::refusal(401, "Unauthorized"),
    })
    .await;
    let connection = Connection::new(kubeconfig(&folder, &url, "old"));
    get(&connection).await.unwrap_err();
    // Read anew, and still refused.
    get(&connection).await.unwrap_err();
    kubeconfig(&folder, &url, "new");
    get(&connection).await.unwrap();
    // Another one of the file's is nothing to a client that is known.
    kubeconfig(&folder, &url, "other");
    get(&connection).await.unwrap();
    let expected = ["old", "old", "new", "new"].map(|token| format!("Bearer {token}"));
    assert_eq!(*lock(&tokens), expected);
}

//! The loops that copy between the engine's side and a process.

use std::io;
use std::sync::Arc;

use tokio::sync::watch;

use super::end::End;
use super::engine::Sink;

/// Bytes moved at a time; a pipe holds 64 KiB.
const CHUNK_BYTES: usize = 16 * 1024;

/// Where input goes.
pub(super) enum Feed {
    Pipe(End),
    Terminal(Arc<End>),
}

/// Copies input until the engine's last writer closes; then the process sees the end of its input.
pub(super) async fn feed(from: End, to: Feed) {
    let to = match &to {
        Feed::Pipe(end) => end,
        Feed::Terminal(end) => end,
    };
    let mut chunk = vec![0; CHUNK_BYTES];
    while let Ok(count @ 1..) = from.read(&mut chunk).await {
        if to
            .write_all(chunk.get(..count).unwrap_or_default())
            .await
            .is_err()
        {
            return;
        }
    }
}

/// How far the delivery of a stream has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Delivery {
    /// Counts what was delivered, so that a slow reader is told from one that does not read.
    chunks: u64,
    /// All that was written before the process ended is delivered.
    pub(super) complete: bool,
}

/// Copies output until its last writer closes. Once the process has ended, `delivery` says when all is delivered that was
/// written before; children that outlive it may hold the stream open, and write, for as long as they like.
pub(super) async fn drain(
    from: Arc<End>,
    mut sink: Sink,
    mut ended: watch::Receiver<bool>,
    delivery: watch::Sender<Delivery>,
) {
    let complete = || {
        delivery.send_if_modified(|now| !std::mem::replace(&mut now.complete, true));
    };
    let mut chunk = vec![0; CHUNK_BYTES];
    // What the stream can hold of what was written before the end.
    let mut left = from.holds_at_most();
    loop {
        let over = *ended.borrow_and_update();
        let count = match from.read_now(&mut chunk) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if over {
                    complete();
                }
                tokio::select! {
                    read = from.read(&mut chunk) => match read {
                        Ok(count) => count,
                        Err(_) => break,
                    },
                    Ok(()) = ended.changed() => continue,
                }
            }
            Err(_) => break,
        };
        if count == 0 {
            break;
        }
        if let Err(error) = sink.write_all(chunk.get(..count).unwrap_or_default()).await {
            tracing::warn!(%error, "output is lost");
        }
        delivery.send_modify(|now| now.chunks += 1);
        if over {
            left = left.saturating_sub(count);
            if left == 0 {
                complete();
            }
        }
        // A stream that never runs dry leaves the thread to others.
        tokio::task::consume_budget().await;
    }
    complete();
}

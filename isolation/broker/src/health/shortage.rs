//! What the system did not give when the broker asked for it: descriptors and threads. Calls wait or fail meanwhile.

use std::io;
use std::sync::Mutex;

use sys::sync;

/// What can be lacking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lack {
    /// A thread for a call, a listener or a control connection.
    Thread,
    /// A descriptor.
    Descriptor,
}

/// What is lacking now.
#[derive(Debug, Default)]
pub struct Shortage {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    thread: Option<String>,
    descriptor: Option<String>,
    is_reported: bool,
}

impl Inner {
    fn of(&mut self, lack: Lack) -> &mut Option<String> {
        match lack {
            Lack::Thread => &mut self.thread,
            Lack::Descriptor => &mut self.descriptor,
        }
    }

    fn text(&self) -> Option<String> {
        let reply = |what: &str, why: &Option<String>| {
            let why = why.as_ref()?;
            Some(format!("no {what}: {why}"))
        };
        reply("descriptor", &self.descriptor).or_else(|| reply("thread", &self.thread))
    }
}

impl Shortage {
    /// The system gave none.
    pub fn met(&self, lack: Lack, error: &io::Error) {
        *sync::lock(&self.inner).of(lack) = Some(error.to_string());
    }

    /// It has given one.
    pub fn is_over(&self, lack: Lack) {
        *sync::lock(&self.inner).of(lack) = None;
    }

    /// For the status.
    #[must_use]
    pub fn text(&self) -> Option<String> {
        sync::lock(&self.inner).text()
    }

    /// What is lacking now, if that has come or gone since this was asked last.
    pub(crate) fn news(&self) -> Option<Option<String>> {
        let mut inner = sync::lock(&self.inner);
        let now = inner.text();
        let is_news = now.is_some() != inner.is_reported;
        inner.is_reported = now.is_some();
        is_news.then_some(now)
    }
}

//! Who holds the container's share of its cards' time: what its tenants may do to their scheduler, and the governor.

mod governor;
pub mod knobs;
mod probe;
mod record;
mod tables;
pub(crate) mod tenant;
mod terms;

use std::sync::Arc;

use cards::ComputeMode;

use crate::container::Container;
use crate::share::Share;
use crate::share::mailbox::Tell;
pub use probe::ProbeError;
pub use record::{NotStrict, TooLow};

/// Why a container's share cannot be held.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Its share record, or the thread.
    #[error("the container's share of its cards' time cannot be held")]
    Start(#[source] std::io::Error),
    /// The grant says that the terms must be held, and that is not so, or not known to be.
    #[error(transparent)]
    NotStrict(#[from] NotStrict),
}

/// When a broker begins to hold a share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beginning {
    /// Before the container starts: there is time to find out what the card's knobs can hold.
    First,
    /// After another broker, while the container runs.
    TakenOver,
}

impl Share {
    /// Begins to hold the share.
    ///
    /// # Errors
    /// [`Error`]; nothing holds it then.
    pub fn start(&self, container: &Arc<Container>, beginning: Beginning) -> Result<(), Error> {
        self.read_terms(&container.journal);
        if self.sources.requests.mode == ComputeMode::Strict {
            // Not with the state at hand: what is not known yet takes calls of the driver.
            let cards = self.lock().cards.clone();
            for (card, on) in cards.iter().enumerate() {
                record::check(container, card, &on.terms, beginning)?;
            }
        }
        self.govern(container).map_err(Error::Start)
    }

    /// Looks whether the cards' rules are others than before, and whether a governor is wanted that is not there. Called
    /// every second.
    pub fn reconcile(&self, container: &Arc<Container>) {
        if self.sources.have_changed() || self.is_wanting() {
            self.read_terms(&container.journal);
            self.hold(container);
        }
    }

    /// As [`Share::govern`], while the container runs: what fails is tried again a second later.
    pub(crate) fn hold(&self, container: &Arc<Container>) {
        if let Err(error) = self.govern(container) {
            tracing::error!(
                container = container.name,
                %error,
                "nobody holds the container's share"
            );
        }
    }

    /// Has a governor where the terms want one, and none where they do not.
    pub(crate) fn govern(&self, container: &Arc<Container>) -> std::io::Result<()> {
        let mailbox = self.lock().mailbox.clone();
        match (mailbox, self.wants_governor()) {
            (Some(mailbox), true) => mailbox.tell(Tell::Terms),
            (None, true) => {
                let mailbox = governor::start(container)?;
                self.lock().mailbox = Some(mailbox);
            }
            (Some(_), false) => {
                self.stop();
                self.shown().clear();
            }
            (None, false) => {}
        }
        Ok(())
    }
}

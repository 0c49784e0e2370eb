//! Governors in virtual time.

mod hostile;
mod recovery;
mod shares;
mod stage;

//! Governors in virtual time.

mod hostile;
mod provoked;
mod recovery;
mod shares;
mod stage;

//! Governors in virtual time.

mod hostile;
mod shares;
mod stage;

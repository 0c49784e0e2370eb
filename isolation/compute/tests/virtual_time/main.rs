//! Governors in virtual time.

mod fixture;
mod hostile;
mod provoked;
mod recovery;
mod shares;

//! Governors in virtual time.

mod clients;
mod fixture;
mod hostile;
mod provoked;
mod recovery;
mod shares;

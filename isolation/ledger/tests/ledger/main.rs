//! The ledger by its public interface.

mod account;
mod managed;
mod model;
mod operations;
mod property;
mod work;

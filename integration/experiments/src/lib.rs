//! Compute shares in virtual time: the real governor and plan on the simulated scheduler, measured against published targets.

#![forbid(unsafe_code)]

pub mod measure;
pub mod plot;
pub mod report;

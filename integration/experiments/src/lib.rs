//! Compute shares in virtual time: the real governor and plan on the simulated scheduler, measured against published targets.

#![forbid(unsafe_code)]

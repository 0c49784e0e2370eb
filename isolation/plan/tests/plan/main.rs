//! What the plan promises, against hand-computed values and against any tenants that a card admits.

mod admission;
mod any;
mod drift_correction;
mod epochs;
mod gangs;
mod gates;
mod layouts;
mod share_records;
mod terms;

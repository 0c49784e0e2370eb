//! System calls that tests and loads make and no program of the product: shared mappings, calls spelt as a hostile program
//! spells them, and the alarms that interrupt it. This crate knows system calls only, as `sys` does.
#![expect(
    unsafe_code,
    reason = "this crate exists to hold it; every program that calls it forbids it"
)]

pub mod alarm;
pub mod mapping;
pub mod probe;

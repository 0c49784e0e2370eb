//! Near a card: on the processors of its memory node, and with that node's memory.
//!
//! RM takes system memory by the policy and the processor of the thread that makes the call (`NV_GET_FREE_PAGES`, nv-vm.c), which is
//! the executor's.

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

use crate::error::{Error, failed};

/// Moves this process to a node, before it has threads. Memory of other nodes is taken where there is none of this one left.
///
/// # Errors
/// [`Error`]; what did not fail holds.
pub fn move_to(node: u32, cpus: &str) -> Result<(), Error> {
    let memory = sys::numa::prefer(node);
    let cpus = parsed(cpus).ok_or_else(|| Error::Cpus(cpus.to_owned()))?;
    sched_setaffinity(Pid::from_raw(0), &cpus)
        .map_err(failed("moving to the card's processors"))?;
    memory.map_err(failed("preferring the card's memory"))
}

/// `0-3,8`: those that a set of the C library has room for.
fn parsed(list: &str) -> Option<CpuSet> {
    let mut cpus = CpuSet::new();
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        for cpu in (first..=last).take_while(|cpu| *cpu < CpuSet::count()) {
            cpus.set(cpu).ok()?;
        }
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_read_as_the_kernel_writes_them() {
        let cpus = parsed("0-2,8").unwrap();
        let set: Vec<usize> = (0..CpuSet::count())
            .filter(|cpu| cpus.is_set(*cpu).unwrap())
            .collect();
        assert_eq!(set, [0, 1, 2, 8]);
        assert!(parsed("1020-2000").unwrap().is_set(1023).unwrap());
        for wrong in ["", "a", "1-", "-3", "1,,2"] {
            assert!(parsed(wrong).is_none(), "{wrong}");
        }
    }
}

//! What a writer gets of an error of `cgpu set`.

use cards::placement::{Refusal, TimeRefusal};
use fuser::Errno;
use vgpu::Error;

/// EINVAL: the value; ENOSPC: memory, EBUSY: time that others have; ENOENT: the container has ended; ENODEV: the card is gone;
/// EOPNOTSUPP: nothing holds the container to that; EIO: everything else, as a broker that does not answer.
pub(crate) fn of(error: &Error) -> Errno {
    match error {
        Error::Terms(_) | Error::NothingRequested => Errno::EINVAL,
        Error::Cards(error) => of_cards(error),
        Error::NoVgpu { .. } => Errno::ENOENT,
        Error::CardGone { .. } | Error::NoDriver { .. } => Errno::ENODEV,
        Error::NotHeld { .. } | Error::NoShares { .. } => Errno::EOPNOTSUPP,
        _ => Errno::EIO,
    }
}

fn of_cards(error: &cards::Error) -> Errno {
    use cards::Error;
    match error {
        Error::NotEnoughFree { .. } | Error::AboveClaim { .. } => Errno::ENOSPC,
        Error::Time { refusal, .. } => of_time(refusal),
        // Containers that are there, under other rules.
        Error::Readmit { .. } | Error::InTheWay { .. } => Errno::EBUSY,
        Error::NotReserved { .. } => Errno::ENOENT,
        Error::Placement(Refusal::UnknownCard { .. }) => Errno::ENODEV,
        Error::Placement(Refusal::Time(refusal)) => of_time(refusal),
        _ => Errno::EIO,
    }
}

fn of_time(refusal: &TimeRefusal) -> Errno {
    match refusal {
        TimeRefusal::Terms(_) | TimeRefusal::Rules(_) => Errno::EINVAL,
        TimeRefusal::Full { .. } | TimeRefusal::Unresolved { .. } => Errno::EBUSY,
    }
}

#[cfg(test)]
mod tests {
    use cards::{Called, ContainerKey, GpuUuid};

    use super::*;

    #[test]
    fn a_writer_learns_whether_the_value_or_the_host_is_at_fault() {
        let called = || Called::from(&ContainerKey::new("moby", "c1").unwrap());
        let bad_value = host_config::terms::memory_amount("--memory", "much").unwrap_err();
        let full = cards::Error::NotEnoughFree {
            uuid: GpuUuid::new("GPU-1").unwrap(),
            requested_bytes: 2,
            most_bytes: 1,
        };
        for (error, errno) in [
            (bad_value.into(), Errno::EINVAL),
            (full.into(), Errno::ENOSPC),
            (Error::NoVgpu { key: called() }, Errno::ENOENT),
            (Error::NotHeld { key: called() }, Errno::EOPNOTSUPP),
            (Error::NoBroker { key: called() }, Errno::EIO),
        ] {
            assert_eq!(of(&error), errno, "{error}");
        }
    }
}

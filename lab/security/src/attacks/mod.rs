//! The attacks, by what they turn against.

mod confinement;
mod descriptors;
mod events;
mod floods;
mod foreign;
mod host;
mod managed;
mod memory;
mod pages;
mod plain;
mod processes;
mod races;
mod signals;
mod spelling;

use anyhow::Result;
use serde_json::{Value, json};

use crate::capabilities;
use crate::seat::Seat;
use crate::tally::Tally;
use crate::{Attack, Fixture};

macro_rules! attacks {
    ($($module:ident: $($name:ident)*;)*) => {
        /// Every attack.
        pub const ATTACKS: &[Attack] = &[
            Attack { name: "honest", run: honest },
            $($(Attack { name: stringify!($name), run: $module::$name },)*)*
        ];
    };
}

attacks! {
    races: class_flip size_flip pointer_flip flip_by_shared_memory flip_by_proc_mem handle_race;
    descriptors: dup2_race fd_passing fd_in_flight private_fd_table close_race fd_in_ring fd_to_other_container fd_from_other_container;
    plain: fd_in_plain_container;
    processes: process_storm exit_in_mid_call sigstop_of_the_caller ptrace_sibling kill_around;
    spelling: wrong_type_byte high_bits direction_bits xfer_tunnel compat_ioctl compat_mmap x32_ioctl serialised_parameters
        bad_pointers;
    memory: reference_then_free register_then_free map_then_free export_then_free channel_groups va_spaces managed_memory heap_and_old_calls
        privileged_classes absurd_sizes;
    capabilities: ungranted_capabilities;
    pages: huge_pages page_tables;
    managed: managed_late managed_unseen managed_heirs managed_cut;
    foreign: foreign_duplicate foreign_mapping foreign_channels foreign_handles common_userd;
    events: foreign_names missing_destinations event_flood;
    host: host_memory;
    signals: restarting_signals interrupting_signals profiling_signals;
    confinement: own_listener own_filter user_namespace nested_namespaces changed_root disguises userfault_pages setuid_exec;
    floods: blocked_calls thread_flood file_flood client_flood figures_flood refused_flood;
}

/// Attacks that one container does not play by itself: they need a second one, calls that hang, or a program that gains privileges.
pub const NOT_ALONE: [&str; 5] = [
    "blocked_calls",
    "setuid_exec",
    "fd_to_other_container",
    "fd_from_other_container",
    "fd_in_plain_container",
];

/// What anybody may do: half of the slice, and no more is asked for.
fn honest(fixture: &mut Fixture) -> Result<Value> {
    let mut seat = Seat::take()?;
    let mut tally = Tally::default();
    for _piece in 0..fixture.quota_bytes / 2 / crate::tally::PIECE_BYTES {
        let bytes = crate::tally::PIECE_BYTES;
        tally.count(seat.memory(bytes), bytes);
    }
    fixture.keep(seat);
    Ok(json!({"tally": tally.json()}))
}

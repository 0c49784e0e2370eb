//! Every attack of `cgpu-tenant`, as an unprivileged and as a root tenant, in containers of a real containerd.
//!
//! What holds for each, whatever the attack (see `fixture`): while the attacker holds all it got, the card's own account of
//! its container equals the broker's ledger and is not above the quota; a neighbour's memory keeps its pattern, and the
//! neighbour goes on allocating; the same broker lives on and answers; what was held comes back, and an honest program of the
//! same container gets half of the slice. What is peculiar to an attack is checked here.

mod fixture;

use anyhow::{Context, Result, ensure};
use fixture::{Attacker, MIB, Observed, QUOTA_BYTES, shared};
use integration::command::capture;
use integration::skip;
use serde_json::Value;

/// Nothing beyond what holds for each.
fn nothing_more(_observed: &Observed) -> Result<()> {
    Ok(())
}

/// What the attacker was told to have, it has, and the slice is full: the quota was tried.
fn reported_and_full(observed: &Observed) -> Result<()> {
    observed.reported_is_held()?;
    observed.is_full()
}

/// The container has no limit of its own, so it gets no more than half of the machine's memory.
fn host_memory_is_limited(observed: &Observed) -> Result<()> {
    let meminfo = std::fs::read_to_string("/proc/meminfo")?;
    let total = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|line| line.trim().strip_suffix(" kB"));
    let half = kib.context("MemTotal")?.trim().parse::<u64>()? * 1024 / 2;
    let granted = observed.number("/granted_bytes")?;
    ensure!(
        granted <= half && granted > half / 2,
        "{granted} bytes of the host were granted, {half} may be: {}",
        observed.facts
    );
    observed.reported_is_held()
}

/// Some were given and some refused, so the brink was reached.
fn pages_were_tried(observed: &Observed) -> Result<()> {
    let done = observed.number("/tally/done")?;
    let refused = observed.number("/tally/others/status 0x51")?;
    ensure!(
        done > 10 && refused > 10,
        "the slice was not at its brink: {}",
        observed.facts
    );
    Ok(())
}

/// The slice was full, and address space is given all the same, since it takes nothing of the card; what would is refused.
fn page_tables_come_later(observed: &Observed) -> Result<()> {
    observed.is_full()?;
    for (name, done) in [("at once", 16), ("sparse", 0), ("sparse and lazy", 0)] {
        let given = observed.number(&format!("/spaces/{name}/done"))?;
        ensure!(given == done, "{name}: {}", observed.facts);
    }
    ensure!(
        observed.number("/sparse_ranges")? == 0,
        "{}",
        observed.facts
    );
    Ok(())
}

fn reported(observed: &Observed) -> Result<()> {
    observed.reported_is_held()
}

/// A race between counted and uncounted memory: both outcomes were seen, or nothing was raced.
fn both_outcomes(observed: &Observed) -> Result<()> {
    let piece = observed.number("/piece_bytes")?;
    let done = observed.number("/raced/done")?;
    let counted = observed.card_bytes / piece;
    ensure!(counted > 0, "no counted piece among {}", observed.facts);
    ensure!(
        done > counted,
        "no uncounted piece among {}",
        observed.facts
    );
    Ok(())
}

fn raced(observed: &Observed) -> Result<()> {
    ensure!(
        observed.number("/raced/done")? > 0 && observed.card_bytes > 0,
        "nothing was raced: {}",
        observed.facts
    );
    Ok(())
}

/// Every call of these spellings came to the broker.
fn all_seen(observed: &Observed) -> Result<()> {
    reported_and_full(observed)?;
    let made = observed.number("/calls")?;
    ensure!(
        observed.calls.total >= made,
        "of {made} calls only {} were seen",
        observed.calls.total
    );
    Ok(())
}

/// No attempt on a foreign object was done, and none of them reached the driver.
fn never_executed(observed: &Observed) -> Result<()> {
    /// What a seat takes before the first attempt, and what is done with one's own objects.
    const OWN_CALLS: u64 = 40;
    not_done(observed)?;
    let attempts = observed.number("/attempts")?;
    ensure!(attempts > 60, "too few attempts: {attempts}");
    ensure!(
        observed.calls.executed < OWN_CALLS && observed.calls.refused >= attempts,
        "of {attempts} attempts: {:?}",
        observed.calls
    );
    Ok(())
}

fn not_done(observed: &Observed) -> Result<()> {
    ensure!(
        observed.number("/foreign/done")? == 0,
        "done to a foreigner: {}",
        observed.facts
    );
    observed.reported_is_held()
}

fn texts<'a>(observed: &'a Observed, pointer: &str) -> Result<Vec<(&'a str, &'a str)>> {
    let map = observed.facts.pointer(pointer).and_then(Value::as_object);
    let map = map.with_context(|| format!("no {pointer} in {}", observed.facts))?;
    ensure!(!map.is_empty(), "{pointer} is empty");
    Ok(map
        .iter()
        .filter_map(|(name, text)| Some((name.as_str(), text.as_str()?)))
        .collect())
}

/// On a descriptor that is none, the kernel says EBADF to whatever a filter lets pass.
fn tunnel_is_closed(observed: &Observed) -> Result<()> {
    let answers = observed.facts["answers"].as_array().context("answers")?;
    ensure!(!answers.is_empty(), "no answers");
    for answer in answers {
        ensure!(answer["answer"] == "ENOTTY", "{answer}");
    }
    observed.reported_is_held()
}

/// Through a foreign table, the driver's calls end the process or are unknown: EBADF or ENOTTY would be the kernel's own
/// answer to a call that passed.
fn foreign_table_is_closed(observed: &Observed) -> Result<()> {
    for (call, answer) in texts(observed, "/answers")? {
        let is_tunnel = call.contains("46d3");
        let closed = ["SIGSYS", "SIGSEGV", "ENOSYS"].contains(&answer)
            || call == "getpid"
            || (is_tunnel && answer == "ENOTTY");
        ensure!(closed, "{call}: {answer}");
    }
    observed.reported_is_held()
}

fn listeners_are_refused(observed: &Observed) -> Result<()> {
    for (way, answer) in texts(observed, "/answers")? {
        ensure!(answer == "EBUSY", "{way}: {answer}");
    }
    reported_and_full(observed)
}

/// Serialised or lock-skipping calls are refused, and by the broker itself.
fn flags_are_refused(observed: &Observed) -> Result<()> {
    ensure!(
        observed.number("/tally/done")? == 0 && observed.number("/controls/done")? == 0,
        "{}",
        observed.facts
    );
    ensure!(observed.calls.refused >= 7, "{:?}", observed.calls);
    observed.reported_is_held()
}

fn edges_are_met(observed: &Observed) -> Result<()> {
    ensure!(
        observed.number("/at_the_edge/done")? == 1,
        "{}",
        observed.facts
    );
    // Beyond the edge, and where nothing can be written, the caller gets a fault as from the driver.
    ensure!(
        observed.number("/structs/others/EFAULT")? >= 4,
        "{}",
        observed.facts
    );
    ensure!(
        observed.number("/odd/others/EFAULT")? >= 8,
        "{}",
        observed.facts
    );
    Ok(())
}

/// References held what was freed, and were counted once.
fn references_count(observed: &Observed) -> Result<()> {
    reported_and_full(observed)?;
    ensure!(
        observed.number("/duplicates/done")? > 0,
        "{}",
        observed.facts
    );
    Ok(())
}

/// Groups that were freed while a channel of theirs was registered count among those that there may be.
fn registrations_count(observed: &Observed) -> Result<()> {
    counts_are_limited(observed, "/channels", 1024)
}

fn counts_are_limited(observed: &Observed, pointer: &str, most: u64) -> Result<()> {
    let done = observed.number(&format!("{pointer}/done"))?;
    ensure!((1..=most).contains(&done), "{done}: {}", observed.facts);
    Ok(())
}

fn channel_groups_are_limited(observed: &Observed) -> Result<()> {
    counts_are_limited(observed, "/groups", 1024)
}

fn va_spaces_are_limited(observed: &Observed) -> Result<()> {
    counts_are_limited(observed, "/spaces", 1024)
}

fn clients_are_limited(observed: &Observed) -> Result<()> {
    counts_are_limited(observed, "/clients", 4096)
}

fn events_are_limited(observed: &Observed) -> Result<()> {
    counts_are_limited(observed, "/events", 1024)
}

fn pages_of_figures_are_limited(observed: &Observed) -> Result<()> {
    counts_are_limited(observed, "/figures", 64)
}

/// Either refused, or charged: what the card's account shows is within the slice anyhow.
fn managed_is_bounded(observed: &Observed) -> Result<()> {
    ensure!(
        observed.number("/mapped/done")? == 0,
        "twice the slice was mapped: {}",
        observed.facts
    );
    for call in ["UVM_MIGRATE", "UVM_ALLOC_DEVICE_P2P"] {
        ensure!(
            observed.text(&format!("/answers/{call}"))? != "done",
            "{}",
            observed.facts
        );
    }
    Ok(())
}

fn old_calls_are_closed(observed: &Observed) -> Result<()> {
    ensure!(observed.number("/odd/done")? == 0, "{}", observed.facts);
    ensure!(observed.number("/host/done")? == 1, "{}", observed.facts);
    reported_and_full(observed)
}

fn nothing_is_given(observed: &Observed) -> Result<()> {
    ensure!(observed.number("/tally/done")? == 0, "{}", observed.facts);
    observed.reported_is_held()
}

/// Neither by itself nor by a program whose environment asks for all.
fn no_capability_is_given(observed: &Observed) -> Result<()> {
    for requested in ["", "/requested"] {
        let at = |name: &str| format!("{requested}/{name}");
        for name in ["classes", "controls", "channels"] {
            ensure!(
                observed.number(&at(&format!("{name}/done")))? == 0,
                "{}",
                observed.facts
            );
        }
        // NV_ERR_INVALID_CLASS, each of them.
        let others = at("classes/others");
        let answers = observed.facts.pointer(&others).and_then(Value::as_object);
        let answers: Vec<&String> = answers.context("classes")?.keys().collect();
        ensure!(answers == ["status 0x22"], "{answers:?}");
        ensure!(
            observed.number(&at("listed"))? > 0 && observed.number(&at("engines"))? > 0,
            "{}",
            observed.facts
        );
        let shown = observed.facts.pointer(&at("listed_without_right"));
        ensure!(
            shown.is_some_and(|shown| *shown == serde_json::json!([]))
                && observed.number(&at("video_engines"))? == 0,
            "{}",
            observed.facts
        );
    }
    observed.reported_is_held()
}

fn interrupted(observed: &Observed) -> Result<()> {
    ensure!(observed.number("/tally/done")? > 20, "{}", observed.facts);
    ensure!(
        observed.facts["tally"]["others"]
            .as_object()
            .is_some_and(serde_json::Map::is_empty),
        "a call failed: {}",
        observed.facts
    );
    observed.reported_is_held()
}

fn eintr_was_seen(observed: &Observed) -> Result<()> {
    interrupted(observed)?;
    ensure!(
        observed.number("/repeats")? > 0,
        "no call was interrupted: {}",
        observed.facts
    );
    Ok(())
}

fn closed_files_return(observed: &Observed) -> Result<()> {
    ensure!(
        observed.number("/seats")? > 4 && observed.number("/done")? > 0,
        "{}",
        observed.facts
    );
    observed.reported_is_held()
}

fn stopped_often(observed: &Observed) -> Result<()> {
    ensure!(observed.number("/stops")? > 20, "{}", observed.facts);
    ensure!(observed.number("/failed")? == 0, "{}", observed.facts);
    observed.reported_is_held()
}

fn traced(observed: &Observed) -> Result<()> {
    if observed.facts.get("unavailable").is_none() {
        ensure!(observed.number("/turned")? > 8, "{}", observed.facts);
    }
    observed.reported_is_held()
}

fn nobody_is_seen(observed: &Observed) -> Result<()> {
    let seen = observed.facts["seen"].as_array().context("seen")?;
    for name in seen.iter().filter_map(Value::as_str) {
        ensure!(
            !name.starts_with("cgpu-broker")
                && !name.starts_with("cgpu-sim")
                && !name.starts_with("cgpu-supervisor")
                && !name.starts_with("cgpu-exec"),
            "{name} is seen"
        );
    }
    for empty in ["reachable", "inherited"] {
        ensure!(
            observed.facts[empty].as_array().is_some_and(Vec::is_empty),
            "{}",
            observed.facts
        );
    }
    Ok(())
}

/// Namespaces are the kernel's to give; with or without them nothing more is had.
fn guises_share_the_slice(observed: &Observed) -> Result<()> {
    let guises = observed.facts["guises"].as_array().context("guises")?;
    let started = guises
        .iter()
        .filter(|row| row["reported"]["problem"].is_null() && row["reported"]["tally"].is_object())
        .count();
    ensure!(started >= 6, "{}", observed.facts);
    reported_and_full(observed)
}

fn is_answered(observed: &Observed) -> Result<()> {
    if observed.facts.get("unavailable").is_none() {
        ensure!(
            observed.number("/answered_of_80")? == 80,
            "{}",
            observed.facts
        );
    }
    observed.reported_is_held()
}

fn flood_is_served(observed: &Observed) -> Result<()> {
    ensure!(
        observed.number("/threads")? >= 300
            && observed.number("/done")? >= 300
            && observed.number("/failed")? == 0,
        "{}",
        observed.facts
    );
    observed.reported_is_held()
}

fn files_are_used(observed: &Observed) -> Result<()> {
    ensure!(observed.number("/used")? > 900, "{}", observed.facts);
    observed.reported_is_held()
}

fn refusals_flow(observed: &Observed) -> Result<()> {
    let refused = observed.number("/refused")?;
    ensure!(
        refused > 50 && observed.calls.refused >= refused,
        "{} and {:?}",
        observed.facts,
        observed.calls
    );
    observed.reported_is_held()
}

fn both(test: &str, check: fn(&Observed) -> Result<()>) -> Result<()> {
    let Some(fixture) = shared(test)? else {
        return Ok(());
    };
    for attacker in [Attacker::Unprivileged, Attacker::Root] {
        let observed = fixture.attack(attacker, test)?;
        check(&observed).with_context(|| format!("{test} as {:?}", observed.attacker))?;
    }
    Ok(())
}

macro_rules! attacks {
    ($($(#[$attribute:meta])* $name:ident => $check:ident,)*) => {
        $(
            #[test]
            $(#[$attribute])*
            fn $name() -> Result<()> {
                both(stringify!($name), $check)
            }
        )*
        /// The attacks that have a test of this form.
        const TESTED: &[&str] = &[$(stringify!($name)),*];
    };
}

attacks! {
    class_flip => both_outcomes,
    size_flip => raced,
    pointer_flip => raced,
    flip_by_shared_memory => both_outcomes,
    flip_by_proc_mem => both_outcomes,
    handle_race => nothing_more,
    dup2_race => reported,
    fd_passing => reported_and_full,
    fd_in_flight => reported_and_full,
    private_fd_table => reported_and_full,
    close_race => closed_files_return,
    process_storm => reported_and_full,
    exit_in_mid_call => reported_and_full,
    sigstop_of_the_caller => stopped_often,
    ptrace_sibling => traced,
    kill_around => nobody_is_seen,
    wrong_type_byte => all_seen,
    high_bits => all_seen,
    direction_bits => all_seen,
    xfer_tunnel => tunnel_is_closed,
    compat_ioctl => foreign_table_is_closed,
    x32_ioctl => foreign_table_is_closed,
    serialised_parameters => flags_are_refused,
    bad_pointers => edges_are_met,
    reference_then_free => references_count,
    register_then_free => registrations_count,
    map_then_free => reported_and_full,
    export_then_free => reported,
    channel_groups => channel_groups_are_limited,
    va_spaces => va_spaces_are_limited,
    managed_memory => managed_is_bounded,
    heap_and_old_calls => old_calls_are_closed,
    privileged_classes => nothing_is_given,
    ungranted_capabilities => no_capability_is_given,
    absurd_sizes => nothing_more,
    huge_pages => pages_were_tried,
    page_tables => page_tables_come_later,
    host_memory => host_memory_is_limited,
    foreign_duplicate => never_executed,
    foreign_mapping => never_executed,
    foreign_channels => never_executed,
    foreign_handles => not_done,
    common_userd => not_done,
    foreign_names => never_executed,
    missing_destinations => not_done,
    restarting_signals => interrupted,
    interrupting_signals => eintr_was_seen,
    profiling_signals => interrupted,
    own_listener => listeners_are_refused,
    own_filter => reported_and_full,
    user_namespace => reported_and_full,
    nested_namespaces => reported,
    changed_root => reported_and_full,
    disguises => guises_share_the_slice,
    userfault_pages => is_answered,
    thread_flood => flood_is_served,
    file_flood => files_are_used,
    client_flood => clients_are_limited,
    event_flood => events_are_limited,
    figures_flood => pages_of_figures_are_limited,
    refused_flood => refusals_flow,
    fd_in_ring => ring_keeps_nothing,
    compat_mmap => compat_mmap_is_closed,
    managed_late => managed_within_the_slice,
    managed_unseen => nothing_is_managed,
    managed_heirs => heirs_are_charged,
    managed_cut => blocks_go_as_a_whole,
}

/// What the processes have mapped is within the slice, and something is.
fn managed_within_the_slice(observed: &Observed) -> Result<()> {
    let bytes = observed.number("/managed_bytes")?;
    ensure!(
        (1..=QUOTA_BYTES).contains(&bytes),
        "{bytes} bytes: {}",
        observed.facts
    );
    Ok(())
}

fn nothing_is_managed(observed: &Observed) -> Result<()> {
    let bytes = observed.number("/managed_bytes")?;
    ensure!(bytes == 0, "{bytes} bytes: {}", observed.facts);
    for (way, answer) in texts(observed, "/answers")? {
        // Address 0 is closed to programs without privilege; the driver's own answer to it is the last.
        let closed = ["ENOMEM", "EINVAL", "EPERM", "ENOSYS", "EOPNOTSUPP"].contains(&answer);
        // The kernel takes another address where it may, and then nothing is managed.
        let is_elsewhere = way.starts_with("0x0 ") && answer == "done";
        ensure!(closed || is_elsewhere, "{way}: {answer}");
    }
    Ok(())
}

fn heirs_are_charged(observed: &Observed) -> Result<()> {
    managed_within_the_slice(observed)?;
    ensure!(
        observed.text("/answers/begun")? == "done"
            && observed.number("/answers/kept")? > QUOTA_BYTES / 2,
        "{}",
        observed.facts
    );
    for heir in ["forked", "headless"] {
        let answer = observed.text(&format!("/answers/{heir}"))?;
        ensure!(answer == "ENOMEM", "{heir}: {}", observed.facts);
    }
    Ok(())
}

/// What is cut keeps its charge until nothing of it is left.
fn blocks_go_as_a_whole(observed: &Observed) -> Result<()> {
    for (moment, expected) in [("/begun", "done"), ("/cut", "ENOMEM"), ("/whole", "done")] {
        let answer = observed.text(moment)?;
        ensure!(answer == expected, "{moment}: {}", observed.facts);
    }
    Ok(())
}

/// `mmap` of managed memory is charged by its own table, and closed by every other.
fn compat_mmap_is_closed(observed: &Observed) -> Result<()> {
    for (way, is_open) in [("mmap2", false), ("old_mmap", false), ("native", true)] {
        ensure!(
            (observed.text(&format!("/{way}"))? == "done") == is_open,
            "{way}: {}",
            observed.facts
        );
    }
    Ok(())
}

/// What only a ring has is freed and given back, or rings are not to be had here.
fn ring_keeps_nothing(observed: &Observed) -> Result<()> {
    if observed.facts.get("unavailable").is_some() {
        return Ok(());
    }
    reported_and_full(observed)
}

/// A client in Go, whose runtime preempts by signals: no call is executed twice, none is lost.
#[test]
fn go_client() -> Result<()> {
    let Some(fixture) = shared("go_client")? else {
        return Ok(());
    };
    let Some(go) = integration::command::find("go").or_else(|| {
        let usual = std::path::PathBuf::from("/usr/local/go/bin/go");
        usual.is_file().then_some(usual)
    }) else {
        skip!("go_client", "no go");
    };
    let client = integration::programs::target_folder().join("cgpu-go-client");
    let mut build = std::process::Command::new(go);
    build
        .args(["build", "-o"])
        .arg(&client)
        .arg(".")
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/go"))
        .envs([
            ("CGO_ENABLED", "0"),
            ("GOFLAGS", "-mod=mod"),
            ("GOWORK", "off"),
            ("GOTOOLCHAIN", "local"),
        ]);
    capture(&mut build, std::time::Duration::from_secs(240))?.success()?;
    let quota = QUOTA_BYTES.to_string();
    for attacker in [Attacker::Unprivileged, Attacker::Root] {
        let (facts, card_bytes) = fixture.run_program(attacker, &client, &[&quota, "/out"])?;
        let number = |key: &str| facts[key].as_u64().unwrap_or(u64::MAX);
        ensure!(number("failed") == 0 && number("sent") > 20, "{facts}");
        ensure!(facts["tally"]["done"].as_u64() > Some(20), "{facts}");
        ensure!(
            facts["tally"]["held_bytes"] == card_bytes,
            "the card holds {card_bytes} bytes: {facts}"
        );
    }
    Ok(())
}

#[test]
fn setuid_exec() -> Result<()> {
    let Some(fixture) = shared("setuid_exec")? else {
        return Ok(());
    };
    for (attacker, uid) in [(Attacker::MayGain, "0"), (Attacker::Unprivileged, "1000")] {
        let observed = fixture.attack(attacker, "setuid_exec")?;
        // `Uid:` begins with the real one; what was gained shows in the capabilities.
        let gained = observed.text("/reported/identity/capabilities")? != "0000000000000000";
        ensure!(gained == (uid == "0"), "{}", observed.facts);
        ensure!(observed.card_bytes > QUOTA_BYTES / 2, "{}", observed.facts);
        observed.reported_is_held()?;
    }
    Ok(())
}

/// Calls that hang in the driver: more than the container's broker has workers. Nobody else waits for them.
#[test]
fn blocked_calls() -> Result<()> {
    let Some(fixture) = shared("blocked_calls")? else {
        return Ok(());
    };
    for attacker in [Attacker::Unprivileged, Attacker::Root] {
        let observed = fixture.attack_with_hanging_calls(attacker, "blocked_calls", 80)?;
        ensure!(observed.number("/tally/done")? == 100, "{}", observed.facts);
        observed.reported_is_held()?;
    }
    Ok(())
}

#[test]
fn fd_across_containers() -> Result<()> {
    let Some(fixture) = shared("fd_across_containers")? else {
        return Ok(());
    };
    for attacker in [Attacker::Unprivileged, Attacker::Root] {
        let (giver, taker) = fixture.attack_across(attacker)?;
        // Nothing is allocated in the giver's name, and each is charged what it took itself.
        giver.reported_is_held()?;
        taker.reported_is_held()?;
        ensure!(taker.number("/foreign/done")? == 0, "{}", taker.facts);
        ensure!(taker.card_bytes > QUOTA_BYTES - 48 * MIB, "{}", taker.facts);
    }
    Ok(())
}

/// A container that asks for nothing and is in the network namespace of one with a quota. It is attacked from an exec, too.
#[test]
fn fd_in_plain_container() -> Result<()> {
    let Some(fixture) = shared("fd_in_plain_container")? else {
        return Ok(());
    };
    for attacker in [Attacker::Unprivileged, Attacker::Root] {
        let (giver, taken) = fixture.attack_from_plain(attacker)?;
        giver.reported_is_held()?;
        ensure!(taken["tally"]["done"] == 0, "{taken}");
        for (pointer, needed) in [("answers", "ENOTTY"), ("others", "EBADF")] {
            let answers = taken[pointer].as_object().context("answers")?;
            ensure!(answers.len() > 2, "{taken}");
            for (call, answer) in answers {
                ensure!(*answer == needed, "{call}: {answer}");
            }
        }
    }
    Ok(())
}

#[test]
fn every_attack_has_a_test() {
    let across = [
        "honest",
        "setuid_exec",
        "blocked_calls",
        "fd_to_other_container",
        "fd_from_other_container",
        "fd_in_plain_container",
    ];
    for attack in security::ATTACKS {
        assert!(
            TESTED.contains(&attack.name) || across.contains(&attack.name),
            "{} has no test",
            attack.name
        );
    }
}

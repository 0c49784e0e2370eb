//! Sessions that share one card's time: by the card's own account, and by the times that it has written.

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use crate::tenant::card::{
    BUFFER, COMMANDS, COMPUTE, Card, HOST, copy, halves, methods, signal, until,
};
use crate::tenant::machine;
use driver::wire::CardAccount;
use nvabi::bytes::put_u32;
use nvabi::control;
use sim::Machine;

const MS: u64 = 1_000_000;
/// Blocks that the cards of these tests run at once, and how long they take.
const MULTIPROCESSORS: u32 = 8;
const BLOCK_US: u64 = 100;
/// Kernels that have ended before it is measured, and how long they take.
const SETTLED: u64 = 4;
const KERNEL_MS: u64 = 10;
/// Longer than any test: the last kernel of a load that must have work for as long as it is looked at. The card's time passes while a test's
/// threads wait for a processor, so no number of short kernels is enough on every machine.
const ENDLESS_MS: u64 = 100_000;
/// Where kernels report, in the host's memory; 16 bytes each.
const REPORTS: u64 = 0x1_0000;
const DESCRIPTORS: u64 = 0x10_0000;

fn one_card(more: &str) -> Arc<Machine> {
    machine(&format!(
        "[driver]\nversion = \"570.195.03\"\n{more}[[card]]\nname = \"Simulated\"\nmemory_mib = 256\narchitecture = \"ada\"\n\
         block_us = {BLOCK_US}\nmultiprocessors = {MULTIPROCESSORS}\n"
    ))
}

/// A tenant with kernels.
struct Load {
    card: Card,
    session: &'static str,
    launched: u64,
}

impl Load {
    fn new(machine: &Arc<Machine>, session: &'static str) -> Self {
        Self {
            card: Card::open_in(machine, session),
            session,
            launched: 0,
        }
    }

    /// Launches kernels of this many milliseconds, each of which reports its number and its end.
    fn launch(&mut self, kernels: u64, milliseconds: u64) {
        let blocks = u32::try_from(milliseconds * 1000 / BLOCK_US).unwrap() * MULTIPROCESSORS;
        for _ in 0..kernels {
            let number = self.launched;
            self.launched += 1;
            // NVC6C0_QMDV03_00: grid 384, release 768 (address), 823 (enable), 832 (payload), of four words.
            let mut descriptor = [0_u8; 256];
            let (high, low) = halves(HOST + REPORTS + number * 16);
            for (at, word) in [
                (48, blocks),
                (52, 1),
                (56, 1),
                (96, low),
                (100, high | 1 << 23),
                (104, u32::try_from(number + 1).unwrap()),
            ] {
                put_u32(&mut descriptor, at, word);
            }
            let at = DESCRIPTORS + number * 256;
            self.card.commands.write_all_at(&descriptor, at).unwrap();
            let address = u32::try_from((COMMANDS + at) >> 8).unwrap();
            let mut commands = methods(COMPUTE, 0x2b4, &[address]);
            commands.extend(methods(COMPUTE, 0x2c0, &[9]));
            self.card.submit(&commands);
        }
    }

    /// Launches a kernel that does not end while the test looks.
    fn launch_endless(&mut self) {
        self.launch(1, ENDLESS_MS);
    }

    /// When a kernel has ended, by the card; `None`: it has not.
    fn ended_ns(&self, number: u64) -> Option<u64> {
        let at = REPORTS + number * 16;
        (self.card.host_word(at) == number + 1).then(|| self.card.host_word(at + 8))
    }

    fn ended(&self) -> u64 {
        (0..self.launched)
            .filter(|number| self.ended_ns(*number).is_some())
            .count()
            .try_into()
            .unwrap()
    }

    fn control(&self, object: u32, cmd: u32, words: &[(usize, u32)]) -> Vec<u8> {
        self.card.tenant.ask(object, cmd, words).unwrap()
    }

    fn disable(&self, disable: u32, only_scheduling: u32) {
        let words = [
            (0, disable),
            (4, 1),
            (8, only_scheduling),
            (24, self.card.tenant.root),
            (280, self.card.channel),
        ];
        let cmd = control::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS;
        self.control(self.card.subdevice, cmd, &words);
    }

    fn set_timeslice(&self, micros: u32) {
        let cmd = control::NVA06C_CTRL_CMD_SET_TIMESLICE;
        self.control(self.card.group, cmd, &[(0, micros)]);
    }
}

fn account(machine: &Machine) -> CardAccount {
    machine.account().remove(0)
}

fn used_ns(account: &CardAccount, session: &str) -> u64 {
    account
        .engine_ns
        .iter()
        .find(|(name, _)| name == session)
        .map_or(0, |(_, used_ns)| *used_ns)
}

/// What each got of the time between two looks at the account, in thousandths, while all of them had work.
fn shares(machine: &Machine, loads: &mut [Load], milliseconds: u64) -> Vec<u64> {
    for load in loads.iter_mut() {
        load.disable(1, 0);
        // As many as have their turn on a machine that is not late, so that kernels end while it is measured.
        load.launch(milliseconds / KERNEL_MS + SETTLED, KERNEL_MS);
        load.launch_endless();
    }
    for load in loads.iter() {
        load.disable(0, 0);
    }
    // By then the rings have been read, however late their threads came to it.
    until("all of them run", || {
        loads.iter().all(|load| load.ended() >= SETTLED)
    });
    let before = account(machine);
    let until_ns = before.at_ns + milliseconds * MS;
    until("the time is over", || account(machine).at_ns >= until_ns);
    let after = account(machine);
    for load in loads.iter() {
        assert!(load.ended() < load.launched, "{} ran dry", load.session);
    }
    let whole_ns = after.at_ns - before.at_ns;
    let got_ns = |name| used_ns(&after, name) - used_ns(&before, name);
    let sum_ns: u64 = loads.iter().map(|load| got_ns(load.session)).sum();
    let switched_ns = after.switching_ns - before.switching_ns;
    assert!(
        whole_ns.abs_diff(sum_ns + switched_ns) < MS,
        "{sum_ns} used and {switched_ns} for switching, of {whole_ns}"
    );
    loads
        .iter()
        .map(|load| got_ns(load.session) * 1000 / sum_ns)
        .collect()
}

fn near(shares: &[u64], expected: &[u64]) {
    // One slice more or less at each end of the time.
    let close = shares
        .iter()
        .zip(expected)
        .all(|(share, expected)| share.abs_diff(*expected) <= 15);
    assert!(close, "{shares:?} of 1000, not {expected:?}");
}

#[test]
fn two_and_three_sessions_share_by_default_slices_and_by_their_own() {
    let machine = one_card("");
    let mut two = [Load::new(&machine, "a/one"), Load::new(&machine, "a/two")];
    near(&shares(&machine, &mut two, 300), &[500, 500]);
    drop(two);

    let mut three = ["b/one", "b/two", "b/three"].map(|name| Load::new(&machine, name));
    near(&shares(&machine, &mut three, 300), &[333, 333, 333]);
    drop(three);

    let mut weighted = [Load::new(&machine, "c/one"), Load::new(&machine, "c/three")];
    weighted[0].set_timeslice(1024);
    weighted[1].set_timeslice(3072);
    near(&shares(&machine, &mut weighted, 400), &[250, 750]);
    let slice = weighted[1].control(
        weighted[1].card.group,
        control::NVA06C_CTRL_CMD_GET_TIMESLICE,
        &[],
    );
    assert_eq!(slice[..8], 3072_u64.to_le_bytes());
}

#[test]
fn a_group_of_high_interleave_is_served_before_each_of_the_others() {
    let machine = one_card("");
    let mut loads = ["a/one", "a/two", "a/three", "a/high"].map(|name| Load::new(&machine, name));
    let set = |load: &Load, level: u32| {
        let mut params = level.to_le_bytes().to_vec();
        let cmd = control::NVA06C_CTRL_CMD_SET_INTERLEAVE_LEVEL;
        let (tenant, group) = (&load.card.tenant, load.card.group);
        tenant.control(group, cmd, &mut params, &mut Vec::new())
    };
    set(&loads[3], 2).unwrap();
    assert_eq!(
        set(&loads[3], 3).unwrap_err(),
        nvabi::status::NV_ERR_INVALID_ARGUMENT
    );
    near(&shares(&machine, &mut loads, 300), &[166, 166, 166, 500]);
}

#[test]
fn nothing_completes_while_the_gate_is_closed_and_nothing_is_lost() {
    let machine = one_card("");
    let mut gated = Load::new(&machine, "a/gated");
    let mut other = Load::new(&machine, "a/other");
    gated.launch(40, 2);
    other.launch(10, 4);
    other.launch_endless();
    // By then the rings have been read, however late their threads came to it.
    until("kernels of both", || gated.ended() > 0 && other.ended() > 5);
    gated.disable(1, 0);
    let closed = account(&machine);
    until("a tenth of a second", || {
        account(&machine).at_ns > closed.at_ns + 100 * MS
    });
    let opened = account(&machine);
    assert_eq!(
        used_ns(&opened, "a/gated"),
        used_ns(&closed, "a/gated"),
        "the engine's time behind a closed gate"
    );
    let others_ns = used_ns(&opened, "a/other") - used_ns(&closed, "a/other");
    assert!(
        others_ns * 100 >= (opened.at_ns - closed.at_ns) * 99,
        "the other has the card alone: {others_ns}"
    );
    gated.disable(0, 0);
    until("the rest", || gated.ended() == 40);
    let ends: Vec<u64> = (0..40)
        .filter_map(|number| gated.ended_ns(number))
        .collect();
    assert!(ends.is_sorted(), "{ends:?}");
    let inside = ends
        .iter()
        .filter(|end| (closed.at_ns..opened.at_ns).contains(end));
    assert_eq!(inside.count(), 0, "{ends:?}");
}

#[test]
fn a_gate_that_only_ends_scheduling_lets_the_slice_run_out() {
    let machine = one_card("");
    let mut load = Load::new(&machine, "a/b");
    load.set_timeslice(20_000);
    load.launch(60, 2);
    until("it runs", || used_ns(&account(&machine), "a/b") > 0);
    load.disable(1, 1);
    let called = account(&machine);
    until("two slices", || {
        account(&machine).at_ns > called.at_ns + 40 * MS
    });
    let still = account(&machine);
    let ran_on_ns = used_ns(&still, "a/b") - used_ns(&called, "a/b");
    assert!(ran_on_ns <= 20_000_000, "{ran_on_ns}");
    until("a slice more", || {
        account(&machine).at_ns > still.at_ns + 20 * MS
    });
    assert_eq!(used_ns(&account(&machine), "a/b"), used_ns(&still, "a/b"));
    load.disable(0, 0);
    until("the rest", || load.ended() == 60);
}

#[test]
fn the_work_of_a_client_that_is_killed_is_gone_at_once() {
    let machine = one_card("");
    let mut stays = Load::new(&machine, "a/stays");
    let mut goes = Load::new(&machine, "a/goes");
    stays.launch(10, 4);
    stays.launch_endless();
    goes.launch(10, 2);
    goes.launch_endless();
    until("both run", || stays.ended() > 5 && goes.ended() > 5);
    // The process goes, and its session with other processes would stay.
    goes.card.tenant.close_linked();
    goes.card.tenant.session.closed(goes.card.tenant.ctl.id);
    let before = account(&machine);
    assert!(used_ns(&before, "a/goes") > 0, "what was used stays used");
    until("some time", || {
        account(&machine).at_ns > before.at_ns + 50 * MS
    });
    let after = account(&machine);
    assert_eq!(used_ns(&after, "a/goes"), used_ns(&before, "a/goes"));
    let stays_ns = used_ns(&after, "a/stays") - used_ns(&before, "a/stays");
    assert!(
        stays_ns * 100 >= (after.at_ns - before.at_ns) * 99,
        "{stays_ns}"
    );
    // A call on what is left of it does not wait for anything.
    drop(goes);
    assert!(
        account(&machine)
            .engine_ns
            .iter()
            .all(|(name, _)| name != "a/goes")
    );
}

#[test]
fn an_idle_card_is_woken_by_nobody() {
    let machine = one_card("");
    let mut loads = [Load::new(&machine, "a/one"), Load::new(&machine, "a/two")];
    for load in &mut loads {
        load.launch(3, 2);
    }
    for load in &loads {
        until("all kernels", || load.ended() == 3);
    }
    let card = &machine.cards()[0];
    // What is left of the last kernel: the card finds out that nobody has work, and puts the group away.
    let mut before = card.wake_ups();
    let mut since = account(&machine).at_ns;
    while account(&machine).at_ns < since + 100 * MS {
        if card.wake_ups() != before {
            assert!(card.wake_ups() < 100, "it wakes again and again");
            before = card.wake_ups();
            since = account(&machine).at_ns;
        }
        std::thread::yield_now();
    }
}

#[test]
fn kernels_that_cannot_be_stopped_take_more_than_their_share() {
    let machine = one_card("");
    let mut rude = Load::new(&machine, "a/rude");
    let mut polite = Load::new(&machine, "a/polite");
    // Flags: the compute mode is set; mode 0, wait for idle.
    rude.control(
        rude.card.subdevice,
        0x2080_1210,
        &[(0, 1), (4, rude.card.channel), (12, 0)],
    );
    rude.disable(1, 0);
    polite.disable(1, 0);
    rude.launch(20, 20);
    polite.launch(200, 1);
    rude.disable(0, 0);
    polite.disable(0, 0);
    until("all of the rude one's", || rude.ended() == 20);
    // Between two of its kernels the other has a slice, and there are 19 of those places.
    let (first, last) = (rude.ended_ns(0), rude.ended_ns(19));
    let beside = (0..polite.launched)
        .filter_map(|number| polite.ended_ns(number))
        .filter(|end| first < Some(*end) && Some(*end) <= last)
        .count();
    assert!(beside <= 2 * 19, "{beside} of 1 ms beside 19 of 20 ms");
    let now = account(&machine);
    // Told to let go, it does at its kernel's end, and the caller that waits no longer is told so.
    rude.launch(1, 20_000);
    until("it runs", || {
        used_ns(&account(&machine), "a/rude") > used_ns(&now, "a/rude") + MS
    });
    let preempt = [(0, 1 | 1 << 8), (4, 1000)];
    let cmd = control::NVA06C_CTRL_CMD_PREEMPT;
    let answer = rude.card.tenant.ask(rude.card.group, cmd, &preempt);
    assert_eq!(answer.unwrap_err(), 0x65, "NV_ERR_TIMEOUT");
}

#[test]
fn copies_take_their_time_where_the_profile_gives_them_one() {
    let machine = machine(
        "[driver]\nversion = \"570.195.03\"\n[[card]]\nname = \"Simulated\"\nmemory_mib = 256\narchitecture = \"ada\"\n\
         copy_mib_per_s = 1000\n",
    );
    let card = Card::open_in(&machine, "a/b");
    let mut commands = signal(HOST, 1);
    commands.extend(copy(HOST + 0x1000, BUFFER, 2 << 20));
    commands.extend(signal(HOST + 0x20, 2));
    card.submit(&commands);
    until("the copy", || card.host_word(0x20) == 2);
    let took_ns = card.host_word(0x28) - card.host_word(8);
    assert!(took_ns >= 2 * MS, "{took_ns}");
    // A group of the compute engine copies with that.
    assert!(used_ns(&account(&machine), "a/b") >= 2 * MS);
}

//! Whatever a tenant sends: no panic, no memory that stays, and the next tenant is served.
use crate::tenant;
use crate::tenant::card::{Card, HOST, MIB, signal};
use crate::tenant::{Opened, Tenant, ada, open};
use driver::FileKind;
use driver::wire::WireFd;
use nvabi::bytes::put_u32;
use nvabi::layout::nvos54;
use nvabi::{Release, class, control, escape, uvm};
use proptest::prelude::*;

/// A word that means something now and then.
fn word(known: &[u32]) -> impl Strategy<Value = u32> + use<> {
    prop_oneof![
        3 => proptest::sample::select(known.to_vec()),
        2 => 0..40_u32,
        1 => Just(u32::MAX),
        1 => any::<u32>(),
    ]
}

#[derive(Debug, Clone)]
struct Shot {
    file: usize,
    row: usize,
    long: bool,
    words: Vec<(usize, u32)>,
    params: Option<Vec<(usize, u32)>>,
    lists: Vec<Vec<u8>>,
    control: usize,
}

fn shot(known: &[u32]) -> impl Strategy<Value = Shot> + use<> {
    let words = || proptest::collection::vec((0..96_usize, word(known)), 0..12);
    (
        0..4_usize,
        any::<usize>(),
        any::<bool>(),
        words(),
        proptest::option::of(words()),
        proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..64), 0..3),
        any::<usize>(),
    )
        .prop_map(|(file, row, long, words, params, lists, control)| Shot {
            file,
            row,
            long,
            words,
            params,
            lists,
            control,
        })
}

fn fire(tenant: &Tenant, files: &[Opened], shot: &Shot) {
    let release = tenant.release;
    let rows = escape::ALL.len() + uvm::ALL.len();
    let row = shot.row % (rows + 2);
    let (cmd, size) = match row {
        row if row < escape::ALL.len() => (
            escape::ALL[row].cmd(release),
            escape::ALL[row].size.of(release),
        ),
        row if row < rows => (
            uvm::ALL[row - escape::ALL.len()].cmd,
            uvm::ALL[row - escape::ALL.len()].size.of(release),
        ),
        row if row == rows => (0xc048_0000 | u32::from(escape::NV_ESC_CARD_INFO), 72),
        _last => (0xc000_0000 | u32::from(escape::NV_ESC_ATTACH_GPUS_TO_FD), 0),
    };
    let size = usize::try_from(size).unwrap();
    let mut block = vec![0; if shot.long { size } else { size / 2 }];
    for (at, word) in &shot.words {
        put_u32(&mut block, at * 4 % size.max(4), *word);
    }
    let mut params = None;
    if let Some(words) = &shot.params {
        let mut bytes = vec![0; 512];
        // A control that exists, with its size, so that its own code is reached.
        let commands = [
            0x205,
            0x3d05,
            0x3d06,
            0x275,
            0x80_0201,
            0x80_170d,
            0x2080_0110,
            0x2080_018e,
            0x2080_1201,
            0x2080_1301,
            0x2080_1303,
            0x2080_110b,
            0xa06c_0103,
            0x906f_0101,
            0x83de_030c,
        ];
        let command = commands[shot.control % commands.len()];
        if let Some(row) =
            control::row(command, release).filter(|_| cmd == escape::NV_ESC_RM_CONTROL.cmd(release))
        {
            put_u32(&mut block, nvos54::CMD, command);
            put_u32(&mut block, nvos54::PARAMS_SIZE, row.params_bytes);
            put_u32(&mut block, nvos54::FLAGS, 0);
            bytes = vec![0; usize::try_from(row.params_bytes).unwrap()];
        }
        for (at, word) in words {
            put_u32(&mut bytes, at * 4, *word);
        }
        params = Some(bytes);
    }
    let segments: Vec<Vec<u8>> = [Some(block), params]
        .into_iter()
        .flatten()
        .chain(shot.lists.clone())
        .collect();
    let lengths: Vec<usize> = segments.iter().map(Vec::len).collect();
    let ctl = (tenant.ctl.id, tenant.ctl.kind);
    let fds: Vec<WireFd> = [(0, 0), (0, 8), (0, 48), (1, 0), (1, 16)]
        .into_iter()
        .map(|(segment, at)| WireFd {
            segment,
            at,
            number: 5,
            file: Some(ctl),
            private: None,
            sent: false,
        })
        .collect();
    let back = tenant.ioctl(files[shot.file], cmd, segments, &fds);
    assert!(back.ret <= 0);
    assert_eq!(
        back.segments.iter().map(Vec::len).collect::<Vec<_>>(),
        lengths,
        "blocks keep their length"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn calls_of_any_content_leave_nothing_behind(
        (known, shots) in Just(vec![
            // Handles and classes that exist or can: the client is the machine's first, its objects are named from the base on.
            0xc1d0_0001, 0xcaf0_0000, 0xcaf0_0001, 0xcaf0_0002, 0xcaf0_0003, 0xcaf0_0004, 0xcaf0_0005,
            0x40, 0x3e, 0x71, 0x70, 0x80, 0x2080, 0x79, 0x90f1, 0xa06c, 0x9067, 0xc56f, 0xc461, 0x10_0000,
        ]).prop_flat_map(|known| (Just(known.clone()), proptest::collection::vec(shot(&known), 1..60)))
    ) {
        prop_assert!(known.contains(&0xc1d0_0001));
        for release in [Release::R535, Release::R595] {
            let machine = ada(if release == Release::R535 { "535.261.03" } else { "595.45.04" }, 64, 1);
            let tenant = Tenant::new(&machine, "hostile/one");
            prop_assert_eq!(tenant.root, 0xc1d0_0001);
            let (device, _sub) = tenant.device(0);
            let space = tenant.alloc(device, class::FERMI_VASPACE_A, 0, Some(&mut vec![0; 56])).unwrap();
            tenant.vidmem(device, MIB).unwrap();
            let uvm = tenant.uvm_file(machine.cards()[0].profile.uuid, space);
            let files = [tenant.ctl, tenant.card_file(0), uvm, open(FileKind::Uvm)];
            for shot in &shots {
                fire(&tenant, &files, shot);
            }
            let account = machine.account().remove(0);
            prop_assert!(account.used_bytes <= account.memory_bytes);
            let other = Tenant::new(&machine, "hostile/two");
            other.device(0);
            drop(tenant);
            prop_assert_eq!(machine.account().remove(0).used_bytes, 0);
        }
    }
}

/// Words of a ring: headers that are likely to be understood, and anything else.
fn ring_word() -> impl Strategy<Value = u32> {
    let known = [
        0x5c_u32, 0x60, 0x64, 0x68, 0x6c, 0x20, 0x10, 0x1c, 0x300, 0x400, 0x418, 0x708, 0x2b4,
        0x2c0, 0x1b4, 0x1b0c,
    ];
    prop_oneof![
        3 => (proptest::sample::select(known.to_vec()), 0..8_u32, 0..4_u32, proptest::sample::select(vec![1_u32, 3, 4, 5, 7]))
            .prop_map(|(method, subchannel, count, operation)| operation << 29 | count << 16 | subchannel << 13 | method >> 2),
        2 => 0..0x400_u32,
        1 => Just(0x2000_0000),
        1 => any::<u32>(),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn a_ring_of_any_content_runs_again_after_a_reset(
        words in proptest::collection::vec(ring_word(), 1..200),
        // No time at all, an instant, and longer than the test.
        time in proptest::sample::select(vec!["", "kernel_duration_us = 20", "block_us = 10000000", "copy_mib_per_s = 1"]),
    ) {
        let machine = tenant::machine(&format!(
            "[driver]\nversion = \"570.195.03\"\n[[card]]\nname = \"Simulated\"\nmemory_mib = 64\narchitecture = \"ada\"\n{time}\n"
        ));
        let card = Card::open(&machine);
        card.submit(&words);
        // Taken, stalled or in error: the thread that reads the rings lives, as another ring of the session shows.
        let other = Card::open(&machine);
        other.submit(&signal(HOST, 1));
        tenant::card::until("the other ring", || other.host_word(0) == 1);
        let size = control::known(0x906f_0102, card.tenant.release).unwrap().params_bytes;
        card.tenant.control(card.channel, 0x906f_0102, &mut vec![0; usize::try_from(size).unwrap()], &mut Vec::new()).unwrap();
        card.submit(&signal(HOST, 0x77));
        tenant::card::until("this ring", || card.host_word(0) == 0x77);
        drop((card, other));
        prop_assert_eq!(machine.account()[0].used_bytes, 0);
    }
}

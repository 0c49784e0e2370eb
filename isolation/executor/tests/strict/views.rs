//! What a tenant is shown of a card that others use too, and of the machine that it is in.

use driver::{Binding, Driver};
use nvabi::bytes::{put, put_u32, put_u64, u32_at, u64_at};
use nvabi::control::{self as ctl, fb_info, gpu_info};
use nvabi::layout::{
    atomics, boost_groups, card_info, fabric_probe, nvlink_device, nvlink_status, nvos33, p2p_caps,
    p2p_matrix, perfmon, pid_info, pid_memory, pids,
};
use nvabi::{Release, escape, status};

use crate::fixture::{Fixture, MIB};
use crate::program::{Program, SUBDEVICE};
use crate::{Test, rm, sums};

pub(crate) const TESTS: &[Test] = &[
    (
        "views::what_is_refused_is_not_advertised",
        what_is_refused_is_not_advertised,
    ),
    (
        "views::what_the_driver_keeps_of_a_card_is_no_part_of_a_slice",
        what_the_driver_keeps_of_a_card_is_no_part_of_a_slice,
    ),
    (
        "views::what_others_have_mapped_of_bar1_is_not_shown",
        what_others_have_mapped_of_bar1_is_not_shown,
    ),
    (
        "views::processes_are_the_containers_own_with_what_they_are_charged",
        processes_are_the_containers_own_with_what_they_are_charged,
    ),
    (
        "views::only_granted_cards_are_listed",
        only_granted_cards_are_listed,
    ),
    (
        "views::samples_are_the_containers_own_and_name_a_process_that_is_alone",
        samples_are_the_containers_own_and_name_a_process_that_is_alone,
    ),
    (
        "views::the_page_of_figures_is_mapped_where_the_host_shows_it",
        the_page_of_figures_is_mapped_where_the_host_shows_it,
    ),
    (
        "views::a_card_that_is_not_granted_is_one_that_is_not_there",
        a_card_that_is_not_granted_is_one_that_is_not_there,
    ),
    (
        "views::cards_that_are_not_granted_are_in_no_mask_and_no_group",
        cards_that_are_not_granted_are_in_no_mask_and_no_group,
    ),
    (
        "views::granted_cards_are_in_the_mask_before_a_program_asks_about_them",
        granted_cards_are_in_the_mask_before_a_program_asks_about_them,
    ),
    (
        "views::links_to_cards_that_are_not_granted_are_not_there",
        links_to_cards_that_are_not_granted_are_not_there,
    ),
    (
        "views::peers_are_looked_for_among_granted_cards_alone",
        peers_are_looked_for_among_granted_cards_alone,
    ),
];

/// Where the tests put the lists that parameters point to: behind the parameters.
const LIST_AT: u64 = 4 * 4096;

impl Program {
    /// A control that has to succeed; its parameters.
    fn ask(&self, object: u32, cmd: u32, params: &[u8]) -> Vec<u8> {
        let (status, params) = self
            .tenant
            .0
            .control(self.fd, (self.client, object), cmd, params);
        assert_eq!(status, rm::OK, "{cmd:#x}");
        params
    }

    /// A control with zeroed parameters.
    fn ask_all(&self, object: u32, cmd: u32) -> Vec<u8> {
        let row = ctl::row(cmd, Release::R570).unwrap();
        self.ask(object, cmd, &vec![0; row.params_bytes as usize])
    }

    /// What a list of indices is answered with, by the newer control with the list in its parameters.
    fn info(&self, cmd: u32, indices: &[u32]) -> Vec<u32> {
        let row = ctl::row(cmd, Release::R570).unwrap();
        let mut params = vec![0; row.params_bytes as usize];
        put_u32(&mut params, 0, u32::try_from(indices.len()).unwrap());
        for (at, index) in (4..).step_by(8).zip(indices) {
            put_u32(&mut params, at, *index);
        }
        let params = self.ask(self.subdevice, cmd, &params);
        let answers = (4..).step_by(8).zip(indices).map(|(at, index)| {
            assert_eq!(
                u32_at(&params, at),
                Some(*index),
                "the question is as it was"
            );
            u32_at(&params, at + 4).unwrap()
        });
        answers.collect()
    }

    /// The same by the older one, whose parameters point to the list.
    fn info_by_v1(&self, cmd: u32, indices: &[u32]) -> Vec<u32> {
        let list: Vec<u8> = indices
            .iter()
            .flat_map(|index| [index.to_le_bytes(), [0xaa; 4]].concat())
            .collect();
        let (_, list) = self.list(self.subdevice, cmd, indices.len(), &list);
        let answers = list.chunks_exact(8).zip(indices).map(|(entry, index)| {
            assert_eq!(u32_at(entry, 0), Some(*index), "the question is as it was");
            u32_at(entry, 4).unwrap()
        });
        answers.collect()
    }

    /// `{count 0, list 8:8}`: the count and the list afterwards.
    fn list(&self, object: u32, cmd: u32, count: usize, list: &[u8]) -> (u32, Vec<u8>) {
        let address = self.tenant.0.params_address() + LIST_AT;
        let mut params = vec![0; 16];
        put_u32(&mut params, 0, u32::try_from(count).unwrap());
        if !list.is_empty() {
            put_u64(&mut params, 8, address);
            self.tenant.0.write(address, list);
        }
        let params = self.ask(object, cmd, &params);
        let list = self.tenant.0.read(address, list.len());
        (u32_at(&params, 0).unwrap(), list)
    }
}

/// Libraries ask what there is, and go another way where there is nothing; what is refused later they take for an error.
fn what_is_refused_is_not_advertised() {
    const COMPUTE: u32 = 0xcec0;
    let fixture = Fixture::of_two_cards(64 * MIB);
    let asking = Program::new(&fixture);
    // A group's number above the index changes nothing of what is asked for.
    let requested = [
        gpu_info::DMABUF_CAPABILITY,
        gpu_info::GPU_FLA_CAPABILITY,
        1 << 24 | gpu_info::DMABUF_CAPABILITY,
    ];
    let v2 = asking.info(ctl::NV2080_CTRL_CMD_GPU_GET_INFO_V2, &requested);
    assert_eq!(v2, [0, 0, 0]);
    let v1 = asking.info_by_v1(ctl::NV2080_CTRL_CMD_GPU_GET_INFO, &requested);
    assert_eq!(v1, [0, 0, 0]);
    let probed = asking.ask_all(
        asking.subdevice,
        ctl::NV2080_CTRL_CMD_GET_GPU_FABRIC_PROBE_INFO,
    );
    assert_ne!(probed[0], 0, "the fabric itself is shown");
    assert_eq!(u64_at(&probed, fabric_probe::CAPS), Some(0));

    let words = |bytes: &[u8]| -> Vec<u32> {
        let words = bytes.chunks_exact(4);
        words.map(|word| u32_at(word, 0).unwrap()).collect()
    };
    let v2 = asking.ask_all(asking.device, ctl::NV0080_CTRL_CMD_GPU_GET_CLASSLIST_V2);
    let count = u32_at(&v2, 0).unwrap() as usize;
    let classes = words(&v2[4..4 + 4 * count]);
    // The older form: how many there are, then as many.
    let v1 = ctl::NV0080_CTRL_CMD_GPU_GET_CLASSLIST;
    let (of_v1, _) = asking.list(asking.device, v1, 0, &[]);
    let capacity = vec![0xaa; 4 * of_v1 as usize];
    let (again, list) = asking.list(asking.device, v1, of_v1 as usize, &capacity);
    assert_eq!((of_v1, words(&list)), (again, classes.clone()));
    assert!(classes.contains(&COMPUTE));
    for listed in &classes {
        let refused = [0xf8, 0xfd].contains(listed) || *listed == 0;
        assert!(!refused, "{listed:#x} in {classes:x?}");
    }
    for refused in [0xf8, 0xfd] {
        let parent = asking.subdevice;
        let (tenant, fd) = (&asking.tenant.0, asking.fd);
        let arg = rm::alloc(asking.client, parent, 0, refused, tenant.params_address());
        let called = tenant.call(fd, rm::ALLOC, &arg, &[0; 80]);
        assert_eq!(called.status(), status::NV_ERR_NOT_SUPPORTED);
    }
}

/// It is of the whole card. Where it is refused, the class is in no list and the call is answered as by a virtual GPU.
fn the_page_of_figures_is_mapped_where_the_host_shows_it() {
    const FIGURES: u32 = nvabi::class::RM_USER_SHARED_DATA;
    // The policy of `narrowing` shows it; that of a broker that knows no policy does not.
    for (fixture, is_shown) in [
        (Fixture::narrowing(64 * MIB, Binding::None), true),
        (Fixture::of_two_cards(64 * MIB), false),
    ] {
        let asking = Program::new(&fixture);
        let (tenant, fd) = (&asking.tenant.0, asking.fd);
        let address = tenant.params_address();
        let arg = rm::alloc(asking.client, asking.subdevice, 0, FIGURES, address);
        let called = tenant.call(fd, rm::ALLOC, &arg, &[0; 512]);
        let expected = match is_shown {
            true => rm::OK,
            false => status::NV_ERR_NOT_SUPPORTED,
        };
        assert_eq!(called.status(), expected);
        let list = asking.ask_all(asking.device, ctl::NV0080_CTRL_CMD_GPU_GET_CLASSLIST_V2);
        let count = u32_at(&list, 0).unwrap() as usize;
        let listed = list[4..4 + 4 * count].chunks_exact(4);
        let mut listed = listed.map(|word| u32_at(word, 0).unwrap());
        assert_eq!(listed.any(|class| class == FIGURES), is_shown);
    }
}

/// NVML takes one figure from another: what is used is what is left of the sum.
fn what_the_driver_keeps_of_a_card_is_no_part_of_a_slice() {
    let fixture = Fixture::of_two_cards(64 * MIB);
    let asking = Program::new(&fixture);
    let (tenant, fd) = (&asking.tenant.0, asking.fd);
    let called = tenant.memory(fd, asking.client, asking.device, 0, 16 * MIB);
    assert_eq!(called.status(), rm::OK);
    let requested = [
        fb_info::TOTAL_RAM_SIZE,
        fb_info::HEAP_FREE,
        fb_info::FB_TAX_SIZE_KB,
        fb_info::LARGEST_FREE_REGION_BASE_KB,
        fb_info::VISTA_RESERVED_HEAP_SIZE,
        fb_info::SMOOTHDISP_RSVD_BAR1_SIZE,
        fb_info::HEAP_OFFLINE_SIZE,
        fb_info::SUSPEND_RESUME_RSVD_SIZE,
        // Nothing is protected on a card that does not compute confidentially.
        fb_info::PROTECTED_MEM_SIZE_TOTAL_KB,
    ];
    let shown = [64 << 10, 48 << 10, 0, 0, 0, 0, 0, 0, 0];
    let (v1, v2) = (
        ctl::NV2080_CTRL_CMD_FB_GET_INFO,
        ctl::NV2080_CTRL_CMD_FB_GET_INFO_V2,
    );
    assert_eq!(asking.info(v2, &requested), shown);
    assert_eq!(asking.info_by_v1(v1, &requested), shown);
}

fn what_others_have_mapped_of_bar1_is_not_shown() {
    let fixture = Fixture::of_two_cards(64 * MIB);
    let asking = Program::new(&fixture);
    let another = Program::new(&fixture);
    let (tenant, fd) = (&another.tenant.0, another.fd);
    let called = tenant.memory(fd, another.client, another.device, 0, 16 * MIB);
    assert_eq!(called.status(), rm::OK);
    let mut arg = vec![0; 56];
    let memory = rm::new_handle(&called.arg);
    for (at, handle) in [(0, another.client), (4, another.device), (8, memory)] {
        put_u32(&mut arg, at, handle);
    }
    put_u64(&mut arg, nvos33::LENGTH, 16 * MIB);
    let own = tenant.open(&fixture.nodes().join("nvidia0"));
    put(&mut arg, nvos33::FD, &own.to_le_bytes());
    let called = tenant.call(
        fd,
        escape::NV_ESC_RM_MAP_MEMORY.cmd(Release::R570),
        &arg,
        &[],
    );
    assert_eq!(u32_at(&called.arg, nvos33::STATUS), Some(rm::OK));

    let requested = [
        fb_info::BAR1_AVAIL_SIZE,
        fb_info::BAR1_SIZE,
        fb_info::BAR1_MAX_CONTIGUOUS_AVAIL_SIZE,
    ];
    let (v1, v2) = (
        ctl::NV2080_CTRL_CMD_FB_GET_INFO,
        ctl::NV2080_CTRL_CMD_FB_GET_INFO_V2,
    );
    for shown in [
        asking.info(v2, &requested),
        asking.info_by_v1(v1, &requested),
    ] {
        assert_ne!(shown[1], 0);
        assert_eq!(shown, [shown[1]; 3], "KiB of BAR1");
    }
    // One alone, without the length beside it.
    let alone = asking.info(v2, &requested[..1]);
    assert_eq!(alone, asking.info(v2, &requested[1..2]));
}

/// The driver knows the executor alone; the tenants know each other.
fn processes_are_the_containers_own_with_what_they_are_charged() {
    let fixture = Fixture::of_two_cards(64 * MIB);
    let first = Program::new(&fixture);
    let second = Program::new(&fixture);
    let idle = Program::new(&fixture);
    let (_kernel, neighbour) = fixture.another();
    let _neighbours = sums::allocate_by(&neighbour, &fixture, 8 * MIB);
    let neighbour = neighbour.process().unwrap().unsigned_abs();
    for (asking, mib) in [(&first, 16), (&second, 4)] {
        let called = asking
            .tenant
            .0
            .memory(asking.fd, asking.client, asking.device, 0, mib * MIB);
        assert_eq!(called.status(), rm::OK);
    }
    let [one, two, none] = [&first, &second, &idle].map(|asking| asking.tenant.1.0.id());
    let executor = fixture.executor().process().unwrap().unsigned_abs();

    let mut requested = vec![0; 3812];
    put_u32(&mut requested, pids::ID, SUBDEVICE);
    let table = first.ask(
        first.subdevice,
        ctl::NV2080_CTRL_CMD_GPU_GET_PIDS,
        &requested,
    );
    let count = u32_at(&table, pids::COUNT).unwrap() as usize;
    let mut listed: Vec<u32> = (0..count)
        .map(|index| u32_at(&table, pids::TABLE + 4 * index).unwrap())
        .collect();
    listed.sort_unstable();
    let mut own = [one, two];
    own.sort_unstable();
    assert_eq!(listed, own);
    assert!(
        table[pids::TABLE + 4 * count..]
            .iter()
            .all(|byte| *byte == 0)
    );

    let mut requested = vec![0; 14408];
    let others = [one, two, none, executor, neighbour];
    put_u32(&mut requested, pid_info::COUNT, 5);
    let row = |index: usize| pid_info::LIST + pid_memory::BYTES * index;
    for (index, pid) in others.into_iter().enumerate() {
        put_u32(&mut requested, row(index) + pid_memory::PID, pid);
    }
    let info = first.ask(
        first.subdevice,
        ctl::NV2080_CTRL_CMD_GPU_GET_PID_INFO,
        &requested,
    );
    let held = [0, 1, 2, 3, 4].map(|index| {
        assert_eq!(u32_at(&info, row(index) + pid_memory::RESULT), Some(rm::OK));
        u64_at(&info, row(index) + pid_memory::PRIVATE).unwrap()
    });
    assert_eq!(held, [16 * MIB, 4 * MIB, 0, 0, 0]);
    // The driver looks through the host's clients for the first alone.
    let looked_up = fixture
        .kernel
        .controls(ctl::NV2080_CTRL_CMD_GPU_GET_PID_INFO);
    let last = looked_up.last().unwrap();
    assert_eq!(u32_at(&last[1], pid_info::COUNT), Some(1));
    assert_eq!(u32_at(&info, pid_info::COUNT), Some(5));
}

fn only_granted_cards_are_listed() {
    const NONE: u32 = u32::MAX;
    let fixture = Fixture::of_two_cards(64 * MIB);
    let asking = Program::new(&fixture);
    let cards = fixture.kernel.sim().cards();
    assert_eq!(cards.len(), 2);
    let granted = cards[0].gpu_id;
    let words = |params: &[u8]| -> Vec<u32> {
        let words = params.chunks_exact(4);
        words.map(|word| u32_at(word, 0).unwrap()).collect()
    };
    let only = |list: &[u32], first: u32| {
        assert_eq!(list.len(), 32);
        assert_eq!(list[0], first);
        assert!(list[1..].iter().all(|id| *id == NONE), "{list:x?}");
    };
    let of = |cmd| words(&asking.ask_all(asking.client, cmd));
    only(&of(ctl::NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS), granted);
    let probed = of(ctl::NV0000_CTRL_CMD_GPU_GET_PROBED_IDS);
    only(&probed[..32], granted);
    // Cards that the host's driver leaves alone are none of a tenant's affair.
    only(&probed[32..], NONE);
    let active = of(ctl::NV0000_CTRL_CMD_GPU_GET_ACTIVE_DEVICE_IDS);
    assert_eq!(active[..4], [1, granted, NONE, NONE]);
    assert!(active[4..].iter().all(|word| *word == 0));
}

/// The older form points to tables of all pairs; a card that is not granted is one that is not there.
fn peers_are_looked_for_among_granted_cards_alone() {
    let fixture = Fixture::of_two_cards(64 * MIB);
    let asking = Program::new(&fixture);
    let [granted, foreign] = [0, 1].map(|at| fixture.kernel.sim().cards()[at].gpu_id);
    let (tenant, fd) = (&asking.tenant.0, asking.fd);
    let root = (asking.client, asking.client);

    let tables = [0, 64].map(|at| tenant.params_address() + LIST_AT + at);
    let mut requested = vec![0; 176];
    put_u64(&mut requested, 160, tables[0]);
    put_u64(&mut requested, 168, tables[1]);
    let v1 = ctl::NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS;
    for (ids, entries) in [(&[granted][..], 1), (&[granted, granted], 4)] {
        for (slot, id) in ids.iter().enumerate() {
            put_u32(&mut requested, p2p_caps::IDS + 4 * slot, *id);
        }
        put_u32(
            &mut requested,
            p2p_caps::COUNT,
            u32::try_from(ids.len()).unwrap(),
        );
        put_u32(&mut requested, p2p_caps::CAPS, 0xaaaa_aaaa);
        for table in tables {
            tenant.write(table, &[0xaa; 64]);
        }
        let answer = asking.ask(asking.client, v1, &requested);
        assert_eq!(u32_at(&answer, p2p_caps::CAPS), Some(0));
        for (at, table) in [160, 168].into_iter().zip(tables) {
            assert_eq!(u64_at(&answer, at), Some(table), "the pointer is as it was");
            let mut written = [0xaa; 64];
            written[..4 * entries].fill(0xff);
            assert_eq!(tenant.read(table, 64), written);
        }
    }
    // Without tables.
    put_u64(&mut requested, 160, 0);
    put_u64(&mut requested, 168, 0);
    asking.ask(asking.client, v1, &requested);

    let mut v2 = vec![0; 8348];
    let mut matrix = vec![0; 1352];
    for (params, ids, count) in [
        (&mut requested, p2p_caps::IDS, p2p_caps::COUNT),
        (&mut v2, p2p_caps::IDS, p2p_caps::COUNT),
        (
            &mut matrix,
            p2p_matrix::GROUPS[1].0,
            p2p_matrix::GROUPS[1].1,
        ),
    ] {
        put_u32(params, count, 2);
        put_u32(params, ids, granted);
        put_u32(params, ids + 4, granted);
    }
    // The driver compares the second group with the first, which must have one.
    let (ids, count) = p2p_matrix::GROUPS[0];
    put_u32(&mut matrix, count, 1);
    put_u32(&mut matrix, ids, granted);
    for (cmd, mut params, second) in [
        (v1, requested, 4),
        (ctl::NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS_V2, v2, 4),
        (
            ctl::NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS_MATRIX,
            matrix,
            p2p_matrix::GROUPS[1].0 + 4,
        ),
    ] {
        asking.ask(asking.client, cmd, &params);
        let made = fixture.kernel.controls(cmd).len();
        put_u32(&mut params, second, foreign);
        let (refused, after) = tenant.control(fd, root, cmd, &params);
        assert_eq!(refused, status::NV_ERR_INVALID_ARGUMENT, "{cmd:#x}");
        assert_eq!(after, params);
        assert_eq!(
            fixture.kernel.controls(cmd).len(),
            made,
            "no driver hears of it"
        );
    }
}

/// How busy the card was, and with whose work: `(process, util)` of each sample's graphics engine.
fn samples(asking: &Program) -> Vec<(u32, u32)> {
    let of = |size: nvabi::PerRelease| size.of(Release::R570) as usize;
    let cmd = ctl::NV2080_CTRL_CMD_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2;
    let row = ctl::row(cmd, Release::R570).unwrap();
    // More than a tenant's own pages hold, and more than it reads at once.
    const PART: usize = 16 << 10;
    let (tenant, bytes) = (&asking.tenant.0, row.params_bytes as usize);
    let address = tenant.pages(16, false);
    let mut head = [0; perfmon::SAMPLES];
    put_u32(
        &mut head,
        4,
        u32::try_from(bytes - perfmon::SAMPLES).unwrap(),
    );
    tenant.write(address, &head);
    let arg = rm::control(
        asking.client,
        asking.subdevice,
        cmd,
        address,
        row.params_bytes,
    );
    assert_eq!(
        tenant.call(asking.fd, rm::CONTROL, &arg, &[]).status(),
        rm::OK
    );
    let answer: Vec<u8> = (0..bytes)
        .step_by(PART)
        .flat_map(|at| tenant.read(address + at as u64, PART.min(bytes - at)))
        .collect();
    assert_eq!(u32_at(&answer, perfmon::COUNT), Some(perfmon::MOST));
    let samples = answer[perfmon::SAMPLES..].chunks_exact(of(perfmon::SAMPLE_BYTES));
    samples
        .map(|sample| {
            assert_ne!(u64_at(sample, perfmon::TIME), Some(0), "time goes on");
            for engine in sample[perfmon::ENGINES..].chunks_exact(of(perfmon::ENGINE_BYTES)) {
                let behind = &engine[perfmon::PROCESS + 4..];
                assert!(behind.iter().all(|byte| *byte == 0), "names and addresses");
            }
            let at = of(perfmon::GR);
            let word = |field| u32_at(sample, at + field).unwrap();
            let memory = u32_at(sample, perfmon::ENGINES + perfmon::PROCESS);
            assert_eq!(memory, Some(word(perfmon::PROCESS)));
            (word(perfmon::PROCESS), word(perfmon::UTIL))
        })
        .collect()
}

/// Several processes are the executor's for the driver: what they have done is not told apart.
fn samples_are_the_containers_own_and_name_a_process_that_is_alone() {
    const NONE: u32 = perfmon::NO_PROCESS;
    let fixture = Fixture::of_two_cards(64 * MIB);
    let first = Program::new(&fixture);
    let (_kernel, neighbour) = fixture.another();
    let _neighbours = sums::allocate_by(&neighbour, &fixture, 8 * MIB);
    let (tenant, fd) = (&first.tenant.0, first.fd);
    let called = tenant.memory(fd, first.client, first.device, 0, 16 * MIB);
    assert_eq!(called.status(), rm::OK);

    let shown = samples(&first);
    let busy: Vec<u32> = shown.iter().map(|(_, util)| *util).collect();
    let util = *busy.iter().max().unwrap();
    assert_ne!(util, 0, "the container's own");
    let is_known = |row: &(u32, u32)| [(first.tenant.1.0.id(), util), (NONE, 0)].contains(row);
    assert!(shown.iter().all(is_known), "{shown:x?}");
    assert_eq!(busy.iter().filter(|busy| **busy != 0).count(), 36);

    let second = Program::new(&fixture);
    let (tenant, fd) = (&second.tenant.0, second.fd);
    let called = tenant.memory(fd, second.client, second.device, 0, MIB);
    assert_eq!(called.status(), rm::OK);
    let shown = samples(&second);
    let again: Vec<u32> = shown.iter().map(|(_, util)| *util).collect();
    assert_eq!(again, busy);
    assert!(shown.iter().all(|(process, _)| *process == NONE));
}

fn a_card_that_is_not_granted_is_one_that_is_not_there() {
    let fixture = Fixture::of_two_cards(64 * MIB);
    let asking = Program::new(&fixture);
    let [granted, foreign] = [0, 1].map(|at| fixture.kernel.sim().cards()[at].gpu_id);
    let (invalid, not_found) = (
        status::NV_ERR_INVALID_ARGUMENT,
        status::NV_ERR_OBJECT_NOT_FOUND,
    );
    let (root, subdevice) = (asking.client, asking.subdevice);
    let peers = ctl::NV2080_CTRL_CMD_BUS_GET_PCIE_SUPPORTED_GPU_ATOMICS;
    for (object, cmd, at, refused) in [
        (root, ctl::NV0000_CTRL_CMD_GPU_GET_ID_INFO, 0, invalid),
        (root, ctl::NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2, 0, invalid),
        (root, ctl::NV0000_CTRL_CMD_GPU_ATTACH_IDS, 0, invalid),
        (root, ctl::NV0000_CTRL_CMD_GPU_ATTACH_IDS, 4, invalid),
        (root, ctl::NV0000_CTRL_CMD_GPU_DETACH_IDS, 0, invalid),
        (root, ctl::NV0000_CTRL_CMD_GPU_ASYNC_ATTACH_ID, 0, invalid),
        (root, ctl::NV0000_CTRL_CMD_GPU_GET_PCI_INFO, 0, not_found),
        (
            root,
            ctl::NV0000_CTRL_CMD_GPU_QUERY_DRAIN_STATE,
            0,
            not_found,
        ),
        (
            root,
            ctl::NV0000_CTRL_CMD_GPU_GET_UUID_FROM_GPU_ID,
            0,
            not_found,
        ),
        (subdevice, peers, atomics::PEER, invalid),
    ] {
        let row = ctl::row(cmd, Release::R570).unwrap();
        let mut params = vec![0; row.params_bytes as usize];
        let is_list = params.len() >= 128
            && [
                ctl::NV0000_CTRL_CMD_GPU_ATTACH_IDS,
                ctl::NV0000_CTRL_CMD_GPU_DETACH_IDS,
            ]
            .contains(&cmd);
        if is_list {
            params.fill(0xff);
            put_u32(&mut params, 0, granted);
        }
        if cmd == peers {
            put_u32(&mut params, atomics::KIND, atomics::BETWEEN_CARDS);
        }
        put_u32(&mut params, at, granted);
        asking.ask(object, cmd, &params);
        let made = fixture.kernel.controls(cmd).len();
        put_u32(&mut params, at, foreign);
        let requested = (asking.client, object);
        let (status, after) = asking.tenant.0.control(asking.fd, requested, cmd, &params);
        assert_eq!(status, refused, "{cmd:#x}");
        assert_eq!(after, params);
        assert_eq!(
            fixture.kernel.controls(cmd).len(),
            made,
            "no driver hears of it"
        );
    }
    // All that there are, and what is not asked about a peer, names none.
    let mut all = vec![0xff; 132];
    put_u32(&mut all, 0, 0xffff);
    asking.ask(root, ctl::NV0000_CTRL_CMD_GPU_ATTACH_IDS, &all);
    let mut alone = vec![0; 112];
    put_u32(&mut alone, atomics::PEER, foreign);
    asking.ask(subdevice, peers, &alone);
}

fn cards_that_are_not_granted_are_in_no_mask_and_no_group() {
    let fixture = Fixture::of_two_cards(64 * MIB);
    let asking = Program::new(&fixture);
    let granted = fixture.kernel.sim().cards()[0].gpu_id;
    let mask = asking.ask_all(asking.client, ctl::NV0000_CTRL_CMD_GPU_GET_DEVICE_IDS);
    assert_eq!(u32_at(&mask, 0), Some(1));
    let groups = asking.ask_all(
        asking.client,
        ctl::NV0000_CTRL_CMD_SYNC_GPU_BOOST_GROUP_INFO,
    );
    let group = &groups[boost_groups::GROUPS..][..boost_groups::GROUP_BYTES];
    assert_eq!(u32_at(&groups, boost_groups::COUNT), Some(1));
    assert_eq!(u32_at(group, boost_groups::CARDS), Some(1));
    let ids = &group[boost_groups::IDS..][..4 * boost_groups::MOST];
    assert_eq!(u32_at(ids, 0), Some(granted));
    let behind = &groups[boost_groups::GROUPS + boost_groups::GROUP_BYTES..];
    assert!(ids[4..].iter().chain(behind).all(|byte| *byte == 0));
}

/// A card's number in the mask is learnt by the broker's own question.
fn granted_cards_are_in_the_mask_before_a_program_asks_about_them() {
    const CARD_INFO: u32 = 0xc120_46c8;
    let fixture = Fixture::of_two_unnumbered_cards(64 * MIB);
    let (tenant, _process) = fixture.tenant();
    let fd = tenant.open(&fixture.nodes().join("nvidiactl"));
    let client = tenant.client(fd);
    let cmd = ctl::NV0000_CTRL_CMD_GPU_GET_DEVICE_IDS;
    let mask = || {
        let (status, params) = tenant.control(fd, (client, client), cmd, &[0; 4]);
        assert_eq!(status, rm::OK);
        u32_at(&params, 0).unwrap()
    };
    assert_eq!(mask(), 0, "nothing is known of any card");
    let called = tenant.call(fd, CARD_INFO, &[0; 4 * card_info::BYTES], &[]);
    assert_eq!(called.ret, Ok(0));
    assert_eq!(mask(), 1);
    assert_eq!(mask(), 1);
    let requested = fixture
        .kernel
        .controls(ctl::NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2);
    assert_eq!(requested.len(), 1, "once");
}

fn links_to_cards_that_are_not_granted_are_not_there() {
    let fixture = Fixture::of_two_cards(64 * MIB);
    let asking = Program::new(&fixture);
    let status = asking.ask_all(
        asking.subdevice,
        ctl::NV2080_CTRL_CMD_NVLINK_GET_NVLINK_STATUS,
    );
    let of = |size: nvabi::PerRelease| size.of(Release::R570) as usize;
    let links: Vec<&[u8]> = status[of(nvlink_status::LINKS)..]
        .chunks_exact(of(nvlink_status::LINK_BYTES))
        .collect();
    assert_eq!(
        u32_at(&status, nvlink_status::ENABLED),
        Some(0b100),
        "the link to a switch"
    );
    let remote = of(nvlink_status::REMOTE) + nvlink_device::TYPE;
    assert_eq!(links[2][nvlink_status::CONNECTED], 1);
    assert_eq!(u64_at(links[2], remote), Some(nvlink_device::SWITCH));
    for link in [links[0], links[1], links[3]] {
        assert!(link.iter().all(|byte| *byte == 0));
    }
}

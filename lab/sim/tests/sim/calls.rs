//! How calls are refused, and what queries say.

use crate::tenant;
use crate::tenant::{RELEASES, Tenant, ada, open};
use driver::FileKind;
use nvabi::bytes::{put, put_u32, put_u64, u32_at, u64_at};
use nvabi::control::{self, fb_info};
use nvabi::layout::{api_version, nvlink_device, nvlink_status, nvos32, nvos54, perfmon};
use nvabi::status::*;
use nvabi::{class, escape, uvm};

const MIB: u64 = 1 << 20;

#[test]
fn a_client_belongs_to_its_file() {
    let machine = ada("570.195.03", 64, 1);
    let one = Tenant::new(&machine, "a/b");
    let mut other = Tenant::new(&machine, "a/b");
    let (device, _sub) = one.device(0);
    // The same session, the other's client: as RM, by the file alone.
    other.root = one.root;
    assert_eq!(other.vidmem(device, 1).unwrap_err(), NV_ERR_INVALID_CLIENT);
    assert_eq!(other.free(device), Err(NV_ERR_INVALID_CLIENT));
    one.vidmem(device, 1).unwrap();
    // A device file acts for the control file that it is linked to, and only once for one.
    let file = one.card_file(0);
    assert_eq!(one.register(file), -22);
    assert_eq!(one.register(one.ctl), -22);
}

#[test]
fn wrong_classes_handles_sizes_and_commands_are_refused_as_rm_does() {
    let machine = ada("570.195.03", 64, 1);
    let tenant = Tenant::new(&machine, "a/b");
    let (device, sub) = tenant.device(0);
    let untouched = tenant.alloc(device, 0xffff, 0x77, None);
    assert_eq!(untouched, Err(NV_ERR_INVALID_CLASS));
    // A class of another architecture.
    assert_eq!(
        tenant.alloc(sub, 0xc661, 0, None),
        Err(NV_ERR_INVALID_CLASS)
    );
    assert_eq!(
        tenant.alloc(
            0x1234,
            class::NV01_MEMORY_LOCAL_USER,
            0,
            Some(&mut vec![0; 128])
        ),
        Err(NV_ERR_OBJECT_NOT_FOUND)
    );
    assert_eq!(
        tenant.alloc(device, class::NV01_MEMORY_LOCAL_USER, 0, None),
        Err(NV_ERR_INVALID_ARGUMENT)
    );
    assert_eq!(
        tenant.alloc(
            device,
            class::NV01_MEMORY_VIRTUAL,
            sub,
            Some(&mut vec![0; 24])
        ),
        Err(NV_ERR_INSERT_DUPLICATE_NAME)
    );
    let mut params = vec![0; 56];
    put_u32(&mut params, 0, 1);
    assert_eq!(
        tenant.alloc(tenant.root, class::NV01_DEVICE_0, 0, Some(&mut params)),
        Err(NV_ERR_INVALID_CLASS)
    );

    assert_eq!(
        tenant
            .ask(0x99, control::NV2080_CTRL_CMD_GPU_GET_GID_INFO, &[])
            .unwrap_err(),
        NV_ERR_OBJECT_NOT_FOUND
    );
    assert_eq!(
        tenant.ask(sub, 0x2080_ffff, &[]).unwrap_err(),
        NV_ERR_NOT_SUPPORTED
    );
    // A command of another class of objects.
    assert_eq!(
        tenant
            .ask(device, control::NV2080_CTRL_CMD_GPU_GET_GID_INFO, &[])
            .unwrap_err(),
        NV_ERR_NOT_SUPPORTED
    );
    for size in [267, 269] {
        let result = tenant.control(
            sub,
            control::NV2080_CTRL_CMD_GPU_GET_GID_INFO,
            &mut vec![0; size],
            &mut Vec::new(),
        );
        assert_eq!(result, Err(NV_ERR_INVALID_ARGUMENT), "{size}");
    }
    // Serialised parameters hide what they hold.
    let mut block = tenant.block(&escape::NV_ESC_RM_CONTROL);
    put_u32(&mut block, nvos54::H_CLIENT, tenant.root);
    put_u32(&mut block, nvos54::H_OBJECT, sub);
    put_u32(
        &mut block,
        nvos54::CMD,
        control::NV2080_CTRL_CMD_GPU_GET_GID_INFO,
    );
    put_u32(&mut block, nvos54::FLAGS, 4);
    let result = tenant.call(
        tenant.ctl,
        &escape::NV_ESC_RM_CONTROL,
        vec![block],
        nvos54::STATUS,
        &[],
    );
    assert_eq!(result.err(), Some(NV_ERR_NOT_SUPPORTED));
    // An unknown handle is freed already.
    assert_eq!(tenant.free(0x1234_5678), Ok(()));
}

#[test]
fn commands_are_known_by_number_and_size_and_belong_on_their_file() {
    let machine = ada("570.195.03", 64, 1);
    let tenant = Tenant::new(&machine, "a/b");
    let alloc = escape::NV_ESC_RM_ALLOC.cmd(tenant.release);
    for (on, cmd, bytes, expected) in [
        (tenant.ctl, 0xc004_46ff, 4, -22),
        // The right number with another size.
        (tenant.ctl, alloc & !(0xfff << 16) | 33 << 16, 33, -22),
        // A block that is shorter than its command says.
        (tenant.ctl, alloc, 31, -14),
        (open(FileKind::Card { minor: 0 }), alloc, 32, -22),
        (
            tenant.ctl,
            escape::NV_ESC_RM_ALLOC_MEMORY.cmd(tenant.release),
            56,
            -22,
        ),
        (open(FileKind::UvmTools), 37, 40, -22),
        (open(FileKind::Uvm), 9999, 64, -22),
        // The type byte and the direction are not looked at.
        (
            tenant.ctl,
            escape::NV_ESC_SYS_PARAMS.cmd(tenant.release) & 0x3fff_00ff,
            8,
            0,
        ),
    ] {
        assert_eq!(
            tenant.ioctl(on, cmd, vec![vec![0; bytes]], &[]).ret,
            expected,
            "{cmd:#x}"
        );
    }
    assert_eq!(tenant.ioctl(tenant.ctl, alloc, Vec::new(), &[]).ret, -14);
    // Nothing is done on a uvm file before it is initialised.
    let uuid = machine.cards()[0].profile.uuid;
    let register = tenant.uvm(open(FileKind::Uvm), &uvm::UVM_REGISTER_GPU, |block| {
        put(block, 0, &uuid);
    });
    assert_eq!(register.unwrap_err(), NV_ERR_ILLEGAL_ACTION);
}

#[test]
fn memory_queries_agree_with_the_account_in_every_release() {
    for version in RELEASES {
        let machine = ada(version, 64, 1);
        let tenant = Tenant::new(&machine, "a/b");
        let (device, sub) = tenant.device(0);
        assert_eq!(tenant.vidmem(device, 3 * MIB).unwrap().1, 4 * MIB);
        assert_eq!(tenant.vidmem(device, 1).unwrap().1, 64 << 10);
        let used = machine.account()[0].used_bytes;
        assert_eq!(used, 4 * MIB + (64 << 10));
        let free_kib = u32::try_from((64 * MIB - used) >> 10).unwrap();
        let words = [
            (0, 3),
            (4, fb_info::TOTAL_RAM_SIZE),
            (12, fb_info::HEAP_FREE),
            (20, fb_info::LARGEST_FREE_REGION_SIZE_KB),
        ];
        let new = tenant
            .ask(sub, control::NV2080_CTRL_CMD_FB_GET_INFO_V2, &words)
            .unwrap();
        assert_eq!(
            [8, 16, 24].map(|at| u32_at(&new, at).unwrap()),
            [64 << 10, free_kib, free_kib],
            "{version}"
        );

        let mut params = vec![0; 16];
        put_u32(&mut params, 0, 1);
        let mut list = vec![0; 8];
        put_u32(&mut list, 0, fb_info::HEAP_FREE);
        let mut lists = vec![list];
        tenant
            .control(
                sub,
                control::NV2080_CTRL_CMD_FB_GET_INFO,
                &mut params,
                &mut lists,
            )
            .unwrap();
        assert_eq!(u32_at(&lists[0], 4), Some(free_kib));
        // More entries than the block has, and a list that is not there.
        put_u32(&mut params, 0, 2);
        assert_eq!(
            tenant.control(
                sub,
                control::NV2080_CTRL_CMD_FB_GET_INFO,
                &mut params,
                &mut lists
            ),
            Err(NV_ERR_INVALID_ARGUMENT)
        );
        let too_many = tenant.ask(sub, control::NV2080_CTRL_CMD_FB_GET_INFO_V2, &[(0, 1000)]);
        assert_eq!(too_many.unwrap_err(), NV_ERR_INVALID_ARGUMENT);

        let mut block = tenant.block(&escape::NV_ESC_RM_VID_HEAP_CONTROL);
        put_u32(&mut block, nvos32::H_ROOT, tenant.root);
        put_u32(&mut block, nvos32::H_PARENT, device);
        put_u32(&mut block, nvos32::FUNCTION, nvos32::FUNCTION_INFO);
        let back = tenant
            .call(
                tenant.ctl,
                &escape::NV_ESC_RM_VID_HEAP_CONTROL,
                vec![block],
                nvos32::STATUS,
                &[],
            )
            .unwrap();
        assert_eq!(
            u64_at(&back.segments[0], nvos32::FREE),
            Some(64 * MIB - used)
        );
    }
}

#[test]
fn the_old_heap_call_allocates_reserves_and_frees() {
    let machine = ada("535.261.03", 64, 1);
    let tenant = Tenant::new(&machine, "a/b");
    let (device, _sub) = tenant.device(0);
    let heap = |function: u32, flags: u32, handle: u32, bytes: u64| {
        let mut block = tenant.block(&escape::NV_ESC_RM_VID_HEAP_CONTROL);
        put_u32(&mut block, nvos32::H_ROOT, tenant.root);
        put_u32(&mut block, nvos32::H_PARENT, device);
        put_u32(&mut block, nvos32::FUNCTION, function);
        put_u32(&mut block, nvos32::ALLOC_H_MEMORY, handle);
        put_u32(&mut block, nvos32::ALLOC_FLAGS, flags);
        put_u64(&mut block, nvos32::ALLOC_SIZE, bytes);
        let back = tenant.call(
            tenant.ctl,
            &escape::NV_ESC_RM_VID_HEAP_CONTROL,
            vec![block],
            nvos32::STATUS,
            &[],
        )?;
        Ok::<_, u32>((
            u32_at(&back.segments[0], nvos32::ALLOC_H_MEMORY).unwrap(),
            u64_at(&back.segments[0], nvos32::ALLOC_SIZE).unwrap(),
        ))
    };
    let used = || machine.account()[0].used_bytes;
    let (handle, got) = heap(nvos32::FUNCTION_ALLOC_SIZE, 0, 0, 100_000).unwrap();
    assert_eq!((got, used()), (128 << 10, 128 << 10));
    // Address space is not memory, even more of it than the card has, where its page tables come later or are others'.
    let (at_once, lazy, of_others, sparse) = (0x8_0000, 0x8_0400, 0x48_0000, 0x408_0400);
    let space = |flags, bytes| heap(nvos32::FUNCTION_ALLOC_SIZE, flags, 0, bytes);
    for flags in [lazy, of_others] {
        space(flags, 1 << 40).unwrap();
        assert_eq!(used(), 128 << 10);
    }
    for flags in [at_once, sparse] {
        assert_eq!(space(flags, 1 << 40), Err(NV_ERR_NO_MEMORY));
        let (tables, _) = space(flags, 1 << 30).unwrap();
        assert_eq!(used(), (128 << 10) + 2 * MIB);
        heap(nvos32::FUNCTION_FREE, 0, tables, 0).unwrap();
    }
    assert_eq!(
        heap(nvos32::FUNCTION_ALLOC_SIZE, 0, 0, 64 * MIB),
        Err(NV_ERR_NO_MEMORY)
    );
    assert_eq!(heap(14, 0, 0, 1).unwrap_err(), NV_ERR_NOT_SUPPORTED);
    heap(nvos32::FUNCTION_FREE, 0, handle, 0).unwrap();
    assert_eq!(used(), 0);
}

#[test]
fn processes_are_listed_with_what_they_hold() {
    let machine = ada("570.195.03", 64, 1);
    let one = Tenant::of_process(&machine, "a/b", 4001);
    let two = Tenant::of_process(&machine, "a/c", 4002);
    let (device, sub) = one.device(0);
    let (_device, _sub) = two.device(0);
    one.vidmem(device, 2 * MIB).unwrap();
    let pids = one
        .ask(sub, control::NV2080_CTRL_CMD_GPU_GET_PIDS, &[])
        .unwrap();
    assert_eq!(
        [8, 12, 16].map(|at| u32_at(&pids, at).unwrap()),
        [2, 4001, 4002]
    );
    let info = one
        .ask(
            sub,
            control::NV2080_CTRL_CMD_GPU_GET_PID_INFO,
            &[(0, 3), (8, 4001), (80, 4002), (152, 5)],
        )
        .unwrap();
    let entry = |at: usize| {
        (
            u32_at(&info, at + 8).unwrap(),
            u64_at(&info, at + 16).unwrap(),
        )
    };
    assert_eq!([8, 80, 152].map(entry), [(0, 2 * MIB), (0, 0), (0, 0)]);
    drop(two);
    let pids = one
        .ask(sub, control::NV2080_CTRL_CMD_GPU_GET_PIDS, &[])
        .unwrap();
    assert_eq!(u32_at(&pids, 8), Some(1));
}

#[test]
fn samples_name_every_process_and_an_address_of_the_kernels() {
    for (version, has_address) in [("550.163.01", false), ("570.195.03", true)] {
        let machine = ada(version, 64, 1);
        let one = Tenant::of_process(&machine, "a/b", 4001);
        let two = Tenant::of_process(&machine, "a/c", 4002);
        let (_device, sub) = one.device(0);
        let _held = two.device(0);
        let cmd = control::NV2080_CTRL_CMD_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2;
        let bytes = |size: nvabi::PerRelease| size.of(one.release) as usize;
        let length = perfmon::MOST * perfmon::SAMPLE_BYTES.of(one.release);
        let samples = one.ask(sub, cmd, &[(4, length)]).unwrap();
        let engine = |number: usize| {
            let at = perfmon::SAMPLES + number * bytes(perfmon::SAMPLE_BYTES) + bytes(perfmon::GR);
            &samples[at..at + bytes(perfmon::ENGINE_BYTES)]
        };
        let named = [0, 1, 2].map(|number| u32_at(engine(number), perfmon::PROCESS).unwrap());
        assert_eq!(named, [4001, 4002, 4001]);
        let last = u64_at(engine(0), bytes(perfmon::ENGINE_BYTES) - 8).unwrap();
        assert_eq!(last > 1 << 63, has_address);
        assert_eq!(
            one.ask(sub, cmd, &[(4, length - 1)]),
            Err(NV_ERR_INVALID_ARGUMENT)
        );
    }
}

#[test]
fn a_link_names_the_card_at_its_other_end_by_its_place() {
    let machine = tenant::machine(
        "[driver]\nversion = \"580.105.08\"\n[[card]]\nname = \"Simulated\"\nmemory_mib = 64\narchitecture = \"ada\"\ncount = 3\n[[nvlink]]\ncards = [0, 2]\n[[nvlink]]\ncards = [1]\n[[nvlink]]\ncards = [1, 0]\n",
    );
    let tenant = Tenant::new(&machine, "a/b");
    let (_device, sub) = tenant.device(0);
    let cmd = control::NV2080_CTRL_CMD_NVLINK_GET_NVLINK_STATUS;
    let status = tenant.ask(sub, cmd, &[]).unwrap();
    let of = |at: nvabi::PerRelease| at.of(tenant.release) as usize;
    assert_eq!(u32_at(&status, nvlink_status::ENABLED), Some(0b11));
    for (number, bus) in [(0, 3), (1, 2)] {
        let link = of(nvlink_status::LINKS) + number * of(nvlink_status::LINK_BYTES);
        let end = link + of(nvlink_status::REMOTE);
        assert_eq!(status[link + nvlink_status::CONNECTED], 1);
        assert_eq!(status[end + nvlink_device::BUS], bus);
        assert_eq!(
            u64_at(&status, end + nvlink_device::TYPE),
            Some(nvlink_device::GPU)
        );
    }
}

/// By the statuses of RM's own functions, which are not one.
#[test]
fn a_card_that_is_not_there_is_answered_as_each_question_answers_it() {
    let machine = ada("570.195.03", 64, 2);
    let tenant = Tenant::new(&machine, "a/b");
    for (cmd, status) in [
        (
            control::NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2,
            NV_ERR_INVALID_ARGUMENT,
        ),
        (
            control::NV0000_CTRL_CMD_GPU_ATTACH_IDS,
            NV_ERR_INVALID_ARGUMENT,
        ),
        (
            control::NV0000_CTRL_CMD_GPU_DETACH_IDS,
            NV_ERR_INVALID_ARGUMENT,
        ),
        (
            control::NV0000_CTRL_CMD_GPU_ASYNC_ATTACH_ID,
            NV_ERR_INVALID_ARGUMENT,
        ),
        (
            control::NV0000_CTRL_CMD_GPU_GET_PCI_INFO,
            NV_ERR_OBJECT_NOT_FOUND,
        ),
        (
            control::NV0000_CTRL_CMD_GPU_QUERY_DRAIN_STATE,
            NV_ERR_OBJECT_NOT_FOUND,
        ),
        (
            control::NV0000_CTRL_CMD_GPU_GET_UUID_FROM_GPU_ID,
            NV_ERR_OBJECT_NOT_FOUND,
        ),
    ] {
        let ask = |id| tenant.ask(tenant.root, cmd, &[(0, id), (4, u32::MAX)]);
        assert_eq!(ask(0x0300), Err(status), "{cmd:#x}");
    }
}

#[test]
fn the_version_is_reported_and_compared() {
    let machine = ada("550.163.01", 64, 1);
    let tenant = Tenant::new(&machine, "a/b");
    let check = |cmd: u32, version: &str| {
        let mut block = tenant.block(&escape::NV_ESC_CHECK_VERSION_STR);
        put_u32(&mut block, api_version::CMD, cmd);
        put(&mut block, api_version::VERSION, version.as_bytes());
        let back = tenant.ioctl(
            tenant.ctl,
            escape::NV_ESC_CHECK_VERSION_STR.cmd(tenant.release),
            vec![block],
            &[],
        );
        let reported = back.segments[0][api_version::VERSION..].starts_with(b"550.163.01\0");
        (
            back.ret,
            u32_at(&back.segments[0], api_version::REPLY).unwrap(),
            reported,
        )
    };
    assert_eq!(check(u32::from(b'2'), ""), (0, 1, true));
    assert_eq!(check(0, "550.163.01"), (0, 1, true));
    assert_eq!(check(0, "550.163.02"), (-22, 0, true));
    assert_eq!(check(0, "550.163.0"), (-22, 0, true));
}

#[test]
fn a_file_has_one_mapping_and_is_the_cards_for_its_memory_alone() {
    let machine = ada("570.195.03", 64, 2);
    let tenant = Tenant::new(&machine, "a/b");
    let (device, _sub) = tenant.device(0);
    let (on_card, _bytes) = tenant.vidmem(device, 4096).unwrap();
    let (on_host, _bytes) = tenant
        .memory(device, class::NV01_MEMORY_SYSTEM, 4096)
        .unwrap();
    let map = |file, handle| tenant.map_by(file, device, handle, 4096).map(drop);
    let wrong = Err(NV_ERR_INVALID_ARGUMENT);
    let (card, control) = (tenant.card_file(0), open(FileKind::Ctl));
    assert_eq!(map(control, on_card), wrong);
    assert_eq!(map(tenant.card_file(1), on_card), wrong);
    assert_eq!(map(card, on_host), wrong);
    for (file, handle) in [(card, on_card), (control, on_host)] {
        assert_eq!(map(file, handle), Ok(()));
        assert_eq!(map(file, handle), Err(NV_ERR_STATE_IN_USE));
        tenant.session.closed(file.id);
        assert_eq!(map(file, handle), Ok(()), "a file of the same number");
    }
}

#[test]
fn a_mapping_is_the_objects_own_memory() {
    use std::os::unix::fs::FileExt;
    let machine = ada("570.195.03", 64, 1);
    let tenant = Tenant::new(&machine, "a/b");
    let (device, _sub) = tenant.device(0);
    let (memory, bytes) = tenant.vidmem(device, 1).unwrap();
    let first = tenant.map(device, memory, bytes).unwrap();
    let second = tenant.map(device, memory, 4096).unwrap();
    first.write_all_at(b"the same", 100).unwrap();
    let mut read = [0; 8];
    second.read_exact_at(&mut read, 100).unwrap();
    assert_eq!(&read, b"the same");
    assert_eq!(
        tenant.map(device, memory, bytes + 1).err(),
        Some(NV_ERR_INVALID_LIMIT)
    );
    // The process's own pages have no file.
    let pages = vec![0_u8; 4096];
    let pinned = tenant
        .pin(device, 0, pages.as_ptr().addr() as u64, 4096)
        .unwrap();
    let by_control = |handle| tenant.map_by(open(FileKind::Ctl), device, handle, 4096);
    assert_eq!(by_control(pinned).err(), Some(NV_ERR_NOT_SUPPORTED));
    assert_eq!(
        tenant.pin(device, 0, 0x10, 4096),
        Err(NV_ERR_INVALID_ADDRESS)
    );
}

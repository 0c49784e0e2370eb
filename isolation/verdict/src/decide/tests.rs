use super::*;
use nvabi::bytes::{put_u32, put_u64};
use nvabi::escape;
use nvabi::layout::nvos64;
use proptest::prelude::*;

const R: Release = Release::R570;
const ALLOC: Op = Op::Escape(&escape::NV_ESC_RM_ALLOC);
const ALLOC_LONG: Op = Op::Escape(&escape::NV_ESC_RM_ALLOC_LONG);

fn alloc_struct(class: u32) -> Vec<u8> {
    let mut arg = vec![0; 48];
    put_u32(&mut arg, nvos21::H_ROOT, 1);
    put_u32(&mut arg, nvos21::H_PARENT, 2);
    put_u32(&mut arg, nvos21::H_CLASS, class);
    arg
}

fn memory_block(size: u64) -> Vec<u8> {
    let mut params = vec![0; 128];
    put_u64(&mut params, memory_params::SIZE, size);
    params
}

/// RM has those of eight channels in a page, and gives the page to whoever maps one of them.
#[test]
fn a_channel_has_memory_for_its_userd() {
    let channels = class::ALL.iter().filter(|row| row.kind == Kind::Channel);
    for (row, release) in channels.flat_map(|row| Release::ALL.map(|release| (row, release))) {
        if class::row_of(row.number, release).is_none() {
            continue;
        }
        let arg = alloc_struct(row.number);
        let mut params = vec![0; row.params.of(release) as usize];
        // That of another card of a group of cards is none.
        put_u32(&mut params, channel_params::H_USERD_MEMORY + 4, 7);
        let without = decide(&ALLOC_LONG, &[&arg, &params], release);
        let is_pascals = row.number == PASCAL_CHANNEL_GPFIFO_A;
        assert_eq!(
            matches!(without, Verdict::Execute(_)),
            is_pascals,
            "{}",
            row.name
        );
        put_u32(&mut params, channel_params::H_USERD_MEMORY, 7);
        let with = decide(&ALLOC_LONG, &[&arg, &params], release);
        assert!(matches!(with, Verdict::Execute(_)), "{}", row.name);
    }
}

#[test]
fn card_memory_is_reserved_rounded_up() {
    for (requested, reserved) in [
        (0, 64 << 10),
        (1, 64 << 10),
        (64 << 10, 64 << 10),
        ((64 << 10) + 1, 128 << 10),
        (2 << 20, 2 << 20),
        ((2 << 20) + 1, 4 << 20),
        (u64::MAX, u64::MAX),
    ] {
        let verdict = decide(
            &ALLOC_LONG,
            &[&alloc_struct(0x40), &memory_block(requested)],
            R,
        );
        let Verdict::Execute(Effect::Memory(memory)) = verdict else {
            panic!("{verdict:?}")
        };
        assert_eq!(memory.reserve_bytes, reserved, "{requested}");
    }
}

#[test]
fn card_memory_without_parameters_is_refused() {
    let refusal = Refusal::Status {
        status: status::NV_ERR_INVALID_ARGUMENT,
        at: nvos64::STATUS,
    };
    assert_eq!(
        decide(&ALLOC_LONG, &[&alloc_struct(0x40)], R),
        Verdict::Refuse(refusal)
    );
}

#[test]
fn memory_that_firmware_would_keep_a_list_of_is_refused() {
    let op = Op::Escape(&escape::NV_ESC_RM_ALLOC_MEMORY);
    for class in [0x3e, 0x71] {
        let mut arg = vec![0; 56];
        put_u32(&mut arg, nvos02::H_CLASS, class);
        put_u32(&mut arg, nvos02::FLAGS, 1 << 27);
        let is_refused = |release| matches!(decide(&op, &[&arg], release), Verdict::Refuse(_));
        assert!(is_refused(Release::R550) && is_refused(Release::R595));
        // There it is no flag.
        assert!(class == 0x71 || !is_refused(Release::R535));
    }
}

/// RM keeps a list of the pages of each object, and maps what a notifier names for the kernel, which nothing counts.
#[test]
fn a_context_dma_has_a_page_at_most() {
    const MAPPED: u32 = 1 << 20;
    let refused = |flags: u32, limit: u64| {
        let mut params = vec![0; 32];
        put_u32(&mut params, context_dma::FLAGS, flags);
        put_u64(&mut params, context_dma::LIMIT, limit);
        let verdict = decide(&ALLOC_LONG, &[&alloc_struct(2), &params], R);
        match verdict {
            Verdict::Execute(Effect::Object { .. }) => false,
            Verdict::Refuse(Refusal::Status { status, .. }) => {
                assert_eq!(status, status::NV_ERR_INVALID_LIMIT);
                true
            }
            other @ (Verdict::Execute(_) | Verdict::Refuse(_)) => panic!("{other:?}"),
        }
    };
    for (flags, limit, expected) in [
        (0, 0xfff, false),
        (0, 0x1000, true),
        (0, u64::MAX, true),
        (1 << 29, u64::MAX, true),
        (MAPPED, 0xfff, false),
        (MAPPED, 0x1000, true),
        (MAPPED | 1 << 29, u64::MAX, true),
        // Whatever the other bits of the type are.
        (0xf << 20, 0x1000, true),
    ] {
        assert_eq!(refused(flags, limit), expected, "{flags:#x} {limit:#x}");
    }
}

/// The driver answers an export in the struct (nv.c, NV_ESC_EXPORT_TO_DMABUF_FD), a kernel without dma-bufs so too (nv-dmabuf.c).
#[test]
fn an_export_as_a_dma_buf_is_refused_by_its_status() {
    let op = Op::Escape(&escape::NV_ESC_EXPORT_TO_DMABUF_FD);
    for (release, at) in [(Release::R535, 2592), (Release::R580, 2600)] {
        let arg = vec![0; op.struct_bytes(release)];
        let status = status::NV_ERR_NOT_SUPPORTED;
        let refused = Verdict::Refuse(Refusal::Status { status, at });
        assert_eq!(decide(&op, &[&arg], release), refused);
    }
}

#[test]
fn privileged_and_unknown_classes_are_refused() {
    for class in [0xc2, 0x82, 0x83, 0x3f, 0x42, 0xffff] {
        let refusal = Refusal::Status {
            status: status::NV_ERR_INVALID_CLASS,
            at: nvos21::STATUS,
        };
        assert_eq!(
            decide(&ALLOC, &[&alloc_struct(class)], R),
            Verdict::Refuse(refusal),
            "{class:#x}"
        );
    }
    for fabric in [0xf8, 0xfd] {
        let verdict = decide(&ALLOC, &[&alloc_struct(fabric)], R);
        assert!(
            matches!(
                verdict,
                Verdict::Refuse(Refusal::Status { status: 0x56, .. })
            ),
            "{fabric:#x}"
        );
    }
}

#[test]
fn whole_framebuffer_by_alloc_memory_is_refused() {
    let op = Op::Escape(&escape::NV_ESC_RM_ALLOC_MEMORY);
    let mut arg = vec![0; 56];
    let policy = Policy {
        registered_memory: RegisteredMemory::Allow,
        ..Policy::default()
    };
    for (class, allowed) in [(0x40, false), (0x82, false), (0x3e, true), (0x71, true)] {
        put_u32(&mut arg, nvos02::H_CLASS, class);
        assert_eq!(
            matches!(decide_under(&op, &[&arg], R, &policy), Verdict::Execute(_)),
            allowed,
            "{class:#x}"
        );
    }
}

#[test]
fn registered_memory_is_charged_for_what_the_kernel_keeps_of_it() {
    let op = Op::Escape(&escape::NV_ESC_RM_ALLOC_MEMORY);
    let mut arg = vec![0; 56];
    put_u32(&mut arg, nvos02::H_CLASS, 0x71);
    let policy = Policy {
        registered_memory: RegisteredMemory::Allow,
        ..Policy::default()
    };
    for (bytes, charged) in [
        (8 << 30, 128 << 20),
        (1, page_size::taken_of_host(1, Whose::Host)),
    ] {
        put_u64(&mut arg, nvos02::LIMIT, bytes - 1);
        let verdict = decide_under(&op, &[&arg], R, &policy);
        let Verdict::Execute(Effect::Memory(memory)) = verdict else {
            panic!("{verdict:?}");
        };
        assert_eq!(
            (memory.whose, memory.reserve_bytes),
            (Whose::Host, charged),
            "{bytes}"
        );
    }
}

/// Flags of zero say that it is contiguous, for which the kernel gives a power of two of pages.
#[test]
fn the_old_call_s_contiguous_memory_is_charged_as_the_kernel_gives_it() {
    const MIB: u64 = 1 << 20;
    let op = Op::Escape(&escape::NV_ESC_RM_ALLOC_MEMORY);
    let mut arg = vec![0; 56];
    put_u64(&mut arg, nvos02::LIMIT, 3 * MIB - 1);
    let policy = Policy {
        registered_memory: RegisteredMemory::Allow,
        ..Policy::default()
    };
    for (class, flags, expected) in [
        (0x3e, 0, (4 * MIB, Whose::HostInOnePiece)),
        (0x3e, 1 << 4, (3 * MIB, Whose::Host)),
        (0x71, 0, (48 << 10, Whose::Host)),
    ] {
        put_u32(&mut arg, nvos02::H_CLASS, class);
        put_u32(&mut arg, nvos02::FLAGS, flags);
        let verdict = decide_under(&op, &[&arg], R, &policy);
        let Verdict::Execute(Effect::Memory(memory)) = verdict else {
            panic!("{verdict:?}");
        };
        let charged = (memory.reserve_bytes, memory.whose);
        assert_eq!(charged, expected, "{class:#x} {flags:#x}");
    }
}

#[test]
fn registered_memory_that_is_refused_is_not_handed_back() {
    let op = Op::Escape(&escape::NV_ESC_RM_ALLOC_MEMORY);
    let mut arg = vec![0; 56];
    put_u32(&mut arg, nvos02::H_CLASS, 0x71);
    let refused = Policy::default();
    assert!(matches!(
        decide_under(&op, &[&arg], R, &refused),
        Verdict::Refuse(Refusal::Status { status: 0x56, .. })
    ));
}

#[test]
fn the_deprecated_heap_call_is_charged_like_any_other() {
    let op = Op::Escape(&escape::NV_ESC_RM_VID_HEAP_CONTROL);
    let mut arg = vec![0; 184];
    put_u32(&mut arg, nvos32::FUNCTION, nvos32::FUNCTION_ALLOC_SIZE);
    put_u64(&mut arg, nvos32::ALLOC_SIZE, 1 << 20);
    assert!(
        matches!(decide(&op, &[&arg], R), Verdict::Execute(Effect::Memory(memory)) if memory.reserve_bytes == 1 << 20)
    );
    put_u32(&mut arg, nvos32::ALLOC_FLAGS, memory_params::FLAG_VIRTUAL);
    assert!(matches!(
        decide(&op, &[&arg], R),
        Verdict::Execute(Effect::Object { .. })
    ));
    for function in [6, 14, 19, 20, 27, 99] {
        put_u32(&mut arg, nvos32::FUNCTION, function);
        assert!(
            matches!(
                decide(&op, &[&arg], R),
                Verdict::Refuse(Refusal::Status { status: 0x56, .. })
            ),
            "{function}"
        );
    }
}

/// The driver asks whether the place is the card; whatever else it is, it is the host (rmapi_deprecated_vidheapctrl.c).
#[test]
fn the_heap_call_takes_the_hosts_memory_wherever_it_is_not_the_cards() {
    let op = Op::Escape(&escape::NV_ESC_RM_VID_HEAP_CONTROL);
    let mut arg = vec![0; 184];
    put_u32(&mut arg, nvos32::FUNCTION, nvos32::FUNCTION_ALLOC_SIZE);
    put_u64(&mut arg, nvos32::ALLOC_SIZE, 1 << 20);
    for (place, whose) in [Whose::Card, Whose::Host, Whose::Host, Whose::Host]
        .into_iter()
        .enumerate()
    {
        let attr = u32::try_from(place).unwrap() << 25;
        put_u32(&mut arg, nvos32::ALLOC_ATTR, attr);
        let verdict = decide(&op, &[&arg], R);
        let Verdict::Execute(Effect::Memory(memory)) = verdict else {
            panic!("{verdict:?}")
        };
        assert_eq!(memory.whose, whose, "{attr:#x}");
    }
    // Extended memory is of a class that has no row, whatever the place.
    put_u32(&mut arg, nvos32::ALLOC_ATTR2, memory_params::ATTR2_USE_EGM);
    let refusal = Refusal::Status {
        status: status::NV_ERR_INVALID_CLASS,
        at: nvos32::STATUS,
    };
    assert_eq!(decide(&op, &[&arg], R), Verdict::Refuse(refusal));
}

#[test]
fn memory_beside_one_half_of_a_gpu_is_refused_where_the_driver_has_it() {
    let mut block = memory_block(64 << 10);
    put_u32(&mut block, memory_params::ATTR2, 2 << 29);
    for (release, is_refused) in [
        (Release::R570, false),
        (Release::R575, true),
        (Release::R595, true),
    ] {
        let verdict = decide(&ALLOC_LONG, &[&alloc_struct(0x40), &block], release);
        let refusal = Verdict::Refuse(Refusal::Status {
            status: status::NV_ERR_INVALID_ARGUMENT,
            at: nvos64::STATUS,
        });
        assert_eq!(verdict == refusal, is_refused, "{release:?} {verdict:?}");
    }
}

#[test]
fn address_space_is_lazy_before_the_driver_hears_of_it() {
    use memory_params::{FLAG_EXTERNALLY_MANAGED, FLAG_LAZY, FLAG_SPARSE, FLAG_VIRTUAL, FLAGS};
    let arg = alloc_struct(class::NV50_MEMORY_VIRTUAL);
    let mut block = memory_block(1 << 40);
    put_u32(&mut block, FLAGS, FLAG_VIRTUAL);
    page_tables::defer_in_parameters(&ALLOC_LONG, &arg, &mut block);
    assert_eq!(u32_at(&block, FLAGS), Some(FLAG_VIRTUAL | FLAG_LAZY));
    // Neither memory nor a whole address space has such a flag.
    for class in [class::NV01_MEMORY_VIRTUAL, 0x40] {
        let mut other = vec![0xff; 24];
        other.resize(128, 0);
        let before = other.clone();
        page_tables::defer_in_parameters(&ALLOC_LONG, &alloc_struct(class), &mut other);
        assert_eq!(other, before, "{class:#x}");
    }
    let heap = Op::Escape(&escape::NV_ESC_RM_VID_HEAP_CONTROL);
    let mut arg = vec![0; 184];
    put_u32(&mut arg, nvos32::FUNCTION, nvos32::FUNCTION_ALLOC_SIZE);
    for (flags, after) in [(0, 0), (FLAG_VIRTUAL, FLAG_VIRTUAL | FLAG_LAZY)] {
        put_u32(&mut arg, nvos32::ALLOC_FLAGS, flags);
        page_tables::defer_in_argument(&heap, &mut arg);
        assert_eq!(u32_at(&arg, nvos32::ALLOC_FLAGS), Some(after));
    }
    // RM makes no sparse one lazy.
    for (flags, is_refused) in [
        (FLAG_SPARSE | FLAG_LAZY, true),
        (FLAG_SPARSE | FLAG_EXTERNALLY_MANAGED, false),
        (FLAG_LAZY, false),
    ] {
        put_u32(&mut arg, nvos32::ALLOC_FLAGS, FLAG_VIRTUAL | flags);
        put_u32(&mut block, FLAGS, FLAG_VIRTUAL | flags);
        let class = alloc_struct(class::NV50_MEMORY_VIRTUAL);
        for verdict in [
            decide(&heap, &[&arg], R),
            decide(&ALLOC_LONG, &[&class, &block], R),
        ] {
            let refused = matches!(
                verdict,
                Verdict::Refuse(Refusal::Status { status: 0x56, .. })
            );
            assert_eq!(refused, is_refused, "{flags:#x} {verdict:?}");
        }
    }
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(
        cmd: u32,
        surface in prop_oneof![Just(crate::Surface::Ctl), Just(crate::Surface::Card), Just(crate::Surface::Uvm)],
        arg in prop::collection::vec(any::<u8>(), 0..300),
        params in prop::collection::vec(any::<u8>(), 0..300),
        row in 0..escape::ALL.len(),
        exact: bool,
    ) {
        for release in Release::ALL {
            let cmd = if exact { escape::ALL[row].cmd(release) } else { cmd };
            if let Ok(op) = crate::op(surface, cmd, release) {
                let _block = crate::blocks::params(&op, &arg, release);
                let _nested = crate::blocks::nested(&op, &arg, &params, release);
                let _verdict = decide(&op, &[&arg, &params], release);
            }
        }
    }
}

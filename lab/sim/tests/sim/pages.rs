//! Pages of all sizes: what a request gets, what it is told, and what the card is short of afterwards.
use crate::tenant::{Tenant, ada};
use nvabi::bytes::{put_u32, put_u64, u64_at};
use nvabi::class;
use nvabi::escape;
use nvabi::layout::memory_params as params;
use nvabi::layout::nvos32;
use nvabi::status::NV_ERR_INVALID_STATE;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

struct Requested {
    size: u64,
    flags: u32,
    attr: u32,
    attr2: u32,
    alignment: u64,
    offset: u64,
}

/// `offset` of NVOS32's ALLOC_SIZE (nvos.h).
const OFFSET_OF_HEAP: usize = 104;

const ONE_BYTE: Requested = Requested {
    size: 1,
    flags: 0,
    attr: 0,
    attr2: 0,
    alignment: 0,
    offset: 0,
};

fn by_class(tenant: &Tenant, device: u32, requested: &Requested) -> Result<u64, u32> {
    let mut block = vec![0; 128];
    put_u64(&mut block, params::SIZE, requested.size);
    put_u32(&mut block, params::FLAGS, requested.flags);
    put_u32(&mut block, params::ATTR, requested.attr);
    put_u32(&mut block, params::ATTR2, requested.attr2);
    put_u64(&mut block, params::ALIGNMENT, requested.alignment);
    put_u64(&mut block, params::OFFSET, requested.offset);
    tenant.alloc(device, class::NV01_MEMORY_LOCAL_USER, 0, Some(&mut block))?;
    Ok(u64_at(&block, params::SIZE).unwrap())
}

fn by_heap(tenant: &Tenant, device: u32, requested: &Requested) -> Result<u64, u32> {
    let mut block = tenant.block(&escape::NV_ESC_RM_VID_HEAP_CONTROL);
    put_u32(&mut block, nvos32::H_ROOT, tenant.root);
    put_u32(&mut block, nvos32::H_PARENT, device);
    put_u32(&mut block, nvos32::FUNCTION, nvos32::FUNCTION_ALLOC_SIZE);
    put_u64(&mut block, nvos32::ALLOC_SIZE, requested.size);
    put_u32(&mut block, nvos32::ALLOC_FLAGS, requested.flags);
    put_u32(&mut block, nvos32::ALLOC_ATTR, requested.attr);
    put_u32(&mut block, nvos32::ALLOC_ATTR2, requested.attr2);
    put_u64(&mut block, nvos32::ALLOC_ALIGNMENT, requested.alignment);
    put_u64(&mut block, OFFSET_OF_HEAP, requested.offset);
    let row = &escape::NV_ESC_RM_VID_HEAP_CONTROL;
    let back = tenant.call(tenant.ctl, row, vec![block], nvos32::STATUS, &[])?;
    Ok(u64_at(&back.segments[0], nvos32::ALLOC_SIZE).unwrap())
}

/// Written back, and taken of the card.
type Got = Result<(u64, u64), u32>;

fn got(version: &str, requested: &Requested) -> Got {
    let machine = ada(version, 4096, 1);
    let mut both = [by_class, by_heap].map(|ask| {
        let tenant = Tenant::new(&machine, "a");
        let (device, _) = tenant.device(0);
        let reported = ask(&tenant, device, requested);
        let account = machine.cards()[0].account();
        let of_a = |sums: &[(String, u64)]| sums.iter().map(|(_, bytes)| *bytes).sum::<u64>();
        assert_eq!(of_a(&account.sessions), account.used_bytes);
        assert_eq!(of_a(&account.session_peaks), account.used_bytes);
        reported.map(|bytes| (bytes, account.used_bytes))
    });
    assert_eq!(both[0], both[1], "both calls are one allocation");
    std::mem::replace(&mut both[0], Err(0))
}

#[test]
fn a_page_is_as_large_as_both_attributes_report() {
    let huge = params::ATTR_PAGE_SIZE_HUGE;
    let asks = |attr, attr2| Requested {
        attr,
        attr2,
        ..ONE_BYTE
    };
    let new = "570.195.03";
    assert_eq!(got(new, &ONE_BYTE), Ok((64 * KIB, 64 * KIB)));
    assert_eq!(got(new, &asks(huge, 0)), Ok((2 * MIB, 2 * MIB)));
    let large = asks(huge, params::ATTR2_HUGE_512M);
    assert_eq!(got(new, &large), Ok((512 * MIB, 512 * MIB)));
    // `attr2` alone says nothing.
    let alone = asks(0, params::ATTR2_HUGE_512M);
    assert_eq!(got(new, &alone), Ok((64 * KIB, 64 * KIB)));
    // PMA gives no 4 KiB, whatever is written back.
    let small = asks(params::ATTR_PAGE_SIZE_4K, 0);
    assert_eq!(got(new, &small), Ok((4 * KIB, 64 * KIB)));
    // No card here has pages of 256 GiB; up to 555 no driver has a word for them.
    let largest = asks(huge, params::ATTR2_HUGE_256G);
    assert_eq!(got(new, &largest), Err(NV_ERR_INVALID_STATE));
    assert_eq!(got("555.58.02", &largest), Ok((64 * KIB, 64 * KIB)));
    assert_eq!(got("560.35.03", &largest), Err(NV_ERR_INVALID_STATE));
}

#[test]
fn at_a_chosen_address_the_alignment_is_taken_and_not_reported() {
    let aligned = Requested {
        flags: params::FLAG_ALIGNMENT_FORCE,
        alignment: 256 * MIB,
        ..ONE_BYTE
    };
    assert_eq!(got("570.195.03", &aligned), Ok((64 * KIB, 64 * KIB)));
    let chosen = Requested {
        flags: params::FLAG_ALIGNMENT_FORCE | params::FLAG_FIXED_ADDRESS,
        ..aligned
    };
    assert_eq!(got("570.195.03", &chosen), Ok((64 * KIB, 256 * MIB)));
}

#[test]
fn at_a_chosen_address_its_place_in_the_page_is_not_reported() {
    let huge = Requested {
        flags: params::FLAG_FIXED_ADDRESS,
        attr: params::ATTR_PAGE_SIZE_HUGE,
        attr2: params::ATTR2_HUGE_512M,
        ..ONE_BYTE
    };
    assert_eq!(got("580.95.05", &huge), Ok((512 * MIB, 512 * MIB)));
    let late = Requested {
        offset: 1024 * MIB + 512 * MIB - 64 * KIB,
        ..huge
    };
    assert_eq!(got("580.95.05", &late), Ok((64 * KIB, 512 * MIB)));
    // Nothing is left to be told, and less than nothing.
    let aligned = Requested {
        flags: params::FLAG_FIXED_ADDRESS | params::FLAG_ALIGNMENT_FORCE,
        alignment: 2 * MIB,
        offset: MIB,
        ..ONE_BYTE
    };
    let reported = (64 * KIB).wrapping_sub(MIB);
    assert_eq!(got("580.95.05", &aligned), Ok((reported, 2 * MIB)));
}

//! What some drivers do not come back from whole: a second handle below an object that is not there, a mapping whose device is the
//! object itself, and one into an address space by or of what is only a name. The simulator answers nobody any more then, so that a broker that lets such a call through is seen.

use crate::tenant::{Tenant, ada, open};
use nvabi::bytes::put_u32;
use nvabi::layout::virtual_params;
use nvabi::status::{
    NV_ERR_INVALID_OBJECT_HANDLE, NV_ERR_INVALID_PARAMETER, NV_ERR_NOT_SUPPORTED,
    NV_ERR_OBJECT_NOT_FOUND,
};
use nvabi::{class, escape};

#[test]
fn a_duplicate_below_nothing_is_the_last_call_of_all_sessions() {
    let machine = ada("580.105.08", 64, 1);
    let (tenant, neighbour) = (Tenant::new(&machine, "a"), Tenant::new(&machine, "b"));
    let (device, _) = tenant.device(0);
    let (memory, _) = tenant.vidmem(device, 1 << 20).unwrap();
    // What is missing elsewhere harms nobody.
    tenant.dup(device, &tenant, 0xbad).unwrap_err();
    tenant.dup(device, &tenant, memory).unwrap();
    let (other, _) = neighbour.device(0);
    let lost = tenant.dup(0xbad, &tenant, memory);
    assert_eq!(lost, Err(NV_ERR_OBJECT_NOT_FOUND));
    for tenant in [&tenant, &neighbour] {
        let row = &escape::NV_ESC_SYS_PARAMS;
        let cmd = row.cmd(tenant.release);
        let back = tenant.ioctl(tenant.ctl, cmd, vec![tenant.block(row)], &[]);
        assert_eq!(back.ret, -5, "EIO");
    }
    assert_ne!(other, 0);
}

#[test]
fn a_duplicate_below_nothing_harms_no_driver_before_580() {
    for version in ["535.261.03", "570.195.03"] {
        let machine = ada(version, 64, 1);
        let tenant = Tenant::new(&machine, "a");
        let (device, _) = tenant.device(0);
        let (memory, _) = tenant.vidmem(device, 1 << 20).unwrap();
        let lost = tenant.dup(0xbad, &tenant, memory);
        assert_eq!(lost, Err(NV_ERR_OBJECT_NOT_FOUND));
        assert!(!machine.is_wedged(), "{version}");
    }
}

#[test]
fn a_mapping_whose_device_is_the_object_itself_harms_drivers_from_570_on() {
    for (version, harms) in [
        ("550.163.01", false),
        ("570.195.03", true),
        ("595.45.04", true),
    ] {
        for by_client in [false, true] {
            let machine = ada(version, 64, 1);
            let tenant = Tenant::new(&machine, "a");
            let (_device, sub) = tenant.device(0);
            let named = if by_client { tenant.root } else { sub };
            let file = open(driver::FileKind::Ctl);
            let refused = tenant.map_by(file, named, named, 4096).map(drop);
            assert_eq!(refused, Err(NV_ERR_NOT_SUPPORTED));
            assert_eq!(machine.is_wedged(), harms, "{version}");
        }
    }
}

/// What is mapped, and by what.
#[derive(Debug, Clone, Copy)]
enum Names {
    GoneMapper,
    GoneMemory,
    Client,
}

#[test]
fn a_mapping_by_or_of_what_is_only_a_name_is_the_last_call() {
    for (version, names) in [
        ("535.261.03", Names::GoneMapper),
        ("550.163.01", Names::GoneMemory),
        ("580.95.05", Names::Client),
        ("595.45.04", Names::GoneMapper),
    ] {
        let machine = ada(version, 64, 1);
        let tenant = Tenant::new(&machine, "a");
        let (device, sub) = tenant.device(0);
        let (memory, _) = tenant.vidmem(device, 1 << 20).unwrap();
        let row = class::row_of(class::FERMI_VASPACE_A, tenant.release).unwrap();
        let mut params = vec![0; row.params.of(tenant.release) as usize];
        let space = tenant.alloc(device, row.number, 0, Some(&mut params));
        let space = space.unwrap();
        let by_space = |space: u32| {
            let mut params = vec![0; 24];
            put_u32(&mut params, virtual_params::H_VA_SPACE, space);
            let class = class::NV01_MEMORY_VIRTUAL;
            tenant.alloc(device, class, 0, Some(&mut params)).unwrap()
        };
        let (of_space, whole) = (by_space(space), by_space(0));
        let doorbell = tenant.alloc(sub, 0xc461, 0, None).unwrap();
        let map = |by, memory| tenant.map_dma(device, by, memory, 0, 4096).map(drop);
        assert_eq!(map(of_space, memory), Ok(()));
        // Neither of these harms.
        assert_eq!(map(space, memory), Err(NV_ERR_INVALID_OBJECT_HANDLE));
        assert_eq!(map(whole, space), Err(NV_ERR_INVALID_OBJECT_HANDLE));
        assert_eq!(map(whole, doorbell), Err(NV_ERR_INVALID_PARAMETER));
        assert_eq!(map(whole, 0xbad), Err(NV_ERR_OBJECT_NOT_FOUND));
        tenant.free(space).unwrap();
        assert_eq!(map(whole, memory), Ok(()));
        assert!(!machine.is_wedged(), "{version}");
        let _nobody_answers = match names {
            Names::GoneMapper => map(of_space, memory),
            Names::GoneMemory => map(whole, of_space),
            Names::Client => map(whole, tenant.root),
        };
        assert!(machine.is_wedged(), "{version} {names:?}");
    }
}

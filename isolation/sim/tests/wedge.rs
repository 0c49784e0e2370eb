//! What some drivers do not come back from whole: a second handle below an object that is not there, and a mapping whose device is the
//! object itself. The simulator answers nobody any more then, so that a broker that lets such a call through is seen.

mod tenant;

use nvabi::escape;
use nvabi::status::{NV_ERR_NOT_SUPPORTED, NV_ERR_OBJECT_NOT_FOUND};
use tenant::{Tenant, ada, open};

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

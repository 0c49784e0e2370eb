//! What some drivers do when a second handle is to be made below an object that is not there: they answer nobody any more.

mod tenant;

use nvabi::escape;
use nvabi::status::NV_ERR_OBJECT_NOT_FOUND;
use tenant::{Tenant, ada};

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

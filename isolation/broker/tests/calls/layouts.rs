//! A driver that this cgpu has no release for, and whose layouts are in the grant.

use nvabi::control::{NV2080_CTRL_CMD_FB_GET_INFO_V2, NV2080_CTRL_CMD_GPU_GET_PIDS};
use nvabi::status::{NV_ERR_INVALID_ARGUMENT, NV_ERR_NOT_SUPPORTED};
use nvabi::{Release, control};
use serde_json::{Value, json};

use crate::Test;
use crate::kept::Kept;
use crate::rm;

pub(crate) const TESTS: &[Test] = &[
    (
        "layouts::a_driver_of_no_release_is_served_by_those_of_its_grant",
        a_driver_of_no_release_is_served_by_those_of_its_grant,
    ),
    (
        "layouts::without_them_no_broker_serves_it",
        without_them_no_broker_serves_it,
    ),
];

const VERSION: &str = "610.43.02";
/// Of FB_GET_INFO_V2's parameters there.
const BYTES: u32 = 2052;

fn a_driver_of_no_release_is_served_by_those_of_its_grant() {
    let mut controls = json!({});
    controls[NV2080_CTRL_CMD_GPU_GET_PIDS.to_string()] = Value::Null;
    controls[NV2080_CTRL_CMD_FB_GET_INFO_V2.to_string()] = BYTES.into();
    let layouts = json!({"release": "R595", "controls": controls});
    let kept = Kept::with_layouts(VERSION, &layouts).unwrap();
    let (tenant, _process) = kept.tenant();
    let fd = tenant.open(&kept.node("nvidiactl"));
    let client = tenant.client(fd);
    let device = tenant.device(fd, client);
    let arg = rm::alloc(client, device, 0x20, 0x2080, tenant.params_address());
    assert_eq!(tenant.call(fd, rm::ALLOC, &arg, &[0; 4]).status(), rm::OK);
    let ask = |cmd, bytes: u32| {
        let params = vec![0; bytes as usize];
        tenant.control(fd, (client, 0x20), cmd, &params).0
    };
    let former = |cmd| control::row(cmd, Release::R595).unwrap().params_bytes;
    // One is refused, one has another size, all others are those of 595.
    let [pids, info] = [NV2080_CTRL_CMD_GPU_GET_PIDS, NV2080_CTRL_CMD_FB_GET_INFO_V2];
    assert_eq!(ask(pids, former(pids)), NV_ERR_NOT_SUPPORTED);
    assert_eq!(ask(info, former(info)), NV_ERR_INVALID_ARGUMENT);
    assert_eq!(ask(info, BYTES), rm::OK);
    let name = control::NV2080_CTRL_CMD_GPU_GET_NAME_STRING;
    assert_eq!(ask(name, former(name)), rm::OK);
    // Who follows a killed broker reads the same grant.
    let broker = kept.broker_pid().unwrap();
    kept.signal(broker, nix::sys::signal::Signal::SIGKILL);
    assert_eq!(ask(pids, former(pids)), NV_ERR_NOT_SUPPORTED);
    assert_eq!(ask(info, BYTES), rm::OK);
}

fn without_them_no_broker_serves_it() {
    for (layouts, reported) in [
        (Value::Null, "driver 610.43.02 is not supported"),
        (
            json!({"release": "R600", "controls": {}}),
            "no release R600",
        ),
    ] {
        let Err((reply, log)) = Kept::with_layouts(VERSION, &layouts) else {
            panic!("{layouts} serves")
        };
        assert!(
            reply.contains(reported) || log.contains(reported),
            "{layouts}: {reply}: {log}"
        );
    }
}

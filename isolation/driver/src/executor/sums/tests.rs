use super::*;
use nvabi::bytes::put_u64;
use nvabi::layout::{attached_ids, device_params, uuid_of_id};
use nvabi::{Release, class};

fn answer(result: u32, private: u64, owned: u64, further: u64) -> Vec<u8> {
    let cmd = control::NV2080_CTRL_CMD_GPU_GET_PID_INFO;
    let row = control::row(cmd, Release::R570).unwrap();
    let mut params = vec![0; row.params_bytes as usize];
    put_u32(&mut params, 0, 1);
    put_u32(&mut params, 8, 4711);
    put_u32(&mut params, 16, result);
    put_u64(&mut params, 24, private);
    put_u64(&mut params, 32, owned);
    put_u64(&mut params, 40, further);
    // protectedMemPrivate: a part of memPrivate.
    put_u64(&mut params, 48, private);
    params
}

#[test]
fn memory_is_counted_once_and_further_handles_of_it_apart() {
    assert_eq!(sum_in(&answer(0, 5, 30, 200)).unwrap(), (35, 200));
    assert_eq!(sum_in(&answer(0, 0, 0, 0)).unwrap(), (0, 0));
}

#[test]
fn what_is_no_sum_is_an_error() {
    let refused = sum_in(&answer(0x1f, 5, 0, 0)).unwrap_err();
    assert!(refused.to_string().contains("0x1f"), "{refused}");
    sum_in(&answer(0, u64::MAX, 1, 0)).unwrap_err();
    let mut none = answer(0, 5, 0, 0);
    put_u32(&mut none, 0, 0);
    sum_in(&none).unwrap_err();
    let whole = answer(0, 5, 0, 0);
    for length in 0..48 {
        assert!(sum_in(&whole[..length]).is_err(), "{length}");
    }
    assert_eq!(sum_in(&whole[..48]).unwrap(), (5, 0));
}

#[test]
fn every_call_of_it_is_known_of_every_release() {
    for release in Release::ALL {
        for (cmd, at_least) in [
            (
                control::NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS,
                4 * attached_ids::MOST,
            ),
            (
                control::NV0000_CTRL_CMD_GPU_GET_UUID_FROM_GPU_ID,
                uuid_of_id::UUID + uuid_of_id::UUID_BYTES,
            ),
            (control::NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2, 16),
            (
                control::NV2080_CTRL_CMD_GPU_GET_PID_INFO,
                pid_info::LIST + pid_info::MOST as usize * pid_memory::BYTES,
            ),
        ] {
            let row = control::row(cmd, release).unwrap();
            assert!(
                row.params_bytes as usize >= at_least,
                "{release:?} {}",
                row.name
            );
        }
        let device = class::row_of(class::NV01_DEVICE_0, release).unwrap();
        assert!(device.params.of(release) as usize > device_params::VA_MODE);
        let subdevice = class::row_of(class::NV20_SUBDEVICE_0, release).unwrap();
        assert_eq!(subdevice.params.of(release), 4);
    }
}

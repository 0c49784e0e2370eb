//! To whom a tenant opens its objects.

use driver::Binding;
use nvabi::bytes::{put, put_u32, u16_at};
use nvabi::layout::{nvos57, share_policy};
use nvabi::{Release, control, escape, status};

use crate::fixture::{Fixture, MIB};
use crate::program::Program;
use crate::{Test, rm};

pub(crate) const TESTS: &[Test] = &[(
    "policies::no_share_policy_that_names_a_client_reaches_the_driver",
    no_share_policy_that_names_a_client_reaches_the_driver,
)];

const INHERITED: u32 = control::NV0000_CTRL_CMD_CLIENT_SET_INHERITED_SHARE_POLICY;
const COMPOSE: u8 = 4;

/// `RS_SHARE_POLICY` for a client.
fn policy(target: u32, action: u8) -> Vec<u8> {
    let mut block = vec![0; 12];
    put_u32(&mut block, share_policy::TARGET, target);
    let kind = share_policy::CLIENT.to_le_bytes();
    put(&mut block, share_policy::TYPE, &kind);
    put(&mut block, share_policy::ACTION, &[action]);
    block
}

/// The statuses of both calls with one policy, which the program has afterwards as it wrote it.
fn set(program: &Program, block: &[u8]) -> [u32; 2] {
    let (tenant, fd) = (&program.tenant.0, program.fd);
    let of_client = (program.client, program.client);
    let (inherited, after) = tenant.control(fd, of_client, INHERITED, block);
    assert_eq!(after, block);
    let mut share = vec![0; 24];
    put_u32(&mut share, nvos57::H_CLIENT, program.client);
    put_u32(&mut share, nvos57::H_OBJECT, program.device);
    put(&mut share, nvos57::POLICY, block);
    let cmd = escape::NV_ESC_RM_SHARE.cmd(Release::R570);
    let called = tenant.call(fd, cmd, &share, &[]);
    assert_eq!(called.ret, Ok(0));
    let own = nvos57::POLICY..nvos57::STATUS;
    assert_eq!(called.arg[own.clone()], share[own]);
    let shared = nvabi::bytes::u32_at(&called.arg, nvos57::STATUS).unwrap();
    [inherited, shared]
}

fn no_share_policy_that_names_a_client_reaches_the_driver() {
    let fixture = Fixture::narrowing(64 * MIB, Binding::Executor);
    let (one, other) = (Program::new(&fixture), Program::new(&fixture));
    let neighbours = one.client ^ 0x5a5a;
    let grants = [0, COMPOSE];
    let takes = [share_policy::ACTION_REVOKE, share_policy::ACTION_REQUIRE];
    for action in grants {
        for own in [one.client, other.client] {
            assert_eq!(set(&one, &policy(own, action)), [rm::OK; 2], "{action}");
        }
        let refused = set(&one, &policy(neighbours, action));
        assert!(refused.iter().all(|status| *status != rm::OK), "{action}");
    }
    for action in takes {
        for target in [one.client, other.client, neighbours] {
            for action in [action, action | COMPOSE] {
                let refused = [status::NV_ERR_INSUFFICIENT_PERMISSIONS; 2];
                assert_eq!(set(&one, &policy(target, action)), refused, "{action}");
            }
        }
    }
    let controls = fixture.kernel.controls(INHERITED);
    let shares = fixture
        .kernel
        .calls(escape::NV_ESC_RM_SHARE.cmd(Release::R570));
    assert_eq!((controls.len(), shares.len()), (4, 4));
    let of_controls = controls.iter().map(|blocks| &blocks[1][..]);
    let of_shares = shares.iter().map(|blocks| &blocks[0][nvos57::POLICY..]);
    for block in of_controls.chain(of_shares) {
        let kind = u16_at(block, share_policy::TYPE);
        assert_eq!(kind, Some(share_policy::PID));
    }
}

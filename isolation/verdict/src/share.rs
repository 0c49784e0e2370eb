//! Share policies: to whom the driver may hand an object besides its client.
//!
//! RM asks them when a client that is not the object's own duplicates it. A container's clients are reached by `DUP_OBJECT`,
//! whose source the broker checks; a policy that opens an object to *every* client, or to every client of the same user,
//! would leave that check alone between two tenants. So a tenant may take rights away, keep objects to itself or to its own
//! process, which is what a policy for one client of the container's own becomes.
//!
//! No policy that names a client reaches RM: at each such call RM adds a node to that client's list, whosever it is, without looking whether
//! the list has it (`clientAddAccessBackRef_IMPL`, rs_client.c, 535 to 595), and with `RS_SHARE_ACTION_FLAG_COMPOSE` an object's list gets an entry
//! for each client that was named, there or not, which every object below it copies (`rsShareListCopy`, rs_access_map.c). The first list is
//! walked, and for each node the second one, when that client ends. Policies of the other types have one entry each (`rsSharePolicyEquals`).

use nvabi::bytes::{self, u8_at, u16_at, u32_at, u64_at};
use nvabi::control::Decision;
use nvabi::escape::Id;
use nvabi::layout::share_policy::{
    ACTION, ACTION_REQUIRE, ACTION_REVOKE, CLIENT, NONE, OS_SECURITY_TOKEN, PID, TARGET, TYPE,
};
use nvabi::layout::{device_params, nvos21, nvos57};
use nvabi::{Release, class, status};

use crate::effect::Effect;
use crate::policy::{Policy, SameUser};
use crate::{Op, Refusal};
use nvabi::errno::EFAULT;

/// Decides the policy at the start of `policy`.
pub(crate) fn decide(
    op: &Op,
    policy: &[u8],
    choice: &Policy,
    release: Release,
) -> Result<Effect, Refusal> {
    let kind = u16_at(policy, TYPE).ok_or(Refusal::Errno(EFAULT))?;
    let action = u8_at(policy, ACTION).ok_or(Refusal::Errno(EFAULT))?;
    let grants = grants(action);
    match kind {
        CLIENT if !grants => Err(op.refuse(status::NV_ERR_INSUFFICIENT_PERMISSIONS, release)),
        // Takes a right away, or binds one that another policy must grant.
        _ if !grants => Ok(Effect::None),
        NONE | PID => Ok(Effect::None),
        CLIENT | OS_SECURITY_TOKEN if choice.same_user == SameUser::Refuse => {
            Err(op.refuse(status::NV_ERR_NOT_SUPPORTED, release))
        }
        CLIENT => Ok(Effect::ChannelClients {
            clients: vec![u32_at(policy, TARGET).ok_or(Refusal::Errno(EFAULT))?],
        }),
        OS_SECURITY_TOKEN => Ok(Effect::None),
        _ => Err(op.refuse(status::NV_ERR_INSUFFICIENT_PERMISSIONS, release)),
    }
}

fn grants(action: u8) -> bool {
    action & (ACTION_REVOKE | ACTION_REQUIRE) == 0
}

/// Bytes of the broker's copy that are replaced before the call is executed. The tenant's own bytes go back to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Narrowing {
    /// Segment.
    pub segment: u8,
    /// Offset.
    pub at: usize,
    /// What is there while the driver looks.
    pub bytes: Replacement,
}

/// Replaced bytes, by their length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replacement {
    /// Two bytes.
    U16(u16),
    /// Four bytes.
    U32(u32),
    /// Eight bytes.
    U64(u64),
}

/// A device with `hClientShare` 0 would use the one address space that all such devices of the card share (gpu/device_share.c): it gets its own
/// client's, which is what a client asks for by its own handle.
#[must_use]
pub fn own_space(op: &Op, segments: &[&[u8]]) -> Option<Narrowing> {
    let arg = segments.first()?;
    let share = u32_at(segments.get(1)?, device_params::H_CLIENT_SHARE)?;
    let client = u32_at(arg, nvos21::H_ROOT)?;
    (op.class(arg) == Some(class::NV01_DEVICE_0) && share == 0).then_some(Narrowing {
        segment: 1,
        at: device_params::H_CLIENT_SHARE,
        bytes: Replacement::U32(client),
    })
}

/// A share policy by user or for one client, where [`crate::decide_under`] admits it, becomes one by process: in mode B whoever executes is the process of all the
/// container's clients, in mode A each process has its own.
#[must_use]
pub fn narrow(op: &Op, segments: &[&[u8]]) -> Option<Narrowing> {
    let arg = segments.first().copied().unwrap_or_default();
    let params = segments.get(1).copied().unwrap_or_default();
    let by_process = |segment, policy_at, block: &[u8]| {
        let grants = u8_at(block, policy_at + ACTION).is_some_and(grants);
        let kind = u16_at(block, policy_at + TYPE);
        let is_wider = matches!(kind, Some(OS_SECURITY_TOKEN | CLIENT));
        (grants && is_wider).then_some(Narrowing {
            segment,
            at: policy_at + TYPE,
            bytes: Replacement::U16(PID),
        })
    };
    if op.escape() == Some(Id::Share) {
        by_process(0, nvos57::POLICY, arg)
    } else if op.decision(arg) == Some(Decision::SharePolicy) {
        by_process(1, 0, params)
    } else {
        None
    }
}

/// What a tenant has written where the driver got other bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PutBack {
    given: Narrowing,
    before: Narrowing,
}

impl Narrowing {
    /// Puts the narrowed bytes into the copy that is executed; `None`, and nothing written, beyond the block's end.
    pub fn apply(self, block: &mut [u8]) -> Option<PutBack> {
        let before = Self {
            bytes: self.there(block)?,
            ..self
        };
        self.write(block);
        Some(PutBack {
            given: self,
            before,
        })
    }

    /// As many bytes as its own, where its own belong.
    fn there(self, block: &[u8]) -> Option<Replacement> {
        Some(match self.bytes {
            Replacement::U16(_) => Replacement::U16(u16_at(block, self.at)?),
            Replacement::U32(_) => Replacement::U32(u32_at(block, self.at)?),
            Replacement::U64(_) => Replacement::U64(u64_at(block, self.at)?),
        })
    }

    fn write(self, block: &mut [u8]) {
        // Within the block: `there` has read it.
        let _is_within = match self.bytes {
            Replacement::U16(value) => bytes::put(block, self.at, &value.to_le_bytes()),
            Replacement::U32(value) => bytes::put_u32(block, self.at, value),
            Replacement::U64(value) => bytes::put_u64(block, self.at, value),
        };
    }
}

impl PutBack {
    /// Which block it is of.
    #[must_use]
    pub fn segment(&self) -> usize {
        usize::from(self.given.segment)
    }

    /// Gives the tenant its own bytes back. What the driver has written there is its answer, and stays.
    pub fn apply(&self, block: &mut [u8]) {
        if self.given.there(block) == Some(self.given.bytes) {
            self.before.write(block);
        }
    }
}

//! Share policies: to whom the driver may hand an object besides its client.
//!
//! RM asks them when a client that is not the object's own duplicates it. A container's clients are reached by `DUP_OBJECT`,
//! whose source the broker checks; a policy that opens an object to *every* client, or to every client of the same user,
//! would leave that check alone between two tenants. So a tenant may take rights away, keep objects to itself, to its own
//! process, or to a client that is the container's own.

use nvabi::bytes::{array_at, u8_at, u16_at, u32_at, u64_at};
use nvabi::class::{Class, Kind, Plain};
use nvabi::control::Decision;
use nvabi::escape::Id;
use nvabi::layout::share_policy::{
    ACTION, ACTION_REQUIRE, ACTION_REVOKE, CLIENT, NONE, OS_SECURITY_TOKEN, PID, TARGET, TYPE,
};
use nvabi::layout::{device_params, encoder_session, nvos21, nvos57, peer_to_peer, video_params};
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
    if action & (ACTION_REVOKE | ACTION_REQUIRE) != 0 {
        // Takes a right away, or binds one that another policy must grant.
        return Ok(Effect::None);
    }
    match kind {
        NONE | PID => Ok(Effect::None),
        CLIENT => Ok(Effect::ChannelClients {
            clients: vec![u32_at(policy, TARGET).ok_or(Refusal::Errno(EFAULT))?],
        }),
        OS_SECURITY_TOKEN if choice.same_user == SameUser::Narrow => Ok(Effect::None),
        OS_SECURITY_TOKEN => Err(op.refuse(status::NV_ERR_NOT_SUPPORTED, release)),
        _ => Err(op.refuse(status::NV_ERR_INSUFFICIENT_PERMISSIONS, release)),
    }
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

/// A share policy by user, where [`crate::decide_under`] admits it, becomes one by process: in mode B whoever executes is the process of all the
/// container's clients, in mode A each process has its own.
#[must_use]
pub fn narrow(op: &Op, segments: &[&[u8]]) -> Option<Narrowing> {
    let arg = segments.first().copied().unwrap_or_default();
    let params = segments.get(1).copied().unwrap_or_default();
    let by_process = |segment, policy_at, block: &[u8]| {
        let grants = u8_at(block, policy_at + ACTION)
            .is_some_and(|action| action & (ACTION_REVOKE | ACTION_REQUIRE) == 0);
        (grants && u16_at(block, policy_at + TYPE) == Some(OS_SECURITY_TOKEN)).then_some(
            Narrowing {
                segment,
                at: policy_at + TYPE,
                bytes: Replacement::U16(PID),
            },
        )
    };
    if op.escape() == Some(Id::Share) {
        by_process(0, nvos57::POLICY, arg)
    } else if op.decision(arg) == Some(Decision::SharePolicy) {
        by_process(1, 0, params)
    } else {
        None
    }
}

/// What no tenant sets in an allocation's parameters, whatever the driver:
/// - an object of a video engine that asks to be the only one of its kind (`prohibitMultipleInstances`) does not: RM itself only hands the
///   word on (rpc.c, for a host below it), and what firmware does with it would be done to neighbours;
/// - an encoder's session is one of version 0: of another, RM maps as much as it wants of the memory that the caller names, whatever its
///   length, and reads it each second until the session is freed, whether the memory is still there or not (nvencsession.c,
///   `nvencsessionConstruct_IMPL`). Figures of the session are all that is lost, which a tenant is not shown.
/// - a connection of two cards has no peer numbers of the caller's choice: RM compares one neither with how many there are nor with who uses it
///   (`kbusCreateP2PMappingForNvlink_GP100`), and has the card's routing changed for everybody.
#[must_use]
pub fn cleared(op: &Op, segments: &[&[u8]]) -> Vec<Narrowing> {
    let class = segments.first().and_then(|arg| op.class(arg));
    let words = class.and_then(class::of).map_or(&[][..], cleared_words);
    let params = segments.get(1).copied().unwrap_or_default();
    let is_set = |at: &usize| u32_at(params, *at).is_some_and(|word| word != 0);
    let set = words.iter().copied().filter(is_set);
    set.map(|at| Narrowing {
        segment: 1,
        at,
        bytes: Replacement::U32(0),
    })
    .collect()
}

fn cleared_words(class: &Class) -> &'static [usize] {
    if class.kind == Kind::Video {
        return &[video_params::ALONE];
    }
    if class.kind == Kind::Plain(Plain::EncoderSession) {
        return &[encoder_session::VERSION];
    }
    if class.kind == Kind::Plain(Plain::PeerToPeer) {
        return &peer_to_peer::CHOSEN_BY_RM;
    }
    &[]
}

impl Narrowing {
    /// Puts the narrowed bytes into the copy that is executed; `None`, and nothing written, beyond the block's end.
    /// What was there is returned, to be put back before the copy is written to the tenant.
    pub fn apply(&self, block: &mut [u8]) -> Option<Self> {
        let before = match self.bytes {
            Replacement::U16(value) => {
                let before = array_at(block, self.at).map(u16::from_le_bytes)?;
                nvabi::bytes::put(block, self.at, &value.to_le_bytes());
                Replacement::U16(before)
            }
            Replacement::U32(value) => {
                let before = u32_at(block, self.at)?;
                nvabi::bytes::put_u32(block, self.at, value);
                Replacement::U32(before)
            }
            Replacement::U64(value) => {
                let before = u64_at(block, self.at)?;
                nvabi::bytes::put_u64(block, self.at, value);
                Replacement::U64(before)
            }
        };
        Some(Self {
            bytes: before,
            ..*self
        })
    }
}

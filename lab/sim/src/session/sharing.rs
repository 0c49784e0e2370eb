//! Rights on objects, and with whom they are shared.
//!
//! RM asks these when a handle of one client is duplicated by another, and before that when a policy is set (rs_access_map.c, rs_client.c).
//! Played are the two rights that the resource server keeps by itself, to duplicate and to debug: the others ask for a privilege of the
//! calling thread, and no thread of a tenant's makes a session's calls.

use nvabi::bytes::{u8_at, u16_at, u32_at};
use nvabi::layout::nvos57;
use nvabi::layout::share_policy::{
    ACTION, ACTION_REQUIRE, ACTION_REVOKE, ALL, CLIENT, OS_SECURITY_TOKEN, PID, TARGET, TYPE,
};
use nvabi::status::{
    NV_ERR_INSUFFICIENT_PERMISSIONS, NV_ERR_INVALID_ARGUMENT, NV_ERR_INVALID_OBJECT_HANDLE,
    NV_ERR_OBJECT_NOT_FOUND,
};

use super::objects::{Client, Object};
use super::{Context, Segments, State};
use crate::hardware::Processes;
use crate::refusal::Refusal;

const INVALID: Refusal = Refusal(NV_ERR_INVALID_ARGUMENT);
/// `accessMask` of `RS_SHARE_POLICY` (rs_access.h).
const ACCESS_MASK: usize = 4;
/// `RS_SHARE_ACTION_FLAG_COMPOSE`: adds to the policies that are there.
const ACTION_COMPOSE: u8 = 4;
/// `RS_SHARE_TYPE_SMC_PARTITION` and `RS_SHARE_TYPE_GPU`: as a condition they hold, because the destination is on the same card.
const SAME_PARTITION: u16 = 5;
const SAME_GPU: u16 = 6;
/// `RS_SHARE_TYPE_MAX`
const NO_TYPE: u16 = 8;

/// `RS_ACCESS_MASK`, of the rights that are played.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rights(u32);

impl Rights {
    /// `RS_ACCESS_DUP_OBJECT`
    const DUP: Self = Self(1);
    /// `RS_ACCESS_DEBUG`
    const DEBUG: Self = Self(1 << 2);
    pub(super) const ALL: Self = Self(Self::DUP.0 | Self::DEBUG.0);
    pub(super) const NONE: Self = Self(0);

    /// As the driver writes them.
    pub(super) const fn bits(self) -> u32 {
        self.0
    }

    const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    fn has(self, needed: Self) -> bool {
        self.and(needed) == needed
    }
}

/// `RS_SHARE_POLICY`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Policy {
    kind: u16,
    target: u32,
    rights: Rights,
    action: u8,
}

/// What holds for an object that no policy was set for, nor for anything above it (`serverInitGlobalSharePolicies`, rmapi/sharing.c).
const OWN_PROCESS: Policy = Policy {
    kind: PID,
    target: 0,
    rights: Rights::DUP,
    action: 0,
};

impl Policy {
    fn of(block: &[u8]) -> Result<Self, Refusal> {
        Ok(Self {
            kind: u16_at(block, TYPE)
                .filter(|kind| *kind < NO_TYPE)
                .ok_or(INVALID)?,
            target: u32_at(block, TARGET).ok_or(INVALID)?,
            rights: Rights(u32_at(block, ACCESS_MASK).ok_or(INVALID)?).and(Rights::ALL),
            action: u8_at(block, ACTION).ok_or(INVALID)?,
        })
    }

    const fn is(self, flag: u8) -> bool {
        self.action & flag != 0
    }

    /// Whether both are for the same clients (`rsSharePolicyEquals`).
    fn is_for_whom(&self, other: &Self) -> bool {
        self.kind == other.kind
            && self.is(ACTION_REQUIRE) == other.is(ACTION_REQUIRE)
            && (self.kind != CLIENT || self.target == other.target)
    }

    /// Whether it is for a client that is not the object's own (`cliresShareCallback_IMPL`, `rmresShareCallback_IMPL`).
    fn holds(&self, processes: Processes, from: &Client, to: &Client) -> bool {
        match self.kind {
            ALL => true,
            CLIENT => self.target == to.handle(),
            PID | OS_SECURITY_TOKEN => processes == Processes::One || from.pid == to.pid,
            SAME_PARTITION | SAME_GPU => self.is(ACTION_REQUIRE),
            _nobody => false,
        }
    }
}

/// Whether one client may duplicate an object of another, or of its own (`rsAccessCheckRights`).
pub(super) fn may_duplicate(
    processes: Processes,
    (from, object): (&Client, u32),
    to: &Client,
) -> Result<(), Refusal> {
    let own = from.handle() == to.handle();
    let rights = if own {
        from.object(object)?.rights
    } else {
        let (mut granted, mut denied) = (Rights::NONE, Rights::NONE);
        for policy in active(from, object) {
            let holds = policy.holds(processes, from, to);
            match policy.is(ACTION_REQUIRE) {
                false if holds => granted = granted.or(policy.rights),
                true if !holds => denied = denied.or(policy.rights),
                _without_effect => {}
            }
        }
        granted.without(denied)
    };
    if rights.has(Rights::DUP) {
        Ok(())
    } else {
        Err(Refusal(NV_ERR_INSUFFICIENT_PERMISSIONS))
    }
}

/// The policies of the nearest object upwards that any were set for (`rsAccessGetActiveShareList`).
fn active(client: &Client, mut handle: u32) -> &[Policy] {
    while let Some(object) = client.objects.get(&handle) {
        if let Some(policies) = &object.policies {
            return policies;
        }
        handle = object.parent;
    }
    &[OWN_PROCESS]
}

/// `serverShareResourceAccess` (rs_server.c).
pub(super) fn rm_share(
    state: &mut State,
    context: &Context<'_>,
    segments: &Segments,
) -> Result<(), Refusal> {
    let arg = segments.first().ok_or(INVALID)?;
    let client = u32_at(arg, nvos57::H_CLIENT).ok_or(INVALID)?;
    let object = u32_at(arg, nvos57::H_OBJECT).ok_or(INVALID)?;
    let policy = Policy::of(arg.get(nvos57::POLICY..).unwrap_or_default())?;
    if policy.kind != CLIENT {
        return set(state.client(context, client)?, object, policy);
    }
    // The client to share with is looked for before the object is, and nobody asks whose file the other client is of
    // (`_serverShareResourceAccessClient`): whoever is before the driver has to.
    if !state.clients.contains_key(&policy.target) {
        return Err(Refusal(NV_ERR_INVALID_OBJECT_HANDLE));
    }
    let client = state
        .clients
        .get_mut(&client)
        .ok_or(Refusal(NV_ERR_INVALID_OBJECT_HANDLE))?;
    if policy.target == client.handle() {
        set_own(client, object, policy)?;
    }
    set(client, object, policy)
}

/// `NV0000_CTRL_CMD_CLIENT_SET_INHERITED_SHARE_POLICY`: one for all that the client has (`cliresCtrlCmdClientShareObject_IMPL`,
/// client_resource.c).
pub(super) fn inherit(state: &mut State, client: u32, params: &[u8]) -> Result<(), Refusal> {
    let policy = Policy::of(params)?;
    let of = state
        .clients
        .get_mut(&client)
        .ok_or(Refusal(NV_ERR_INVALID_OBJECT_HANDLE))?;
    set(of, client, policy)?;
    let names_nobody = policy.kind == CLIENT && !state.clients.contains_key(&policy.target);
    if names_nobody && !policy.is(ACTION_REVOKE) {
        return Err(Refusal(NV_ERR_INVALID_OBJECT_HANDLE));
    }
    Ok(())
}

/// A share with the object's own client edits what that may do (`clientShareResourceTargetClient_IMPL`, rs_client.c).
fn set_own(client: &mut Client, object: u32, policy: Policy) -> Result<(), Refusal> {
    let available = available(client, object);
    let object = found(client, object)?;
    object.not_lost()?;
    if policy.is(ACTION_REVOKE) {
        object.rights = object.rights.without(policy.rights);
        return Ok(());
    }
    regain(object, policy.rights, available)
}

/// Adds a policy to those of an object, or takes it from them (`clientShareResource_IMPL`, rs_client.c).
fn set(client: &mut Client, object: u32, policy: Policy) -> Result<(), Refusal> {
    let inherited = active(client, object).to_vec();
    let available = available(client, object);
    let object = found(client, object)?;
    object.not_lost()?;
    if !policy.is(ACTION_REVOKE) {
        regain(object, policy.rights, available)?;
    }
    let mut policies = object.policies.take().unwrap_or(inherited);
    if !policy.is(ACTION_COMPOSE) {
        policies.clear();
    }
    let known = policies.iter().position(|known| known.is_for_whom(&policy));
    match known.and_then(|at| policies.get_mut(at)) {
        Some(known) if policy.is(ACTION_REVOKE) => {
            known.rights = known.rights.without(policy.rights);
        }
        Some(known) => known.rights = known.rights.or(policy.rights),
        None if policy.is(ACTION_REVOKE) => {}
        None => policies.push(policy),
    }
    object.policies = Some(policies);
    Ok(())
}

fn found(client: &mut Client, object: u32) -> Result<&mut Object, Refusal> {
    client
        .objects
        .get_mut(&object)
        .ok_or(Refusal(NV_ERR_OBJECT_NOT_FOUND))
}

/// The rights that an object's client can have on it: its parent's, and on the client itself all.
fn available(client: &Client, object: u32) -> Rights {
    let parent = client.objects.get(&object).map(|object| object.parent);
    parent
        .and_then(|parent| client.objects.get(&parent))
        .map_or(Rights::ALL, |parent| parent.rights)
}

/// Who shares a right must have it. One that was taken away comes back while the parent has it, in the order of the rights' numbers: those before
/// the first that does not are kept (`clientCanShareResource_IMPL`, rs_client.c; `rsAccessGrantRights`, rs_access_map.c).
fn regain(object: &mut Object, needed: Rights, available: Rights) -> Result<(), Refusal> {
    for right in [Rights::DUP, Rights::DEBUG] {
        if needed.has(right) && !object.rights.has(right) {
            if !available.has(right) {
                return Err(Refusal(NV_ERR_INSUFFICIENT_PERMISSIONS));
            }
            object.rights = object.rights.or(right);
        }
    }
    Ok(())
}

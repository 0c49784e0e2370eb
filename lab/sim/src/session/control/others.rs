//! What is asked of objects that are of no kind of their own here, and of their clients.

use nvabi::bytes::{array_at, put, put_u32, put_u64, u32_at};
use nvabi::status::{NV_ERR_INVALID_ARGUMENT, NV_ERR_INVALID_OBJECT};

use super::super::objects::{Object, Resource};
use super::super::sharing;
use super::{Requested, UNSUPPORTED};
use crate::refusal::Refusal;

const INVALID: Refusal = Refusal(NV_ERR_INVALID_ARGUMENT);

/// What changes nothing that is modelled is accepted as it is.
pub(super) fn accepted(_requested: &mut Requested<'_>) -> Result<(), Refusal> {
    Ok(())
}

pub(super) fn inherited_share_policy(requested: &mut Requested<'_>) -> Result<(), Refusal> {
    sharing::inherit(requested.state, requested.client, requested.params)
}

/// `{hObject 0, mapFlags 4, addrSpaceType 8}`; 1 system memory, 2 framebuffer.
pub(super) fn address_space_type(requested: &mut Requested<'_>) -> Result<(), Refusal> {
    let handle = u32_at(requested.params, 0).ok_or(INVALID)?;
    let object = requested
        .state
        .object(requested.context, requested.client, handle)?;
    // A card's objects have one too, which is not played.
    let Ok(memory) = object.memory() else {
        return Err(Refusal(NV_ERR_INVALID_OBJECT));
    };
    let kind = if memory.charge.is_some() { 2 } else { 1 };
    put_u32(requested.params, 8, kind);
    Ok(())
}

/// SYSTEM_GET_CAPABILITIES of NV_CONFIDENTIAL_COMPUTE: neither the host nor a card can do it
/// (`confComputeApiCtrlCmdSystemGetCapabilities_IMPL`, conf_compute_api.c).
pub(super) fn not_confidential(requested: &mut Requested<'_>) -> Result<(), Refusal> {
    requested.params.fill(0);
    Ok(())
}

/// `ccCaps.bAcceptClientRequest` (gpu_mgr.c): all requests are taken where there is no confidential computing.
pub(super) fn requests_are_taken(requested: &mut Requested<'_>) -> Result<(), Refusal> {
    requested.params.fill(1);
    Ok(())
}

/// `{hVASpace 0, vaSpaceToken 8:8}`: the token is the space's handle, and no third party asks by it
/// (`thirdpartyp2pCtrlCmdRegisterVaSpace_IMPL`, third_party_p2p_ctrl.c).
pub(super) fn register_va_space(requested: &mut Requested<'_>) -> Result<(), Refusal> {
    let space = u32_at(requested.params, 0).ok_or(INVALID)?;
    requested
        .state
        .object(requested.context, requested.client, space)?
        .space()?;
    put_u64(requested.params, 8, u64::from(space));
    Ok(())
}

/// `{eccMask 0, nvlinkMask 4}`: of no virtual function.
pub(super) fn no_virtual_function(requested: &mut Requested<'_>) -> Result<(), Refusal> {
    requested.params.fill(0);
    Ok(())
}

/// `{polledDataMask 0:8}`: nothing is polled (`gpushareddataCtrlCmdRequestDataPoll_IMPL`, gpu_user_shared_data.c).
pub(super) fn poll(requested: &mut Requested<'_>) -> Result<(), Refusal> {
    match array_at(requested.params, 0).map(u64::from_le_bytes) {
        Some(0) => Ok(()),
        Some(_) | None => Err(UNSUPPORTED),
    }
}

/// `{hTargetChannel 0, numSMsToRead 4, states 8:4800, mmuFaultInfo 4808, mmuFault.valid 4812:1}`
pub(super) fn sm_error_states(requested: &mut Requested<'_>) -> Result<(), Refusal> {
    let has_faults = !faults(requested)?.is_empty();
    let head: [u8; 8] = array_at(requested.params, 0).ok_or(INVALID)?;
    requested.params.fill(0);
    put(requested.params, 0, &head);
    put(requested.params, 4812, &[u8::from(has_faults)]);
    Ok(())
}

/// `{{faultAddress 0:8, faultType 8, accessType 12}[4], count 64}`
pub(super) fn mmu_faults(requested: &mut Requested<'_>) -> Result<(), Refusal> {
    let faults = faults(requested)?;
    requested.params.fill(0);
    let mut count = 0;
    for (address, at) in faults.iter().zip([0, 16, 32, 48]) {
        put_u64(requested.params, at, *address);
        count += 1;
    }
    put_u32(requested.params, 64, count);
    Ok(())
}

/// Where the client's channels have faulted.
fn faults(requested: &mut Requested<'_>) -> Result<Vec<u64>, Refusal> {
    let objects = &requested
        .state
        .client(requested.context, requested.client)?
        .objects;
    let fault = |Object { resource, .. }: &Object| match resource {
        Resource::Channel(channel) => channel.fault_address(),
        Resource::Client
        | Resource::Device(_)
        | Resource::Subdevice(_)
        | Resource::Memory(..)
        | Resource::Virtual(_)
        | Resource::VaSpace(_)
        | Resource::ChannelGroup(..)
        | Resource::ContextShare(_)
        | Resource::Plain
        | Resource::Invalidated => None,
    };
    Ok(objects.values().filter_map(fault).collect())
}

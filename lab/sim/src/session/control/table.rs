//! How each control is played: one row a control, and none is forgotten. What is not played is answered with NV_ERR_NOT_SUPPORTED.

use std::sync::Arc;

use nvabi::class;
use nvabi::control::Id;

use super::super::export;
use super::{Requested, board, card, channels, device, machine, others};
use crate::card::SimCard;
use crate::fifo::{Channel, Group};
use crate::refusal::Refusal;

type Answer = fn(&mut Requested<'_>) -> Result<(), Refusal>;
type CardAnswer = fn(&Arc<SimCard>, &mut Requested<'_>) -> Result<(), Refusal>;
type GroupAnswer = fn(&Arc<Group>, &mut Requested<'_>) -> Result<(), Refusal>;
type ChannelAnswer = fn(&Arc<Channel>, &mut Requested<'_>) -> Result<(), Refusal>;

/// What a control is asked of, and what answers it.
pub(super) enum Modelled {
    OfClient(Answer),
    OfDevice(CardAnswer),
    OfSubdevice(CardAnswer),
    OfGroup(GroupAnswer),
    OfChannel(ChannelAnswer),
    /// Of an object of this class.
    Of(u32, Answer),
    /// A card as it is played lacks what is asked about, and the driver answers the same there.
    Lacking,
    Not,
}

/// `GT200_DEBUGGER`
const DEBUGGER: u32 = 0x83de;

/// What changes nothing that is modelled.
fn accepted_of_card(_card: &Arc<SimCard>, _requested: &mut Requested<'_>) -> Result<(), Refusal> {
    Ok(())
}

#[rustfmt::skip] // one control a line
pub(super) fn modelled(id: Id) -> Modelled {
    use Modelled::{Lacking, Not, Of, OfChannel, OfClient, OfDevice, OfGroup, OfSubdevice};
    match id {
        Id::NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION => OfClient(machine::build_version),
        Id::NV0000_CTRL_CMD_SYSTEM_GET_CPU_INFO => OfClient(machine::cpu_info),
        Id::NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS => OfClient(machine::p2p_caps),
        Id::NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS_V2 => OfClient(machine::p2p_caps_v2),
        Id::NV0000_CTRL_CMD_SYSTEM_GET_FABRIC_STATUS => OfClient(machine::fabric_status),
        Id::NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS_MATRIX => OfClient(machine::p2p_matrix),
        Id::NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION_V2 => OfClient(machine::build_version_v2),
        Id::NV0000_CTRL_CMD_SYSTEM_GET_FEATURES
        | Id::NV0000_CTRL_CMD_GPU_GET_MEMOP_ENABLE => OfClient(machine::no_features),
        Id::NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS => OfClient(machine::attached_ids),
        Id::NV0000_CTRL_CMD_GPU_GET_ID_INFO => OfClient(machine::id_info),
        Id::NV0000_CTRL_CMD_GPU_GET_DEVICE_IDS => OfClient(machine::device_mask),
        Id::NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2 => OfClient(machine::id_info_v2),
        Id::NV0000_CTRL_CMD_GPU_GET_PROBED_IDS => OfClient(machine::probed_ids),
        Id::NV0000_CTRL_CMD_GPU_ATTACH_IDS
        | Id::NV0000_CTRL_CMD_GPU_DETACH_IDS => OfClient(machine::attach_or_detach),
        Id::NV0000_CTRL_CMD_GPU_GET_PCI_INFO => OfClient(machine::pci_info),
        Id::NV0000_CTRL_CMD_GPU_GET_UUID_FROM_GPU_ID => OfClient(machine::uuid_of_id),
        Id::NV0000_CTRL_CMD_GPU_QUERY_DRAIN_STATE => OfClient(machine::drain_state),
        Id::NV0000_CTRL_CMD_GPU_GET_ACTIVE_DEVICE_IDS => OfClient(machine::active_devices),
        Id::NV0000_CTRL_CMD_GPU_ASYNC_ATTACH_ID => OfClient(machine::async_attach),
        Id::NV0000_CTRL_CMD_GPU_WAIT_ATTACH_ID
        | Id::NV0000_CTRL_CMD_SET_SUB_PROCESS_ID => OfClient(others::accepted),
        Id::NV0000_CTRL_CMD_GSYNC_GET_ATTACHED_IDS => OfClient(machine::no_sync_boards),
        Id::NV0000_CTRL_CMD_SYNC_GPU_BOOST_GROUP_INFO => OfClient(machine::boost_groups),
        Id::NV0000_CTRL_CMD_GPUACCT_GET_ACCOUNTING_STATE => OfClient(machine::accounting_state),
        Id::NV0000_CTRL_CMD_CLIENT_GET_ADDR_SPACE_TYPE => OfClient(others::address_space_type),
        Id::NV0000_CTRL_CMD_CLIENT_SET_INHERITED_SHARE_POLICY => OfClient(others::inherited_share_policy),
        Id::NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD => OfClient(export::export_one),
        Id::NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_FROM_FD => OfClient(export::import_one),
        Id::NV0000_CTRL_CMD_OS_UNIX_GET_EXPORT_OBJECT_INFO => OfClient(export::info),
        Id::NV0000_CTRL_CMD_OS_UNIX_CREATE_EXPORT_OBJECT_FD => OfClient(export::make_file),
        Id::NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECTS_TO_FD => OfClient(export::export_many),
        Id::NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECTS_FROM_FD => OfClient(export::import_many),

        Id::NV0080_CTRL_CMD_GPU_GET_CLASSLIST => OfDevice(device::class_list),
        Id::NV0080_CTRL_CMD_GPU_GET_NUM_SUBDEVICES => OfDevice(device::one_subdevice),
        Id::NV0080_CTRL_CMD_GPU_GET_VIRTUALIZATION_MODE
        | Id::NV0080_CTRL_CMD_HOST_GET_CAPS_V2 => OfDevice(device::nothing),
        Id::NV0080_CTRL_CMD_GPU_GET_CLASSLIST_V2 => OfDevice(device::class_list_v2),
        Id::NV0080_CTRL_CMD_FB_GET_CAPS_V2 => OfDevice(device::fb_caps),
        Id::NV0080_CTRL_CMD_FIFO_GET_CHANNELLIST => OfDevice(device::channel_list),
        Id::NV0080_CTRL_CMD_DMA_GET_CAPS => OfDevice(device::dma_caps),

        Id::NV2080_CTRL_CMD_GPU_GET_INFO => OfSubdevice(card::gpu_info),
        Id::NV2080_CTRL_CMD_GPU_GET_INFO_V2 => OfSubdevice(card::gpu_info_v2),
        Id::NV2080_CTRL_CMD_GPU_GET_NAME_STRING => OfSubdevice(card::name),
        Id::NV2080_CTRL_CMD_GPU_GET_SHORT_NAME_STRING => OfSubdevice(board::short_name),
        Id::NV2080_CTRL_CMD_GPU_GET_SIMULATION_INFO => OfSubdevice(board::simulation_info),
        Id::NV2080_CTRL_CMD_GPU_GET_ENGINES => OfSubdevice(card::engines),
        Id::NV2080_CTRL_CMD_GPU_GET_ID => OfSubdevice(card::id),
        Id::NV2080_CTRL_CMD_GPU_GET_GID_INFO => OfSubdevice(card::uuid),
        Id::NV2080_CTRL_CMD_GPU_GET_ENGINES_V2 => OfSubdevice(card::engines_v2),
        Id::NV2080_CTRL_CMD_GPU_GET_PIDS => OfSubdevice(card::pids),
        Id::NV2080_CTRL_CMD_GPU_GET_PID_INFO => OfSubdevice(card::pid_info),
        Id::NV2080_CTRL_CMD_GPU_QUERY_ECC_STATUS
        | Id::NV2080_CTRL_CMD_GPU_QUERY_COMPUTE_MODE_RULES
        | Id::NV2080_CTRL_CMD_GPU_GET_COMPUTE_POLICY_CONFIG
        | Id::NV2080_CTRL_CMD_RC_GET_WATCHDOG_INFO
        | Id::NV2080_CTRL_CMD_BUS_GET_C2C_INFO => OfSubdevice(card::nothing),
        Id::NV2080_CTRL_CMD_GET_GPU_FABRIC_PROBE_INFO => OfSubdevice(card::fabric_probe),
        Id::NV2080_CTRL_CMD_TIMER_GET_TIME => OfSubdevice(card::time),
        Id::NV2080_CTRL_CMD_TIMER_GET_GPU_CPU_TIME_CORRELATION_INFO => OfSubdevice(card::time_correlation),
        Id::NV2080_CTRL_CMD_BIOS_GET_INFO
        | Id::NV2080_CTRL_CMD_BUS_GET_INFO => OfSubdevice(board::unmodelled_info),
        Id::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS => OfSubdevice(channels::disable_channels),
        Id::NV2080_CTRL_CMD_GR_GET_INFO => OfSubdevice(card::gr_info),
        Id::NV2080_CTRL_CMD_GR_SET_CTXSW_PREEMPTION_MODE => OfSubdevice(channels::preemption_mode),
        Id::NV2080_CTRL_CMD_GR_GET_CTX_BUFFER_SIZE => OfSubdevice(channels::context_bytes),
        Id::NV2080_CTRL_CMD_GR_GET_GLOBAL_SM_ORDER => OfSubdevice(board::sm_order),
        Id::NV2080_CTRL_CMD_GR_GET_CAPS_V2 => OfSubdevice(board::graphics_caps),
        Id::NV2080_CTRL_CMD_GR_GET_GPC_MASK => OfSubdevice(card::gpc_mask),
        Id::NV2080_CTRL_CMD_GR_GET_TPC_MASK => OfSubdevice(card::tpc_mask),
        Id::NV2080_CTRL_CMD_FB_GET_INFO => OfSubdevice(card::fb_info),
        Id::NV2080_CTRL_CMD_FB_GET_INFO_V2 => OfSubdevice(card::fb_info_v2),
        Id::NV2080_CTRL_CMD_MC_GET_ARCH_INFO => OfSubdevice(card::architecture),
        Id::NV2080_CTRL_CMD_BUS_GET_PCI_INFO => OfSubdevice(card::pci_info),
        Id::NV2080_CTRL_CMD_BUS_GET_PCI_BAR_INFO => OfSubdevice(card::bars),
        Id::NV2080_CTRL_CMD_BUS_GET_INFO_V2 => OfSubdevice(card::bus_info_v2),
        Id::NV2080_CTRL_CMD_BUS_GET_PCIE_SUPPORTED_GPU_ATOMICS => OfSubdevice(card::atomics),
        Id::NV2080_CTRL_CMD_PERF_GET_CURRENT_PSTATE => OfSubdevice(board::performance_state),
        Id::NV2080_CTRL_CMD_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2 => OfSubdevice(card::samples),
        Id::NV2080_CTRL_CMD_CE_GET_CAPS_V2 => OfSubdevice(board::copy_caps),
        Id::NV2080_CTRL_CMD_CE_GET_ALL_CAPS => OfSubdevice(board::all_copy_caps),
        Id::NV2080_CTRL_CMD_NVLINK_GET_NVLINK_CAPS => OfSubdevice(board::link_caps),
        Id::NV2080_CTRL_CMD_NVLINK_GET_NVLINK_STATUS => OfSubdevice(card::links),
        Id::NV2080_CTRL_CMD_FLCN_GET_CTX_BUFFER_SIZE => OfSubdevice(card::falcon_context_bytes),
        Id::NV2080_CTRL_CMD_GSP_GET_FEATURES => OfSubdevice(board::firmware),
        Id::NV2080_CTRL_CMD_GRMGR_GET_GR_FS_INFO => OfSubdevice(board::floorsweeping),
        Id::NV2080_CTRL_CMD_GPU_ACQUIRE_COMPUTE_MODE_RESERVATION
        | Id::NV2080_CTRL_CMD_GPU_RELEASE_COMPUTE_MODE_RESERVATION
        | Id::NV2080_CTRL_CMD_EVENT_SET_NOTIFICATION
        | Id::NV2080_CTRL_CMD_PERF_BOOST
        | Id::NV2080_CTRL_CMD_RC_RELEASE_WATCHDOG_REQUESTS
        | Id::NV2080_CTRL_CMD_RC_SOFT_DISABLE_WATCHDOG => OfSubdevice(accepted_of_card),

        Id::NVA06C_CTRL_CMD_GPFIFO_SCHEDULE => OfGroup(channels::schedule_group),
        Id::NVA06C_CTRL_CMD_SET_TIMESLICE => OfGroup(channels::set_timeslice),
        Id::NVA06C_CTRL_CMD_GET_TIMESLICE => OfGroup(channels::timeslice),
        Id::NVA06C_CTRL_CMD_PREEMPT => OfGroup(channels::preempt),
        Id::NVA06C_CTRL_CMD_SET_INTERLEAVE_LEVEL => OfGroup(channels::set_interleave),
        Id::NV906F_CTRL_GET_CLASS_ENGINEID
        | Id::NVC36F_CTRL_GET_CLASS_ENGINEID => OfChannel(channels::class_engine_id),
        Id::NV906F_CTRL_CMD_RESET_CHANNEL => OfChannel(channels::reset),
        Id::NVA06F_CTRL_CMD_GPFIFO_SCHEDULE => OfChannel(channels::schedule),
        Id::NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN => OfChannel(channels::work_submit_token),

        Id::NV00DE_CTRL_CMD_REQUEST_DATA_POLL => Of(class::RM_USER_SHARED_DATA, others::poll),
        Id::NV503C_CTRL_CMD_REGISTER_VA_SPACE => Of(class::NV50_THIRD_PARTY_P2P, others::register_va_space),
        Id::NV90E6_CTRL_CMD_MASTER_GET_VIRTUAL_FUNCTION_ERROR_CONT_INTR_MASK => Of(class::GF100_SUBDEVICE_MASTER, others::no_virtual_function),
        Id::NV83DE_CTRL_CMD_DEBUG_READ_ALL_SM_ERROR_STATES => Of(DEBUGGER, others::sm_error_states),
        Id::NV83DE_CTRL_CMD_DEBUG_READ_MMU_FAULT_INFO => Of(DEBUGGER, others::mmu_faults),
        Id::NV83DE_CTRL_CMD_DEBUG_SET_MODE_MMU_DEBUG
        | Id::NV83DE_CTRL_CMD_DEBUG_SET_EXCEPTION_MASK
        | Id::NV83DE_CTRL_CMD_DEBUG_CLEAR_ALL_SM_ERROR_STATES => Of(DEBUGGER, others::accepted),
        Id::NV_CONF_COMPUTE_CTRL_CMD_SYSTEM_GET_CAPABILITIES => Of(class::NV_CONFIDENTIAL_COMPUTE, others::not_confidential),
        Id::NV_CONF_COMPUTE_CTRL_CMD_SYSTEM_GET_GPUS_STATE => Of(class::NV_CONFIDENTIAL_COMPUTE, others::requests_are_taken),

        // (`gpuGetSparseTextureComputeMode_IMPL`, gpu.c; kernel_mig_manager.c; ctrl2080gpu.h for the InfoROM, about which a firmware answers)
        Id::NV0080_CTRL_CMD_GPU_GET_SPARSE_TEXTURE_COMPUTE_MODE
        | Id::NV2080_CTRL_CMD_GPU_QUERY_ECC_CONFIGURATION
        | Id::NV2080_CTRL_CMD_GPU_GET_OEM_BOARD_INFO
        | Id::NV2080_CTRL_CMD_GPU_GET_INFOROM_OBJECT_VERSION
        | Id::NV2080_CTRL_CMD_GPU_GET_INFOROM_IMAGE_VERSION
        | Id::NV2080_CTRL_CMD_GPU_QUERY_INFOROM_ECC_SUPPORT
        | Id::NV2080_CTRL_CMD_GPU_GET_ACTIVE_PARTITION_IDS => Lacking,

        // No tenant may make them, and no broker does.
        Id::NV0080_CTRL_CMD_FIFO_SET_CHANNEL_PROPERTIES
        | Id::NV0080_CTRL_CMD_FIFO_STOP_RUNLIST
        | Id::NV0080_CTRL_CMD_FIFO_START_RUNLIST
        | Id::NV00FD_CTRL_CMD_ATTACH_GPU
        | Id::NV2080_CTRL_CMD_GPU_EXEC_REG_OPS
        | Id::NV2080_CTRL_CMD_GPU_SET_COMPUTE_POLICY_CONFIG
        | Id::NV2080_CTRL_CMD_FIFO_OBJSCHED_SW_GET_LOG
        | Id::NV2080_CTRL_CMD_FIFO_RUNLIST_SET_SCHED_POLICY
        | Id::NV2080_CTRL_CMD_FIFO_OBJSCHED_GET_STATE
        | Id::NV2080_CTRL_CMD_FIFO_OBJSCHED_SET_STATE
        | Id::NV2080_CTRL_CMD_FIFO_OBJSCHED_GET_CAPS
        | Id::NV2080_CTRL_CMD_GR_CTXSW_PREEMPTION_BIND
        | Id::NV83DE_CTRL_CMD_DEBUG_READ_MEMORY
        | Id::NV83DE_CTRL_CMD_DEBUG_WRITE_MEMORY
        | Id::NV9096_CTRL_CMD_SET_ZBC_COLOR_CLEAR
        | Id::NV9096_CTRL_CMD_GET_ZBC_CLEAR_TABLE_ENTRY
        | Id::NVA06C_CTRL_CMD_MAKE_REALTIME
        | Id::NV83DE_CTRL_CMD_DEBUG_SUSPEND_CONTEXT
        | Id::NV83DE_CTRL_CMD_DEBUG_RESUME_CONTEXT
        | Id::NVA06F_CTRL_CMD_RESTART_RUNLIST
        | Id::NVA06F_CTRL_CMD_STOP_CHANNEL => Not,

        // A broker answers them by itself.
        Id::NV0080_CTRL_CMD_PERF_CUDA_LIMIT_SET_CONTROL
        | Id::NV2080_CTRL_CMD_TIMER_SET_GR_TICK_FREQ => Not,

        // Graphics' and video's alone.
        Id::NV0080_CTRL_CMD_GR_GET_CAPS
        | Id::NV0080_CTRL_CMD_GR_GET_INFO
        | Id::NV0080_CTRL_CMD_GR_GET_CAPS_V2
        | Id::NV0080_CTRL_CMD_FB_GET_CAPS
        | Id::NV0080_CTRL_CMD_FIFO_GET_CAPS
        | Id::NV0080_CTRL_CMD_FIFO_GET_ENGINE_CONTEXT_PROPERTIES
        | Id::NV0080_CTRL_CMD_FIFO_GET_CAPS_V2
        | Id::NV0080_CTRL_CMD_MSENC_GET_CAPS
        | Id::NV0080_CTRL_CMD_BSP_GET_CAPS_V2
        | Id::NV0080_CTRL_CMD_NVJPG_GET_CAPS_V2
        | Id::NV2080_CTRL_CMD_GPU_GET_ENGINE_PARTNERLIST
        | Id::NV2080_CTRL_CMD_GPU_GET_ENCODER_CAPACITY
        | Id::NV2080_CTRL_GPU_GET_NVENC_SW_SESSION_STATS
        | Id::NV2080_CTRL_GPU_GET_NVFBC_SW_SESSION_STATS
        | Id::NV2080_CTRL_CMD_GPU_GET_CHIP_DETAILS
        | Id::NV2080_CTRL_CMD_GPU_GET_RECOVERY_ACTION
        | Id::NV2080_CTRL_CMD_GR_GET_ZCULL_INFO
        | Id::NV2080_CTRL_CMD_GR_CTXSW_ZCULL_BIND
        | Id::NV2080_CTRL_CMD_FB_GET_GPU_CACHE_INFO
        | Id::NV2080_CTRL_CMD_FB_GET_FB_REGION_INFO
        | Id::NV2080_CTRL_CMD_FB_QUERY_DRAM_ENCRYPTION_PENDING_CONFIGURATION
        | Id::NV2080_CTRL_CMD_BUS_GET_PCIE_REQ_ATOMICS_CAPS
        | Id::NV2080_CTRL_CMD_BUS_GET_PCIE_CPL_ATOMICS_CAPS
        | Id::NV2080_CTRL_CMD_CE_GET_CE_PCE_MASK
        | Id::NV2080_CTRL_CMD_ECC_GET_REPAIR_STATUS
        | Id::NV2080_CTRL_CMD_OS_UNIX_VIDMEM_PERSISTENCE_STATUS
        | Id::NV9096_CTRL_CMD_GET_ZBC_CLEAR_TABLE_SIZE
        | Id::NVA06F_CTRL_CMD_BIND
        | Id::NVC36F_CTRL_CMD_GPFIFO_SET_WORK_SUBMIT_TOKEN_NOTIF_INDEX => Not,

        // Not played.
        Id::NV0041_CTRL_CMD_GET_SURFACE_INFO
        | Id::NV0080_CTRL_CMD_GPU_QUERY_SW_STATE_PERSISTENCE
        | Id::NV0080_CTRL_CMD_GR_SET_TPC_PARTITION_MODE
        | Id::NV0080_CTRL_CMD_DMA_ADV_SCHED_GET_VA_CAPS
        | Id::NV2080_CTRL_CMD_GPU_GET_SKYLINE_INFO
        | Id::NV2080_CTRL_CMD_THERMAL_SYSTEM_EXECUTE_V2
        | Id::NV2080_CTRL_CMD_GR_GET_SM_ISSUE_RATE_MODIFIER
        | Id::NV2080_CTRL_CMD_GR_GET_SM_ISSUE_RATE_MODIFIER_V2
        | Id::NV2080_CTRL_CMD_FB_QUERY_DRAM_ENCRYPTION_INFOROM_SUPPORT_V575
        | Id::NV2080_CTRL_CMD_FB_QUERY_DRAM_ENCRYPTION_STATUS_V575
        | Id::NV2080_CTRL_CMD_FB_QUERY_DRAM_ENCRYPTION_STATUS
        | Id::NV2080_CTRL_CMD_MC_SERVICE_INTERRUPTS
        | Id::NV208F_CTRL_CMD_GPU_VERIFY_INFOROM
        | Id::NV503C_CTRL_CMD_REGISTER_VIDMEM
        | Id::NV503C_CTRL_CMD_UNREGISTER_VIDMEM
        | Id::NV83DE_CTRL_CMD_DEBUG_SET_MODE_ERRBAR_DEBUG
        | Id::NVC56F_CTRL_CMD_GET_KMB
        | Id::NV_CONF_COMPUTE_CTRL_CMD_GPU_GET_NUM_SECURE_CHANNELS
        | Id::NV_CONF_COMPUTE_CTRL_CMD_GPU_GET_KEY_ROTATION_STATE => Not,
    }
}

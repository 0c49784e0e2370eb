/* An invented card below NVIDIA's whole RM core.
 *
 * RM is a client of firmware here (GSP), and the firmware says that all is well: what is defined here stands before RM's own of the same
 * name (-z muldefs). No byte of the card's memory is anywhere; RM's heap counts it all the same.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/mman.h>
#include "nvtypes.h"
#include "nvos.h"
#include "nv.h"
#include "nv_escape.h"
#include "nv-unix-nvos-params-wrappers.h"
#include "core/core.h"
#include "core/locks.h"
#include "core/system.h"
#include "core/thread_state.h"
#include "gpu/gpu.h"
#include "gpu_mgr/gpu_mgr.h"
#include "gpu/gsp/kernel_gsp.h"
#include "gpu/fifo/kernel_fifo.h"
#include "gpu/bus/kern_bus.h"
#include "gpu/mmu/kern_gmmu.h"
#include "gpu/mem_mgr/mem_mgr.h"
#include "gpu/mem_mgr/heap.h"
#include "gpu/gpu_engine_type.h"
#include "gpu/gsp/gsp_static_config.h"
#include "rmapi/rmapi.h"
#include "vgpu/rpc.h"
#include "class/cl0000.h"
#include "class/cl0080.h"
#include "class/cl2080.h"
#include "class/cl003e.h"
#include "class/cl0040.h"
#include "class/cl90f1.h"
#include "class/cla06c.h"
#include "class/cl50a0.h"
#include "class/clc56f.h"
#include "alloc/alloc_channel.h"
#include "class/cl0070.h"
#include "nv_ref.h"
#include "nverror.h"

extern long referee_locks, referee_asserts;
extern int referee_log, referee_admin;
extern NvU32 referee_pid, referee_user;
extern RsServer g_resServ;
NvBool RmInitPrivateState(nv_state_t *);

enum { REGS = 16 << 20, FB_MIB = 8192 };
static NvU64 stack[64];
/* The states of the two kinds of node. */
nv_state_t referee_control, referee_card;
#define control referee_control
#define card referee_card
static NvU32 *regs;
/* Memory of the system, whose physical address is its address here. */
#define RAM 0x1000000000ull
static NvU64 used;
struct pages { NvU64 at, n; };
static struct pages *take(NvU64 n, NvU64 align) { struct pages *p = malloc(sizeof *p); if (align < 65536) align = 65536; used = (used + align - 1) & ~(align - 1); p->at = RAM + used; p->n = n; used += (n + 0xffff) & ~0xffffull; return p; }
NV_STATUS nv_alloc_pages(nv_state_t *nv, NvU32 count, NvU64 size, NvBool contiguous, NvU32 cache, NvBool zeroed, NvBool open, NvS32 node, NvU64 *pte, void **private) {
    struct pages *p = take((NvU64)count << 12, size);
    (void)nv; (void)cache; (void)zeroed; (void)open; (void)node;
    for (NvU32 i = 0; i < (contiguous ? 1 : count); i++) pte[i] = p->at + ((NvU64)i << 12);
    *private = p;
    return NV_OK;
}
NV_STATUS nv_free_pages(nv_state_t *nv, NvU32 n, NvBool c, NvU32 t, void *p) { (void)nv; (void)n; (void)c; (void)t; free(p); return NV_OK; }
void *nv_alloc_kernel_mapping(nv_state_t *nv, void *private, NvU64 page, NvU32 at, NvU64 n, void **to) { (void)nv; (void)n; *to = NULL; return (void *)(((struct pages *)private)->at + (page << 12) + at); }
/* The address by which a program's mapping is known. */
NV_STATUS nv_alloc_user_mapping(nv_state_t *nv, void *private, NvU64 page, NvU32 at, NvU64 n, NvU32 protect, NvU64 *address, void **to) { (void)nv; (void)n; (void)protect; *address = ((struct pages *)private)->at + (page << 12) + at; *to = NULL; return NV_OK; }
NvU64 nv_get_kern_phys_address(NvU64 a) { return a; }
NV_STATUS nv_dma_map_alloc(nv_dma_device_t *d, NvU64 n, NvU64 *a, NvBool c, void **p) { (void)d; (void)n; (void)a; (void)c; (void)p; return NV_OK; }


/* What the kernel's part of the driver answers. */
NvBool nv_is_gpu_accessible(nv_state_t *nv) { (void)nv; return NV_TRUE; }
NvBool nv_match_gpu_os_info(nv_state_t *nv, void *o) { (void)nv; (void)o; return NV_TRUE; }
nv_state_t *nv_get_adapter_state(NvU32 d, NvU8 b, NvU8 s) { (void)d; (void)b; (void)s; return &card; }
nv_state_t *nv_get_state_by_pci(void) { return &card; }
void *os_map_kernel_space(NvU64 at, NvU64 n, NvU32 m) { (void)n; (void)m; if (at >= RAM) return (void *)at; return at >= 0xf0000000 && at < 0xf0000000 + REGS ? (char *)regs + (at - 0xf0000000) : NULL; }
void *os_pci_init_handle(NvU32 d, NvU8 b, NvU8 s, NvU8 f, NvU16 *v, NvU16 *i) { (void)d; (void)b; (void)s; (void)f; if (v) *v = 0x10de; if (i) *i = 0x2204; return &card; }

/* The firmware, as far as it is asked: everything is well. */
NV_STATUS kgspInitRm_IMPL(OBJGPU *g, KernelGsp *k, GSP_FIRMWARE *f) { (void)g; (void)k; (void)f; return NV_OK; }
static void engine(NV2080_CTRL_FIFO_DEVICE_ENTRY *e, NvU32 description, NvU32 tag, NvU32 type, NvU32 list, NvU32 fault, const char *name) {
    e->engineData[ENGINE_INFO_TYPE_ENG_DESC] = description; e->engineData[ENGINE_INFO_TYPE_FIFO_TAG] = tag; e->engineData[ENGINE_INFO_TYPE_RM_ENGINE_TYPE] = type;
    e->engineData[ENGINE_INFO_TYPE_RUNLIST] = list; e->engineData[ENGINE_INFO_TYPE_MMU_FAULT_ID] = fault; e->engineData[ENGINE_INFO_TYPE_IS_HOST_DRIVEN_ENGINE] = 1;
    e->numPbdmas = 1; e->pbdmaIds[0] = list; e->pbdmaFaultIds[0] = 32 + list; strcpy(e->engineName, name);
}
static void engines(NV2080_CTRL_FIFO_GET_DEVICE_INFO_TABLE_PARAMS *p) {
    p->numEntries = 2;
    engine(&p->entries[0], ENG_GR(0), 0, RM_ENGINE_TYPE_GR0, 0, 64, "GRAPHICS");
    engine(&p->entries[1], ENG_CE(2), 1, RM_ENGINE_TYPE_COPY2, 1, 15, "CE2");
}
NV_STATUS rpcRmApiControl_GSP(RM_API *a, NvHandle c, NvHandle o, NvU32 cmd, void *p, NvU32 n) {
    (void)a; (void)c; (void)o;
    if (cmd >> 8 == 0x20800a || cmd == 0x20801112) memset(p, 0, n);
    if (cmd == NV2080_CTRL_CMD_INTERNAL_MEMSYS_GET_STATIC_CONFIG) {
        NV2080_CTRL_INTERNAL_MEMSYS_GET_STATIC_CONFIG_PARAMS *m = p;
        m->l2CacheSize = 6 << 20; m->bFbpaPresent = NV_TRUE; m->comprPageSize = 256 << 10; m->comprPageShift = 18; m->ltcCount = 12; m->ltsPerLtcCount = 4;
    }
    if (cmd == NV2080_CTRL_CMD_INTERNAL_INTR_GET_KERNEL_TABLE) {
        NV2080_CTRL_INTERNAL_INTR_GET_KERNEL_TABLE_PARAMS *t = p;
        for (int c = 0; c < NV2080_INTR_CATEGORY_ENUM_COUNT; c++) t->subtreeMap[c].subtreeMask = c == NV2080_INTR_CATEGORY_UVM_OWNED ? 4 : 8;
        for (t->tableLen = 0; t->tableLen < 100; t->tableLen++) {
            t->table[t->tableLen].engineIdx = t->tableLen + 1; t->table[t->tableLen].vectorStall = 128 + t->tableLen; t->table[t->tableLen].vectorNonStall = t->tableLen;
        }
    }
    if (cmd == NV2080_CTRL_CMD_BUS_GET_PCI_BAR_INFO) {
        NV2080_CTRL_BUS_GET_PCI_BAR_INFO_PARAMS *b = p;
        memset(b, 0, n); b->pciBarCount = 3;
        for (int i = 0; i < 3; i++) {
            b->pciBarInfo[i].barSizeBytes = card.bars[i].size; b->pciBarInfo[i].barSize = card.bars[i].size >> 20; b->pciBarInfo[i].barOffset = card.bars[i].cpu_address;
        }
    }
    if (cmd == NV2080_CTRL_CMD_INTERNAL_GET_DEVICE_INFO_TABLE) {
        NV2080_CTRL_INTERNAL_GET_DEVICE_INFO_TABLE_PARAMS *t = p;
        t->numEntries = 2;
        t->deviceInfoTable[0].faultId = 64; t->deviceInfoTable[0].isEngine = 1;
        t->deviceInfoTable[1].faultId = 15; t->deviceInfoTable[1].typeEnum = 19; t->deviceInfoTable[1].instanceId = 2; t->deviceInfoTable[1].isEngine = 1;
    }
    if (cmd == NV2080_CTRL_CMD_CE_GET_FAULT_METHOD_BUFFER_SIZE) *(NvU32 *)p = 4096;
    if (cmd == NV2080_CTRL_CMD_INTERNAL_STATIC_KGR_GET_INFO)
        for (int e = 0; e < NV2080_CTRL_INTERNAL_GR_MAX_ENGINES; e++) ((NV2080_CTRL_INTERNAL_STATIC_GR_GET_INFO_PARAMS *)p)->engineInfo[e].infoList[NV0080_CTRL_GR_INFO_INDEX_MAX_SUBCONTEXT_COUNT].data = 64;
    if (cmd == 0x20800a4b) return NV_ERR_NOT_SUPPORTED; /* no display */
    if (cmd == NV2080_CTRL_CMD_INTERNAL_FIFO_GET_NUM_CHANNELS) ((NV2080_CTRL_INTERNAL_FIFO_GET_NUM_CHANNELS_PARAMS *)p)->numChannels = 2048;
    if (cmd == NV2080_CTRL_CMD_FIFO_GET_DEVICE_INFO_TABLE) engines(p);
    return NV_OK;
}
NV_STATUS rpcRmApiAlloc_GSP(RM_API *a, NvHandle c, NvHandle p, NvHandle o, NvU32 class, void *x, NvU32 n) {
    (void)a; (void)c; (void)p; (void)o; (void)x;
    return NV_OK;
}
NV_STATUS rpcRmApiFree_GSP(RM_API *a, NvHandle c, NvHandle o) { (void)a; (void)c; (void)o; return NV_OK; }
NV_STATUS rpcRmApiDupObject_GSP(RM_API *a, NvHandle c, NvHandle p, NvHandle *d, NvHandle s, NvHandle o, NvU32 f) { (void)a; (void)c; (void)p; (void)d; (void)s; (void)o; (void)f; return NV_OK; }

NV_STATUS rpcUpdateBarPde_v15_00(OBJGPU *g, OBJRPC *r, NV_RPC_UPDATE_PDE_BAR_TYPE b, NvU64 e, NvU64 l) { (void)g; (void)r; (void)b; (void)e; (void)l; return NV_OK; }
/* No MMU is played: what is written through the second window is not read through the first. */
NV_STATUS kbusVerifyBar2_GM107(OBJGPU *g, KernelBus *k, MEMORY_DESCRIPTOR *m, NvU8 *c, NvU64 o, NvU64 n) { (void)g; (void)k; (void)m; (void)c; (void)o; (void)n; return NV_OK; }
/* Nothing is scrubbed: there is no engine that would. */
NV_STATUS memmgrScrubHandlePostSchedulingEnable_GP100(OBJGPU *g, MemoryManager *m) { (void)g; (void)m; return NV_OK; }
NV_STATUS kbusVerifyBar2_GH100(OBJGPU *g, KernelBus *k, MEMORY_DESCRIPTOR *m, NvU8 *c, NvU64 o, NvU64 n) { (void)g; (void)k; (void)m; (void)c; (void)o; (void)n; return NV_OK; }
NV_STATUS kbusVerifyBar2_GB202(OBJGPU *g, KernelBus *k, MEMORY_DESCRIPTOR *m, NvU8 *c, NvU64 o, NvU64 n) { (void)g; (void)k; (void)m; (void)c; (void)o; (void)n; return NV_OK; }
/* A TLB is invalid at once. */
NV_STATUS kgmmuCheckPendingInvalidates_TU102(OBJGPU *g, KernelGmmu *k, RMTIMEOUT *t) { (void)g; (void)k; (void)t; return NV_OK; }
NV_STATUS memmgrInitCeUtils_IMPL(MemoryManager *m, NvBool f, NvBool v) { (void)m; (void)f; (void)v; return NV_OK; }
NvU32 referee_instance;
#define instance referee_instance
static NV_STATUS attach(void) {
    GPUATTACHARG a; NvU32 device; NV_STATUS s;
    if ((s = gpumgrAllocGpuInstance(&instance))) return s;
    if ((s = rmGpuLockAlloc(instance))) return s;
    if ((s = gpumgrCreateDevice(&device, NVBIT(instance), NULL))) return s;
    memset(&a, 0, sizeof a);
    a.fbPhysAddr = card.fb->cpu_address; a.fbLength = card.fb->size;
    a.devPhysAddr = card.regs->cpu_address; a.regBaseAddr = (GPUHWREG *)regs; a.regLength = REGS;
    a.instPhysAddr = card.bars[NV_GPU_BAR_INDEX_IMEM].cpu_address; a.instLength = card.bars[NV_GPU_BAR_INDEX_IMEM].size;
    a.iovaspaceId = card.iovaspace_id; a.cpuNumaNodeId = card.cpu_numa_node_id;
    a.nvDomainBusDeviceFunc = (NvU64)card.pci_info.domain << 32 | card.pci_info.bus << 8 | card.pci_info.slot;
    a.bRequestFwClientRm = NV_TRUE; a.pOsAttachArg = &card;
    s = gpumgrAttachGpu(instance, &a);
    if (!s) gpumgrSetParentGPU(gpumgrGetGpu(instance), gpumgrGetGpu(instance));
    return s;
}

static NV_STATUS start(void) {
    THREAD_STATE_NODE thread;
    NV_STATUS s;
    threadStateInit(&thread, THREAD_STATE_FLAGS_NONE);
    if ((s = rmapiLockAcquire(RMAPI_LOCK_FLAGS_NONE, RM_LOCK_MODULES_INIT))) return s;
    gpumgrThreadEnableExpandedGpuVisibility();
    if ((s = attach())) return s;
    OBJGPU *g = gpumgrGetGpu(instance);
    GspStaticConfigInfo *i = GPU_GET_GSP_STATIC_INFO(g);
    i->fb_length = (NvU64)FB_MIB << 20;
    i->fbRegionInfoParams.numFBRegions = 1;
    i->fbRegionInfoParams.fbRegion[0].limit = i->fb_length - 1; i->fbRegionInfoParams.fbRegion[0].performance = 1;
    i->fbRegionInfoParams.fbRegion[0].supportCompressed = i->fbRegionInfoParams.fbRegion[0].supportISO = NV_TRUE;
    i->hInternalClient = 0xc1e00005; i->hInternalDevice = 0xabcd0080; i->hInternalSubdevice = 0xabcd2080;
    if ((s = gpumgrStatePreInitGpu(g))) return s;
    GPU_GET_MEMORY_MANAGER(g)->bScrubOnFreeEnabled = NV_FALSE;
    if ((s = gpumgrStateInitGpu(g)) || (s = gpumgrStateLoadGpu(g, GPU_STATE_DEFAULT))) return s;
    g->setProperty(g, PDB_PROP_GPU_STATE_INITIALIZED, NV_TRUE);
    gpumgrThreadDisableExpandedGpuVisibility();
    rmapiLockRelease();
    threadStateFree(&thread, THREAD_STATE_FLAGS_NONE);
    return NV_OK;
}

/* Starts RM with a card of a chip, by the register that says which it is (NV_PMC_BOOT_42). */
NV_STATUS referee_start_card(NvU32 boot42) {
    regs = calloc(1, REGS);
    /* Addresses of the host and of the card's windows are what they are here. */
    static const NvU64 windows[][2] = {{RAM, 64ull << 30}, {0xe000000000, 256 << 20}, {0xd000000000, 256 << 20}};
    for (int i = 0; i < 3; i++)
        if (mmap((void *)windows[i][0], windows[i][1], PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED) { perror("mmap"); return ~0u; }
    control.flags = NV_FLAG_CONTROL;
    os_alloc_spinlock(&control.event_spinlock); os_alloc_spinlock(&card.event_spinlock);
    card.pci_info.bus = 1; card.pci_info.vendor_id = 0x10de; card.pci_info.device_id = 0x2204;
    card.regs = &card.bars[NV_GPU_BAR_INDEX_REGS]; card.fb = &card.bars[NV_GPU_BAR_INDEX_FB];
    card.regs->cpu_address = 0xf0000000; card.regs->size = REGS; card.regs->map = (void *)regs;
    card.fb->cpu_address = windows[1][0]; card.fb->size = windows[1][1];
    card.bars[NV_GPU_BAR_INDEX_IMEM].cpu_address = windows[2][0]; card.bars[NV_GPU_BAR_INDEX_IMEM].size = 32 << 20;
    card.request_fw_client_rm = NV_TRUE;
    card.flags = NV_FLAG_OPEN;
    regs[NV_PMC_BOOT_42 / 4] = boot42;
    /* The older register has the chip in bits 20 to 29 too. */
    regs[NV_PMC_BOOT_0 / 4] = (boot42 & 0x3ff00000) | 0xa1;
    if (!rm_init_rm((void *)stack)) return ~0u;
    rm_init_private_state((void *)stack, &card);
    return start();
}

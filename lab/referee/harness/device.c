/* Memory that a user allocates on the invented card of card.c, and what it takes:
 *
 *   chip BOOT42                                         -> ready | no STATUS
 *   memory CLASS SIZE FLAGS ATTR ATTR2 ALIGNMENT OFFSET -> STATUS SIZE ALIGNMENT TAKEN   (hexadecimal; the memory is freed again)
 *
 * TAKEN is by how much less the card has free, in bytes.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include "nvtypes.h"
#include "nvos.h"
#include "nv.h"
#include "nv_escape.h"
#include "gpu/gpu.h"
#include "gpu_mgr/gpu_mgr.h"
#include "gpu/mem_mgr/mem_mgr.h"
#include "gpu/mem_mgr/heap.h"
#include "class/cl0000.h"
#include "class/cl0080.h"
#include "class/cl2080.h"

extern int referee_log, referee_admin;
extern NvU32 referee_pid, referee_user, referee_instance;
extern nv_state_t referee_control, referee_card;
NV_STATUS referee_start_card(NvU32 boot42);

static NvU64 stack[64];
static nv_file_private_t control_file, card_file;
nv_state_t *nv_get_ctl_state(void) { return &referee_control; }
nv_file_private_t *nv_get_file_private(NvS32 fd, NvBool c, void **p) { *p = NULL; (void)fd; return c ? &control_file : &card_file; }
void nv_put_file_private(void *p) { (void)p; }

static NV_STATUS alloc(NvBool on_card, NvHandle root, NvHandle parent, NvHandle *object, NvU32 class, void *p, NvU32 n) {
    NVOS21_PARAMETERS a = {.hRoot = root, .hObjectParent = parent, .hObjectNew = *object, .hClass = class, .pAllocParms = NV_PTR_TO_NvP64(p), .paramsSize = n};
    NV_STATUS s = rm_ioctl((void *)stack, on_card ? &referee_card : &referee_control, on_card ? &card_file : &control_file, NV_ESC_RM_ALLOC, &a, sizeof a);
    if (s) return s;
    *object = a.hObjectNew;
    return a.status;
}

static NvU64 free_bytes(void) {
    NvU64 n = 0;
    pmaGetFreeMemory(GPU_GET_HEAP(gpumgrGetGpu(referee_instance))->pPmaObject, &n);
    return n;
}

static NvHandle client, device = 0xd0, subdevice = 0xd1;

/* What is asked of the caller's own privilege is asked of a user. */
static NV_STATUS open_card(void) {
    NV_STATUS s;
    NV0080_ALLOC_PARAMETERS d = {0};
    NV2080_ALLOC_PARAMETERS u = {0};
    referee_pid = 100; referee_user = 1000; referee_admin = 0;
    if ((s = alloc(0, 0, 0, &client, NV01_ROOT_CLIENT, NULL, 0)) || (s = alloc(0, client, client, &device, NV01_DEVICE_0, &d, sizeof d))) return s;
    return alloc(0, client, device, &subdevice, NV20_SUBDEVICE_0, &u, sizeof u);
}

static void memory(NvU32 class, NvU64 size, NvU32 flags, NvU32 attr, NvU32 attr2, NvU64 alignment, NvU64 offset) {
    NV_MEMORY_ALLOCATION_PARAMS m = {.owner = 1, .flags = flags, .attr = attr, .attr2 = attr2, .size = size, .alignment = alignment, .offset = offset};
    NvHandle o = 0x1000;
    NvU64 before = free_bytes();
    NV_STATUS s = alloc(0, client, device, &o, class, &m, sizeof m);
    NvU64 after = free_bytes();
    printf("%x %llx %llx %llx\n", s, m.size, m.alignment, before - after); fflush(stdout);
    if (s) return;
    NVOS00_PARAMETERS f = {.hRoot = client, .hObjectParent = device, .hObjectOld = o};
    rm_ioctl((void *)stack, &referee_control, &control_file, NV_ESC_RM_FREE, &f, sizeof f);
}

int main(void) {
    char line[256];
    referee_log = getenv("REFEREE_LOG") != NULL;
    while (fgets(line, sizeof line, stdin)) {
        unsigned boot42, class, flags, attr, attr2; unsigned long long size, alignment, offset;
        if (sscanf(line, "chip %x", &boot42) == 1) {
            NV_STATUS s = referee_start_card(boot42);
            if (!s) s = open_card();
            if (s) printf("no %x\n", s); else puts("ready");
            fflush(stdout);
        } else if (sscanf(line, "memory %x %llx %x %x %x %llx %llx", &class, &size, &flags, &attr, &attr2, &alignment, &offset) == 7) memory(class, size, flags, attr, attr2, alignment, offset);
        else { puts("what"); fflush(stdout); }
    }
    return 0;
}

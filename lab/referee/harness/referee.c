/* Plays sequences of calls against NVIDIA's resource server and says what came of them.
 *
 * The resource server, its libraries and its headers come from a source tree of the open kernel modules that is at hand when this is
 * compiled; nothing of it is in this file. Ours, and so not judged, are: the classes, which may be below which and when that is asked (serverAllocResourceUnderLock, rmapi/alloc_free.c), that a client is its file's
 * alone (rmclientValidate, rmapi/client.c; whether a call asks is the resource server's), that a policy by process compares the processes that made the two clients (as cliresShareCallback of rmapi/client_resource.c), that a mapping is
 * found for its process alone (serverutilMappingFilterCurrentUserProc, rs_utils.c), and which objects a mapping may name as its
 * device (serverMap_Prologue, rmapi/mapping_cpu.c).
 *
 * In, a call a line (PID is PROCESS/FILE, decimal; a HANDLE is #ID, what call ID has made, or 0xHEX):
 *
 *     ID client PID
 *     ID alloc PID CLIENT PARENT HANDLE device|subdevice|memory|plain
 *     ID dup PID CLIENT OBJECT TO-CLIENT TO-PARENT HANDLE
 *     ID share PID CLIENT OBJECT TYPE TARGET RIGHTS ACTION
 *     ID free PID CLIENT OBJECT
 *     ID map PID CLIENT DEVICE MEMORY
 *     ID unmap PID CLIENT DEVICE MEMORY MAPPING
 *     end
 *
 * Out: `ID STATUS [HANDLE]` a call, then the tree (`client ID`, and below it `HANDLE PARENT CLASS RIGHTS MAPPINGS` by handle, the client
 * itself as `root`), then `end`. `ID STATUS broken` ends a sequence whose call has left locks taken or a list damaged, `died SIGNAL` one that
 * has killed the process. Each sequence has a process of its own.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "resserv/resserv.h"
#include "resserv/rs_server.h"
#include "resserv/rs_client.h"
#include "resserv/rs_resource.h"
#include "resserv/rs_access_map.h"
#include "class/cl0000.h"
#include "tls/tls.h"

extern long referee_locks, referee_asserts;
extern int referee_log;
int g_debugLevel = 0;

enum { MOST_CALLS = 4096, UNMADE = 0x0bad0bad, PAGE = 4096 };
/* Rights that the resource server keeps by itself: the others ask RM's callbacks about privilege. */
enum { KEPT_RIGHTS = 1 << RS_ACCESS_DUP_OBJECT | 1 << RS_ACCESS_DEBUG };

static NvU32 caller, file;

/* Classes. */
enum Class { ROOT = 1, DEVICE, SUBDEVICE, MEMORY, PLAIN, CLASSES };
static const char *class_names[CLASSES] = {"", "root", "device", "subdevice", "memory", "plain"};
struct RS_RESOURCE_DESC { NvU32 external, internal; };
static RS_RESOURCE_DESC descriptions[] = {{NV01_ROOT, ROOT}, {0x80, DEVICE}, {0x2080, SUBDEVICE}, {0x3e, MEMORY}, {0x2, PLAIN}};
RS_RESOURCE_DESC *RsResInfoByExternalClassId(NvU32 class) {
    for (unsigned i = 0; i < sizeof descriptions / sizeof *descriptions; i++)
        if (descriptions[i].external == class) return &descriptions[i];
    return NULL;
}
NvU32 RsResInfoGetInternalClassId(const RS_RESOURCE_DESC *d) { return d ? d->internal : 0; }
static NvU32 external_of(enum Class class) { return descriptions[class - 1].external; }
static NvBool may_be_below(enum Class class, enum Class parent) {
    switch (class) {
    case DEVICE: return parent == ROOT;
    case SUBDEVICE: case MEMORY: return parent == DEVICE;
    default: return NV_TRUE;
    }
}
NV_STATUS serverAllocApiCopyIn(RsServer *s, RS_RES_ALLOC_PARAMS_INTERNAL *p, API_STATE **a) { (void)s; (void)p; *a = NULL; return NV_OK; }
NV_STATUS serverAllocApiCopyOut(RsServer *s, NV_STATUS status, API_STATE *a) { (void)s; (void)a; return status; }

/* Clients: who made them. */
static struct { NvHandle handle; NvU32 pid, file; int id; } clients[MOST_CALLS];
static int clients_made;
static NvU32 pid_of(NvHandle handle) {
    for (int i = clients_made; i-- > 0;) if (clients[i].handle == handle) return clients[i].pid;
    return 0;
}
static NvU32 file_of(NvHandle handle) {
    for (int i = clients_made; i-- > 0;) if (clients[i].handle == handle) return clients[i].file;
    return 0;
}
static NV_STATUS validate(RsClient *c, const API_SECURITY_INFO *s) { (void)s; return file_of(c->hClient) == file ? NV_OK : NV_ERR_INVALID_CLIENT; }
NV_STATUS resservClientFactory(PORT_MEM_ALLOCATOR *a, RS_RES_ALLOC_PARAMS_INTERNAL *p, RsClient **made) {
    NV_STATUS status = __nvoc_objCreate_RsClient(made, NULL, 0, a, p);
    if (status) return status;
#if REFEREE_TABLE == 2
    static struct NVOC_METADATA__RsClient *table;
    if (!table) { table = malloc(sizeof *table); memcpy(table, (*made)->__nvoc_metadata_ptr, sizeof *table); }
    *(void **)&table->vtable.__clientValidate__ = (void *)validate;
    (*made)->__nvoc_metadata_ptr = table;
#elif REFEREE_TABLE == 1
    static struct NVOC_VTABLE__RsClient *table;
    if (!table) { table = malloc(sizeof *table); memcpy(table, (*made)->__nvoc_vtable, sizeof *table); }
    *(void **)&table->__clientValidate__ = (void *)validate;
    (*made)->__nvoc_vtable = table;
#else
    *(void **)&(*made)->__clientValidate__ = (void *)validate;
#endif
    return NV_OK;
}

/* Resources: RsResource with a few entries of its table replaced. */
static NvBool can_copy(RsResource *r) { (void)r; return NV_TRUE; }
static NvU64 next_address = 0x700000000000ull;
static NV_STATUS map(RsResource *r, CALL_CONTEXT *c, RS_CPU_MAP_PARAMS *p, RsCpuMapping *m) {
    (void)r; (void)c; (void)p;
    m->pLinearAddress = (NvP64)(next_address += 0x10000); m->processId = caller; return NV_OK;
}
/* As a user is answered by gpuresMap_IMPL (gpu_resource.c). */
static NV_STATUS map_registers(RsResource *r, CALL_CONTEXT *c, RS_CPU_MAP_PARAMS *p, RsCpuMapping *m) { (void)r; (void)c; (void)p; (void)m; return NV_ERR_INVALID_ARGUMENT; }
static NV_STATUS unmap(RsResource *r, CALL_CONTEXT *c, RsCpuMapping *m) { (void)r; (void)c; (void)m; return NV_OK; }
static NvBool share(RsResource *r, RsClient *with, RsResourceRef *parent, RS_SHARE_POLICY *policy) {
    if (policy->type == RS_SHARE_TYPE_PID) return pid_of(with->hClient) == pid_of(r->pResourceRef->pClient->hClient);
    return resShareCallback_IMPL(r, with, parent, policy);
}
static long orphans;
static void before_end(RsResource *r) {
    if (r->pResourceRef && multimapCountItems(&r->pResourceRef->childRefMap)) orphans++;
}
/* Where a resource's functions are: in the object until 550, in a table of its own in 570, below the metadata from 580 on. */
#if REFEREE_TABLE == 2
static struct NVOC_METADATA__RsResource *tables[CLASSES];
#define SET(slot, function) (*(void **)&tables[class]->vtable.slot = (void *)(function))
#elif REFEREE_TABLE == 1
static struct NVOC_VTABLE__RsResource *tables[CLASSES];
#define SET(slot, function) (*(void **)&tables[class]->slot = (void *)(function))
#else
#define SET(slot, function) (*(void **)&made->slot = (void *)(function))
#endif
static void dress(RsResource *made, enum Class class) {
#if REFEREE_TABLE == 2
    if (!tables[class]) {
        tables[class] = malloc(sizeof *tables[class]);
        memcpy(tables[class], made->__nvoc_metadata_ptr, sizeof *tables[class]);
    }
#elif REFEREE_TABLE == 1
    if (!tables[class]) {
        tables[class] = malloc(sizeof *tables[class]);
        memcpy(tables[class], made->__nvoc_vtable, sizeof *tables[class]);
    }
#endif
    SET(__resShareCallback__, share); SET(__resPreDestruct__, before_end);
    if (class == DEVICE) SET(__resMap__, map_registers);
    if (class == MEMORY) { SET(__resCanCopy__, can_copy); SET(__resMap__, map); SET(__resUnmap__, unmap); }
#if REFEREE_TABLE == 2
    made->__nvoc_metadata_ptr = tables[class];
#elif REFEREE_TABLE == 1
    made->__nvoc_vtable = tables[class];
#endif
}
/* Memory of the host, as the whole core with a card has it (memCopyConstruct_IMPL). */
static NV_STATUS copy_below(RsResourceRef *own, RsResourceRef *parent) {
    if (own->internalClassId == parent->internalClassId && (parent->internalClassId == DEVICE || parent->internalClassId == SUBDEVICE)) return NV_OK;
    return parent->internalClassId == ROOT || parent->internalClassId == MEMORY ? NV_ERR_INVALID_ARGUMENT : NV_ERR_INVALID_OBJECT_PARENT;
}
/* Of the one number that is asked for (subdeviceConstruct_IMPL). The new one is no child yet. */
static NvBool has_subdevice(RsResourceRef *device) {
    RsIndexSubmap *all = multimapFindSubmap(&device->childRefMap, SUBDEVICE);
    return all && multimapCountSubmapItems(&device->childRefMap, all) > 0;
}
NV_STATUS resservResourceFactory(PORT_MEM_ALLOCATOR *a, CALL_CONTEXT *c, RS_RES_ALLOC_PARAMS_INTERNAL *p, RsResource **made) {
    (void)a;
    RS_RESOURCE_DESC *d = RsResInfoByExternalClassId(p->externalClassId);
    if (!d) return NV_ERR_INVALID_CLASS;
    RsResourceRef *parent = c->pResourceRef->pParentRef;
    if (p->pSrcRef) { NV_STATUS status = copy_below(p->pSrcRef->pParentRef, parent); if (status) return status; }
    if (d->internal == SUBDEVICE && has_subdevice(parent)) return NV_ERR_INSUFFICIENT_RESOURCES;
    if (parent && parent->internalClassId == ROOT && d->internal == PLAIN) return NV_ERR_OBJECT_NOT_FOUND;
    NV_STATUS status = __nvoc_objCreate_RsResource(made, NULL, 0, c, p);
    if (status) return status;
    dress(*made, d->internal);
    return NV_OK;
}

/* Calls. */
static RsServer server;
static RS_LOCK_INFO lock;
static API_SECURITY_INFO *user(void) {
    static API_SECURITY_INFO s;
    memset(&s, 0, sizeof s); s.privLevel = RS_PRIV_LEVEL_USER; s.paramLocation = PARAM_LOCATION_KERNEL;
    memset(&lock, 0, sizeof lock);
    return &s;
}
static RsResourceRef *found(NvHandle client, NvHandle object, RsClient **of) {
    RsClient *c; RsResourceRef *r;
    if (serverGetClientUnderLock(&server, client, &c)) return NULL;
    if (of) *of = c;
    return clientGetResourceRef(c, object, &r) ? NULL : r;
}
/* As serverAllocResourceUnderLock of rmapi/alloc_free.c has it, which RS_STANDALONE leaves out: the parent is asked before a handle is made up. */
static NV_STATUS parent_of_alloc(NvHandle client, NvHandle parent, NvHandle handle, enum Class class) {
    RsResourceRef *r;
    if (class == ROOT || !found(client, client, NULL) || file_of(client) != file) return NV_OK; /* the resource server's own answer comes first */
    if (handle == client) return class == PLAIN ? NV_OK : NV_ERR_INVALID_OBJECT_PARENT;
    r = found(client, parent, NULL);
    if (!r) return NV_ERR_OBJECT_NOT_FOUND;
    return may_be_below(class, r->internalClassId) ? NV_OK : NV_ERR_INVALID_OBJECT_PARENT;
}
static NV_STATUS do_alloc(NvHandle client, NvHandle parent, NvHandle *handle, NvU32 class) {
    RS_RES_ALLOC_PARAMS p; memset(&p, 0, sizeof p);
    NV_STATUS refused = parent_of_alloc(client, parent, *handle, RsResInfoByExternalClassId(class)->internal);
    if (refused) return refused;
    p.hClient = client; p.hParent = parent; p.hResource = *handle; p.externalClassId = class; p.pSecInfo = user(); p.pLockInfo = &lock;
    NV_STATUS status = serverAllocResource(&server, &p);
    if (!status) *handle = class == NV01_ROOT ? p.hClient : p.hResource;
    return status;
}
static NV_STATUS do_dup(NvHandle client, NvHandle object, NvHandle to, NvHandle parent, NvHandle *handle) {
    RS_RES_DUP_PARAMS p; memset(&p, 0, sizeof p);
    p.hClientSrc = client; p.hResourceSrc = object; p.hClientDst = to; p.hParentDst = parent; p.hResourceDst = *handle;
    p.pSecInfo = user(); p.pLockInfo = &lock;
    NV_STATUS status = serverCopyResource(&server, &p);
    if (!status) *handle = p.hResourceDst;
    return status;
}
static NV_STATUS do_share(NvHandle client, NvHandle object, NvU32 type, NvHandle target, NvU32 rights, NvU32 action) {
    RS_RES_SHARE_PARAMS p; RS_SHARE_POLICY policy; memset(&p, 0, sizeof p); memset(&policy, 0, sizeof policy);
    policy.type = type; policy.target = target; policy.action = action; policy.accessMask.limbs[0] = rights;
    p.hClient = client; p.hResource = object; p.pSharePolicy = &policy; p.pSecInfo = user(); p.pLockInfo = &lock;
    return serverShareResourceAccess(&server, &p);
}
static NV_STATUS do_free(NvHandle client, NvHandle object) {
    RS_RES_FREE_PARAMS p; memset(&p, 0, sizeof p);
    p.hClient = client; p.hResource = object; p.pSecInfo = user(); p.pLockInfo = &lock;
    return serverFreeResourceTree(&server, &p);
}
/* As serverMap_Prologue and serverUnmap_Prologue have it, which RS_STANDALONE leaves out. */
static NV_STATUS device_of_mapping(NvHandle client, NvHandle device, NvHandle memory) {
    RsResourceRef *r = found(client, memory, NULL), *context;
    if (!r || file_of(client) != file) return NV_OK; /* the resource server's own answer comes first */
    NvHandle parent = r->pParentRef ? r->pParentRef->hResource : client;
    if (device == client) return parent == client ? NV_OK : NV_ERR_INVALID_OBJECT_PARENT;
    if (parent == client) return NV_ERR_INVALID_OBJECT_PARENT;
    context = found(client, device, NULL);
    if (!context) return NV_ERR_OBJECT_NOT_FOUND;
    return context->internalClassId == DEVICE || context->internalClassId == SUBDEVICE ? NV_OK : NV_ERR_INVALID_OBJECT_PARENT;
}
static NV_STATUS do_unmap(NvHandle client, NvHandle device, NvHandle memory, NvU64 address);
static NV_STATUS do_map(NvHandle client, NvHandle device, NvHandle memory, NvP64 *address) {
    RS_CPU_MAP_PARAMS p; memset(&p, 0, sizeof p);
    NV_STATUS status = device_of_mapping(client, device, memory);
    if (status) return status;
    p.hClient = client; p.hDevice = p.hContext = device; p.hMemory = memory; p.length = PAGE; p.ppCpuVirtAddr = address;
    p.pSecInfo = user(); p.pLockInfo = &lock;
    status = serverMap(&server, client, memory, &p);
    if (status || pid_of(client) == caller) return status;
    /* As rm_create_mmap_context (osapi.c) and the escape that calls it. */
    do_unmap(client, device, memory, (NvU64)*address);
    return NV_ERR_INVALID_CLIENT;
}
static NvBool is_callers(RsCpuMapping *m) { return m->processId == caller; }
static NV_STATUS do_unmap(NvHandle client, NvHandle device, NvHandle memory, NvU64 address) {
    RS_CPU_UNMAP_PARAMS p; memset(&p, 0, sizeof p);
    NV_STATUS status = device_of_mapping(client, device, memory);
    if (status) return status;
    p.hClient = client; p.hDevice = p.hContext = device; p.hMemory = memory; p.pLinearAddress = (NvP64)address; p.fnFilter = is_callers;
    p.pSecInfo = user(); p.pLockInfo = &lock;
    return serverUnmap(&server, client, memory, &p);
}

/* A sequence. */
static char *lines[MOST_CALLS];
static int count_of_lines;
static struct { int id; NvU64 made; } made[MOST_CALLS];
static int count_made;
static void note(int id, NvU64 value) { made[count_made].id = id; made[count_made++].made = value; }
static NvU64 handle(const char *word) {
    if (*word != '#') return strtoull(word, NULL, 0);
    for (int i = count_made; i-- > 0;) if (made[i].id == atoi(word + 1)) return made[i].made;
    return UNMADE;
}
static enum Class class_of(const char *word) {
    for (int i = DEVICE; i < CLASSES; i++) if (!strcmp(word, class_names[i])) return i;
    fprintf(stderr, "no class %s\n", word); exit(2);
}
/* Whether an object's list of mappings that have named it as their device is not what these mappings say. */
static NvBool is_damaged(NvHandle client, NvHandle object) {
    RsClient *c; RsResourceRef *r = found(client, object, &c); NvU64 mappings = 0;
    if (!r) return NV_FALSE;
    RsRefMapIter it = mapIterAll(&c->resourceMap);
    while (mapIterNext(&it)) {
        RsResourceRef *mapped = it.pValue;
        RsCpuMappingListIter of = listIterAll(&mapped->cpuMappings);
        while (listIterNext(&of)) if (of.pValue->pContextRef == r && mapped != r && !refHasAncestor(mapped, r)) mappings++;
    }
    return listCount(&r->backRefs) != mappings;
}
static void play(char *line) {
    char *w[10] = {"", "", "", "", "", "", "", "", "", ""}; int n = 0;
    for (char *s = strtok(line, " \n"); s && n < 10; s = strtok(NULL, " \n")) w[n++] = s;
    int id = atoi(w[0]); NvU64 got = 0; NvHandle h; NV_STATUS status; NvBool broken = NV_FALSE;
    caller = atoi(w[2]); file = strchr(w[2], '/') ? atoi(strchr(w[2], '/') + 1) : 0; orphans = 0;
    if (!strcmp(w[1], "client")) {
        h = 0; status = do_alloc(0, 0, &h, NV01_ROOT);
        if (!status) { note(id, h); clients[clients_made].handle = h; clients[clients_made].pid = caller; clients[clients_made].file = file; clients[clients_made++].id = id; }
    } else if (!strcmp(w[1], "alloc")) {
        h = handle(w[5]); status = do_alloc(handle(w[3]), handle(w[4]), &h, external_of(class_of(w[6])));
        if (!status) note(id, got = h);
    } else if (!strcmp(w[1], "dup")) {
        h = handle(w[7]); status = do_dup(handle(w[3]), handle(w[4]), handle(w[5]), handle(w[6]), &h);
        if (!status) note(id, got = h);
    } else if (!strcmp(w[1], "share")) {
        status = do_share(handle(w[3]), handle(w[4]), atoi(w[5]), handle(w[6]), atoi(w[7]), atoi(w[8]));
    } else if (!strcmp(w[1], "free")) {
        status = do_free(handle(w[3]), handle(w[4]));
    } else if (!strcmp(w[1], "map")) {
        NvP64 address = 0; status = do_map(handle(w[3]), handle(w[4]), handle(w[5]), &address);
        if (!status) note(id, (NvU64)address);
        broken = is_damaged(handle(w[3]), handle(w[4]));
    } else if (!strcmp(w[1], "unmap")) {
        status = do_unmap(handle(w[3]), handle(w[4]), handle(w[5]), handle(w[6]));
        broken = is_damaged(handle(w[3]), handle(w[4]));
    } else { fprintf(stderr, "no call %s\n", w[1]); exit(2); }
    printf("%d 0x%x", id, status);
    if (got) printf(" 0x%x", (NvU32)got);
    if (orphans) printf(" orphans");
    if (referee_locks) broken = NV_TRUE;
    if (broken) { printf(" broken\nend\n"); fflush(stdout); _exit(0); }
    putchar('\n'); fflush(stdout);
}
static int by_handle(const void *a, const void *b) {
    NvHandle x = (*(RsResourceRef *const *)a)->hResource, y = (*(RsResourceRef *const *)b)->hResource;
    return x < y ? -1 : x > y;
}
static void tree(void) {
    static RsResourceRef *all[MOST_CALLS]; NvU64 total = 0;
    for (int i = 0; i < clients_made; i++) {
        RsClient *c; int n = 0; NvHandle root = clients[i].handle;
        if (!found(root, root, &c)) continue;
        printf("client %d\n", clients[i].id);
        RsRefMapIter it = mapIterAll(&c->resourceMap);
        while (mapIterNext(&it)) all[n++] = it.pValue;
        qsort(all, n, sizeof *all, by_handle); total += n;
        for (int k = 0; k < n; k++) {
            RsResourceRef *r = all[k]; NvHandle parent = r->pParentRef ? r->pParentRef->hResource : 0;
            if (r->hResource == root) printf("root"); else printf("0x%x", r->hResource);
            if (parent == root) printf(" root"); else printf(" 0x%x", parent);
            printf(" %s %u %u\n", class_names[r->internalClassId], r->accessMask.limbs[0] & KEPT_RIGHTS, (NvU32)listCount(&r->cpuMappings));
        }
    }
    if (total != serverGetResourceCount(&server)) printf("counted %llu\n", (unsigned long long)serverGetResourceCount(&server));
    /* Nothing may be left once every client is freed. */
    for (int i = 0; i < clients_made; i++) {
        file = clients[i].file;
        if (found(clients[i].handle, clients[i].handle, NULL)) do_free(clients[i].handle, clients[i].handle);
    }
    if (serverGetResourceCount(&server)) printf("left %llu\n", (unsigned long long)serverGetResourceCount(&server));
    if (referee_asserts) printf("asserts %ld\n", referee_asserts);
    printf("end\n"); fflush(stdout);
}

int main(void) {
    char line[256];
    referee_log = getenv("REFEREE_LOG") != NULL;
    portInitialize(); tlsInitialize();
    if (serverConstruct(&server, RS_PRIV_LEVEL_HOST, 0)) { fprintf(stderr, "the resource server cannot be made\n"); return 2; }
    /* RM's own default (serverInitGlobalSharePolicies, rmapi/sharing.c). Its policies for MIG and for the fabric manager are left out. */
    RS_SHARE_POLICY policy; memset(&policy, 0, sizeof policy);
    policy.type = RS_SHARE_TYPE_PID; RS_ACCESS_MASK_ADD(&policy.accessMask, RS_ACCESS_DUP_OBJECT);
    listClear(&server.defaultInheritedSharePolicyList); listAppendValue(&server.defaultInheritedSharePolicyList, &policy);
    listClear(&server.globalInternalSharePolicyList);
    referee_locks = referee_asserts = 0;
    while (fgets(line, sizeof line, stdin)) {
        if (strncmp(line, "end", 3)) {
            if (count_of_lines == MOST_CALLS) { fprintf(stderr, "more than %d calls\n", MOST_CALLS); return 2; }
            lines[count_of_lines++] = strdup(line);
            continue;
        }
        fflush(stdout);
        pid_t child = fork();
        if (child < 0) { perror("fork"); return 2; }
        if (child == 0) { for (int i = 0; i < count_of_lines; i++) play(lines[i]); tree(); _exit(0); }
        int how = 0; waitpid(child, &how, 0);
        if (WIFSIGNALED(how)) { printf("died %d\nend\n", WTERMSIG(how)); fflush(stdout); }
        else if (WEXITSTATUS(how)) return 2;
        while (count_of_lines) free(lines[--count_of_lines]);
    }
    return 0;
}

/* Plays sequences of ioctls against the whole of NVIDIA's RM core, without a GPU or (REFEREE_CARD) with the invented one of card.c, and says what
 * came of them.
 *
 * The core and its headers come from a source tree of the open kernel modules that is at hand when this is compiled; nothing of it is in this
 * file. Calls go in where nvidia.ko hands them over (rm_ioctl), as those of a process and a user. Ours are the files: a number stands for an
 * open file, a control file or a card's, and nobody opens or closes more than this program.
 *
 * In, a line each (numbers decimal, bytes in hexadecimal):
 *
 *     begin CONTROL                                    a sequence, in a process of its own; files 1 to CONTROL, and those from 32 on, are control files
 *     ioctl FILE PID USER ADMIN NUMBER BYTES [IN@AT:BYTES]...
 *     close FILE PID USER ADMIN
 *     end
 *
 * The n-th IN@AT:BYTES is block n, whose address is put at AT of block IN. Out: `ready`, for each ioctl its return and its blocks, addresses
 * cleared, and ` broken` where it has left locks taken or a list damaged; `closed`; and for `end` the objects (`client HANDLE`, below it `HANDLE PARENT CLASS
 * RIGHTS MAPPINGS`) and `end`. A sequence that kills its process ends with `died SIGNAL`.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>
#include "nvtypes.h"
#include "nvos.h"
#include "resserv/resserv.h"
#include "resserv/rs_server.h"
#include "resserv/rs_client.h"
#include "resserv/rs_resource.h"
#include "core/locks.h"
#include "tls/tls.h"
#include "class/cl0000.h"
#include "nv.h"
#include "nv_escape.h"

extern long referee_locks, referee_asserts;
extern int referee_log, referee_admin;
extern NvU32 referee_pid, referee_user;
extern RsServer g_resServ;

enum { MOST_FILES = 64, MORE_CONTROL = 32, MOST_BLOCKS = 8, MOST_LINE = 1 << 20, MOST_CLIENTS = 4096, MOST_OBJECTS = 4096 };
/* Rights that no privilege decides about. */
enum { KEPT_RIGHTS = 1 << RS_ACCESS_DUP_OBJECT | 1 << RS_ACCESS_DEBUG };

static NvU64 stack[64];
#ifdef REFEREE_CARD
/* The card of card.c: a first line `chip BOOT42` starts RM with it. */
extern nv_state_t referee_control, referee_card;
NV_STATUS referee_start_card(NvU32 boot42);
#define control referee_control
#define card referee_card
#else
static nv_state_t control, card;
#endif
static int count_of_control;

/* Files, open as long as their number is, or as another one is that is registered with them. */
struct file { nv_file_private_t private; NvBool is_control; int references; struct file *released; };
static struct file *files[MOST_FILES], *released;
static struct file *file_at(int number) {
    if (!files[number]) {
        files[number] = calloc(1, sizeof *files[number]);
        files[number]->references = 1;
        files[number]->is_control = number <= count_of_control || number >= MORE_CONTROL;
    }
    return files[number];
}
static nv_state_t *node_of(struct file *f) { return f->is_control ? &control : &card; }
static void put_file(struct file *f) {
    if (--f->references) return;
    f->released = released; released = f;
}
/* As the kernel does once the call that has let go of a file is over. */
static void release_files(void) {
    while (released) {
        struct file *f = released; released = f->released;
        rm_cleanup_file_private((void *)stack, node_of(f), &f->private);
        if (f->private.ctl_nvfp_priv) nv_put_file_private(f->private.ctl_nvfp_priv);
        free(f);
    }
}

/* What nvidia.ko has besides RM. */
nv_state_t *nv_get_ctl_state(void) { return &control; }
nv_file_private_t *nv_get_file_private(NvS32 fd, NvBool needs_control, void **private) {
    if (fd <= 0 || fd >= MOST_FILES) return NULL;
    struct file *f = file_at(fd);
    if (!needs_control != !f->is_control) return NULL;
    f->references++;
    *private = f;
    return &f->private;
}
void nv_put_file_private(void *private) { put_file(private); }
void nv_post_event(nv_event_t *e, NvHandle o, NvU32 i, NvU32 a, NvU16 b, NvBool v) { (void)e; (void)o; (void)i; (void)a; (void)b; (void)v; }
NvS32 nv_get_event(nv_file_private_t *f, nv_event_t *e, NvU32 *more) { (void)f; (void)e; *more = 0; return 1; }
int nv_get_event_pending(void) { return 0; }

static struct { NvU8 *bytes; size_t length; int in; size_t at; } blocks[MOST_BLOCKS];
static int count_of_blocks;
static int digit(char c) { return c <= '9' ? c - '0' : c - 'a' + 10; }
static void add_block(const char *hex, int in, size_t at) {
    if (count_of_blocks == MOST_BLOCKS) { fprintf(stderr, "more than %d blocks\n", MOST_BLOCKS); exit(2); }
    size_t n = strlen(hex) / 2;
    blocks[count_of_blocks].bytes = malloc(n + 1); blocks[count_of_blocks].length = n; blocks[count_of_blocks].in = in; blocks[count_of_blocks].at = at;
    for (size_t i = 0; i < n; i++) blocks[count_of_blocks].bytes[i] = digit(hex[2 * i]) << 4 | digit(hex[2 * i + 1]);
    count_of_blocks++;
}
static void put_addresses(NvBool are_there) {
    for (int i = 1; i < count_of_blocks; i++) {
        NvU64 address = are_there ? (NvU64)(size_t)blocks[i].bytes : 0;
        if (blocks[i].at + 8 > blocks[blocks[i].in].length) { fprintf(stderr, "an address outside its block\n"); exit(2); }
        memcpy(blocks[blocks[i].in].bytes + blocks[i].at, &address, 8);
    }
}
static void called_by(const char *pid, const char *user, const char *admin) {
    referee_pid = atoi(pid); referee_user = atoi(user); referee_admin = atoi(admin);
}
static int file_of(const char *word) {
    int file = atoi(word);
    if (file < 0 || file >= MOST_FILES) { fprintf(stderr, "no file %s\n", word); exit(2); }
    return file;
}
/* The clients of the sequence. */
static NvHandle clients[MOST_CLIENTS];
static int count_of_clients;
static void note_client(NvHandle handle) {
    for (int i = 0; i < count_of_clients; i++) if (clients[i] == handle) return;
    if (count_of_clients == MOST_CLIENTS) { fprintf(stderr, "more than %d clients\n", MOST_CLIENTS); exit(2); }
    clients[count_of_clients++] = handle;
}
/* Whether a list of mappings that have named an object as their device is not what these mappings say. */
static NvBool is_damaged(void) {
    for (int i = 0; i < count_of_clients; i++) {
        RsClient *c;
        if (serverGetClientUnderLock(&g_resServ, clients[i], &c)) continue;
        RsRefMapIter it = mapIterAll(&c->resourceMap);
        while (mapIterNext(&it)) {
            RsResourceRef *r = it.pValue; NvU64 mappings = 0;
            RsRefMapIter others = mapIterAll(&c->resourceMap);
            while (mapIterNext(&others)) {
                RsResourceRef *mapped = others.pValue;
                RsCpuMappingListIter m = listIterAll(&mapped->cpuMappings);
                while (listIterNext(&m)) if (m.pValue->pContextRef == r && mapped != r && !refHasAncestor(mapped, r)) mappings++;
            }
            if (listCount(&r->backRefs) != mappings) return NV_TRUE;
        }
    }
    return NV_FALSE;
}
static NvBool is_broken(void) { return referee_locks || is_damaged(); }
#ifdef REFEREE_CARD
/* Each call is a thread's of its own: what a refused mapping leaves with its thread, no other call finds. */
static void end_thread(void) {
    while (tlsEntryGet(TLS_ENTRY_ID_MAPPING_CONTEXT) && tlsEntryRelease(TLS_ENTRY_ID_MAPPING_CONTEXT)) {}
}
#endif
static void call(void) {
    int file = file_of(strtok(NULL, " \n"));
    char *pid = strtok(NULL, " \n"), *user = strtok(NULL, " \n"), *admin = strtok(NULL, " \n");
    called_by(pid, user, admin);
    NvU32 number = atoi(strtok(NULL, " \n"));
    count_of_blocks = 0;
    add_block(strtok(NULL, " \n"), 0, 0);
    for (char *word; (word = strtok(NULL, " \n"));) {
        char *at = strchr(word, '@'), *hex = strchr(word, ':');
        add_block(hex + 1, atoi(word), atoi(at + 1));
    }
    put_addresses(NV_TRUE);
    NV_STATUS status = rm_ioctl((void *)stack, node_of(file_at(file)), &file_at(file)->private, number, blocks[0].bytes, blocks[0].length);
    put_addresses(NV_FALSE);
#ifdef REFEREE_CARD
    end_thread();
#endif
    const NVOS21_PARAMETERS *alloc = (void *)blocks[0].bytes;
    if (status == NV_OK && number == NV_ESC_RM_ALLOC && blocks[0].length == sizeof *alloc && alloc->hClass == NV01_ROOT_CLIENT && !alloc->status) note_client(alloc->hObjectNew);
    release_files();
    printf("%d", status == NV_OK ? 0 : -22);
    for (int i = 0; i < count_of_blocks; i++) {
        putchar(' ');
        for (size_t k = 0; k < blocks[i].length; k++) printf("%02x", blocks[i].bytes[k]);
        if (!blocks[i].length) putchar('-');
        free(blocks[i].bytes);
    }
    NvBool broken = is_broken();
    if (broken) printf(" broken");
    putchar('\n'); fflush(stdout);
    if (broken) _exit(0);
}
static int by_handle(const void *a, const void *b) {
    NvHandle x = (*(RsResourceRef *const *)a)->hResource, y = (*(RsResourceRef *const *)b)->hResource;
    return x < y ? -1 : x > y;
}
static void objects(void) {
    static RsResourceRef *all[MOST_OBJECTS];
    for (int i = 0; i < count_of_clients; i++) {
        RsClient *c; int n = 0;
        if (serverGetClientUnderLock(&g_resServ, clients[i], &c)) continue;
        printf("client 0x%x\n", clients[i]);
        RsRefMapIter it = mapIterAll(&c->resourceMap);
        while (mapIterNext(&it)) if (n < MOST_OBJECTS) all[n++] = it.pValue;
        qsort(all, n, sizeof *all, by_handle);
        for (int k = 0; k < n; k++)
            printf("0x%x 0x%x 0x%x %u %u\n", all[k]->hResource, all[k]->pParentRef ? all[k]->pParentRef->hResource : 0, all[k]->externalClassId,
                all[k]->accessMask.limbs[0] & KEPT_RIGHTS, (NvU32)listCount(&all[k]->cpuMappings));
    }
    if (referee_log) fprintf(stderr, "assertions that did not hold: %ld\n", referee_asserts);
}

/* Until 550 RM reads a control register of the processor by an instruction in the middle of its own code: it reads 0 here. */
static void skip_privileged(int signal, siginfo_t *info, void *at) {
    greg_t *registers = ((ucontext_t *)at)->uc_mcontext.gregs;
    const NvU8 *code = (const NvU8 *)registers[REG_RIP];
    (void)info;
    if (code[0] == 0x0f && code[1] == 0x20 && code[2] >= 0xc0 && (code[2] & 7) == 0) {
        registers[REG_RAX] = 0; registers[REG_RIP] += 3;
        return;
    }
    struct sigaction usual = {.sa_handler = SIG_DFL};
    sigaction(signal, &usual, NULL);
}

int main(void) {
    struct sigaction privileged = {.sa_sigaction = skip_privileged, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &privileged, NULL);
    char *line = malloc(MOST_LINE);
    referee_log = getenv("REFEREE_LOG") != NULL;
#ifdef REFEREE_CARD
    unsigned boot42;
    if (!fgets(line, MOST_LINE, stdin) || sscanf(line, "chip %x", &boot42) != 1) { fprintf(stderr, "no chip: %s", line); return 2; }
    NV_STATUS started = referee_start_card(boot42);
    if (started) { fprintf(stderr, "RM starts with no %x: %x\n", boot42, started); return 2; }
    puts("ready"); fflush(stdout);
#else
    control.flags = NV_FLAG_CONTROL;
    os_alloc_spinlock(&control.event_spinlock);
    os_alloc_spinlock(&card.event_spinlock);
    if (!rm_init_rm((void *)stack)) { fprintf(stderr, "RM does not start\n"); return 2; }
#endif
    referee_locks = 0;
    while (fgets(line, MOST_LINE, stdin)) {
        if (strncmp(line, "begin", 5)) { fprintf(stderr, "no sequence begins with %s", line); return 2; }
        count_of_control = atoi(line + 5);
        fflush(stdout);
        pid_t child = fork();
        if (child < 0) { perror("fork"); return 2; }
        if (child == 0) {
            printf("ready\n"); fflush(stdout);
            while (fgets(line, MOST_LINE, stdin)) {
                char *what = strtok(line, " \n");
                if (!strcmp(what, "ioctl")) call();
                else if (!strcmp(what, "close")) {
                    int file = file_of(strtok(NULL, " \n"));
                    char *pid = strtok(NULL, " \n"), *user = strtok(NULL, " \n"), *admin = strtok(NULL, " \n");
                    called_by(pid, user, admin);
                    put_file(file_at(file)); files[file] = NULL;
                    release_files();
                    NvBool broken = is_broken();
                    printf("closed%s\n", broken ? " broken" : ""); fflush(stdout);
                    if (broken) _exit(0);
                } else { objects(); printf("end\n"); fflush(stdout); _exit(0); }
            }
            _exit(0);
        }
        int how = 0; waitpid(child, &how, 0);
        if (WIFSIGNALED(how)) { printf("died %d\n", WTERMSIG(how)); fflush(stdout); }
        else if (WEXITSTATUS(how)) return 2;
    }
    return 0;
}

/* The os_* primitives that NVIDIA's nvport wants, in one thread of a plain process.
 *
 * Locks are counted and not taken: one thread plays, and a lock that a call leaves taken is what is to be seen (referee_locks).
 */
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef uint32_t Status; /* NV_STATUS */
enum { OK = 0, NO_MEMORY = 0x51 };

/* Locks that are taken. */
long referee_locks = 0;
/* RM's own assertions that did not hold. */
long referee_asserts = 0;
/* Lets RM's prints through. */
int referee_log = 0;

/* A word of 32 bits until 570: the lower half is the same. */
uint64_t os_page_size = 4096;
uint64_t os_page_mask = ~0xfffull;
uint8_t os_page_shift = 12;

Status os_alloc_mem(void **p, uint64_t n) { *p = malloc(n); return *p ? OK : NO_MEMORY; }
void os_free_mem(void *p) { free(p); }
void *os_mem_copy(void *d, const void *s, uint32_t n) { return memcpy(d, s, n); }
void *os_mem_set(void *d, uint8_t c, uint32_t n) { return memset(d, c, n); }
int32_t os_mem_cmp(const uint8_t *a, const uint8_t *b, uint32_t n) { return memcmp(a, b, n); }
Status os_memcpy_from_user(void *d, const void *s, uint32_t n) { memcpy(d, s, n); return OK; }
Status os_memcpy_to_user(void *d, const void *s, uint32_t n) { memcpy(d, s, n); return OK; }

Status os_alloc_spinlock(void **p) { *p = malloc(1); return *p ? OK : NO_MEMORY; }
void os_free_spinlock(void *p) { free(p); }
uint64_t os_acquire_spinlock(void *p) { (void)p; referee_locks++; return 0; }
void os_release_spinlock(void *p, uint64_t f) { (void)p; (void)f; referee_locks--; }
Status os_alloc_mutex(void **p) { return os_alloc_spinlock(p); }
void os_free_mutex(void *p) { free(p); }
Status os_acquire_mutex(void *p) { (void)p; referee_locks++; return OK; }
Status os_cond_acquire_mutex(void *p) { (void)p; referee_locks++; return OK; }
void os_release_mutex(void *p) { (void)p; referee_locks--; }
void *os_alloc_semaphore(uint32_t n) { (void)n; return malloc(1); }
void os_free_semaphore(void *p) { free(p); }
Status os_acquire_semaphore(void *p) { (void)p; referee_locks++; return OK; }
Status os_cond_acquire_semaphore(void *p) { (void)p; referee_locks++; return OK; }
Status os_release_semaphore(void *p) { (void)p; referee_locks--; return OK; }
void *os_alloc_rwlock(void) { return malloc(1); }
void os_free_rwlock(void *p) { free(p); }
Status os_acquire_rwlock_read(void *p) { (void)p; referee_locks++; return OK; }
Status os_acquire_rwlock_write(void *p) { (void)p; referee_locks++; return OK; }
Status os_cond_acquire_rwlock_read(void *p) { (void)p; referee_locks++; return OK; }
Status os_cond_acquire_rwlock_write(void *p) { (void)p; referee_locks++; return OK; }
void os_release_rwlock_read(void *p) { (void)p; referee_locks--; }
void os_release_rwlock_write(void *p) { (void)p; referee_locks--; }

uint8_t os_is_isr(void) { return 0; }
uint8_t os_semaphore_may_sleep(void) { return 1; }
Status os_schedule(void) { return OK; }
/* The same before and after a fork: the resource server keeps it. */
Status os_get_current_thread(uint64_t *t) { *t = 1; return OK; }
void os_dbg_breakpoint(void) { referee_asserts++; }
void out_string(const char *s) { if (referee_log) fputs(s, stderr); }
int nv_printf(uint32_t level, const char *format, ...) {
    (void)level;
    if (!referee_log) return 0;
    va_list a; va_start(a, format); int n = vfprintf(stderr, format, a); va_end(a); return n;
}

/* What RS_STANDALONE=1 leaves to its user outside the resource server. The whole core has its own. */
#ifndef REFEREE_CORE
void nvDbg_Printf(const char *file, int line, const char *function, int level, const char *format, ...) {
    (void)file; (void)line; (void)level;
    if (!referee_log) return;
    va_list a; va_start(a, format); fprintf(stderr, "%s: ", function); vfprintf(stderr, format, a); va_end(a);
}
uint64_t osGetTimestamp(void) { struct timespec s; clock_gettime(CLOCK_MONOTONIC, &s); return s.tv_sec * 1000000000ull + s.tv_nsec; }
void rcdbRmAssert(void) { referee_asserts++; }
void rcdbRmAssertStatus(void) { referee_asserts++; }
const char *nvstatusToString(uint32_t s) { static char b[16]; snprintf(b, sizeof b, "0x%x", s); return b; }
#endif

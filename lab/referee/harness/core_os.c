/* The os_* functions that RM's core wants beyond those in os.c, in one thread of a plain process.
 *
 * Who calls is what a call says (core.c): its process, its user, and whether it is an administrator's. What is not here and not in core.c
 * is generated: a function that returns 0.
 */
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef uint32_t Status; /* NV_STATUS */
enum { OK = 0, PERMISSIONS = 0x1b };

/* The caller. */
uint32_t referee_pid = 1, referee_user = 0;
int referee_admin = 1;
extern int referee_log;

uint64_t os_get_monotonic_time_ns(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000000ull + t.tv_nsec; }
uint64_t os_get_monotonic_time_ns_hr(void) { return os_get_monotonic_time_ns(); }
uint64_t os_get_monotonic_tick_resolution_ns(void) { return 1000000; }
Status os_get_system_time(uint32_t *s, uint32_t *us) { struct timespec t; clock_gettime(CLOCK_REALTIME, &t); *s = t.tv_sec; *us = t.tv_nsec / 1000; return OK; }
/* The same under the names that they had until 570. */
uint64_t os_get_current_tick(void) { return os_get_monotonic_time_ns(); }
uint64_t os_get_current_tick_hr(void) { return os_get_monotonic_time_ns(); }
Status os_get_current_time(uint32_t *s, uint32_t *us) { return os_get_system_time(s, us); }
/* Nothing is waited for. */
Status os_delay(uint32_t ms) { (void)ms; return OK; }
Status os_delay_us(uint32_t us) { (void)us; return OK; }
uint64_t os_get_cpu_frequency(void) { return 2000000000ull; }
uint32_t os_get_cpu_count(void) { return 2; }
uint32_t os_get_cpu_number(void) { return 0; }

uint32_t os_get_current_process(void) { return referee_pid; }
uint32_t os_get_current_process_flags(void) { return 0; }
void os_get_current_process_name(char *to, uint32_t n) { snprintf(to, n, "process %u", referee_pid); }
uint8_t os_is_administrator(void) { return referee_admin; }
uint8_t os_check_access(uint16_t right) { (void)right; return referee_admin; }
Status os_get_euid(uint32_t *user) { *user = referee_user; return OK; }
uint8_t os_is_init_ns(void) { return 1; }
/* A number in the place of the kernel's struct pid: the process is called in its own namespace as in the host's. */
void *os_get_pid_info(void) { return (void *)(uintptr_t)referee_pid; }
void os_put_pid_info(void *pid) { (void)pid; }
Status os_find_ns_pid(void *pid, uint32_t *to) { *to = (uintptr_t)pid; return OK; }

/* Variables: a generated function in their place would be true. */
uint64_t os_max_page_size = 4096;
uint8_t os_cc_enabled, os_cc_sev_snp_enabled, os_cc_sme_enabled, os_cc_snp_vtom_enabled, os_cc_tdx_enabled, os_dma_buf_enabled, os_imex_channel_is_supported;
const uint8_t nv_is_rm_firmware_supported_os = 1;
const char *pNVRM_ID = "referee";

uint64_t os_get_max_user_va(void) { return 1ull << 47; }
Status os_get_random_bytes(uint8_t *to, uint16_t n) { memset(to, 7, n); return OK; }
char *os_string_copy(char *to, const char *s) { return strcpy(to, s); }
uint32_t os_string_length(const char *s) { return strlen(s); }
int32_t os_string_compare(const char *a, const char *b) { return strcmp(a, b); }
uint32_t os_strtoul(const char *s, char **end, uint32_t base) { return strtoul(s, end, base); }
int32_t os_vsnprintf(char *to, uint32_t n, const char *format, va_list a) { return vsnprintf(to, n, format, a); }
int32_t os_snprintf(char *to, uint32_t n, const char *format, ...) { va_list a; va_start(a, format); int r = vsnprintf(to, n, format, a); va_end(a); return r; }
void os_log_error(const char *format, va_list a) { if (referee_log) vfprintf(stderr, format, a); }
/* Files of capabilities: there are none, and RM does not start without them. */
void *os_nv_cap_init(const char *path) { (void)path; return &referee_admin; }
void *os_nv_cap_create_dir_entry(void *in, const char *name, int mode) { (void)in; (void)name; (void)mode; return &referee_admin; }
void *os_nv_cap_create_file_entry(void *in, const char *name, int mode) { (void)in; (void)name; (void)mode; return &referee_admin; }
/* No entry of the registry is set. */
Status os_registry_init(void) { return OK; }
Status os_registry_read_dword(void *nv, const char *name, uint32_t *to) { (void)nv; (void)name; (void)to; return 0x57; }
Status os_registry_read_string(void *nv, const char *name, char *to, uint32_t *n) { (void)nv; (void)name; (void)to; (void)n; return 0x57; }
Status os_registry_read_binary(void *nv, const char *name, uint8_t *to, uint32_t *n) { (void)nv; (void)name; (void)to; (void)n; return 0x57; }

/* Which page of its memory a mapping begins with. */
Status os_match_mmap_offset(void *pages, uint64_t at, uint64_t *index) { (void)pages; (void)at; *index = 0; return OK; }

/* Instructions that a process may not have. */
uint64_t osNv_rdcr4(void) { return 0; }
uint64_t osNv_rdxcr0(void) { return 0; }
uint32_t osNv_rdmsr(uint32_t r, uint32_t *low, uint32_t *high) { (void)r; *low = *high = 0; return 0; }
uint32_t osNv_wrmsr(uint32_t r, uint32_t low, uint32_t high) { (void)r; (void)low; (void)high; return 0; }

/* Called once by each generated function. */
int referee_stub(const char *name) {
    if (getenv("REFEREE_STUBS")) fprintf(stderr, "generated: %s\n", name);
    return 0;
}

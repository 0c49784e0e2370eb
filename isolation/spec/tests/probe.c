/* Makes the calls named by its arguments, each in a child of its own, and prints what came back. Descriptor -1 tells the
 * filter's answers from the kernel's: a call that the filter allows fails with EBADF.
 *
 *   i:CMD        ioctl, native table          s:OP:FLAGS   seccomp(2) without a program
 *   x:CMD        ioctl, x32 table             n            seccomp(2) with a program that allows everything
 *   c:CMD        ioctl, i386 table            m:FLAGS:OFF  mmap
 *   C:FLAGS:PAGE mmap2, i386 table            o            mmap (by a pointer to its arguments), i386 table
 *   g            getpid, i386 table           u            io_uring_setup without parameters
 *   w            waits for ever
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static long raw(long nr, unsigned long a, unsigned long b, unsigned long c, unsigned long d, unsigned long e, unsigned long f)
{
    long result;
    register unsigned long r10 __asm__("r10") = d;
    register unsigned long r8 __asm__("r8") = e;
    register unsigned long r9 __asm__("r9") = f;
    __asm__ volatile("syscall" : "=a"(result) : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
    return result;
}

static long compat(unsigned int nr, unsigned int a, unsigned int b, unsigned int c)
{
    int result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(nr), "b"(a), "c"(b), "d"(c) : "r8", "r9", "r10", "r11", "memory");
    return result;
}

static long compat_mmap2(unsigned int flags, unsigned int page)
{
    int result;
    __asm__ volatile("push %%rbp\n\tmovl %[page], %%ebp\n\tint $0x80\n\tpop %%rbp"
                     : "=a"(result) : "a"(192), "b"(0), "c"(4096), "d"(1), "S"(flags), "D"(-1), [page] "r"(page)
                     : "r8", "r9", "r10", "r11", "memory");
    return result;
}

static long nested(void)
{
    struct sock_filter code[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {1, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        return -errno;
    return raw(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, (unsigned long)&program, 0, 0, 0);
}

static long make(const char *word)
{
    char *rest = 0;
    unsigned long one = word[1] ? strtoul(word + 2, &rest, 0) : 0;
    unsigned long two = rest && *rest == ':' ? strtoul(rest + 1, 0, 0) : 0;
    switch (word[0]) {
    case 'i': return raw(SYS_ioctl, -1, one, 0, 0, 0, 0);
    case 'x': return raw(0x40000000 | 514, -1, one, 0, 0, 0, 0);
    case 'c': return compat(54, -1, one, 0);
    case 'C': return compat_mmap2(one, two);
    case 'o': return compat(90, 0, 0, 0);
    case 'g': return compat(20, 0, 0, 0);
    case 'u': return raw(425, 1, 0, 0, 0, 0, 0);
    case 's': return raw(SYS_seccomp, one, two, 0, 0, 0, 0);
    case 'n': return nested();
    case 'm': return raw(SYS_mmap, 0, 4096, 1, one, -1, two);
    case 'w': for (;;) pause();
    }
    return -1000;
}

int main(int argc, char **argv)
{
    for (int at = 1; at < argc; at++) {
        fflush(stdout);
        pid_t child = argv[at][0] == 'w' ? 0 : fork();
        if (child == 0) {
            printf("%s %ld\n", argv[at], make(argv[at]));
            fflush(stdout);
            _exit(0);
        }
        int status = 0;
        waitpid(child, &status, 0);
        if (WIFSIGNALED(status))
            printf("%s signal-%d\n", argv[at], WTERMSIG(status));
    }
    return 0;
}

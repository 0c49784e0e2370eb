/* Compiles profiles as runc does, by libseccomp itself. One profile: lines on standard input up to "E"; the answer on
 * standard output: a 4-byte count of BPF instructions and the instructions, or a negative errno.
 *
 *   D <default action>
 *   A <architecture>
 *   R <action> <call> <count> {<argument> <operator> <value> <second value>}
 *
 * The prototypes are libseccomp's (seccomp.h, part of its stable ABI), so that its headers need not be installed. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct scmp_arg_cmp { unsigned arg; unsigned op; uint64_t a, b; };
typedef void *scmp_filter_ctx;
scmp_filter_ctx seccomp_init(uint32_t);
void seccomp_release(scmp_filter_ctx);
int seccomp_arch_add(scmp_filter_ctx, uint32_t);
int seccomp_rule_add_array(scmp_filter_ctx, uint32_t, int, unsigned, const struct scmp_arg_cmp *);
int seccomp_export_bpf(scmp_filter_ctx, int);
int seccomp_syscall_resolve_name(const char *);

static char program[1 << 20];

static void answer(int32_t head, const char *bytes, size_t length)
{
	fwrite(&head, sizeof head, 1, stdout);
	fwrite(bytes, 1, length, stdout);
	fflush(stdout);
}

int main(void)
{
	char line[1024], name[64];
	scmp_filter_ctx ctx = NULL;
	int failed = 0;
	int file = memfd_create("bpf", 0);
	while (fgets(line, sizeof line, stdin)) {
		unsigned word, count;
		int at;
		if (line[0] == 'D' && sscanf(line + 1, "%x", &word) == 1) {
			ctx = seccomp_init(word);
			failed = ctx ? 0 : -EINVAL;
		} else if (failed == 0 && line[0] == 'A' && sscanf(line + 1, "%x", &word) == 1) {
			int rc = seccomp_arch_add(ctx, word);
			if (rc != -EEXIST)
				failed = rc;
		} else if (failed == 0 && line[0] == 'R' &&
			   sscanf(line + 1, "%x %63s %u%n", &word, name, &count, &at) == 3 && count <= 6) {
			struct scmp_arg_cmp args[6];
			const char *rest = line + 1 + at;
			for (unsigned i = 0; i < count; i++) {
				unsigned long long a, b;
				int used = 0;
				if (sscanf(rest, "%u %u %llx %llx%n", &args[i].arg, &args[i].op, &a, &b, &used) != 4)
					failed = -EPROTO;
				args[i].a = a;
				args[i].b = b;
				rest += used;
			}
			int call = seccomp_syscall_resolve_name(name);
			if (failed == 0 && call != -1)
				failed = seccomp_rule_add_array(ctx, word, call, count, args);
		} else if (line[0] == 'E') {
			ssize_t length = 0;
			if (failed == 0 && (ftruncate(file, 0) || lseek(file, 0, SEEK_SET)))
				failed = -EIO;
			if (failed == 0)
				failed = seccomp_export_bpf(ctx, file);
			if (failed == 0) {
				length = pread(file, program, sizeof program, 0);
				answer((int32_t)(length / 8), program, (size_t)length);
			} else {
				answer(failed, NULL, 0);
			}
			if (ctx)
				seccomp_release(ctx);
			ctx = NULL;
			failed = -EPROTO;
		}
	}
	return 0;
}

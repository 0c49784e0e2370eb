/* A library that answers like NVML of R615 as far as cgpu asks. It keeps its state in STATE_DIR (a string, set when it is compiled,
 * because cgpu-limits is started without an environment):
 *
 *   cards    one UUID a line; a second word "mig" divides the card
 *   limits   one line a limit: UUID SOFT HARD CGROUP
 *   fault    absent, or one word: init, set, readback, get, crash
 *
 * Compiled with -DWITHOUT_LIMITS it is a driver before R615.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef unsigned int nvmlReturn_t;
typedef struct nvmlDevice_st { char uuid[96]; int mig; } *nvmlDevice_t;

enum { SUCCESS = 0, INVALID = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, NOT_LOADED = 9, UNKNOWN = 999 };

static struct nvmlDevice_st devices[16];

static int fault(const char *word)
{
    char text[32] = "";
    FILE *file = fopen(STATE_DIR "/fault", "r");
    if (!file)
        return 0;
    if (fscanf(file, "%31s", text) != 1)
        text[0] = 0;
    fclose(file);
    return strcmp(text, word) == 0;
}

nvmlReturn_t nvmlInit_v2(void) { return fault("init") ? NOT_LOADED : SUCCESS; }
nvmlReturn_t nvmlShutdown(void) { return SUCCESS; }

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    snprintf(version, length, "%s", VERSION);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    char line[160], name[96], mode[16];
    int n = 0, words;
    FILE *file = fopen(STATE_DIR "/cards", "r");
    if (!file)
        return UNKNOWN;
    while (fgets(line, sizeof line, file) && n < 16) {
        mode[0] = 0;
        words = sscanf(line, "%95s %15s", name, mode);
        if (words >= 1 && strcmp(name, uuid) == 0) {
            strcpy(devices[n].uuid, name);
            devices[n].mig = strcmp(mode, "mig") == 0;
            *device = &devices[n];
            fclose(file);
            return SUCCESS;
        }
        n++;
    }
    fclose(file);
    return NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    if (!device->mig)
        return NOT_SUPPORTED;
    *current = *pending = 1;
    return SUCCESS;
}

#ifndef WITHOUT_LIMITS
struct set { const char *name_space; unsigned long long soft, hard; };
struct get { const char *name_space; unsigned long long soft, hard, used; };

static nvmlReturn_t is_folder(const char *path)
{
    struct stat at;
    return stat(path, &at) == 0 && S_ISDIR(at.st_mode) ? SUCCESS : NOT_FOUND;
}

nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, const struct set *limits)
{
    FILE *file;
    if (fault("crash"))
        abort();
    if (fault("set"))
        return NOT_SUPPORTED;
    if (is_folder(limits->name_space) != SUCCESS)
        return NOT_FOUND;
    if (limits->soft > limits->hard)
        return INVALID;
    /* The last line of a card and cgroup holds. */
    file = fopen(STATE_DIR "/limits", "a");
    fprintf(file, "%s %llu %llu %s\n", device->uuid, limits->soft, limits->hard, limits->name_space);
    fclose(file);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, struct get *limits)
{
    char line[4500], uuid[96], cgroup[4200];
    unsigned long long soft, hard;
    nvmlReturn_t found = NOT_FOUND;
    FILE *file;
    if (fault("get"))
        return UNKNOWN;
    file = fopen(STATE_DIR "/limits", "r");
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "%95s %llu %llu %4199[^\n]", uuid, &soft, &hard, cgroup) == 4
            && strcmp(uuid, device->uuid) == 0 && strcmp(cgroup, limits->name_space) == 0) {
            limits->soft = soft;
            limits->hard = fault("readback") ? hard + 4096 : hard;
            limits->used = 0;
            found = SUCCESS;
        }
    }
    if (file)
        fclose(file);
    return found;
}
#endif

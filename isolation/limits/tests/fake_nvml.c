/* A library that answers like NVML of R615 as far as cgpu asks. It keeps its state in STATE_DIR (a string, set when it is compiled,
 * because cgpu-limits is started without an environment):
 *
 *   cards    one UUID a line; a second word is its mode: mig, exclusive, prohibited, default, lost or strange. Without one it is a card that knows no modes
 *   confidential  present: the host uses confidential computing
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
typedef struct nvmlDevice_st { char uuid[96]; char mode[16]; unsigned int index; } *nvmlDevice_t;

enum { SUCCESS = 0, INVALID = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, NOT_LOADED = 9, GPU_IS_LOST = 15, UNKNOWN = 999 };

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

/* Reads the cards; their number, or -1. */
static int cards(void)
{
    char line[160];
    int n = 0;
    FILE *file = fopen(STATE_DIR "/cards", "r");
    if (!file)
        return -1;
    while (n < 16 && fgets(line, sizeof line, file)) {
        devices[n].mode[0] = 0;
        devices[n].index = n;
        if (sscanf(line, "%95s %15s", devices[n].uuid, devices[n].mode) >= 1)
            n++;
    }
    fclose(file);
    return n;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    int n, count = cards();
    if (count < 0)
        return UNKNOWN;
    for (n = 0; n < count; n++)
        if (strcmp(devices[n].uuid, uuid) == 0) {
            *device = &devices[n];
            return SUCCESS;
        }
    return NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    int found = cards();
    *count = found;
    return found < 0 ? UNKNOWN : SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    if ((int)index >= cards())
        return INVALID;
    if (strcmp(devices[index].mode, "lost") == 0)
        return GPU_IS_LOST;
    if (strcmp(devices[index].mode, "strange") == 0)
        return UNKNOWN;
    *device = &devices[index];
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *text, unsigned int length)
{
    snprintf(text, length, "%s", device->uuid);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *text, unsigned int length)
{
    (void)device;
    snprintf(text, length, "NVIDIA Played");
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor)
{
    *minor = device->index;
    return SUCCESS;
}

struct memory { unsigned int version; unsigned long long total, reserved, free, used; };

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, struct memory *memory)
{
    (void)device;
    memory->total = 24ull << 30;
    memory->reserved = memory->used = 0;
    memory->free = memory->total;
    return SUCCESS;
}

struct pci { char legacy[16]; unsigned int domain, bus, device, ids, subsystem; char id[32]; };

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, struct pci *pci)
{
    memset(pci, 0, sizeof *pci);
    pci->bus = device->index + 1;
    snprintf(pci->id, sizeof pci->id, "00000000:%02X:00.0", pci->bus);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    if (!device->mode[0])
        return NOT_SUPPORTED;
    *current = *pending = strcmp(device->mode, "mig") == 0;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned int *mode)
{
    if (!device->mode[0])
        return NOT_SUPPORTED;
    /* NVML_COMPUTEMODE_PROHIBITED, NVML_COMPUTEMODE_EXCLUSIVE_PROCESS, NVML_COMPUTEMODE_DEFAULT */
    *mode = strcmp(device->mode, "prohibited") == 0 ? 2 : strcmp(device->mode, "exclusive") == 0 ? 3 : 0;
    return SUCCESS;
}

/* What a card reports of itself; one that knows no modes reports nothing. */
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned int sensor, unsigned int *celsius)
{
    *celsius = 41;
    return device->mode[0] && sensor == 0 ? SUCCESS : NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *milliwatts)
{
    *milliwatts = 72500;
    return device->mode[0] ? SUCCESS : NOT_SUPPORTED;
}

struct utilization { unsigned int gpu, memory; };

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, struct utilization *percent)
{
    percent->gpu = 55;
    percent->memory = 12;
    return device->mode[0] ? SUCCESS : NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned int clock, unsigned int *mhz)
{
    /* NVML_CLOCK_SM, NVML_CLOCK_MEM */
    *mhz = clock == 1 ? 2040 : clock == 2 ? 10501 : 0;
    return device->mode[0] ? SUCCESS : NOT_SUPPORTED;
}

struct confidential { unsigned int version, environment, feature, tools, several; };

nvmlReturn_t nvmlSystemGetConfComputeSettings(struct confidential *settings)
{
    struct stat at;
    settings->feature = stat(STATE_DIR "/confidential", &at) == 0;
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

/* What every cgroup holds of every card: the number in `used`, if there is one. */
static unsigned long long used(void)
{
    unsigned long long bytes = 0;
    FILE *file = fopen(STATE_DIR "/used", "r");
    if (file) {
        if (fscanf(file, "%llu", &bytes) != 1)
            bytes = 0;
        fclose(file);
    }
    return bytes;
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
            limits->used = used();
            found = SUCCESS;
        }
    }
    if (file)
        fclose(file);
    return found;
}
#endif

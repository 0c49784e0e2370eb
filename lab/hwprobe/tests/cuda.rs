//! `cgpu-cuda` in front of a library of our own, which keeps card memory in the host's and runs the one kernel itself. What the real
//! library makes of the same calls only a card can show.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Card memory is the host's; a range is mapped where it was reserved. `REFUSED` fails one function by its name.
const LIBRARY: &str = r#"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <stdio.h>
#define R(name) do { const char *no = getenv("REFUSED"); if (no && !strcmp(no, #name)) return 801; } while (0)
typedef struct { int kind, handles; struct { int kind, id; } at; void *meta; unsigned char flags[8]; } prop;
typedef struct { struct { int kind, id; } at; int flags; } desc;
static int current, mapped;
int cuGetErrorName(int code, const char **name) { *name = code == 801 ? "CUDA_ERROR_NOT_SUPPORTED" : "CUDA_ERROR_UNKNOWN"; return 0; }
int cuInit(unsigned flags) { R(cuInit); return flags; }
int cuDriverGetVersion(int *v) { *v = 12080; return 0; }
int cuDeviceGetCount(int *n) { *n = 1; return 0; }
int cuDeviceGet(int *d, int at) { *d = 7; return at; }
int cuDeviceTotalMem_v2(size_t *n, int d) { *n = 1 << 30; return d != 7; }
int cuDevicePrimaryCtxRetain(void **c, int d) { R(cuDevicePrimaryCtxRetain); *c = &current; return d != 7; }
int cuCtxSetCurrent(void *c) { current = c == &current; return !current; }
int cuDevicePrimaryCtxRelease_v2(int d) { return d != 7 || mapped; }
int cuMemGetInfo_v2(size_t *f, size_t *t) { *f = 1 << 29; *t = 1 << 30; return !current; }
int cuMemAlloc_v2(uint64_t *p, size_t n) { R(cuMemAlloc_v2); *p = (uint64_t)malloc(n); return !*p; }
int cuMemAllocManaged(uint64_t *p, size_t n, unsigned how) { R(cuMemAllocManaged); *p = (uint64_t)malloc(n); return how != 1; }
int cuMemFree_v2(uint64_t p) { free((void *)p); return 0; }
int cuMemHostAlloc(void **p, size_t n, unsigned how) { R(cuMemHostAlloc); *p = malloc(n); return how; }
int cuMemFreeHost(void *p) { free(p); return 0; }
int cuMemHostRegister_v2(void *p, size_t n, unsigned how) { R(cuMemHostRegister_v2); memset(p, 1, n); return how; }
int cuMemHostUnregister(void *p) { return !p; }
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t n) { memcpy((void *)to, from, n); return 0; }
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t n) { memcpy(to, (void *)from, n); return 0; }
int cuModuleLoadData(void **m, const void *ptx) { R(cuModuleLoadData); *m = (void *)ptx; return !strstr(ptx, ".entry add_one"); }
int cuModuleGetFunction(void **f, void *m, const char *name) { *f = m; return strcmp(name, "add_one"); }
int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream,
                   void **args, void **extra) {
    uint32_t *entries = *(uint32_t **)args[0], count = *(uint32_t *)args[1];
    if (!f || gy != 1 || gz != 1 || by != 1 || bz != 1 || shared || stream || extra) return 1;
    for (uint64_t i = 0; i < (uint64_t)gx * bx && i < count; i++) entries[i]++;
    return 0;
}
int cuCtxSynchronize(void) { return 0; }
static int pinned(const prop *p) { return p->kind == 1 && p->handles == 0 && p->at.kind == 1 && p->at.id == 7; }
int cuMemGetAllocationGranularity(size_t *n, const prop *p, int which) { *n = 2 << 20; return !pinned(p) || which; }
int cuMemCreate(uint64_t *h, size_t n, const prop *p, uint64_t flags) { R(cuMemCreate); *h = 0x1000 | n; return !pinned(p) || flags; }
int cuMemAddressReserve(uint64_t *p, size_t n, size_t align, uint64_t at, uint64_t flags) { *p = 0x700000000000; return n != 4 << 20 || align || at || flags; }
int cuMemMap(uint64_t p, size_t n, size_t offset, uint64_t h, uint64_t flags) { mapped++; return n != 2 << 20 || offset || flags || h != (0x1000 | n) || p % n; }
int cuMemSetAccess(uint64_t p, size_t n, const desc *d, size_t count) { return !p || n != 2 << 20 || count != 1 || d->flags != 3 || d->at.id != 7; }
int cuMemUnmap(uint64_t p, size_t n) { mapped -= 2; return n != 4 << 20 || p != 0x700000000000; }
int cuMemRelease(uint64_t h) { return h != (0x1000 | 2 << 20); }
int cuMemAddressFree(uint64_t p, size_t n) { return n != 4 << 20 || p != 0x700000000000; }
"#;

/// The library, or `None` where nothing compiles C.
fn library(folder: &Path) -> Option<PathBuf> {
    let (source, library) = (folder.join("cuda.c"), folder.join("libcuda-of-a-test.so"));
    std::fs::write(&source, LIBRARY).unwrap();
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-Wall", "-o"])
        .args([&library, &source])
        .status();
    match compiled {
        Ok(status) => {
            assert!(status.success());
            Some(library)
        }
        Err(_no_compiler) => {
            println!("SKIP: no C compiler");
            None
        }
    }
}

/// Whether all went well, and the steps with their errors.
fn steps(library: &Path, refused: &str) -> (bool, Vec<(String, Option<String>)>) {
    let output = Command::new(env!("CARGO_BIN_EXE_cgpu-cuda"))
        .arg("--library")
        .arg(library)
        .env("REFUSED", refused)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let steps = text.lines().map(|line| {
        let line: Value = serde_json::from_str(line).unwrap();
        let error = line["answer"]["error"].as_str().map(str::to_owned);
        (line["step"].as_str().unwrap().to_owned(), error)
    });
    (output.status.success(), steps.collect())
}

#[test]
fn every_step_is_made_and_a_refused_one_is_named_without_ending_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = library(folder.path()) else {
        return;
    };
    let (went_well, all) = steps(&library, "");
    assert!(went_well, "{all:?}");
    assert_eq!(all.len(), 20, "{all:?}");
    for (function, step, left) in [
        ("cuMemHostAlloc", "cuMemHostAlloc", 20),
        ("cuMemHostRegister_v2", "cuMemHostRegister", 20),
        ("cuMemAllocManaged", "cuMemAllocManaged", 20),
        ("cuMemCreate", "cuMemCreate and cuMemMap", 20),
        // Without a kernel nothing was added, and without memory nothing is copied.
        ("cuModuleLoadData", "cuModuleLoadData (PTX)", 18),
        ("cuMemAlloc_v2", "cuMemAlloc", 14),
        (
            "cuDevicePrimaryCtxRetain",
            "cuCtxCreate (the primary context)",
            7,
        ),
        ("cuInit", "cuInit", 2),
    ] {
        let (went_well, found) = steps(&library, function);
        assert!(!went_well);
        let failed: Vec<_> = found.iter().filter(|(_, error)| error.is_some()).collect();
        let error = Some("CUDA_ERROR_NOT_SUPPORTED (801)".to_owned());
        assert_eq!(failed, [&(step.to_owned(), error)], "{function}");
        assert_eq!(found.len(), left, "{function}: {found:?}");
    }
}

#[test]
fn without_the_library_it_reports_so() {
    let (went_well, found) = steps(Path::new("/nowhere/libcuda.so.1"), "");
    assert!(!went_well);
    assert_eq!(found.len(), 1);
    assert!(
        found[0]
            .1
            .as_ref()
            .unwrap()
            .contains("/nowhere/libcuda.so.1")
    );
}

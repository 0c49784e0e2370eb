"""One task of PyTorch; prints one JSON object. Run inside slices and bare by cgpu-card."""

import json
import sys
import time


def context(torch):
    began = time.perf_counter()
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    return {"context_s": round(time.perf_counter() - began, 3), "torch": torch.__version__}


def total(torch):
    free, whole = torch.cuda.mem_get_info()
    return {
        "mem_get_info_free": free,
        "mem_get_info_total": whole,
        "properties_total": torch.cuda.get_device_properties(0).total_memory,
    }


def oom(torch):
    held = []
    step = 256 << 20
    try:
        while True:
            held.append(torch.empty(step, dtype=torch.uint8, device="cuda"))
    except torch.cuda.OutOfMemoryError as error:
        got = len(held) * step
        del held
        torch.cuda.empty_cache()
        again = torch.ones(64 << 20, dtype=torch.uint8, device="cuda").sum().item()
        return {"held_bytes": got, "error": str(error)[:300], "works_after": again == 64 << 20}


def matmul(torch):
    a = torch.randn(4096, 4096, device="cuda")
    b = torch.randn(4096, 4096, device="cuda")
    for _ in range(3):
        a @ b
    torch.cuda.synchronize()
    times = []
    for _ in range(50):
        began = time.perf_counter()
        c = a @ b
        torch.cuda.synchronize()
        times.append((time.perf_counter() - began) * 1e6)
    times.sort()
    reference = (a[:64].double() @ b.double()).float()
    error = ((c[:64] - reference).norm() / reference.norm()).item()
    return {"median_us": round(times[25], 1), "p99_us": round(times[49], 1), "relative_error": error}


def pinned(torch):
    def charged():
        try:
            with open("/sys/fs/cgroup/memory.current") as file:
                return int(file.read())
        except OSError:
            return None

    before = charged()
    block = torch.empty(512 << 20, dtype=torch.uint8, pin_memory=True)
    block.fill_(7)
    after = charged()
    on_card = block.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    return {
        "pinned": block.is_pinned(),
        "copied": on_card[::4096].sum().item() == 7 * (len(block) // 4096),
        "memory_current_before": before,
        "memory_current_after": after,
    }


def ipc(torch):
    """Memory shared with a child process, as data loaders and servers share it."""
    import torch.multiprocessing as processes

    processes.set_start_method("spawn")
    queue = processes.Queue()
    child = processes.Process(target=_take, args=(queue,))
    block = torch.full((1 << 20,), 3, dtype=torch.uint8, device="cuda")
    child.start()
    queue.put(block)
    child.join(60)
    return {"child_exit": child.exitcode, "seen_back": block[0].item()}


def _take(queue):
    block = queue.get(timeout=50)
    block += 4


def managed(torch):
    import ctypes

    runtime = None
    for name in ("libcudart.so.13", "libcudart.so.12", "libcudart.so"):
        try:
            runtime = ctypes.CDLL(name)
            break
        except OSError:
            continue
    if runtime is None:
        return {"skipped": "no libcudart"}
    torch.zeros(1, device="cuda")
    pointer = ctypes.c_void_p()
    code = runtime.cudaMallocManaged(ctypes.byref(pointer), ctypes.c_size_t(256 << 20), 1)
    if code == 0:
        ctypes.memset(pointer, 5, 4096)
        runtime.cudaFree(pointer)
    return {"cudaMallocManaged": code}


def main():
    task = sys.argv[1]
    import torch

    try:
        found = globals()[task](torch)
    except Exception as error:  # The report wants every failure in one line.
        found = {"exception": type(error).__name__, "text": str(error)[:500]}
    print(json.dumps(found))


if __name__ == "__main__":
    main()

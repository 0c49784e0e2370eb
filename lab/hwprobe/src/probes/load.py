"""Kernels without a pause, or requests at random; prints one JSON object. Run inside slices by cgpu-card."""

import argparse
import json
import random
import time

SECOND = 1_000_000_000


def measured(torch, work):
    """ns of one kernel, alone: the shortest of some."""
    times = []
    for _ in range(30):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e6)
    return int(sorted(times)[3])


class Tally:
    def __init__(self):
        self.start = time.monotonic_ns()
        self.windows = []
        self.kernels = 0
        self.latencies = []

    def kernel(self, ns):
        at = (time.monotonic_ns() - self.start) // SECOND
        while len(self.windows) <= at:
            self.windows.append(0)
        self.windows[at] += ns
        self.kernels += 1


def busy(torch, work, kernel_ns, seconds):
    tally = Tally()
    under_way = []
    while time.monotonic_ns() < tally.start + seconds * SECOND:
        while len(under_way) < 8:
            work()
            event = torch.cuda.Event()
            event.record()
            under_way.append(event)
        under_way.pop(0).synchronize()
        tally.kernel(kernel_ns)
    return tally


def requests(torch, work, kernel_ns, seconds, rate):
    """One request is ten kernels; a request that comes while another runs waits, and its waiting counts."""
    tally = Tally()
    source = random.Random(1)
    due = tally.start
    while True:
        due += int(source.expovariate(rate) * SECOND)
        if due > tally.start + seconds * SECOND:
            return tally
        wait = due - time.monotonic_ns()
        if wait > 0:
            time.sleep(wait / SECOND)
        for _ in range(10):
            work()
        torch.cuda.synchronize()
        tally.latencies.append(time.monotonic_ns() - due)
        for _ in range(10):
            tally.kernel(kernel_ns)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=int, required=True)
    parser.add_argument("--kernel-ns", type=int)
    parser.add_argument("--rate", type=float)
    given = parser.parse_args()
    import torch

    size = 512 if given.rate else 4096
    a = torch.randn(size, size, device="cuda")
    b = torch.randn(size, size, device="cuda")
    c = torch.empty(size, size, device="cuda")

    def work():
        torch.mm(a, b, out=c)

    for _ in range(3):
        work()
    torch.cuda.synchronize()
    kernel_ns = given.kernel_ns or measured(torch, work)
    if given.rate:
        tally = requests(torch, work, kernel_ns, given.seconds, given.rate)
    else:
        tally = busy(torch, work, kernel_ns, given.seconds)
    end = time.monotonic_ns()
    latencies = sorted(tally.latencies)

    def at(part):
        return latencies[int((len(latencies) - 1) * part)] if latencies else None

    print(
        json.dumps(
            {
                "start_ns": tally.start,
                "end_ns": end,
                "kernel_ns": kernel_ns,
                "kernels": tally.kernels,
                "windows": [{"busy_ns": ns} for ns in tally.windows],
                "latency": {"p50_ns": at(0.5), "p99_ns": at(0.99), "max_ns": at(1.0), "count": len(latencies)},
            }
        )
    )


if __name__ == "__main__":
    main()

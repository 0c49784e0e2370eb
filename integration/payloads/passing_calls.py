# Times a call that the filter lets pass (ioctl TCGETS on /dev/null) in blocks; prints nanoseconds a call, by block.
import json, os, sys, time

blocks, calls = int(sys.argv[1]), int(sys.argv[2])
null = os.open("/dev/null", os.O_RDONLY)
isatty, now = os.isatty, time.perf_counter_ns
times = []
for _ in range(blocks):
    start = now()
    for _ in range(calls):
        isatty(null)
    times.append((now() - start) / calls)
print(json.dumps(times))

# Run in a container with an unmodified tinygrad: open the card, copy there and back, then take memory until refused.
import json, os, sys
from tinygrad import Device

MIB = 1 << 20
step = int(sys.argv[1]) * MIB if len(sys.argv) > 1 else 256 * MIB

device = Device["NV"]
allocator = device.allocator
sent = os.urandom(4 * MIB)
buffer = allocator.alloc(len(sent))
allocator._copyin(buffer, memoryview(bytearray(sent)))
received = bytearray(len(sent))
allocator._copyout(memoryview(received), buffer)
device.synchronize()

held, error = [], None
while error is None:
    try:
        held.append(allocator.alloc(step))
    except MemoryError as refused:
        error = f"{type(refused).__name__}: {refused}"

print(json.dumps({
    "device": Device["NV"].device,
    "copied_bytes": len(sent),
    "identical": bytes(received) == sent,
    "held_bytes": len(held) * step,
    "error": error,
}))

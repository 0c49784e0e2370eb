#!/bin/sh
# Two containers share a card, by containerd's own client. docs/guide/quick-start.md says what is needed first.
set -eu
image=${IMAGE:?an image that containerd has, as `ctr images ls` names it}

# Whatever failed: `ctr tasks rm` of a container that never started must not keep the others.
end() {
    for name in web notebook; do
        ctr tasks rm --force "$name" > /dev/null 2>&1 || true
        ctr containers rm "$name" > /dev/null 2>&1 || true
    done
}
trap end EXIT

start() { ctr run --detach --runtime io.containerd.cgpu.v2 "$@" sleep 3600; }

# A container without terms is native, and shares no card with a fixed part of one; `low` takes what `web` leaves.
start --annotation cgpu.io/memory=4Gi --annotation cgpu.io/compute=60 "$image" web
start --annotation cgpu.io/memory=2Gi --annotation cgpu.io/priority=low "$image" notebook

# Each finds its own slice, in any image.
ctr tasks exec --exec-id first web cgpu smi
ctr tasks exec --exec-id first notebook cgpu smi

# Who has what; and more for one of them while it runs.
cgpu ps
cgpu set web --memory 6Gi
ctr tasks exec --exec-id second web cgpu smi

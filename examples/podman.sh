#!/bin/sh
# Two containers share a card, by root's podman. docs/guide/quick-start.md says what is needed first.
set -eu
image=${IMAGE:-debian:stable-slim}
trap 'podman rm --force --time 1 web notebook > /dev/null' EXIT

# After `cgpu install` the runtime has a name: --runtime cgpu.
start() { podman --runtime /usr/bin/cgpu-runtime run --detach --network none "$@"; }

# A container without terms is native, and shares no card with a fixed part of one; `low` takes what `web` leaves.
start --name web --annotation cgpu.io/memory=4Gi --annotation cgpu.io/compute=60 "$image" sleep 3600
start --name notebook --annotation cgpu.io/memory=2Gi --annotation cgpu.io/priority=low "$image" sleep 3600

# Each finds its own slice, in any image.
podman exec web cgpu smi
podman exec notebook cgpu smi

# Who has what; and more for one of them while it runs.
cgpu ps
cgpu set web --memory 6Gi
podman exec web cgpu smi

#!/bin/sh
# Two containers share a card, by nerdctl. docs/guide/quick-start.md says what is needed first.
set -eu
image=${IMAGE:-debian:stable-slim}
trap 'nerdctl rm --force web notebook > /dev/null' EXIT

start() { nerdctl run --detach --network none --runtime io.containerd.cgpu.v2 "$@"; }

# A container without terms is native, and shares no card with a fixed part of one; `low` takes what `web` leaves.
start --name web --annotation cgpu.io/memory=4Gi --annotation cgpu.io/compute=60 "$image" sleep 3600
start --name notebook --annotation cgpu.io/memory=2Gi --annotation cgpu.io/priority=low "$image" sleep 3600

# Each finds its own slice, in any image.
nerdctl exec web cgpu smi
nerdctl exec notebook cgpu smi

# Who has what; and more for one of them while it runs.
cgpu ps
cgpu set web --memory 6Gi
nerdctl exec web cgpu smi

#!/bin/sh
# Two containers share a card, by containerd's own client. docs/guide/quick-start.md says what is needed first.
set -eu
image=${IMAGE:?an image that containerd has, as `ctr images ls` names it}
trap 'ctr tasks rm --force web notebook; ctr containers rm web notebook' EXIT

start() { ctr run --detach --runtime io.containerd.cgpu.v2 "$@" sleep 3600; }
start --annotation cgpu.io/memory=4Gi --annotation cgpu.io/compute=60 "$image" web
start --annotation cgpu.io/memory=2Gi "$image" notebook

# Each finds its own slice, in any image.
ctr tasks exec --exec-id first web cgpu smi
ctr tasks exec --exec-id first notebook cgpu smi

# Who has what; and more for one of them while it runs.
cgpu ps
cgpu set web --memory 6Gi
ctr tasks exec --exec-id second web cgpu smi

#!/bin/sh
# A slice without any engine, on simulated cards: as root, with cgpu's programs in PATH.
set -eu

# What is in it.
cgpu run --memory 4Gi --cards 2 --simulate two-ada -- cgpu smi

# More than it has is refused, by the driver's own status.
if cgpu run --memory 1Gi --simulate two-ada -- cgpu-burn alloc 2Gi; then
    echo "2 GiB fitted into 1 GiB" >&2
    exit 1
fi

#!/bin/sh
# Two services share a card, by docker compose. docs/guide/quick-start.md says what is needed first.
set -eu
cd "$(dirname "$0")"
trap 'docker compose down --timeout 1' EXIT

docker compose up --detach
docker compose exec -T inference cgpu smi
docker compose exec -T notebook cgpu smi
cgpu ps

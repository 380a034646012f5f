#!/bin/sh
# What a forecast wants to know of this host's GPUs (docs/formats/rates.md), within a minute:
#
#     bench/gpu/rates.sh BIN [OUT.json]
#
# BIN has bench_rates and the backends. One GPU: its products. Two: their links as well, and what products and transfers make of each
# other; OUT.json (default ./links.json) is a cluster file's `links`.
set -eu
bin=$1
out=${2:-links.json}
: "${NCCL_NVLS_ENABLE:=0}"
export NCCL_NVLS_ENABLE
"$bin/bench_rates" --backend cuda --products
if [ "$(nvidia-smi --list-gpus | wc -l)" -lt 2 ]; then
    exit 0
fi
store=$(mktemp -d)
trap 'rm -rf "$store"' EXIT
"$bin/bench_rates" --backend cuda --ranks 2 --store "$store" --products --device 1 --rank 1 &
other=$!
"$bin/bench_rates" --backend cuda --ranks 2 --store "$store" --products --section links --json "$out"
wait "$other"

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Timings on a GPU: fused kernels and optimizers beside a plain copy, then training steps beside
# PyTorch where that is installed. Never fails on a figure.
#
# usage: tests/gpu/bench.sh BUILD PEERS MODELS [MODEL:BATCH..]
# PEERS holds PyTorch's side (train.py, export_full.py); MODELS the exports, made where they are
# missing and onnx is installed.
set -u
build=$1 peers=$2 models=$3
shift 3
. "$(dirname "$0")/common.sh"
need "$build" lathe group_bench optim_bench attention_test
cases=${*:-gpt2:64 gpt2m:16 llama1b:16}

"$build/lathe" devices
if [ -z "${STEPS_ONLY:-}" ]; then
    "$build/group_bench" --cache "$cache"
    "$build/optim_bench" --cache "$cache"
    "$build/attention_test" --cache "$cache" --only x12 2>/dev/null | grep TFLOP
fi
for c in $cases; do
    for opset in 23 18; do
        dir=$models/$(echo "$c" | tr : _)_$opset
        [ -f "$dir/model.onnx" ] || python3 tests/bench/gpu_export.py "$peers" "$models" "$c:$opset" >"$log" 2>&1 ||
            { echo "$dir cannot be made:" && tail -n 3 "$log"; }
    done
done
python3 tests/bench/gpu_bench.py --lathe "$build/lathe" --models "$models" --peers "$peers" $cases

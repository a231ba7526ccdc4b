#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Every kernel of real models' training steps through NVRTC, without a GPU: none may spill registers
# or draw a warning.   usage: tests/kernels.sh BUILD MODELDIR..
set -u
build=$1
shift
passed=0 failed=0
check() { # MODEL ARCH RECIPE
    if out=$("$build/lathe" compile "$1" --data "$stem.data.npz" --arch "$2" --recipe "$3" --check 2>&1); then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "$(basename "$1") $2 $3: $out"
    fi
}
for dir; do
    for model in "$dir"/*.onnx; do
        stem=$(basename "$model")
        stem=$dir/${stem%%.*}
        [ -e "$stem.data.npz" ] || continue
        # One export of each network: others differ in names, not in kernels.
        [ "$model" = "$(ls "$stem".*.onnx | tail -n 1)" ] || continue
        check "$model" sm_90a bf16
        # Other architectures and f32: the networks with the most kinds of kernels.
        case $model in
        *gpt2_tiny*) check "$model" sm_80 bf16; check "$model" sm_100a bf16 ;;
        *resnet*) check "$model" sm_80 fp32; check "$model" sm_100a bf16 ;;
        *llama_tiny*) check "$model" sm_90a fp32 ;;
        esac
    done
done
echo "kernels: $passed passed, $failed failed"
[ "$failed" -eq 0 ]

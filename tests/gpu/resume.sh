#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Stopping and going on on a GPU: 2N steps are, byte for byte, N steps, a new process and N steps more, with codes,
# scales, exponents of range expansion and histories of maxima among what is kept.
#
# usage: tests/gpu/resume.sh LATHE [MODELDIR..]
# Every folder's gpt*.onnx and llama*.onnx beside their *.data.npz, under each low-precision recipe.
# DEVICE=cpu checks the script itself where there is no GPU.
set -u
lathe=$1
shift
device=${DEVICE:-cuda}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0
check() { # NAME COMMAND..
    name=$1
    shift
    if "$@" >"$work/log" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED $name: $(tail -n 1 "$work/log")"
    fi
}
same() { cmp "$1/checkpoint/8/tensors.safetensors" "$2/checkpoint/8/tensors.safetensors" && cmp "$1/model.onnx" "$2/model.onnx"; }

for dir; do
    for model in "$dir"/gpt*23.onnx "$dir"/llama*23.onnx "$dir"/gpt2_asis.dynamo18.onnx; do
        [ -f "$model" ] || continue
        base=${model%.onnx}
        data=${base%.*}.data.npz
        for recipe in bf16-adam8 coat fp8-delayed fp8-row fp8-block; do
            name="$(basename "$base") $recipe"
            whole=$work/whole half=$work/half
            rm -rf "$whole" "$half"
            run() {
                "$lathe" train "$model" --data "$data" --loss "cross_entropy(logits, labels)" --recipe $recipe --device "$device" \
                    --steps 8 --save-every 4 --keep 0 --seed 7 --quiet "$@"
            }
            check "$name: train" run -o "$whole"
            mkdir -p "$half/checkpoint"
            cp "$whole"/* "$half" 2>/dev/null
            cp -r "$whole/checkpoint/4" "$half/checkpoint"
            rm -f "$half/model.onnx"
            check "$name: resume" run --resume "$half"
            check "$name: the same bytes" same "$whole" "$half"
        done
    done
done
echo "resume: $passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Stopping and going on on a GPU: 2N steps are, byte for byte, N steps, a new process and N steps more, with codes,
# scales, exponents of range expansion and histories of maxima among what is kept.
#
# usage: tests/gpu/resume.sh LATHE [MODELDIR..]
# Every folder's gpt*.onnx and llama*.onnx beside their *.data.npz, under each low-precision recipe.
# JOBS: how many at a time. DEVICE=cpu checks the script itself where there is no GPU.
set -u
lathe=$1
shift
device=${DEVICE:-cuda}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
check() { # NAME COMMAND..
    name=$1
    shift
    if result=$("$@" 2>&1); then
        echo "ok      $name"
    else
        echo "FAILED  $name: $(echo "$result" | tail -n 1)"
    fi
}
same() { cmp "$1/checkpoint/8/tensors.safetensors" "$2/checkpoint/8/tensors.safetensors" && cmp "$1/model.onnx" "$2/model.onnx"; }

one() { # MODEL DATA RECIPE NUMBER
    whole=$work/$4.whole half=$work/$4.half
    run() {
        "$lathe" train "$1" --data "$2" --loss "cross_entropy(logits, labels)" --recipe "$3" --device "$device" --steps 8 \
            --save-every 4 --keep 0 --seed 7 --quiet "$4" "$5"
    }
    check "$1 $3: train" run "$1" "$2" "$3" -o "$whole"
    mkdir -p "$half/checkpoint"
    cp "$whole"/* "$half" 2>/dev/null
    cp -r "$whole/checkpoint/4" "$half/checkpoint"
    rm -f "$half/model.onnx"
    check "$1 $3: resume" run "$1" "$2" "$3" --resume "$half"
    check "$1 $3: the same bytes" same "$whole" "$half"
}

# Several at a time: a process has a GPU to open and kernels to compile.
number=0
for dir; do
    for model in "$dir"/gpt*23.onnx "$dir"/llama*23.onnx "$dir"/gpt2_asis.dynamo18.onnx; do
        [ -f "$model" ] || continue
        base=${model%.onnx}
        for recipe in bf16-adam8 coat fp8-delayed fp8-row fp8-block; do
            number=$((number + 1))
            (one "$model" "${base%.*}.data.npz" $recipe $number) >"$work/$number.out" &
            [ $((number % ${JOBS:-8})) -eq 0 ] && wait
        done
    done
done
wait
grep -h "^FAILED" "$work"/*.out
passed=$(cat "$work"/*.out | grep -c '^ok ')
failed=$(cat "$work"/*.out | grep -c '^FAILED ')
echo "resume: $passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `make demo`: a GPT-2 with 4 layers, 128 wide, learns to write C, byte by byte, from the sources of
# this very project. About a minute on two cores.   usage: samples/demo.sh BUILD
set -eu
build=$1
steps=${STEPS:-150}
mkdir -p "$build/demo"
# The corpus: every source file; the last twentieth is kept for evaluation.
find include base ir frontend passes codegen runtime driver -name '*.[ch]' -o -name '*.def' |
    LC_ALL=C sort | xargs cat >"$build/demo/all.txt"
bytes=$(wc -c <"$build/demo/all.txt")
held=$((bytes / 20))
head -c $((bytes - held)) "$build/demo/all.txt" >"$build/demo/corpus.txt"
tail -c $held "$build/demo/all.txt" >"$build/demo/held-out.txt"
n=1
while [ -e "$build/demo/run-$n" ]; do n=$((n + 1)); done
run=$build/demo/run-$n

echo "training samples/models/gpt-bytes.onnx on $((bytes - held)) bytes of C, $steps steps"
"$build/lathe" train samples/models/gpt-bytes.onnx --data "$build/demo/corpus.txt" -o "$run" \
    --batch 16 --seq 128 --lr 2e-3 --schedule cosine:warmup=10,floor=0.1 --clip 1 --steps "$steps" \
    --eval "$build/demo/held-out.txt"

awk -F'"loss":' '/^{"step":/ && NF > 1 { split($2, a, ","); if (!first) first = a[1]; last = a[1] } END {
    printf "\nThe loss fell from %.3f to %.3f nats per byte", first, last
    printf " (guessing blindly costs 5.545).\n" }' "$run/metrics.jsonl"
cat <<END
The run is in $run: metrics.jsonl, TensorBoard events, checkpoint/, model.onnx.
What to type next:
  $build/lathe eval $run --data $build/demo/held-out.txt --batch 16 --seq 128
  $build/lathe train samples/models/gpt-bytes.onnx --data $build/demo/corpus.txt --batch 16 --seq 128 \\
      --lr 5e-4 --steps $((steps * 2)) --resume $run
  tensorboard --logdir $build/demo
  $build/lathe info $run/model.onnx
END

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Whether low precision costs accuracy: trains one network on real text under several recipes and seeds and prints
# the loss on held-out text at the end of each run. Not a test: nothing here can fail on a figure.
#
# usage: tests/bench/fidelity.sh LATHE MODEL.onnx CORPUS OUT [STEPS] NAME=RECIPE[,OPTION..]:SEED..
#   tests/bench/fidelity.sh build/lathe gpt25m.onnx corpus runs 2000 bf16=bf16:1 coat=coat:1 b999=coat,--betas,0.9,0.999:1
# CORPUS holds train.txt and valid.txt (fidelity_corpus.sh). MODEL's own matrices are drawn anew for each seed. A run that is
# there is not run again.
set -u
lathe=$1 model=$2 corpus=$3 out=$4
shift 4
steps=2000
case $1 in *[!0-9]*) ;; *) steps=$1 && shift ;; esac
mkdir -p "$out"
for spec; do
    name=${spec%%=*} rest=${spec#*=}
    seed=${rest##*:} how=${rest%:*}
    run=$out/$name.$seed
    recipe=${how%%,*} options=
    [ "$recipe" != "$how" ] && options=$(echo "${how#*,}" | tr ',' ' ' | sed 's/--betas \([^ ]*\) /--betas \1,/')
    if [ ! -e "$run/done" ]; then
        rm -rf "$run"
        # shellcheck disable=SC2086
        "$lathe" train "$model" --data "$corpus/train.txt" --eval "$corpus/valid.txt" --loss 'next_token(logits)' \
            -o "$run" --recipe "$recipe" --steps "$steps" --seed "$seed" --init-random 0.02 --lr 0.001 --betas 0.9,0.95 \
            --weight-decay 0.1 --clip 1 --schedule cosine:warmup=100,floor=0.1 --quiet $options >"$out/$name.$seed.log" 2>&1 ||
            { echo "$name seed $seed failed: $(tail -n 1 "$out/$name.$seed.log")" && continue; }
        : >"$run/done"
    fi
    echo "$name $seed $(grep -o '"eval_loss": *[0-9.]*' "$run/metrics.jsonl" | tail -n 1 | sed 's/.*: *//')" \
        "$(grep -o '"ms": *[0-9.]*' "$run/metrics.jsonl" | tail -n 1 | sed 's/.*: *//')"
done

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The command line end to end: every command, every error of the contract, interruption and resume.
# usage: tests/cli.sh BUILD
set -u
build=$(cd "$1" && pwd)
root=$(pwd)
passed=0 failed=0 skipped=0
tmp=$(mktemp -d)
mounted=
clean() {
    [ -n "$mounted" ] && umount "$mounted"
    rm -rf "$tmp"
}
trap clean EXIT
cd "$tmp" || exit 1
models=$root/tests/models
mlp=$models/mlp.dynamic18.onnx
fixture=$build/tests/fixture
lathe() { timeout 120 "$build/lathe" "$@"; }
get() { "$fixture" get "$@"; }

ok() { passed=$((passed + 1)); }
bad() {
    failed=$((failed + 1))
    echo "cli: FAILED: $1"
    for f in out err; do [ -s $f ] && sed "s/^/    $f: /" $f | cut -c1-300 | head -6; done
}
# check NAME COMMAND...: succeeds
check() {
    name=$1
    shift
    if "$@" >out 2>err; then ok; else bad "$name"; fi
}
# error NAME CODE PATTERN COMMAND...: that exit code, and one line on stderr that says why
error() {
    name=$1 code=$2 pattern=$3
    shift 3
    "$@" >out 2>err
    rc=$?
    if [ $rc != "$code" ]; then
        bad "$name: exit code $rc, expected $code"
    elif [ "$(grep -c '^lathe: error: ' err)" != 1 ] || grep -qv '^lathe: ' err; then
        bad "$name: not one line of error"
    elif ! grep -q -- "$pattern" err; then
        bad "$name: the message does not say: $pattern"
    elif [ -s out ]; then
        bad "$name: something on standard output"
    else
        ok
    fi
}
absent() { [ ! -e "$1" ]; }
equal() { [ "$1" = "$2" ] || { echo "$1 is not $2"; false; }; }
contains() { grep -q -- "$1" "$2"; }

# ---- data ----------------------------------------------------------------------------------------
"$fixture" data good.npz x:f32:24x12:randn labels:i64:24:mod=5 || exit 1
"$fixture" data good.safetensors x:f32:24x12:randn labels:i64:24:mod=5
"$fixture" data renamed.npz features:f32:24x12:randn labels:i32:24:mod=5
"$fixture" data shape.npz x:f32:24x13:randn labels:i64:24:mod=5
"$fixture" data type.npz x:i64:24x12:mod=3 labels:i64:24:mod=5
"$fixture" data missing.npz y:f32:24x12:randn labels:i64:24:mod=5
"$fixture" data nolabels.npz x:f32:24x12:randn
"$fixture" data range.npz x:f32:24x12:randn labels:i64:24:99
"$fixture" data negative.npz x:f32:24x12:randn labels:i64:24:-3
"$fixture" data uneven.npz x:f32:24x12:randn labels:i64:23:mod=5
"$fixture" data few.npz x:f32:3x12:randn labels:i64:3:mod=5
"$fixture" data odd.npz x:f32:23x12:randn labels:i64:23:mod=5
"$fixture" data same.npz x:f32:8x12:randn labels:i64:8:mod=5
"$fixture" data huge.npz x:f32:24x12:randn target:f32:24x5:8e18
"$fixture" data nan.npz x:f32:24x12:nan labels:i64:24:mod=5
"$fixture" data nan-labels.npz x:f32:24x12:randn labels:f32:24:nan
ce="cross_entropy(logits, labels)"

# ---- help and lists ------------------------------------------------------------------------------
check "--help" lathe --help
for c in train eval run info plan dump opt passes ops recipes devices compile; do
    check "--help lists $c" sh -c "'$build/lathe' --help | grep -q '^  $c '"
    check "$c --help" lathe $c --help
done
check "--version" sh -c "'$build/lathe' --version | grep -qx '[0-9]*\.[0-9]*\.[0-9]*'"
"$build/lathe" >out 2>err
[ $? = 2 ] && [ ! -s out ] && ok || bad "no command is exit 2"
error "unknown command" 2 "no command is called 'trane'" lathe trane
check "passes" sh -c "'$build/lathe' passes | grep -q '^optimizer '"
check "passes show" sh -c "'$build/lathe' passes show grad | grep -q 'before *optimizer'"
check "ops" sh -c "'$build/lathe' ops | grep -qx matmul"
check "ops show" sh -c "'$build/lathe' ops show matmul | grep -q operands"
check "recipes" sh -c "'$build/lathe' recipes | grep -q '^fp32 '"
check "recipes: bf16" sh -c "'$build/lathe' recipes | grep -q '^bf16 '"
check "recipes: adam8" sh -c "'$build/lathe' recipes | grep -q '^bf16-adam8 '"
check "recipes show" sh -c "'$build/lathe' recipes show bf16 | grep -q '^compute = bf16'"
error "unknown pass" 2 "no pass is called" lathe passes show nothing
lines=$(printf 'a\nb\033[31m')
error "an argument of two lines: the command" 2 "'a?b?\[31m'" lathe "$lines"
error "an argument of two lines: an option" 2 "a?b" lathe info "$mlp" "--$lines"
error "an argument of two lines: a value" 2 "a?b" lathe info "$mlp" --batch "$lines"
error "unknown op" 2 "no op is called" lathe ops show nothing
error "unknown recipe in the list" 2 "no recipe is called" lathe recipes show nothing
lathe --help >/dev/full 2>err
[ $? = 1 ] && : >out && contains '^lathe: error: standard output' err && ok || bad "full standard output"

# ---- info ----------------------------------------------------------------------------------------
check "info" sh -c "'$build/lathe' info $mlp | grep -q '^trained a.weight f32\[24,12\]'"
check "info names symbolic dimensions" sh -c "'$build/lathe' info $mlp | grep -q '^input *x f32\[batch,12\]'"
for m in "$models"/*.onnx; do
    check "info --json $(basename "$m")" sh -c "'$build/lathe' info --json '$m' > info.json && '$fixture' json info.json"
done
lathe info --json "$mlp" >info.json
check "info: inputs" equal "$(get info.json 0 inputs.0.name)" x
check "info: parameters" equal "$(get info.json 0 parameters.0.decision)" trained
check "info: elements" equal "$(get info.json 0 trained_elements)" 485
check "info: nothing unsupported" equal "$(get info.json 0 unsupported)" "[]"
check "info --freeze" sh -c "'$build/lathe' info $mlp --freeze '^a[.]' | grep -q '^frozen *a.weight'"
error "info: bad regex" 2 "" lathe info "$mlp" --freeze '('

# ---- bad models ----------------------------------------------------------------------------------
echo "this is no model" >text.onnx
: >empty.onnx
"$fixture" head "$mlp" 1500 cut.onnx
mkdir nothing
for c in info plan dump "train --data good.npz -o never" "eval --data good.npz" "run --data good.npz -o never.npz"; do
    # shellcheck disable=SC2086
    set -- $c
    command=$1
    shift
    error "$command: no such file" 2 "absent.onnx" lathe "$command" absent.onnx "$@"
    error "$command: not ONNX" 2 "text.onnx" lathe "$command" text.onnx "$@"
    error "$command: empty file" 2 "empty.onnx" lathe "$command" empty.onnx "$@"
    error "$command: truncated" 2 "cut.onnx" lathe "$command" cut.onnx "$@"
done
error "directory without a model" 2 "nothing" lathe info nothing
mkdir one two
cp "$mlp" one/m.onnx
check "a directory with one model" lathe info one
cp "$mlp" two/a.onnx && cp "$mlp" two/b.onnx
error "directory with two models" 2 "two" lathe info two
check "nothing was made on the way" absent never
check "nothing was made on the way" absent never.npz

# External data: missing, too short, and right.
mkdir ext
cp "$models/mlp.external18.onnx" ext/
error "external data is missing" 2 "mlp.external18.onnx.data" lathe info ext/mlp.external18.onnx
"$fixture" head "$models/mlp.external18.onnx.data" 100 ext/mlp.external18.onnx.data
error "external data is too short" 2 "mlp.external18.onnx.data" lathe info ext/mlp.external18.onnx
cp "$models/mlp.external18.onnx.data" ext/
check "external data" lathe info ext/mlp.external18.onnx

# ---- train: what it writes -----------------------------------------------------------------------
t="train $mlp --batch 8 --loss"
train() { lathe train "$mlp" --batch 8 --loss "$ce" --quiet "$@"; }
check "train" train --data good.npz -o run --epochs 2 --save-every 2 --clip 1 --dump-grads grads.safetensors
for f in run/metrics.jsonl run/model.onnx run/checkpoint/6/tensors.safetensors run/checkpoint/6/state.json; do
    check "train wrote $f" test -s $f
done
check "train wrote TensorBoard events" sh -c "ls run/events.out.tfevents.*"
check "metrics: six steps and the configuration" equal "$(wc -l <run/metrics.jsonl)" 7
for k in lathe model data loss recipe device device_name device_arch optimizer lr betas eps weight_decay clip schedule batch steps seed; do
    check "configuration has $k" get run/metrics.jsonl 1 $k
done
check "configuration: optimizer" equal "$(get run/metrics.jsonl 1 optimizer)" adamw
check "configuration: steps" equal "$(get run/metrics.jsonl 1 steps)" 6
for k in step loss lr grad_norm ms samples_per_s memory_bytes; do
    check "metrics have $k" get run/metrics.jsonl -1 $k
done
check "metrics: steps count from 1" equal "$(get run/metrics.jsonl 2 step)" 1
check "metrics: last step" equal "$(get run/metrics.jsonl -1 step)" 6
check "checkpoint: state is JSON" "$fixture" json run/checkpoint/6/state.json
check "checkpoint: states of the optimizer" sh -c "'$fixture' list run/checkpoint/6/tensors.safetensors | grep -q '^state/'"
check "gradients: one per parameter" equal "$("$fixture" list grads.safetensors | wc -l)" 6
check "gradients: names" sh -c "'$fixture' list grads.safetensors | grep -qx 'a.weight f32\[24,12\]'"
check "--keep" sh -c "[ \$(ls run/checkpoint | wc -l) = 3 ]"
check "no temporary files stay" sh -c "! find run | grep -i tmp"
error "a run directory is not overwritten" 2 "run" train --data good.npz -o run
check "safetensors as data" train --data good.safetensors -o run-st --steps 2
check "the same from safetensors and npz" equal "$(get run-st/metrics.jsonl 2 loss)" "$(get run/metrics.jsonl 2 loss)"
check "--map, narrow labels" train --data renamed.npz --map x=features -o run-map --steps 1
check "the same with --map" equal "$(get run-map/metrics.jsonl 2 loss)" "$(get run/metrics.jsonl 2 loss)"
check "one thread" train --data good.npz -o run-t1 --steps 6 --clip 1 --threads 1
check "the same with one thread" "$fixture" same run-t1/checkpoint/6/tensors.safetensors run/checkpoint/6/tensors.safetensors
check "--reference" train --data good.npz -o run-ref --steps 6 --clip 1 --reference
check "nearly the same unoptimised" "$fixture" same run-ref/checkpoint/6/tensors.safetensors \
    run/checkpoint/6/tensors.safetensors 1e-3
check "frozen stays" train --data good.npz -o run-frozen --steps 2 --freeze '^a[.]' --dump-grads frozen.safetensors
check "frozen has no gradient" sh -c "! '$fixture' list frozen.safetensors | grep -q '^a[.]'"
for o in adamw adam sgd; do
    check "--optimizer $o" train --data same.npz -o run-$o --steps 20 --optimizer $o --lr 0.01
    check "the loss falls with $o" sh -c "awk -v a=\$('$fixture' get run-$o/metrics.jsonl 2 loss) \
        -v b=\$('$fixture' get run-$o/metrics.jsonl -1 loss) 'BEGIN { exit !(b < a) }'"
done
check "--schedule" train --data good.npz -o run-cos --steps 4 --schedule cosine:warmup=2 --lr 0.01
check "--schedule: warm-up" equal "$(get run-cos/metrics.jsonl 2 lr)" 0.0050000000000000001
check "--init-random" train --data good.npz -o run-init --steps 1 --init-random 0.02
check "--eval" train --data good.npz -o run-eval --steps 4 --eval good.npz --eval-every 2
check "--eval: a record" contains eval_loss run-eval/metrics.jsonl
check "--profile" sh -c "'$build/lathe' train $mlp --batch 8 --loss '$ce' --data good.npz -o run-prof --steps 2 --profile | grep -q '%.*ms'"

# ---- train: what it refuses ----------------------------------------------------------------------
refuse() { # NAME PATTERN OPTIONS...
    name=$1 pattern=$2
    shift 2
    error "train: $name" 2 "$pattern" train -o refused "$@"
    check "train: $name leaves nothing" absent refused
}
refuse "shape" "x" --data shape.npz --steps 1
refuse "type" "x" --data type.npz --steps 1
refuse "missing array" "x" --data missing.npz --steps 1
refuse "missing labels" "labels" --data nolabels.npz --steps 1
refuse "uneven arrays" "labels" --data uneven.npz --steps 1
refuse "fewer samples than a batch" "few.npz" --data few.npz --steps 1
refuse "labels that are no integers" "labels" --data nan-labels.npz --steps 1
refuse "no such data" "absent.npz" --data absent.npz --steps 1
refuse "text as data" "text.onnx" --data text.onnx --steps 1
refuse "unknown option" "--stepz" --data good.npz --stepz 1
refuse "unknown recipe" "no recipe is called 'fp7'" --data good.npz --recipe fp7
refuse "unknown optimizer" "no optimizer is called 'magic'" --data good.npz --optimizer magic
refuse "unknown device" "no device is called 'tpu'" --data good.npz --device tpu
refuse "a device number that is none" "no device is called 'cuda:x'" --data good.npz --device cuda:x
refuse "unknown schedule" "zigzag" --data good.npz --schedule zigzag
refuse "a number that is none" "'many'" --data good.npz --steps many
refuse "a negative rate" "--lr" --data good.npz --lr -1
refuse "betas" "--betas" --data good.npz --betas 0.9
refuse "both --steps and --epochs" "not both" --data good.npz --steps 1 --epochs 1
refuse "--eval-every without --eval" "--eval-every needs --eval" --data good.npz --steps 2 --eval-every 1
refuse "evaluation data that does not fit" "shape.npz" --data good.npz --steps 2 --eval shape.npz
refuse "an option of another optimizer" "adamw has no momentum" --data good.npz --steps 2 --momentum 0.9
refuse "an option without its value" "--lr needs a value" --data good.npz --lr
refuse "a loss that is none" "" --data good.npz --loss "cross_entropy(nothing, labels)"
refuse "nothing left to train" "no parameter to train" --data good.npz --steps 1 --freeze .
error "train: no data" 2 "--data is missing" lathe train "$mlp"
error "train: no model" 2 "missing argument" lathe train --data good.npz
error "train: labels out of range" 2 "99" train --data range.npz --steps 1 -o range
check "labels out of range: no weights" absent range/model.onnx
error "train: negative labels" 2 "-3" train --data negative.npz --steps 1 -o range2
: >file
error "train: unwritable run directory" 2 "file" train --data good.npz --steps 1 -o file/run
error "train: the run directory is a file" 2 "file" train --data good.npz --steps 1 -o file
error "train: resume from nothing" 2 "" train --data good.npz --resume absent
error "train: resume another model" 2 "" lathe train "$models/conv1.dynamo18.onnx" --data good.npz --resume run
error "train: resume with another optimizer" 2 "another model or optimizer" train --data good.npz --resume run \
    --optimizer sgd --steps 9
error "train: resume with too few steps" 2 "already at step 6" train --data good.npz --resume run --steps 3
error "train: a batch that the file fixes" 2 "fixed" lathe train "$models/mlp.dynamo18.onnx" --data good.npz \
    --batch 4 --steps 1 --loss "$ce" -o refused

# ---- losses that are not finite ------------------------------------------------------------------
error "a rate that explodes" 1 "not finite\|NaN\|infinite\|inf" train --data good.npz --optimizer sgd --lr 1e6 \
    --steps 200 --weight-decay 0 -o run-inf
grep -q 'node_' err && ok || bad "the diagnostic names an op"
check "no weights after a failure" absent run-inf/model.onnx
error "data with NaN" 1 "finite\|NaN" train --data nan.npz --steps 2 -o run-nan
check "the last record says nan" sh -c "tail -1 run-nan/metrics.jsonl | grep -q '\"loss\":\"nan\"'"
check "every record is JSON" sh -c "n=0; while read -r l; do n=\$((n+1)); '$fixture' get run-nan/metrics.jsonl \$n '' >/dev/null 2>&1; [ \$? -le 2 ] || exit 1; done < run-nan/metrics.jsonl"

# ---- resume --------------------------------------------------------------------------------------
full="--data good.npz --steps 10 --schedule cosine:warmup=2 --save-every 5 --keep 0 --seed 7"
# shellcheck disable=SC2086
check "an uninterrupted run" train $full -o whole
cp -r whole half
rm -r half/checkpoint/10 half/model.onnx
# shellcheck disable=SC2086
check "resume" train $full --resume half
check "resume: the same tensors" "$fixture" same half/checkpoint/10/tensors.safetensors whole/checkpoint/10/tensors.safetensors
check "resume: the same model" cmp half/model.onnx whole/model.onnx
losses() { sed 's/.*"step":\([0-9]*\),"loss":\([^,]*\),.*"grad_norm":\([^,]*\),.*/\1 \2 \3/;1d' "$1" | grep '^[0-9]'; }
losses whole/metrics.jsonl >a.txt
losses half/metrics.jsonl | sort -n -u >b.txt
check "resume: the same metrics" cmp a.txt b.txt
check "resume with another seed" train --data good.npz --resume half --steps 11 --seed 8
cp err seed.err
check "resume with another seed: a warning" contains "warning.*--seed was 7" seed.err
rm -r half/checkpoint/11
rm -r half/checkpoint/10
"$fixture" head half/checkpoint/5/tensors.safetensors -7 short.safetensors
cp short.safetensors half/checkpoint/5/tensors.safetensors
# shellcheck disable=SC2086
error "resume from a damaged checkpoint" 2 "" train $full --resume half

# ---- 8-bit states --------------------------------------------------------------------------------
small="$full --recipe adam8"
# shellcheck disable=SC2086
check "8-bit states" train $small -o whole8
cp -r whole8 half8
rm -r half8/checkpoint/10 half8/model.onnx
# shellcheck disable=SC2086
check "8-bit states: resume" train $small --resume half8
check "8-bit states: the same bytes" cmp half8/checkpoint/10/tensors.safetensors whole8/checkpoint/10/tensors.safetensors
check "8-bit states: the same model" cmp half8/model.onnx whole8/model.onnx
check "8-bit states: codes" grep -q '"state/a.weight.m":{"dtype":"F8_E4M3"' whole8/checkpoint/10/tensors.safetensors
check "8-bit states: scales" grep -q '"state/a.weight.v.amax":{"dtype":"F32"' whole8/checkpoint/10/tensors.safetensors
check "8-bit states: exponents" grep -q '"state/a.weight.v.k":{"dtype":"U8"' whole8/checkpoint/10/tensors.safetensors
error "8-bit states: resume with another recipe" 2 "another model or optimizer" train --data good.npz --resume whole8 --steps 11
check "8-bit states: accumulation" train --data good.npz --steps 2 --accumulate 2 --recipe adam8 -o sum8
check "gradients that are not finite: left out" lathe train "$mlp" --batch 1 --loss "mse(logits, target)" --quiet --data huge.npz --steps 3 --save-every 1 --keep 0 --recipe adam8 -o huge8
cp err huge.err
check "gradients that are not finite: a warning" contains "step 3 is not finite; the step is left out (3 so far)" huge.err
check "gradients that are not finite: counted" grep -q '"skipped":3' huge8/metrics.jsonl
check "gradients that are not finite: nothing changes" cmp huge8/checkpoint/1/tensors.safetensors huge8/checkpoint/3/tensors.safetensors
error "gradients that are not finite: a recipe that stops" 1 "inf" lathe train "$mlp" --batch 1 --loss "mse(logits, target)" --quiet --data huge.npz --steps 3 -o huge32
for r in "state.m = e4m3 group 100" "state.m = e3m4" "state.m = f32 group 128" "state.m = e4m3 stochastic" "state.v = e4m3 often" \
    "state.v = e4m3 expand 1" "state.v = e4m3 contract" "nonfinite = maybe"; do
    echo "$r" >wrong.recipe
    error "a recipe with '$r'" 2 "wrong.recipe:1: expected" train --data good.npz --steps 1 -o never --recipe wrong.recipe
done
printf 'state.m = e4m3 group 64\nstate.v = e5m2 group 128 expand full contract\n' >wrong.recipe
error "a recipe with two group sizes" 2 "expected one group size" train --data good.npz --steps 1 -o never --recipe wrong.recipe
printf 'state.m = e5m2 group 64 expand full contract\nstate.v = e4m3 group 64 expand 229376 contract stochastic\nstate.wide = b.*, *bias\n' >own.recipe
check "a recipe of one's own" train --data good.npz --steps 3 --recipe own.recipe -o own8
check "a recipe of one's own: wide states" grep -q '"state/a.bias.m":{"dtype":"F32"' own8/checkpoint/3/tensors.safetensors

# ---- 8-bit products ------------------------------------------------------------------------------
gpt=$models/gpt.dynamo18.onnx
"$fixture" data tokens.npz input_ids:i64:6x16:mod=7 labels:i64:6x16:mod=64
low_train() { lathe train "$gpt" --loss "$ce" --quiet --data tokens.npz --steps 6 --schedule cosine:warmup=2 --save-every 3 --keep 0 --seed 7 "$@"; }
for r in coat fp8-delayed; do
    check "$r" low_train --recipe $r -o whole-$r
    cp -r whole-$r half-$r
    rm -r half-$r/checkpoint/6 half-$r/model.onnx
    check "$r: resume" low_train --recipe $r --resume half-$r
    check "$r: the same bytes" cmp half-$r/checkpoint/6/tensors.safetensors whole-$r/checkpoint/6/tensors.safetensors
    check "$r: the same model" cmp half-$r/model.onnx whole-$r/model.onnx
done
check "fp8-delayed: histories" grep -q '"state/node_addmm.gradient.amax":{"dtype":"F32","shape":\[16\]' whole-fp8-delayed/checkpoint/6/tensors.safetensors
check "fp8-delayed: accumulation" low_train --accumulate 2 --recipe fp8-delayed -o sum-delayed
check "--numerics" low_train --recipe coat --numerics 3 -o numbers-coat
check "--numerics: states" grep -q '^{"step":6,.*\.m\.zero":[0-9.]*,.*\.m\.k":[1-9].*\.v\.k_low":' numbers-coat/metrics.jsonl
check "--numerics: every third step" sh -c 'test $(grep -c "m.zero" numbers-coat/metrics.jsonl) = 2'
check "--numerics: the same run" cmp numbers-coat/model.onnx whole-coat/model.onnx
check "--numerics: histories" low_train --recipe fp8-delayed --numerics 3 --lr 1 -o numbers-delayed
cp err warned.txt
check "--numerics: growth" grep -q '^{"step":6,.*gradient.amax":.*gradient.amax.growth":' numbers-delayed/metrics.jsonl
check "--numerics: saturation is told" grep -q "lathe: warning: step [36]: 'node_.*amax' is .* times what its scale covers" warned.txt
check "plan --products" lathe plan "$gpt" --loss "$ce" --recipe coat --products
cp out products.txt
check "plan --products: 8-bit" grep -q "^8-bit  *12 products, " products.txt
check "plan --products: a gradient" grep -q "1 x weight gradient  *.* e4m3 x e5m2 tensor" products.txt
check "plan --products: why not" grep -q "^ .* the loss reads it (products.head)" products.txt
for r in "products = e4m3\nproducts.scope = row\nproducts.scale = delayed 4" "products = e4m3\nproducts.scope = 128"  "products = e5m2" \
    "saved = e4m3 group 0" "for *: compute = f32"; do
    printf 'compute = bf16\nactivations = bf16\n%b\n' "$r" >wrong.recipe
    error "a recipe with '$r'" 2 "wrong.recipe.*: expected" low_train --recipe wrong.recipe -o never
done

# SIGTERM: a checkpoint, 75, and resumable.
"$build/lathe" train "$mlp" --data good.npz --batch 8 --loss "$ce" --quiet -o term --steps 100000000 >out 2>err &
pid=$!
tries=0
while [ "$(cat term/metrics.jsonl 2>/dev/null | wc -l)" -lt 5 ] && [ $tries -lt 100 ]; do sleep 0.1; tries=$((tries + 1)); done
kill -TERM $pid
wait $pid
check "SIGTERM: exit 75" equal $? 75
check "SIGTERM: weights" test -s term/model.onnx
last=$(get term/metrics.jsonl -1 step)
check "SIGTERM: a checkpoint of the last step" test -s "term/checkpoint/$last/state.json"
check "SIGTERM: resumable" train --data good.npz --resume term --steps $((last + 2))
check "SIGTERM: goes on where it was" equal "$(get term/metrics.jsonl -1 step)" $((last + 2))

# kill -9 at any moment: only whole checkpoints, and the run goes on.
for pause in 0.05 0.13 0.22 0.31; do
    rm -rf killed
    "$build/lathe" train "$mlp" --data good.npz --batch 8 --loss "$ce" --quiet -o killed --steps 100000000 --save-every 1 \
        --keep 0 >out 2>err &
    pid=$!
    tries=0
    while [ ! -e killed/checkpoint/1 ] && [ $tries -lt 100 ]; do sleep 0.05; tries=$((tries + 1)); done
    sleep $pause
    kill -KILL $pid
    wait $pid 2>/dev/null
    whole=1
    for d in killed/checkpoint/[0-9]*; do
        case ${d##*/} in *[!0-9]*) continue ;; esac
        "$fixture" json "$d/state.json" 2>>err && "$fixture" list "$d/tensors.safetensors" >/dev/null 2>>err || whole=0
    done
    check "kill -9: checkpoints are whole" equal $whole 1
    n=$(ls killed/checkpoint | grep -x '[0-9]*' | sort -n | tail -1)
    check "kill -9: resumable" train --data good.npz --resume killed --steps $((n + 1))
done

# A full disk.
mkdir small
if mount -t tmpfs -o size=100k lathe-test small 2>/dev/null; then
    mounted=$tmp/small
    "$fixture" data tokens.npz input_ids:i64:2x16:mod=60 labels:i64:2x16:mod=60
    lathe train "$models/gpt.dynamo18.onnx" --data tokens.npz --loss "$ce" --steps 2 --quiet -o small/run >out 2>err
    rc=$?
    cp err full.err
    case $rc in 1 | 2) ok ;; *) bad "full disk: exit code $rc" ;; esac
    check "full disk: says so" contains '^lathe: error: .*small/run.*No space' full.err
    check "full disk: no half model" absent small/run/model.onnx
    check "full disk: no half checkpoint" sh -c "! ls small/run/checkpoint | grep -x '[0-9]*'"
    umount small && mounted=
else
    skipped=$((skipped + 1))
    echo "cli: a full disk cannot be made here; skipped"
fi

# ---- eval and run --------------------------------------------------------------------------------
check "eval" sh -c "'$build/lathe' eval $mlp --data good.npz --batch 8 --loss '$ce' > eval.json"
check "eval: one line of JSON" sh -c "[ \$(wc -l < eval.json) = 1 ] && '$fixture' json eval.json"
for k in loss accuracy samples; do check "eval: $k" get eval.json 0 $k; done
check "eval: samples" equal "$(get eval.json 0 samples)" 24
check "eval: a batch that does not divide" sh -c "'$build/lathe' eval $mlp --data good.npz --batch 7 --loss '$ce' > eval7.json"
check "eval: no sample is left out" equal "$(get eval7.json 0 samples) $(get eval7.json 0 left_out)" "24 0"
check "eval: the same for any batch" sh -c "awk -v a=\$('$fixture' get eval.json 0 loss) -v b=\$('$fixture' get eval7.json 0 loss) \
    'BEGIN { d = a - b; exit !(d * d < 1e-10 * a * a) }'"
check "eval: a batch that the file fixes" sh -c "'$build/lathe' eval $models/mlp.dynamo18.onnx --data odd.npz --loss '$ce' > odd.json"
check "eval: says what is left out" sh -c "[ \$('$fixture' get odd.json 0 left_out) -gt 0 ]"
check "eval a run" sh -c "'$build/lathe' eval whole --data good.npz --batch 8 --loss '$ce' > after.json"
check "eval: training helped" sh -c "awk -v a=\$('$fixture' get eval.json 0 loss) -v b=\$('$fixture' get after.json 0 loss) \
    'BEGIN { exit !(b < a) }'"
check "run" lathe run "$mlp" --data good.npz --batch 8 -o out.npz
check "run: every output" equal "$("$fixture" list out.npz)" "logits f32[24,5]"
check "run: a batch that does not divide" lathe run "$mlp" --data good.npz --batch 7 -o out7.npz
check "run: the same for any batch" "$fixture" same out7.npz out.npz 1e-6
error "run: an output that cannot be written" 2 "absent/out.npz" lathe run "$mlp" --data good.npz --batch 8 -o absent/out.npz
error "run: no output" 2 "-o OUT.npz is missing" lathe run "$mlp" --data good.npz
error "eval: no data" 2 "--data is missing" lathe eval "$mlp"
error "eval: labels out of range" 2 "99" lathe eval "$mlp" --data range.npz --batch 8 --loss "$ce"

# ---- devices -------------------------------------------------------------------------------------
# On a driver of host memory whose kernels do nothing: weights stay as they are, losses are 0.
fakes=$build/tests/fake
fake() { # [VARIABLE=VALUE...] COMMAND...
    timeout 120 env LD_LIBRARY_PATH="$fakes" LATHE_CUDA_LIBS="$fakes/nvrtc" LATHE_CACHE_DIR="$tmp/kernels" "$@"
}
fake_train() { # OPTIONS...
    fake "$build/lathe" train "$mlp" --batch 8 --loss "$ce" --quiet --data good.npz --device cuda "$@"
}
check "devices" sh -c "'$build/lathe' devices | grep -q '^cpu  .* threads'"
check "devices --json" sh -c "'$build/lathe' devices --json > devices.json && '$fixture' json devices.json"
if "$build/lathe" devices | grep -q '^cuda  .*no NVIDIA driver is installed'; then
    ok
    error "--device cuda without a driver" 2 "no NVIDIA driver is installed" \
        lathe train "$mlp" --batch 8 --loss "$ce" --data good.npz --device cuda -o never
    error "eval --device cuda without a driver" 2 "no NVIDIA driver is installed" \
        lathe eval "$mlp" --loss "$ce" --data good.npz --device cuda:0
    check "--device auto without a driver" train --data good.npz --steps 1 --device auto -o run-auto
    check "--device auto: the CPU" equal "$(get run-auto/metrics.jsonl 1 device)" cpu
else
    skipped=$((skipped + 1))
fi
check "devices: a GPU" sh -c "LD_LIBRARY_PATH='$fakes' LATHE_CUDA_LIBS='$fakes/nvrtc' '$build/lathe' devices >d.txt &&
    grep -q '^cuda:0  Fake GPU, sm_90, .* 132 SMs, driver for CUDA 13.0, NVRTC 13.0' d.txt"
check "devices: a GPU that is too old" sh -c "FAKE_CUDA_ARCH=75 LD_LIBRARY_PATH='$fakes' LATHE_CUDA_LIBS='$fakes/nvrtc' \
    '$build/lathe' devices >d.txt && grep -q '^cuda:0  cannot be used: .*7.5' d.txt"
check "a GPU: train" fake_train -o gpu --steps 3 --init-random 0.02 --eval good.npz --dump-grads gpu.safetensors --verbose
cp err gpu.err
check "a GPU: kernels are counted" contains 'note: cuda:0: kernels: compiled [1-9][0-9]*, cached 0, ' gpu.err
check "a GPU: its name" equal "$(get gpu/metrics.jsonl 1 device) $(get gpu/metrics.jsonl 1 device_name)" "cuda:0 Fake GPU"
check "a GPU: gradients" equal "$("$fixture" list gpu.safetensors | wc -l)" 6
check "a CPU with rate 0" train --data good.npz -o still --steps 3 --init-random 0.02 --lr 0 --device cpu
check "a GPU: weights go there and come back" cmp gpu/model.onnx still/model.onnx
check "a GPU: train from kept kernels" fake_train -o gpu2 --steps 3 --verbose --profile
cp err gpu.err
cp out gpu.out
check "a GPU: nothing is compiled twice" contains 'kernels: compiled 0, cached [1-9]' gpu.err
check "a GPU: memory as planned" equal "$(get gpu2/metrics.jsonl 1 memory_bytes)" "$(lathe plan "$mlp" --batch 8 --loss "$ce" \
    --data good.npz --arch 90 --json | sed -n 's/^ "bytes": \([0-9]*\),/\1/p')"
check "a GPU: --profile" contains '%.*ms  adam' gpu.out
cp -r gpu/checkpoint/3 ck3
check "a GPU: resume" fake_train --resume gpu --steps 4 --save-every 1
check "a GPU: checkpoints go there and come back" "$fixture" same ck3/tensors.safetensors gpu/checkpoint/4/tensors.safetensors
check "a GPU's run goes on on the CPU" lathe train "$mlp" --batch 8 --loss "$ce" --quiet --data good.npz --resume gpu --steps 5 --device cpu
check "a GPU by default" fake "$build/lathe" train "$mlp" --batch 8 --loss "$ce" --quiet --data good.npz --steps 1 -o gpu3
check "a GPU by default: its name" equal "$(get gpu3/metrics.jsonl 1 device)" cuda:0
check "a GPU: eval" fake "$build/lathe" eval "$mlp" --data good.npz --loss "$ce" --batch 7 --device cuda
check "a GPU: run" fake "$build/lathe" run "$mlp" --data good.npz --batch 7 -o gpu.npz --device cuda
check "a GPU: every output" equal "$("$fixture" list gpu.npz)" "logits f32[24,5]"
for f in kernels/*.cubin; do echo damaged >"$f"; done
check "damaged kernels" fake_train -o gpu4 --steps 1 --verbose
cp err gpu.err
check "damaged kernels are compiled again" contains 'kernels: compiled [1-9][0-9]*, cached 0' gpu.err
check "damaged kernels: no complaint" equal "$(grep -c -v ': note: ' gpu.err)" 0
check "kernels in XDG_CACHE_HOME" timeout 120 env -u LATHE_CACHE_DIR LD_LIBRARY_PATH="$fakes:$fakes/nvrtc" XDG_CACHE_HOME="$tmp/xdg" \
    "$build/lathe" train "$mlp" --batch 8 --loss "$ce" --quiet --data good.npz --steps 1 --device cuda -o gpu5
check "kernels in XDG_CACHE_HOME: there" sh -c "ls xdg/lathe/*.cubin"
gpu_error() { # NAME CODE PATTERN VARIABLE=VALUE OPTIONS...
    name=$1 code=$2 pattern=$3 variable=$4
    shift 4
    error "a GPU: $name" "$code" "$pattern" fake "$variable" "$build/lathe" train "$mlp" --batch 8 --loss "$ce" --quiet \
        --data good.npz --device cuda --steps 2 -o refused "$@"
    check "a GPU: $name: no weights" absent refused/model.onnx
    rm -rf refused
}
gpu_error "an old driver" 2 "older than CUDA 12.0" FAKE_CUDA_VERSION=11080
gpu_error "a driver without a GPU" 2 "finds none" FAKE_CUDA_COUNT=0
gpu_error "no such GPU" 2 "GPU number in \[0, 1), found 7" FAKE_CUDA_COUNT=1 --device cuda:7
gpu_error "an old GPU" 2 "8.0 or newer, found 7.5" FAKE_CUDA_ARCH=75
gpu_error "a kernel that fails" 1 "node_.*the GPU failed" FAKE_CUDA_FAIL=700
gpu_error "no memory" 1 "the plan needs .* MiB.*batch [0-9]* is the largest\|not even batch 1" FAKE_CUDA_MEMORY=1
rm -r kernels
gpu_error "a kernel that cannot be built" 1 "node_.*cannot compile .*error: the test does not like it" FAKE_NVRTC_FAIL=group.cu
check "a GPU that cannot be used: --device auto" fake FAKE_CUDA_ARCH=75 "$build/lathe" train "$mlp" --batch 8 --loss "$ce" --quiet \
    --data good.npz --steps 1 -o gpu6
cp err gpu.err
check "a GPU that cannot be used: a warning" contains '^lathe: warning: .*7.5; the CPU is used' gpu.err
packs() { # COMMAND...: on a machine with a compiler and no GPU
    LATHE_CUDA_LIBS=$fakes/nvrtc LATHE_CACHE_DIR=$tmp/kernels2 lathe compile "$mlp" --batch 8 --loss "$ce" --data good.npz "$@"
}
check "compile" sh -c "LATHE_CUDA_LIBS='$fakes/nvrtc' LATHE_CACHE_DIR='$tmp/kernels2' '$build/lathe' compile '$mlp' --batch 8 \
    --loss '$ce' --data good.npz -o mlp.pack >pack.out && grep -q '^[1-9][0-9]* kernels for sm_90 in mlp.pack' pack.out"
check "compile: another batch" packs -o other.pack --batch 4 --arch sm_90a
check "compile: another GPU" packs -o sm_80.pack --arch sm_80
rm -rf kernels
# Without a compiler: everything is in the file.
packed() { timeout 120 env LD_LIBRARY_PATH="$fakes" LATHE_CUDA_LIBS="$1" LATHE_CACHE_DIR="$tmp/kernels" "$build/lathe" train "$mlp" \
    --batch 8 --loss "$ce" --quiet --data good.npz --device cuda --steps 1 --verbose --compiled "$2" -o "$3"; }
check "--compiled" packed nowhere mlp.pack gpu7
cp err gpu.err
check "--compiled: nothing is compiled" contains 'kernels: compiled 0, cached [1-9].*from the compiled file' gpu.err
check "--compiled: no warning" equal "$(grep -c warning gpu.err)" 0
check "--compiled: nothing is kept" absent kernels
check "--compiled for another GPU" packed "$fakes/nvrtc" sm_80.pack gpu8
cp err gpu.err
check "--compiled for another GPU: one warning" equal "$(grep -c '^lathe: warning: .*sm_80.pack: kernels are missing' gpu.err)" 1
check "--compiled for another GPU: compiled here" contains 'kernels: compiled [1-9]' gpu.err
"$fixture" head mlp.pack -7 cut.pack
cp mlp.pack bad.pack
printf 'x' | dd of=bad.pack bs=1 seek=300 conv=notrunc 2>/dev/null
error "--compiled: cut off" 2 "cut.pack.*cut off" packed "$fakes/nvrtc" cut.pack refused
error "--compiled: damaged" 2 "bad.pack.*damaged" packed "$fakes/nvrtc" bad.pack refused
cp mlp.pack version.pack
printf '\377' | dd of=version.pack bs=1 seek=8 conv=notrunc 2>/dev/null
error "--compiled: another version" 2 "version.pack.*another version" packed "$fakes/nvrtc" version.pack refused
# Damage anywhere: one line of error, or it works.
bytes=$(wc -c <mlp.pack)
for i in 0 1 2 3 4 5 6 7 8 9; do
    cp mlp.pack flipped.pack
    printf '\245' | dd of=flipped.pack bs=1 seek=$((i * i * bytes / 100 + 3 * i)) conv=notrunc 2>/dev/null
    cmp -s mlp.pack flipped.pack && continue
    error "--compiled: byte $i flipped" 2 "flipped.pack" packed "$fakes/nvrtc" flipped.pack refused
done
for i in 1 39 40 $((bytes / 2)) $((bytes - 1)); do
    head -c "$i" mlp.pack >short.pack
    error "--compiled: only $i bytes" 2 "short.pack" packed "$fakes/nvrtc" short.pack refused
done
: >empty.pack
error "--compiled: an empty file" 2 "empty.pack" packed "$fakes/nvrtc" empty.pack refused
error "--compiled: another file" 2 "text.onnx.*something else" packed "$fakes/nvrtc" text.onnx refused
error "--compiled: no file" 2 "absent.pack" packed "$fakes/nvrtc" absent.pack refused
error "compile: no such GPU" 2 "found 'sm_70'" packs -o never --arch sm_70
error "compile: no output" 2 "-o FILE is missing" packs
check "compile: nothing was made on the way" absent never
"$fixture" data many.npz x:f32:20000x12:randn labels:i64:20000:mod=5
big() { # BATCH
    rm -rf gpu-big
    fake FAKE_CUDA_MEMORY=34 "$build/lathe" train "$mlp" --data many.npz --loss "$ce" --steps 1 --quiet --device cuda -o gpu-big --batch "$1"
}
error "out of GPU memory" 1 "the plan needs .* MiB.* of 34.0 .*batch [0-9]* is the largest that fits" big 20000
most=$(sed 's/.*; batch \([0-9]*\) is the largest.*/\1/' err)
case $most in *[!0-9]* | "") most=1 ;; esac
check "the largest batch fits" big "$most"
error "a larger one does not" 1 "batch $most is the largest that fits" big $((most + 100))
error "out of GPU memory, a batch that the file fixes" 1 "the file fixes the batch at" fake FAKE_CUDA_MEMORY=1 "$build/lathe" train \
    "$models/mlp.dynamo18.onnx" --data good.npz --loss "$ce" --quiet --device cuda -o never

# ---- tokens --------------------------------------------------------------------------------------
gpt=$root/samples/models/gpt-bytes.onnx
cat "$root"/include/lathe.h >corpus.txt
tok="--batch 2 --seq 16 --quiet"
# shellcheck disable=SC2086
check "any file as bytes" lathe train "$gpt" --data corpus.txt $tok --steps 2 -o bytes
check "metrics: tokens_per_s" get bytes/metrics.jsonl -1 tokens_per_s
# shellcheck disable=SC2086
check "next_token is the same" lathe train "$gpt" --data corpus.txt $tok --steps 2 --loss "next_token(logits)" -o bytes2
printf '\001\000\002\000\003\000%.0s' $(seq 200) >ids.bin
# shellcheck disable=SC2086
check "16-bit tokens" lathe train "$gpt" --data ids.bin $tok --steps 2 -o bin
printf '\377\377%.0s' $(seq 200) >big.bin
# shellcheck disable=SC2086
error "a token outside the vocabulary" 2 "65535" lathe train "$gpt" --data big.bin $tok --steps 1 -o big
printf 'ab' >tiny.txt
# shellcheck disable=SC2086
error "too few tokens" 2 "tiny.txt" lathe train "$gpt" --data tiny.txt $tok --steps 1 -o tiny
check "eval of tokens" sh -c "'$build/lathe' eval bytes --data corpus.txt --batch 2 --seq 16 | grep -q accuracy"

# ---- plan ----------------------------------------------------------------------------------------
check "plan" sh -c "'$build/lathe' plan $mlp --batch 8 --loss '$ce' | grep -q '^memory'"
check "plan --json" sh -c "'$build/lathe' plan $mlp --batch 8 --loss '$ce' --json > plan.json && '$fixture' json plan.json"
check "plan: the bytes that training held" equal "$(get plan.json 0 bytes)" "$(get run-adamw/metrics.jsonl -1 memory_bytes)"
check "plan --memory" sh -c "'$build/lathe' plan $mlp --loss '$ce' --memory 0.01 --batch 8 | grep -q '^largest'"
check "plan --inference" lathe plan "$mlp" --batch 8 --inference
check "plan --saved" sh -c "'$build/lathe' plan '$mlp' --batch 512 --loss '$ce' --saved | grep -q '^recomputed '"
error "plan: unknown recipe" 2 "no recipe" lathe plan "$mlp" --batch 8 --recipe none

# ---- dump and opt --------------------------------------------------------------------------------
d="$mlp --batch 8"
for after in import fold simplify cse loss grad optimizer dce; do
    # shellcheck disable=SC2086
    check "dump --after $after" lathe dump $d --loss "$ce" --after $after -o $after.lir
    check "opt reads it back" sh -c "'$build/lathe' opt $after.lir > again.lir && cmp $after.lir again.lir"
done
check "opt runs passes" sh -c "'$build/lathe' opt import.lir --passes simplify,cse,dce --no-locs | grep -q '^graph'"
check "opt from standard input" sh -c "'$build/lathe' opt - < import.lir | cmp - import.lir"
# shellcheck disable=SC2086
check "dump --stage plan" sh -c "'$build/lathe' dump $d --loss '$ce' --stage plan | grep -q matmul"
check "dump --after all" sh -c "'$build/lathe' dump $d --loss '$ce' --after all -o passes && ls passes/00-import.lir"
check "dump --format json" sh -c "'$build/lathe' dump $d --loss '$ce' --format json > dump.json && '$fixture' json dump.json"
check "dump --format dot" sh -c "'$build/lathe' dump $d --loss '$ce' --format dot | grep -q '^digraph'"
check "dump --format html" sh -c "'$build/lathe' dump $d --loss '$ce' --format html | grep -qi '<html'"
check "dump --inference" sh -c "'$build/lathe' dump $d --inference | grep -q matmul"
error "dump: unknown format" 2 "none of" lathe dump "$mlp" --format pdf
error "dump: unknown stage" 2 "none of graph, plan, cuda" lathe dump "$mlp" --stage soup
error "dump: unknown pass" 2 "no pass is called" lathe dump "$mlp" --batch 8 --loss "$ce" --after nothing
error "dump: an output that cannot be written" 2 "absent/x" lathe dump "$mlp" --batch 8 --loss "$ce" -o absent/x
error "opt: unknown pass" 2 "no pass is called 'magic'" lathe opt import.lir --passes magic
printf 'graph @g {\n  %%a = add(%%b, %%b) : f32[]\n}\n' >bad.lir
error "opt: bad text" 2 "bad.lir:2" lathe opt bad.lir
error "opt: not text" 2 "$(basename "$mlp")" lathe opt "$mlp"

# ---- quantize ------------------------------------------------------------------------------------
"$fixture" data q.npz w:f32:37x300:randn c:f64:2x3x5:0.3 i:i64:4:1 empty:f32:0x5:1
"$fixture" data q.safetensors h:bf16:6x40:randn
"$fixture" data q1.npz w:f32:37x300:randn
check "quantize: a table" sh -c "'$build/lathe' quantize q1.npz | grep -c 'e4m3\|e5m2\|int8' | grep -qx 20"
check "quantize: groups" lathe quantize q.npz --array w --format e4m3 --scope group:16 --scale bf16 -o groups.npz
equal "$("$fixture" list groups.npz | tr '\n' ' ')" "codes u8[37,300] scale f32[37,19] values f32[37,300] " >out 2>&1 && ok || bad "quantize: arrays of groups"
check "quantize: expansion" lathe quantize q.npz --array w --format e4m3 --expand -o expanded.npz
equal "$("$fixture" list expanded.npz | tr '\n' ' ')" "codes u8[37,300] scale f32[37,3] k f32[37,3] values f32[37,300] " >out 2>&1 && ok || bad "quantize: arrays of an expansion"
check "quantize: a constant" lathe quantize q.npz --array c --format e4m3 -o constant.npz
equal "$("$fixture" list constant.npz | tr '\n' ' ')" "codes u8[2,3,5] scale f32[] values f32[2,3,5] " >out 2>&1 && ok || bad "quantize: arrays of a tensor"
lathe quantize q.npz --array w --format e4m3 --scope row --json >row.json 2>err
"$fixture" json row.json >out 2>&1 && contains '"saturated_percent": 0,' row.json && ok || bad "quantize: --json"
check "quantize: bf16" lathe quantize q.safetensors --format int8 --scope block:4x16 --scale pow2
check "quantize: nothing" lathe quantize q.npz --array empty --format e5m2 --scope row -o nothing.npz
error "quantize: no such array" 2 "no array is called 'v'" lathe quantize q.npz --array v
error "quantize: several arrays" 2 "choose one with --array" lathe quantize q.npz --format e4m3
error "quantize: integers" 2 "expected an array of floating-point numbers, found i64" lathe quantize q.npz --array i
error "quantize: unknown format" 2 "expected --format e4m3, e5m2 or int8, found 'fp4'" lathe quantize q1.npz --format fp4
error "quantize: unknown scope" 2 "found 'group:0'" lathe quantize q1.npz --format e4m3 --scope group:0
error "quantize: a block of one number" 2 "found 'block:3'" lathe quantize q1.npz --format e4m3 --scope block:3
error "quantize: unknown scale" 2 "expected --scale f32, bf16 or pow2" lathe quantize q1.npz --format e4m3 --scale f16
error "quantize: -o without a format" 2 "format is missing" lathe quantize q1.npz -o x.npz
error "quantize: expansion of int8" 2 "needs --format e4m3 or e5m2" lathe quantize q1.npz --format int8 --expand
error "quantize: expansion of a tensor" 2 "needs --scope group:G" lathe quantize q1.npz --format e4m3 --scope tensor --expand
error "quantize: not an array" 2 "$(basename "$mlp")" lathe quantize "$mlp" --format e4m3
head -c 900 q1.npz >cut.npz
error "quantize: a file cut short" 2 "cut.npz" lathe quantize cut.npz --format e4m3 -o cut-out.npz
check "quantize: and nothing written" absent cut-out.npz
error "quantize: an output that cannot be written" 2 "absent/x" lathe quantize q1.npz --format e4m3 -o absent/x.npz

echo "cli: $passed passed, $failed failed$([ $skipped = 0 ] || echo ", $skipped skipped")"
[ $failed = 0 ]

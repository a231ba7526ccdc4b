#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Everything that judges a change, part by part; a summary at the end and "N passed, N failed" as the
# last line. A part that dies without saying how many counts as one failure.
# usage: tests/all.sh MODELS     JOBS=N, FUZZ_SECONDS=N, PARTS="check unit ..." for some
set -u
models=$1
jobs=${JOBS:-2}
export JOBS=$jobs MAKEFLAGS=
passed=0 failed=0 skipped=0
summary=
log=$(mktemp)
trap 'rm -f "$log"' EXIT
run=$(which timeout >/dev/null 2>&1 && echo "timeout 1500")
# ASLR with many random bits and ThreadSanitizer's fixed layout do not go together.
fixed=$(setarch -R true 2>/dev/null && echo "setarch -R")

# part NAME COMMAND...: the last line "...: N passed, N failed[, N skipped]" counts; without one, the
# exit code does.
part() {
    local name=$1 begin=$SECONDS rc line p f s
    shift
    if [ -n "${PARTS:-}" ] && [[ " $PARTS " != *" $name "* ]]; then return; fi
    echo "==== $name"
    $run "$@" 2>&1 | tee "$log"
    rc=${PIPESTATUS[0]}
    line=$(grep -E '(^|: )[0-9]+ passed, [0-9]+ failed' "$log" | tail -1)
    if [ -n "$line" ]; then
        p=$(sed -E 's/.*(^|: )([0-9]+) passed, .*/\2/' <<<"$line")
        f=$(sed -E 's/.* passed, ([0-9]+) failed.*/\1/' <<<"$line")
        s=$(sed -nE 's/.* failed, ([0-9]+) skipped.*/\1/p' <<<"$line")
        [ "$rc" != 0 ] && [ "$f" = 0 ] && f=1
    else
        p=0 f=0 s=0
        if [ "$rc" = 0 ]; then p=1; else f=1; fi
    fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + ${s:-0}))
    summary+=$(printf '%-18s %5d passed %4d failed %3d skipped %5d s' "$name" "$p" "$f" "${s:-0}" $((SECONDS - begin)))$'\n'
}
m() { make --no-print-directory -j"$jobs" "$@"; }
export -f m
sh_part() { local n=$1; shift; part "$n" bash -c "$*"; }

gcc="BUILD=build-test WERROR=1 CC=gcc"
sh_part build "jobs=$jobs; m $gcc all build-test/tests/fixture build-test/tests/test_models"
sh_part clang "jobs=$jobs; m BUILD=build-clang WERROR=1 CC=clang all"
sh_part check "jobs=$jobs; m $gcc check"
sh_part unit "jobs=$jobs; m $gcc unit"
sh_part golden "jobs=$jobs; m $gcc golden"
sh_part models "jobs=$jobs; m $gcc models MODELS='$models'"
sh_part kernels "jobs=$jobs; m $gcc kernels MODELS='$models'"
sh_part cli "jobs=$jobs; m $gcc cli"
sh_part samples "jobs=$jobs; m $gcc samples"
if [ -e tests/conformance/expected.txt ]; then
    sh_part conformance "jobs=$jobs; m $gcc conformance"
fi
export LATHE_TEST_SHORT=1
asan="SAN=address,undefined CC=gcc BUILD=build-asan"
export ASAN_OPTIONS=detect_stack_use_after_return=0:allocator_may_return_null=1
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
# What NVRTC compiles is the same under a sanitizer, and takes minutes.
sanitized=$(ls tests/unit | sed -n 's/^test_\(.*\)\.c$/\1/p' | grep -v '^cuda_codegen$' | tr '\n' ' ')
sh_part unit-asan "jobs=$jobs; m $asan TESTS='$sanitized' unit"
sh_part models-asan "jobs=$jobs; m $asan build-asan/tests/test_models && build-asan/tests/test_models --short tests/models"
tsan="SAN=thread CC=gcc BUILD=build-tsan"
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
# Only what starts threads can race.
threaded=$(grep -lE 'pool_create|cpu_rig.h|lathe_context|pipeline' tests/unit/test_*.c | sed -E 's,.*/test_(.*)\.c,\1,' | tr '\n' ' ')
sh_part unit-tsan "jobs=$jobs; $fixed make --no-print-directory -j$jobs $tsan TESTS='$threaded' unit"
sh_part models-tsan "jobs=$jobs; m $tsan build-tsan/tests/test_models &&
    $fixed build-tsan/tests/test_models --short tests/models"
unset LATHE_TEST_SHORT
if [ -x tests/fuzz/run.sh ]; then
    sh_part fuzz "BUILD=build-fuzz JOBS=$jobs tests/fuzz/run.sh -t ${FUZZ_SECONDS:-10}"
fi

echo
echo "$summary"
if [ $skipped = 0 ]; then
    echo "$passed passed, $failed failed"
else
    echo "$passed passed, $failed failed, $skipped skipped"
fi
[ $failed = 0 ]

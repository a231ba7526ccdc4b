#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Everything that judges a change. First the builds, one after the other on all processors; then the
# parts, several at a time, the long ones first. What they say is printed in the order they stand in
# here; a summary follows, and "N passed, N failed" as the last line. A part that dies without saying
# how many counts as one failure.
# usage: tests/all.sh MODELS     JOBS=N, FUZZ_SECONDS=N, PARTS="check unit ..." for some
set -u
models=$1
jobs=${JOBS:-2}
export MAKEFLAGS=
tmp=$(mktemp -d)
trap 'kill $(jobs -p) $(cat "$tmp"/*.pid 2>/dev/null) 2>/dev/null; rm -rf "$tmp"' EXIT
trap 'exit 1' INT TERM
run=$(which timeout >/dev/null 2>&1 && echo "timeout 1500")
# ASLR with many random bits and ThreadSanitizer's fixed layout do not go together.
fixed=$(setarch -R true 2>/dev/null && echo "setarch -R")
passed=0 failed=0 skipped=0 summary=
wanted() { [ -z "${PARTS:-}" ] || [[ " $PARTS " == *" $1 "* ]]; }
make="make --no-print-directory"

# ---- what is built and run -------------------------------------------------------------------------
gcc="BUILD=build-test WERROR=1 CC=gcc"
# The warnings of another compiler; what it makes is never run.
clang="BUILD=build-clang WERROR=1 CC=clang OPT=-O0"
asan="SAN=address,undefined CC=gcc BUILD=build-asan"
tsan="SAN=thread CC=gcc BUILD=build-tsan"
areas=$(ls tests/unit | sed -n 's/^test_\(.*\)\.c$/\1/p')
# What NVRTC compiles is the same under a sanitizer, and takes minutes.
sanitized=$(grep -v '^cuda_codegen$' <<<"$areas" | tr '\n' ' ')
# Only what starts threads can race.
threaded=$(grep -lE 'pool_create|cpu_rig.h|lathe_context|pipeline' tests/unit/test_*.c | sed -E 's,.*/test_(.*)\.c,\1,' | tr '\n' ' ')
export ASAN_OPTIONS=detect_stack_use_after_return=0:allocator_may_return_null=1
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
# Sanitizers look at the same code with fewer sizes, and without a process for each test.
short="LATHE_TEST_SHORT=1 CK_FORK=no"

builds=(build clang build-asan build-tsan)
parts=(check unit golden models kernels cli samples conformance unit-asan models-asan unit-tsan models-tsan fuzz)
longest_first=(unit-asan unit kernels unit-tsan fuzz models models-asan conformance check models-tsan cli samples golden)
command_of() { # NAME: the command of a build or part; $each: the jobs that it may use
    case $1 in
    build) echo "$make -j$jobs $gcc programs" ;;
    clang) echo "$make -j$jobs $clang all" ;;
    build-asan) echo "$make -j$jobs $asan TESTS='$sanitized' programs" ;;
    build-tsan) echo "$make -j$jobs $tsan TESTS='$threaded' programs" ;;
    kernels | models) echo "$make $gcc $1 MODELS='$models' JOBS=$each" ;;
    unit-asan) echo "$short $make $asan TESTS='$sanitized' unit" ;;
    models-asan) echo "build-asan/tests/test_models --short tests/models" ;;
    unit-tsan) echo "$short $fixed $make $tsan TESTS='$threaded' unit" ;;
    models-tsan) echo "$fixed build-tsan/tests/test_models --short tests/models" ;;
    fuzz) echo "BUILD=build-fuzz tests/fuzz/run.sh -t ${FUZZ_SECONDS:-10}" ;;
    *) echo "$make $gcc $1" ;;
    esac
}
needed() { # BUILD: some part that is wanted runs what it makes
    wanted "$1" && return
    case $1 in
    build) for p in check unit golden models kernels cli samples conformance; do wanted $p && return; done ;;
    build-asan | build-tsan) wanted "unit-${1#build-}" || wanted "models-${1#build-}" && return ;;
    esac
    return 1
}

# ---- running ---------------------------------------------------------------------------------------
start() { # NAME: its output, exit code and seconds into files
    local begin=$SECONDS
    $run bash -c "$(<"$tmp/$1.sh")" >"$tmp/$1.log" 2>&1 &
    echo $! >"$tmp/$1.pid"
    wait $!
    echo "$? $((SECONDS - begin))" >"$tmp/$1.end"
    rm "$tmp/$1.pid"
    mv "$tmp/$1.end" "$tmp/$1.rc"
}
# The last line "...: N passed, N failed[, N skipped]" counts; without one, the exit code does.
finish() { # NAME
    local rc seconds line p f s
    read -r rc seconds <"$tmp/$1.rc"
    line=$(grep -E '(^|: )[0-9]+ passed, [0-9]+ failed' "$tmp/$1.log" | tail -1)
    if [ -n "$line" ]; then
        p=$(sed -E 's/.*(^|: )([0-9]+) passed, .*/\2/' <<<"$line")
        f=$(sed -E 's/.* passed, ([0-9]+) failed.*/\1/' <<<"$line")
        s=$(sed -nE 's/.* failed, ([0-9]+) skipped.*/\1/p' <<<"$line")
        [ "$rc" != 0 ] && [ "$f" = 0 ] && f=1
    elif [ "$rc" = 0 ]; then
        p=1 f=0 s=0
    else
        p=0 f=1 s=0
    fi
    echo "==== $1"
    cat "$tmp/$1.log"
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + ${s:-0}))
    summary+=$(printf '%-18s %5d passed %4d failed %3d skipped %5d s' "$1" "$p" "$f" "${s:-0}" "$seconds")$'\n'
}

each=$((jobs > 3 ? jobs / 2 : 1))
export JOBS=$jobs run tmp
for name in "${builds[@]}"; do
    needed "$name" || continue
    command_of "$name" >"$tmp/$name.sh"
    start "$name"
    finish "$name"
done
export JOBS=$each
export -f start
for name in "${longest_first[@]}"; do
    wanted "$name" || continue
    command_of "$name" >"$tmp/$name.sh"
    echo "$name"
done >"$tmp/parts"
xargs -P "$jobs" -I{} bash -c 'start {}' <"$tmp/parts" &
lanes=$!
for name in "${parts[@]}"; do
    grep -qx -- "$name" "$tmp/parts" || continue
    while [ ! -e "$tmp/$name.rc" ] && kill -0 $lanes 2>/dev/null; do sleep 0.2; done
    [ -e "$tmp/$name.rc" ] || echo "1 0" >"$tmp/$name.rc" # the lanes have died
    touch "$tmp/$name.log"
    finish "$name"
done

echo
echo "$summary"
if [ $skipped = 0 ]; then
    echo "$passed passed, $failed failed"
else
    echo "$passed passed, $failed failed, $skipped skipped"
fi
[ $failed = 0 ]

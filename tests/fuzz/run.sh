#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Build every tests/fuzz/fuzz_*.c with clang, libFuzzer, ASan and UBSan and run each on its seeds
# (tests/fuzz/corpus/NAME) for a while. New inputs and failures stay in BUILD/work/NAME.
# usage: tests/fuzz/run.sh [-t SECONDS] [-r RUNS] [NAME...]    BUILD=DIR, JOBS=N
set -u
cd "$(dirname "$0")/../.." || exit 2
seconds=60 runs=-1
while getopts t:r: option; do
    case $option in
    t) seconds=$OPTARG ;;
    r) runs=$OPTARG ;;
    *) echo "usage: tests/fuzz/run.sh [-t SECONDS] [-r RUNS] [NAME...]" >&2; exit 2 ;;
    esac
done
shift $((OPTIND - 1))
[ $# = 0 ] && set -- $(ls tests/fuzz/fuzz_*.c | sed 's,.*/fuzz_,,; s,\.c$,,')
build=${BUILD:-build-fuzz}
libs='-l:libprotobuf-c.a -l:libjansson.a -l:libminizip.a -l:libz.a -lopenblas -ldl -lm'

# A folder of the library needs itself, base and ir (the include rule), so what the entries include
# tells what to build.
folders=$(for name; do sed -n 's,^#include "\([a-z]*\)/.*,\1,p' "tests/fuzz/fuzz_$name.c"; done |
    sort -u | grep -v -e '^base$' -e '^ir$')
folders=$(echo base ir $folders)
make --no-print-directory -j"${JOBS:-2}" CC=clang BUILD="$build" FOLDERS="$folders" \
    SAN=address,undefined,fuzzer-no-link CFLAGS='-fno-sanitize-recover=all' "$build/liblathe.a" || exit 1

passed=0 failed=0
for name; do
    work=$build/work/$name
    mkdir -p "$work/corpus" "tests/fuzz/corpus/$name" # libFuzzer wants the second to exist
    if clang -std=c11 -D_GNU_SOURCE -O1 -g -I. -I"$build/gen" -Wall -Wextra -Werror \
        -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -o "$build/fuzz_$name" \
        "tests/fuzz/fuzz_$name.c" "$build/liblathe.a" $libs -pthread >"$work/log" 2>&1 &&
        "$build/fuzz_$name" -runs="$runs" -max_total_time="$seconds" -max_len=32768 -timeout=10 \
            -rss_limit_mb=2048 -artifact_prefix="$work/" "$work/corpus" "tests/fuzz/corpus/$name" \
            >"$work/log" 2>&1; then
        echo "fuzz: $name: $(sed -n 's/^Done \([0-9]*\) runs.*/\1 runs/p' "$work/log")," \
            "$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$work/log" | tail -1) edges"
        passed=$((passed + 1))
    else
        tail -40 "$work/log"
        echo "fuzz: $name failed; the input is in $work"
        failed=$((failed + 1))
    fi
    rmdir "tests/fuzz/corpus/$name" 2>/dev/null # was empty
done
echo "fuzz: $passed passed, $failed failed"
[ "$failed" = 0 ]

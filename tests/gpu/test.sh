#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Everything that only a GPU can show about correctness: every kernel against the CPU, attention
# against its own reference, and NVIDIA's sanitizers on a subset. Not timings: bench.sh has those.
#
# usage: tests/gpu/test.sh BUILD [MODELDIR..]
# Builds what is missing where the libraries for building are installed; else the binaries in BUILD
# have to be there, built on another machine. SANITIZE names the cases for the sanitizers. Ends with "gpu-test: N passed, N failed".
set -u
build=$1
shift
models=${*:-tests/models}
. "$(dirname "$0")/common.sh"
need "$build" gpu_test attention_test lathe

passed=0 failed=0 total_cases=0
step() { # NAME COMMAND..
    name=$1
    shift
    if "$@" >"$log" 2>&1; then
        passed=$((passed + 1))
        echo "  ok      $name: $(tail -n 1 "$log")"
    else
        failed=$((failed + 1))
        echo "  FAILED  $name"
        { grep FAILED "$log" | head -n 20; tail -n 5 "$log"; } | sed 's/^/    /'
    fi
    n=$(sed -n 's/.*: \([0-9][0-9]*\) passed.*/\1/p' "$log" | tail -n 1)
    total_cases=$((total_cases + ${n:-0}))
}

"$build/lathe" devices
step "kernels and models" "$build/gpu_test" --cache "$cache" --jobs "$(nproc)" $models
step "attention" "$build/attention_test" --cache "$cache" --no-times $libraries

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -n 1)
if [ -n "$sanitizer" ]; then
    for tool in memcheck racecheck initcheck; do
        for part in ${SANITIZE:-reduce_sum layer_norm attention scatter step cross}; do
            step "$tool $part" timeout 300 "$sanitizer" --tool "$tool" --error-exitcode 9 \
                --target-processes all "$build/gpu_test" --cache "$cache" --jobs 8 --only "$part"
        done
    done
else
    echo "  compute-sanitizer is not installed; nothing was sanitized"
fi
echo "$total_cases cases in $passed parts"
echo "gpu-test: $passed passed, $failed failed"
[ "$failed" -eq 0 ]

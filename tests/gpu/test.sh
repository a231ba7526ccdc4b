#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Everything that only a GPU can show about correctness: every kernel against the CPU, attention
# against its own reference, and NVIDIA's sanitizers on a subset. Not timings: bench.sh has those.
#
# usage: tests/gpu/test.sh BUILD [MODELDIR..]
# Builds what is missing where the libraries for building are installed; else the binaries in BUILD
# have to be there, built on another machine. SANITIZE names the cases for the sanitizers. What failed
# is named once more in front of the last line, "gpu-test: N passed, N failed".
set -u
build=$1
shift
models=${*:-tests/models}
. "$(dirname "$0")/common.sh"
need "$build" gpu_test attention_test lathe

passed=0 failed=0 total_cases=0
failures=$(mktemp)
trap 'rm -f "$log" "$failures"' EXIT
step() { # NAME COMMAND..
    name=$1
    shift
    if "$@" >"$log" 2>&1; then
        passed=$((passed + 1))
        echo "  ok      $name: $(tail -n 1 "$log")"
    else
        failed=$((failed + 1))
        echo "  FAILED  $name"
        { grep FAILED "$log"; tail -n 5 "$log"; } | sed 's/^/    /'
        { grep FAILED "$log" || tail -n 1 "$log"; } | sed "s|^ *\(FAILED\)* *|$name: |" >>"$failures"
    fi
    n=$(sed -n 's/.*: \([0-9][0-9]*\) passed.*/\1/p' "$log" | tail -n 1)
    total_cases=$((total_cases + ${n:-0}))
}

"$build/lathe" devices
step "kernels and models" "$build/gpu_test" --cache "$cache" --jobs "$(nproc)" $models
step "attention" "$build/attention_test" --cache "$cache" --no-times $libraries
step "stopping and going on" "$(dirname "$0")/resume.sh" "$build/lathe" $models

# A few cases of every kind of kernel; those without shared memory cannot race. Joined launches and
# scatters are "step" and "8-bit states", "scatter" and "cast"; long rows go through rings of shared memory.
shared="reduce_sum softmax layer_norm rms_norm cross_entropy attention cumsum transpose scatter step 8-bit quantize"
plain="gather concat slice pad where conv max_pool cast argmax gelu"
sanitize() { # TOOL NAMES
    only=
    for name in $2; do only="$only --only $name"; done
    # shellcheck disable=SC2086
    step "$1" timeout 300 "$sanitizer" --tool "$1" --error-exitcode 9 --target-processes all \
        "$build/gpu_test" --cache "$cache" --jobs 8 --most 2 $only
}
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -n 1)
if [ -n "$sanitizer" ]; then
    sanitize memcheck "${SANITIZE:-$shared $plain}"
    sanitize racecheck "${SANITIZE:-$shared}"
    sanitize initcheck "${SANITIZE:-$shared $plain}"
else
    echo "  compute-sanitizer is not installed; nothing was sanitized"
fi
echo "$total_cases cases in $passed parts"
sed 's/^/failed: /' "$failures"
echo "gpu-test: $passed passed, $failed failed"
[ "$failed" -eq 0 ]

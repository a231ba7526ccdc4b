#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Run unit test binaries, two at a time, print what they say in order, and add up.
# usage: tests/unit.sh BINARY...
# Generous: the machine may be busy, and sanitizers are slow.
export CK_DEFAULT_TIMEOUT="${CK_DEFAULT_TIMEOUT:-300}" CK_TIMEOUT_MULTIPLIER="${CK_TIMEOUT_MULTIPLIER:-4}"
printf '%s\n' "$@" | xargs -P "${JOBS:-2}" -I{} sh -c '"{}" >"{}.log" 2>&1; echo $? >"{}.rc"'
for t; do
    cat "$t.log"
    [ "$(cat "$t.rc")" = 0 ] || echo "unit: $t ended with $(cat "$t.rc")"
done
for t; do echo "rc $(cat "$t.rc")"; cat "$t.log"; done | awk '
    $1 == "rc" { if (started && !seen) lost++; started = 1; seen = 0; bad += $2 != 0 }
    /Checks: [0-9]+, Failures: [0-9]+, Errors: [0-9]+/ {
        seen = 1
        n = $0; sub(/.*Checks: /, "", n); f = $0; sub(/.*Failures: /, "", f); e = $0; sub(/.*Errors: /, "", e)
        total += n; failed += f + e
    }
    END {
        if (!seen) lost++ # a binary that died before its summary
        failed += lost
        total += lost
        if (bad && !failed) { failed = bad; total += bad }
        printf "unit: %d passed, %d failed\n", total - failed, failed
        exit failed > 0
    }'

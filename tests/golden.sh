#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Golden files: tests/golden/*/*.lir holds a command, its input and the whole output expected.
#   ; RUN: lathe opt - --passes simplify         or   ; RUN: ! lathe opt -      (exit 2; stderr is the output)
#   input ...
#   ; ---- expect
#   output ...
# usage: tests/golden.sh BUILD [bless] [FILE...]
set -u
build=$(cd "$1" && pwd)
shift
bless=
[ "${1:-}" = bless ] && bless=1 && shift
[ $# = 0 ] && set -- $(find tests/golden -name '*.lir' | LC_ALL=C sort)
passed=0 failed=0
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
lathe() { "$build/lathe" "$@"; }
for f; do
    command=$(sed -n '1,/^; ---- expect$/s/^; RUN: //p' "$f" | head -1)
    sed '/^; ---- expect$/,$d' "$f" >"$tmp/in"
    sed '1,/^; ---- expect$/d' "$f" >"$tmp/want"
    expect=0
    case $command in "! "*) expect=2 command=${command#! } ;; esac
    case $command in
    "lathe "*) ;;
    *) echo "golden: $f: the first line is no '; RUN: lathe ...'"; failed=$((failed + 1)); continue ;;
    esac
    eval "$command" <"$tmp/in" >"$tmp/out" 2>"$tmp/err"
    code=$?
    if [ $expect = 0 ]; then cat "$tmp/err" >>"$tmp/out"; else cat "$tmp/err" >"$tmp/out"; fi
    if [ $code != $expect ]; then
        echo "golden: $f: exit code $code, expected $expect"
        sed 's/^/    /' "$tmp/err" | head -5
        failed=$((failed + 1))
    elif [ -n "$bless" ]; then
        { cat "$tmp/in"; echo "; ---- expect"; cat "$tmp/out"; } >"$tmp/new"
        cmp -s "$tmp/new" "$f" || { cat "$tmp/new" >"$f"; echo "golden: rewrote $f"; }
        passed=$((passed + 1))
    elif diff -u --label "$f" --label got "$tmp/want" "$tmp/out" >"$tmp/diff"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        cat "$tmp/diff"
    fi
done
echo "golden: $passed passed, $failed failed"
[ $failed = 0 ]

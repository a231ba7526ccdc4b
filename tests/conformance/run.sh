#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Run the ONNX node tests and compare with the list of tests that must pass.
# usage: tests/conformance/run.sh DIR|ARCHIVE.tar.xz [OPTION of conformance]...   (BUILD=build)
set -u
here=$(dirname "$0")
build=${BUILD:-build}
data=${1:-}
[ $# -gt 0 ] && shift
if [ ! -e "$data" ]; then
    echo "conformance: no node tests at '$data', skipped"
    echo "conformance: 0 passed, 0 failed, 1 skipped"
    exit 0
fi
if [ ! -d "$data" ]; then
    temp=$(mktemp -d) || exit 1
    trap 'rm -rf "$temp"' EXIT
    if ! tar -C "$temp" -xJf "$data"; then
        echo "conformance: cannot unpack $data (tar and xz-utils are needed)" >&2
        echo "conformance: 0 passed, 1 failed"
        exit 1
    fi
    data=$temp
fi
[ -d "$data/node" ] && data=$data/node
OPENBLAS_NUM_THREADS=1 "$build/tests/conformance" "$data" --quiet --expect "$here/expected.txt" "$@"

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Install the Debian packages that are missing, each found by a probe, so that a machine which has
# them needs neither the network nor root.   usage: tests/deps.sh build|test
set -u
want=${1:-test}
missing=
have() { command -v "$1" >/dev/null 2>&1; }
# The compiler is the judge of headers and libraries: whatever path it searches counts.
header() { have gcc && echo "#include <$1>" | gcc -E -x c - >/dev/null 2>&1; }
library() { have gcc && [ "$(gcc -print-file-name="$1")" != "$1" ]; }
need() { # PACKAGE PROBE...
    package=$1
    shift
    "$@" || missing="$missing $package"
}
fuzzer() {
    have clang && echo 'int LLVMFuzzerTestOneInput(const char *d, unsigned long n) { return d && n > 9e9; }' |
        clang -x c -fsanitize=fuzzer,address - -o /dev/null >/dev/null 2>&1
}
gcc_sanitizers() { library libasan.so && library libtsan.so && library libubsan.so; }
static_and_header() { library "$1" && header "$2"; }

need gcc have gcc
need libc6-dev header stdio.h
need make have make
need protobuf-c-compiler have protoc-c
need libprotobuf-c-dev static_and_header libprotobuf-c.a protobuf-c/protobuf-c.h
need libjansson-dev static_and_header libjansson.a jansson.h
need libminizip-dev static_and_header libminizip.a minizip/unzip.h
need zlib1g-dev static_and_header libz.a zlib.h
need libxxhash-dev header xxhash.h
need libopenblas-dev static_and_header libopenblas.so cblas.h
if [ "$want" = test ]; then
    need g++ have g++
    need libgcc-12-dev gcc_sanitizers
    need pkg-config have pkg-config
    need check header check.h
    need clang have clang
    need libclang-rt-14-dev fuzzer
    need clang-format have clang-format
    need xz-utils have xz
fi

[ -z "$missing" ] && exit 0
install="apt-get install -y --no-install-recommends$missing"
if [ "$(id -u)" != 0 ]; then
    echo "deps: missing packages; as root run: apt-get update && $install" >&2
    exit 1
fi
if ! have apt-get; then
    echo "deps: this machine has no apt-get; install the equivalents of:$missing" >&2
    exit 1
fi
echo "deps: installing$missing"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
opts="-o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0"
# shellcheck disable=SC2086
if apt-get $opts -q update >"$log" 2>&1 && apt-get $opts -q ${install#apt-get } >>"$log" 2>&1; then
    exit 0
fi
tail -20 "$log" >&2
echo "deps: the installation failed; see above" >&2
exit 1

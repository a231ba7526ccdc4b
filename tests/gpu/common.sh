# SPDX-License-Identifier: Apache-2.0
# What test.sh and bench.sh share: a place for compiled kernels, where cuDNN lies, and building what
# is missing. Sourced; not a program.
cache=${LATHE_CACHE_DIR:-${TMPDIR:-/tmp}/lathe-kernels}
LATHE_CACHE_DIR=$cache
export LATHE_CACHE_DIR
log=$(mktemp)
trap 'rm -f "$log"' EXIT
libraries=
# PyTorch's wheels bring a newer cuDNN than most systems have.
wheel=$(python3 -c 'import nvidia; print(list(nvidia.__path__)[0])' 2>/dev/null)
if [ -n "$wheel" ] && [ -d "$wheel/cudnn/lib" ]; then
    LD_LIBRARY_PATH=$wheel/cudnn/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export LD_LIBRARY_PATH
fi

need() { # BUILD NAME..
    where=$1
    shift
    for name; do
        if command -v protoc-c >/dev/null 2>&1; then
            make --no-print-directory -j"$(nproc)" BUILD="$where" "$where/$name" >"$log" 2>&1 && continue
            tail -n 20 "$log"
            exit 1
        fi
        [ -x "$where/$name" ] && continue
        echo "$where/$name is missing, and there is no protoc-c to build it with" >&2
        exit 1
    done
}

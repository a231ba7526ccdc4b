#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Install into a fresh prefix, build every sample against that copy alone - as C and as C++, shared
# and static - run them, uninstall, and see that nothing stays.   usage: tests/samples.sh BUILD
set -u
build=$1
passed=0 failed=0
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
check() { # NAME COMMAND...
    name=$1
    shift
    if "$@" >"$tmp/log" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "samples: FAILED: $name"
        tail -15 "$tmp/log" | sed 's/^/    /'
    fi
}
prefix=/opt/lathe-test
check install ${MAKE:-make} --no-print-directory BUILD="$build" PREFIX=$prefix DESTDIR="$tmp/root" install
root=$tmp/root$prefix
if [ $failed != 0 ]; then
    echo "samples: $passed passed, $failed failed"
    exit 1
fi
for f in bin/lathe include/lathe.h lib/liblathe.a lib/liblathe.so lib/liblathe.so.0 lib/pkgconfig/lathe.pc; do
    check "installed $f" test -s "$root/$f"
done
check "the .pc file has the prefix without DESTDIR" grep -qx "prefix=$prefix" "$root/lib/pkgconfig/lathe.pc"
export PKG_CONFIG_PATH="$root/lib/pkgconfig"
pc() { pkg-config --define-variable=prefix="$root" --define-variable=includedir="$root/include" \
    --define-variable=libdir="$root/lib" "$@" lathe; }
warn="-Wall -Wextra -Wpedantic -Werror"
model=tests/models/mlp.dynamic18.onnx
export LD_LIBRARY_PATH="$root/lib"
for s in samples/*.c; do
    n=$(basename "$s" .c)
    # shellcheck disable=SC2046,SC2086
    {
        check "$n as C" gcc -std=c11 $warn $(pc --cflags) "$s" -o "$tmp/$n" $(pc --libs) -lm
        check "$n as C++" g++ -std=c++17 $warn $(pc --cflags) -x c++ "$s" -x none -o "$tmp/$n-cpp" $(pc --libs) -lm
        check "$n static" gcc -std=c11 $(pc --cflags) "$s" -o "$tmp/$n-static" "$root/lib/liblathe.a" \
            $(pkg-config --static --libs-only-l --libs-only-other lathe | sed 's/-llathe//')
    }
    case $n in train_mlp) out="$tmp/out.onnx" ;; *) out= ;; esac
    for how in "" -cpp -static; do
        # shellcheck disable=SC2086
        check "$n$how runs" "$tmp/$n$how" $model $out
    done
done
check "the library exports lathe_ names only" sh -c \
    "! nm -D --defined-only $root/lib/liblathe.so | awk '{ print \$NF }' | grep -v '^lathe_'"
check "the installed command runs" "$root/bin/lathe" info $model
check uninstall ${MAKE:-make} --no-print-directory BUILD="$build" PREFIX=$prefix DESTDIR="$tmp/root" uninstall
check "nothing stays after uninstall" sh -c "[ -z \"\$(find $root ! -type d)\" ]"
echo "samples: $passed passed, $failed failed"
[ $failed = 0 ]

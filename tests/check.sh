#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What compilers do not check: layering, banned functions, global state, licence lines, layout,
# headers that compile alone, file sizes.   usage: tests/check.sh BUILD   (BUILD/obj must be built)
set -u
build=$1
passed=0 failed=0 skipped=0
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
ok() { passed=$((passed + 1)); }
bad() { # what; details in $tmp/out
    failed=$((failed + 1))
    echo "check: FAILED: $1"
    sed 's/^/    /' "$tmp/out" | head -40
}
verdict() { if [ "$1" = 0 ]; then ok; else bad "$2"; fi; }

library="base ir frontend passes codegen runtime"
sources=$(find include $library driver tests samples -name '*.c' -o -name '*.h' | LC_ALL=C sort)
all=$(find Makefile include $library driver tests samples .ci -type f \
    \( -name Makefile -o -name '*.c' -o -name '*.h' -o -name '*.def' -o -name '*.inc' -o -name '*.sh' -o -name '*.awk' \
    -o -name '*.py' -o -name '*.proto' -o -name '*.cu' -o -name '*.cuh' -o -name run \) | LC_ALL=C sort)

# ---- the include rule, and that the rule can fail -------------------------------------------------
awk -f tests/layers.awk tests/layers.txt $sources >"$tmp/out" 2>&1
verdict $? "the include rule (tests/layers.txt)"
mkdir -p "$tmp/plant/passes"
printf '#include "ir/graph.h"\n#include "runtime/cpu.h"\n' >"$tmp/plant/passes/planted.c"
here=$(pwd)
(cd "$tmp/plant" && awk -f "$here/tests/layers.awk" "$here/tests/layers.txt" passes/planted.c) >"$tmp/out" 2>&1
[ $? = 1 ] && grep -q 'passes/planted.c:2: passes/ may not include "runtime/cpu.h"' "$tmp/out" &&
    ! grep -q graph.h "$tmp/out"
verdict $? "the include rule does not find a planted violation"

# ---- banned functions and file-scope state: what the objects refer to and hold ---------------------
# Objects, not text: comments do not matter and macros do not hide anything.
never='strcpy|strcat|sprintf|vsprintf|atoi|atol|atof|strtok|gets|scanf|sscanf|__isoc99_sscanf|rand|srand|system'
quiet='exit|_exit|abort|getenv|secure_getenv|printf|vprintf|puts|putchar|perror|stdout|stderr|signal|setlocale'
heap='malloc|calloc|realloc|free|strdup|strndup|asprintf|posix_memalign|aligned_alloc'
undefined() { # FOLDER...: "file symbol" lines
    for o in $(for d in "$@"; do find "$build/obj/$d" -name '*.o'; done | LC_ALL=C sort); do
        nm -u "$o" | awk -v f="${o#"$build"/obj/}" '{ s = $NF; sub(/@.*/, "", s); sub(/\.o$/, ".c", f); print f, s }'
    done
}
if [ -d "$build/obj/base" ]; then
    undefined $library driver >"$tmp/symbols"
    awk -v never="^($never)$" '$2 ~ never { print $1 ": calls " $2; b = 1 } END { exit b }' "$tmp/symbols" >"$tmp/out"
    verdict $? "functions that are never used"
    awk -v quiet="^($quiet)$" '$1 !~ /^driver\// && $2 ~ quiet { print $1 ": uses " $2; b = 1 } END { exit b }' \
        "$tmp/symbols" >"$tmp/out"
    verdict $? "library code that prints, exits or reads the environment"
    awk -v heap="^($heap)$" '$1 !~ /^driver\// && $1 != "base/ctx.c" && $2 ~ heap { print $1 ": calls " $2; b = 1 }
        END { exit b }' "$tmp/symbols" >"$tmp/out"
    verdict $? "heap use outside base/ctx.c"
    for o in $(for d in $library; do find "$build/obj/$d" -name '*.o'; done); do
        objdump -t "$o" | awk -v f="${o#"$build"/obj/}" '
            $0 ~ /[ \t]O[ \t]/ && $0 ~ /[ \t]\.(t?data|t?bss)(\.|[ \t])/ && $0 !~ /\.data\.rel\.ro/ { print f ": " $NF }'
    done >"$tmp/out"
    [ ! -s "$tmp/out" ]
    verdict $? "mutable variables at file scope in the library"
else
    echo "check: $build/obj is not built; functions and variables are not checked"
    skipped=$((skipped + 4))
fi

# ---- licence lines --------------------------------------------------------------------------------
for f in $all; do
    head -2 "$f" | grep -q 'SPDX-License-Identifier: Apache-2.0' || echo "$f"
done >"$tmp/out"
[ ! -s "$tmp/out" ]
verdict $? "files without 'SPDX-License-Identifier: Apache-2.0' at the top"

# ---- layout ---------------------------------------------------------------------------------------
format=$(command -v clang-format-14 || command -v clang-format)
if [ -n "$format" ]; then
    # Tables are kept by hand; clang-format is told so inside the files.
    $format --dry-run -Werror $sources >"$tmp/out" 2>&1
    verdict $? "layout; run: clang-format -i FILE"
else
    echo "check: clang-format is missing"
    skipped=$((skipped + 1))
fi

# ---- headers compile alone ------------------------------------------------------------------------
: >"$tmp/out"
for h in $(printf '%s\n' $sources | grep '\.h$' | grep -v '^tests/'); do
    echo "#include \"$h\"" | ${CC:-cc} -std=c11 -D_GNU_SOURCE -Wall -Wextra -Wpedantic -Wno-unused-function -I. \
        -Itests/unit -I"$build/gen" -fsyntax-only -x c - >"$tmp/one" 2>&1 || { echo "$h"; head -3 "$tmp/one"; }
done >"$tmp/out"
[ ! -s "$tmp/out" ]
verdict $? "headers that do not compile alone"
if command -v g++ >/dev/null 2>&1; then
    printf '#include "include/lathe.h"\nint main() { lathe_train_options o = LATHE_TRAIN_OPTIONS_INIT; return o.size == 0; }\n' |
        g++ -std=c++17 -Wall -Wextra -Wpedantic -Werror -I. -fsyntax-only -x c++ - >"$tmp/out" 2>&1
    verdict $? "include/lathe.h as C++17"
else
    skipped=$((skipped + 1))
fi

# ---- sizes ----------------------------------------------------------------------------------------
wc -l $sources | awk '$2 != "total" && $1 > 600 && $1 <= 700 { print "check: warning: " $2 " has " $1 " lines" }'
wc -l $sources | awk '$2 != "total" && $1 > 700 { print $2 " has " $1 " lines" }' >"$tmp/out"
[ ! -s "$tmp/out" ]
verdict $? "files over 700 lines"

echo "check: $passed passed, $failed failed$([ $skipped = 0 ] || echo ", $skipped skipped")"
[ "$failed" = 0 ]

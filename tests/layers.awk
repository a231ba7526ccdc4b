# SPDX-License-Identifier: Apache-2.0
# Check every quoted include against the table of tests/layers.txt, which is the first file.
# usage: awk -f layers.awk layers.txt FILES...
FNR == 1 { file++; folder = FILENAME; sub(/^\.\//, "", folder); sub(/\/.*/, "", folder) }
file == 1 {
    if ($0 ~ /^#/ || NF == 0) next
    name = $1
    sub(/:$/, "", name)
    known[name] = 1
    for (i = 2; i <= NF; i++) may[name, $i] = 1
    next
}
FNR == 1 && !(folder in known) {
    printf "%s: folder '%s' is not in the table\n", FILENAME, folder
    bad = 1
}
/^[ \t]*#[ \t]*include[ \t]*"/ {
    path = $0
    sub(/^[^"]*"/, "", path)
    sub(/".*/, "", path)
    if (path ~ /\.pb-c\.h$/ && folder == "frontend") next # generated
    if (path !~ /\//) { # beside the file: only tests do that; elsewhere paths start at the root
        if (folder != "tests") {
            printf "%s:%d: \"%s\" is not written from the root\n", FILENAME, FNR, path
            bad = 1
        }
        next
    }
    to = path
    sub(/\/.*/, "", to)
    if (!((folder, to) in may) && !((folder, "*") in may)) {
        printf "%s:%d: %s/ may not include \"%s\"\n", FILENAME, FNR, folder, path
        bad = 1
    }
}
END { exit bad }

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Real text for fidelity.sh: the sources of two handbooks that Debian 12 packages, about 35 MB of English. Every
# fiftieth page is held out. Needs a network and dpkg; not a test.
# usage: tests/bench/fidelity_corpus.sh DIR      writes DIR/train.txt and DIR/valid.txt
set -eu
dir=$1
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
apt-get download linux-doc-6.1 python3.11-doc >/dev/null 2>&1
for package in *.deb; do dpkg -x "$package" pages; done
find pages -path '*_sources*' -type f -name '*.txt*' | LC_ALL=C sort >list
: >"$dir/train.txt"
: >"$dir/valid.txt"
n=0
while read -r page; do
    n=$((n + 1))
    to=train
    [ $((n % 50)) = 0 ] && to=valid
    case $page in
    *.gz) gzip -dc "$page" ;;
    *) cat "$page" ;;
    esac >>"$dir/$to.txt"
done <list
wc -c "$dir/train.txt" "$dir/valid.txt"

#!/usr/bin/env bash
# Usage: pack_program.sh PROGRAM TARGET FOLDER
#
# Packs the program with its licences into FOLDER/warptile-TARGET.tar.gz.
set -euo pipefail
(($# == 3)) || {
    sed -n 's/^# \{0,1\}//; 2,4p' "$0" >&2
    exit 2
}
name=warptile-$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$3" "$work/$name"
cp "$1" LICENSE-MIT LICENSE-APACHE CHANGELOG.md crates/cli/README.md "$work/$name"
tar -czf "$3/$name.tar.gz" -C "$work" "$name"

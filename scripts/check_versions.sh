#!/usr/bin/env bash
# Usage: check_versions.sh [TAG]
#
# Fails unless all manifests name the version of the main one, the candle packages have the version that `for-candle.sh` makes from it,
# docs/candle.md, too, and TAG, if there is one, is `v` and that version.
set -euo pipefail
cd "$(dirname "$0")/.."

failed=0
# What names a version, which one it should be, and which it is.
check() {
    [[ $2 == "$3" ]] || {
        printf 'error: %s has %s, not %s\n' "$1" "${3:-no version}" "$2" >&2
        failed=1
    }
}

# The version of this workspace's packages.
of_packages() {
    sed -n '/^\[workspace\.package\]/,/^$/ s/^version = "\(.*\)"/\1/p' "$1"
}

version=$(of_packages Cargo.toml)
for_candle=$(integrations/candle/for-candle.sh --version)
[[ $# == 0 ]] || check 'the tag' "v$version" "$1"
check integrations/Cargo.toml "$version" "$(of_packages integrations/Cargo.toml)"
check integrations/candle/Cargo.toml "$for_candle" "$(of_packages integrations/candle/Cargo.toml)"
for manifest in Cargo.toml integrations/Cargo.toml integrations/candle/Cargo.toml docs/candle.md; do
    while read -r name required; do
        expected=$version
        [[ $name != warptile-candle* ]] || expected=$for_candle
        check "$manifest: $name" "$expected" "${required#=}"
    done < <(sed -n 's/^\(warptile[a-z0-9-]*\) = {.* version = "\([^"]*\)".*/\1 \2/p' "$manifest")
done
exit "$failed"

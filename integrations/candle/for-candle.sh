#!/usr/bin/env bash
# Usage: for-candle.sh CANDLE DIRECTORY
#        for-candle.sh --version [CANDLE]
#
# Writes this workspace for another version of candle (0.9.2, 0.10.2, ...) into a new directory: the same source, other numbers in the
# manifests, and no lock file. Its packages are what is published for that candle; `cargo test --no-default-features` there tests
# them with the newest dependencies that fit. With --version it prints the version of the packages for a candle, or for ours.
#
# That version is made of candle's and Warptile's, so that every release of Warptile has packages of its own: candle 0.11.1 and Warptile 0.2.3
# make 0.11.10203. Dependencies on 0.11 take the newest one.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
repository=$(cd "$here/../.." && pwd)

usage() {
    sed -n 's/^# \{0,1\}//; 2,7p' "$0" >&2
    exit 2
}

die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# The version of our packages for a candle. What follows a hyphen in Warptile's version stays behind one.
version_for() {
    local warptile number='(0|[1-9][0-9]*)' small='(0|[1-9][0-9]?)'
    warptile=$(sed -n '/^\[workspace\.package\]/,/^$/ s/^version = "\(.*\)"/\1/p' "$repository/Cargo.toml")
    [[ $1 =~ ^$number\.$number\.$number$ ]] || die "candle's version is three numbers, not $1"
    local major=${BASH_REMATCH[1]} minor=${BASH_REMATCH[2]} patch=${BASH_REMATCH[3]}
    [[ $warptile =~ ^0\.$small\.$small(-.+)?$ ]] || die "no room for Warptile $warptile in the version of packages for candle"
    printf '%s.%s.%d%s\n' "$major" "$minor" $((patch * 10000 + BASH_REMATCH[1] * 100 + BASH_REMATCH[2])) "${BASH_REMATCH[3]}"
}

ours=$(sed -n 's/^candle-core = "\(.*\)"/\1/p' "$here/Cargo.toml")
[[ -n $ours ]] || die "Cargo.toml has no candle-core"
if [[ ${1-} == --version ]]; then
    (($# <= 2)) || usage
    version_for "${2-$ours}"
    exit
fi
(($# == 2)) || usage
candle=$1 directory=$2

# Before anything is written.
from=("$(version_for "$ours")" "$ours" "${ours%.*}")
to=("$(version_for "$candle")" "$candle" "${candle%.*}")
mkdir -p "$directory"
for part in .cargo Cargo.toml candle-kernels stand-in warptile-candle warptile-candle-v3; do
    rm -rf "${directory:?}/$part"
    cp -rL "$here/$part" "$directory/$part"
done
rm -f "$directory/Cargo.lock"
# Quoted numbers are versions in manifests, and in what the documentation says that a manifest should have.
for at in 0 1 2; do
    grep -rl --fixed-strings "\"${from[at]}\"" "$directory"/Cargo.toml "$directory"/*/Cargo.toml "$directory"/*/README.md "$directory"/*/src |
        xargs sed -i "s/\"${from[at]//./\\.}\"/\"${to[at]}\"/g"
done
sed -i "s|path = \"\.\./\.\./crates|path = \"$repository/crates|; s|path = \"\.\./cudarc|path = \"$repository/integrations/cudarc|" "$directory/Cargo.toml"

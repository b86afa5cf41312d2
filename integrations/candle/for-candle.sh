#!/usr/bin/env bash
# Usage: for-candle.sh VERSION DIRECTORY
#
# Writes this workspace for another version of candle (0.9.2, 0.10.2, ...) into a new directory: the same source, other numbers in the
# manifests, and no lock file. Its packages are what is published for that candle; `cargo test --no-default-features` there tests
# them with the newest dependencies that fit.
set -euo pipefail
(($# == 2)) || {
    sed -n 's/^# \{0,1\}//; 2,6p' "$0" >&2
    exit 2
}
version=$1 directory=$2
here=$(cd "$(dirname "$0")" && pwd)
repository=$(cd "$here/../.." && pwd)
ours=$(sed -n 's/^version = "\(.*\)"/\1/p' "$here/Cargo.toml" | head -1)
[[ -n $ours ]] || {
    echo "error: Cargo.toml has no version" >&2
    exit 1
}

mkdir -p "$directory"
for part in .cargo Cargo.toml candle-kernels stand-in warptile-candle warptile-candle-v3; do
    rm -rf "${directory:?}/$part"
    cp -rL "$here/$part" "$directory/$part"
done
rm -f "$directory/Cargo.lock"
# Quoted numbers are versions in manifests, and in what the documentation says that a manifest should have.
grep -rl --fixed-strings "\"$ours\"" "$directory"/Cargo.toml "$directory"/*/Cargo.toml "$directory"/*/README.md "$directory"/*/src |
    xargs sed -i "s/\"${ours//./\\.}\"/\"$version\"/g"
sed -i "s|path = \"\.\./\.\./crates|path = \"$repository/crates|; s|path = \"\.\./cudarc|path = \"$repository/integrations/cudarc|" "$directory/Cargo.toml"

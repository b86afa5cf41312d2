#!/usr/bin/env bash
# Usage: in-transformers.sh DIRECTORY [cuda]
#
# Puts warptile-candle into the manifest of candle-transformers, in a copy of it in a new directory, and runs one of its models with
# it; no source line changes. Without a GPU the copy's feature flash-attn does not turn on cuda, and the model runs on the CPU; the
# manifest as it is published, but for the one line, is type-checked. With `cuda` it runs on a GPU, which needs candle's own kernels
# and so nvcc.
set -euo pipefail
(($# == 1 || $# == 2)) || {
    sed -n 's/^# \{0,1\}//; 2,7p' "$0" >&2
    exit 2
}
directory=$1 mode=${2:-cpu}
here=$(cd "$(dirname "$0")" && pwd)
version=$(sed -n 's/^candle-core = "\(.*\)"/\1/p' "$here/Cargo.toml")

mkdir -p "$directory"
rm -rf "${directory:?}/model" "$directory/fetch"
cp -r "$here/transformers" "$directory/model"
cp -r "$here/.cargo" "$directory/model/.cargo"

# Cargo fetches and checks the package as anybody's dependency.
mkdir -p "$directory/fetch/src"
cat >"$directory/fetch/Cargo.toml" <<MANIFEST
[workspace]
[package]
name = "fetch"
edition = "2024"
[dependencies]
candle-transformers = "=$version"
MANIFEST
touch "$directory/fetch/src/lib.rs"
manifest=$(cargo metadata --format-version 1 --manifest-path "$directory/fetch/Cargo.toml" |
    grep -o '"manifest_path":"[^"]*/candle-transformers-[^"]*"' | cut -d '"' -f 4)
cp -r "$(dirname "$manifest")" "$directory/model/candle-transformers"
cd "$directory/model"
sed -i "s|path = \"\.\./candle-kernels\"|path = \"$here/candle-kernels\"|" Cargo.toml
# The one line; a path where a user has a version.
line="package = \"warptile-candle\"\npath = \"$here/warptile-candle\""
sed -i "/^\[dependencies.candle-flash-attn\]/,/^\$/ s|^version = .*|$line|" candle-transformers/Cargo.toml
grep -A3 '^\[dependencies.candle-flash-attn\]' candle-transformers/Cargo.toml

if [[ $mode == cuda ]]; then
    sed -i '/^\[patch/,/^$/ d' Cargo.toml
    cargo run --quiet --features cuda
else
    cargo check --quiet
    echo "candle-transformers with its feature flash-attn: type-checked"
    sed -i '/^flash-attn = \[/,/\]/ s|^ *"cuda",$||' candle-transformers/Cargo.toml
    sed -i '/^package = "warptile-candle"/ s|$|\ndefault-features = false|' candle-transformers/Cargo.toml
    cargo run --quiet
fi

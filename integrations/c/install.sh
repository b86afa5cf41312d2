#!/usr/bin/env bash
# Usage: install.sh PREFIX
#
# Builds libwarptile, and installs it with warptile.h and a file for pkg-config under PREFIX.
set -euo pipefail
(($# == 1)) || {
    sed -n 's/^# \{0,1\}//; 2,4p' "$0" >&2
    exit 2
}
mkdir -p "$1"
prefix=$(cd "$1" && pwd)
cd "$(dirname "$0")"
echo "building libwarptile, which takes minutes the first time" >&2
cargo build --locked --quiet --package warptile-c --release
metadata=$(cargo metadata --locked --no-deps --format-version 1)
target=$(grep -o '"target_directory":"[^"]*"' <<<"$metadata" | cut -d '"' -f 4)
version=$(sed -n 's/^version = "\(.*\)"/\1/p' ../Cargo.toml)
built=$target/release
mkdir -p "$prefix/include" "$prefix/lib/pkgconfig"
install -m 644 warptile.h "$prefix/include"
install -m 644 "$built/libwarptile.a" "$prefix/lib"
install -m 755 "$built/libwarptile.so" "$prefix/lib/libwarptile.so.$version"
ln -sf "libwarptile.so.$version" "$prefix/lib/libwarptile.so.${version%.*}"
ln -sf "libwarptile.so.${version%.*}" "$prefix/lib/libwarptile.so"
sed "s|@PREFIX@|$prefix|; s|@VERSION@|$version|" warptile.pc.in >"$prefix/lib/pkgconfig/warptile.pc"
echo "installed libwarptile $version in $prefix/lib, warptile.h in $prefix/include, and warptile.pc in $prefix/lib/pkgconfig" >&2

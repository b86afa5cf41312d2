#!/usr/bin/env bash
# Usage: publish.sh [--dry-run] [CARGO-OPTION...]
#
# Publishes all packages to crates.io in the order of their dependencies: the crates, warptile-cudarc, and the candle packages for each
# version of candle. What is there already in its version is left out: after a failure, the same command goes on. With --dry-run everything
# is packed and nothing uploaded. Options such as --no-verify and --allow-dirty go to `cargo publish`.
set -euo pipefail
if [[ ${1-} == -h || ${1-} == --help ]]; then
    sed -n 's/^# \{0,1\}//; 2,6p' "$0"
    exit
fi
dry=
[[ " $* " != *' --dry-run '* ]] || dry=yes
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# A line for each package for crates.io, with those that features ask for, that this folder's workspace has or takes from beside it: which of these, name, version, folder.
packages() {
    cargo metadata --all-features --format-version 1 | python3 -c '
import json, os, sys
metadata = json.load(sys.stdin)
for package in metadata["packages"]:
    if package["source"] is None and package["publish"] is None:
        place = "here" if package["id"] in metadata["workspace_members"] else "beside"
        print(place, package["name"], package["version"], os.path.dirname(package["manifest_path"]))'
}

# Publishes the packages of this folder's workspace. Cargo finds their order, and waits until the registry has them.
publish() {
    local place name version folder
    local -a options=()
    packages >"$scratch/packages"
    while read -r place name version folder; do
        if [[ $place == beside ]]; then
            # A dry run has not published it.
            [[ -z $dry ]] || options+=(--config "patch.crates-io.$name.path=\"$folder\"")
        elif cargo info --quiet --registry crates-io "$name@$version" >/dev/null 2>&1 </dev/null; then
            printf '%s %s is published\n' "$name" "$version"
            [[ -z $dry ]] || options+=(--package "$name")
        else
            options+=(--package "$name")
        fi
    done <"$scratch/packages"
    [[ " ${options[*]-} " != *' --package '* ]] || cargo publish "${options[@]}" "$@"
}

cd "$(dirname "$0")/.."
publish --locked "$@"
cd integrations
publish --locked "$@"
cd candle
# Verifying would build candle's own kernels, which takes nvcc.
options=(--no-verify)
for option; do
    [[ $option == --no-verify ]] || options+=("$option")
done
for version in 0.9.2 0.10.2 0.11.1; do
    ./for-candle.sh "$version" "$scratch/candle-$version"
    (cd "$scratch/candle-$version" && publish "${options[@]}")
done

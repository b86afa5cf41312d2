#!/usr/bin/env bash
# Usage: publish.sh [--dry-run] [CARGO-OPTION...]
#
# Publishes all packages to crates.io in the order of their dependencies: the crates, warptile-cudarc, and the candle packages for each
# version of candle. What is there already in its version is left out: after a failure, the same command goes on. It ends with an error if
# what is there has other files than this folder. With --dry-run everything is packed, and nothing compared or uploaded. Options such as
# --no-verify and --allow-dirty go to `cargo publish`.
set -euo pipefail
if [[ ${1-} == -h || ${1-} == --help ]]; then
    sed -n 's/^# \{0,1\}//; 2,7p' "$0"
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

# Fails if what is published of a package of this folder's workspace is not what its own folder has. Cargo writes Cargo.toml anew, and keeps it by another name.
compare() {
    local name=$1 version=$2 folder=$3 published=$scratch/published/$1-$2 file source
    mkdir -p "$scratch/published"
    curl --fail --silent --show-error --location "https://static.crates.io/crates/$name/$name-$version.crate" |
        tar -xzC "$scratch/published"
    while read -r file; do
        case $file in
        Cargo.toml | Cargo.lock | .cargo_vcs_info.json) continue ;;
        Cargo.toml.orig) source=Cargo.toml ;;
        *) source=$file ;;
        esac
        cmp --silent "$published/$file" "$folder/$source" || {
            printf 'error: %s %s is published with another %s: it needs a new version\n' "$name" "$version" "$source" >&2
            return 1
        }
    done < <({
        cargo package --list --allow-dirty --quiet --package "$name"
        (cd "$published" && find . -type f -printf '%P\n')
    } | sort -u)
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
            # Between releases files change, and versions do not: a dry run packs what there is.
            if [[ -n $dry ]]; then
                options+=(--package "$name")
            else
                compare "$name" "$version" "$folder"
            fi
            printf '%s %s is published\n' "$name" "$version"
        else
            options+=(--package "$name")
        fi
    done <"$scratch/packages"
    [[ " ${options[*]-} " != *' --package '* ]] || cargo publish "${options[@]}" "$@"
}

cd "$(dirname "$0")/.."
scripts/check_versions.sh
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

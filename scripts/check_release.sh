#!/usr/bin/env bash
# Usage: check_release.sh FOLDER
#
# Checks the files of a release as their users get them, on a machine that needs neither Rust nor a compiler: the checksums of SHA256SUMS; the
# program for this machine, unpacked, with a first result that it compares with float64; the wheel for this machine in an
# environment of its own, with a first result of attention in numpy.
set -euo pipefail
(($# == 1)) || {
    sed -n 's/^# \{0,1\}//; 2,6p' "$0" >&2
    exit 2
}
folder=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

sums=sha256sum
command -v sha256sum >/dev/null || sums='shasum -a 256'
cd "$folder"
$sums --check --strict --quiet SHA256SUMS || die "a file is not the one of SHA256SUMS"
for file in *; do
    [[ $file == SHA256SUMS ]] || grep -q "[ *]$file\$" SHA256SUMS || die "SHA256SUMS does not name $file"
done

case $(uname -s)-$(uname -m) in
Linux-x86_64) target=x86_64-unknown-linux-gnu ;;
Linux-aarch64) target=aarch64-unknown-linux-gnu ;;
Darwin-arm64) target=aarch64-apple-darwin ;;
MINGW*-x86_64 | MSYS*-x86_64) target=x86_64-pc-windows-msvc ;;
*) die "there is no release for $(uname -sm)" ;;
esac

cd "$work"
tar -xzf "$folder/warptile-$target.tar.gz"
cd "warptile-$target"
for file in README.md LICENSE-MIT LICENSE-APACHE; do
    [[ -s $file ]] || die "the archive of the program has no $file"
done
./warptile --version
./warptile gen "b2 q128 k128 h8 d64 f16 mask=causal" --expected right.safetensors -o qkv.safetensors
./warptile run qkv.safetensors --causal --expect right.safetensors

cd "$work"
python=python3
command -v python3 >/dev/null || python=python
$python -m venv venv
bin=venv/bin
[[ -d $bin ]] || bin=venv/Scripts
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_QUIET=1
# numpy first, so that nothing but the folder can give warptile.
$bin/python -m pip install numpy
$bin/python -m pip install --no-index --find-links "$folder" warptile
$bin/python -c '
import numpy as np, warptile
q = np.sin(np.arange(2 * 128 * 8 * 64, dtype=np.float32)).reshape(2, 128, 8, 64)
out = warptile.attention(q, q, q, causal=True)
scores = np.einsum("bqhd,bkhd->bhqk", q.astype(np.float64), q) / 8 + np.triu(np.full((128, 128), -np.inf), 1)
weights = np.exp(scores - scores.max(-1, keepdims=True))
expected = np.einsum("bhqk,bkhd->bqhd", weights / weights.sum(-1, keepdims=True), q)
error = np.abs(out - expected).max()
print(f"warptile {warptile.__version__} in Python: largest error {error:.1e}")
assert error < 1e-5
'
printf 'the release for %s gives right results\n' "$target"

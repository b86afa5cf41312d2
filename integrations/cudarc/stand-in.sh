#!/usr/bin/env bash
# Usage: stand-in.sh
#
# Runs the test whose driver is warptile-fake-cuda. For machines without a GPU and without CUDA; needs cc.
set -euo pipefail
cd "$(dirname "$0")"
fake=$(../../crates/fake-cuda/library.sh)
target=$(cargo metadata --locked --no-deps --format-version 1 | grep -o '"target_directory":"[^"]*"' | cut -d '"' -f 4)
libraries=$target/cudarc-stand-in
rm -rf "$libraries"
mkdir -p "$libraries"
cp "$fake" "$libraries"
# The functions that cudarc asks for beside ours are those that candle's tests have.
cc -shared -fPIC -O1 -o "$libraries/libcuda.so.1" -Wl,-soname,libcuda.so.1 ../candle/stand-in/libraries.c \
    -L "$libraries" -lwarptile_fake_cuda -Wl,-rpath,"$libraries"
ln -s libcuda.so.1 "$libraries/libcuda.so"
# Both cudarc and warptile find the driver by its name.
LD_LIBRARY_PATH=$libraries cargo test --locked --quiet --test stand_in -- --include-ignored

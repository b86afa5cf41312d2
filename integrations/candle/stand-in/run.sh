#!/usr/bin/env bash
# Usage: run.sh
#
# Calls warptile-candle on CUDA devices of candle's where the driver is warptile-fake-cuda, which checks that memory is alive and in order
# wherever a launch uses it. For machines without a GPU and without CUDA; needs cc.
set -euo pipefail
cd "$(dirname "$0")/.."
fake=$(../../crates/fake-cuda/library.sh)
target=$(cargo metadata --locked --no-deps --format-version 1 | grep -o '"target_directory":"[^"]*"' | cut -d '"' -f 4)
libraries=$target/candle-stand-in
rm -rf "$libraries"
mkdir -p "$libraries"
cp "$fake" "$libraries"
cc -shared -fPIC -O1 -o "$libraries/libcuda.so.1" -Wl,-soname,libcuda.so.1 stand-in/libraries.c \
    -L "$libraries" -lwarptile_fake_cuda -Wl,-rpath,"$libraries"
ln -s libcuda.so.1 "$libraries/libcuda.so"
for name in nvrtc curand cublas cublasLt; do
    cc -shared -o "$libraries/lib$name.so" -x c /dev/null
done
export LIBRARY_PATH=$libraries
cargo build --locked --quiet --workspace --features warptile-candle-stand-in/stand-in --lib --bins
# Both cudarc and warptile find the driver by its name.
LD_LIBRARY_PATH=$libraries "$target/debug/warptile-candle-stand-in"

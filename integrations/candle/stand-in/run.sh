#!/usr/bin/env bash
# Usage: run.sh [--release]
#
# Tests warptile-candle with its feature cuda on the CPU, runs the examples there, and calls it on CUDA devices of candle's where the driver
# is warptile-fake-cuda, which checks that memory is alive and in order wherever a launch uses it. Without the feature, it is compiled. For
# machines without a GPU and without CUDA; needs cc.
set -euo pipefail
release=("$@")
cd "$(dirname "$0")/.."
fake=$(../../crates/fake-cuda/library.sh)
target=$(cargo metadata --locked --no-deps --format-version 1 | grep -o '"target_directory":"[^"]*"' | cut -d '"' -f 4)
built=$target/$([[ ${release[*]} ]] && echo release || echo debug)
libraries=$target/candle-stand-in
rm -rf "$libraries"
mkdir -p "$libraries"
cp "$fake" "$libraries"
for devices in 1 0; do
    mkdir "$libraries/$devices"
    cc -shared -fPIC -O1 -DDEVICES=$devices -o "$libraries/$devices/libcuda.so.1" -Wl,-soname,libcuda.so.1 stand-in/libraries.c \
        -L "$libraries" -lwarptile_fake_cuda -Wl,-rpath,"$libraries"
done
# For the linker: programs are linked to both, and what is loaded first has the first word.
echo "INPUT($libraries/1/libcuda.so.1 $libraries/libwarptile_fake_cuda.so)" >"$libraries/libcuda.so"
for name in nvrtc curand cublas cublasLt; do
    cc -shared -o "$libraries/lib$name.so" -x c /dev/null
done
export LIBRARY_PATH=$libraries
build() {
    # The examples' dependencies choose the features that the tests have: candle is compiled once.
    cargo build --locked --quiet --workspace --lib --examples "${release[@]}" "$@"
}
features=warptile-candle-stand-in/stand-in
on_cpu=$libraries/0:$libraries
LD_LIBRARY_PATH=$on_cpu cargo test --locked --quiet --workspace "${release[@]}" --features "$features"
build --bins --features "$features"
for example in attention packed; do
    LD_LIBRARY_PATH=$on_cpu "$built/examples/$example"
done
LD_LIBRARY_PATH=$on_cpu "$built/examples/train" 3
# Both cudarc and warptile find the driver by its name.
LD_LIBRARY_PATH=$libraries/1:$libraries "$built/warptile-candle-stand-in"
build --no-default-features --features warptile-candle-stand-in/candle-cuda

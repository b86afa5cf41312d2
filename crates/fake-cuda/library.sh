#!/usr/bin/env bash
# Usage: library.sh
#
# Prints the path of the stand-in's library: WARPTILE_FAKE_CUDA if that is set, as CI does, or one that it builds. In the same folder is
# libwarptile_fake_nccl.so, the stand-in for NCCL.
set -euo pipefail
cd "$(dirname "$0")/../.."
if [[ -z ${WARPTILE_FAKE_CUDA-} ]]; then
    # Without the lints that the caller may have asked for.
    RUSTC_WORKSPACE_WRAPPER= cargo build --locked --release --quiet --package warptile-fake-cuda --package warptile-fake-nccl
    target=$(cargo metadata --locked --no-deps --format-version 1 | grep -o '"target_directory":"[^"]*"' | cut -d '"' -f 4)
    WARPTILE_FAKE_CUDA=$target/release/libwarptile_fake_cuda.so
fi
[[ -f $WARPTILE_FAKE_CUDA ]] || {
    echo "error: WARPTILE_FAKE_CUDA is $WARPTILE_FAKE_CUDA, which is no file" >&2
    exit 1
}
printf '%s\n' "$WARPTILE_FAKE_CUDA"

#!/usr/bin/env bash
# Usage: build-gpu-tests.sh DIRECTORY
#
# Builds the example and the tests that run on a GPU, each one executable that needs nothing but the C library and, when it runs, the driver.
# DIRECTORY/run.sh runs them on the machine that has a GPU: `run.sh [DEVICE]`.
set -euo pipefail
. "$(dirname "$0")/../gpu-tests.sh"
begin 1 "$@"
prefix=$(mktemp -d)
trap 'rm -rf "$prefix"' EXIT
./install.sh "$prefix"
for source in examples/attention examples/several tests/numeric tests/gradients tests/gpu; do
    cc -std=c11 -O1 -s -Wall -Wextra -Werror -I "$prefix/include" -o "$directory/$(basename $source)" $source.c \
        "$prefix/lib/libwarptile.a" -lpthread -ldl -lm
done
cat >"$directory/run.sh" <<'RUN'
#!/usr/bin/env bash
set -euo pipefail
cd "$(dirname "$0")"
device=${1:-0}
./attention --device "$device"
./several "$device" "$device"
./numeric --device "$device" 2000
./gradients --device "$device" 1000
./gpu "$device"
RUN
chmod +x "$directory/run.sh"

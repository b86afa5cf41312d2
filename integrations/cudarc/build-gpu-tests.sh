#!/usr/bin/env bash
# Usage: build-gpu-tests.sh DIRECTORY
#
# Builds the GPU tests and the example on a machine without CUDA, for a run on another one, which needs nothing but the driver: DIRECTORY/run.sh.
set -euo pipefail
. "$(dirname "$0")/../gpu-tests.sh"
begin 1 "$@"
built() {
    cargo build --locked --release --message-format=json "$@" | grep -o '"executable":"[^"]*"' | cut -d '"' -f 4
}
strip -o "$directory/gpu" "$(built --test gpu)"
strip -o "$directory/attention" "$(built --example attention)"
cat >"$directory/run.sh" <<'RUN'
#!/usr/bin/env bash
set -euo pipefail
cd "$(dirname "$0")"
./attention
./gpu --include-ignored "$@"
RUN
chmod +x "$directory/run.sh"

#!/usr/bin/env bash
# Usage: build-gpu-tests.sh DIRECTORY
#
# Builds the GPU tests and the example on a machine without CUDA, for a run on another one, which needs nothing but the driver: DIRECTORY/run.sh.
set -euo pipefail
(($# == 1)) || {
    sed -n 's/^# \{0,1\}//; 2,4p' "$0" >&2
    exit 2
}
mkdir -p "$1"
directory=$(cd "$1" && pwd)
cd "$(dirname "$0")"
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

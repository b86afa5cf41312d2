#!/usr/bin/env bash
# Usage: build-gpu-tests.sh DIRECTORY
#
# Builds the package and what checks it on a GPU, on a machine without CUDA, for a run on another one, which needs Python 3.11 or newer with numpy
# and torch 2.11 or newer: DIRECTORY/run.sh. Its arguments are those of gpu_check.py.
set -euo pipefail
. "$(dirname "$0")/../gpu-tests.sh"
begin 1 "$@"
# As maturin does: Python's functions are those of the interpreter that loads the module.
export PYO3_BUILD_EXTENSION_MODULE=1
library=$(cargo build --locked --release --message-format=json | grep -o '"[^"]*/lib_native\.so"' | head -1 | tr -d '"')
rm -rf "$directory/warptile"
mkdir "$directory/warptile"
cp python/warptile/*.py python/warptile/*.pyi python/warptile/py.typed "$directory/warptile"
strip -o "$directory/warptile/_native.abi3.so" "$library"
if readelf --dynamic --wide "$directory/warptile/_native.abi3.so" | grep -q 'NEEDED.*libpython'; then
    echo "error: the module is linked to this machine's libpython" >&2
    exit 1
fi
cp tests/gpu_check.py tests/reference.py "$directory"
cat >"$directory/run.sh" <<'RUN'
#!/usr/bin/env bash
set -euo pipefail
cd "$(dirname "$0")"
PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} python3 gpu_check.py "$@"
RUN
chmod +x "$directory/run.sh"

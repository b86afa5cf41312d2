#!/usr/bin/env bash
# Usage: build-gpu-tests.sh DIRECTORY [WORKSPACE [CUDA]]
#
# Builds the GPU tests of a workspace (this one, or one that for-candle.sh wrote) on a machine without CUDA, for a run on another one:
# DIRECTORY/run.sh. candle links to CUDA's libraries; here to libraries with the same names and functions, that do nothing. CUDA is the
# major version of those where the tests will run, from a toolkit or PyTorch; 13 unless it is given.
set -euo pipefail
. "$(dirname "$0")/../gpu-tests.sh"
workspace=$(cd "${2:-$(dirname "$0")}" && pwd) cuda=${3:-13}
begin 3 "$@"
cd "$workspace"
metadata=$(cargo metadata --format-version 1)
# There may be several: what candle depends on has versions of its own.
mapfile -t manifests < <(grep -o '"manifest_path":"[^"]*/cudarc-[^"]*"' <<<"$metadata" | cut -d '"' -f 4)
target=$(grep -o '"target_directory":"[^"]*"' <<<"$metadata" | cut -d '"' -f 4)
libraries=$target/cuda-names
mkdir -p "$libraries"
for library in driver:cuda:1 nvrtc:nvrtc:"$cuda" curand:curand:10 cublas:cublas:"$cuda" cublaslt:cublasLt:"$cuda"; do
    IFS=: read -r module name number <<<"$library"
    grep -rhoE 'fn (cu|nvrtc)[A-Za-z0-9_]+' "${manifests[@]/%Cargo.toml/src/$module/sys}" | cut -d ' ' -f 2 | sort -u |
        sed 's/.*/void &(void) { __builtin_trap(); }/' >"$libraries/$name.c"
    cc -shared -fPIC -w -Wl,-soname,"lib$name.so.$number" -o "$libraries/lib$name.so" "$libraries/$name.c"
    ln -sf "lib$name.so" "$libraries/lib$name.so.$number"
done
built=$(cargo rustc --release --package warptile-candle --test gpu --message-format=json -- -L "native=$libraries" |
    grep -o '"executable":"[^"]*"' | cut -d '"' -f 4)
strip -o "$directory/gpu" "$built"
# That it starts says that every name is there.
LD_LIBRARY_PATH=$libraries "$directory/gpu" --list
cat >"$directory/run.sh" <<'RUN'
#!/usr/bin/env bash
set -euo pipefail
cd "$(dirname "$0")"
# cuBLAS, cuRAND and NVRTC: those that the loader finds, a toolkit's, or PyTorch's.
pytorch=$(python3 -c '
import glob, importlib.util
spec = importlib.util.find_spec("nvidia")
print(*(path for folder in (spec.submodule_search_locations if spec else ()) for path in glob.glob(folder + "/*/lib")), sep=":")
' 2>/dev/null || true)
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/usr/local/cuda/lib64:$pytorch
./gpu --include-ignored "$@"
RUN
chmod +x "$directory/run.sh"

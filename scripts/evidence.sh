#!/bin/sh
# Collects the evidence on a GPU host, from inside an unpacked bundle: see docs/evidence.md.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
command -v python3 >/dev/null || {
    echo "evidence.sh needs python3 (its standard library is enough)" >&2
    exit 2
}
exec python3 "$here/evidence" "$@"

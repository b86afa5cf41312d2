#!/usr/bin/env bash
# Usage: header.sh [--check | --seal]
#
# Makes warptile.h of the sources, by cbindgen. With `--check`, fails if the committed one is another. With `--seal`, which needs no cbindgen,
# fails if the sources or the header have changed since it was made: its last line has the hash of both.
set -euo pipefail
cd "$(dirname "$0")"

# The last line of a header that was made of the sources as they are.
seal() {
    printf '/* Seal of header.sh: %s */\n' "$(cat cbindgen.toml src/*.rs "$1" | sha256sum | cut -d ' ' -f 1)"
}

made=$(mktemp)
trap 'rm -f "$made"' EXIT
if [[ ${1-} == --seal ]]; then
    sed '$d' warptile.h >"$made"
else
    cargo run --locked --quiet --package warptile-header >"$made"
fi
seal "$made" >>"$made"
case ${1-} in
"") cp "$made" warptile.h ;;
--check | --seal)
    cmp "$made" warptile.h || {
        echo "error: warptile.h is not what cbindgen makes of the sources: run integrations/c/header.sh" >&2
        exit 1
    }
    ;;
*)
    sed -n 's/^# \{0,1\}//; 2,5p' "$0" >&2
    exit 2
    ;;
esac

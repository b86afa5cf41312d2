#!/usr/bin/env bash
# Usage: test.sh
#
# Installs libwarptile in the target folder, and compiles and runs the example and the tests with it: as C and as C++, linked with the
# shared and with the static library, on the CPU and with the stand-ins for the driver and for NCCL. Needs cc, c++ and pkg-config, and no CUDA.
set -euo pipefail
cd "$(dirname "$0")"
metadata=$(cargo metadata --locked --no-deps --format-version 1)
target=$(grep -o '"target_directory":"[^"]*"' <<<"$metadata" | cut -d '"' -f 4)
prefix=$target/c-prefix
rm -rf "$prefix"
./install.sh "$prefix"
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig LD_LIBRARY_PATH=$prefix/lib

warnings="-Wall -Wextra -Werror"
flags=$(pkg-config --cflags warptile)
shared=$(pkg-config --libs warptile)
private=$(sed -n 's/^Libs.private: //p' "$prefix/lib/pkgconfig/warptile.pc")
c() {
    local source=$1 to=$2
    shift 2
    # shellcheck disable=SC2086 # lists of flags
    cc -std=c11 -O1 $warnings $flags -o "$prefix/$to" "$source" "$@"
}

# Structs without padding: a version of the library that has a field there would miss what this one's callers leave in it.
cc -std=c11 -pedantic $warnings -Wpadded -fsyntax-only -x c warptile.h
# shellcheck disable=SC2086
c++ -std=c++11 $warnings $flags -o "$prefix/header" tests/header.cpp "$prefix/lib/libwarptile.a" $private
# shellcheck disable=SC2086
for test in wrong numeric gradients several; do
    c tests/$test.c $test $shared -lm -ldl
done
# shellcheck disable=SC2086
{
    c examples/attention.c attention $shared -lm -ldl
    c examples/attention.c attention-static "$prefix/lib/libwarptile.a" $private
    c examples/several.c several-example $shared -lm -ldl
    c tests/stand_in.c stand_in $shared -ldl -lpthread
}
sed -n '/^```c$/,/^```$/p' README.md | sed '1d; $d' >"$prefix/readme.c"
# shellcheck disable=SC2086
c "$prefix/readme.c" readme $shared
for program in readme header wrong numeric gradients several attention attention-static several-example; do
    "$prefix/$program"
done

# The driver is opened at run time, by name.
needed=$(readelf --dynamic --wide "$prefix/lib/libwarptile.so" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
printf 'libwarptile.so needs: %s\n' "$(tr '\n' ' ' <<<"$needed")"
[[ -n $needed ]] || {
    echo "error: readelf found nothing that libwarptile.so needs" >&2
    exit 1
}
if grep -qiE 'cuda|nvidia|cublas' <<<"$needed"; then
    echo "error: libwarptile.so is linked with a CUDA library" >&2
    exit 1
fi
readelf --dynamic --wide "$prefix/attention" | grep -q "NEEDED.*libwarptile\.so\.[0-9]*\.[0-9]*\]"

fake=$(../../crates/fake-cuda/library.sh)
WARPTILE_LIBCUDA=$fake WARPTILE_LIBNCCL=$(dirname "$fake")/libwarptile_fake_nccl.so "$prefix/stand_in"

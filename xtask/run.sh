#!/bin/sh
# Runs what `cargo xtask bundle` packed. The host needs an NVIDIA driver and nothing else.
set -u

usage() {
    cat <<'USAGE'
Usage: ./run.sh [OPTION]... [FILTER]...

Prints `warptile info`, then runs every test, GPU tests included. A FILTER is a part of a test's name; with several, a test
runs if any of them matches. Tests that need several GPUs are left out, and counted, where `warptile info` shows fewer than two.

  --only NAME   run only the test executables whose name contains NAME (may be given again)
  --cpu         leave out the tests that need a GPU
  --list        list the tests, run nothing
  --benches     run the benchmarks instead of the tests; FILTERs are criterion's
  --help        this text

If the bundle has integrations/, their tests run after the others, unless there are FILTERs, --cpu or --benches; --only takes their
names, too: candle, cudarc, c and python.

One line per test executable goes to standard output, its whole output to logs/. An executable that runs longer than
WARPTILE_TEST_TIMEOUT seconds (default 600) is ended and counts as failed. Failed tests are named last.

Exit code: 0 all passed, 1 something failed, 2 the command line was not understood.
USAGE
}

cd "$(dirname "$0")" || exit 1
here=$(pwd)
export WARPTILE_ROOT="$here"
export WARPTILE_BIN="$here/bin/warptile"

only=""
filters=""
ignored="--include-ignored"
mode=test
while [ $# -gt 0 ]; do
    case "$1" in
    --help | -h) usage && exit 0 ;;
    --only)
        [ $# -ge 2 ] || { usage >&2 && exit 2; }
        only="$only $2"
        shift
        ;;
    --cpu) ignored="" ;;
    --list) mode=list ;;
    --benches) mode=bench ;;
    -*) usage >&2 && exit 2 ;;
    *) filters="$filters $1" ;;
    esac
    shift
done

# Whether the executable named $1 was asked for.
wanted() {
    [ -z "$only" ] && return 0
    for part in $only; do
        case "$1" in *"$part"*) return 0 ;; esac
    done
    return 1
}

limit=""
if command -v timeout >/dev/null; then
    limit="timeout ${WARPTILE_TEST_TIMEOUT:-600}"
fi

mkdir -p logs
gpus=0
if [ "$mode" = test ]; then
    info=$("$WARPTILE_BIN" info) || echo "# warptile info ended with exit code $?"
    echo "$info"
    gpus=$(echo "$info" | grep -c '^cuda:[0-9]')
fi

# The tests of the executable $1 that would run and need several GPUs. The reason for which they are ignored says so, in the words that
# SEVERAL_GPUS in scripts/evidence/checks.py has.
of_several_gpus() {
    # shellcheck disable=SC2086
    names=$($limit "$1" --ignored --list --format=terse $filters 2>/dev/null | sed -n 's/: test$//p')
    # shellcheck disable=SC2086
    [ -z "$names" ] || $limit "$1" --exact $names | sed -nE 's/^test ([^ ]+).* \.\.\. ignored, .*NVIDIA GPUs.*/\1/p'
}

# Filters are words: test names have no blanks.
# shellcheck disable=SC2086
run_one() {
    case "$mode" in
    list) "$1" --list $filters ;;
    bench) "$1" --bench $filters ;;
    test) $limit "$1" $ignored $filters $skipped ;;
    esac
}

number=0
failed_executables=0
passed=0
failed=0
left_out=0
failures=""

# Runs a command as the suite named $1. Tests are in the words of Rust's tests, or of gpu_check.py.
suite() {
    name=$1
    shift
    log="logs/$name.log"
    "$@" >"$log" 2>&1
    code=$?
    summary=$(grep '^test result:' "$log" | sed 's/^test result: [A-Za-z]*\. //; s/; finished.*//' | tail -n 1)
    passed=$((passed + $(grep -cE '^test .* \.\.\. ok$|^ok  +[a-z_0-9]+ +[0-9.]+ s' "$log")))
    broken=$(sed -nE 's/^test (.*) \.\.\. FAILED$/\1/p; s/^FAILED +([a-z_0-9]+) +[0-9.]+ s.*/\1/p' "$log")
    for test in $broken; do
        case "$test" in -) continue ;; esac
        failed=$((failed + 1))
        failures="$failures
  $name $test"
    done
    if [ "$code" -eq 0 ]; then
        echo "ok $number - $name${summary:+ ($summary)}"
    else
        failed_executables=$((failed_executables + 1))
        [ -n "$broken" ] || failures="$failures
  $name ended with exit code $code without naming a test; its last line: $(tail -n 1 "$log")"
        echo "not ok $number - $name (${summary:-exit code $code})"
    fi
}

directory=tests
[ "$mode" = bench ] && directory=benches
for executable in "$directory"/*; do
    name=$(basename "$executable")
    case "$name" in *.so) continue ;; esac
    [ -x "$executable" ] || continue
    wanted "$name" || continue
    number=$((number + 1))
    if [ "$mode" = list ]; then
        run_one "$executable" | sed -n "s/: test\$//p" | sed "s/^/$name /"
    else
        skipped=""
        if [ "$mode" = test ] && [ -n "$ignored" ] && [ "$gpus" -lt 2 ]; then
            for test in $(of_several_gpus "$executable"); do
                skipped="$skipped --skip $test"
                left_out=$((left_out + 1))
            done
            # Filters are parts of names, so only without them --skip can be for whole names.
            [ -z "$skipped" ] || [ -n "$filters" ] || skipped="--exact$skipped"
        fi
        suite "$name" run_one "$executable"
    fi
done

if [ "$mode" = test ] && [ -n "$ignored" ] && [ -z "$filters" ]; then
    for script in integrations/*/run.sh; do
        name="integrations-$(basename "$(dirname "$script")")"
        [ -x "$script" ] && wanted "$name" || continue
        number=$((number + 1))
        # shellcheck disable=SC2086
        suite "$name" $limit "$script"
    done
fi

[ "$mode" = list ] && exit 0
echo "1..$number"
if [ "$number" -eq 0 ]; then
    echo "no executable in $directory/ has a name with:$only"
    exit 1
fi
[ "$mode" = test ] && echo "# $passed tests passed, $failed failed"
[ "$left_out" -eq 0 ] || echo "# left out, as they need several GPUs: $left_out; GPUs here: $gpus"
if [ "$failed_executables" -gt 0 ]; then
    echo "# failed:$failures"
    exit 1
fi

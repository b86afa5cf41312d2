# Sourced by each build-gpu-tests.sh, whose arguments begin with DIRECTORY.

# begin MOST ARGUMENT...
#
# Makes DIRECTORY, goes to the script's folder, and sets `directory`, which is absolute. Ends with the script's usage, its first comment,
# unless there are 1 to MOST arguments.
begin() {
    local most=$1
    shift
    (($# >= 1 && $# <= most)) || {
        sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" >&2
        exit 2
    }
    mkdir -p "$1"
    directory=$(cd "$1" && pwd)
    cd "$(dirname "$0")"
}

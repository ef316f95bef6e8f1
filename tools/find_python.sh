#!/bin/sh
# Prints the path of a Python that can run the project. Candidates are run, not believed: a version manager's shim
# can be on PATH under the right name and exit 127.
set -eu

# Exit 0: usable. 10: newer than the pinned wheels. They are published for standard CPython only. The path is the
# base interpreter's, because the environment that may be active here is one we may be about to replace.
probe='
import ensurepip, sqlite3, ssl, sys, venv
if sys.version_info < (3, 12) or sys.implementation.name != "cpython" or "t" in sys.abiflags:
    sys.exit(1)
print(sys._base_executable)
sys.exit(10 if sys.version_info >= (3, 15) else 0)
'
newer=

try() {
    path=$("$1" -I -c "$probe" </dev/null 2>/dev/null) && code=0 || code=$?
    case $code in
        0) echo "$path"; exit ;;
        10) newer=${newer:-$path} ;;
    esac
}

if [ -n "${PYTHON:-}" ]; then
    try "$PYTHON"
    [ -z "$newer" ] || { echo "$newer"; exit; }
    echo "PYTHON=$PYTHON is not a CPython >= 3.12 with ssl, sqlite3, venv and ensurepip: looking for another" >&2
fi

for name in python3.14 python3.13 python3.12 python3; do
    try "$name"
done

versions=${PYENV_ROOT:-${HOME:-}/.pyenv}/versions
if [ -d "$versions" ]; then
    for version in $(ls "$versions" | sort -t. -k1,1nr -k2,2nr -k3,3nr); do
        try "$versions/$version/bin/python3"
    done
fi

if [ -z "$newer" ] && command -v uv >/dev/null && uv python install 3.12 >&2; then
    try "$(uv python find 3.12)"
fi

[ -z "$newer" ] || { echo "$newer"; exit; }
echo "no usable Python: install CPython 3.12, 3.13 or 3.14 with ssl, sqlite3, venv and ensurepip (Debian, Ubuntu:" \
    "python3-venv), or name one: make PYTHON=/path/to/python3.12" >&2
exit 1

#!/bin/sh
# usage: setup.sh dev|cuda13|deviceless
# Makes that environment: an editable install with that extra, at the versions of constraints.txt. One that is stamped
# as made from just these is left as it is: no pip, no network.
set -eu
cd "$(dirname "$0")/.."
extra=$1
case $extra in
    dev) venv=.venv packages= ;;
    cuda13) venv=.venv-cuda13 packages= ;;
    deviceless) venv=.venv-deviceless packages="absl-py hypothesis jsonschema pytest pytest-timeout pytest-xdist" ;;
    *) echo "usage: $0 dev|cuda13|deviceless" >&2; exit 2 ;;
esac

# One at a time: a second run waits here, then finds the stamp.
if command -v flock >/dev/null; then
    exec 9>"$venv.lock"
    flock 9
fi

# What the environment is stamped with when the Python $1 made it; its place counts, for it does not survive a move.
stamp() {
    "$1" -I -c '
import hashlib, platform, sys
digest = hashlib.sha256(" ".join([platform.python_version(), *sys.argv[1:]]).encode())
for name in ("pyproject.toml", "constraints.txt"):
    with open(name, "rb") as file:
        digest.update(file.read())
print(digest.hexdigest())
' "$(pwd -P)" "$extra" "$packages" 2>/dev/null
}

python=
[ -z "${PYTHON:-}" ] || python=$(tools/find_python.sh)
if [ -f "$venv/.stamp" ] && have=$(stamp "$venv/bin/python") && [ "$have" = "$(cat "$venv/.stamp")" ] &&
    { [ -z "$python" ] || [ "$(stamp "$python")" = "$have" ]; }; then
    exit
fi

[ -n "$python" ] || python=$(tools/find_python.sh)
echo "making $venv with $python: some minutes, once" >&2
rm -rf "$venv"
"$python" -I -m venv "$venv"
# shellcheck disable=SC2086  # packages is a list
"$venv/bin/python" -I -m pip install -qq --disable-pip-version-check --constraint constraints.txt \
    --editable ".[$extra]" $packages || { echo "$venv is not made: pip says why above" >&2; exit 1; }
stamp "$venv/bin/python" >"$venv/.stamp.new"
mv "$venv/.stamp.new" "$venv/.stamp"  # last, and whole: a half-made environment has no stamp

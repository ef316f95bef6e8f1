#!/bin/sh
# usage: prove.sh [PROVE OPTION...]
# Holds every family's rules against JAX and ptxas on every architecture, and renews the verdicts that `make mutate`
# reads. 2000 points a family where kernels differ most, 500 on the architectures that are much like another.
set -eu
cd "$(dirname "$0")/.."
tools/setup.sh deviceless
failed=
for arch in sm_80 sm_89 sm_90 sm_100 sm_103 sm_120 sm_86 sm_87 sm_110 sm_121; do
    case $arch in
        sm_86 | sm_87 | sm_110 | sm_121) samples=500 ;;
        *) samples=2000 ;;
    esac
    .venv-deviceless/bin/tuner prove "$arch" --samples $samples --rung compiled \
        --save "tests/proof/verdicts/$arch.jsonl.gz" "$@" || failed="$failed $arch"
done
[ -z "$failed" ] || { echo "rules and compilers disagree on$failed" >&2; exit 1; }

#!/usr/bin/env bash
#
# ci/fast.sh [BAZEL TEST ARGUMENTS]: the tests, as everybody runs them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec tools/dev test "$@"

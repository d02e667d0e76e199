#!/usr/bin/env bash
#
# ci/asan.sh [BAZEL TEST ARGUMENTS]: memory errors, found by AddressSanitizer.
#
# Our own code is instrumented; LibTorch and Abseil are the system's libraries and are not. Leaks
# are not looked for, because LibTorch leaves some.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec tools/dev test --config=asan "$@" -- \
  //simulator/... //launch/... //accelerate/... //tools/lint:tidy_test //tools/lint:source_tree_test

#!/usr/bin/env bash
#
# ci/asan.sh [BAZEL TEST ARGUMENTS]: memory errors and undefined behaviour, found by AddressSanitizer
# and UndefinedBehaviorSanitizer in one build.
#
# Our own code is instrumented; LibTorch and Abseil are the system's libraries and are not, apart
# from what their headers put into our objects. Leaks are not looked for, because LibTorch leaves
# some.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
ACCELERATE_PACKAGES="tools/packages.txt tools/sanitizer_packages.txt" exec \
  tools/dev test --config=asan "$@" -- \
  //simulator/... //launch/... //accelerate/... //trackers/... //integration_tests/... \
  //tools/lint:tidy_test //tools/lint:source_tree_test -//integration_tests/outside/...

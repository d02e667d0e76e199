#!/usr/bin/env bash
#
# ci/ubsan.sh [BAZEL TEST ARGUMENTS]: undefined behaviour, found by UndefinedBehaviorSanitizer.
#
# The first report ends a test. LibTorch and Abseil are the system's libraries and are not
# instrumented, apart from what their headers put into our objects.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec tools/dev test --config=ubsan "$@" -- \
  //simulator/... //launch/... //accelerate/... //tools/lint:tidy_test //tools/lint:source_tree_test

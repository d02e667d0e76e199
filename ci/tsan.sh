#!/usr/bin/env bash
#
# ci/tsan.sh [BAZEL TEST ARGUMENTS]: data races, found by ThreadSanitizer.
#
# Only parts without LibTorch: its threads are not instrumented, so what they synchronise would be
# reported as races. The simulator's scheduler, where all threads of a simulation meet, is among
# those parts.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
ACCELERATE_PACKAGES="tools/packages.txt tools/sanitizer_packages.txt" exec \
  tools/dev test --config=tsan "$@" -- \
  //simulator/core/... //launch/... //tools/lint:tidy_test //tools/lint:source_tree_test

#!/usr/bin/env bash
#
# ci/ubsan.sh [BAZEL TEST ARGUMENTS]: undefined behaviour. asan.sh finds it in the same build.
exec "$(dirname "${BASH_SOURCE[0]}")/asan.sh" "$@"

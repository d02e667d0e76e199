#!/usr/bin/env bash
#
# ci/gcc.sh [BAZEL TEST ARGUMENTS]: the tests, compiled by g++ without precompiled headers.
#
# clang reads the commonest headers precompiled, so a source that forgot one of them compiles all
# the same; g++ finds it. CMake users may have either compiler.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec tools/dev test --config=gcc "$@"

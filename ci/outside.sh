#!/usr/bin/env bash
#
# ci/outside.sh: a Bazel workspace outside the repository builds the program of README.md with g++ and
# Bazel's defaults, and runs it on one rank, two processes and a simulated cluster.
#
# //integration_tests/outside:bazel_test only analyses it, and install_test does the same by CMake.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec tools/dev shell integration_tests/outside/bazel_workspace.sh . build

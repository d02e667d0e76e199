#!/usr/bin/env bash
#
# ci/outside.sh [4|7]: the project as an external repository of a Bazel workspace of somebody else's.
#
# Bazel 4, which Debian 13 has, takes it by a WORKSPACE, Bazel 7, which Debian testing has, by a MODULE.bazel
# and in a build root of its own. Each compiles the workspace's sources with Bazel's own compiler, g++, and
# no flag of ours, then builds the library, too, and runs what was built, with clang and precompiled headers,
# which is faster. The workspaces are those of accelerate/docs/bazel.md and
# write_a_simulated_test.md. Bazel 7 also analyses the whole project, and runs tests that need no LibTorch.
# Where the second build root cannot be made, the lane says so and ends well.
#
# //integration_tests/outside:bazel_test only analyses a workspace, and install_test does the same by CMake.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly consumer=integration_tests/outside/bazel_workspace.sh
# What is looked at here needs no optimised programs.
readonly quick=(--copt=-O0 --copt=-U_FORTIFY_SOURCE --strategy=CppCompile=local)
readonly clang=(--repo_env=CC=clang --define=precompiled=true --force_pic --linkopt=-fuse-ld=lld
  --cxxopt=-fclang-abi-compat=17)
readonly fast=(//accelerate/base/... //simulator/hardware/... //launch/settings/... //tools/lint/...)

bazel_4() {
  tools/dev shell "$consumer" . WORKSPACE compile "${quick[@]}"
  tools/dev shell "$consumer" . WORKSPACE build "${quick[@]}" "${clang[@]}"
}

bazel_7() {
  export ACCELERATE_SUITE=testing
  tools/dev shell true || { echo 'outside: Bazel 7 was not tried: Debian testing cannot be installed here'; return; }
  # Bazel's own modules have names for others that no build of ours asks for. Where its registry is out of
  # reach, and no package of Debian's has them, these stand for them.
  # The last flag is Bazel 8's default.
  local name quiet=(--noshow_progress --ui_event_filters=-info --lockfile_mode=off --noenable_workspace
    --incompatible_disallow_empty_glob)
  for name in apple_support buildozer protobuf zlib; do
    mkdir -p ".ci/out/modules/$name"
    echo "module(name = \"$name\")" >".ci/out/modules/$name/MODULE.bazel"
    quiet+=("--override_module=$name=$PWD/.ci/out/modules/$name")
  done
  tools/dev bazel build "${quiet[@]}" --nobuild //...
  tools/dev bazel test "${quiet[@]}" --test_summary=terse "${fast[@]}"
  tools/dev shell "$consumer" . MODULE.bazel compile "${quick[@]}" "${quiet[@]}"
  tools/dev shell "$consumer" . MODULE.bazel build "${quick[@]}" "${quiet[@]}" "${clang[@]}"
}

case ${1:-} in
  '')
    bazel_4
    bazel_7
    ;;
  4 | 7) "bazel_$1" ;;
  *) echo 'usage: ci/outside.sh [4|7]' >&2; exit 2 ;;
esac
echo 'outside: all well'

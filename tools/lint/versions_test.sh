#!/usr/bin/env bash
#
# The versions of the checkout agree, and each kind of mistake is found in a copy of what they stand in.
set -euo pipefail
repo=$(dirname "$(realpath .clang-format)")
tool=$(realpath tools/lint/versions.py)
readonly repo tool copy=$TEST_TMPDIR/copy

python3 -B "$tool" "$repo"

# finds TEXT FILE SED: after the edit the tool says the text.
finds() {
  local said
  rm -rf "$copy"
  mkdir -p "$copy"
  (cd "$repo" && cp --parents MODULE.bazel CMakeLists.txt CHANGELOG.md README.md tools/dev tools/third_party/repositories.bzl \
    accelerate/base/version.h accelerate/tensors/libtorch_releases.h accelerate/docs/install.md accelerate/docs/cmake.md ci/cmake.sh \
    integration_tests/outside/consumer/CMakeLists.txt "$copy")
  python3 -B "$tool" "$copy" >/dev/null
  chmod -R u+w "$copy"
  sed -i -E "$3" "$copy/$2"
  if said=$(python3 -B "$tool" "$copy"); then echo "FAILED: nothing is found after $3 in $2" >&2; exit 1; fi
  [[ $said == *"$1"* ]] || { echo "FAILED: found \"$said\" instead of \"$1\"" >&2; exit 1; }
}

finds 'version = "9.1.0"' MODULE.bazel 's/^    version = .*/    version = "9.1.0",/'
finds 'MODULE.bazel:' accelerate/base/version.h 's/"[0-9.]+"/"9.1.0"/'
finds 'CHANGELOG.md:' CHANGELOG.md 's/^## Unreleased/## 9.1.0/'
finds 'integration_tests/outside/consumer/CMakeLists.txt:' integration_tests/outside/consumer/CMakeLists.txt 's/(Accelerate) [0-9.]+/\1 0.1/'
finds 'README.md:' README.md 's/(LibTorch of) [0-9.]+/\1 9.9/'
finds 'accelerate/docs/install.md:' accelerate/docs/install.md 's/LibTorch [0-9.]+ or/LibTorch 9.9 or/'
finds 'tools/dev:' accelerate/tensors/libtorch_releases.h 's/built with, [0-9.]+/built with, 9.9/'
finds 'accelerate/docs/cmake.md:' CMakeLists.txt 's/(cmake_minimum_required.VERSION) [0-9.]+/\1 9.9/'
finds 'of libtorch, only tools/third_party/repositories.bzl knows' MODULE.bazel '/"libtorch"/d'
finds 'of zlib, only MODULE.bazel knows' tools/third_party/repositories.bzl '/name = "zlib"/d'
# shellcheck disable=SC2016
finds 'a download without a checksum' ci/cmake.sh '$acurl -L https://example.org/a.tar.gz | tar -x'

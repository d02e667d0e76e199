#!/usr/bin/env bash
#
# ci/cmake.sh [BUILD_DIR]: the whole project compiled by CMake, installed, and used by another one.
#
# //integration_tests/outside:install_test does the same with the objects that Bazel compiled. Here
# CMake compiles all of them, and each installed header by itself, which takes long on two cores. A
# BUILD_DIR that is given stays, and serves the next run. The commands are those of README.md and
# accelerate/docs/install.md.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."
if [[ -z ${ACCELERATE_INSIDE:-} ]]; then
  exec tools/dev shell ci/cmake.sh "$@"
fi
readonly repo=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
readonly build=${1:-$work/build}

cmake -S . -B "$build" -G Ninja -DACCELERATE_DEVICE_TESTS=ON
cmake --build "$build"
cmake --install "$build" --prefix "$work/installed" >"$work/install.log"

# Every installed header compiles on its own.
check_header() {
  g++ -std=c++20 -fsyntax-only -x c++ -DUSE_C10D_GLOO -I "$1" -isystem /usr/include/torch/csrc/api/include \
    - <<<"#include \"$2\"" || { echo "does not compile on its own: $2"; return 1; }
}
export -f check_header
cd "$work/installed/include"
find accelerate simulator -name '*.h' -print0 |
  xargs -0 -P "$(nproc)" -I {} bash -c 'check_header "$@"' check_header "$work/installed/include" {}
echo 'installed headers compile on their own'
cd "$repo"

cmake -S integration_tests/outside/consumer -B "$work/consumer" -G Ninja "-DCMAKE_PREFIX_PATH=$work/installed"
cmake --build "$work/consumer"
"$work/installed/bin/accelerate" launch --simulate 1x2 "$work/consumer/train"
"$work/installed/bin/accelerate" launch --num_processes 2 "$work/consumer/train"
"$build/device_checks"
"$build/bin/accelerate" launch --simulate 2x4 "$build/digits" --epochs 1
echo 'cmake: all well'

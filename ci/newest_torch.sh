#!/usr/bin/env bash
#
# ci/newest_torch.sh [BUILD_DIR]: the project on the newest LibTorch of the Python registry.
#
# CMake compiles library, simulator and launcher against the newest torch that pip finds, the part for CPUs, and the
# tests of the folders that use LibTorch's inner parts. These tests, `accelerate test` and the demo run. With CUDA=1 the
# library is also compiled and linked with CUDA and NCCL, which takes as long again and CUDA's toolkit, so not the build
# root; that does not run here. Where pip reaches no registry it says so and ends well.
#
# The other packages are those of the build root; where ACCELERATE_DEPENDENCIES names a folder that
# ci/gpu_dependencies.sh filled, those of this machine and of the folder. A BUILD_DIR that is given stays, and
# serves the next run. accelerate/docs/libtorch_releases.md tells what differs from release to release;
# install_other.md has the same commands for users.
#
# ci/pip_torch.sh says what TORCH and PYTHON are.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."
. ci/pip_torch.sh newest_torch
if [[ -z ${ACCELERATE_DEPENDENCIES:-}${ACCELERATE_INSIDE:-} ]]; then
  # The build root shows the cache; clang, because it reads headers precompiled.
  exec tools/dev shell env CC=clang CXX=clang++ NEWEST_TORCH="$NEWEST_TORCH" ci/newest_torch.sh "$@"
fi

readonly version=${NEWEST_TORCH##*/}
mkdir -p .ci/out
work=$(mktemp -d "$PWD/.ci/out/newest_torch-XXXXXX")
trap 'rm -rf "$work"' EXIT
readonly build=${1:-$work/build}

# configure BUILD_DIR OPTIONS
configure() {
  cmake -S . -B "$1" -G Ninja "-DCMAKE_PREFIX_PATH=$(echo "$NEWEST_TORCH"/lib/python3*/site-packages/torch)" \
    "-DACCELERATE_DEPENDENCIES=${ACCELERATE_DEPENDENCIES:-}" "${@:2}"
}

configure "$build" -DACCELERATE_CUDA=OFF -DACCELERATE_TESTS=ON -DACCELERATE_EXAMPLES=ON
cmake --build "$build" --target accelerate_launcher accelerate_self_test digits accelerate_all_tests
ctest --test-dir "$build" --output-on-failure
say "the tests pass on LibTorch $version"
readonly digits=$build/accelerate/examples/digits/digits
"$build/bin/accelerate" --version
"$build/bin/accelerate" test
"$build/bin/accelerate" launch --simulate 2x4 "$digits" --epochs 1
"$build/bin/accelerate" launch --num_processes 2 "$digits" --epochs 1

if [[ -n ${CUDA:-} ]]; then
  # CUDA's own libraries are not there: whether ours finds every name is asked of it alone.
  configure "$build-cuda" -DACCELERATE_CUDA=ON -DACCELERATE_NCCL=ON \
    -DCMAKE_SHARED_LINKER_FLAGS=-Wl,--no-undefined,--allow-shlib-undefined
  cmake --build "$build-cuda" --target accelerate accelerate_simulator_library
  say "CUDA and NCCL compiled and linked against the CUDA wheel of LibTorch $version"
fi
say "all well on LibTorch $version"

#!/usr/bin/env bash
#
# ci/cuda.sh [BAZEL BUILD ARGUMENTS]: the CUDA and NCCL configuration compiles and links.
#
# In a build root of its own, 6 GB with LibTorch 2.6 for CUDA 12.4 (tools/cuda_packages.txt); making
# it downloads 2 GB once. Nothing is run: ci/gpu.sh does that where there is a GPU.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."
if [[ -z ${ACCELERATE_INSIDE:-} ]]; then
  ACCELERATE_PACKAGES=tools/cuda_packages.txt exec tools/dev shell ci/cuda.sh "$@"
fi
bazel build --config=cuda "$@" -- //accelerate //simulator/run //integration_tests/gpu:device_checks

# That a program needs the library says that it was found and linked.
program=$(bazel info --config=cuda bazel-bin 2>/dev/null)/integration_tests/gpu/device_checks
readelf -d "$program" | grep -F 'libtorch_cuda.so' || { echo 'cuda: not linked with CUDA'; exit 1; }
echo 'cuda: compiled and linked'

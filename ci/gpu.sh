#!/usr/bin/env bash
#
# ci/gpu.sh [BUILD_DIR [built]]: the library on this machine's GPU, with the LibTorch inside its Python torch.
#
# For machines that have a GPU, Python with torch, CMake and a C++20 compiler, but neither Bazel nor
# Debian's packages nor a network: what else is needed comes from the folder that
# ACCELERATE_DEPENDENCIES names (gpu_dependencies in the checkout unless set), which
# ci/gpu_dependencies.sh fills elsewhere. Where there is no GPU it says so and ends well.
#
# With "built" nothing is built: BUILD_DIR has the programs, made elsewhere against the same torch.
#
# Behind the checks stand figures, "NAME VALUE UNIT": the training loop's cost, and the time and the memory of a step,
# of this library and, where Python has it, of HF Accelerate.
#
# PYTHON names the Python that has torch (python3).
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."
readonly build=${1:-$PWD/.ci/out/gpu}
readonly python=${PYTHON:-python3}

skip() {
  echo "gpu: nothing was tested: $*"
  exit 0
}

torch_says() { "$python" -c "import torch; print($1)" 2>/dev/null; }

nvidia-smi >/dev/null 2>&1 || skip 'there is no NVIDIA GPU here'
prefix=$(torch_says torch.utils.cmake_prefix_path) || skip "$python has no torch"
[[ $(torch_says 'torch.cuda.is_available()') == True ]] || skip "$python's torch sees no GPU"
echo "gpu: $(torch_says 'torch.cuda.get_device_name()'), torch $(torch_says torch.__version__)"

if [[ ${2:-} == built ]]; then
  LD_LIBRARY_PATH="$build:$build/lib:$(torch_says 'torch.__path__[0]')/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
  export LD_LIBRARY_PATH
else
  generator=()
  ! command -v ninja >/dev/null || generator=(-G Ninja)
  cmake -S . -B "$build" "${generator[@]}" "-DCMAKE_PREFIX_PATH=$prefix" \
    "-DACCELERATE_DEPENDENCIES=${ACCELERATE_DEPENDENCIES:-$PWD/gpu_dependencies}" -DACCELERATE_DEVICE_TESTS=ON -DACCELERATE_EXAMPLES=ON
  cmake --build "$build" --parallel "$(nproc)" \
    --target accelerate_launcher accelerate_device_checks accelerate_loop_on_device accelerate_kernel_table digits
fi

"$build/device_checks"
# One rank through the launcher, and a whole training that reaches its accuracy.
"$build/bin/accelerate" launch --num_processes 1 "$build/accelerate/examples/digits/digits" --epochs 10 | tee "$build/digits.log"
awk '/test accuracy/ { accuracy = $NF } END { exit !(accuracy > 0.9) }' "$build/digits.log" ||
  { echo 'gpu: the digits were not learned'; exit 1; }

echo 'gpu: figures of this library'
for precision in no bf16; do ACCELERATE_MIXED_PRECISION=$precision "$build/loop_on_device"; done
if "$python" -c 'import accelerate' 2>/dev/null; then
  echo 'gpu: figures of HF Accelerate'
  for precision in no bf16; do ACCELERATE_MIXED_PRECISION=$precision "$python" ci/gpu_loop.py; done
fi
# KERNELS names the card as simulator/hardware/presets.cc does: its kernels are measured, for a file as in
# simulator/hardware/kernels.
if [[ -n ${KERNELS:-} ]]; then
  "$build/bin/accelerate" launch --num_processes 1 "$build/kernel_table" --device "$KERNELS" --output "$build/$KERNELS.json"
  echo "gpu: the kernels of $KERNELS are in $build/$KERNELS.json: --simulate 1x1:$KERNELS,efficiency=$build/$KERNELS.json"
fi
echo 'gpu: all well'

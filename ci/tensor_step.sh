#!/usr/bin/env bash
#
# ci/tensor_step.sh [ROUNDS [TURNS]]: what a step costs whose layers two ranks divide, beside PyTorch.
#
# Two Gloo processes of one thread each train the language model with SGD: this library's program, then PyTorch's
# tensor parallelism (DTensor) on the same weights and text. That is repeated TURNS times (5), of ROUNDS steps (15)
# each, for the tiny Llama, with sequence shards and a parallel loss and without, and for GPT; what counts are medians
# and ratios. Nothing else should run on the machine. PyTorch is the newest of the Python registry, in the virtual
# environment of ci/torch.sh; where it cannot be installed a line says so, and the rest is measured.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."
readonly rounds=${1:-15} turns=${2:-5} python=${PYTHON:-python3}
readonly cache=${ACCELERATE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/accelerate-cpp}/torch
readonly imports='import numpy, torch.distributed.tensor.parallel'
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

tools/dev bazel build --noshow_progress --ui_event_filters=-info //integration_tests/tensor:tensor_step_benchmark
# Another build root would have a bazel-bin of its own.
bin=$(readlink bazel-bin)
readonly program=$bin/integration_tests/tensor/tensor_step_benchmark

theirs=()
if "$cache/bin/python" -c "$imports" 2>/dev/null ||
  { "$python" -m venv --clear "$cache" && "$cache/bin/pip" install --quiet torch numpy &&
    "$cache/bin/python" -c "$imports"; } >/dev/null 2>&1; then
  theirs=("$cache/bin/python" integration_tests/tensor/torch_step.py "$rounds")
else
  echo 'tensor step: PyTorch is left out: it cannot be installed here'
fi
for words in '' 'sequence loss' 'gpt'; do
  read -ra flags <<<"$words"
  beside=()
  ((${#theirs[@]} == 0)) || beside=("${theirs[@]}" "${flags[@]}")
  python3 ci/sharded_step.py beside "tensor step${words:+, $words}" "$turns" \
    tools/dev shell "$program" "$rounds" "${flags[@]}" -- "${beside[@]}"
done

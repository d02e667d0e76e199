#!/usr/bin/env bash
#
# ci/sharded_step.sh [--profile] [ROUNDS [TURNS]]: what a sharded step costs, beside replicas and beside PyTorch.
#
# Two Gloo processes of one thread each train a language model of 19 million parameters: this library's
# program with replicas and with shards, step by step in turn, then PyTorch's DistributedDataParallel and
# fully_shard in the same way. That is repeated TURNS times (5), of ROUNDS steps (15) each; what counts are
# medians and ratios. Nothing else should run on the machine. PyTorch is the newest of the Python registry,
# in the virtual environment of ci/torch.sh; where it cannot be installed a line says so, and the rest is
# measured.
#
# --profile tells instead what a sharded step does, in instructions by part: gathers, copies into flat
# buffers, hooks, reductions. Valgrind comes from the build root of ci/perf.sh. What a rank waits is a row of
# the table without --profile.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."
profile=
[[ ${1:-} != --profile ]] || { profile=1; shift; }
readonly rounds=${1:-15} turns=${2:-5} python=${PYTHON:-python3}
readonly cache=${ACCELERATE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/accelerate-cpp}/torch
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

tools/dev bazel build --noshow_progress --ui_event_filters=-info //integration_tests/sharding:sharded_step_benchmark
# The other build root has a bazel-bin of its own.
bin=$(readlink bazel-bin)
readonly program=$bin/integration_tests/sharding/sharded_step_benchmark

if [[ -n $profile ]]; then
  mkdir -p .ci/out
  out=$(mktemp -d "$PWD/.ci/out/sharded_step-XXXXXX")
  trap 'rm -rf "$out"' EXIT
  ACCELERATE_PACKAGES='tools/packages.txt tools/perf_packages.txt' \
    tools/dev shell python3 ci/sharded_step.py profile "$out" "$program" shards
  exit
fi

theirs=()
if "$cache/bin/python" -c 'import torch.distributed.fsdp' 2>/dev/null ||
  { "$python" -m venv --clear "$cache" && "$cache/bin/pip" install --quiet torch numpy &&
    "$cache/bin/python" -c 'import torch.distributed.fsdp'; } >/dev/null 2>&1; then
  theirs=("$cache/bin/python" integration_tests/sharding/torch_step.py "$rounds")
else
  echo 'sharded step: PyTorch is left out: it cannot be installed here'
fi
python3 ci/sharded_step.py compare "$turns" tools/dev shell "$program" "$rounds" -- "${theirs[@]}"

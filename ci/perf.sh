#!/usr/bin/env bash
#
# ci/perf.sh [--accept]: what our own programs cost, beside the baselines in ci/baselines.
#
# //ci/baselines/... are tests of what is simulated: times, traffic, memory, operators and files of the demo, the language
# model, ZeRO, offload, a stream and a checkpoint, the same on every machine. This lane runs them, and counts what is not
# simulated (ci/perf_counts.py): instructions of hot paths, system calls of a launch, sizes of programs. How long the
# project takes to compile, .ci/run prints with its budget (ci/budget.json). With --accept all baselines are written.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."
readonly baselines=(checkpoints digits lm_data_parallel lm_fsdp lm_offload stream zero)
if [[ ${1:-} == --accept ]]; then
  for name in "${baselines[@]}"; do tools/dev bazel run "//ci/baselines:$name.accept"; done
else
  tools/dev test //ci/baselines/...
fi
tools/dev bazel build //launch:launcher //accelerate/examples/digits //accelerate/examples/lm //integration_tests/perf:hot_paths
# Instructions are those of the packages that the programs were built with, and of valgrind beside them.
bin=$(readlink bazel-bin)
ACCELERATE_PACKAGES='tools/packages.txt tools/perf_packages.txt' \
  tools/dev shell python3 ci/perf_counts.py ci/baselines/counts.json "$bin" "$@"
echo 'perf: all well'

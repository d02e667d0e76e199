#!/usr/bin/env bash
#
# ci/parallel.sh [TEXT]: models whose layers ranks divide compute what PyTorch computes, for a text that no test has.
#
# It runs each schedule of a pipeline with 1,000 seeds of times that its ranks take, trainings in 20 orders of ranks,
# and all steps of trainings of which a usual run compares the first four.
#
# The weights and the text of the tests in integration_tests/tensor follow from a formula. This lane takes TEXT (a line
# of the Bible in examples/lm, drawn anew each time) and other scales, lets PyTorch compute the losses and norms of one
# process and of its own tensor parallelism (torch_answers.py), and runs the tests with these answers as well. It then
# times Llama of 70 billion parameters on 1,024 folded devices, the training loop of a program with one rank along tp,
# and operators in forward passes whose layers are divided. It also compares the recorded orders of Megatron-LM's
# samples with Megatron-Core's. PyTorch is the newest of the Python registry, in the virtual environment of ci/torch.sh;
# where it cannot be installed the lane says so and ends well.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."
readonly python=${PYTHON:-python3} folder=integration_tests/tensor
readonly cache=${ACCELERATE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/accelerate-cpp}/torch
readonly imports='import numpy, torch.distributed.tensor.parallel'
text=${1:-$(grep -E '.{40}' accelerate/examples/lm/kjv.txt | shuf -n 1)}
readonly text answers=$folder/data/lane.json

tools/dev bazel build --noshow_progress --ui_event_filters=-info //integration_tests/pipeline:window_times_test
bin=$(readlink bazel-bin)
tools/dev shell env ACCELERATE_PIPELINE_SEEDS=1000 \
  "$bin/integration_tests/pipeline/window_times_test" --gtest_filter='LateRanks.ChangeNoGradient' >/dev/null
echo 'parallel: 1,000 seeds with a late rank: the gradients of each schedule are the same bits'
tools/dev test --test_env=ACCELERATE_ORDERS_OF_RANKS=20 --test_filter='*InEveryOrderOfRanks*' \
  "//$folder:oracle_test" //integration_tests/{pipeline,experts}:oracle_test
echo 'parallel: 20 orders of ranks: trainings with divided layers, stages and experts are the same bits'
tools/dev test --test_env=ACCELERATE_ORACLE_STEPS=all --test_timeout=900 "//$folder:oracle_test" \
  //integration_tests/{pipeline,megatron,experts}:oracle_test
echo 'parallel: all steps: trainings with divided layers, stages and experts are those of one process'

if ! "$cache/bin/python" -c "$imports" 2>/dev/null &&
  ! { "$python" -m venv --clear "$cache" && "$cache/bin/pip" install --quiet torch numpy &&
    "$cache/bin/python" -c "$imports"; } >/dev/null 2>&1; then
  echo 'parallel: nothing was compared: PyTorch cannot be installed here'
  exit 0
fi

# oracle_test takes every file of the folder.
trap 'rm -f "$answers"' EXIT
python3 - "$text" >"$answers" <<'PYTHON'
import json, sys
print(json.dumps({"formula": {"text": [sys.argv[1]], "matrix_scale": 0.06, "bias_scale": 0.02, "norm_scale": 0.15,
                              "rows": 8, "steps": 10}}))
PYTHON
if "$cache/bin/pip" install --quiet --no-deps megatron-core==0.16.1 >/dev/null 2>&1; then
  "$cache/bin/python" -W ignore accelerate/megatron/record_orders.py 2>/dev/null
else
  echo 'parallel: orders of samples were not compared: Megatron-Core cannot be installed here'
fi
echo "parallel: the text is \"$text\""
"$cache/bin/python" "$folder/torch_answers.py" "$answers" 2>/dev/null
tools/dev test "//$folder:oracle_test" "//$folder:real_processes_test" "//$folder:traffic_test"

tools/dev bazel build --noshow_progress --ui_event_filters=-info "//$folder:folded_test" \
  //integration_tests/pipeline:folded_test //integration_tests/step:step_benchmark \
  //accelerate/parallel/tensor:tensor_handler_benchmark
bin=$(readlink bazel-bin)
for test in HoldsTheStatesOfItsLayoutToTheByte HoldsTheSameWithSequenceShardsAndParallelLoss; do
  start=$(date +%s%N)
  tools/dev shell "$bin/$folder/folded_test" --gtest_filter="*.$test" >/dev/null
  awk -v test="$test" -v ns=$(($(date +%s%N) - start)) \
    'BEGIN { printf "parallel: Llama 70b, tp 8 x dp_shard 128, %s: %.1f s with the start of the build root (wanted: 5)\n", test, ns / 1e9 }'
done
start=$(date +%s%N)
tools/dev shell "$bin/integration_tests/pipeline/folded_test" >/dev/null
awk -v ns=$(($(date +%s%N) - start)) 'BEGIN {
  printf "parallel: Llama 70b, pp 8 x dp_shard 16 x tp 8: %.1f s with the start of the build root (wanted: 20)\n", ns / 1e9 }'
tools/dev shell "$bin/integration_tests/step/step_benchmark" loop
tools/dev shell "$bin/accelerate/parallel/tensor/tensor_handler_benchmark" --benchmark_enable_random_interleaving
echo 'parallel: all well'

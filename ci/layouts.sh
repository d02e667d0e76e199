#!/usr/bin/env bash
#
# ci/layouts.sh [COUNT [FIRST]]: many ways to divide a training among ranks, and checkpoints of all of them.
#
# COUNT random layouts (200) of 8 and 16 ranks, from the seed FIRST (20) on, train three steps as one process does, and
# twice with the same bits; the tests of every run take the seeds 0 to 19. So do all products of axes with two ranks
# beside each technique, of which every run takes those of two axes. Then each of 38 layouts of a model with
# experts, and each of 25 of one without, loads the checkpoints of each, to the bit. A failure has the variables that
# repeat one layout alone. At last the lane compares the layouts of a model of 70 billion parameters on 128 devices, and
# executes a step of the whole model in each of the first three, which have the order of the plan.
#
# On two cores it takes less than ten minutes once everything is built: a layout takes a second, and a pair the eighth
# part of one.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."
readonly count=${1:-200} first=${2:-20}
# The test takes other words than numbers for its usual number.
if [[ ! $count =~ ^[1-9][0-9]*$ || ! $first =~ ^[0-9]+$ ]]; then
  echo "layouts: COUNT=$count FIRST=$first: expected numbers, as in ci/layouts.sh 200 20" >&2
  exit 2
fi
tools/dev test --test_timeout=7200 --test_env=ACCELERATE_RANDOM_LAYOUTS="$count" \
  --test_env=ACCELERATE_FIRST_LAYOUT="$first" --test_env=ACCELERATE_LAYOUT_PAIRS=all \
  --test_env=ACCELERATE_LAYOUT_PRODUCTS=all //integration_tests/composition:random_layouts_test \
  //integration_tests/composition:products_test //integration_tests/composition:checkpoint_pairs_test
echo "layouts: $count random layouts from the seed $first on train as one process, as do all products of axes, and all pairs load checkpoints"

tools/dev bazel build --noshow_progress --ui_event_filters=-info //launch:accelerate
start=$(date +%s%N)
tools/dev shell bazel-bin/launch/accelerate plan llama-70b --on 16x8:h100
awk -v ns=$(($(date +%s%N) - start)) \
  'BEGIN { printf "layouts: the plan took %.1f s with the start of the build root (wanted: 60)\n", ns / 1e9 }'
tools/dev test --test_timeout=3600 --test_env=ACCELERATE_PLANNED_MODEL=llama-70b \
  --test_env=ACCELERATE_PLANNED_CLUSTER=16x8:h100 --test_filter='LayoutPlan.HasTheOrderOfTheExecutedSteps' \
  //integration_tests/composition:plan_test
echo 'layouts: the first three layouts of the plan, executed, have its order'
echo 'layouts: all well'

#!/usr/bin/env bash
#
# ci/sim_sweep.sh [BAZEL TEST ARGUMENTS]: the topology tests, on all shapes and with 50 seeds each.
#
# The shapes are kAllTopologies of simulator/testing/topology_suite.h; every other test run takes
# kShortTopologies. Run n adds n - 1 to the seed of each cluster, and a failed cluster's message has
# the command that repeats it. Later arguments win: --runs_per_test=500 sweeps further, and
# --test_env=ACCELERATE_TEST_TOPOLOGIES="4x8 2x3:h100" takes other shapes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mkdir -p .ci/out
readonly profile=.ci/out/sim_sweep.gz
rm -f "$profile"
status=0
tools/dev test --build_tests_only --test_tag_filters=sim_sweep --runs_per_test=50 \
  --test_env=ACCELERATE_TEST_TOPOLOGIES=all --test_timeout=3600 --profile="$PWD/$profile" "$@" || status=$?
# Where the time went, and whether one run of each test is within the budget, if that has an entry.
tools/dev shell ci/time_report.py "$profile" ci/budget.json || status=1
exit "$status"

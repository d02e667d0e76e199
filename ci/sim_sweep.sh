#!/usr/bin/env bash
#
# ci/sim_sweep.sh [BAZEL TEST ARGUMENTS]: the tests tagged sim_sweep, each with 50 seeds.
#
# Run n of a test has TEST_RANDOM_SEED=n, which Cluster::from_test_env takes as its seed, so a
# failing run's number is the seed that repeats it. --runs_per_test=500 sweeps further.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec tools/dev test --build_tests_only --test_tag_filters=sim_sweep --runs_per_test=50 "$@"

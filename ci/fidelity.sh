#!/usr/bin/env bash
#
# ci/fidelity.sh [ROWS.csv]: how far simulated steps are from measured ones.
#
# ROWS.csv has a row per run that somebody measured: the program, the cluster, the time of a step and the memory
# (ci/fidelity.py tells its format). Rows of real clusters are kept outside of the repository; ci/fidelity_rows.csv has some
# of our own. Their programs are built; others are looked for in PATH. The last line is
#
#   N rows: time mean A %, worst B %; memory mean C %, worst D %; constant model E %
set -euo pipefail
rows=$(realpath "${1:-"$(dirname "${BASH_SOURCE[0]}")/fidelity_rows.csv"}")
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."
tools/dev bazel build //launch:accelerate //accelerate/examples/lm //integration_tests/gpu:loop_on_device
tools/dev shell env PATH="$PWD/bazel-bin/accelerate/examples/lm:$PWD/bazel-bin/integration_tests/gpu:$PATH" python3 ci/fidelity.py bazel-bin/launch/accelerate "$rows"

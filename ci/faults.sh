#!/usr/bin/env bash
#
# ci/faults.sh [SITES [RUNS]]: ranks that die at SITES (1,000) random places of backward passes, RUNS (200) failing runs
# that are repeated from their logs, and dumps that PyTorch's own analyser reads.
#
# Ranks train with replicas, shards and ZeRO when one of them dies; each run ends with the death named, without a
# memory error by AddressSanitizer. A repeated run is the same to the bit. The dumps of 20 jobs in which one rank goes
# wrong are read by torch.distributed.flight_recorder, which names the rank that we name; where the newest PyTorch of
# the Python registry cannot be installed, that part says so and ends well.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."
readonly sites=${1:-1000} runs=${2:-200} python=${PYTHON:-python3}
readonly cache=${ACCELERATE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/accelerate-cpp}/torch
readonly imports='import torch.distributed.flight_recorder.fr_trace'

ACCELERATE_PACKAGES="tools/packages.txt tools/sanitizer_packages.txt" \
  tools/dev test --config=asan --test_timeout=7200 --test_env=ACCELERATE_CRASH_SITES="$sites" \
  //integration_tests/faults:crash_sites_test
echo "faults: $sites deaths in backward passes were named"
tools/dev test --test_timeout=3600 --test_env=ACCELERATE_REPLAYED_RUNS="$runs" //simulator/cluster:replay_test
echo "faults: $runs failing runs were repeated to the bit"

if ! "$cache/bin/python" -c "$imports" 2>/dev/null &&
  ! { "$python" -m venv --clear "$cache" && "$cache/bin/pip" install --quiet torch numpy &&
    "$cache/bin/python" -c "$imports"; } >/dev/null 2>&1; then
  echo 'faults: no dump was compared: PyTorch cannot be installed here'
  exit 0
fi
mkdir -p .ci/out
out=$(mktemp -d "$PWD/.ci/out/faults-XXXXXX")
trap 'rm -rf "$out"' EXIT
tools/dev bazel build --noshow_progress --ui_event_filters=-info //integration_tests/faults:planted_dumps_test
tools/dev shell env ACCELERATE_PLANTED_DUMPS="$out" bazel-bin/integration_tests/faults/planted_dumps_test >/dev/null
"$cache/bin/python" integration_tests/faults/culprits.py "$out"
echo 'faults: all well'

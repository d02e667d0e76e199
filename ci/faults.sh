#!/usr/bin/env bash
#
# ci/faults.sh [sites|replays|saves|fr_trace [COUNT]]: deaths in backward passes, repeated failures, disks that fail, and
# PyTorch's analyser.
#
# One part, or all of them; each ends with a line of its own.
#   sites     ranks that train with replicas, shards and ZeRO die at COUNT (1,000) random places of backward passes; each
#             run ends with the death named, without a memory error by AddressSanitizer
#   replays   COUNT (200) failing runs are repeated from their logs, to the bit
#   saves     every file operation of jobs that save and resume fails in every way, of which a usual run draws some; the
#             next run finds the last complete checkpoint, and goes on to the bit
#   fr_trace  the dumps of 20 jobs in which one rank goes wrong are read by torch.distributed.flight_recorder, which names
#             the rank that we name. PyTorch is the newest of the Python registry, in the virtual environment of
#             ci/torch.sh; where it cannot be installed, the line says so and the part ends well
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."
readonly part=${1:-} count=${2:-}

sites() {
  local deaths=${count:-1000}
  ACCELERATE_PACKAGES="tools/packages.txt tools/sanitizer_packages.txt" \
    tools/dev test --config=asan --test_timeout=7200 --test_env=ACCELERATE_CRASH_SITES="$deaths" \
    //integration_tests/faults:crash_sites_test
  echo "faults: $deaths deaths in backward passes were named"
}

replays() {
  local runs=${count:-200}
  tools/dev test --test_timeout=3600 --test_env=ACCELERATE_REPLAYED_RUNS="$runs" //simulator/cluster:replay_test
  echo "faults: $runs failing runs were repeated to the bit"
}

saves() {
  tools/dev test --test_timeout=3600 --test_env=ACCELERATE_CRASH_SWEEP=all //integration_tests/checkpoint:crash_sweep_test
  echo 'faults: no failing file operation cost a checkpoint'
}

fr_trace() {
  local python=${PYTHON:-python3} imports='import torch.distributed.flight_recorder.fr_trace'
  local cache=${ACCELERATE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/accelerate-cpp}/torch
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
  tools/dev shell env ACCELERATE_PLANTED_DUMPS="$out/jobs" bazel-bin/integration_tests/faults/planted_dumps_test \
    >"$out/printed" 2>&1 || { cat "$out/printed"; return 1; }
  "$cache/bin/python" integration_tests/faults/culprits.py "$out/jobs"
}

case $part in
  '')
    sites
    replays
    saves
    fr_trace
    ;;
  sites | replays | saves | fr_trace) "$part" ;;
  *)
    echo 'usage: ci/faults.sh [sites|replays|saves|fr_trace [COUNT]]' >&2
    exit 2
    ;;
esac
echo 'faults: all well'

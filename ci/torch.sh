#!/usr/bin/env bash
#
# ci/torch.sh [STEPS]: our shards beside PyTorch's own FSDP 2.
#
# Two Gloo processes train the example's language model (GPT's and Llama's blocks, AdamW and SGD) from
# the same weights on the same text, once with this library and once with the newest PyTorch from the
# Python registry. Each step's loss and norm of the gradients must agree to 1e-5. Where PyTorch cannot be
# installed it says so and ends well.
#
# PYTHON names the Python that gets a virtual environment (python3). It stays in the cache.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."
readonly steps=${1:-10} python=${PYTHON:-python3}
readonly cache=${ACCELERATE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/accelerate-cpp}/torch
readonly text=$PWD/accelerate/examples/lm/kjv.txt

skip() {
  echo "torch: nothing was compared: $*"
  exit 0
}

if ! "$cache/bin/python" -c 'import torch.distributed.fsdp' 2>/dev/null; then
  rm -rf "$cache"
  "$python" -m venv "$cache" 2>/dev/null || skip "$python makes no virtual environment"
  "$cache/bin/pip" install --quiet torch numpy >/dev/null 2>&1 || skip 'PyTorch cannot be installed here'
  "$cache/bin/python" -c 'import torch.distributed.fsdp' || skip 'the PyTorch that was installed does not load'
fi
version=$("$cache/bin/python" -c 'import torch; print(torch.__version__)')

# The Python of accelerate/docs/weights_from_python.md writes the file that //integration_tests/outside reads.
mkdir -p .ci/out
if "$cache/bin/pip" install --quiet torch numpy safetensors >/dev/null 2>&1; then
  python_page=$(mktemp -d "$PWD/.ci/out/page-XXXXXX")
  mkdir -p "$python_page/from_python"
  tools/documents/run_page.py --cut export.py accelerate/docs/weights_from_python.md >"$python_page/export.py"
  printed=$(cd "$python_page" && "$cache/bin/python" export.py)
  [[ $printed == 6.90783* ]] || { echo "torch: export.py printed $printed"; exit 1; }
  cmp "$python_page/from_python/model.safetensors" integration_tests/outside/from_python/model.safetensors ||
    { echo 'torch: export.py writes another file than integration_tests/outside/from_python has'; exit 1; }
  rm -rf "$python_page"
fi

tools/dev bazel build --noshow_progress --ui_event_filters=-info //launch:accelerate \
  //integration_tests/sharding:beside_torch
mkdir -p .ci/out
out=$(mktemp -d "$PWD/.ci/out/torch-XXXXXX")
trap 'rm -rf "$out"' EXIT

status=0
for blocks in gpt llama; do
  for optimizer in adamw sgd; do
    flags=(--data "$text" --weights "$out/weights.safetensors" --blocks "$blocks" --optimizer "$optimizer" --steps "$steps")
    # Every step's line, without the number that the launcher puts before it.
    tools/dev shell bazel-bin/launch/accelerate launch --num_processes 2 \
      bazel-bin/integration_tests/sharding/beside_torch "${flags[@]}" >"$out/printed" 2>&1 ||
      { cat "$out/printed"; status=1; continue; }
    sed -n 's/^\(\[[^]]*\] *\)\?\([0-9]* [0-9.e+-]* [0-9.e+-]*\)$/\2/p' "$out/printed" >"$out/ours"
    "$cache/bin/python" integration_tests/sharding/torch_fsdp.py "${flags[@]}" >"$out/theirs"
    if [[ $(wc -l <"$out/ours") != "$steps" || $(wc -l <"$out/theirs") != "$steps" ]]; then
      echo "torch: $blocks, $optimizer: not $steps steps"
      status=1
      continue
    fi
    # The columns of a line: the step, then loss and norm of ours, then those of theirs.
    join "$out/ours" "$out/theirs" --nocheck-order | awk -v what="$blocks, $optimizer" '
      function difference(a, b) { return (a > b ? a - b : b - a) / (b > 1 ? b : 1) }
      {
        if (difference($2, $4) > loss) loss = difference($2, $4)
        if (difference($3, $5) > norm) norm = difference($3, $5)
      }
      END {
        printf "torch: %s: %d steps, loss %s to %s; largest difference: loss %.1e, norm %.1e\n", what, NR, first, $2, loss, norm
        exit !(loss <= 1e-5 && norm <= 1e-5)
      }
      NR == 1 { first = $2 }' || status=1
  done
done
((status == 0)) || { echo "torch: FSDP of PyTorch $version and ours differ"; exit 1; }
echo "torch: all well beside PyTorch $version"

# For lanes that build on the LibTorch inside of Python's torch: `. ci/pip_torch.sh LANE`; then $NEWEST_TORCH is a virtual
# environment in the cache that has the torch without what its part for CUDA needs, unless it named one before. Where pip
# reaches no registry the lane says so and ends well.
#
# TORCH is what pip installs (torch; torch==2.11.0 is another release). PYTHON names the Python whose pip it is (python3).
# shellcheck shell=bash
readonly lane=$1
readonly python=${PYTHON:-python3}
readonly cache=${ACCELERATE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/accelerate-cpp}/newest_torch

say() { echo "$lane: $*"; }
skip() { say "nothing was built: $*"; exit 0; }

# What pip installs for $TORCH: its version, then on a line the libraries of CUDA's without which its part for CPUs does
# not load, then NCCL's, which has the header.
wanted() {
  "$python" -m pip install --quiet --dry-run --ignore-installed --no-deps --report - "${TORCH:-torch}" 2>/dev/null |
    "$python" -c '
import json, re, sys
metadata = json.load(sys.stdin)["install"][0]["metadata"]
needs = [need.split(";")[0].strip() for need in metadata.get("requires_dist", [])]
print(metadata["version"])
print(*[re.sub(r"\[.*\]", "[cudart,cupti]", need) for need in needs
        if re.match("cuda-toolkit|nvidia-cuda-(runtime|cupti)", need)])
print(*[need for need in needs if need.startswith("nvidia-nccl")])'
}

# Puts packages into the virtual environment, each once: install [PIP'S FLAGS] PACKAGES.
install() {
  local flags=() package
  while [[ ${1:-} == --* ]]; do flags+=("$1"); shift; done
  for package; do
    [[ ! -e $NEWEST_TORCH/installed-$package ]] || continue
    say "installing $package"
    "$NEWEST_TORCH/bin/pip" install --quiet "${flags[@]}" "$package" >"$cache/pip.log" 2>&1 ||
      skip "$package cannot be installed; see $cache/pip.log"
    touch "$NEWEST_TORCH/installed-$package"
  done
}

if [[ -z ${NEWEST_TORCH:-} ]]; then
  "$python" -m pip --version >/dev/null 2>&1 || skip "$python has no pip"
  answer=$(wanted) || skip 'pip finds no torch'
  mapfile -t lines <<<"$answer"
  NEWEST_TORCH=$cache/${lines[0]}
  if [[ ! -x $NEWEST_TORCH/bin/pip ]]; then
    rm -rf "$cache"  # also other releases
    mkdir -p "$cache"
    "$python" -m venv "$NEWEST_TORCH" >/dev/null || skip "$python makes no virtual environment"
  fi
  # Without the two gigabytes that Python and the part for CUDA need.
  install --no-deps "torch==${lines[0]}"
  # shellcheck disable=SC2086 # several packages
  install --only-binary=:all: ${lines[1]:-}
  # shellcheck disable=SC2086
  [[ -z ${CUDA:-} ]] || install --no-deps ${lines[2]:-}
fi

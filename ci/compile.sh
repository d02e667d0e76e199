#!/usr/bin/env bash
#
# ci/compile.sh [BUILD_DIR]: packages of compiled regions beside the same training without them.
#
# A program records its regions in the build root, Python with the torch of the build root's LibTorch compiles them on
# the host, and the program trains with the packages: three models, 20 steps, weights that change in place and come from
# load_state. Every loss and parameter must be within 1e-5 of the training without packages; 24 equal blocks share one
# package, which takes a part of the time that the same model takes as one region: the lane prints both. Then calls
# differ from what a package was made of, and packages are tampered with: each must be left alone with one line. At last
# it prints rows for the table of accelerate/docs/compile.md: what packages bring on this CPU, and what is predicted of
# simulated devices.
#
# With a BUILD_DIR of ci/newest_torch.sh, below the checkout, the programs and the release are those that it has built;
# they lack the language model, so nothing is predicted.
#
# Where pip cannot install that torch, or there is no C++ compiler beside it, a line says so and the lane ends well.
# PYTHON names the Python that gets a virtual environment (python3). It stays in the cache. CXX is the compiler (g++).
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."
readonly python=${PYTHON:-python3}
readonly cache=${ACCELERATE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/accelerate-cpp}/compile

say() { echo "compile: $*"; }
skip() { say "nothing was compiled: $*"; exit 0; }

# TorchInductor looks for the same.
command -v "${CXX:-g++}" >/dev/null || skip "there is no ${CXX:-g++} on this machine, which packages need"
"$python" -m venv --help >/dev/null 2>&1 || skip "$python makes no virtual environment"
if [[ -n ${1:-} ]]; then
  readonly accelerate=$1/bin/accelerate program=$1/tests/compile_packages
else
  tools/dev bazel build --noshow_progress --ui_event_filters=-info //launch:accelerate \
    //integration_tests/compile:packages //accelerate/examples/lm
  readonly accelerate=bazel-bin/launch/accelerate program=bazel-bin/integration_tests/compile/packages
fi
release=$(tools/dev shell "$program" --version)
readonly venv=$cache/$release
if ! "$venv/bin/python" -c 'import torch._inductor' 2>/dev/null; then
  rm -rf "$cache"
  mkdir -p "$cache"
  "$python" -m venv "$venv" >/dev/null 2>&1 || skip "$python makes no virtual environment"
  say "installing torch $release"
  # The part for CPUs is a tenth as large; not every network has its index.
  "$venv/bin/pip" install --quiet numpy setuptools >"$cache/pip.log" 2>&1 || skip 'pip installs nothing here'
  "$venv/bin/pip" install --quiet --index-url https://download.pytorch.org/whl/cpu "torch==$release" >"$cache/pip.log" 2>&1 ||
    "$venv/bin/pip" install --quiet "torch==$release" >"$cache/pip.log" 2>&1 ||
    skip "torch $release, the programs' LibTorch, cannot be installed for $("$python" --version)"
  "$venv/bin/python" -c 'import torch._inductor' || skip "the torch $release that was installed does not load"
fi

mkdir -p .ci/out
out=$(mktemp -d "$PWD/.ci/out/compile-XXXXXX")
trap 'rm -rf "$out"' EXIT
inside() { tools/dev shell env "ACCELERATE_COMPILE_CACHE=$1" "${@:2}"; }

# make CACHE [PROGRAM'S FLAGS]: records in the build root, which has no torch, and compiles on the host.
make() {
  inside "$1" "$accelerate" compile --python /no/torch --num_processes 1 "$program" "${@:2}" \
    >"$out/recorded" 2>&1 && { say 'recording needed no Python'; cat "$out/recorded"; exit 1; }
  grep -q 'without a package: /no/torch cannot be started' "$out/recorded" || { cat "$out/recorded"; exit 1; }
  "$venv/bin/python" tools/compile_regions.py "$1" --libtorch "$release"
}

# trains CACHE [FLAGS]
trains() {
  inside "$1" "$program" "${@:2}" | sed 's/^/compile: /'
}

make "$out/regions"
# A convolution, the 24 equal blocks, and the words, trained and evaluated.
regions=$(find "$out/regions" -name region | wc -l)
((regions == 4)) || { say "$regions regions instead of 4: equal blocks do not share one"; exit 1; }
inside "$out/regions" "$accelerate" compile --list
trains "$out/regions"
make "$out/less" --memory_budget 0.3
trains "$out/less" --memory_budget 0.3

# compiling WAY: the seconds of what the transformer's regions take to compile, without what TorchInductor still has.
compiling() {
  export TORCHINDUCTOR_CACHE_DIR=$out/inductor-$1
  make "$out/$1" --transformer "$1" >"$out/compiled"
  inside "$out/$1" "$program" --transformer "$1" >"$out/printed" || { cat "$out/printed" >&2; return 1; }
  sed "s/^/compile: transformer, $1: /" "$out/printed" >&2
  sed -n 's/.*compiled in \([0-9]*\) s.*/\1/p' "$out/compiled" | awk '{ all += $1 } END { print all }'
}
blocks=$(compiling blocks)
whole=$(compiling whole)
awk -v blocks="$blocks" -v whole="$whole" 'BEGIN {
  if (blocks <= 0 || whole <= 0) { print "compile: the transformer was not compiled"; exit 1 }
  printf "compile: 24 blocks with one package: %d s of compiling; the model as one region: %d s (%.2f of it)\n", blocks, whole, blocks / whole
}'

# tampered LINE COMMAND...: the package of the embedding after a change, which the command makes in the folder that it gets
# last, is left alone with that line.
once=$(grep -l '"aten::embedding_dense_backward"' "$out"/regions/*/*/region | head -n 1) || true
[[ -n $once ]] || { say 'no region has an embedding'; exit 1; }
readonly once=${once%/region}
status=0
tampered() {
  local says=$1 folder
  rm -rf "$out/tampered"
  mkdir -p "$out/tampered/$release"
  cp -a "$once" "$out/tampered/$release/"
  folder=$out/tampered/$release/${once##*/}
  "${@:2}" "$folder"
  inside "$out/tampered" "$program" --once >"$out/printed" 2>&1 || status=1
  if [[ $(grep -c "not loaded: .*$says" "$out/printed") != 1 ]] || ! grep -q '^0 calls of a package$' "$out/printed"; then
    say "not refused: $says"
    cat "$out/printed"
    status=1
  fi
}
edit() { sed -i "$1" "$2/package.json"; }
truncate_code() { truncate -s -100 "$1/forward.so"; }
change_code() { printf 'x' | dd of="$1/forward.so" bs=1 seek=5000 conv=notrunc status=none; }
link_out() { mv "$1/forward.so" "$out/elsewhere.so" && ln -s "$out/elsewhere.so" "$1/forward.so"; }
open_up() { chmod o+w "$1/forward.so"; }

inside "${once%/*/*}" "$program" --once >"$out/printed"
grep -q '^1 calls of a package$' "$out/printed" || { say 'a package as it was made is not loaded'; status=1; }
# missed WHAT SAYS: a call with another size, stride, ... leaves the package alone with that line, too.
missed() {
  inside "${once%/*/*}" "$program" --once "$1" >"$out/printed" 2>&1 || status=1
  if [[ $(grep -c "runs as it is: .*$2" "$out/printed") != 1 ]] || ! grep -q '^0 calls of a package$' "$out/printed"; then
    say "not left alone: another $1"
    cat "$out/printed"
    status=1
  fi
}
for change in size stride dtype count; do missed "$change" 'there is no package for it in'; done
missed device 'packages are for CPUs, and it is on meta'
tampered 'for LibTorch 1.0.0' edit 's/"libtorch": "[^"]*"/"libtorch": "1.0.0"/'
tampered 'for the C++11 ABI 0' edit 's/"cxx11_abi": 1/"cxx11_abi": 0/'
tampered 'instructions of avx9999' edit 's/"features": \[/"features": ["avx9999",/'
tampered 'names the file' edit 's/"forward.so": {/"..\/forward.so": {"bytes": 1, "sha256": ""}, "forward.so": {/'
tampered 'bytes instead of' truncate_code
tampered 'is not what was written' change_code
tampered 'is not a file of the cache' link_out
tampered 'can be written by other users' open_up
((status == 0)) || exit 1

# predicted NAME CLUSTER LAUNCH_FLAGS MODEL_FLAGS: a row of the time of simulated steps, without those that are recorded.
predicted() {
  local name=$1 cluster=$2 dynamo steps launch model
  read -ra model <<<"$4"
  for dynamo in '' '--dynamo_backend inductor --dynamo_use_regional_compilation'; do
    read -ra launch <<<"$3 $dynamo"
    for steps in 2 12; do
      tools/dev shell "$accelerate" launch --simulate "$cluster" --simulate_numerics shapes --mixed_precision bf16 \
        "${launch[@]}" bazel-bin/accelerate/examples/lm/lm "${model[@]}" --max_steps "$steps" --log_every 0 --evaluation_sequences 0 \
        >"$out/printed" 2>&1 || { cat "$out/printed" >&2; return 1; }
      sed -n 's/.*lm: .* step time \([0-9.]*\) ms.*/\1/p' "$out/printed"
    done
  done | awk -v name="$name" '
    { mean[NR] = $1 }
    END {
      if (NR != 4) { print "compile: " NR " of 4 runs printed the time of a step" >"/dev/stderr"; exit 1 }
      less = 100 * (1 - (12 * mean[4] - 2 * mean[3]) / (12 * mean[2] - 2 * mean[1]))
      printf "| %s | simulated | %.0f %% %s time |\n", name, less < 0 ? -less : less, less < 0 ? "more" : "less"
    }'
}

say 'the table of accelerate/docs/compile.md:'
make "$out/times" --times 0
{
  if [[ -z ${1:-} ]]; then
    predicted 'gpt 125m on an h100, bf16, 4 sequences' 1x1:h100 '' '--model 125m --batch_size 4'
    predicted 'llama 125m on an h100, bf16, 4 sequences' 1x1:h100 '' '--blocks llama --model 125m --batch_size 4'
    predicted 'gpt 7b on 8 h100, FSDP' 1x8:h100 --use_fsdp '--model 7b --batch_size 1'
  fi
  inside "$out/times" "$program" --times 15
} >"$out/rows"
echo '| training | predicted or measured | with packages |'
echo '| --- | --- | --- |'
cat "$out/rows"
say "all well with torch $release"

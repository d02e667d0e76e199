#!/usr/bin/env bash
#
# ci/vendors.sh [--record | VENDOR...]: what the library writes, read by those who own the formats.
#
# A program logs values of every kind with every tracker; then the vendors' own packages, from the
# Python registry, read them back and compare each name, step and value: TensorBoard, MLflow (a real
# server), W&B, Trackio, DVCLive, Aim, ClearML, Comet, SwanLab. The last four write through the
# Python bridge into the real packages. `trace` is the profiler's, in TensorBoard's plug-in of
# PyTorch. `accelerate` exchanges weights with HF Accelerate in both directions.
#
# A package that cannot be installed for this Python is left out with one line. Without Python or a
# network nothing is checked, and the lane ends well. --record writes the table into
# trackers/README.md. PYTHON names the Python that gets the virtual environments (python3); they stay
# in the cache, one for each vendor, since the packages contradict each other.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."
readonly python=${PYTHON:-python3}
readonly cache=${ACCELERATE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/accelerate-cpp}/vendors
readonly half=$PWD/integration_tests/vendors/read_back.py

# What is installed for each. Pillow reads pictures back; W&B has no reader in Python from 0.27 on.
declare -A packages=(
  [tensorboard]='tensorboard pillow' [trace]='torch-tb-profiler pandas' [mlflow]='mlflow pillow'
  [wandb]='wandb<0.27 pillow' [trackio]='trackio pillow' [dvclive]='dvclive pillow' [aim]='aim pandas pillow'
  [clearml]='clearml pillow' [comet_ml]='comet_ml numpy pillow' [swanlab]='swanlab[media] pyyaml'
  [accelerate]='torch numpy accelerate safetensors'
)
vendors=(tensorboard trace mlflow wandb trackio dvclive aim clearml comet_ml swanlab accelerate)
record=
[[ ${1:-} != --record ]] || { record=1; shift; }
if (($#)); then
  [[ -z $record ]] || { echo 'vendors: --record is for the table of all vendors'; exit 2; }
  vendors=("$@")
fi

say() { echo "vendors: $*"; }

for vendor in "${vendors[@]}"; do
  [[ -n ${packages[$vendor]:-} ]] || { say "unknown: $vendor; known: ${!packages[*]}"; exit 2; }
done
"$python" -m venv --help >/dev/null 2>&1 || { say "nothing was checked: $python makes no virtual environment"; exit 0; }

# The environment of a vendor; HF Accelerate is added to that of ci/torch.sh.
place_of() {
  if [[ $1 == accelerate ]]; then echo "${cache%/*}/torch"; else echo "$cache/$1"; fi
}

# Makes a vendor's environment unless it has these packages.
install() {
  local place wanted=${packages[$1]}
  place=$(place_of "$1")
  [[ $(cat "$place/installed" 2>/dev/null) != "$wanted" ]] || return 0
  mkdir -p "$cache"
  [[ -x $place/bin/pip ]] || "$python" -m venv "$place" >"$cache/$1.log" 2>&1 || return 1
  # shellcheck disable=SC2086 # several packages
  "$place/bin/pip" install --quiet $wanted >"$cache/$1.log" 2>&1 && echo "$wanted" >"$place/installed"
}

ready=()
for vendor in "${vendors[@]}"; do
  if install "$vendor"; then
    ready+=("$vendor")
  else
    say "$vendor: cannot be installed for $("$python" --version 2>&1): $(tail -n 1 "$cache/$vendor.log" 2>/dev/null)"
  fi
done
((${#ready[@]})) || { say 'nothing was checked: no package can be installed here'; exit 0; }

tools/dev bazel build --noshow_progress --ui_event_filters=-info //integration_tests/vendors
mkdir -p .ci/out
out=$(mktemp -d "$PWD/.ci/out/vendors-XXXXXX")
server=
# shellcheck disable=SC2317 # called by the trap
clean() {
  [[ -z $server ]] || { kill -- "-$server" && wait "$server"; } 2>/dev/null || true
  rm -rf "$out"
}
trap clean EXIT

# The program was linked in the build root, and the packages are of the host's Python, which the
# bridge starts. So the program comes with its libraries and their loader, and runs on the host.
mkdir "$out/bin"
tools/dev shell bash -c '
  set -euo pipefail
  ldd "$1" | sed -En "s/.* => (.*) \(.*/\1/p; s/^\s*(\/.*) \(.*/\1/p" | xargs cp -L -t "$2"
  cp -L "$1" "$2/vendors"' - bazel-bin/integration_tests/vendors/vendors "$out/bin"
loader=$(echo "$out"/bin/ld-linux*)
ours() { "$loader" --library-path "$out/bin" "$out/bin/vendors" "$@"; }

# Logs into the folder of the vendor with its own settings.
log_with() {
  local vendor=$1 folder=$out/$1
  # A vendor that looks for its settings or keys at home finds none there.
  local -x HOME=$folder/home ACCELERATE_PYTHON=$cache/$vendor/bin/python
  mkdir -p "$HOME"
  cd "$folder"
  case $vendor in
    wandb) local -x WANDB_DIR=$folder ;;
    trackio) local -x TRACKIO_DIR=$folder ;;
    clearml) local -x CLEARML_OFFLINE_MODE=1 CLEARML_CACHE_DIR=$folder ;;
    comet_ml) local -x COMET_OFFLINE_DIRECTORY=$folder ;;
    swanlab) local -x SWANLAB_MODE=offline SWANLAB_LOG_DIR=$folder ;;
    mlflow)
      # On its server, and without one in the folder.
      MLFLOW_TRACKING_URI=$address ours log mlflow "$folder/server"
      local -x MLFLOW_TRACKING_URI=
      ;;
  esac
  if [[ $vendor == trace ]]; then ours train "$folder"; else ours log "$vendor" "$folder"; fi
}

# A server with a database, when it answers; sets address and server.
start_mlflow() {
  local port
  port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
  address=http://127.0.0.1:$port
  mkdir -p "$out/mlflow"
  set -m
  "$cache/mlflow/bin/mlflow" server --host 127.0.0.1 --port "$port" --workers 1 \
    --backend-store-uri "sqlite:///$out/mlflow/server.db" --artifacts-destination "$out/mlflow/artifacts" \
    >"$out/mlflow/server.log" 2>&1 &
  server=$!
  set +m
  for _ in {1..120}; do
    ! "$python" -c "import urllib.request as r; r.urlopen('$address/api/2.0/mlflow/experiments/get?experiment_id=0', timeout=20)" 2>/dev/null || return 0
    kill -0 "$server" 2>/dev/null || break
    sleep 0.5
  done
  cat "$out/mlflow/server.log"
  return 1
}

exchange_weights() {
  local folder=$out/accelerate with number=0 weights
  with=$(place_of accelerate)/bin/python
  local script=$PWD/integration_tests/vendors/exchange_weights.py
  mkdir -p "$folder/ours"
  ours train "$folder/ours" >"$folder/log" 2>&1 && "$with" "$script" write "$folder" >"$folder/written" 2>>"$folder/log" ||
    { cat "$folder/log"; return 1; }
  while read -r weights; do
    mkdir -p "$folder/answers/$((++number))-${weights##*/}"
    ours load "$folder/answers/$number-${weights##*/}" "$weights" >>"$folder/log" 2>&1 || { cat "$folder/log"; return 1; }
  done <"$folder/written"
  "$with" "$script" read "$folder/ours" "$folder" >>"$out/rows" 2>>"$folder/log" || { cat "$folder/log"; return 1; }
}

check() {
  local vendor=$1
  address=
  mkdir -p "$out/$vendor"
  case $vendor in
    accelerate)
      exchange_weights
      return
      ;;
    mlflow) start_mlflow || return 1 ;;
  esac
  (log_with "$vendor") >"$out/$vendor.log" 2>&1 &&
    (HOME=$out/$vendor/home TRACKIO_DIR=$out/$vendor "$cache/$vendor/bin/python" "$half" "$vendor" "$out/$vendor" "$address") \
      2>"$out/$vendor.errors" >>"$out/rows"
}

: >"$out/rows"
failed=()
for vendor in "${ready[@]}"; do
  if check "$vendor"; then
    tail -n 1 "$out/rows" | sed 's/^| \(.*\) |$/vendors: \1 equal values/; s/ | / /; s/ | /: /g'
  else
    failed+=("$vendor")
    say "$vendor: failed"
    cat "$out/$vendor.log" "$out/$vendor.errors" 2>/dev/null || true
  fi
done
((${#failed[@]} == 0)) || { say "not read back: ${failed[*]}"; exit 1; }

# The table's place is between its two lines, which stay.
if [[ -n $record ]]; then
  {
    sed '/^<!-- ci\/vendors.sh/q' trackers/README.md
    printf '\n| package | version | read by | what | equal values |\n| --- | --- | --- | --- | --- |\n'
    grep '^| ' "$out/rows"
    printf '\nOn %s, Python %s.\n\n' "$(date -u +%F)" "$("$python" -c 'import platform; print(platform.python_version())')"
    sed -n '/^<!-- end/,$p' trackers/README.md
  } >"$out/README.md"
  cp "$out/README.md" trackers/README.md
fi
say "all well: ${#ready[@]} of ${#vendors[@]} vendors, $("$python" --version)"

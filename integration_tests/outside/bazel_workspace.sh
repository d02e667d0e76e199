#!/usr/bin/env bash
#
# bazel_workspace.sh REPO analyse|build: a Bazel workspace of somebody else's, which has the project as
# an external repository, builds the program of README.md with Bazel's own defaults and runs it on one
# rank, on two processes and on a simulated cluster. With `analyse`, Bazel only loads and analyses the
# targets: labels, visibility and repositories are right then, and it takes seconds.
#
# What accelerate/docs/bazel.md tells its reader to write is written here.
set -euo pipefail
repo=$(dirname "$(realpath "$1/CMakeLists.txt")")
readonly repo mode=$2
work=$(mktemp -d)
readonly work
bazel=(bazel "--output_base=$work/output" --max_idle_secs=10)
trap '"${bazel[@]}" shutdown >/dev/null 2>&1; chmod -R u+w "$work" && rm -rf "$work"' EXIT

# has_ranks N COMMAND...: the command ends well, and its program had N ranks.
has_ranks() {
  local ranks=$1 said
  shift
  said=$("$@" 2>&1) || { echo "FAILED: $* said: $said" >&2; return 1; }
  [[ $said == *"$ranks ranks, loss "* ]] || { echo "FAILED: $* has not $ranks ranks: $said" >&2; return 1; }
  echo "$ranks ranks: ${*##*/}"
}

mkdir "$work/consumer"
cd "$work/consumer"
cat >WORKSPACE <<END
workspace(name = "consumer")

local_repository(
    name = "accelerate_cpp",
    path = "$repo",
)

load("@accelerate_cpp//tools/third_party:repositories.bzl", "accelerate_repositories")

accelerate_repositories()
END
cat >BUILD <<'END'
cc_binary(
    name = "train",
    srcs = ["train.cc"],
    copts = ["-std=c++20", "-isystem/usr/include/torch/csrc/api/include"],
    deps = [
        "@accelerate_cpp//accelerate",
        "@accelerate_cpp//simulator/run",
    ],
)
END
echo 'build -c opt' >.bazelrc
python3 "$repo/tools/documents/run_page.py" --cut train.cc "$repo/README.md" >train.cc

targets=(//:train @accelerate_cpp//launch:accelerate)
options=(--noshow_progress --ui_event_filters=-info)
[[ $mode != analyse ]] || options+=(--nobuild)
"${bazel[@]}" build "${options[@]}" "${targets[@]}"
if [[ $mode == build ]]; then
  train=$work/consumer/bazel-bin/train launcher=$work/consumer/bazel-bin/external/accelerate_cpp/launch/accelerate
  has_ranks 1 "$train"
  has_ranks 2 "$launcher" launch --num_processes 2 "$train"
  has_ranks 8 "$launcher" launch --simulate 2x4:h100 "$train"
fi
echo 'a Bazel workspace outside: all well'

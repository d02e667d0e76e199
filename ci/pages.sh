#!/usr/bin/env bash
#
# ci/pages.sh: the commands of the documents that start from a checkout, or need an example program, and the examples.
#
# The pages that a reader follows with an installed library are those of //integration_tests/outside:install_test.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."

tools/dev demo
tools/dev demo --simulate 2x4:h100 --report .ci/out/report_out
tools/dev bazel build //launch:accelerate //accelerate/examples/...
tools/dev test --test_env=ACCELERATE_EXAMPLE_MODES=all //integration_tests/examples:examples_test
follow='
  set -euo pipefail
  export PATH=$PATH:$PWD/bazel-bin/launch:$PWD/bazel-bin/accelerate/examples/digits:$PWD/bazel-bin/accelerate/examples/lm
  rm -rf .ci/out/pages && mkdir -p .ci/out/pages && cd .ci/out/pages
  ln -s ../../../bazel-bin ../../../accelerate .
  for page in "$@"; do
    python3 ../../../tools/documents/run_page.py --by ci/pages.sh "../../../$page" .
  done'
tools/dev shell bash -c "$follow" follow accelerate/docs/examples.md accelerate/docs/example_programs.md \
  accelerate/docs/long_sequences.md accelerate/docs/parallelism.md \
  accelerate/docs/perf_ci.md accelerate/docs/pipelines.md accelerate/docs/plan_a_cluster.md \
  accelerate/docs/tensor_parallelism.md \
  simulator/docs/shapes.md
tools/dev shell bazel-bin/launch/accelerate launch --num_processes 4 bazel-bin/accelerate/examples/minimal/minimal
tools/dev shell bazel-bin/launch/accelerate launch --simulate 2x4 bazel-bin/accelerate/examples/minimal/minimal
echo 'pages: all well'

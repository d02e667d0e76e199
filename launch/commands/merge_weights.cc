// `accelerate merge-weights CHECKPOINT_DIR OUTPUT_PATH`: whole weights of a sharded checkpoint.
//
// See accelerate/files/formats/merge_weights.h.
// Mirrors: accelerate commands/merge.py.
// Differs: safetensors are written regardless of `--unsafe_serialization`.

#include <string>

#include <CLI/CLI.hpp>

#include "absl/status/statusor.h"
#include "accelerate/files/formats/merge_weights.h"
#include "accelerate/platform/host_files.h"
#include "launch/commands/commands.h"

namespace accelerate::launcher::commands {
namespace {

constexpr char kName[] = "merge-weights";

struct Options {
  std::string checkpoint_dir;
  std::string output_path;
  bool unsafe_serialization = false;
  bool remove_checkpoint_dir = false;
};

int run(const Options& options, Invocation& invocation) {
  if (options.checkpoint_dir.empty() || options.output_path.empty()) {
    return refuse(invocation, kName,
                  "two folders are needed: the checkpoint's and the one "
                  "to write to; see accelerate merge-weights --help");
  }
  if (options.unsafe_serialization) {
    invocation.err << "accelerate merge-weights: --unsafe_serialization has no effect: safetensors "
                      "are written, never pickle\n";
  }
  HostFiles files;
  const absl::StatusOr<MergedWeights> merged =
      merge_weights(files, options.checkpoint_dir, options.output_path,
                    {.remove_checkpoint_dir = options.remove_checkpoint_dir});
  if (!merged.ok()) return fail(invocation, kName, merged.status());
  invocation.out << merged->tensors << " tensors, " << merged->bytes
                 << " bytes: " << join_path(options.output_path, merged->files[0]) << "\n";
  return finish(invocation);
}

void declare(CLI::App& app, Options& options) {
  app.footer(
      "Option names may be spelt with _ or -.\n"
      "Exit code: 0; 1 if the weights cannot be merged; 2 for a bad command line.");
  add_value(app, "checkpoint_dir", options.checkpoint_dir, "",
            "folder of a sharded checkpoint: metadata.json, or an index, with its shards");
  add_value(app, "output_path", options.output_path, "",
            "folder for model.safetensors; made if it is not there");
  app.add_flag("--unsafe_serialization", options.unsafe_serialization,
               "has no effect: pickle is never written");
  app.add_flag("--remove_checkpoint_dir", options.remove_checkpoint_dir,
               "remove the files that were merged, and their folder if nothing else is in it");
}

}  // namespace

const Command kMergeWeights = {kName, "Make whole weights of a sharded checkpoint.",
                               with_options<declare, run>};

}  // namespace accelerate::launcher::commands

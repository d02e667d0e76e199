/// The tensors of a model, without the model: names, shapes and dtypes, from what a user names.
///
/// That is, in this order:
///   a safetensors file, an index of several, or a folder with them: only headers are read;
///   a folder of shards that the ranks of a run wrote (`metadata.json`);
///   a description: a JSON file as below;
///   a name as the model hub knows it ("bert-base-cased", "org/model"), when the hub's cache has
///   it.
///
/// A description is a module, and a module is
///     {"parameters": {"weight": [30522, 768], "bias": {"shape": [768], "dtype": "bfloat16"}},
///      "buffers": {"position_ids": {"shape": [1, 512], "dtype": "int64"}},
///      "modules": {"layer": {"repeat": 12, "no_split": true, "modules": {...}}}}
/// with every member optional. A module with "repeat" stands for `layer.0` to `layer.11`, each a
/// module of its own; one with "no_split" is never divided between devices. The outermost may also
/// have "name", "dtype" (the default of parameters; float32), "tied", a list of lists of names of
/// tensors that are one, and "transformer": {"hidden_size", "num_hidden_layers",
/// "num_attention_heads"}, which activations are counted by.
///
/// Errors:  absl::Status: NotFound for what is not there, InvalidArgument for what has no shapes,
///          DataLoss for files that are damaged; one line that names the file.
/// Threads: pure but for reading files.
/// Mirrors: accelerate commands/estimate.py, create_empty_model.
/// Differs: nothing is downloaded or executed; shapes come from files, not from a model's code.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "accelerate/platform/file_system.h"

namespace accelerate::launch::estimate {

struct ArchitectureTensor {
  std::string name;
  /// As safetensors calls it: F32, BF16, I64, ...
  std::string dtype;
  /// A double, so that no sum can overflow; exact up to 2^53.
  double elements = 0;
};

/// What a transformer's activations depend on; 0: not known.
struct TransformerShape {
  int64_t hidden_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
};

struct Architecture {
  /// In order of name; tied ones are there once.
  std::vector<ArchitectureTensor> tensors;
  /// Paths of modules that are never divided: from a description, or the numbered blocks of a
  /// folder whose config.json describes a transformer.
  std::vector<std::string> no_split;
  TransformerShape transformer;
};

/// Where the hub's files are cached: `HF_HUB_CACHE`, `HF_HOME`/hub,
/// `XDG_CACHE_HOME`/huggingface/hub or `HOME`/.cache/huggingface/hub, of which the first that is
/// set and not empty counts. `environment` holds `NAME=value` words.
std::string hub_cache_folder(const std::vector<std::string>& environment);

/// `model` is what the user named.
absl::StatusOr<Architecture> read_architecture(FileSystem& files, const std::string& model,
                                               const std::string& hub_cache);

/// A description's text. Errors do not name the file.
absl::StatusOr<Architecture> parse_architecture(absl::string_view text);

}  // namespace accelerate::launch::estimate

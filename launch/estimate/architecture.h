/// The tensors of a model, without the model: names, shapes and dtypes, from what a user names; and
/// how much memory it takes.
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
/// tensors that are one, "tp_plan", how ranks along tp divide layers (TpPlan), and
/// "transformer": {"hidden_size", "num_hidden_layers", "num_attention_heads",
/// "num_key_value_heads", "intermediate_size"}, which activations are counted by.
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

namespace accelerate::launcher::estimate {

struct ArchitectureTensor {
  std::string name;
  /// As safetensors calls it: F32, BF16, I64, ...
  std::string dtype;
  /// A double, so that no sum can overflow; exact up to 2^53.
  double elements = 0;
  std::vector<int64_t> shape = {};
};

/// The numbers that a transformer's activations depend on; 0: not known.
struct TransformerShape {
  int64_t hidden_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  /// The size inside the perceptron.
  int64_t intermediate_size = 0;
  /// Whether the perceptron has a gate, as in Llama, by the names of its layers.
  bool is_gated = false;
};

/// What a description, and an option of estimate-memory, calls a number of a transformer.
struct ShapeField {
  const char* name;
  int64_t TransformerShape::* field;
};
inline constexpr ShapeField kShapeFields[] = {
    {"hidden_size", &TransformerShape::hidden_size},
    {"num_hidden_layers", &TransformerShape::num_hidden_layers},
    {"num_attention_heads", &TransformerShape::num_attention_heads},
    {"num_key_value_heads", &TransformerShape::num_key_value_heads},
    {"intermediate_size", &TransformerShape::intermediate_size}};

/// How ranks along tp divide tensors (accelerate/base/tp_plan.h).
struct TpRule {
  /// See pattern_matches.
  std::string pattern;
  /// "colwise", "rowwise" and so on.
  std::string word;
};

/// The first rule that names a tensor or its module is the tensor's.
using TpPlan = std::vector<TpRule>;

/// The plan of a text of JSON. Errors: InvalidArgument with the place of a word that is none of a
/// plan; it does not name the file.
absl::StatusOr<TpPlan> parse_tp_plan(absl::string_view text);

struct Architecture {
  /// In order of name; tied ones are there once.
  std::vector<ArchitectureTensor> tensors;
  /// Names of one tensor each, of which `tensors` has the first. They come from a description, from
  /// what safetensors noted when it left names out, or from a config.json that says
  /// `tie_word_embeddings`.
  std::vector<std::vector<std::string>> tied;
  /// Paths of modules that are never divided: from a description, or the numbered blocks of a
  /// folder whose config.json describes a transformer.
  std::vector<std::string> no_split;
  TransformerShape transformer;
  /// Empty for none.
  TpPlan tp_plan;
};

/// Where the hub's files are cached: `HF_HUB_CACHE`, `HF_HOME`/hub,
/// `XDG_CACHE_HOME`/huggingface/hub or `HOME`/.cache/huggingface/hub, of which the first that is
/// set and not empty counts. `environment` holds `NAME=value` words.
std::string hub_cache_folder(const std::vector<std::string>& environment);

/// The name by which the library timm loads a model of the hub: `hf-hub:OWNER/NAME`. Names without
/// an owner are timm's own, and stay.
/// Mirrors: accelerate commands/estimate.py.
std::string add_timm_hub_prefix(const std::string& name);

/// `model` is what the user named; one of the hub with timm's prefix or without.
absl::StatusOr<Architecture> read_architecture(FileSystem& files, const std::string& model,
                                               const std::string& hub_cache);

/// A description's text. Errors do not name the file.
absl::StatusOr<Architecture> parse_architecture(absl::string_view text);

// How much memory a model takes, to load and to train, from its tensors' sizes.
//
// Units:   bytes, as doubles: int4 makes halves of them, and no sum overflows.
// Threads: pure functions.
// Mirrors: accelerate commands/estimate.py, calculate_maximum_sizes and estimate_training_usage.
// Differs: tensors of modules that have modules below them count as layers too; bfloat16 is there;
//          sharded training and activations are new.

/// float32, float16, bfloat16, int8, int4.
const std::vector<std::string>& estimate_dtypes();

/// With all floating-point tensors as float32; others as they are.
struct ModelSize {
  double total = 0;
  /// The largest module without modules below it, or of those that are never divided.
  double largest_layer = 0;
};

ModelSize model_size(const Architecture& architecture);

/// Bytes of `size_in_float32` in another dtype.
double size_in(const std::string& dtype, double size_in_float32);

/// The memory at each part of a step of training with Adam; the largest is the need.
struct TrainingUsage {
  double model = 0;
  double gradients = 0;
  double optimizer = 0;
  double step = 0;

  double maximum() const;
};

/// Unset for dtypes that are not used in training. `total` is ModelSize's.
std::optional<TrainingUsage> training_usage(const std::string& dtype, double total);

/// How the model states of training are divided.
struct Division {
  int64_t dp_shard_size = 1;
  /// 0: nothing is sharded over `dp_shard_size`; 1: optimizer; 2: gradients too; 3: parameters too,
  /// which is FSDP.
  int zero_stage = 0;
};

/// Bytes on each rank for parameters, gradients and Adam's two moments in one dtype, of which each
/// is a whole model or its part. Stage 3 also holds the largest layer and its gradients whole.
/// `size` is that of the whole model, or of a rank's part along tp. Unset as above.
std::optional<double> divided_training(const std::string& dtype, const ModelSize& size,
                                       const Division& division);

struct ActivationOptions {
  int64_t batch_size = 1;
  int64_t sequence_length = 1;
  int64_t tp_size = 1;
  /// Whether ranks along tp have parts of the sequences between the layers that they divide.
  bool sequence_parallel = false;
  /// Whether attention keeps its scores, quadratic in the sequence's length; sdpa does not.
  bool keeps_attention_scores = false;
  bool activation_checkpointing = false;
};

/// Bytes on each rank that a transformer's layers keep for backward; embeddings and the output are
/// not in it. Formulas 2 and 4 of Korthikanti et al. 2022 (arXiv 2205.05198), which have it for 2
/// bytes an element. With an intermediate_size it is what layers without dropout keep, of LayerNorm
/// and a perceptron of two matrices, or of RMSNorm, rotated queries and a perceptron with a gate.
/// Unset as above.
std::optional<double> activation_bytes(const std::string& dtype, const TransformerShape& shape,
                                       const ActivationOptions& options);

/// "413.18 MB": steps of 1024, at most two decimals, at least one but for whole bytes.
std::string bytes_text(double bytes);

}  // namespace accelerate::launcher::estimate

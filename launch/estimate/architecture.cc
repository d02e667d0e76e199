#include "launch/estimate/architecture.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "accelerate/base/document.h"
#include "accelerate/base/dtype_names.h"
#include "accelerate/base/json_text.h"
#include "accelerate/base/number_text.h"
#include "accelerate/base/status.h"
#include "accelerate/base/tp_plan.h"
#include "accelerate/files/formats/safetensors_header.h"
#include "accelerate/files/formats/sharded_metadata.h"
#include "accelerate/files/formats/weight_files.h"
#include "launch/process/process_plan.h"

namespace accelerate::launcher::estimate {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kConfigFile[] = "config.json";
// More than any model has; a description is small and may still stand for more than fits.
constexpr int64_t kMaxTensors = 1'000'000;
constexpr int64_t kMaxCount = int64_t{1} << 40;

std::string dtype_of(const DocumentNode& value) {
  const std::string& name = value.text("a dtype");
  if (const DtypeName* known = find_dtype(&DtypeName::torch, name)) {
    if (!known->safetensors.empty()) return std::string(known->safetensors);
  }
  if (safetensors_dtype_size(name) != 0) return name;
  value.fail("a dtype");
}

// Whether perceptrons have a gate, by its usual names.
bool has_gate(const Architecture& architecture) {
  return std::ranges::any_of(architecture.tensors, [](const ArchitectureTensor& tensor) {
    const std::vector<absl::string_view> names = absl::StrSplit(tensor.name, '.');
    return std::ranges::any_of(names, [](absl::string_view name) {
      return name == "gate" || name == "gate_proj" || name == "gate_up_proj";
    });
  });
}

TpPlan tp_plan_of(const DocumentNode& object) {
  TpPlan plan;
  for (const DocumentNode& rule : object.members("an object of patterns and words")) {
    const size_t word = rule.choice("a word of a plan", tp_plan_words());
    plan.push_back({.pattern = rule.key(), .word = tp_plan_words()[word]});
  }
  return plan;
}

// As a double, because the dims come from a file and their product may not fit 64 bits.
double elements_of(const std::vector<int64_t>& shape) {
  double elements = 1;
  for (const int64_t dim : shape) elements *= static_cast<double>(dim);
  return elements;
}

// Reads one description.
class DescriptionReader {
 public:
  Architecture read(const DocumentNode& root) {
    if (const auto dtype = root.find("dtype")) default_dtype_ = dtype_of(*dtype);
    read_module(root, "", {"name", "dtype", "tied", "tp_plan", "transformer"});
    std::map<std::string, ArchitectureTensor> by_name;
    for (ArchitectureTensor& tensor : found_.tensors) {
      const std::string name = tensor.name;
      if (!by_name.emplace(name, std::move(tensor)).second) {
        root.refuse(absl::StrCat("\"", name, "\" occurs twice"));
      }
    }
    if (const auto tied = root.find("tied")) merge_tied(*tied, by_name);
    if (by_name.empty()) root.refuse("it describes no tensors");
    found_.tensors.clear();
    for (auto& [name, tensor] : by_name) found_.tensors.push_back(std::move(tensor));
    if (const auto transformer = root.find("transformer")) {
      transformer->check_keys({"hidden_size", "num_hidden_layers", "num_attention_heads",
                               "num_key_value_heads", "intermediate_size"});
      for (const auto& [name, field] : kShapeFields) {
        const auto value = transformer->find(name);
        if (value) found_.transformer.*field = value->integer("a count above 0", 1, kMaxCount);
      }
    }
    if (const auto plan = root.find("tp_plan")) found_.tp_plan = tp_plan_of(*plan);
    found_.transformer.is_gated = has_gate(found_);
    return std::move(found_);
  }

 private:
  static std::string child(const std::string& path, const DocumentNode& member) {
    if (member.key().empty()) member.refuse("a name is empty");
    return path.empty() ? member.key() : absl::StrCat(path, ".", member.key());
  }

  void read_module(const DocumentNode& module, const std::string& path,
                   std::vector<std::string> allowed) {
    for (const char* key : {"parameters", "buffers", "modules", "no_split"}) {
      allowed.emplace_back(key);
    }
    module.check_keys(allowed);
    const auto no_split = module.find("no_split");
    if (no_split && no_split->boolean()) found_.no_split.push_back(path);
    for (const char* kind : {"parameters", "buffers"}) {
      const auto tensors = module.find(kind);
      if (!tensors) continue;
      for (const DocumentNode& tensor : tensors->members()) {
        read_tensor(tensor, child(path, tensor));
      }
    }
    const auto modules = module.find("modules");
    if (!modules) return;
    for (const DocumentNode& each : modules->members()) read_repeated(each, child(path, each));
  }

  void read_repeated(const DocumentNode& module, const std::string& path) {
    const auto repeat = module.find("repeat");
    if (!repeat) return read_module(module, path, {});
    const int64_t times =
        repeat->integer(absl::StrCat("a number from 0 to ", kMaxTensors), 0, kMaxTensors);
    for (int64_t i = 0; i < times; ++i) {
      // Nested repeats multiply, and modules without tensors are counted nowhere else.
      if (++modules_ > kMaxTensors) module.refuse("it has too many modules");
      read_module(module, absl::StrCat(path, ".", i), {"repeat"});
    }
  }

  void read_tensor(const DocumentNode& value, const std::string& name) {
    if (found_.tensors.size() >= size_t{kMaxTensors}) {
      value.refuse(absl::StrCat("it has more than ", kMaxTensors, " tensors"));
    }
    ArchitectureTensor tensor{.name = name, .dtype = default_dtype_};
    const bool is_object = value.value().is_object();
    if (is_object) {
      value.check_keys({"shape", "dtype"});
      if (const auto dtype = value.find("dtype")) tensor.dtype = dtype_of(*dtype);
    }
    const DocumentNode shape = is_object ? value.at("shape", "a shape") : value;
    for (const DocumentNode& dim : shape.items("a list of sizes")) {
      tensor.shape.push_back(dim.integer("a size of at least 0", 0));
    }
    tensor.elements = elements_of(tensor.shape);
    found_.tensors.push_back(std::move(tensor));
  }

  void merge_tied(const DocumentNode& groups, std::map<std::string, ArchitectureTensor>& by_name) {
    std::set<std::string> seen;
    for (const DocumentNode& group : groups.items()) {
      double elements = -1;
      std::vector<std::string>& names = found_.tied.emplace_back();
      for (const DocumentNode& entry : group.items()) {
        const std::string& name = entry.text();
        const auto found = by_name.find(name);
        if (found == by_name.end() || !seen.insert(name).second) {
          entry.refuse(absl::StrCat("\"tied\" names \"", name, "\", which is ",
                                    seen.contains(name) ? "there already" : "no tensor of it"));
        }
        names.push_back(name);
        if (elements < 0) {
          elements = found->second.elements;
          continue;
        }
        if (found->second.elements != elements) {
          entry.refuse(absl::StrCat("\"", name, "\" is tied to a tensor of another size"));
        }
        // Tied tensors share their memory, so only the first of a group counts.
        by_name.erase(found);
      }
    }
  }

  Architecture found_;
  std::string default_dtype_ = "F32";
  int64_t modules_ = 0;
};

// The head that shares the weight of a transformer's embedding, by the usual names of both. The
// files have it twice or once.
void tie_head(const Json& config, Architecture& architecture) {
  constexpr char kHead[] = "lm_head.weight";
  std::vector<std::string> embeddings;
  for (const ArchitectureTensor& tensor : architecture.tensors) {
    for (const char* name : {"embed_tokens.weight", "wte.weight", "word_embeddings.weight",
                             "tok_embeddings.weight", "embed_in.weight"}) {
      if (tensor.name == name || absl::EndsWith(tensor.name, absl::StrCat(".", name))) {
        embeddings.push_back(tensor.name);
      }
    }
  }
  const auto ties = config.find("tie_word_embeddings");
  if (ties == config.end() || !ties->is_boolean() || !ties->get<bool>()) return;
  if (embeddings.size() != 1) return;
  const auto names = config.find("architectures");
  const bool has_head =
      names != config.end() && names->is_array() &&
      std::ranges::any_of(*names, [](const Json& name) {
        return name.is_string() && (absl::EndsWith(name.get<std::string>(), "ForCausalLM") ||
                                    absl::EndsWith(name.get<std::string>(), "LMHeadModel"));
      });
  const auto head = std::ranges::find(architecture.tensors, kHead, &ArchitectureTensor::name);
  if (head != architecture.tensors.end()) {
    architecture.tensors.erase(head);
  } else if (!has_head) {
    return;
  }
  architecture.tied.push_back({embeddings[0], kHead});
}

// The shape of a transformer from its config.json, if that uses the usual names.
void read_config(FileSystem& files, const std::string& folder, Architecture& architecture) {
  const absl::StatusOr<std::string> text = read_file(files, join_path(folder, kConfigFile));
  if (!text.ok()) return;
  const absl::StatusOr<Json> config = json_value(*text, {.python_numbers = true});
  if (!config.ok() || !config->is_object()) return;
  const auto field = [&](std::initializer_list<const char*> names) -> int64_t {
    for (const char* name : names) {
      const auto found = config->find(name);
      if (found == config->end() || !found->is_number_unsigned()) continue;
      const uint64_t value = found->get<uint64_t>();
      if (value >= 1 && value <= static_cast<uint64_t>(kMaxCount)) return value;
    }
    return 0;
  };
  architecture.transformer = {
      .hidden_size = field({"hidden_size", "n_embd", "d_model", "dim"}),
      .num_hidden_layers = field({"num_hidden_layers", "n_layer", "num_layers", "n_layers"}),
      .num_attention_heads = field({"num_attention_heads", "n_head", "num_heads", "n_heads"}),
      .num_key_value_heads = field({"num_key_value_heads"}),
      .is_gated = has_gate(architecture)};
  // Others may have dropout, which the finer formula has not.
  if (architecture.transformer.is_gated) {
    architecture.transformer.intermediate_size = field({"intermediate_size"});
  }
  if (architecture.tied.empty()) tie_head(*config, architecture);
}

// safetensors notes the names of tied tensors that it left out, with those that it kept.
void tie_noted(const std::map<std::string, std::string>& noted, Architecture& architecture) {
  std::map<std::string, std::vector<std::string>> groups;
  for (const auto& [removed, kept] : noted) {
    const auto has = [&](const std::string& name) {
      return std::ranges::binary_search(architecture.tensors, name, {}, &ArchitectureTensor::name);
    };
    if (has(removed) || !has(kept)) continue;
    groups.try_emplace(kept, std::vector<std::string>{kept}).first->second.push_back(removed);
  }
  for (auto& [kept, names] : groups) architecture.tied.push_back(std::move(names));
}

// The elements of outermost lists of modules, "h.0" of "h.0.attn.weight": a transformer's blocks.
std::vector<std::string> numbered_modules(const std::vector<ArchitectureTensor>& tensors) {
  std::set<std::string> modules;
  for (const ArchitectureTensor& tensor : tensors) {
    size_t begin = 0;
    for (size_t dot; (dot = tensor.name.find('.', begin)) != tensor.name.npos; begin = dot + 1) {
      int64_t number = 0;
      if (!absl::SimpleAtoi(tensor.name.substr(begin, dot - begin), &number)) continue;
      modules.insert(tensor.name.substr(0, dot));
      break;
    }
  }
  return {modules.begin(), modules.end()};
}

absl::StatusOr<Architecture> read_shards(FileSystem& files, const std::string& path) {
  ACCELERATE_ASSIGN_OR_RETURN(const ShardedMetadata metadata,
                              read_file_as(files, path, parse_sharded_metadata));
  Architecture architecture;
  for (const auto& [name, tensor] : metadata.tensors) {
    architecture.tensors.push_back({.name = name,
                                    .dtype = tensor.dtype,
                                    .elements = elements_of(tensor.shape),
                                    .shape = tensor.shape});
  }
  return architecture;
}

absl::StatusOr<Architecture> read_headers(FileSystem& files, const WeightFiles& weights) {
  std::map<std::string, ArchitectureTensor> tensors;
  std::map<std::string, std::string> noted;
  for (const WeightFile& weight_file : weights.files) {
    if (!absl::EndsWith(weight_file.path, ".safetensors")) {
      return invalid(weight_file.path,
                     " is not a safetensors file, and only those have shapes in a header; ",
                     "save the model with save_model, or describe it in JSON");
    }
    ACCELERATE_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> file,
                                files.open(weight_file.path));
    ACCELERATE_ASSIGN_OR_RETURN(const SafetensorsHeader header,
                                read_safetensors_header(*file, weight_file.path));
    if (header.metadata) noted.insert(header.metadata->begin(), header.metadata->end());
    std::vector<std::string> names;
    for (const SafetensorsEntry& entry : header.tensors) {
      names.push_back(entry.name);
      if (safetensors_dtype_size(entry.dtype) == 0) {
        return absl::UnimplementedError(absl::StrCat(weight_file.path, ": '", entry.name,
                                                     "' is of the dtype ", entry.dtype,
                                                     ", whose size is not known here"));
      }
      tensors[entry.name] = {.name = entry.name,
                             .dtype = entry.dtype,
                             .elements = elements_of(entry.shape),
                             .shape = entry.shape};
    }
    if (!weights.has_index) continue;
    ACCELERATE_RETURN_IF_ERROR(check_weight_file(weight_file, names));
  }
  Architecture architecture;
  for (auto& [name, tensor] : tensors) architecture.tensors.push_back(std::move(tensor));
  tie_noted(noted, architecture);
  return architecture;
}

// Models of several parts keep each part in a folder of its own.
std::string parts_hint(FileSystem& files, const std::string& folder) {
  const auto names = files.list(folder);
  if (!names.ok()) return "";
  std::vector<std::string> parts;
  for (const std::string& name : *names) {
    const auto info = files.info(join_path(folder, name));
    if (!info.ok() || !info->is_directory) continue;
    if (find_weight_files(files, join_path(folder, name)).ok()) parts.push_back(name);
  }
  if (parts.empty()) return "";
  return absl::StrCat("; name one of its parts: ", absl::StrJoin(parts, ", "));
}

absl::StatusOr<Architecture> read_folder(FileSystem& files, const std::string& folder) {
  absl::StatusOr<Architecture> architecture;
  const std::string metadata = join_path(folder, kShardedMetadataFile);
  if (const auto sharded = exists(files, metadata); sharded.ok() && *sharded) {
    architecture = read_shards(files, metadata);
  } else {
    const absl::StatusOr<WeightFiles> weights = find_weight_files(files, folder);
    if (absl::IsNotFound(weights.status())) {
      return absl::NotFoundError(
          absl::StrCat(weights.status().message(), parts_hint(files, folder)));
    }
    if (!weights.ok()) return weights.status();
    architecture = read_headers(files, *weights);
  }
  if (!architecture.ok()) return architecture.status();
  read_config(files, folder, *architecture);
  // Numbered modules are known to be blocks only in a transformer.
  if (architecture->transformer.num_hidden_layers > 0) {
    architecture->no_split = numbered_modules(architecture->tensors);
  }
  return architecture;
}

constexpr char kTimmHub[] = "hf-hub:";

bool is_hub_name(absl::string_view name) {
  const std::vector<absl::string_view> parts = absl::StrSplit(name, '/');
  return parts.size() <= 2 && std::ranges::all_of(parts, [](absl::string_view part) {
           return !part.empty() && part[0] != '.' && part[0] != '~' &&
                  internal::is_plain_file_name(std::string(part));
         });
}

// The folder of a cached model: of the version that `main` was when it was downloaded.
absl::StatusOr<std::string> cached_snapshot(FileSystem& files, const std::string& name,
                                            const std::string& cache) {
  const std::string folder =
      join_path(cache, absl::StrCat("models--", absl::StrReplaceAll(name, {{"/", "--"}})));
  const std::string snapshots = join_path(folder, "snapshots");
  if (const auto cached = exists(files, snapshots); !cached.ok() || !*cached) {
    return absl::NotFoundError(absl::StrCat(
        "\"", name, "\" is neither a file or folder here nor a model in the hub's cache ", cache,
        "; nothing is downloaded: fetch it first (hf download ", name,
        "; a gated model needs a login), or name a folder, a safetensors file or a description"));
  }
  if (const auto main = read_file(files, join_path(folder, "refs/main")); main.ok()) {
    const std::string commit(absl::StripAsciiWhitespace(*main));
    if (internal::is_plain_file_name(commit)) return join_path(snapshots, commit);
  }
  ACCELERATE_ASSIGN_OR_RETURN(const std::vector<std::string> versions, files.list(snapshots));
  if (versions.size() == 1) return join_path(snapshots, versions.front());
  return invalid(snapshots, " has ", versions.size(),
                 " versions and no refs/main; name one's folder");
}

constexpr double kFloat32Bytes = 4;

double bytes_in_float32(const ArchitectureTensor& tensor) {
  const bool is_floating_point = tensor.dtype[0] == 'F' || tensor.dtype == "BF16";
  return tensor.elements *
         (is_floating_point ? kFloat32Bytes : safetensors_dtype_size(tensor.dtype));
}

bool is_trained_in(const std::string& dtype) { return dtype != "int8" && dtype != "int4"; }

// What a layer keeps for backward.
struct LayerBytes {
  double between = 0;  // of whole hidden states
  double inside = 0;   // of the features that ranks along tp divide
};

// `ranks`: along tp, each of which has a head of keys at least.
LayerBytes bytes_without_dropout(const TransformerShape& shape, double tokens, double element,
                                 double ranks) {
  const double h = static_cast<double>(shape.hidden_size);
  const double a = static_cast<double>(shape.num_attention_heads);
  const double kv_heads = shape.num_key_value_heads > 0
                              ? std::max(static_cast<double>(shape.num_key_value_heads), ranks)
                              : a;
  const double f = static_cast<double>(shape.intermediate_size);
  // LayerNorm keeps a mean and a deviation of a token, RMSNorm the latter.
  const double statistics = kFloat32Bytes * (shape.is_gated ? 1 : 2);
  // Query, key, value and the result, and a float32 for each query and head. The result is laid out
  // like the queries: as the projection takes it, unless they were rotated, as beside a gate, after
  // which the heads of a token lie apart and the projection has a copy.
  const double results = shape.is_gated ? 2 : 1;
  const double attention = ((1 + results) * h + 2 * kv_heads * h / a) * element + kFloat32Bytes * a;
  // The inputs of the activation and of the last matrix; of a gate its result and the other factor.
  const double perceptron = (shape.is_gated ? 4 : 2) * f * element;
  return {.between = tokens * (4 * h * element + 2 * statistics),
          .inside = tokens * (attention + perceptron)};
}

// The module that the tensor is a part of: the outermost that is never divided, or its own; what
// sits at the root is a layer by itself.
std::string layer_of(const std::string& tensor, const std::set<std::string>& no_split) {
  for (size_t dot = tensor.find('.'); dot != tensor.npos; dot = tensor.find('.', dot + 1)) {
    if (const std::string module = tensor.substr(0, dot); no_split.contains(module)) return module;
  }
  return tensor.substr(0, tensor.rfind('.'));
}

}  // namespace

std::string hub_cache_folder(const std::vector<std::string>& environment) {
  for (const auto& [variable, below] : {std::pair("HF_HUB_CACHE", ""), std::pair("HF_HOME", "/hub"),
                                        std::pair("XDG_CACHE_HOME", "/huggingface/hub"),
                                        std::pair("HOME", "/.cache/huggingface/hub")}) {
    const std::string value = process::environment_value(environment, variable);
    if (!value.empty()) return absl::StrCat(value, below);
  }
  return ".cache/huggingface/hub";
}

absl::StatusOr<TpPlan> parse_tp_plan(absl::string_view text) {
  return as_status(absl::StatusCode::kInvalidArgument, [&]() -> absl::StatusOr<TpPlan> {
    return tp_plan_of(Document::json(text).root());
  });
}

absl::StatusOr<Architecture> parse_architecture(absl::string_view text) {
  return as_status(absl::StatusCode::kInvalidArgument, [&]() -> absl::StatusOr<Architecture> {
    const Document document = Document::json(text);
    if (document.root().has("model_type") || document.root().has("architectures")) {
      return absl::InvalidArgumentError(
          "it is a model's configuration, which has no shapes; name the folder with its weights, "
          "or describe the modules (see accelerate/docs/estimate_memory.md)");
    }
    return DescriptionReader().read(document.root());
  });
}

std::string add_timm_hub_prefix(const std::string& name) {
  const bool is_there = absl::StartsWith(name, kTimmHub) || absl::StartsWith(name, "hf_hub:");
  return is_there || !absl::StrContains(name, '/') ? name : absl::StrCat(kTimmHub, name);
}

absl::StatusOr<Architecture> read_architecture(FileSystem& files, const std::string& model,
                                               const std::string& hub_cache) {
  const absl::StatusOr<FileInfo> info = files.info(model);
  if (info.ok()) {
    if (info->is_directory) return read_folder(files, model);
    if (absl::EndsWith(model, ".json") && !absl::EndsWith(model, ".index.json")) {
      return read_file_as(files, model, parse_architecture);
    }
    ACCELERATE_ASSIGN_OR_RETURN(const WeightFiles weights, find_weight_files(files, model));
    return read_headers(files, weights);
  }
  if (!absl::IsNotFound(info.status())) return info.status();
  const std::string name(absl::StripPrefix(model, kTimmHub));
  if (!is_hub_name(name)) return absl::NotFoundError(absl::StrCat(model, " does not exist"));
  ACCELERATE_ASSIGN_OR_RETURN(const std::string snapshot, cached_snapshot(files, name, hub_cache));
  return read_folder(files, snapshot);
}

const std::vector<std::string>& estimate_dtypes() {
  static const std::vector<std::string>& kDtypes =
      *new std::vector<std::string>{"float32", "float16", "bfloat16", "int8", "int4"};
  return kDtypes;
}

ModelSize model_size(const Architecture& architecture) {
  const std::set<std::string> no_split(architecture.no_split.begin(), architecture.no_split.end());
  ModelSize size;
  std::map<std::string, double> layers;
  for (const ArchitectureTensor& tensor : architecture.tensors) {
    const double bytes = bytes_in_float32(tensor);
    size.total += bytes;
    layers[layer_of(tensor.name, no_split)] += bytes;
  }
  for (const auto& [name, bytes] : layers) size.largest_layer = std::max(size.largest_layer, bytes);
  if (no_split.contains("")) size.largest_layer = size.total;
  return size;
}

double size_in(const std::string& dtype, double size_in_float32) {
  if (dtype == "float16" || dtype == "bfloat16") return size_in_float32 / 2;
  if (dtype == "int8") return size_in_float32 / 4;
  if (dtype == "int4") return size_in_float32 / 8;
  return size_in_float32;
}

double TrainingUsage::maximum() const { return std::max({model, gradients, optimizer, step}); }

std::optional<TrainingUsage> training_usage(const std::string& dtype, double total) {
  if (!is_trained_in(dtype)) return std::nullopt;
  const bool is_mixed = dtype != "float32";
  return TrainingUsage{.model = total,
                       .gradients = (is_mixed ? 1.5 : 1) * total,
                       .optimizer = 2 * total,
                       .step = (is_mixed ? 2 : 4) * total};
}

std::optional<double> divided_training(const std::string& dtype, const ModelSize& size,
                                       const Division& division) {
  if (!is_trained_in(dtype)) return std::nullopt;
  const double whole = size_in(dtype, size.total);
  const double layer = size_in(dtype, size.largest_layer);
  const double part = whole / static_cast<double>(division.dp_shard_size);
  const int stage = division.dp_shard_size > 1 ? division.zero_stage : 0;
  const double optimizer = 2 * (stage >= 1 ? part : whole);
  const double gradients = stage >= 2 ? part : whole;
  if (stage < 3) return whole + gradients + optimizer;
  return part + gradients + optimizer + 2 * layer;
}

std::optional<double> activation_bytes(const std::string& dtype, const TransformerShape& shape,
                                       const ActivationOptions& options) {
  if (!is_trained_in(dtype)) return std::nullopt;
  const double element = size_in(dtype, kFloat32Bytes);
  const double s = static_cast<double>(options.sequence_length);
  const double b = static_cast<double>(options.batch_size);
  const double a = static_cast<double>(shape.num_attention_heads);
  const double t = static_cast<double>(options.tp_size);
  const double layers = static_cast<double>(shape.num_hidden_layers);
  const double input = s * b * static_cast<double>(shape.hidden_size) * element;
  // With dropout: inputs of the two norms and of both blocks, and two dropout masks of a byte an
  // element; query, key, value, the projection's input, and three widths of 4 but one in the MLP.
  LayerBytes bytes = {.between = 4 * input + 2 * input / element, .inside = 12 * input};
  if (shape.intermediate_size > 0) bytes = bytes_without_dropout(shape, s * b, element, t);
  // Ranks that have parts of the sequences have parts of all.
  const double n = options.sequence_parallel ? t : 1;
  const double scores = options.keeps_attention_scores ? a * s * s * b * (2 * element + 1) : 0;
  const double layer = bytes.between / n + (bytes.inside + scores) / t;
  return options.activation_checkpointing ? layers * input / n + layer : layers * layer;
}

std::string bytes_text(double bytes) {
  const bool is_whole = bytes < 1024 && bytes == std::floor(bytes);
  return is_whole ? byte_text(static_cast<int64_t>(bytes)) : byte_text(bytes);
}

}  // namespace accelerate::launcher::estimate

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <regex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include "absl/log/log_entry.h"
#include "absl/log/log_sink.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "accelerate/big_model/empty_model.h"
#include "accelerate/checkpoint/folder/save_load.h"
#include "accelerate/modules/module_state_dict.h"
#include "accelerate/modules/module_tensors.h"
#include "accelerate/modules/value_at_use.h"
#include "accelerate/quantization/models/load_and_quantize.h"
#include "accelerate/quantization/models/quantized_layers.h"
#include "accelerate/quantization/models/quantized_weight.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/state/logger.h"
#include "accelerate/state/partial_state.h"
#include "integration_tests/golden/answers.h"
#include "integration_tests/golden/dtypes.h"
#include "integration_tests/golden/fields.h"
#include "integration_tests/golden/module_trees.h"
#include "integration_tests/golden/quantization_config.h"
#include "integration_tests/golden/quantization_models.h"
#include "integration_tests/golden/torch_trees.h"
#include "simulator/cluster/cluster.h"
#include "simulator/disk/sim_disk.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;
using torch::nn::LinearImpl;
using torch::nn::Module;

constexpr char kLogger[] = "accelerate.quantization";
constexpr char kCheckpoint[] = "/sim/checkpoint";

// ---- The log.

// What sentences are about, ours or HF Accelerate's, each once: HF Accelerate says of the CPU and
// of the disk alike that there are modules on it. Sentences that are not known stay.
json facts_of(const std::vector<std::string>& sentences) {
  static const std::vector<std::pair<std::regex, std::string>> kFacts = {
      {std::regex("^It is not recommended to quantize a loaded model"), "a loaded model"},
      {std::regex(R"(^The model device type is (\w+)\. However)"), "moves from $1"},
      {std::regex(R"(^The model is on (\w+) and moves to )"), "moves from $1"},
      {std::regex("^The device_map was not initialized"), "one device"},
      {std::regex("^Some modules are (are )?offloaded to the CPU or the disk"), "offloads"},
      {std::regex("no linear modules were found"), "no layers"},
  };
  json facts = json::array();
  for (const std::string& sentence : sentences) {
    std::string fact = sentence;
    std::smatch found;
    for (const auto& [expression, name] : kFacts) {
      if (std::regex_search(sentence, found, expression)) fact = found.format(name);
    }
    if (std::find(facts.begin(), facts.end(), json(fact)) == facts.end()) facts.push_back(fact);
  }
  return facts;
}

struct Lines : absl::LogSink {
  void Send(const absl::LogEntry& entry) override {
    if (entry.source_filename() == kLogger) texts.emplace_back(entry.text_message());
  }
  std::vector<std::string> texts;
};

// The answer that `make` gives on a rank with two accelerators or none, and the rank's log.
json on_a_rank(bool has_accelerators, const std::function<json()>& make) {
  json out;
  simulator::Cluster cluster(has_accelerators ? "1x1:h100,devices=2" : "1x1",
                             {.disk = std::make_shared<simulator::SimDisk>()});
  cluster.run_on_every_rank([&](simulator::Rank&) {
    PartialState::get();  // which loggers ask
    get_logger(kLogger).set_level(LogLevel::kInfo);
    const auto lines = std::make_shared<Lines>();
    add_log_sink(lines);
    out = part(make);
    out["log"] = facts_of(lines->texts);
  });
  return out;
}

// ---- What is told of models.

std::shared_ptr<Module> model_of(const json& in) {
  return torch_module_of(field(in, "model"), field(in, "tied"), in.value("special", json()));
}

std::vector<std::string> replaced_layers(const Module& model) {
  std::vector<std::string> names;
  for (const auto& item : model.named_modules()) {
    const auto* const linear = item.value()->as<LinearImpl>();
    if (linear != nullptr && quantized_bits(linear->weight)) names.push_back(item.key());
  }
  return names;
}

// Checkpoints do not have buffers that are not persistent, of which cases with one say nothing.
NamedTensors tensors_of(const Module& model, bool persistent_only) {
  return named_module_tensors(
      model,
      {.recurse = true, .remove_non_persistent = persistent_only, .remove_duplicate = false});
}

json dtypes_of(const NamedTensors& tensors) {
  json dtypes = json::object();
  for (const auto& [name, tensor] : tensors) dtypes[name] = name_of(tensor.scalar_type());
  return dtypes;
}

json layer_json(const BnbLayer& layer, const at::Tensor& weight,
                const BnbQuantizationConfig& config) {
  json made = {{"kind", layer.kind},
               {"in_features", layer.in_features},
               {"out_features", layer.out_features},
               {"bias", layer.bias}};
  if (layer.kind == "Linear8bitLt") {
    made["has_fp16_weights"] = !quantized_bits(weight).has_value();
    made["threshold"] = number_json(QuantizedProducts(config).config().llm_int8_threshold);
    return made;
  }
  made["compute_dtype"] = dtype_json(weight.scalar_type());
  made["compress_statistics"] = false;
  static const std::string kState = ".quant_state.bitsandbytes__";
  for (const KeptTensor& kept : kept_tensors("weight", weight)) {
    if (kept.name == "weight.nested_absmax") made["compress_statistics"] = true;
    const size_t state = kept.name.find(kState);
    if (state != kept.name.npos) made["quant_type"] = kept.name.substr(state + kState.size());
  }
  return made;
}

// ---- The kinds.

std::vector<std::string> names_of(const json& names) {
  return names.is_null() ? std::vector<std::string>() : names.get<std::vector<std::string>>();
}

std::optional<std::string> base_model_prefix(const json& in) {
  const json& special = field(in, "special");
  if (!special.contains("base_model_prefix")) return std::nullopt;
  return string_field(special, "base_model_prefix");
}

json keys_to_not_convert(const json& in) {
  expect_fields(in, {"kind", "model", "tied", "special", "note"});
  return part([&]() -> json {
    std::vector<std::string> keys = get_keys_to_not_convert(*model_of(in), base_model_prefix(in));
    std::sort(keys.begin(), keys.end());
    return {{"keys", keys}};
  });
}

json replace(const json& in) {
  expect_fields(in, {"kind", "model", "tied", "modules_to_not_convert", "config", "note"});
  return on_a_rank(/*has_accelerators=*/false, [&]() -> json {
    const BnbQuantizationConfig config = quantization_config_of(field(in, "config"));
    const std::shared_ptr<Module> model = model_of(in);
    const std::vector<BnbLayer> replaced =
        replace_with_bnb_layers(*model, config, names_of(field(in, "modules_to_not_convert")));
    json layers = json::object();
    json trainable = json::array();
    const auto modules = model->named_modules();
    for (const BnbLayer& layer : replaced) {
      const auto& linear = *modules[layer.name]->as<LinearImpl>();
      layers[layer.name] = layer_json(layer, linear.weight, config);
      const std::vector<at::Tensor> parameters = linear.parameters();
      if (std::ranges::any_of(parameters, &at::Tensor::requires_grad)) {
        trainable.push_back(layer.name);
      }
    }
    return {{"layers", std::move(layers)},
            {"trainable", std::move(trainable)},
            {"has_4bit", has_4bit_bnb_layers(*model)}};
  });
}

std::optional<BnbDeviceMap> device_map_of(const json& map) {
  if (map.is_null()) return std::nullopt;
  if (map.is_string()) return map.get<std::string>();
  return map_of(map);
}

json device_map(const json& in) {
  expect_fields(in, {"kind", "model", "config", "device_map", "max_memory",
                     "no_split_module_classes", "gpus", "tied", "note"});
  return on_a_rank(bool_field(in, "gpus"), [&]() -> json {
    const std::shared_ptr<Module> model =
        torch_module_of(field(in, "model"), in.value("tied", json()), {});
    std::optional<MaxMemory> limits;
    if (!field(in, "max_memory").is_null()) {
      const auto parsed = limits_of(in["max_memory"]);
      if (!parsed.ok()) return status_error(parsed.status());
      limits = *parsed;
    }
    const DeviceMap map = get_quantized_model_device_map(
        *model, quantization_config_of(field(in, "config")), device_map_of(field(in, "device_map")),
        limits, classes_of(field(in, "no_split_module_classes")));
    std::map<std::string, json> sorted;
    for (const auto& [name, placement] : map.entries()) sorted[name] = to_json(placement);
    return {{"device_map", sorted}};
  });
}

json quantize(const json& in) {
  expect_fields(in, {"kind", "model", "tied", "special", "config", "accelerator", "bitsandbytes",
                     "device_map", "note"});
  return on_a_rank(bool_field(in, "accelerator"), [&]() -> json {
    const auto model =
        load_and_quantize_model(model_of(in), quantization_config_of(field(in, "config")),
                                {.device_map = device_map_of(field(in, "device_map")),
                                 .base_model_prefix = base_model_prefix(in)});
    const BnbQuantizationConfig& config = *quantization_config(*model);
    std::vector<std::string> skipped = *config.skip_modules;
    std::sort(skipped.begin(), skipped.end());
    return {{"replaced", replaced_layers(*model)},
            {"dtypes", dtypes_of(tensors_of(*model, /*persistent_only=*/false))},
            {"skip_modules", skipped},
            {"keep_in_fp32_modules", *config.keep_in_fp32_modules},
            {"flags",
             {{"is_loaded_in_4bit", is_loaded_in_4bit(*model)},
              {"is_loaded_in_8bit", is_loaded_in_8bit(*model)}}}};
  });
}

json load(const json& in) {
  expect_fields(
      in, {"kind", "model", "tied", "config", "device_map", "weights", "checkpoint_dtype", "note"});
  return on_a_rank(/*has_accelerators=*/false, [&]() -> json {
    LoadAndQuantizeOptions options = {.device_map = device_map_of(field(in, "device_map"))};
    if (bool_field(in, "weights")) {
      options.weights_location = kCheckpoint;
      const std::shared_ptr<Module> saved = model_of(in);
      saved->to(dtype_of(field(in, "checkpoint_dtype")));
      save_model(Runtime::current().files(), module_state_dict(*saved), kCheckpoint);
    }
    std::shared_ptr<Module> empty;
    {
      const EmptyInit scope = init_empty_weights();
      empty = model_of(in);
    }
    const auto model =
        load_and_quantize_model(empty, quantization_config_of(field(in, "config")), options);
    const NamedTensors tensors = tensors_of(*model, /*persistent_only=*/true);
    std::set<std::string> devices;
    for (const auto& [name, tensor] : tensors) devices.insert(tensor.device().str());
    json map = json::object();
    for (const auto& [name, placement] : model.hf_device_map().entries()) {
      map[name] = to_json(placement);
    }
    return {{"replaced", replaced_layers(*model)},
            {"dtypes", dtypes_of(tensors)},
            {"devices", devices},
            {"hf_device_map", std::move(map)},
            {"hook_on_root", model.state()->residency() != nullptr}};
  });
}

// ---- Facts.

void spread(const json& tree, const std::string& path, bool persistent_only, const json& recorded,
            json& dtypes) {
  const json& others = recorded.at("other_dtypes");
  for (const char* kind : {"params", "buffers"}) {
    for (const json& tensor : field(tree, kind)) {
      const std::string name = path + tensor.at(0).get<std::string>();
      if (others.contains(name)) {
        dtypes[name] = others[name];
      } else if (!persistent_only || kind == std::string("params") || tensor.at(3).get<bool>()) {
        dtypes[name] = recorded.at("dtype");
      }
    }
  }
  for (const json& child : field(tree, "children")) {
    spread(child.at(1), absl::StrCat(path, child.at(0).get<std::string>(), "."), persistent_only,
           recorded, dtypes);
  }
}

}  // namespace

std::optional<json> run_quantization_models(const json& in) {
  static constexpr std::pair<const char*, json (*)(const json&)> kKinds[] = {
      {"keys_to_not_convert", &keys_to_not_convert},
      {"replace", &replace},
      {"device_map", &device_map},
      {"quantize", &quantize},
      {"load", &load},
  };
  const std::string kind = string_field(in, "kind");
  for (const auto& [known, run] : kKinds) {
    if (kind == known) return run(in);
  }
  return std::nullopt;
}

void take_quantization_facts(const json& in, json& recorded) {
  const std::string kind = string_field(in, "kind");
  if (recorded.contains("log")) {
    std::vector<std::string> sentences;
    for (const json& line : recorded["log"]) {
      const std::string text = string_field(line, "message");
      // Which the cases of device_map are about.
      if (!absl::StartsWith(text, "Based on the current allocation process")) {
        sentences.push_back(text);
      }
    }
    recorded["log"] = facts_of(sentences);
  }
  if (recorded.contains("dtype")) {
    json dtypes = json::object();
    spread(field(in, "model"), "", /*persistent_only=*/kind == "load", recorded, dtypes);
    recorded["dtypes"] = std::move(dtypes);
    recorded.erase("dtype");
    recorded.erase("other_dtypes");
  }
  if (recorded.contains("device_map")) {
    json map = json::object();
    for (const json& entry : recorded["device_map"]) map[entry.at(0)] = entry.at(1);
    recorded["device_map"] = std::move(map);
  }
}

}  // namespace accelerate::golden

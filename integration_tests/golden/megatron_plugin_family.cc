// The options of Megatron-LM, its arguments, and what train steps make of batches.
#include <concepts>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/types.h>

#include "accelerate/config/megatron_lm_plugin.h"
#include "accelerate/data/batch_sampler_shard.h"
#include "accelerate/data/sampler.h"
#include "accelerate/megatron/model_parsers.h"
#include "accelerate/megatron/preparation.h"
#include "accelerate/megatron/train_step.h"
#include "accelerate/platform/environment.h"
#include "accelerate/testing/recorded_warnings.h"
#include "integration_tests/golden/answers.h"
#include "integration_tests/golden/dtypes.h"
#include "integration_tests/golden/family.h"
#include "integration_tests/golden/fields.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;
using Json = nlohmann::ordered_json;
using Plugin = MegatronLMPlugin;
using Tensors = std::vector<at::Tensor>;

// HF Accelerate's default, to which recorded answers are relative.
constexpr int64_t kContextParallelSize = 2;

// ---- The plugin of a case.

template <typename T>
constexpr bool kIsFunction = false;
template <typename Result, typename... Arguments>
constexpr bool kIsFunction<std::function<Result(Arguments...)>> = true;

template <typename Result, typename... Arguments>
void set_function(std::function<Result(Arguments...)>& field) {
  field = [](Arguments...) { return Result(); };
}

template <typename T>
void set_value(T& field, const json& value) {
  if constexpr (requires {
                  typename T::value_type;
                  field.has_value();
                }) {
    typename T::value_type held{};
    set_value(held, value);
    field = std::move(held);
  } else if constexpr (std::same_as<T, bool>) {
    if (!value.is_boolean()) throw DoesNotCompile();
    field = value.get<bool>();
  } else if constexpr (std::same_as<T, int64_t>) {
    if (!value.is_number_integer()) throw DoesNotCompile();
    field = value.get<int64_t>();
  } else if constexpr (std::same_as<T, double>) {
    if (!value.is_number()) throw DoesNotCompile();
    field = value.get<double>();
  } else if constexpr (std::same_as<T, std::string>) {
    if (!value.is_string()) throw DoesNotCompile();
    field = value.get<std::string>();
  } else if constexpr (std::same_as<T, Json>) {
    field = Json(value);
  } else {
    if (!value.is_array()) throw DoesNotCompile();
    field = value.get<T>();
  }
}

// A plugin, and its functions as the case names them.
struct Given {
  Plugin plugin;
  std::map<std::string, json> functions;
};

Given plugin_of(const json& kwargs, const Environment& environment) {
  Given given;
  for (const auto& [name, value] : kwargs.items()) {
    if (value.is_null()) continue;
    bool is_known = false;
    visit_fields(given.plugin, [&]<typename Field>(const std::string& each, Field& field) {
      if (each != name) return;
      is_known = true;
      if constexpr (kIsFunction<Field>) {
        set_function(field);
        given.functions[each] = value;
      } else {
        set_value(field, value);
      }
    });
    if (!is_known) throw CaseError("kwargs: unknown " + name);
  }
  given.plugin = resolve(given.plugin, environment);
  return given;
}

template <typename T>
json value_json(const T& value) {
  if constexpr (requires { value.has_value(); }) {
    return value ? value_json(*value) : json();
  } else {
    return json(value);
  }
}

json fields_json(const Given& given) {
  json fields = json::object();
  visit_fields(given.plugin, [&]<typename Field>(const char* name, const Field& field) {
    if constexpr (kIsFunction<Field>) {
      const auto found = given.functions.find(name);
      fields[name] = found == given.functions.end() ? json() : found->second;
    } else {
      fields[name] = value_json(field);
    }
  });
  const Plugin& plugin = given.plugin;
  fields["DDP_impl"] = plugin.ddp_impl;
  const std::pair<const char*, std::optional<int64_t>> sizes[] = {
      {"data_parallel_size", plugin.data_parallel_size},
      {"micro_batch_size", plugin.micro_batch_size},
      {"global_batch_size", plugin.global_batch_size}};
  for (const auto& [name, size] : sizes) {
    if (size) fields[name] = *size;
  }
  return fields;
}

json args_json(const Given& given) {
  json args = json(given.plugin.megatron_lm_default_args);
  for (const auto& [name, function] : given.functions) {
    if (args.contains(name)) args[name] = function;
  }
  return args;
}

// What is there and was not, or was something else.
json changed(const json& before, const json& after) {
  json changes = json::object();
  for (const auto& [name, value] : after.items()) {
    if (!before.contains(name) || before[name] != value) changes[name] = value;
  }
  return changes;
}

Given base() {
  return plugin_of({{"context_parallel_size", kContextParallelSize}}, environment_of({}));
}

json warnings_json(const RecordedWarnings& warnings) {
  json texts = json::array();
  for (const std::string& text : plain_texts(warnings)) {
    texts.push_back({{"category", "UserWarning"}, {"message", text}});
  }
  return texts;
}

// ---- kind: plugin

std::optional<MegatronBatchShapes> shapes_of(const json& batch) {
  if (batch.is_null()) return std::nullopt;
  return batch.get<MegatronBatchShapes>();
}

// An optimizer's options, of which those that its class has by itself are PyTorch's.
json defaults_of(const std::string& class_name, const json& arguments) {
  json defaults = json::object();
  const bool is_adam = class_name == "Adam" || class_name == "AdamW" || class_name == "NAdam" ||
                       class_name == "RAdam" || class_name == "Adamax";
  if (is_adam) {
    defaults = {{"lr", 0.001}, {"betas", {0.9, 0.999}}, {"eps", 1e-8}};
    defaults["weight_decay"] = class_name == "AdamW" ? json(0.01) : json(0);
  } else if (class_name == "SGD") {
    defaults = {{"lr", 0.001}, {"momentum", 0}, {"weight_decay", 0}};
  } else if (class_name == "ASGD") {
    defaults = {{"lr", 0.01}, {"weight_decay", 0}};
  }
  defaults.update(arguments);
  return defaults;
}

void call(Plugin& plugin, const std::string& method, const json& arguments) {
  if (method == "set_mixed_precision") {
    plugin.set_mixed_precision(string_field(arguments, "mixed_precision"));
  } else if (method == "set_training_args") {
    plugin.set_training_args(int_field(arguments, "micro_batch_size"),
                             int_field(arguments, "dp_degree"));
  } else if (method == "set_network_size_args") {
    expect_fields(arguments, {"config", "class", "batch"});
    set_network_size_args(
        plugin,
        {.config = field(arguments, "config"), .class_name = string_field(arguments, "class")},
        shapes_of(arguments.value("batch", json())));
  } else if (method == "set_optimizer_type") {
    const std::string name = string_field(arguments, "class");
    plugin.set_optimizer_type(name,
                              defaults_of(name, arguments.value("arguments", json::object())));
  } else if (method == "set_scheduler_args") {
    expect_fields(arguments, {"total_num_steps", "warmup_num_steps"});
    std::optional<int64_t> total;
    if (arguments.contains("total_num_steps")) {
      total = optional_int_field(arguments, "total_num_steps");
    }
    plugin.set_scheduler_args(total, arguments.value("warmup_num_steps", int64_t{0}));
  } else if (method == "set_tensorboard_logging_options") {
    plugin.set_tensorboard_logging_options();
  } else {
    throw CaseError("then: unknown " + method);
  }
}

json run_then(Given& given, const json& method, const json& arguments) {
  const json fields = fields_json(given);
  const json args = args_json(given);
  const RecordedWarnings warnings;
  json out = part([&]() -> json {
    call(given.plugin, method.get<std::string>(), arguments);
    return {{"fields", changed(fields, fields_json(given))},
            {"args", changed(args, args_json(given))}};
  });
  if (!warnings.texts().empty()) out["warnings"] = warnings_json(warnings);
  return out;
}

json run_plugin(const json& in) {
  expect_fields(in, {"kind", "env", "kwargs", "then", "note", "logging_flags", "argv"});
  const Environment environment = environment_of(in);
  const json& kwargs = field(in, "kwargs");
  const bool is_whole = kwargs.empty() && field(in, "env").empty() && !in.contains("then");
  const Given usual = base();
  const RecordedWarnings warnings;
  std::optional<Given> given;
  json out = part([&]() -> json {
    given = plugin_of(kwargs, environment);
    if (is_whole) return {{"fields", fields_json(*given)}, {"args", args_json(*given)}};
    return {{"fields", changed(fields_json(usual), fields_json(*given))},
            {"args", changed(args_json(usual), args_json(*given))}};
  });
  if (out.contains("refused_by_compiler")) return out;
  out["warnings"] = warnings_json(warnings);
  if (!given) return out;
  for (const json& each : in.value("then", json::array())) {
    out["then"].push_back(run_then(*given, each.at(0), each.at(1)));
  }
  return out;
}

json run_parsers(const json& in) {
  expect_fields(in, {"kind", "note"});
  json order = json::array();
  for (const auto& [type, parser] : megatron_model_parsers()) order.push_back(type);
  return {{"order", std::move(order)}};
}

// ---- kind: prepare

MegatronObjects objects_of(const json& in) {
  MegatronObjects objects = {.models_before = int_field(in, "models_before")};
  for (const json& each : field(in, "objects")) {
    const std::string kind = string_field(each, "kind");
    if (kind == "model") {
      objects.model = MegatronModelFacts{.config = field(each, "config"),
                                         .class_name = each.value("class", "Model")};
    } else if (kind == "optimizer") {
      const std::string name = string_field(each, "class");
      objects.optimizer =
          MegatronOptimizerFacts{name, defaults_of(name, each.value("arguments", json::object()))};
    } else if (kind == "loader") {
      objects.batch_sizes.push_back(int_field(each, "batch_size"));
      if (!objects.batch) objects.batch = shapes_of(each.value("batch", json()));
    } else if (kind == "dummy_loader") {
      objects.dummy_loader =
          MegatronLMDummyDataLoader(Json(each.value("arguments", json::object())));
    } else if (kind == "dummy_scheduler") {
      objects.scheduler =
          MegatronLMDummyScheduler{.total_num_steps = optional_int_field(each, "total_num_steps"),
                                   .warmup_num_steps = each.value("warmup_num_steps", int64_t{0})};
    } else if (kind == "scheduler") {
      objects.has_other_scheduler = true;
    } else {
      throw CaseError("objects: unknown kind " + kind);
    }
  }
  return objects;
}

json run_prepare(const json& in) {
  expect_fields(in, {"kind", "plugin", "objects", "num_processes", "models_before", "note"});
  return part([&]() -> json {
    Given given = plugin_of(field(in, "plugin"), environment_of({}));
    set_prepared_args(given.plugin, objects_of(in), int_field(in, "num_processes"));
    return {{"initialize", changed(args_json(base()), args_json(given))}};
  });
}

// ---- Tensors.

at::Tensor tensor_of(const json& value) {
  const at::ScalarType dtype = dtype_of(field(value, "dtype"));
  std::vector<double> numbers;
  for (const json& each : field(value, "data")) {
    numbers.push_back(each.is_boolean() ? static_cast<double>(each.get<bool>())
                                        : each.get<double>());
  }
  return torch::tensor(numbers, at::kDouble).to(dtype).view(ints_field(value, "shape"));
}

json tensor_json(const at::Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  json data = json::array();
  const at::Tensor flat = tensor.reshape(-1);
  for (int64_t i = 0; i < flat.numel(); ++i) {
    const at::Tensor each = flat[i];
    if (tensor.scalar_type() == at::kBool) {
      data.push_back(each.item<bool>());
    } else if (tensor.is_floating_point()) {
      data.push_back(each.item<double>());
    } else {
      data.push_back(each.item<int64_t>());
    }
  }
  return {{"dtype", name_of(tensor.scalar_type())},
          {"shape", tensor.sizes().vec()},
          {"data", std::move(data)}};
}

// Tensors in a list, of which some are lists themselves; null is none.
void add_tensors(const json& value, Tensors& tensors) {
  if (value.is_array()) {
    for (const json& each : value) add_tensors(each, tensors);
  } else {
    tensors.push_back(value.is_null() ? at::Tensor() : tensor_of(value));
  }
}

std::shared_ptr<AbstractTrainStep> step_of(const json& in) {
  Json args = Json(in.value("args", json::object()));
  args["model_type_name"] = string_field(in, "step");
  // A loss needs no end of document.
  if (!args.contains("eos_token_id") && !args.contains("padded_vocab_size")) {
    args["eos_token_id"] = 0;
  }
  return make_train_step(args);
}

json mask_arguments(const DocumentMaskOptions& options) {
  return {{"eod_token", options.eod_token},
          {"pad_token", options.pad_token},
          {"reset_position_ids", options.reset_position_ids},
          {"reset_attention_mask", options.reset_attention_mask},
          {"eod_mask_loss", options.eod_mask_loss},
          {"pad_mask_loss", options.pad_mask_loss}};
}

json run_batch(const json& in) {
  expect_fields(in, {"kind", "step", "args", "data", "note"});
  return part([&]() -> json {
    MegatronBatch batch;
    for (const auto& [name, value] : field(in, "data").items()) batch[name] = tensor_of(value);
    const auto step = step_of(in);
    const Tensors inputs = step->get_batch(batch);
    json out;
    const auto* gpt = dynamic_cast<const GPTTrainStep*>(step.get());
    if (gpt == nullptr) {
      for (const at::Tensor& each : inputs) out["batch"].push_back(tensor_json(each));
      return out;
    }
    // Recorded with a stand-in for the masks, which keeps its arguments.
    out["batch"] = {tensor_json(inputs[0]), tensor_json(inputs[1]), "loss_mask", "attention_mask",
                    "position_ids"};
    out["mask_arguments"] = mask_arguments(gpt->mask_options());
    return out;
  });
}

json run_loss(const json& in) {
  expect_fields(in, {"kind", "step", "args", "inputs", "note"});
  return part([&]() -> json {
    Tensors inputs;
    add_tensors(field(in, "inputs"), inputs);
    const MegatronLoss loss = step_of(in)->loss(inputs);
    json reported = json::object();
    for (const auto& [name, value] : loss.reported) reported[name] = tensor_json(value);
    return {{"loss", loss.loss.item<double>()}, {"reported", std::move(reported)}};
  });
}

json run_mask(const json& in) {
  expect_fields(in, {"kind", "function", "seq_length", "dec_seq_length", "attention_mask", "note"});
  const std::string function = string_field(in, "function");
  if (function == "get_decoder_mask") {
    return {{"mask", tensor_json(T5TrainStep::get_decoder_mask(int_field(in, "seq_length")))}};
  }
  const at::Tensor mask = tensor_of(field(in, "attention_mask"));
  if (function == "attn_mask_postprocess") {
    return {{"mask", tensor_json(T5TrainStep::attn_mask_postprocess(mask))}};
  }
  if (function != "get_enc_dec_mask") throw CaseError("function: unknown " + function);
  return {
      {"mask", tensor_json(T5TrainStep::get_enc_dec_mask(mask, int_field(in, "dec_seq_length")))}};
}

// ---- kinds: micro_batches, data_loader

json run_micro_batches(const json& in) {
  expect_fields(in, {"kind", "batch", "num_micro_batches", "micro_batch_size", "chunks", "note"});
  return part([&]() -> json {
    MegatronBatch batch;
    for (const auto& [name, values] : field(in, "batch").items()) {
      batch[name] = torch::tensor(values.get<std::vector<int64_t>>(), at::kLong);
    }
    json parts = json::array();
    for (const MegatronBatch& each : micro_batches(batch, int_field(in, "num_micro_batches"),
                                                   int_field(in, "micro_batch_size"))) {
      json values = json::object();
      for (const auto& [name, tensor] : each) values[name] = to_list(tensor);
      parts.push_back(std::move(values));
    }
    const int64_t chunks = count_field(in, "chunks");
    json one = parts.empty() ? json() : parts;
    if (chunks == 1) return {{"iterators", std::move(one)}};
    return {{"iterators", json::array_t(static_cast<size_t>(chunks), one)}};
  });
}

json run_data_loader(const json& in) {
  expect_fields(in, {"kind", "loader", "dp_rank", "dp_size", "micro_batch_size",
                     "num_micro_batches", "note"});
  const json& loader = field(in, "loader");
  expect_fields(loader, {"length", "batch_size", "shuffle", "drop_last", "batch_sampler"});
  if (bool_field_or(loader, "shuffle", false)) throw CaseError("shuffle: its order is not said");
  return part([&]() -> json {
    Plugin plugin =
        resolve({.num_micro_batches = int_field(in, "num_micro_batches")}, environment_of({}));
    plugin.set_training_args(int_field(in, "micro_batch_size"), int_field(in, "dp_size"));
    BatchSamplerShard shard(std::make_shared<FixedSizeBatchSampler>(
                                std::make_shared<SequentialSampler>(count_field(loader, "length")),
                                megatron_batch_size(plugin), bool_field(loader, "drop_last")),
                            {.rank = static_cast<int>(int_field(in, "dp_rank")),
                             .world_size = ranks_field(in, "dp_size")});
    const IndexBatches pass = shard.begin_pass();
    json batches = json::array();
    for (int64_t i = 0; i < pass.size(); ++i) batches.push_back(to_list(pass[i]));
    shard.end_pass();
    return {{"batches", std::move(batches)}};
  });
}

json run_case(const json& in) {
  const std::string kind = string_field(in, "kind");
  if (kind == "plugin") return run_plugin(in);
  if (kind == "parsers") return run_parsers(in);
  if (kind == "prepare") return run_prepare(in);
  if (kind == "batch") return run_batch(in);
  if (kind == "loss") return run_loss(in);
  if (kind == "mask") return run_mask(in);
  if (kind == "micro_batches") return run_micro_batches(in);
  if (kind == "data_loader") return run_data_loader(in);
  if (kind == "skipped") throw Missing("what a stand-in of Megatron-LM's optimizer says");
  throw CaseError("kind: unknown " + kind);
}

const FamilyRegistration kRegistration("megatron_plugin", &run_case);

}  // namespace
}  // namespace accelerate::golden

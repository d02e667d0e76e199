#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/config/megatron_arguments.h"
#include "integration_tests/golden/errors.h"
#include "integration_tests/golden/rules.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;
using Texts = std::vector<std::string>;

constexpr char kFamily[] = "megatron_plugin";

bool is_kind(const json& in, const char* kind) { return in.at("kind") == kind; }

bool is_plugin(const json& in) { return is_kind(in, "plugin"); }
bool prepares(const json& in) { return is_kind(in, "prepare"); }
bool is_plugin_or_prepared(const json& in) { return is_plugin(in) || prepares(in); }

// ---- What a plugin is given.

const json& arguments(const json& in) {
  static const json kNothing = json::object();
  const char* const place = is_kind(in, "prepare") ? "plugin" : "kwargs";
  return in.contains(place) ? in[place] : kNothing;
}

json argument(const json& in, const char* name) { return arguments(in).value(name, json()); }

// By argument, or else by variable; null without both.
json given(const json& in, const char* name) {
  if (const json value = argument(in, name); !value.is_null()) return value;
  const std::string variable = absl::StrCat("MEGATRON_LM_", absl::AsciiStrToUpper(name));
  return in.value("env", json::object()).value(variable, json());
}

std::optional<double> number(const json& value) {
  double number = 0;
  if (value.is_number()) return value.get<double>();
  if (value.is_string() && absl::SimpleAtod(value.get<std::string>(), &number)) return number;
  return std::nullopt;
}

// ---- The size of context parallelism.

void make_it_one(const json& in, json& out) {
  if (out.contains("initialize") && given(in, "context_parallel_size").is_null()) {
    out["initialize"]["context_parallel_size"] = 1;
  }
  if (!out.contains("fields")) return;
  if (given(in, "context_parallel_size").is_null()) {
    out["fields"]["context_parallel_size"] = 1;
  }
  const json others = argument(in, "other_megatron_args");
  const bool is_other = others.is_object() && others.contains("context_parallel_size");
  if (given(in, "context_parallel_size").is_null() && !is_other) {
    out["args"]["context_parallel_size"] = 1;
  }
}

// ---- Objects that are prepared.

// The classes of results are those of stand-ins, or have other names.
void compare_arguments_alone(const json& /*in*/, json& out) {
  if (!out.contains("initialize")) return;
  const json started = out["initialize"];
  out = {{"initialize", started.contains("args") ? started["args"] : started}};
}

// ---- Numbers and words that are none.

Texts fields_out_of_range(const json& in) {
  struct Range {
    const char* name;
    double least;
  };
  constexpr Range kRanges[] = {{"tp_degree", 1},
                               {"pp_degree", 1},
                               {"num_micro_batches", 1},
                               {"expert_model_parallel_size", 1},
                               {"expert_tensor_parallel_size", 1},
                               {"context_parallel_size", 1},
                               {"recompute_num_layers", 1},
                               {"decoder_last_pipeline_num_layers", 1},
                               {"num_layers_per_virtual_pipeline_stage", 1},
                               {"pipeline_model_parallel_split_rank", 0},
                               {"train_iters", 1},
                               {"train_samples", 1},
                               {"lr_decay_iters", 1},
                               {"lr_decay_samples", 1},
                               {"lr_warmup_iters", 0},
                               {"lr_warmup_samples", 0},
                               {"seq_length", 1},
                               {"encoder_seq_length", 1},
                               {"decoder_seq_length", 1},
                               {"eval_iters", 0},
                               {"eval_interval", 1},
                               {"gradient_clipping", 0},
                               {"min_lr", 0},
                               {"lr_mult", 0},
                               {"attention_dropout", 0},
                               {"hidden_dropout", 0},
                               {"lr_warmup_fraction", 0}};
  Texts names;
  for (const Range& range : kRanges) {
    const std::optional<double> value = number(given(in, range.name));
    if (value && !(*value >= range.least)) names.emplace_back(range.name);
  }
  for (const char* name : {"attention_dropout", "hidden_dropout", "lr_warmup_fraction"}) {
    const std::optional<double> value = number(given(in, name));
    if (value && *value >= 1) names.emplace_back(name);
  }
  const json samples = argument(in, "consumed_samples");
  if (samples.is_array() && (samples.empty() || samples.size() > 3)) {
    names.emplace_back("consumed_samples");
  }
  const auto check = [&](const char* name, const Texts& choices) {
    const json value = given(in, name);
    if (value.is_string() && std::ranges::count(choices, value.get<std::string>()) == 0) {
      names.emplace_back(name);
    }
  };
  check("recompute_granularity", {"full", "selective"});
  check("recompute_method", {"uniform", "block"});
  check("weight_decay_incr_style", {"constant", "linear", "cosine"});
  check("lr_decay_style", {"constant", "linear", "cosine", "inverse-square-root"});
  return names;
}

bool is_out_of_range(const json& in) {
  return (is_plugin(in) || is_kind(in, "prepare")) && !fields_out_of_range(in).empty();
}

void refuse_the_field(const json& in, json& out) {
  const json warnings = out.value("warnings", json());
  expect_our_error(out, {"ValueError"}, fields_out_of_range(in));
  if (is_plugin(in)) out["warnings"] = warnings;
}

// ---- Arguments that nothing reads, and those without effect.

Texts others_of(const json& in, bool (*counts)(const MegatronArgument* argument)) {
  Texts names;
  const json others = argument(in, "other_megatron_args");
  if (!others.is_object()) return names;
  for (const auto& [name, value] : others.items()) {
    if (counts(find_megatron_argument(name))) names.push_back(name);
  }
  return names;
}

Texts unknown_arguments(const json& in) {
  return others_of(in, [](const MegatronArgument* argument) { return argument == nullptr; });
}

Texts idle_arguments(const json& in) {
  return others_of(in, [](const MegatronArgument* argument) {
    return argument != nullptr && argument->use == MegatronArgumentUse::kWithoutEffect;
  });
}

bool has_unknown_arguments(const json& in) { return !unknown_arguments(in).empty(); }

void refuse_the_arguments(const json& in, json& out) {
  const json warnings = out.value("warnings", json());
  expect_our_error(out, {"ValueError"}, unknown_arguments(in));
  if (is_plugin(in)) out["warnings"] = warnings;
}

bool has_idle_arguments(const json& in) { return is_plugin(in) && !idle_arguments(in).empty(); }

void warn_of_them(const json& in, json& out) {
  if (!out.contains("fields")) return;
  const Texts names = idle_arguments(in);
  out["warnings"] = {{{"category", "UserWarning"},
                      {"message", absl::StrCat("other_megatron_args: ", absl::StrJoin(names, ", "),
                                               names.size() == 1 ? " has" : " have",
                                               " no effect: LibTorch chooses its kernels and "
                                               "messages by itself")}}};
}

// ---- Logging.

bool logs_all(const json& in) {
  return is_plugin(in) && argument(in, "set_all_logging_options") == true &&
         argument(in, "tensorboard_dir").is_string();
}

void log_what_there_is(const json& /*in*/, json& out) {
  if (!out.contains("args")) return;
  json args = json::object();
  for (const auto& [name, value] : out["args"].items()) {
    if (!name.starts_with("log_")) args[name] = value;
  }
  for (const char* flag : megatron_logging_flags()) args[flag] = true;
  out["args"] = std::move(args);
}

// ---- Calls afterwards.

bool has_calls(const json& in) { return is_plugin(in) && in.contains("then"); }

void change_nothing_where_it_fails(const json& /*in*/, json& out) {
  if (!out.contains("then")) return;
  for (json& each : out["then"]) each.erase("changed_before_the_error");
}

void keep_the_length(const json& in, json& out) {
  const json length = argument(in, "seq_length");
  if (length.is_null() || !out.contains("then")) return;
  for (json& each : out["then"]) {
    if (!each.contains("fields") || !each["fields"].contains("seq_length")) continue;
    if (!each["fields"]["seq_length"].is_null()) continue;
    each["fields"].erase("seq_length");
    each["args"]["seq_length"] = length;
  }
}

// ---- Losses and micro-batches.

// What HF Accelerate's step fails to compute: whole labels, and others.
bool has_several_labels(const json& in) {
  if (!is_kind(in, "loss") || in.at("step") != "bert") return false;
  const json args = in.value("args", json::object());
  return args.value("pretraining_flag", true) == false && args.value("num_labels", 2) != 1;
}

void compute_the_loss(const json& in, json& out) {
  const json& labels = in.at("inputs").at(0);
  const json& logits = in.at("inputs").at(1);
  const auto all = logits.at("data").get<std::vector<double>>();
  double loss = 0;
  if (labels.at("dtype") == "float32") {
    const auto wanted = labels.at("data").get<std::vector<double>>();
    for (size_t i = 0; i < all.size(); ++i) {
      loss += (1 - wanted[i]) * all[i] + std::log1p(std::exp(-all[i]));
    }
    loss /= static_cast<double>(all.size());
  } else {
    const auto wanted = labels.at("data").get<std::vector<size_t>>();
    const size_t classes = all.size() / wanted.size();
    for (size_t i = 0; i < wanted.size(); ++i) {
      double sum = 0;
      for (size_t j = 0; j < classes; ++j) sum += std::exp(all[i * classes + j]);
      loss += std::log(sum) - all[i * classes + wanted[i]];
    }
    loss /= static_cast<double>(wanted.size());
  }
  out = {
      {"loss", loss},
      {"reported", {{"loss", {{"dtype", "float32"}, {"shape", json::array()}, {"data", {loss}}}}}}};
}

bool has_empty_parts(const json& in) {
  if (!is_kind(in, "micro_batches") || in.at("num_micro_batches") == 1) return false;
  const int64_t needed =
      (in.at("num_micro_batches").get<int64_t>() - 1) * in.at("micro_batch_size").get<int64_t>();
  for (const json& values : in.at("batch")) {
    if (static_cast<int64_t>(values.size()) <= needed) return true;
  }
  return false;
}

void refuse_empty_parts(const json& /*in*/, json& out) {
  expect_our_error(out, {"ValueError"}, {"micro_batches: "});
}

}  // namespace

std::vector<Decision> megatron_plugin_rules() {
  return {
      {kFamily, "prepared objects",
       "HF Accelerate starts Megatron-LM and wraps its objects; here the same arguments are an "
       "engine's, whose results are of other classes",
       &prepares, &compare_arguments_alone},
      {kFamily, "context parallelism by default",
       "HF Accelerate's context_parallel_size is 2 where nobody says otherwise, without ranks for "
       "it; here it is 1",
       &is_plugin_or_prepared, &make_it_one},
      {kFamily, "numbers and words out of range",
       "HF Accelerate passes on degrees of 0 and words that Megatron-LM does not have; here they "
       "are errors",
       &is_out_of_range, &refuse_the_field},
      {kFamily, "arguments without effect",
       "HF Accelerate passes them on; here they are taken, with a warning", &has_idle_arguments,
       &warn_of_them},
      {kFamily, "arguments that nothing reads",
       "HF Accelerate passes on any other_megatron_args; here an unknown one is an error",
       &has_unknown_arguments, &refuse_the_arguments},
      {kFamily, "logging of everything",
       "HF Accelerate makes each of Megatron-LM's flags that begin with log_ true, numbers as "
       "well; here those that are truth values are, and they are the library's",
       &logs_all, &log_what_there_is},
      {kFamily, "calls that fail",
       "HF Accelerate keeps what a call changed before it failed; here it changes nothing",
       &has_calls, &change_nothing_where_it_fails},
      {kFamily, "lengths that are given",
       "HF Accelerate loses a seq_length that is given without a length of the encoder or decoder; "
       "here it stays",
       &has_calls, &keep_the_length},
      {kFamily, "losses of several labels",
       "HF Accelerate's BertTrainStep fails on several labels; here they have the loss that its "
       "source means",
       &has_several_labels, &compute_the_loss},
      {kFamily, "micro-batches without rows",
       "HF Accelerate gives parts without rows where a batch is too short; here it is an error",
       &has_empty_parts, &refuse_empty_parts},
  };
}

}  // namespace accelerate::golden

#include "accelerate/parallel/tensor/plan_layout.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "accelerate/base/message_text.h"
#include "accelerate/base/tp_plan.h"
#include "accelerate/config/kwargs_handlers.h"
#include "accelerate/config/model_structure.h"
#include "accelerate/mesh/mesh.h"
#include "accelerate/operators/managed_storage.h"
#include "accelerate/parallel/layout/model_layout.h"
#include "accelerate/parallel/tensor/tensor_mark.h"
#include "accelerate/plan/plan.h"
#include "accelerate/values/module_class.h"

namespace accelerate {
namespace {

using enum TensorStyle;

// The module of a parameter, and the parameter's name in it.
std::pair<std::string, std::string> split_name(const std::string& name) {
  const size_t dot = name.rfind('.');
  if (dot == std::string::npos) return {"", name};
  return {name.substr(0, dot), name.substr(dot + 1)};
}

using Modules = std::unordered_map<std::string, std::string>;

// The classes of all modules, by name.
Modules classes_of(const torch::nn::Module& module) {
  Modules classes = {{"", module_class_name(module)}};
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    classes.emplace(item.key(), module_class_name(*item.value()));
  }
  return classes;
}

// Why a plan does not divide modules of a class; empty: it does.
std::string why_whole(std::string_view name) {
  constexpr std::array<std::string_view, 6> kGated = {"LSTM",     "GRU",     "RNN",
                                                      "LSTMCell", "GRUCell", "RNNCell"};
  if (std::ranges::count(kGated, name) > 0) {
    return "whose gates are computed by one operator from whole weights; leave it whole";
  }
  if (name == "MultiheadAttention") {
    return "which computes with whole weights; make queries, keys, values and the projection "
           "Linear "
           "layers, or leave it whole";
  }
  if (name.starts_with("Conv") || name == "Bilinear") {
    return "but Linear layers and embeddings are what a plan divides; leave it whole";
  }
  return "";
}

void check_class(const PlannedParameter& parameter, const std::string& name) {
  if (parameter.rule.style == kReplicate) return;
  const std::string why = why_whole(name);
  TORCH_CHECK_VALUE(why.empty(), "tensor parallelism: \"", parameter.name, "\", which \"",
                    parameter.rule.pattern, "\" names, belongs to a ", name, ", ", why);
}

// That each option has a meaning beside the rule's style.
void check_options(const TensorRule& rule) {
  const auto check = [&rule](bool is_fine, const char* option, const char* whose) {
    TORCH_CHECK_VALUE(is_fine, "tensor parallelism: the rule \"", rule.pattern, "\" has ", option,
                      ", which is for ", whose, ", but its style is ", to_string(rule.style),
                      "; leave it out, or give the rule another style");
  };
  const bool divides = rule.style != kReplicate;
  check(!rule.gather_output || rule.style == kColumn, "gather_output", "column layers");
  check(!rule.split_input || rule.style == kRow, "split_input", "row layers");
  check(!rule.partial_gradient || !divides, "partial_gradient", "parameters that all ranks have");
  check(rule.blocks.empty() || divides, "blocks", "layers that ranks divide");
  check(rule.groups == 0 || divides, "groups", "layers that ranks divide");
}

// The first rule for a parameter of this name, in a module of this class; all that match have one
// more in `matched`.
TensorRule rule_for(const TensorParallelPlan& plan, const std::string& name,
                    const std::string& module, const std::string& module_class,
                    std::vector<bool>& matched) {
  const TensorRule* found = nullptr;
  for (size_t i = 0; i < plan.rules.size(); ++i) {
    const TensorRule& rule = plan.rules[i];
    if (!pattern_matches(rule.pattern, name) && !pattern_matches(rule.pattern, module)) continue;
    matched[i] = true;
    if (found == nullptr) found = &rule;
  }
  if (found == nullptr) return {};
  TensorRule rule = *found;
  // The rows of a table of words are what both words name.
  if (rule.style == kRow && module_class == "Embedding") rule.style = kEmbedding;
  rule.gather_output = !plan.parallel_loss && (rule.gather_output || rule.style == kEmbedding);
  // Row layers leave sequences in shards, to which they add their biases.
  rule.sequence = plan.sequence_parallel && (rule.sequence || rule.style == kRow);
  rule.partial_gradient |= rule.sequence;
  return rule;
}

void check_all_matched(const TensorParallelPlan& plan, const std::vector<bool>& matched,
                       const Modules& modules) {
  const auto unmatched = std::ranges::find(matched, false);
  if (unmatched == matched.end()) return;
  const std::string& pattern = plan.rules[static_cast<size_t>(unmatched - matched.begin())].pattern;
  std::vector<std::string> names;
  for (const auto& [name, type] : modules) {
    if (!name.empty()) names.push_back(name);
  }
  std::ranges::sort(names);
  TORCH_CHECK_VALUE(false, "tensor parallelism: \"", pattern, "\" names no parameter of the ",
                    modules.at(""), did_you_mean(pattern, names));
}

// One rule for both names of a tensor.
TensorRule joined(const PlannedParameter& first, const PlannedParameter& second) {
  if (second.rule.pattern.empty()) return first.rule;
  if (first.rule.pattern.empty()) return second.rule;
  TORCH_CHECK_VALUE(first.cut_dim() == second.cut_dim() && first.rule.blocks == second.rule.blocks,
                    "tensor parallelism: \"", first.name, "\" and \"", second.name,
                    "\" are one tensor, but one is to be ", to_string(first.rule.style),
                    " and the other ", to_string(second.rule.style),
                    "; a tied head is a column layer of an embedding");
  TensorRule rule = first.rule.style == kEmbedding ? first.rule : second.rule;
  rule.gather_output =
      first.rule.style == kColumn ? first.rule.gather_output : second.rule.gather_output;
  return rule;
}

// Tensors that have several names get one rule.
void join_ties(std::vector<PlannedParameter>& planned) {
  std::unordered_map<const c10::TensorImpl*, PlannedParameter*> first;
  for (PlannedParameter& each : planned) {
    const auto [found, is_new] = first.try_emplace(each.tensor.unsafeGetTensorImpl(), &each);
    if (!is_new) found->second->rule = joined(*found->second, each);
  }
  for (PlannedParameter& each : planned) {
    each.rule = first.at(each.tensor.unsafeGetTensorImpl())->rule;
  }
}

// Whether the name of a weight says that it is several ones.
bool looks_fused(const std::string& name) {
  constexpr std::array<const char*, 7> kFused = {"qkv",     "query_key_value", "gate_up", "c_attn",
                                                 "kv_proj", "in_proj",         "gateup"};
  const auto [module, own] = split_name(name);
  const std::string last = split_name(own == "weight" || own == "bias" ? module : name).second;
  return std::ranges::any_of(kFused,
                             [&last](const char* part) { return absl::StrContains(last, part); });
}

// The lengths along the dim that the rule's blocks stand for.
std::vector<int64_t> block_lengths(const PlannedParameter& parameter, int64_t length) {
  const std::vector<int64_t>& blocks = parameter.rule.blocks;
  if (blocks.empty()) return {length};
  const int64_t total = std::accumulate(blocks.begin(), blocks.end(), int64_t{0});
  TORCH_CHECK_VALUE(std::ranges::min(blocks) > 0 && length % total == 0, "tensor parallelism: \"",
                    parameter.name, "\" is ", length, " long, which blocks of ",
                    absl::StrJoin(blocks, ", "), " do not fill; they are lengths, or proportions");
  std::vector<int64_t> lengths;
  for (const int64_t block : blocks) lengths.push_back(block * (length / total));
  return lengths;
}

// What ranks must divide evenly of one block.
int64_t parts_of_block(const PlannedParameter& parameter, int64_t length) {
  const int64_t groups = parameter.rule.groups;
  TORCH_CHECK_VALUE(groups >= 0 && (groups == 0 || length % groups == 0), "tensor parallelism: \"",
                    parameter.name, "\" has ", length, " features, which are not ", groups,
                    " groups of one size");
  return groups == 0 ? length : groups;
}

// A model that shares a parameter with one that ranks have divided has a part of it.
void check_is_whole(const PlannedParameter& parameter, int ranks) {
  const TensorMark* const mark = find_mark(parameter.tensor);
  if (mark == nullptr || !mark->is_cut_parameter()) return;
  const int dim = *mark->parameter->cut_dim;
  TORCH_CHECK_VALUE(
      false, "tensor parallelism: \"", parameter.name, "\" is a part already, ",
      parameter.tensor.size(dim), " of ", mark->parameter->whole[static_cast<size_t>(dim)],
      dim == 0 ? " rows" : " columns", ", because another model that has it was divided among the ",
      ranks, " ranks along tp; prepare a model once, and all that share parameters as one");
}

// How many neighbours compute the same features, where there are fewer groups of them than ranks:
// keys and values, which each of them uses with queries of its own.
int copies_of(const PlannedParameter& parameter, int64_t groups, int ranks) {
  const TensorRule& rule = parameter.rule;
  const bool is_of_groups = rule.style == kColumn && rule.groups > 0 && rule.blocks.empty() &&
                            !rule.gather_output && !looks_fused(parameter.name);
  return is_of_groups && groups < ranks && ranks % groups == 0 ? ranks / static_cast<int>(groups)
                                                               : 1;
}

// The program's own plan for the model; null: the model may bring one.
const TensorParallelPlan* given_plan(const torch::nn::Module& module,
                                     const KwargsHandlers& handlers) {
  const TensorParallelPlans& by_class = handlers.tensor_parallel_by_class;
  if (!by_class.empty()) {
    const auto found = by_class.find(module_class_name(module));
    if (found != by_class.end()) return &found->second;
  }
  return handlers.tensor_parallel ? &*handlers.tensor_parallel : nullptr;
}

}  // namespace

std::optional<TensorParallelPlan> find_plan(const torch::nn::Module& module,
                                            const KwargsHandlers& handlers) {
  if (const TensorParallelPlan* const given = given_plan(module, handlers)) return *given;
  const auto* structure = dynamic_cast<const ModelStructure*>(&module);
  return structure != nullptr ? structure->tensor_parallel_plan() : std::nullopt;
}

std::optional<int> PlannedParameter::cut_dim() const {
  switch (rule.style) {
    case kColumn:
    case kEmbedding: return 0;
    case kRow: return tensor.dim() > 1 ? std::optional(1) : std::nullopt;
    case kReplicate: break;
  }
  return std::nullopt;
}

std::vector<PlannedParameter> planned_parameters(const torch::nn::Module& module,
                                                 const TensorParallelPlan& plan) {
  std::ranges::for_each(plan.rules, &check_options);
  const Modules classes = classes_of(module);
  std::vector<bool> matched(plan.rules.size());
  std::vector<PlannedParameter> planned;
  for (const auto& item : module.named_parameters()) {
    if (!item.value().defined()) continue;
    const auto [owner, own] = split_name(item.key());
    const std::string& owner_class = classes.at(owner);
    planned.push_back({.name = item.key(),
                       .tensor = item.value(),
                       .rule = rule_for(plan, item.key(), owner, owner_class, matched)});
    check_class(planned.back(), owner_class);
  }
  check_all_matched(plan, matched, classes);
  join_ties(planned);
  return planned;
}

std::optional<Cut> cut_of(const PlannedParameter& parameter, int ranks) {
  const std::optional<int> dim = parameter.cut_dim();
  if (!dim) return std::nullopt;
  const at::Tensor& tensor = parameter.tensor;
  const auto check = [&parameter](bool is_fine, const auto&... why) {
    TORCH_CHECK_VALUE(is_fine, "tensor parallelism: \"", parameter.name, "\" ", why...);
  };
  check(tensor.dim() == 1 || tensor.dim() == 2, "has ", tensor.dim(),
        " dims, but weights of Linear layers and embeddings are what a plan cuts; leave it whole");
  check(storage_owner(tensor) == nullptr && at::isFloatingType(tensor.scalar_type()),
        "has values that something else keeps, as where weights are quantised or offloaded; "
        "divide the model as it was before, or leave the parameter whole");
  const TensorRule& rule = parameter.rule;
  check(!rule.blocks.empty() || rule.groups > 0 || rule.style == kEmbedding ||
            !looks_fused(parameter.name),
        "looks like several weights in one, of which ranks would get parts of different ones; give "
        "its rule blocks, as {1, 1, 1} for queries, keys and values, or groups where its rows are "
        "those of one head after the other");
  check(rule.blocks.size() < 2 || rule.style != kEmbedding,
        "is a table of words, which ranks cut in one; leave the blocks out of its rule");
  check(rule.blocks.size() < 2 || (!rule.gather_output && !rule.split_input),
        "is cut in blocks, but ranks put outputs together, and split inputs, in one; leave "
        "gather_output and split_input out of its rule, or the blocks");
  Cut cut{.axis = MeshAxis::kTp, .dim = *dim};
  for (const int64_t length : block_lengths(parameter, tensor.size(*dim))) {
    const int64_t parts = parts_of_block(parameter, length);
    cut.copies = copies_of(parameter, parts, ranks);
    if (parts * cut.copies % ranks != 0) {
      int fitting = ranks - 1;
      while (parts % fitting != 0) --fitting;
      const int64_t longer = (parts / ranks + 1) * ranks;
      const bool is_fused =
          rule.style == kColumn && rule.groups > 0 && !rule.gather_output && ranks % parts == 0;
      check(false, "has ", parts, rule.groups > 0 ? " groups of features" : " features",
            " along dim ", *dim, rule.blocks.empty() ? "" : " in a block", ", which the ", ranks,
            " ranks along tp do not divide evenly; a tp_size of ", fitting, " does, and so would ",
            longer, rule.groups > 0 ? " groups" : " features",
            is_fused ? ", or keys and values in layers of their own" : "");
    }
    if (!rule.blocks.empty()) cut.blocks.push_back(length);
  }
  return cut;
}

std::shared_ptr<const ModelLayout> tensor_parallel_layout(const LayoutContext& context) {
  const int ranks = context.mesh.size(MeshAxis::kTp);
  const torch::nn::Module& module = *context.model.module();
  if (ranks == 1) {
    const TensorParallelPlan* const given = given_plan(module, context.handlers);
    if (given != nullptr && given->sequence_parallel) {
      TORCH_WARN(
          "tensor parallelism: the plan has sequence shards, but tp_size is 1, so that "
          "sequences stay whole; set tp_size to 2 or more, or sequence_parallel to false");
    }
    return nullptr;
  }
  const std::optional<TensorParallelPlan> plan = find_plan(module, context.handlers);
  TORCH_CHECK_VALUE(plan, "tensor parallelism: tp_size=", ranks,
                    ", but nothing says how ranks divide ", "a ", module_class_name(module),
                    "; give kwargs_handlers a TensorParallelPlan, let the model bring one "
                    "(ModelStructure::tensor_parallel_plan), or set tp_size to 1");
  const ModelLayout before =
      context.layout != nullptr ? *context.layout : whole_layout(module, context.mesh);
  std::vector<TensorPlacement> placements = before.placements();
  bool divides = false;
  for (const PlannedParameter& each : planned_parameters(module, *plan)) {
    const auto placement = std::ranges::find(placements, each.name, &TensorPlacement::name);
    if (placement == placements.end()) continue;
    check_is_whole(each, ranks);
    if (auto cut = cut_of(each, ranks)) {
      placement->cuts.push_back(*std::move(cut));
      divides = true;
    } else if (each.rule.partial_gradient) {
      placement->sums |= AxisSet{MeshAxis::kTp};
    }
  }
  TORCH_CHECK_VALUE(divides || !plan->sequence_parallel,
                    "tensor parallelism: the plan has sequence shards, but cuts no layer, between "
                    "which they would be; give it a column or row layer, or set sequence_parallel "
                    "to false");
  if (!divides) return nullptr;
  return std::make_shared<const ModelLayout>(context.mesh, std::move(placements),
                                             before.divides() - before.cuts());
}

}  // namespace accelerate

#include "launch/estimate/parts.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "accelerate/base/dtype_names.h"
#include "accelerate/base/message_text.h"
#include "accelerate/base/status.h"
#include "accelerate/base/tp_plan.h"
#include "accelerate/base/words.h"
#include "accelerate/pipeline/partition.h"

namespace accelerate::launcher::estimate {
namespace {

// The word for a module by the usual end of its name; empty for others.
absl::string_view usual_word(absl::string_view module) {
  static const auto& words = *new WordMap<absl::string_view>(word_map<absl::string_view>({
      {"rowwise",
       "attention.output.dense attention.dense output.dense dense_4h_to_h attention.project "
       "mlp.down mlp.shared.down o_proj out_proj down_proj fc2"},
      {"colwise",
       "intermediate.dense dense_h_to_4h attention.qkv mlp.gate mlp.up mlp.shared.gate "
       "mlp.shared.up q_proj k_proj v_proj qkv_proj query_key_value query key value gate_proj "
       "up_proj fc1"},
      {"packed_colwise", "gate_up_proj"},
      {"embedding_rowwise", "embed_tokens word_embeddings tokens wte"},
      {"colwise_rep", "lm_head head"},
  }));
  while (true) {
    if (const auto found = words.find(module); found != words.end()) return found->second;
    const size_t dot = module.find('.');
    if (dot == module.npos) return "";
    module.remove_prefix(dot + 1);
  }
}

std::string module_of(const std::string& tensor) {
  const size_t dot = tensor.rfind('.');
  return dot == tensor.npos ? "" : tensor.substr(0, dot);
}

// All names of a tensor that has several.
std::vector<std::string> names_of(const Architecture& architecture, const std::string& tensor) {
  for (const std::vector<std::string>& group : architecture.tied) {
    if (std::ranges::count(group, tensor) > 0) return group;
  }
  return {tensor};
}

// The words for the tensors in their order; empty: none.
using Words = std::vector<std::string>;

absl::StatusOr<Words> planned_words(const Architecture& architecture) {
  const TpPlan& plan = architecture.tp_plan;
  std::vector<bool> matched(plan.size());
  std::set<std::string> modules;
  Words words;
  for (const ArchitectureTensor& tensor : architecture.tensors) {
    std::string& word = words.emplace_back();
    for (const std::string& name : names_of(architecture, tensor.name)) {
      const std::string module = module_of(name);
      modules.insert(module);
      for (size_t i = 0; i < plan.size(); ++i) {
        if (!pattern_matches(plan[i].pattern, name) && !pattern_matches(plan[i].pattern, module))
          continue;
        matched[i] = true;
        if (word.empty()) word = plan[i].word;
      }
    }
  }
  const auto unmatched = std::ranges::find(matched, false);
  if (unmatched == matched.end()) return words;
  const std::string& pattern = plan[static_cast<size_t>(unmatched - matched.begin())].pattern;
  return invalid("tp_plan: \"", pattern, "\" names no tensor",
                 did_you_mean(pattern, std::vector<std::string>(modules.begin(), modules.end())));
}

bool is_row(absl::string_view word) {
  return absl::StartsWith(word, "rowwise") || word == "packed_rowwise";
}

bool is_column(absl::string_view word) {
  return absl::StartsWith(word, "colwise") || word == "packed_colwise";
}

// By the usual names; empty for a model that is not a transformer by them.
Words usual_words(const Architecture& architecture) {
  Words words;
  for (const ArchitectureTensor& tensor : architecture.tensors) {
    words.emplace_back(usual_word(module_of(tensor.name)));
  }
  const bool has_both = std::ranges::any_of(words, is_row) && std::ranges::any_of(words, is_column);
  return has_both ? words : Words();
}

// The dim of a tensor with so many that a word divides; -1: none.
int divided_dim(absl::string_view word, size_t dims) {
  const int dim = is_row(word) ? 1 : is_column(word) || word == "embedding_rowwise" ? 0 : -1;
  // Biases of row layers are whole.
  return dim < static_cast<int>(dims) ? dim : -1;
}

// The dim of a tensor of all experts behind each other, as a MixtureOfExperts has them, that is
// their inside, which ranks along tp divide whatever a plan says; -1: another tensor.
int inside_dim(const ArchitectureTensor& tensor) {
  if (tensor.shape.size() != 3) return -1;
  const std::string name = absl::StrCat(".", tensor.name);
  if (absl::EndsWith(name, ".experts.gate") || absl::EndsWith(name, ".experts.up")) return 1;
  return absl::EndsWith(name, ".experts.down") ? 2 : -1;
}

// The last part of the name of a tensor's module: "k_proj".
std::string layer_of(const std::string& tensor) {
  const std::string module = module_of(tensor);
  return module.substr(module.rfind('.') + 1);  // npos + 1 is 0
}

// How many heads of keys and values there are, if they are fewer than the ranks, so that several
// ranks have each; else 0.
int64_t shared_heads(const Architecture& architecture, int64_t ranks) {
  const int64_t heads = architecture.transformer.num_key_value_heads;
  return heads > 0 && heads < ranks && ranks % heads == 0 ? heads : 0;
}

// In how many different parts the ranks have a tensor.
int64_t parts_of(const Architecture& architecture, const ArchitectureTensor& tensor,
                 absl::string_view word, int64_t ranks) {
  constexpr absl::string_view kKeys[] = {"k_proj", "v_proj", "key", "value", "keys", "values"};
  const int64_t heads = shared_heads(architecture, ranks);
  if (heads == 0 || word != "colwise") return ranks;
  const std::string layer = layer_of(tensor.name);
  return std::ranges::count(kKeys, absl::string_view(layer)) > 0 ? heads : ranks;
}

// Keys and values in one weight with queries are divided as these are.
absl::Status check_fused(const Architecture& architecture, const Words& words, int64_t ranks) {
  constexpr const char* kFused[] = {"qkv", "query_key_value", "c_attn", "kv_proj"};
  const int64_t heads = shared_heads(architecture, ranks);
  if (heads == 0) return absl::OkStatus();
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& name = architecture.tensors[i].name;
    const bool is_fused =
        is_column(words[i]) && std::ranges::any_of(kFused, [&name](const char* part) {
          return absl::StrContains(layer_of(name), part);
        });
    if (!is_fused) continue;
    return invalid("\"", name, "\" is several weights in one, with ", heads,
                   " heads of keys and values, which ", ranks,
                   " ranks do not divide evenly; --tp_size ", heads,
                   " does, and ranks may share heads of keys and values in layers of their own");
  }
  return absl::OkStatus();
}

// Errors: InvalidArgument where the ranks do not divide the dim evenly; the tensor stays whole.
absl::Status divide(ArchitectureTensor& tensor, absl::string_view word, int64_t ranks) {
  const int inside = inside_dim(tensor);
  const int dim = inside >= 0 ? inside : divided_dim(word, tensor.shape.size());
  if (dim < 0) return absl::OkStatus();
  int64_t& length = tensor.shape[static_cast<size_t>(dim)];
  const int64_t blocks = absl::StartsWith(word, "packed") ? 2 : 1;
  const auto fits = [&](int64_t parts) { return length % (blocks * parts) == 0; };
  if (!fits(ranks)) {
    int64_t fitting = ranks - 1;
    while (fitting > 1 && !fits(fitting)) --fitting;
    return invalid("\"", tensor.name, "\" has ", length, " features along dim ", dim, ", which ",
                   ranks, " ranks do not divide evenly; --tp_size ", fitting, " does");
  }
  length /= ranks;
  tensor.elements /= static_cast<double>(ranks);
  return absl::OkStatus();
}

// In the names of modules before the blocks.
constexpr absl::string_view kBefore[] = {"embed", "tokens", "positions", "wte", "wpe"};

// "model.layers" and 3, of "model.layers.3.mlp.up.weight".
struct Place {
  std::string list;
  int64_t number = 0;
};

// The outermost one; nothing for a tensor outside of numbered modules.
std::optional<Place> place_of(const std::string& name) {
  size_t begin = 0;
  for (size_t dot = name.find('.'); dot != name.npos; dot = name.find('.', begin)) {
    int64_t number = 0;
    if (absl::SimpleAtoi(absl::string_view(name).substr(begin, dot - begin), &number)) {
      return Place{begin > 0 ? name.substr(0, begin - 1) : "", number};
    }
    begin = dot + 1;
  }
  return std::nullopt;
}

// Before the blocks and behind them is a part each.
absl::StatusOr<pipeline::StageCuts> cuts_of(int64_t blocks, int64_t ranks) {
  if (ranks > blocks + 2) {
    return invalid(blocks, " blocks are ", blocks + 2,
                   " parts with what is before and behind them, so that --pp_size is ", blocks + 2,
                   " at most");
  }
  return pipeline::cut_by_count(static_cast<size_t>(blocks + 2), static_cast<int>(ranks));
}

size_t stage_of(const pipeline::StageCuts& cuts, size_t part) {
  return static_cast<size_t>(std::ranges::upper_bound(cuts, part) - cuts.begin()) - 1;
}

constexpr absl::string_view kExperts = "experts.";

// Where the name goes on behind the module of experts; npos: the tensor is not an expert's.
size_t behind_experts(absl::string_view name) {
  for (size_t at = name.find(kExperts); at != name.npos; at = name.find(kExperts, at + 1)) {
    if (at == 0 || name[at - 1] == '.') return at + kExperts.size();
  }
  return name.npos;
}

// A part of a name; numbers come before words.
std::pair<int64_t, std::string> key_of(const std::string& part) {
  int64_t number = 0;
  if (absl::SimpleAtoi(part, &number)) return {number, ""};
  return {INT64_MAX, part};
}

// A device map's name for a dtype that safetensors calls so.
std::string dtype_of(const std::string& name) {
  const DtypeName* known = find_dtype(&DtypeName::safetensors, name);
  return known == nullptr || name == "BOOL" ? "uint8" : std::string(known->torch);
}

}  // namespace

absl::StatusOr<TpPart> tp_part(const Architecture& architecture, int64_t ranks) {
  TpPart part = {.architecture = architecture};
  std::vector<ArchitectureTensor>& tensors = part.architecture.tensors;
  const bool has_plan = !architecture.tp_plan.empty();
  ACCELERATE_ASSIGN_OR_RETURN(
      const Words words,
      has_plan ? planned_words(architecture) : absl::StatusOr<Words>(usual_words(architecture)));
  if (words.empty()) {
    for (ArchitectureTensor& tensor : tensors) tensor.elements /= static_cast<double>(ranks);
    part.why = "every tensor divided, as no tp_plan says which are";
    return part;
  }
  ACCELERATE_RETURN_IF_ERROR(check_fused(architecture, words, ranks));
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t parts = parts_of(architecture, tensors[i], words[i], ranks);
    const absl::Status ok = divide(tensors[i], words[i], parts);
    if (has_plan && !ok.ok()) return ok;
  }
  part.why = has_plan ? "by its tp_plan" : "by the usual names of layers";
  return part;
}

absl::StatusOr<std::vector<int64_t>> blocks_of_stages(int64_t blocks, int64_t ranks) {
  ACCELERATE_ASSIGN_OR_RETURN(const pipeline::StageCuts cuts, cuts_of(blocks, ranks));
  std::vector<int64_t> counts(cuts.size());
  for (int64_t block = 0; block < blocks; ++block) {
    ++counts[stage_of(cuts, static_cast<size_t>(block + 1))];
  }
  return counts;
}

absl::StatusOr<std::vector<Architecture>> pp_parts(const Architecture& architecture,
                                                   int64_t ranks) {
  std::map<std::string, double> elements;  // by list
  for (const ArchitectureTensor& tensor : architecture.tensors) {
    if (const auto place = place_of(tensor.name)) elements[place->list] += tensor.elements;
  }
  if (elements.empty()) {
    return absl::InvalidArgumentError(
        "it has no blocks for --pp_size: no tensor is behind a module with a number, as "
        "\"layers.0\"");
  }
  const std::string list =
      std::ranges::max_element(elements, {}, [](const auto& each) { return each.second; })->first;
  std::set<int64_t> numbers;
  for (const ArchitectureTensor& tensor : architecture.tensors) {
    const auto place = place_of(tensor.name);
    if (place && place->list == list) numbers.insert(place->number);
  }
  ACCELERATE_ASSIGN_OR_RETURN(const pipeline::StageCuts cuts,
                              cuts_of(static_cast<int64_t>(numbers.size()), ranks));
  const auto part_of = [&](const std::string& name) -> size_t {
    const auto place = place_of(name);
    if (place && place->list == list) {
      return 1 + static_cast<size_t>(std::distance(numbers.begin(), numbers.find(place->number)));
    }
    const bool is_before = std::ranges::any_of(
        kBefore, [&name](absl::string_view word) { return absl::StrContains(name, word); });
    return is_before ? 0 : numbers.size() + 1;
  };
  Architecture empty = architecture;
  empty.tensors.clear();
  std::vector<Architecture> stages(cuts.size(), empty);
  for (const ArchitectureTensor& tensor : architecture.tensors) {
    std::set<size_t> in = {stage_of(cuts, part_of(tensor.name))};
    for (const std::vector<std::string>& names : architecture.tied) {
      if (std::ranges::count(names, tensor.name) == 0) continue;
      for (const std::string& name : names) in.insert(stage_of(cuts, part_of(name)));
    }
    for (const size_t stage : in) stages[stage].tensors.push_back(tensor);
  }
  return stages;
}

absl::StatusOr<EpPart> ep_part(const Architecture& architecture, int64_t ranks) {
  EpPart part = {.rest = architecture};
  part.rest.tensors.clear();
  Architecture experts;
  std::map<std::string, std::set<int64_t>> numbers;  // by module, where each has its tensors
  std::map<std::string, int64_t> counts;             // by module
  for (const ArchitectureTensor& tensor : architecture.tensors) {
    const size_t behind = behind_experts(tensor.name);
    if (behind == std::string::npos) {
      part.rest.tensors.push_back(tensor);
      continue;
    }
    experts.tensors.push_back(tensor);
    const std::string module = tensor.name.substr(0, behind - 1);
    const std::string next = tensor.name.substr(behind, tensor.name.find('.', behind) - behind);
    if (int64_t number = 0; absl::SimpleAtoi(next, &number)) {
      numbers[module].insert(number);
      counts[module] = static_cast<int64_t>(numbers[module].size());
    } else if (!tensor.shape.empty()) {
      counts[module] = tensor.shape[0];
    }
  }
  if (counts.empty()) {
    return absl::InvalidArgumentError(
        "it has no experts for --ep_size: no tensor is behind a module \"experts\"");
  }
  for (const auto& [module, count] : counts) {
    if (count % ranks == 0) continue;
    int64_t fitting = std::min(ranks, count);
    while (count % fitting != 0) --fitting;
    return invalid("\"", module, "\" has ", count, " experts, which ", ranks,
                   " ranks do not divide evenly; --ep_size ", fitting, " does");
  }
  part.experts = model_size(experts).total / static_cast<double>(ranks);
  return part;
}

ModuleTree module_tree(const Architecture& architecture) {
  struct Named {
    std::vector<std::string> parts;
    std::vector<std::pair<int64_t, std::string>> key;
    const ArchitectureTensor* tensor;
  };
  std::vector<Named> tensors;
  std::map<std::string, const ArchitectureTensor*> by_name;
  const auto add = [&](const std::string& name, const ArchitectureTensor& tensor) {
    Named& named = tensors.emplace_back(Named{absl::StrSplit(name, '.'), {}, &tensor});
    for (const std::string& part : named.parts) named.key.push_back(key_of(part));
  };
  for (const ArchitectureTensor& each : architecture.tensors) {
    add(each.name, each);
    by_name.emplace(each.name, &each);
  }
  for (const std::vector<std::string>& group : architecture.tied) {
    for (size_t i = 1; i < group.size(); ++i) add(group[i], *by_name.at(group[0]));
  }
  std::ranges::stable_sort(tensors, {}, &Named::key);

  const std::set<std::string> no_split(architecture.no_split.begin(), architecture.no_split.end());
  ModuleTree tree;
  std::map<std::string, ModuleTree::Module> modules = {{"", 0}};
  for (const Named& named : tensors) {
    std::string path;
    ModuleTree::Module module = 0;
    for (size_t i = 0; i + 1 < named.parts.size(); ++i) {
      path = path.empty() ? named.parts[i] : absl::StrCat(path, ".", named.parts[i]);
      const auto [found, is_new] = modules.try_emplace(path, 0);
      if (is_new) {
        found->second = tree.add_module(module, named.parts[i],
                                        no_split.contains(path) ? kNoSplitClass : "Module");
      }
      module = found->second;
    }
    tree.add_tensor(module, {.name = named.parts.back(),
                             .dtype = dtype_of(named.tensor->dtype),
                             .elements = named.tensor->elements});
  }
  for (const std::vector<std::string>& group : architecture.tied) {
    const ModuleTree::Tensor first = tree.find_tensor(group[0]);
    for (size_t i = 1; i < group.size(); ++i) tree.tie(first, tree.find_tensor(group[i]));
  }
  return tree;
}

}  // namespace accelerate::launcher::estimate

#include "accelerate/config/zero_config.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "accelerate/base/json_text.h"
#include "accelerate/base/message_text.h"
#include "accelerate/base/number_text.h"
#include "accelerate/config/hf_deepspeed_config.h"
#include "accelerate/config/zero_keys.h"

namespace accelerate {
namespace {

using Json = nlohmann::ordered_json;
using internal::ZeroKey;

absl::string_view last_part(absl::string_view key) { return key.substr(key.rfind('.') + 1); }
absl::string_view block_part(absl::string_view key) { return key.substr(0, key.rfind('.') + 1); }

const ZeroKey* find_key(const std::string& key) {
  const auto& keys = internal::zero_keys();
  const auto found = std::ranges::find(
      keys, key, [](const ZeroKey& row) -> const std::string& { return row.info.key; });
  return found == keys.end() ? nullptr : &*found;
}

// Where a dotted key stands.
Json::json_pointer pointer_to(absl::string_view key) {
  return Json::json_pointer(absl::StrCat("/", absl::StrReplaceAll(key, {{".", "/"}})));
}

// Null for an entry that is missing or null.
const Json* entry_of(const Json& config, const Json::json_pointer& key) {
  return config.contains(key) && !config.at(key).is_null() ? &config.at(key) : nullptr;
}

// Gives the key what stands under its other name, which stays. Returns what is wrong.
std::string take_name(Json& config, const internal::ZeroName& other) {
  const Json* given = entry_of(config, pointer_to(other.name));
  if (given == nullptr || (other.value != nullptr && !given->is_boolean())) return "";
  const Json named = *given;
  const Json value = other.value != nullptr ? other.value(named) : named;
  const Json::json_pointer key = pointer_to(other.key);
  if (const Json* own = entry_of(config, key)) {
    if (python_equal(*own, value)) return "";
    return absl::StrCat(other.name, " and ", other.key,
                        " are two names of one setting, but they are ", json_text(named), " and ",
                        json_text(*own), "; leave one of them out");
  }
  // A block that is missing comes into being; those above it have the other name as well.
  const Json* block = entry_of(config, key.parent_pointer());
  if (block == nullptr || block->is_object()) config[key] = value;
  return "";
}

// All keys, and behind them the blocks that they are in.
std::vector<std::string> keys_and_blocks() {
  std::vector<std::string> names;
  for (const ZeroKey& row : internal::zero_keys()) names.push_back(row.info.key);
  for (const ZeroKey& row : internal::zero_keys()) {
    const std::string& key = row.info.key;
    for (size_t dot = key.rfind('.'); dot != key.npos; dot = key.rfind('.', dot - 1)) {
      names.push_back(key.substr(0, dot));
    }
  }
  return names;
}

// `; did you mean KEY?`. The last part counts of a key in the wrong block.
std::string key_hint(const std::string& unknown) {
  const std::vector<std::string> keys = keys_and_blocks();
  const auto other = std::ranges::find(keys, last_part(unknown), &last_part);
  return did_you_mean(other != keys.end() ? *other : unknown, keys);
}

// Whether DeepSpeed checks the keys of the block that this one is in.
bool is_checked(absl::string_view key) {
  return key.starts_with("zero_optimization.") || key.starts_with("optimizer.params.") ||
         key.starts_with("scheduler.params.");
}

// Whether the unknown key, which DeepSpeed ignores, looks like one that was meant to be another: up
// to two letters away from a key or a block that stands where it does, or one that belongs into a
// block at the top.
bool is_slip(absl::string_view unknown) {
  const absl::string_view name = last_part(unknown);
  const bool is_comment =
      name.empty() || name[0] == '_' || name[0] == '#' || name.starts_with("//");
  if (is_comment) return false;
  return std::ranges::any_of(keys_and_blocks(), [&](absl::string_view key) {
    constexpr size_t kLetters = 2;
    if (name == unknown && name == last_part(key)) return true;
    return name.size() > 2 * kLetters && block_part(key) == block_part(unknown) &&
           edit_distance(last_part(key), name) <= kLetters;
  });
}

// What stands in the block of ZeRO as DeepSpeed's checker of it takes it: "true" and 1 for a truth
// value, "5000" for a number. The stage is read by HF Accelerate too, which wants a number.
Json as_zero_value(const ZeroKey& row, const Json& value) {
  const std::string& key = row.info.key;
  if (!key.starts_with("zero_optimization.") || key == "zero_optimization.stage") return value;
  const std::string word = value.is_string() ? value.get<std::string>() : "";
  if (row.info.type == "boolean") {
    if (value.is_number() && (value == 0 || value == 1)) return value == 1;
    if (const std::optional<bool> truth = parse_bool(word)) return *truth;
  } else if (row.info.type == "whole number") {
    if (const std::optional<int64_t> number = parse_int(word)) return *number;
  } else if (row.info.type == "number") {
    if (const std::optional<double> number = parse_float(word)) return *number;
  }
  return value;
}

class Reader {
 public:
  explicit Reader(ZeroAuto autos) : autos_(autos) {}

  void read_block(const Json& block, const std::string& prefix) {
    for (const auto& [key, value] : block.items()) read_entry(absl::StrCat(prefix, key), value);
  }

  ZeroConfig& zero() { return zero_; }
  const std::vector<std::string>& ignored() const { return ignored_; }
  // Whether the entry was read, and is neither "auto" nor null.
  bool has(const char* key) const { return std::ranges::count(taken_, key) > 0; }

  template <typename... Parts>
  void complain(const std::string& key, const Parts&... parts) {
    complain_of(absl::StrCat(key, ": ", parts...));
  }
  void complain_of(const std::string& problem) { problems_.push_back(absl::StrCat("- ", problem)); }

  // An optimizer's and a schedule's parameters are those of its type.
  void check_types() {
    check_types("optimizer.", zero_.optimizer ? to_string(zero_.optimizer->type) : "");
    check_types("scheduler.", zero_.scheduler ? to_string(zero_.scheduler->type) : "");
  }

  void throw_problems() const {
    TORCH_CHECK_VALUE(problems_.empty(), "the DeepSpeed configuration cannot be used:\n",
                      absl::StrJoin(problems_, "\n"));
  }

 private:
  void read_entry(const std::string& key, const Json& given) {
    const ZeroKey* row = find_key(key);
    const Json value = row != nullptr ? as_zero_value(*row, given) : given;
    if (row == nullptr) {
      if (std::ranges::count(keys_and_blocks(), key) > 0) {
        if (value.is_object()) return read_block(value, absl::StrCat(key, "."));
        if (!value.is_null()) complain(key, "it is ", json_text(value), ", not an object");
        return;
      }
      if (!is_checked(key) && !is_slip(key)) return ignored_.push_back(key);
      return complain(key, "there is no such key", key_hint(key));
    }
    if (value.is_null()) return;
    switch (row->info.state) {
      case DeepSpeedKeyState::kWithoutEffect: return;
      case DeepSpeedKeyState::kRefused:
        if (value == "auto" || row->is_off(value)) return;
        return complain(key, "this version refuses ", json_text(value), ": ", row->info.what);
      case DeepSpeedKeyState::kHonoured: break;
    }
    if (value == "auto") {
      if (autos_ == ZeroAuto::kAllowed) return;
      return complain(key, "it is still \"auto\", and nothing says what that stands for");
    }
    const std::string expected = row->take(zero_, value);
    if (!expected.empty()) {
      return complain(key, "it is ", json_text(value), ", not a ",
                      absl::StrReplaceAll(expected, {{"`", ""}}));
    }
    if (value.is_number()) {
      const auto number = value.get<double>();
      if (number < row->least)
        return complain(key, "it is ", json_text(value), ", less than ", row->least);
      if (number > row->most)
        return complain(key, "it is ", json_text(value), ", more than ", row->most);
    }
    taken_.push_back(key);
  }

  void check_types(const char* prefix, const std::string& type) {
    const std::string type_key = absl::StrCat(prefix, "type");
    for (const std::string& key : taken_) {
      if (!absl::StartsWith(key, prefix)) continue;
      if (!has(type_key.c_str())) return complain(type_key, "it is missing");
      const ZeroKey& row = *find_key(key);
      if (!row.types.empty() && std::ranges::count(row.types, type) == 0) {
        complain(key, type, " has no such parameter; ", absl::StrJoin(row.types, ", "), " has");
      }
    }
  }

  const ZeroAuto autos_;
  ZeroConfig zero_;
  std::vector<std::string> taken_;
  std::vector<std::string> ignored_;
  std::vector<std::string> problems_;
};

void check_offload(Reader& reader) {
  ZeroConfig& zero = reader.zero();
  const auto check_path = [&](const char* kind, OffloadDevice device, const std::string& path) {
    if (device != OffloadDevice::kNvme || (!path.empty() && path != "none")) return;
    reader.complain(absl::StrCat("zero_optimization.offload_", kind, ".nvme_path"),
                    "it does not say in which folder \"nvme\" is");
  };
  check_path("optimizer", zero.offload_optimizer.device, zero.offload_optimizer.nvme_path);
  // HF Accelerate's questionnaire asks for the parameters' device in stage 2 as well.
  if (zero.stage < 3) zero.offload_param.device = OffloadDevice::kNone;
  check_path("param", zero.offload_param.device, zero.offload_param.nvme_path);
  const OffloadDevice optimizer = zero.offload_optimizer.device;
  if (optimizer != OffloadDevice::kNone && zero.stage == 0) {
    reader.complain(
        "zero_optimization.offload_optimizer.device",
        "stage 0 divides no optimizer, so there is nothing to move; use stage 1, 2 or 3");
  }
  if (optimizer == OffloadDevice::kNvme && zero.stage < 3) {
    reader.complain("zero_optimization.offload_optimizer.device", "\"nvme\" needs stage 3");
  }
}

void check_whole(Reader& reader) {
  ZeroConfig& zero = reader.zero();
  if (zero.fp16.enabled && zero.bf16.enabled) {
    reader.complain("fp16.enabled",
                    "bf16.enabled is true as well; a model computes in one of them");
  }
  if (zero.msamp.enabled && zero.stage == 3) {
    reader.complain("msamp.enabled",
                    "MS-AMP is not supported for ZeRO Stage 3; use stage 0, 1 or 2");
  }
  if (zero.zero_hpz_partition_size > 1 && zero.stage < 3) {
    reader.complain("zero_optimization.zero_hpz_partition_size",
                    "only stage 3 divides parameters, which a second shard is of");
  }
  if (zero.scheduler && zero.scheduler->type == ZeroSchedulerType::kOneCycle) {
    for (const char* key : {"scheduler.params.cycle_min_lr", "scheduler.params.cycle_max_lr"}) {
      if (!reader.has(key)) reader.complain(key, "OneCycle needs it");
    }
  }
  if (zero.optimizer && zero.optimizer->type == ZeroOptimizerType::kAdagrad) {
    // PyTorch's defaults, as in DeepSpeed.
    if (!reader.has("optimizer.params.lr")) zero.optimizer->lr = 1e-2;
    if (!reader.has("optimizer.params.eps")) zero.optimizer->eps = 1e-10;
  }
}

}  // namespace

std::vector<std::string> use_one_name(Json& config) {
  std::vector<std::string> problems;
  const auto names = internal::zero_names();
  for (const internal::ZeroName& each : names) {
    std::string problem = take_name(config, each);
    if (!problem.empty()) problems.push_back(std::move(problem));
  }
  if (!problems.empty()) return problems;
  for (const internal::ZeroName& each : names) {
    const Json::json_pointer name = pointer_to(each.name);
    if (!config.contains(name)) continue;
    const Json& value = config.at(name);
    const bool is_taken = entry_of(config, pointer_to(each.key)) != nullptr &&
                          (each.value == nullptr || value.is_boolean());
    if (value.is_null() || is_taken) config.at(name.parent_pointer()).erase(name.back());
  }
  return problems;
}

std::vector<std::string> ignored_keys(const Json& config) {
  Reader reader(ZeroAuto::kAllowed);
  reader.read_block(config, "");
  return reader.ignored();
}

ZeroConfig zero_config(const Json& given, ZeroAuto autos) {
  TORCH_CHECK_VALUE(given.is_object(), "the DeepSpeed configuration is ", json_text(given),
                    ", which is not an object");
  Json config = given;
  Reader reader(autos);
  for (const std::string& problem : use_one_name(config)) reader.complain_of(problem);
  reader.throw_problems();
  reader.read_block(config, "");
  reader.throw_problems();
  reader.check_types();
  check_offload(reader);
  check_whole(reader);
  reader.throw_problems();
  return std::move(reader.zero());
}

}  // namespace accelerate

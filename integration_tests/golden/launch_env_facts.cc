#include "integration_tests/golden/launch_env_facts.h"

#include <algorithm>
#include <sstream>

#include "integration_tests/golden/launch_env_flags.h"

namespace accelerate::golden {

LaunchFacts::LaunchFacts(const nlohmann::json& in) {
  const auto argv = in.at("argv").get<std::vector<std::string>>();
  size_t next = 0;
  while (next < argv.size() && argv[next].size() > 1 && argv[next][0] == '-') {
    const std::string word = argv[next++];
    const size_t equals = word.find('=');
    const std::string flag = word.substr(0, equals);
    const TypedLaunchFlag typed = parse_launch_flag(flag);
    if (typed.flag == nullptr) break;
    if (typed.flag->kind == FlagKind::kFlag) {
      typed_[typed.flag->name] = typed.is_negated ? "false" : "true";
    } else if (equals != std::string::npos) {
      typed_[typed.flag->name] = word.substr(equals + 1);
    } else if (next < argv.size()) {
      typed_[typed.flag->name] = argv[next++];
    }
  }
  program_.assign(argv.begin() + next, argv.end());
  // The default file does not count for --cpu.
  const bool is_default = in.value("config_is_default", false);
  const bool counts = in.contains("config_file") && !(is_default && typed("cpu") == "true");
  if (counts) config_ = in["config_file"].get<std::string>();
  if (in.contains("machine")) gpus_ = in["machine"].value("gpus", 0);
}

std::optional<std::string> LaunchFacts::typed(const std::string& name) const {
  const auto found = typed_.find(name);
  if (found == typed_.end()) return std::nullopt;
  return found->second;
}

// A line `key: value`, in quotes or not, at the top or in a section; of JSON, at the top.
std::optional<std::string> LaunchFacts::in_config(const std::string& key) const {
  if (config_.starts_with('{')) {
    const auto config = nlohmann::json::parse(config_);
    if (!config.contains(key) || config[key].is_null()) return std::nullopt;
    return config[key].is_string() ? config[key].get<std::string>() : config[key].dump();
  }
  std::istringstream lines(config_);
  for (std::string line; std::getline(lines, line);) {
    const size_t begin = line.find_first_not_of(' ');
    if (begin == std::string::npos || line.compare(begin, key.size() + 1, key + ":") != 0) continue;
    std::string value = line.substr(begin + key.size() + 1);
    value.erase(0, value.find_first_not_of(' '));
    if (value.empty() || value == "null") return std::nullopt;
    if (value.size() > 1 && (value[0] == '\'' || value[0] == '"')) {
      value = value.substr(1, value.size() - 2);
    }
    return value;
  }
  return std::nullopt;
}

std::optional<std::string> LaunchFacts::value(const std::string& name) const {
  if (const auto found = typed(name)) return found;
  const LaunchFlag* const flag = find_launch_flag(name);
  if (flag == nullptr || flag->place == FlagPlace::kNowhere) return std::nullopt;
  if (const auto found = in_config(flag->key != nullptr ? flag->key : name)) return found;
  const std::string prefix = key_prefix(flag->place);
  if (prefix.empty() || !name.starts_with(prefix)) return std::nullopt;
  return in_config(name.substr(prefix.size()));
}

int64_t LaunchFacts::number(const std::string& name, int64_t otherwise) const {
  const auto text = value(name);
  if (!text) return otherwise;
  try {
    return std::stoll(*text);
  } catch (const std::exception&) {
    return otherwise;
  }
}

bool LaunchFacts::is_on(const std::string& name, bool otherwise) const {
  const auto text = value(name);
  const int truth = text ? truth_of(*text) : -1;
  return truth < 0 ? otherwise : truth == 1;
}

std::string LaunchFacts::config_type() const {
  for (const char* kind : {"cpu", "multi_gpu", "tpu", "tpu_use_cluster", "use_deepspeed",
                           "use_fsdp", "use_megatron_lm"}) {
    if (typed_.contains(kind)) return "";
  }
  return in_config("distributed_type").value_or("");
}

bool LaunchFacts::is_cpu() const { return is_on("cpu") || config_type() == "MULTI_CPU"; }

bool LaunchFacts::uses(const std::string& engine, const std::string& type) const {
  return typed_.contains(engine) || config_type() == type;
}

int64_t LaunchFacts::ranks() const {
  if (const int64_t count = number("num_processes", 0); count > 0) return count;
  if (has_config() || is_cpu()) return machines();
  const std::string ids = value("gpu_ids").value_or("all");
  const int64_t per_machine = ids == "all" ? gpus_ : 1 + std::count(ids.begin(), ids.end(), ',');
  return std::max<int64_t>(1, per_machine) * machines();
}

}  // namespace accelerate::golden

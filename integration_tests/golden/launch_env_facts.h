/// The facts of a recorded launch, read from its command line and its configuration file.
///
/// Threads: a value.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace accelerate::golden {

class LaunchFacts {
 public:
  explicit LaunchFacts(const nlohmann::json& in);

  /// Typed, else in the configuration file, with or without its section's prefix. Flags that were
  /// typed are "true".
  std::optional<std::string> value(const std::string& name) const;
  std::optional<std::string> typed(const std::string& name) const;
  int64_t number(const std::string& name, int64_t otherwise) const;
  bool is_on(const std::string& name, bool otherwise = false) const;

  /// All that was typed, by the names of launch_env_flags.h.
  const std::map<std::string, std::string>& all_typed() const { return typed_; }
  /// The program and its arguments.
  const std::vector<std::string>& program() const { return program_; }

  bool has_config() const { return !config_.empty(); }
  /// The file's text; empty if there is none.
  const std::string& config() const { return config_; }
  /// distributed_type, unless a kind of run was typed.
  std::string config_type() const;
  bool is_cpu() const;
  bool uses(const std::string& engine, const std::string& type) const;

  int64_t gpus() const { return gpus_; }
  int64_t machines() const { return number("num_machines", 1); }
  /// How many ranks we start; HF Accelerate counts devices even for the CPU, and 0 ranks
  /// without a device.
  int64_t ranks() const;

 private:
  std::optional<std::string> in_config(const std::string& key) const;

  std::map<std::string, std::string> typed_;
  std::vector<std::string> program_;
  std::string config_;
  int64_t gpus_ = 0;
};

}  // namespace accelerate::golden

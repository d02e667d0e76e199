/// A configuration of DeepSpeed as a tree of JSON, whose entries have dotted keys:
/// "zero_optimization.stage". The keys are not checked here; zero_config() checks them.
///
/// Errors:  c10::ValueError naming the key, or what is not a configuration.
/// Threads: values.
/// Mirrors: accelerate utils/deepspeed.py, HfDeepSpeedConfig.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace accelerate {

class FileSystem;

/// As == in Python: true is 1, and 1 is 1.0.
bool python_equal(const nlohmann::ordered_json& left, const nlohmann::ordered_json& right);
/// As str() in Python: "[0.9, 'a', None]", and a text as it is.
std::string python_text(const nlohmann::ordered_json& value);

class HfDeepSpeedConfig {
 public:
  using Json = nlohmann::ordered_json;

  /// Without entries.
  HfDeepSpeedConfig() : config(Json::object()) {}
  /// An object, or a text: the path of a file, JSON, or JSON in base64. JSON may have Infinity and
  /// -Infinity, as Python writes them. Null: the current Runtime's files. Local.
  explicit HfDeepSpeedConfig(const Json& source, FileSystem* files = nullptr);

  /// The object with an entry, null where that is missing or null, and the last part of the key.
  struct Node {
    Json* object = nullptr;
    std::string key;
  };
  Node find_config_node(const std::string& ds_key_long);
  /// `default_value` where there is no entry.
  Json get_value(const std::string& ds_key_long, const Json& default_value = nullptr) const;
  /// Removes an entry that is not null. Errors: where `must_exist` and there is none.
  void del_config_sub_tree(const std::string& ds_key_long, bool must_exist = false);
  /// False without an entry, and of both for null.
  bool is_true(const std::string& ds_key_long) const;
  bool is_false(const std::string& ds_key_long) const;

  /// Makes the answers below follow the tree, as making the object does. Until then they stay.
  void set_stage_and_offload();
  /// zero_optimization.stage; -1 without it.
  const Json& stage() const { return stage_; }
  bool is_zero2() const { return python_equal(stage_, 2); }
  bool is_zero3() const { return python_equal(stage_, 3); }
  /// In stages 2 and 3: whether the optimizer or the parameters are on "cpu" or "nvme".
  bool is_offload() const { return offload_; }

  /// What programs may change.
  Json config;

 private:
  Json stage_ = -1;
  bool offload_ = false;
};

}  // namespace accelerate

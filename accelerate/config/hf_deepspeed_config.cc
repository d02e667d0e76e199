#include "accelerate/config/hf_deepspeed_config.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "accelerate/base/document.h"
#include "accelerate/base/json_text.h"
#include "accelerate/base/number_text.h"
#include "accelerate/platform/file_system.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate {
namespace {

using Json = nlohmann::ordered_json;

std::string excerpt(const std::string& text) {
  constexpr size_t kShown = 200;
  return text.size() <= kShown ? text : absl::StrCat(text.substr(0, kShown), "...");
}

// Python's json, with which HF Accelerate reads and writes configurations, has infinities, and puts
// one into each configuration.
absl::StatusOr<Json> parsed(const std::string& text) {
  return json_value(text, {.python_numbers = true});
}

Json parsed(const std::string& text, const std::string& place) {
  absl::StatusOr<Json> config = parsed(text);
  TORCH_CHECK_VALUE(config.ok(), "the DeepSpeed configuration ", place,
                    " cannot be used: ", config.status().message());
  return *std::move(config);
}

std::optional<Json> from_base64(const std::string& text) {
  std::string decoded;
  const std::string url_safe = absl::StrReplaceAll(text, {{"+", "-"}, {"/", "_"}});
  if (text.empty() || !absl::WebSafeBase64Unescape(url_safe, &decoded)) return std::nullopt;
  absl::StatusOr<Json> config = parsed(decoded);
  return config.ok() ? std::optional(*std::move(config)) : std::nullopt;
}

Json read_text(const std::string& text, FileSystem* given) {
  if (absl::StartsWith(absl::StripLeadingAsciiWhitespace(text), "{")) {
    return parsed(text, absl::StrCat("\"", excerpt(text), "\""));
  }
  FileSystem& files = given != nullptr ? *given : Runtime::current().files();
  const auto info = files.info(text);
  if (info.ok() && !info->is_directory) {
    const auto contents = read_file(files, text);
    TORCH_CHECK_VALUE(contents.ok(), "the DeepSpeed configuration ", text,
                      " cannot be read: ", contents.status().message());
    return parsed(*contents, text);
  }
  std::optional<Json> decoded = from_base64(text);
  TORCH_CHECK_VALUE(decoded,
                    "Expected a string path to an existing deepspeed config, or a dictionary, or a "
                    "base64 encoded string. Received: ",
                    excerpt(text));
  return *std::move(decoded);
}

Json read(const Json& source, FileSystem* files) {
  Json config = source.is_string() ? read_text(source.get<std::string>(), files) : source;
  TORCH_CHECK_VALUE(config.is_object(), "the DeepSpeed configuration is ",
                    excerpt(json_text(config)), ", which is not an object");
  return config;
}

// The object with the entry `key`, null where there is none on the way.
const Json* node_of(const Json& config, const std::string& ds_key_long, std::string& key) {
  std::vector<std::string> parts = absl::StrSplit(ds_key_long, '.');
  key = std::move(parts.back());
  parts.pop_back();
  const Json* node = &config;
  std::string place;
  const auto check = [&] {
    TORCH_CHECK_VALUE(node->is_object(), "the DeepSpeed configuration has no \"", ds_key_long,
                      "\", because \"", place, "\" is ", excerpt(json_text(*node)),
                      ", which is not an object");
  };
  for (const std::string& part : parts) {
    check();
    const auto found = node->find(part);
    if (found == node->end() || found->is_null()) return nullptr;
    node = &*found;
    absl::StrAppend(&place, place.empty() ? "" : ".", part);
  }
  check();
  return node;
}

bool is_truthy(const Json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number()) return value.get<double>() != 0;
  if (value.is_string()) return !value.get_ref<const std::string&>().empty();
  return !value.empty();
}

Json as_number(const Json& value) {
  return value.is_boolean() ? Json(value.get<bool>() ? 1 : 0) : value;
}

std::string python_repr(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null: return "None";
    case Json::value_t::boolean: return value.get<bool>() ? "True" : "False";
    case Json::value_t::string: return absl::StrCat("'", value.get<std::string>(), "'");
    case Json::value_t::number_float: return float_text(value.get<double>());
    case Json::value_t::array:
    case Json::value_t::object: break;
    default: return json_text(value);
  }
  std::vector<std::string> parts;
  for (const auto& [key, entry] : value.items()) {
    parts.push_back(
        absl::StrCat(value.is_object() ? absl::StrCat("'", key, "': ") : "", python_repr(entry)));
  }
  const std::string inner = absl::StrJoin(parts, ", ");
  return value.is_object() ? absl::StrCat("{", inner, "}") : absl::StrCat("[", inner, "]");
}

}  // namespace

bool python_equal(const Json& left, const Json& right) {
  if (left.is_array() && right.is_array()) {
    return std::equal(left.begin(), left.end(), right.begin(), right.end(), python_equal);
  }
  if (left.is_object() && right.is_object()) {
    if (left.size() != right.size()) return false;
    for (const auto& [key, value] : left.items()) {
      const auto found = right.find(key);
      if (found == right.end() || !python_equal(value, *found)) return false;
    }
    return true;
  }
  return as_number(left) == as_number(right);
}

std::string python_text(const Json& value) {
  return value.is_string() ? value.get<std::string>() : python_repr(value);
}

HfDeepSpeedConfig::HfDeepSpeedConfig(const Json& source, FileSystem* files)
    : config(read(source, files)) {
  set_stage_and_offload();
}

HfDeepSpeedConfig::Node HfDeepSpeedConfig::find_config_node(const std::string& ds_key_long) {
  Node node;
  node.object = const_cast<Json*>(node_of(config, ds_key_long, node.key));
  return node;
}

Json HfDeepSpeedConfig::get_value(const std::string& ds_key_long, const Json& default_value) const {
  std::string key;
  const Json* node = node_of(config, ds_key_long, key);
  if (node == nullptr) return default_value;
  const auto found = node->find(key);
  return found == node->end() ? default_value : *found;
}

void HfDeepSpeedConfig::del_config_sub_tree(const std::string& ds_key_long, bool must_exist) {
  const Node node = find_config_node(ds_key_long);
  const bool is_there = node.object != nullptr && node.object->contains(node.key) &&
                        !node.object->at(node.key).is_null();
  if (is_there) {
    node.object->erase(node.key);
    return;
  }
  TORCH_CHECK_VALUE(!must_exist, "Can't find ", ds_key_long,
                    " entry in the config: ", python_text(config));
}

bool HfDeepSpeedConfig::is_true(const std::string& ds_key_long) const {
  return is_truthy(get_value(ds_key_long));
}

bool HfDeepSpeedConfig::is_false(const std::string& ds_key_long) const {
  const Json value = get_value(ds_key_long);
  return !value.is_null() && !is_truthy(value);
}

void HfDeepSpeedConfig::set_stage_and_offload() {
  stage_ = get_value("zero_optimization.stage", -1);
  offload_ = false;
  if (!is_zero2() && !is_zero3()) return;
  for (const char* kind : {"optimizer", "param"}) {
    const Json device = get_value(absl::StrCat("zero_optimization.offload_", kind, ".device"));
    offload_ = offload_ || device == "cpu" || device == "nvme";
  }
}

}  // namespace accelerate

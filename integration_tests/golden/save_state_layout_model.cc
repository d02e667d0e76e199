#include "integration_tests/golden/save_state_layout_model.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "integration_tests/golden/errors.h"
#include "integration_tests/golden/fields.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

constexpr char kFolder[] = "<ROOT>/proj/checkpoints";

// The first number in a name.
std::optional<int64_t> number_in(const std::string& name) {
  const auto digit = [](unsigned char c) { return std::isdigit(c) != 0; };
  const auto begin = std::find_if(name.begin(), name.end(), digit);
  int64_t number = 0;
  if (!absl::SimpleAtoi(std::string(begin, std::find_if_not(begin, name.end(), digit)), &number)) {
    return std::nullopt;
  }
  return number;
}

class Project {
 public:
  explicit Project(const json& in)
      : automatic_(in.at("project").value("automatic_checkpoint_naming", false)),
        has_folder_(in.value("project_dir", true)),
        limit_(in.at("project").value("total_limit", json())),
        first_(in.at("project").value("iteration", int64_t{0})),
        iteration_(first_) {}

  json act(const std::string& action) {
    json result = json::object();
    if (action == "save") {
      result = save("");
    } else if (auto folder = argument_of(action, "save")) {
      result = save(*folder);
    } else if (action == "load") {
      result = load("");
    } else if (auto folder = argument_of(action, "load")) {
      result = load(*folder);
    } else if (auto name = argument_of(action, "mkdir")) {
      entries_.emplace(path_of(*name), Entry{});
    } else if (auto name = argument_of(action, "touch")) {
      entries_.emplace(path_of(*name), Entry{.is_file = true});
    } else if (action == "new") {
      iteration_ = first_;
    } else if (auto number = new_iteration(action)) {
      iteration_ = *number;
    } else {
      throw CaseError("unknown action \"" + action + "\"");
    }
    const std::vector<std::string> names = checkpoints();
    result["checkpoints"] = names.empty() ? json() : json(names);
    result["iteration"] = iteration_;
    return result;
  }

 private:
  struct Entry {
    bool is_file = false;
    std::optional<int64_t> iteration = std::nullopt;  // of a checkpoint
  };

  static std::string path_of(const std::string& name) { return absl::StrCat(kFolder, "/", name); }
  // Wrong folders are ValueErrors; damaged files, and a folder that is in the way, are not.
  static json refusal(const std::vector<std::string>& says = {}) {
    return our_error({"ValueError", "CheckpointError"}, says);
  }
  static json lacks_folder() {
    return refusal({"needs a folder", "needs an output_dir", "needs an input_dir"});
  }

  // Sorted.
  std::vector<std::string> checkpoints() const {
    std::vector<std::string> names;
    for (const auto& [path, entry] : entries_) {
      absl::string_view name = path;
      if (absl::ConsumePrefix(&name, path_of("")) && !absl::StrContains(name, "/")) {
        names.emplace_back(name);
      }
    }
    return names;
  }

  json save(const std::string& folder) {
    if (automatic_ ? !has_folder_ : folder.empty()) return lacks_folder();
    const std::string path = automatic_ ? path_of(absl::StrCat("checkpoint_", iteration_)) : folder;
    const auto there = entries_.find(path);
    if (there != entries_.end() && (automatic_ || there->second.is_file)) return refusal();
    entries_[path] = {.iteration = iteration_++};
    if (automatic_) rotate(path);
    return {{"returned", path}};
  }

  // The complete ones that have a number, by it.
  std::vector<std::pair<int64_t, std::string>> complete() const {
    std::vector<std::pair<int64_t, std::string>> found;
    for (const std::string& name : checkpoints()) {
      const auto number = number_in(name);
      if (number && entries_.at(path_of(name)).iteration) found.emplace_back(*number, name);
    }
    std::sort(found.begin(), found.end());
    return found;
  }

  void rotate(const std::string& newest) {
    if (limit_.is_null()) return;
    const auto kept = complete();
    auto surplus = static_cast<int64_t>(kept.size()) - std::max<int64_t>(limit_.get<int64_t>(), 1);
    for (const auto& [number, name] : kept) {
      if (surplus <= 0 || path_of(name) == newest) continue;
      entries_.erase(path_of(name));
      --surplus;
    }
  }

  json load(std::string folder) {
    if (folder.empty()) {
      if (!automatic_ || !has_folder_) return lacks_folder();
      const auto found = complete();
      if (found.empty()) return refusal();
      folder = path_of(found.back().second);
    }
    const auto entry = entries_.find(folder);
    if (entry == entries_.end() || !entry->second.iteration) return refusal();
    iteration_ = *entry->second.iteration + 1;
    if (automatic_ && has_folder_) {
      // The next name is a free one.
      for (const std::string& name : checkpoints()) {
        const int64_t number = number_in(name).value_or(0);
        if (name == absl::StrCat("checkpoint_", number)) {
          iteration_ = std::max(iteration_, number + 1);
        }
      }
    }
    return {{"loaded", folder}};
  }

  const bool automatic_;
  const bool has_folder_;
  const json limit_;
  const int64_t first_;
  int64_t iteration_;
  std::map<std::string, Entry> entries_;
};

}  // namespace

std::string stem_of(const std::string& file) {
  const std::string stem = file.substr(0, file.rfind('.'));
  return std::string(absl::StripPrefix(stem, "pytorch_"));
}

std::string our_file_name(const std::string& file, bool has_tensors) {
  return stem_of(file) + (has_tensors ? ".safetensors" : ".json");
}

bool has_tensor(const json& value) {
  if (value.is_string()) return absl::StartsWith(value.get<std::string>(), "tensor ");
  if (!value.is_structured()) return false;
  return std::any_of(value.begin(), value.end(), &has_tensor);
}

std::optional<std::string> argument_of(const std::string& action, const std::string& verb) {
  absl::string_view argument = action;
  if (!absl::ConsumePrefix(&argument, verb + ":")) return std::nullopt;
  return std::string(argument);
}

std::optional<int64_t> new_iteration(const std::string& action) {
  absl::string_view text = action;
  int64_t number = 0;
  if (!absl::ConsumePrefix(&text, "iteration=") || !absl::SimpleAtoi(text, &number)) {
    return std::nullopt;
  }
  return number;
}

json expected_trace(const json& in) {
  Project project(in);
  json trace = json::array();
  for (const json& action : field(in, "actions")) {
    trace.push_back(project.act(action.get<std::string>()));
  }
  return trace;
}

}  // namespace accelerate::golden

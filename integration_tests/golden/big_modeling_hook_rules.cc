// Decisions about hooks. Each holds only where a model of HF Accelerate's algorithm, with the
// fault, gives what was recorded; the same model without the fault says what is promised.
#include <algorithm>
#include <map>
#include <memory>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "integration_tests/golden/fields.h"
#include "integration_tests/golden/rules.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

bool is_kind(const json& in, const char* kind) { return string_field(in, "kind") == kind; }

// ---- Calls of hooks.

struct Hook {
  std::string name;  // empty: several
  std::vector<std::shared_ptr<Hook>> parts;
};

std::shared_ptr<Hook> hook_of(const std::string& name) {
  auto hook = std::make_shared<Hook>();
  if (!name.starts_with("seq:")) {
    hook->name = name;
    return hook;
  }
  for (const auto part : absl::StrSplit(name.substr(4), '|')) {
    hook->parts.push_back(hook_of(std::string(part)));
  }
  return hook;
}

// Hooks that are added to modules, and the calls that they see.
class HookModel {
 public:
  // `as_recorded`: hooks that are appended to are detached and begun again, hooks that are replaced
  // are not detached, and of several hooks none keeps forward from recording gradients.
  HookModel(const json& in, bool as_recorded) : tree_(in.at("model")), as_recorded_(as_recorded) {
    for (const json& step : in.at("steps")) steps.push_back(make_step(step));
  }

  json events = json::array();
  json steps = json::array();  // whether outputs have gradients; null for other steps

 private:
  json make_step(const json& step) {
    const std::string what = step.at(0);
    if (what == "add") {
      add(step.at(1), hook_of(step.at(2)), step.at(3).get<bool>());
    } else if (what == "remove") {
      remove(step.at(1), step.at(2).get<bool>());
    } else if (what == "remove_submodules") {
      remove("", true);
    } else if (what == "forward") {
      return call("", tree_, /*records=*/true, /*has_gradient=*/false);
    }
    return nullptr;
  }

  void add(const std::string& path, std::shared_ptr<Hook> hook, bool append) {
    std::shared_ptr<Hook>& slot = hooks_[path];
    if (slot == nullptr) {
      tell(*hook, {"init"});
    } else if (append) {
      if (as_recorded_) {
        tell(*slot, {"detach"});
        tell(*slot, {"init"});
      }
      tell(*hook, {"init"});
      hook = std::make_shared<Hook>(Hook{.name = "", .parts = {slot, hook}});
    } else {
      if (!as_recorded_) tell(*slot, {"detach"});
      tell(*hook, {"init"});
    }
    slot = hook;
  }

  void remove(const std::string& path, bool recurse) {
    visit("", tree_, [&](const std::string& each) {
      const bool is_below = path.empty() || each.starts_with(path + ".");
      if (each != path && !(recurse && is_below)) return;
      if (hooks_[each] != nullptr) tell(*hooks_[each], {"detach"});
      hooks_[each] = nullptr;
    });
  }

  // Parents come before their children.
  template <typename Visit>
  static void visit(const std::string& path, const json& tree, const Visit& see) {
    see(path);
    for (const json& child : tree.at("children")) visit(below(path, child), child.at(1), see);
  }

  static std::string below(const std::string& path, const json& child) {
    return (path.empty() ? "" : path + ".") + child.at(0).get<std::string>();
  }

  // Whether the output has a gradient.
  bool call(const std::string& path, const json& tree, bool records, bool has_gradient) {
    const std::shared_ptr<Hook> hook = hooks_[path];
    if (hook != nullptr) tell(*hook, {"pre", 1, json::array()});
    const bool inside = records && (hook == nullptr || !keeps_from_recording(*hook));
    bool result = has_gradient && inside;
    if (tree.at("children").empty() || tree.at("class") == "Tap") {
      const json& owner = tree.at("class") == "Tap" ? tree["children"].at(0).at(1) : tree;
      result = inside && (has_gradient || !owner.at("params").empty());
    } else {
      result = has_gradient;
      for (const json& child : tree["children"]) {
        result = call(below(path, child), child.at(1), inside, result);
      }
    }
    if (hook != nullptr) tell(*hook, {"post"});
    return result;
  }

  bool keeps_from_recording(const Hook& hook) const {
    if (hook.parts.empty()) return hook.name == "no_grad";
    return !as_recorded_ && std::ranges::any_of(hook.parts, [&](const auto& part) {
      return keeps_from_recording(*part);
    });
  }

  void tell(const Hook& hook, json event) {
    for (const auto& part : hook.parts) tell(*part, event);
    if (!hook.name.starts_with("log:")) return;
    event.insert(event.begin(), hook.name.substr(4));
    events.push_back(std::move(event));
  }

  const json tree_;
  const bool as_recorded_;
  std::map<std::string, std::shared_ptr<Hook>> hooks_;
};

bool adds_hooks(const json& in) { return is_kind(in, "hook_order"); }

void leave_other_hooks_alone(const json& in, json& out) {
  if (!out.contains("events")) return;
  const HookModel recorded(in, /*as_recorded=*/true);
  bool fits = recorded.events == out["events"];
  for (size_t i = 0; i < recorded.steps.size(); ++i) {
    const json seen = out.at("steps").at(i).value("requires_grad", json());
    fits &= recorded.steps[i] == seen;
  }
  if (!fits) return;
  const HookModel promised(in, /*as_recorded=*/false);
  out["events"] = promised.events;
  for (size_t i = 0; i < promised.steps.size(); ++i) {
    if (!promised.steps[i].is_null()) out["steps"][i]["requires_grad"] = promised.steps[i];
  }
}

void replace_no_forward(const json& /*in*/, json& out) {
  if (!out.contains("steps")) return;
  for (json& step : out["steps"]) step.erase("old_forward_kept");
}

// ---- Layers in a narrow dtype.

bool skips_by_one_text(const json& in) {
  return is_kind(in, "casting") && field(in, "skip_modules_pattern").is_string();
}

// The paths of the layers that are cast, in order.
void collect_layers(const json& tree, const std::string& path,
                    const std::vector<std::string>& patterns, const json& classes, json& layers) {
  const std::string name = tree.at("class");
  const bool is_skipped = std::ranges::any_of(patterns,
                                              [&](const std::string& pattern) {
                                                return std::regex_search(path, std::regex(pattern));
                                              }) ||
                          (classes.is_array() && std::ranges::count(classes, json(name)) > 0);
  if (is_skipped) return;
  if (name == "Linear") layers.push_back(path);
  for (const json& child : tree.at("children")) {
    collect_layers(child.at(1), (path.empty() ? "" : path + ".") + child.at(0).get<std::string>(),
                   patterns, classes, layers);
  }
}

json layers_of(const json& in, const std::vector<std::string>& patterns) {
  json layers = json::array();
  collect_layers(in.at("model"), "", patterns, field(in, "skip_modules_classes"), layers);
  return layers;
}

void take_the_text_for_one_pattern(const json& in, json& out) {
  const std::string text = in["skip_modules_pattern"];
  std::vector<std::string> letters;
  for (const char letter : text) letters.emplace_back(1, letter);
  if (!out.contains("hooked") || layers_of(in, letters) != out["hooked"]) return;
  const json promised = layers_of(in, {text});
  const json recorded = out["hooked"];
  out["hooked"] = promised;
  for (json& call : out.at("while_running")) {
    const std::string path = call.at(0);
    const bool is_new = std::ranges::count(promised, json(path)) > 0 &&
                        std::ranges::count(recorded, json(path)) == 0;
    if (!is_new) continue;
    for (auto& [name, dtype] : out.at("before").items()) {
      if (!name.starts_with(path + ".")) continue;
      dtype = in.at("storage");
      if (in.at("storage") != in.at("compute")) call.at(1)[name] = in.at("compute");
    }
  }
}

}  // namespace

std::vector<Decision> big_modeling_hook_rules() {
  return {
      {"big_modeling", "a module's forward stays",
       "HF Accelerate replaces a module's forward and keeps the old one; here nothing is replaced",
       &adds_hooks, &replace_no_forward},
      {"big_modeling", "hooks that are appended to or replaced",
       "HF Accelerate detaches and begins a hook anew when another one is appended, forgets to "
       "detach one that is replaced, and loses no_grad of one of several; here hooks that stay are "
       "left alone, and those that go are detached",
       &adds_hooks, &leave_other_hooks_alone},
      {"big_modeling", "one pattern of layers as a text",
       "HF Accelerate takes each letter of a text for a pattern; here a text is one",
       &skips_by_one_text, &take_the_text_for_one_pattern},
  };
}

}  // namespace accelerate::golden

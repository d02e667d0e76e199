#include "integration_tests/golden/big_modeling_hooks.h"

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include "absl/strings/str_split.h"
#include "accelerate/hooks/attach_hook.h"
#include "accelerate/hooks/layerwise_casting.h"
#include "accelerate/hooks/model_hook.h"
#include "accelerate/modules/module_tensors.h"
#include "accelerate/modules/value_at_use.h"
#include "integration_tests/golden/answers.h"
#include "integration_tests/golden/big_modeling_model.h"
#include "integration_tests/golden/big_modeling_nets.h"
#include "integration_tests/golden/dtypes.h"
#include "integration_tests/golden/fields.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;
using torch::nn::Module;

// ---- The order of hooks.

class LogHook final : public ModelHook {
 public:
  LogHook(std::string name, json& events) : name_(std::move(name)), events_(events) {}

  void init_hook(Module& /*module*/) override { note("init"); }
  void pre_forward(Module& /*module*/, ForwardValues& arguments) override {
    int64_t count = 0;
    arguments.for_each_tensor([&count](const at::Tensor&) { ++count; });
    // A C++ call has no names of arguments.
    events_.push_back({name_, "pre", count, json::array()});
  }
  void post_forward(Module& /*module*/, ForwardValues& /*output*/) override { note("post"); }
  void detach_hook(Module& /*module*/) override { note("detach"); }

 private:
  void note(const char* event) { events_.push_back({name_, event}); }

  const std::string name_;
  json& events_;
};

// Adds to the arguments or multiplies the output.
class ChangeHook final : public ModelHook {
 public:
  ChangeHook(double added, double factor) : added_(added), factor_(factor) {}

  void pre_forward(Module& /*module*/, ForwardValues& arguments) override {
    bool is_first = true;
    arguments.for_each_tensor([&](at::Tensor& tensor) {
      if (is_first && added_ != 0) tensor = tensor + added_;
      is_first = false;
    });
  }
  void post_forward(Module& /*module*/, ForwardValues& output) override {
    output.for_each_tensor([&](at::Tensor& tensor) {
      if (factor_ != 1) tensor = tensor * factor_;
    });
  }

 private:
  const double added_, factor_;
};

class NoGradHook final : public ModelHook {
 public:
  bool no_grad() const override { return true; }
};

// The hooks of a case, which it calls by what they do.
class NamedHooks {
 public:
  explicit NamedHooks(json& events) : events_(events) {}

  std::shared_ptr<ModelHook> make(const std::string& name) {
    std::shared_ptr<ModelHook> hook;
    if (name.starts_with("seq:")) {
      std::vector<std::shared_ptr<ModelHook>> hooks;
      for (const auto part : absl::StrSplit(name.substr(4), '|')) {
        hooks.push_back(make(std::string(part)));
      }
      return std::make_shared<SequentialHook>(std::move(hooks));
    }
    if (name.starts_with("log:")) {
      hook = std::make_shared<LogHook>(name.substr(4), events_);
    } else if (name.starts_with("pre+")) {
      hook = std::make_shared<ChangeHook>(std::stod(name.substr(4)), 1);
    } else if (name.starts_with("post*")) {
      hook = std::make_shared<ChangeHook>(0, std::stod(name.substr(5)));
    } else if (name == "no_grad") {
      hook = std::make_shared<NoGradHook>();
    } else {
      throw CaseError("steps: unknown hook " + name);
    }
    names_[hook.get()] = name;
    return hook;
  }

  json name_of(const std::shared_ptr<ModelHook>& hook) const {
    if (hook == nullptr) return nullptr;
    const auto* const several = dynamic_cast<const SequentialHook*>(hook.get());
    if (several == nullptr) return names_.at(hook.get());
    json names = json::array();
    for (const auto& each : several->hooks()) names.push_back(name_of(each));
    return names;
  }

 private:
  json& events_;
  std::map<const ModelHook*, std::string> names_;
};

json make_step(const json& step, Net& net, NamedHooks& hooks, const at::Tensor& input) {
  const std::string what = step.at(0);
  if (what == "add") {
    add_hook_to_module(net.at(step.at(1)), hooks.make(step.at(2)), step.at(3).get<bool>());
  } else if (what == "remove") {
    remove_hook_from_module(net.at(step.at(1)), step.at(2).get<bool>());
  } else if (what == "remove_submodules") {
    remove_hook_from_submodules(*net.module());
  } else if (what == "look") {
    return {{"hook", hooks.name_of(find_hook(net.at(step.at(1))))}};
  } else if (what == "forward" && step.size() == 1) {
    const at::Tensor output = (*net.module())(input);
    return {{"output", described(output)}, {"requires_grad", output.requires_grad()}};
  } else {
    throw CaseError("steps: unknown " + step.dump());
  }
  return json::object();
}

json run_hook_order(const json& in) {
  expect_fields(in, {"kind", "model", "tied", "steps", "note"});
  return with_accelerators([&] {
    json events = json::array();
    NamedHooks hooks(events);
    Net net(in);
    json steps = json::array();
    for (const json& step : field(in, "steps")) {
      steps.push_back(part([&] { return make_step(step, net, hooks, net_input(in)); }));
    }
    json answer = {{"events", events}, {"steps", std::move(steps)}};
    remove_hook_from_submodules(*net.module());
    return answer;
  });
}

// ---- Layers in a narrow dtype.

// What the memory of a parameter has.
std::string stored_dtype(const at::Tensor& parameter) {
  return name_of(kept_tensors("", parameter).front().tensor.scalar_type());
}

json stored_dtypes(const Module& model) {
  json dtypes = json::object();
  for (const auto& each : model.named_parameters()) dtypes[each.key()] = stored_dtype(each.value());
  return dtypes;
}

std::vector<std::string> texts_of(const json& texts) {
  if (texts.is_null()) return {};
  if (texts.is_string()) return {texts.get<std::string>()};
  return texts.get<std::vector<std::string>>();
}

json cast_layers(const json& in) {
  Net net(in);
  LayerwiseCastingOptions options;
  options.skip_modules_pattern = texts_of(field(in, "skip_modules_pattern"));
  options.skip_modules_classes = texts_of(field(in, "skip_modules_classes"));
  if (in.contains("non_blocking")) options.non_blocking = bool_field(in, "non_blocking");
  attach_layerwise_casting_hooks(*net.module(), dtype_of(field(in, "storage")),
                                 dtype_of(field(in, "compute")), options);
  json hooked = json::array();
  for (const auto& each : net.module()->named_modules()) {
    for (const at::Tensor& parameter : each.value()->parameters(/*recurse=*/false)) {
      if (find_maker(parameter) == nullptr) continue;
      hooked.push_back(each.key());
      break;
    }
  }
  const json before = stored_dtypes(*net.module());
  json running = json::array();
  net.observe([&](const Module& module) {
    const std::string path = net.path_of(module);
    json others = json::object();
    for (const auto& each : module.named_parameters(/*recurse=*/false)) {
      const std::string seen = name_of(each.value().scalar_type());
      if (seen != stored_dtype(each.value())) others[path + "." + each.key()] = seen;
    }
    running.push_back({path, std::move(others)});
  });
  const at::Tensor output = (*net.module())(net_input(in).to(dtype_of(field(in, "compute"))));
  return {{"hooked", std::move(hooked)},
          {"before", before},
          {"while_running", std::move(running)},
          {"after_as_before", stored_dtypes(*net.module()) == before},
          {"output_dtype", name_of(output.scalar_type())}};
}

json run_casting(const json& in) {
  expect_fields(in, {"kind", "model", "tied", "storage", "compute", "skip_modules_pattern",
                     "skip_modules_classes", "non_blocking", "note"});
  return with_accelerators([&] { return cast_layers(in); });
}

}  // namespace

std::optional<json> run_big_modeling_hooks(const json& in) {
  const std::string kind = string_field(in, "kind");
  if (kind == "hook_order") return run_hook_order(in);
  if (kind == "casting") return run_casting(in);
  return std::nullopt;
}

}  // namespace accelerate::golden

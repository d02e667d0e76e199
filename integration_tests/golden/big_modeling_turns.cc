#include "integration_tests/golden/big_modeling_turns.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include "accelerate/hooks/cpu_offload.h"
#include "accelerate/hooks/hooked.h"
#include "accelerate/modules/module_tensors.h"
#include "accelerate/runtime/runtime.h"
#include "integration_tests/golden/answers.h"
#include "integration_tests/golden/big_modeling_model.h"
#include "integration_tests/golden/fields.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

bool is_kind(const json& in, const char* kind) { return in.value("kind", "") == kind; }

// ---- Two devices.

// Numbers are accelerators of one kind.
c10::Device device_of(const json& device) {
  if (device.is_number_integer()) return {c10::kCUDA, device.get<c10::DeviceIndex>()};
  if (!device.is_string()) throw CaseError("device: " + device.dump());
  return c10::Device(device.get<std::string>());
}

json compare_pair(const json& pair) {
  if (!pair.is_array() || pair.size() != 2) throw CaseError("devices: expected two");
  return check_device_same(device_of(pair[0]), device_of(pair[1]));
}

json compare_devices(const json& in) {
  expect_fields(
      in, {"kind", "note", "first", "second", "first_device", "second_device", "devices", "pairs"});
  json all = json::array();
  for (const json& pair : device_pairs(in)) all.push_back(compare_pair(pair));
  if (in.contains("pairs")) return {{"same", std::move(all)}};
  return {{"same", all.at(0)}};
}

// ---- Models that take turns.

struct Turning : torch::nn::Module {
  Turning() { weight = register_parameter("weight", at::zeros({1})); }
  at::Tensor forward(const at::Tensor& x) {
    if (called) called();
    return x + weight;
  }
  at::Tensor weight;
  std::function<void()> called;
};

std::string text_of(const json& name) {
  return name.is_string() ? name.get<std::string>() : name.dump();
}

class Turns {
 public:
  json events = json::array();

  void add(const json& name) {
    auto module = std::make_shared<Turning>();
    module->called = [this, text = text_of(name)] {
      note_moves();
      events.push_back({text, "forward", device_text(find(text).model->weight)});
    };
    models_.push_back({text_of(name), HookedModel<Turning>(std::move(module)), {}, "cpu"});
  }

  void attach(const json& name, const json& device, const json& prev) {
    const auto is_it = [&](const Model& each) { return each.name == text_of(name); };
    if (std::ranges::none_of(models_, is_it)) add(name);
    std::optional<c10::Device> execution_device;
    if (device.is_number_integer()) {
      execution_device =
          c10::Device(Runtime::current().device().type(), device.get<c10::DeviceIndex>());
    } else if (!device.is_null()) {
      execution_device = c10::Device(device.get<std::string>());
    }
    std::optional<UserCpuOffloadHook> before;
    if (!prev.is_null()) before = hook_of(prev);
    Model& model = find(text_of(name));
    model.hook = cpu_offload_with_hook(model.model, execution_device, std::move(before)).hook;
    note_moves();
  }

  void make_step(const json& step) {
    const std::string what = step.at(0);
    const json& name = step.at(1);
    if (what == "attach" || what == "hook" || what == "cpu_offload_with_hook") {
      if (step.size() > 4) throw CaseError("steps: unknown " + step.dump());
      attach(name, step.size() > 2 ? step[2] : json(), step.size() > 3 ? step[3] : json());
      return;
    }
    if (step.size() > 2) throw CaseError("steps: unknown " + step.dump());
    if (what == "forward" || what == "call") {
      find(text_of(name)).model(at::zeros({1}));
    } else if (what == "offload") {
      hook_of(name).offload();
    } else if (what == "remove") {
      hook_of(name).remove();
    } else {
      throw CaseError("steps: unknown " + step.dump());
    }
    note_moves();
  }

 private:
  struct Model {
    std::string name;
    HookedModel<Turning> model;
    std::optional<UserCpuOffloadHook> hook;
    std::string device;
  };

  Model& find(const std::string& name) {
    for (Model& each : models_) {
      if (each.name == name) return each;
    }
    throw CaseError("no model " + name);
  }
  const UserCpuOffloadHook& hook_of(const json& name) {
    const Model& model = find(text_of(name));
    if (!model.hook) throw CaseError("no hook of model " + model.name);
    return *model.hook;
  }

  // Who leaves a device goes before who comes.
  void note_moves() {
    for (const bool leaves : {true, false}) {
      for (Model& each : models_) {
        const std::string device = device_text(each.model->weight);
        if (device == each.device || (device == "cpu") != leaves) continue;
        each.device = device;
        events.push_back({each.name, "to", device});
      }
    }
  }

  std::vector<Model> models_;
};

json take_turns(const json& in) {
  expect_fields(in, {"kind", "note", "models", "steps"});
  return with_accelerators([&] {
    Turns turns;
    for (const json& model : in.value("models", json::array())) {
      if (!model.is_object()) {
        turns.add(model);
        continue;
      }
      expect_fields(model, {"name", "execution_device", "prev"});
      turns.attach(field(model, "name"), model.value("execution_device", json()),
                   model.value("prev", json()));
    }
    const at::NoGradGuard no_grad;
    for (const json& step : field(in, "steps")) turns.make_step(step);
    return json{{"events", turns.events}};
  });
}

std::string device_alike(const json& device) {
  if (device.is_number_integer()) return "acc:" + device.dump();
  const std::string text = text_of(device);
  const size_t colon = text.find(':');
  const bool is_accelerator = text.starts_with("cuda") || text.starts_with("xpu");
  if (!is_accelerator) return text;
  return "acc:" + (colon == std::string::npos ? "0" : text.substr(colon + 1));
}

}  // namespace

json device_pairs(const json& in) {
  if (in.contains("pairs")) return in["pairs"];
  if (in.contains("devices")) return json::array({in["devices"]});
  const bool is_long = in.contains("first_device");
  return json::array({json::array({field(in, is_long ? "first_device" : "first"),
                                   field(in, is_long ? "second_device" : "second")})});
}

std::optional<json> run_big_modeling_turns(const json& in) {
  if (is_kind(in, "same_device")) return part([&] { return compare_devices(in); });
  if (is_kind(in, "cpu_offload_with_hook")) return part([&] { return take_turns(in); });
  return std::nullopt;
}

void write_turns_alike(const json& in, json& recorded) {
  if (is_kind(in, "same_device") && recorded.is_object() && recorded.size() == 1 &&
      !recorded.contains("error")) {
    const json only = recorded.begin().value();
    recorded = {{"same", only}};
  }
  if (!is_kind(in, "cpu_offload_with_hook") || !recorded.contains("events")) return;
  std::map<std::string, std::string> devices;
  json events = json::array();
  for (const json& event : recorded["events"]) {
    if (!event.is_array() || event.size() < 2) return;  // it stays, and differs
    const std::string name = text_of(event[0]), what = text_of(event[1]);
    std::string& device = devices.try_emplace(name, "cpu").first->second;
    if (event.size() > 2) {
      const std::string to = device_alike(event[2]);
      if (what == "to" && to == device) continue;
      if (what == "to") device = to;
    }
    events.push_back({name, what, device});
  }
  recorded["events"] = std::move(events);
}

}  // namespace accelerate::golden

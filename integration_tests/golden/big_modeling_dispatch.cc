#include "integration_tests/golden/big_modeling_dispatch.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "accelerate/big_model/offload.h"
#include "accelerate/comm/checkpoint_error.h"
#include "accelerate/dispatch/dispatch.h"
#include "accelerate/dispatch/offloaded_state.h"
#include "accelerate/hooks/align_devices.h"
#include "accelerate/hooks/attach_hook.h"
#include "accelerate/operators/managed_storage.h"
#include "accelerate/platform/file_system.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/testing/recorded_warnings.h"
#include "integration_tests/golden/answers.h"
#include "integration_tests/golden/big_modeling_files.h"
#include "integration_tests/golden/big_modeling_model.h"
#include "integration_tests/golden/big_modeling_nets.h"
#include "integration_tests/golden/dtypes.h"
#include "integration_tests/golden/fields.h"
#include "integration_tests/golden/module_trees.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;
using torch::nn::Module;

c10::Device device_of(const json& device) {
  if (device.is_string()) return c10::Device(device.get<std::string>());
  return {Runtime::current().device().type(), device.get<c10::DeviceIndex>()};
}

json device_json(const std::optional<c10::Device>& device) {
  if (!device) return nullptr;
  return device->is_cpu() ? json("cpu") : json(device->index());
}

// ---- Where tensors are.

bool is_on_meta(const at::Tensor& tensor) {
  return tensor.is_meta() || (storage_owner(tensor) != nullptr && !is_in_memory(tensor));
}

std::string place_of(const at::Tensor& tensor) {
  return is_on_meta(tensor) ? "meta" : device_text(tensor);
}

NamedTensors tensors_in(const Module& model) {
  NamedTensors all;
  for (const auto& each : model.named_parameters()) all.emplace_back(each.key(), each.value());
  for (const auto& each : model.named_buffers()) all.emplace_back(each.key(), each.value());
  return all;
}

json where(const Module& model, bool with_meta = true) {
  json places = json::object();
  for (const auto& [name, tensor] : tensors_in(model)) {
    const std::string place = place_of(tensor);
    if (with_meta || place != "meta") places[place].push_back(name);
  }
  return places;
}

bool has_equal_values(const NamedTensors& tensors, const NamedTensors& plain) {
  for (const auto& [name, tensor] : tensors) {
    for (const auto& [other, values] : plain) {
      if (name == other && !is_on_meta(tensor) && !at::equal(tensor.cpu(), values)) return false;
    }
  }
  return true;
}

// ---- What is done to the model of a case.

template <typename T>
void take(const json& options, const char* name, T& value) {
  if (options.contains(name) && !options[name].is_null()) value = options[name].get<T>();
}
void take(const json& options, const char* name, std::optional<bool>& value) {
  if (options.contains(name) && !options[name].is_null()) value = options[name].get<bool>();
}
void take(const json& options, const char* name, std::optional<c10::Device>& device) {
  if (options.contains(name) && !options[name].is_null()) device = device_of(options[name]);
}
// One class, or several.
void take_classes(const json& options, std::vector<std::string>& classes) {
  if (options.contains("preload_module_classes")) {
    classes = classes_of(options["preload_module_classes"]);
  }
}

class Placed {
 public:
  explicit Placed(const json& in) : in_(in) {
    // By its own values if no file has them.
    Net plain(in);
    for (const auto& [name, tensor] : tensors_in(*plain.module())) {
      plain_.emplace_back(name, tensor.clone());
    }
    net_ = std::make_unique<Net>(in);
    if (in.contains("files")) {
      write_checkpoint(files_, checkpoint_, in["files"]);
      load_checkpoint_in_model(files_, *plain.module(), checkpoint_);
      plain_.clear();
      for (const auto& [name, tensor] : tensors_in(*plain.module())) {
        plain_.emplace_back(name, tensor.clone());
      }
    }
    const at::NoGradGuard no_grad;
    plain_output_ = (*plain.module())(net_input(in));
  }
  ~Placed() {
    if (has_hooks_) remove_hook_from_submodules(*net_->module());
  }
  Placed(const Placed&) = delete;
  Placed& operator=(const Placed&) = delete;

  void place() {
    const std::string function = string_field(in_, "function");
    if (in_.contains("offload_before")) {
      offload_state_dict(files_, folder_, golden::tensors_of(in_["offload_before"]));
    }
    if (function == "dispatch_model") {
      by_map();
    } else if (function == "cpu_offload") {
      to_cpu();
    } else if (function == "disk_offload") {
      to_disk();
    } else if (function == "attach_align_device_hook") {
      by_hooks();
    } else if (function == "load_checkpoint_and_dispatch") {
      from_files();
    } else {
      throw CaseError("function: unknown " + function);
    }
  }

  json look() {
    json out = {{"where", where(model())}, {"shared", shared_of(model())}};
    if (has_hooks_) out["hooks"] = hooks();
    out["files"] = listing_of(files_, folder_);
    if (dispatched_ && !field(in_, "device_map").is_null()) {
      for (const auto& [name, device] : dispatched_->hf_device_map().entries()) {
        out["hf_device_map"][name] = to_json(device);
      }
    }
    return out;
  }

  json make_step(const json& step) {
    const std::string what = step.is_array() ? step.at(0) : step;
    if (what == "forward") return forward();
    if (what == "remove") return remove();
    if (what == "move") {
      model().to(at::kCPU);
      return json::object();
    }
    if (what == "state_dict") {
      const NamedTensors state = get_state_dict_offloaded_model(model());
      json keys = json::array();
      for (const auto& [name, tensor] : state) keys.push_back(name);
      return {{"keys", std::move(keys)},
              {"values_as_before", has_equal_values(state, plain_)},
              {"where", where(model())}};
    }
    if (what == "align") return align(step);
    throw CaseError("steps: unknown " + step.dump());
  }

 private:
  Module& model() { return *net_->module(); }

  void expect_options(std::initializer_list<const char*> names) {
    expect_fields(field(in_, "options"), names);
  }
  std::string offload_dir() { return bool_field(in_, "offload_dir") ? folder_ : ""; }

  void by_map() {
    expect_options(
        {"main_device", "offload_buffers", "skip_keys", "preload_module_classes", "force_hooks"});
    const json& given = in_["options"];
    DispatchOptions options = {.offload_dir = offload_dir()};
    take(given, "main_device", options.main_device);
    take(given, "offload_buffers", options.offload_buffers);
    take(given, "force_hooks", options.force_hooks);
    take_classes(given, options.preload_module_classes);
    if (given.contains("skip_keys")) options.skip_keys = classes_of(given["skip_keys"]);
    dispatched_ = dispatch_model(net_->module(), map_of(field(in_, "device_map")), options);
  }

  void to_cpu() {
    expect_options({"execution_device", "offload_buffers", "preload_module_classes"});
    CpuOffloadOptions options;
    take(in_["options"], "execution_device", options.execution_device);
    take(in_["options"], "offload_buffers", options.offload_buffers);
    take_classes(in_["options"], options.preload_module_classes);
    dispatched_ = cpu_offload(net_->module(), options);
  }

  void to_disk() {
    expect_options({"execution_device", "offload_buffers", "preload_module_classes"});
    DiskOffloadOptions options;
    take(in_["options"], "execution_device", options.execution_device);
    take(in_["options"], "offload_buffers", options.offload_buffers);
    take_classes(in_["options"], options.preload_module_classes);
    dispatched_ = disk_offload(net_->module(), folder_, options);
  }

  void by_hooks() {
    expect_options({"execution_device", "offload", "offload_buffers", "module_name", "skip_keys",
                    "preload_module_classes", "weights_map"});
    const json& given = in_["options"];
    AttachAlignDeviceOptions options;
    take(given, "execution_device", options.execution_device);
    take(given, "offload", options.offload);
    take(given, "offload_buffers", options.offload_buffers);
    take(given, "module_name", options.module_name);
    if (given.contains("skip_keys")) options.skip_keys = classes_of(given["skip_keys"]);
    take_classes(given, options.preload_module_classes);
    if (given.contains("weights_map") && !given["weights_map"].is_null()) {
      options.weights_map = std::make_shared<OffloadedWeightsLoader>(
          files_,
          OffloadedWeightsLoaderOptions{.state_dict = golden::tensors_of(given["weights_map"])});
    }
    attach_align_device_hook(*net_->module(), options);
    has_hooks_ = true;
  }

  void from_files() {
    expect_options({"max_memory", "no_split_module_classes", "offload_buffers", "dtype",
                    "offload_state_dict", "skip_keys", "preload_module_classes", "force_hooks",
                    "strict", "main_device"});
    const json& given = in_["options"];
    LoadCheckpointAndDispatchOptions options = {.offload_folder =
                                                    bool_field(in_, "offload_dir") ? folder_ : ""};
    const json& map = field(in_, "device_map");
    if (map.is_string()) {
      options.device_map = map.get<std::string>();
    } else if (!map.is_null()) {
      options.device_map = map_of(map);
    }
    take(given, "main_device", options.main_device);
    take(given, "offload_buffers", options.offload_buffers);
    take(given, "force_hooks", options.force_hooks);
    take(given, "strict", options.strict);
    take_classes(given, options.preload_module_classes);
    if (given.contains("skip_keys")) options.skip_keys = classes_of(given["skip_keys"]);
    take(given, "offload_state_dict", options.offload_state_dict);
    if (given.contains("dtype") && !given["dtype"].is_null()) {
      options.dtype = dtype_of(given["dtype"]);
    }
    if (given.contains("no_split_module_classes")) {
      options.no_split_module_classes = classes_of(given["no_split_module_classes"]);
    }
    if (given.contains("max_memory") && !given["max_memory"].is_null()) {
      options.max_memory = internal::value_or_throw(limits_of(given["max_memory"]));
    }
    dispatched_ = load_checkpoint_and_dispatch(files_, net_->module(), checkpoint_, options);
  }

  json hooks() {
    json all = json::object();
    for (const auto& each : model().named_modules()) {
      const auto* const hook = dynamic_cast<AlignDevicesHook*>(find_hook(*each.value()).get());
      if (hook == nullptr) continue;
      const AlignDevicesHookOptions& options = hook->options();
      all[each.key()] = {
          {"hook", "AlignDevicesHook"},
          {"execution_device", device_json(options.execution_device)},
          {"offload", options.offload},
          {"io_same_device", options.io_same_device},
          {"offload_buffers", options.offload_buffers},
          {"place_submodules", options.place_submodules},
          {"skip_keys", options.skip_keys.empty() ? json() : json(options.skip_keys)}};
    }
    return all;
  }

  json forward() {
    at::Tensor x = net_input(in_);
    if (in_.contains("x_device") && !in_["x_device"].is_null()) {
      x = x.to(device_of(in_["x_device"]));
    }
    std::vector<std::string> before;
    for (const auto& [name, tensor] : tensors_in(model())) before.push_back(place_of(tensor));
    json calls = json::array();
    net_->observe([&](const Module& module) {
      json elsewhere = json::object();
      size_t i = 0;
      for (const auto& [name, tensor] : tensors_in(model())) {
        const std::string place = place_of(tensor);
        if (place != before[i++]) elsewhere[place].push_back(name);
      }
      calls.push_back({net_->path_of(module), std::move(elsewhere)});
    });
    const at::NoGradGuard no_grad;
    const at::Tensor output = dispatched_ ? (*dispatched_)(x) : (*net_->module())(x);
    const at::Tensor values = output.cpu();
    json out = {{"output", described(values)},
                {"output_device", device_text(output)},
                {"as_before", at::allclose(values, plain_output_)},
                {"where", where(model())}};
    if (has_hooks_) out["calls"] = std::move(calls);
    return out;
  }

  json remove() {
    dispatched_.reset();
    if (has_hooks_) remove_hook_from_submodules(model());
    return {{"where", where(model())},
            {"hooks", hooks()},
            {"values_as_before", has_equal_values(tensors_in(model()), plain_)},
            {"shared", shared_of(model())}};
  }

  json align(const json& step) {
    Module& module = net_->at(step.at(1));
    json out = {{"offloaded", has_offloaded_params(module)}};
    {
      const ModuleOnDevice aligned = align_module_device(
          module, step.at(2).is_null() ? std::nullopt : std::optional(device_of(step.at(2))));
      out["inside"] = where(model(), /*with_meta=*/false);
    }
    out["after"] = where(model(), /*with_meta=*/false);
    return out;
  }

  const json& in_;
  // Folders of the rank's own disk.
  const std::string folder_ = "/sim/off", checkpoint_ = "/sim/ckpt";
  FileSystem& files_ = Runtime::current().files();
  NamedTensors plain_;  // the values of the model when nothing is placed
  at::Tensor plain_output_;
  std::unique_ptr<Net> net_;
  std::optional<Dispatched<Hooked<NetModule>>> dispatched_;
  bool has_hooks_ = false;
};

// The names of the map that the model does not have, as a warning lists them.
json unknown_names(const RecordedWarnings& warnings) {
  static constexpr absl::string_view kSentence =
      "the device map has names that the model does not have: ";
  json names = json::array();
  for (const std::string& text : plain_texts(warnings)) {
    absl::string_view list = text;
    if (!absl::ConsumePrefix(&list, kSentence)) continue;
    for (const absl::string_view name : absl::StrSplit(list, ", ")) {
      names.push_back(std::string(name));
    }
  }
  return names;
}

}  // namespace

json run_big_modeling_dispatch(const json& in) {
  expect_fields(in, {"kind", "model", "tied", "function", "device_map", "offload_dir", "options",
                     "x_device", "steps", "offload_before", "files", "note"});
  json unknown = json::array();
  json out = with_accelerators([&] {
    Placed placed(in);
    {
      const RecordedWarnings warnings;
      const absl::Cleanup noted = [&] { unknown = unknown_names(warnings); };
      placed.place();
    }
    json answer = placed.look();
    answer["steps"] = json::array();
    for (const json& step : field(in, "steps")) {
      answer["steps"].push_back(part([&] { return placed.make_step(step); }));
    }
    return answer;
  });
  out["log"] = json::array();
  out["warnings"] = unknown;
  return out;
}

}  // namespace accelerate::golden

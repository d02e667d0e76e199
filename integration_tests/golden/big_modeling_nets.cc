#include "integration_tests/golden/big_modeling_nets.h"

#include <cstdint>
#include <optional>

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>

#include "accelerate/modules/module_tensors.h"
#include "integration_tests/golden/big_modeling_model.h"
#include "integration_tests/golden/dtypes.h"
#include "integration_tests/golden/fields.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;
using torch::nn::Module;

at::Tensor empty(const json& tensor) {
  return at::empty(tensor.at(1).get<std::vector<int64_t>>(), dtype_of(tensor.at(2)));
}

const json* find_tensor(const json& tree, const char* kind, const std::string& name) {
  for (const json& tensor : field(tree, kind)) {
    if (tensor.at(0) == name) return &tensor;
  }
  return nullptr;
}

// Its class is called as LibTorch's is.
struct LinearImpl : torch::nn::LinearImpl {
  LinearImpl(const json& tree, const NetObserver& observer)
      : torch::nn::LinearImpl(torch::nn::LinearOptions(width(tree, 1), width(tree, 0))
                                  .bias(find_tensor(tree, "params", "bias") != nullptr)),
        observer_(observer) {
    to(dtype_of(find_tensor(tree, "params", "weight")->at(2)));
  }

  at::Tensor forward(const at::Tensor& x) {
    if (observer_) observer_(*this);
    return torch::nn::LinearImpl::forward(x);
  }

 private:
  static int64_t width(const json& tree, size_t dim) {
    const json* const weight = find_tensor(tree, "params", "weight");
    if (weight == nullptr) throw CaseError("Linear: no weight");
    return weight->at(1).at(dim).get<int64_t>();
  }

  const NetObserver& observer_;
};

// A module's parameters, which may become others.
torch::OrderedDict<std::string, at::Tensor>& parameters_of(Module& module) {
  struct Access : Module {
    using Module::parameters_;
  };
  return module.*&Access::parameters_;
}

std::pair<std::string, std::string> split(const std::string& path) {
  const size_t dot = path.rfind('.');
  if (dot == std::string::npos) return {"", path};
  return {path.substr(0, dot), path.substr(dot + 1)};
}

void share(Module& module, const std::string& name, const at::Tensor& tensor) {
  parameters_of(module)[name] = tensor;
  if (auto* const linear = module.as<torch::nn::LinearImpl>()) {
    (name == "weight" ? linear->weight : linear->bias) = tensor;
  }
}

// The width of the first layer that is called.
std::optional<int64_t> width_of(const json& tree) {
  for (const char* kind : {"params", "buffers"}) {
    if (const json* const weight = find_tensor(tree, kind, "weight")) {
      return weight->at(1).back().get<int64_t>();
    }
  }
  for (const json& child : field(tree, "children")) {
    if (const auto width = width_of(child.at(1))) return width;
  }
  return std::nullopt;
}

}  // namespace

NetModule::NetModule(const json& tree, const NetObserver& observer)
    : Module(string_field(tree, "class")),
      class_(string_field(tree, "class")),
      observer_(observer) {
  expect_fields(tree, {"class", "params", "buffers", "children"});
  for (const json& parameter : field(tree, "params")) {
    register_parameter(parameter.at(0), empty(parameter),
                       c10::isFloatingType(dtype_of(parameter.at(2))));
  }
  for (const json& buffer : field(tree, "buffers")) {
    const at::Tensor& registered = register_buffer(buffer.at(0), empty(buffer));
    if (!buffer.at(3).get<bool>()) non_persistent(registered);
  }
  for (const json& entry : field(tree, "children")) {
    const std::string name = entry.at(0);
    const json& child = entry.at(1);
    const auto add = [&](auto module) {
      register_module(name, module);
      children_.emplace_back([module](const at::Tensor& x) { return (*module)(x); });
    };
    if (string_field(child, "class") == "Linear") {
      add(std::make_shared<Hooked<LinearImpl>>(child, observer));
    } else {
      add(std::make_shared<Hooked<NetModule>>(child, observer));
    }
  }
}

at::Tensor NetModule::own(const char* name) const {
  const Module* module = this;
  if (class_ == "Tap") module = named_children()["linear"].get();
  for (const auto& [each, tensor] : named_module_tensors(*module, {.recurse = false})) {
    if (each == name) return tensor;
  }
  return {};
}

at::Tensor NetModule::forward(const at::Tensor& x) {
  if (observer_ && (children_.empty() || class_ == "Tap")) observer_(*this);
  if (class_ == "BufferLinear" || class_ == "Tap") return at::linear(x, own("weight"), own("bias"));
  if (class_ == "Scale") return x * own("weight") + own("shift");
  if (class_ == "BatchNorm1d") {
    return at::batch_norm(x, own("weight"), own("bias"), own("running_mean"), own("running_var"),
                          /*training=*/false, /*momentum=*/0.1, /*eps=*/1e-5,
                          /*cudnn_enabled=*/false);
  }
  at::Tensor result = x;
  for (const auto& child : children_) result = child(result);
  return result;
}

Net::Net(const json& in, bool is_filled)
    : module_(std::make_shared<Hooked<NetModule>>(field(in, "model"), observer_)) {
  for (const json& group : in.value("tied", json::array())) {
    const at::Tensor shared = module_->named_parameters()[group.at(0).get<std::string>()];
    for (const std::string name : group) {
      const auto [path, last] = split(name);
      share(at(path), last, shared);
    }
  }
  if (is_filled) fill_values(*module_);
}

Module& Net::at(const std::string& path) const {
  if (path.empty()) return *module_;
  const auto modules = module_->named_modules();
  const auto* const found = modules.find(path);
  if (found == nullptr) throw CaseError("the model has no module " + path);
  return **found;
}

std::string Net::path_of(const Module& module) const {
  for (const auto& each : module_->named_modules()) {
    if (each.value().get() == &module) return each.key();
  }
  throw CaseError("a module that is not the model's was called");
}

at::Tensor net_input(const json& in) {
  const auto width = width_of(field(in, "model"));
  if (!width) throw CaseError("model: no layer");
  const at::Tensor numbers = (at::arange(2 * *width) * 5).remainder(7) - 3;
  return (numbers.to(at::kFloat) / 2).view({2, *width});
}

namespace {

// The values that files of the case have take the place of the description's.
void take_values_of_files(Module& module, const json& in) {
  if (!in.contains("files")) return;
  const at::NoGradGuard no_grad;
  const NamedTensors own = named_module_tensors(module, {.recurse = true});
  for (const json& file : in["files"]) {
    if (!file.is_object()) continue;
    for (const auto& [name, values] : tensors_of(field(file, "tensors"))) {
      for (const auto& [each, tensor] : own) {
        if (each == name) tensor.copy_(values);
      }
    }
  }
}

}  // namespace

json plain_tensors(const json& in) {
  return with_accelerators([&] {
    const Net net(in);
    take_values_of_files(*net.module(), in);
    json tensors = json::object();
    for (const auto& each : net.module()->named_parameters()) {
      tensors[each.key()] = described(each.value());
    }
    return tensors;
  });
}

json plain_output(const json& in) {
  return with_accelerators([&] {
    const Net net(in);
    take_values_of_files(*net.module(), in);
    const at::NoGradGuard no_grad;
    return described((*net.module())(net_input(in)));
  });
}

}  // namespace accelerate::golden

#include "integration_tests/golden/big_modeling_model.h"

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include "absl/strings/match.h"
#include "accelerate/modules/module_tensors.h"
#include "integration_tests/golden/answers.h"
#include "integration_tests/golden/dtypes.h"
#include "integration_tests/golden/fields.h"
#include "simulator/cluster/cluster.h"
#include "simulator/disk/sim_disk.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

// A model without a forward pass.
class Tree : public torch::nn::Module {
 public:
  explicit Tree(const json& tree) : Module(string_field(tree, "class")) {
    expect_fields(tree, {"class", "params", "buffers", "children"});
    for (const json& parameter : field(tree, "params")) {
      register_parameter(parameter.at(0), make(parameter),
                         c10::isFloatingType(dtype_of(parameter.at(2))));
    }
    for (const json& buffer : field(tree, "buffers")) {
      const at::Tensor& registered = register_buffer(buffer.at(0), make(buffer));
      if (!buffer.at(3).get<bool>()) non_persistent(registered);
    }
    for (const json& child : field(tree, "children")) {
      register_module(child.at(0), std::make_shared<Tree>(child.at(1)));
    }
  }

  // Lets a parameter of this tree or below it be another tensor.
  void share(const std::string& name, const at::Tensor& tensor) {
    const size_t dot = name.find('.');
    if (dot == std::string::npos) {
      parameters_[name] = tensor;
    } else {
      dynamic_cast<Tree&>(*named_children()[name.substr(0, dot)])
          .share(name.substr(dot + 1), tensor);
    }
  }

 private:
  static at::Tensor make(const json& entry) {
    return at::empty(entry.at(1).get<std::vector<int64_t>>(), dtype_of(entry.at(2)));
  }
};

}  // namespace

at::Tensor tensor_of(const json& tensor) {
  expect_fields(tensor, {"dtype", "shape", "data"});
  std::vector<double> values;
  for (const json& value : field(tensor, "data")) {
    values.push_back(value.is_boolean() ? value.get<bool>() : value.get<double>());
  }
  return at::tensor(values, at::kDouble)
      .to(dtype_of(string_field(tensor, "dtype")))
      .view(ints_field(tensor, "shape"));
}

NamedTensors tensors_of(const json& tensors) {
  NamedTensors named;
  for (const auto& [name, tensor] : tensors.items()) named.emplace_back(name, tensor_of(tensor));
  return named;
}

json data_of(const at::Tensor& tensor) {
  json data = json::array();
  const at::Tensor flat = tensor.detach().cpu().reshape({-1});
  for (int64_t i = 0; i < flat.numel(); ++i) {
    const at::Tensor value = flat[i];
    if (flat.scalar_type() == at::kBool) {
      data.push_back(value.item<bool>());
    } else if (flat.is_floating_point()) {
      data.push_back(value.to(at::kDouble).item<double>());
    } else {
      data.push_back(value.item<int64_t>());
    }
  }
  return data;
}

json described(const at::Tensor& tensor) {
  return {{"dtype", name_of(tensor.scalar_type())},
          {"shape", tensor.sizes().vec()},
          {"data", data_of(tensor)}};
}

std::string device_text(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return "cpu";
  if (tensor.is_meta()) return "meta";
  return "acc:" + std::to_string(tensor.device().index());
}

json with_accelerators(const std::function<json()>& make, const Environment& environment) {
  json out;
  simulator::Cluster cluster(
      "1x1:h100,devices=2",
      {.environment = environment, .disk = std::make_shared<simulator::SimDisk>()});
  cluster.run_on_every_rank([&](simulator::Rank&) { out = part(make); });
  return out;
}

std::shared_ptr<torch::nn::Module> model_of(const json& in, bool is_filled) {
  auto model = std::make_shared<Tree>(field(in, "model"));
  for (const json& group : in.value("tied", json::array())) {
    const at::Tensor shared = model->named_parameters()[group.at(0).get<std::string>()];
    for (const std::string name : group) model->share(name, shared);
  }
  if (is_filled) fill_values(*model);
  return model;
}

void fill_values(torch::nn::Module& model) {
  const at::NoGradGuard no_grad;
  int64_t t = 0;
  std::set<const void*> done;
  const auto fill = [&](const std::string& name, const at::Tensor& tensor) {
    if (!done.insert(tensor.unsafeGetTensorImpl()).second) return;
    const at::Tensor number = (at::arange(tensor.numel()) * 7 + 3 * t++).remainder(11);
    at::Tensor values = number;
    if (tensor.is_floating_point()) {
      values = (number - 5).to(at::kDouble) / 8;
      if (absl::EndsWith(name, "running_var")) values = values.abs() + 1;
    }
    tensor.copy_(values.view(tensor.sizes()));
  };
  for (const auto& item : model.named_parameters()) fill(item.key(), item.value());
  for (const auto& item : model.named_buffers()) fill(item.key(), item.value());
}

json shared_of(const torch::nn::Module& model) {
  std::map<const void*, std::set<std::string>> names;
  for (const auto& item : model.named_parameters()) {
    names[item.value().unsafeGetTensorImpl()].insert(item.key());
  }
  std::set<std::set<std::string>> groups;
  for (const auto& [impl, group] : names) {
    if (group.size() > 1) groups.insert(group);
  }
  return groups;
}

}  // namespace accelerate::golden

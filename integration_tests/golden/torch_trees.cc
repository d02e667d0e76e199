#include "integration_tests/golden/torch_trees.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/linear.h>

#include "absl/strings/str_split.h"
#include "accelerate/config/model_structure.h"
#include "accelerate/modules/module_tensors.h"
#include "accelerate/runtime/runtime.h"
#include "integration_tests/golden/dtypes.h"
#include "integration_tests/golden/fields.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

using torch::nn::Module;

at::Tensor zeros(const json& tensor) {
  return at::zeros(tensor.at(1).get<std::vector<int64_t>>(), dtype_of(tensor.at(2)));
}

// A module's parameters, which may become others.
torch::OrderedDict<std::string, at::Tensor>& parameters_of(Module& module) {
  struct Access : Module {
    using Module::parameters_;
  };
  return module.*&Access::parameters_;
}

// A weight that is a matrix, perhaps a bias, and nothing else.
bool is_linear(const json& tree) {
  const json& parameters = field(tree, "params");
  return string_field(tree, "class") == "Linear" && field(tree, "buffers").empty() &&
         field(tree, "children").empty() && !parameters.empty() && parameters.size() <= 2 &&
         parameters[0].at(0) == "weight" && parameters[0].at(1).size() == 2 &&
         (parameters.size() == 1 || parameters[1].at(0) == "bias");
}

std::shared_ptr<Module> linear_of(const json& tree) {
  const json& parameters = field(tree, "params");
  const json& sizes = parameters[0].at(1);
  torch::nn::Linear linear(
      torch::nn::LinearOptions(sizes.at(1), sizes.at(0)).bias(parameters.size() == 2));
  linear->to(dtype_of(parameters[0].at(2)));
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : linear->parameters()) parameter.zero_();
  return linear.ptr();
}

std::shared_ptr<Module> module_of(const json& tree);

class Tree : public Module, public ModelStructure {
 public:
  Tree(const json& tree, json special)
      : Module(string_field(tree, "class")), special_(std::move(special)) {
    for (const json& parameter : field(tree, "params")) {
      const at::Tensor values = zeros(parameter);
      register_parameter(parameter.at(0).get<std::string>(), values, values.is_floating_point());
    }
    for (const json& buffer : field(tree, "buffers")) {
      const at::Tensor& registered =
          register_buffer(buffer.at(0).get<std::string>(), zeros(buffer));
      if (!buffer.at(3).get<bool>() && Runtime::find_current() != nullptr) {
        non_persistent(registered);
      }
    }
    for (const json& child : field(tree, "children")) {
      register_module(child.at(0).get<std::string>(), module_of(child.at(1)));
    }
  }

  std::vector<std::string> no_split_modules() const override {
    const json classes = special_.value("_no_split_modules", json());
    return classes.is_array() ? classes.get<std::vector<std::string>>()
                              : std::vector<std::string>();
  }
  std::string base_model_prefix() const override { return special_.value("base_model_prefix", ""); }
  std::optional<std::string> input_embeddings() const override { return place("input_embeddings"); }
  std::optional<std::string> output_embeddings() const override {
    return place("output_embeddings");
  }

 private:
  std::optional<std::string> place(const char* name) const {
    const json path = special_.value(name, json());
    return path.is_string() ? std::optional(path.get<std::string>()) : std::nullopt;
  }

  const json special_;
};

std::shared_ptr<Module> module_of(const json& tree) {
  return is_linear(tree) ? linear_of(tree) : std::make_shared<Tree>(tree, json::object());
}

struct Place {
  std::shared_ptr<Module> module;
  std::string name;
};

// Where the parameter with that path is; nothing if there is none.
std::optional<Place> find(std::shared_ptr<Module> module, const std::string& path) {
  std::vector<std::string> names = absl::StrSplit(path, '.');
  const std::string name = names.back();
  names.pop_back();
  for (const std::string& each : names) {
    const auto children = module->named_children();
    const auto* const child = children.find(each);
    if (child == nullptr) return std::nullopt;
    module = *child;
  }
  if (!parameters_of(*module).contains(name)) return std::nullopt;
  return Place{std::move(module), name};
}

void share(const Place& place, const at::Tensor& tensor) {
  parameters_of(*place.module)[place.name] = tensor;
  if (auto* const linear = place.module->as<torch::nn::LinearImpl>()) {
    (place.name == "weight" ? linear->weight : linear->bias) = tensor;
  }
}

}  // namespace

std::shared_ptr<Module> torch_module_of(const json& model, const json& tied, const json& special) {
  if (special.is_object()) {
    expect_fields(special, {"_no_split_modules", "base_model_prefix", "input_embeddings",
                            "output_embeddings"});
  }
  const std::shared_ptr<Module> root =
      is_linear(model)
          ? linear_of(model)
          : std::make_shared<Tree>(model, special.is_object() ? special : json::object());
  for (const json& group : tied) {
    const std::optional<Place> first = find(root, group.at(0).get<std::string>());
    for (size_t i = 1; i < group.size(); ++i) {
      const std::optional<Place> later = find(root, group[i].get<std::string>());
      if (!first || !later) throw CaseError("tied: " + group.dump());
      share(*later, parameters_of(*first->module)[first->name]);
    }
  }
  return root;
}

}  // namespace accelerate::golden

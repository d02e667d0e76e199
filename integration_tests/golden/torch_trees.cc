#include "integration_tests/golden/torch_trees.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/zeros.h>

#include "absl/strings/str_split.h"
#include "accelerate/config/model_structure.h"
#include "integration_tests/golden/dtypes.h"
#include "integration_tests/golden/fields.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

class Tree : public torch::nn::Module, public ModelStructure {
 public:
  Tree(const json& tree, json special)
      : torch::nn::Module(string_field(tree, "class")), special_(std::move(special)) {
    for (const json& parameter : field(tree, "params")) {
      const at::Tensor values = zeros(parameter);
      register_parameter(parameter.at(0).get<std::string>(), values, values.is_floating_point());
    }
    for (const json& buffer : field(tree, "buffers")) {
      register_buffer(buffer.at(0).get<std::string>(), zeros(buffer));
    }
    for (const json& child : field(tree, "children")) {
      register_module(child.at(0).get<std::string>(),
                      std::make_shared<Tree>(child.at(1), json::object()));
    }
  }

  // Under its dotted name; undefined if there is none.
  at::Tensor* find(const std::string& path) {
    Tree* module = this;
    std::vector<std::string> names = absl::StrSplit(path, '.');
    const std::string name = names.back();
    names.pop_back();
    for (const std::string& each : names) {
      const auto children = module->named_children();
      const auto* child = children.find(each);
      if (child == nullptr) return nullptr;
      module = dynamic_cast<Tree*>(child->get());
    }
    return module->parameters_.find(name);
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
  static at::Tensor zeros(const json& tensor) {
    return at::zeros(tensor.at(1).get<std::vector<int64_t>>(), dtype_of(tensor.at(2)));
  }
  std::optional<std::string> place(const char* name) const {
    const json path = special_.value(name, json());
    return path.is_string() ? std::optional(path.get<std::string>()) : std::nullopt;
  }

  const json special_;
};

}  // namespace

std::shared_ptr<torch::nn::Module> torch_module_of(const json& model, const json& tied,
                                                   const json& special) {
  if (special.is_object()) {
    expect_fields(special, {"_no_split_modules", "base_model_prefix", "input_embeddings",
                            "output_embeddings"});
  }
  auto root = std::make_shared<Tree>(model, special.is_object() ? special : json::object());
  for (const json& group : tied) {
    const at::Tensor* first = root->find(group.at(0).get<std::string>());
    for (size_t i = 1; i < group.size(); ++i) {
      at::Tensor* later = root->find(group[i].get<std::string>());
      if (first == nullptr || later == nullptr) throw CaseError("tied: " + group.dump());
      *later = *first;
    }
  }
  return root;
}

}  // namespace accelerate::golden

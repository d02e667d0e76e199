#include "simulator/shape_rules/shape_rules.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "simulator/shape_rules/rule.h"

namespace accelerate::simulator {
namespace {

using shape_rules::Rule;
using shape_rules::Rules;

using OpsByName = std::unordered_map<std::string, std::vector<c10::OperatorHandle>>;

// By the name that an operator shares with its other overloads and its form that works in place.
std::string family(const std::string& name) { return std::string(absl::StripSuffix(name, "_")); }

OpsByName all_ops() {
  auto& dispatcher = c10::Dispatcher::singleton();
  OpsByName ops;
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (const auto op = dispatcher.findSchema(name)) ops[family(name.name)].push_back(*op);
  }
  return ops;
}

// Whether two operators have the same arguments but for out=.
bool same_inputs(const c10::FunctionSchema& a, const c10::FunctionSchema& b) {
  auto inputs = [](const c10::FunctionSchema& schema) {
    std::vector<const c10::Argument*> list;
    for (const c10::Argument& argument : schema.arguments()) {
      if (!argument.is_out()) list.push_back(&argument);
    }
    return list;
  };
  return std::ranges::equal(inputs(a), inputs(b),
                            [](const c10::Argument* x, const c10::Argument* y) {
                              return x->name() == y->name() && *x->type() == *y->type();
                            });
}

bool returns_lists_in_out(const c10::FunctionSchema& schema) {
  return std::ranges::any_of(schema.arguments(), [](const c10::Argument& argument) {
    return argument.is_out() && *argument.type() != *c10::TensorType::get();
  });
}

bool needs_rule(const c10::OperatorHandle& op) {
  return !op.hasKernelForDispatchKey(c10::DispatchKey::Meta) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
         !returns_lists_in_out(op.schema());
}

void register_rule(torch::Library& meta, const OpsByName& ops, const std::string& rule_op,
                   torch::CppFunction (*kernel)()) {
  const std::string text = "aten::" + rule_op;
  const size_t dot = text.find('.');
  const c10::OperatorName name(text.substr(0, dot),
                               dot == std::string::npos ? std::string() : text.substr(dot + 1));
  const auto model = c10::Dispatcher::singleton().findSchema(name);
  if (!model) return;  // another version of LibTorch
  const bool in_place = name.name.ends_with('_');
  for (const c10::OperatorHandle& op : ops.at(family(name.name))) {
    if (in_place && op.operator_name().name != name.name) continue;
    if (!same_inputs(op.schema(), model->schema()) || !needs_rule(op)) continue;
    meta.impl(c10::toString(op.operator_name()).c_str(), kernel());
  }
}

}  // namespace

void install_shape_rules() {
  static const bool installed = [] {
    // Registrations last as long as their Library.
    auto& meta = *new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__,
                                     __LINE__);
    const OpsByName ops = all_ops();
    for (const Rules& rules :
         {shape_rules::pointwise_rules(), shape_rules::reduction_rules(),
          shape_rules::indexing_rules(), shape_rules::convolution_rules(),
          shape_rules::layer_rules(), shape_rules::loss_rules(), shape_rules::linalg_rules()}) {
      for (const Rule& rule : rules) {
        for (const absl::string_view op : absl::StrSplit(rule.ops, ' ')) {
          register_rule(meta, ops, std::string(op), rule.kernel);
        }
      }
    }
    return true;
  }();
  static_cast<void>(installed);
}

}  // namespace accelerate::simulator

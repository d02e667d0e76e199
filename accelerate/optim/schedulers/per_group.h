/// An argument that is one number for all parameter groups or one for each.
///
///   OneCycleLR(optimizer, {.max_lr = 0.1, ...})   OneCycleLR(optimizer, {.max_lr = {0.1, 0.2},
///   ...})
///
/// Errors: c10::ValueError where a list has another length than there are groups.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

namespace accelerate::optim {

class PerGroup {
 public:
  PerGroup(double value) : values_{value} {}
  PerGroup(std::initializer_list<double> values) : PerGroup(std::vector(values)) {}
  PerGroup(std::vector<double> values) : values_(std::move(values)), is_list_(true) {}

  std::vector<double> expanded(const char* name, size_t groups) const {
    if (!is_list_) return std::vector<double>(groups, values_[0]);
    TORCH_CHECK_VALUE(values_.size() == groups, name, ": expected one number or ", groups,
                      ", one for each parameter group, got ", values_.size());
    return values_;
  }

 private:
  std::vector<double> values_;
  bool is_list_ = false;
};

}  // namespace accelerate::optim

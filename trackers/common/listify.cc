#include "trackers/common/listify.h"

#include <cstddef>
#include <cstdint>
#include <string>

namespace accelerate::trackers {
namespace {

TrackerValue element(const TensorValue& tensor, double value) {
  if (tensor.dtype == "bool") return value != 0;
  constexpr double kEndOfInts = 9223372036854775808.0;
  const bool fits = value >= -kEndOfInts && value < kEndOfInts;  // uint64 may not
  if (fits && tensor.dtype.find("int") != std::string::npos) return static_cast<int64_t>(value);
  return value;
}

// The elements below the first `depth` indices, which begin at `*next`.
TrackerValue elements(const TensorValue& tensor, size_t depth, size_t* next) {
  if (depth == tensor.sizes.size()) return element(tensor, tensor.values.at((*next)++));
  TrackerList list;
  for (int64_t i = 0; i < tensor.sizes[depth]; ++i) {
    list.push_back(elements(tensor, depth + 1, next));
  }
  return list;
}

}  // namespace

TrackerValue listify(const TrackerValue& value) {
  if (const auto* tensor = value.get_if<TensorValue>()) {
    size_t next = 0;
    return elements(*tensor, 0, &next);
  }
  if (const auto* dict = value.get_if<TrackerDict>()) return listify(*dict);
  if (const auto* list = value.get_if<TrackerList>()) {
    TrackerList result;
    result.reserve(list->size());
    for (const TrackerValue& entry : *list) result.push_back(listify(entry));
    return result;
  }
  return value;
}

TrackerDict listify(const TrackerDict& dict) {
  TrackerDict result;
  result.reserve(dict.size());
  for (const auto& [name, value] : dict) result.emplace_back(name, listify(value));
  return result;
}

}  // namespace accelerate::trackers

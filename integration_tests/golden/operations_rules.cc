#include "integration_tests/golden/rules.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "integration_tests/golden/errors.h"
#include "integration_tests/golden/fields.h"
#include "integration_tests/golden/nested_values.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

// The encoded value that the library promises; nothing stands for an error.
using Model = std::optional<json>;

bool is_op(const json& in, const char* name) { return string_field(in, "op") == name; }
int64_t ranks_of(const json& in) { return count_field(in, "num_processes"); }
const json& data_of(const json& in, int64_t rank) {
  return field(in, "data").at(static_cast<size_t>(rank));
}
bool flag_of(const json& in, const char* name) { return in.at("args").value(name, false); }

// Puts what the model gives for each rank into the place of what was recorded; its errors say one
// of these words.
void rewrite_ranks(const json& in, json& out, const std::vector<std::string>& says,
                   const std::function<Model(int64_t rank)>& model) {
  json& ranks = out.at("ranks");
  for (int64_t rank = 0; rank < ranks_of(in); ++rank) {
    json& recorded = ranks.at(static_cast<size_t>(rank));
    const Model result = model(rank);
    if (!result) {
      expect_our_error(recorded, {"ValueError"}, says);
    } else {
      recorded = {{"result", *result}};
    }
  }
}

// ---- Encoded values.

bool any_of(const json& value, const std::function<bool(const json&)>& test) {
  if (test(value)) return true;
  auto recurse = [&](const json& part) { return any_of(part, test); };
  if (value.is_array()) return std::any_of(value.begin(), value.end(), recurse);
  if (is_kind(value, "tuple")) return recurse(value["tuple"]);
  if (!is_kind(value, "dict")) return false;
  return std::any_of(value["dict"].begin(), value["dict"].end(),
                     [&](const json& entry) { return recurse(entry.at(1)); });
}

bool is_dict(const json& value) { return is_kind(value, "dict"); }
bool is_tuple(const json& value) { return is_kind(value, "tuple"); }
bool is_tensor(const json& value) { return is_kind(value, "tensor"); }
bool is_container(const json& value) {
  return value.is_array() || is_tuple(value) || is_dict(value);
}
bool is_other_leaf(const json& value) { return !is_container(value) && !is_tensor(value); }

int64_t rows_of(const json& tensor) { return tensor["tensor"]["shape"].at(0).get<int64_t>(); }
bool has_rows(const json& value) { return is_tensor(value) && !value["tensor"]["shape"].empty(); }

// The tensor with the rows that `index` names along dim 0.
template <typename Indices>
json pick_rows(const json& tensor, const Indices& indices) {
  json picked = tensor;
  json& parts = picked["tensor"];
  const auto rows = rows_of(tensor);
  const int64_t width = rows == 0 ? 0 : static_cast<int64_t>(parts["data"].size()) / rows;
  parts["shape"][0] = indices.size();
  parts["data"] = json::array();
  for (int64_t row : indices) {
    for (int64_t i = row * width; i < (row + 1) * width; ++i) {
      parts["data"].push_back(tensor["tensor"]["data"].at(static_cast<size_t>(i)));
    }
  }
  return picked;
}

// ---- split_between_processes

Model length_of(const json& value) {
  if (value.is_array()) return value.size();
  if (is_tuple(value)) return value["tuple"].size();
  if (has_rows(value)) return rows_of(value);
  if (value.is_string()) return decode_value(value).toStringRef().size();
  if (!is_dict(value) || value["dict"].empty()) return std::nullopt;
  const Model length = length_of(value["dict"][0].at(1));
  for (const json& entry : value["dict"]) {
    if (length_of(entry.at(1)) != length) return std::nullopt;
  }
  return length;
}

json pick_entries(const json& value, const std::vector<int64_t>& indices) {
  if (is_tensor(value)) return pick_rows(value, indices);
  if (is_tuple(value)) return {{"tuple", pick_entries(value["tuple"], indices)}};
  if (is_dict(value)) {
    json picked = value;
    for (json& entry : picked["dict"]) entry.at(1) = pick_entries(entry.at(1), indices);
    return picked;
  }
  if (!value.is_array()) return value;
  json picked = json::array();
  for (int64_t index : indices) picked.push_back(value.at(static_cast<size_t>(index)));
  return picked;
}

Model share_of(const json& in, int64_t rank) {
  const json& value = data_of(in, rank);
  const Model length = length_of(value);
  const bool pads = flag_of(in, "apply_padding");
  if (!length) return std::nullopt;
  const auto n = length->get<int64_t>();
  if (pads && n == 0) return std::nullopt;
  const int64_t ranks = ranks_of(in);
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < n; ++i) {
    // Entry i belongs to the last rank whose share begins at it or before.
    const int64_t begin = rank * (n / ranks) + std::min(rank, n % ranks);
    const int64_t end = begin + n / ranks + (rank < n % ranks ? 1 : 0);
    if (begin <= i && i < end) indices.push_back(i);
  }
  while (pads && static_cast<int64_t>(indices.size()) < (n + ranks - 1) / ranks) {
    indices.push_back(n - 1);
  }
  return pick_entries(value, indices);
}

bool splits(const json& in) { return is_op(in, "split_between_processes") && ranks_of(in) > 1; }

void keep_inputs(const json& /*in*/, json& out) {
  for (json& rank : out.at("ranks")) rank.erase("input_after");
}

bool pads_tuples(const json& in) {
  return splits(in) && flag_of(in, "apply_padding") && any_of(data_of(in, 0), is_tuple);
}

bool splits_nested_dicts(const json& in) {
  return splits(in) && any_of(data_of(in, 0), [](const json& value) {
           return is_dict(value) && std::any_of(value["dict"].begin(), value["dict"].end(),
                                                [](const json& e) { return is_dict(e.at(1)); });
         });
}

void split_by_members(const json& in, json& out) {
  rewrite_ranks(in, out, {"split_between_processes: "},
                [&](int64_t rank) { return share_of(in, rank); });
}

// ---- pad_across_processes

// Calls fn(before, after) for each tensor that was padded and has another dtype since.
void for_each_changed_dtype(const json& before, json& after,
                            const std::function<void(const json&, json&)>& fn) {
  if (is_tensor(before) && is_tensor(after)) {
    if (before["tensor"]["dtype"] != after["tensor"]["dtype"]) fn(before, after);
  } else if (is_tuple(before) && is_tuple(after)) {
    for_each_changed_dtype(before["tuple"], after["tuple"], fn);
  } else if (is_dict(before) && is_dict(after)) {
    for (size_t i = 0; i < before["dict"].size(); ++i) {
      for_each_changed_dtype(before["dict"][i].at(1), after["dict"].at(i).at(1), fn);
    }
  } else if (before.is_array() && after.is_array()) {
    for (size_t i = 0; i < before.size(); ++i) for_each_changed_dtype(before[i], after.at(i), fn);
  }
}

// A number as a value of the dtype, if it is one.
Model as_value_of(const json& number, const std::string& dtype) {
  if (dtype == "bool") {
    if (number.is_boolean()) return number;
    if (number != 0 && number != 1) return std::nullopt;
    return number == 1;
  }
  if (!number.is_number_float()) return number;
  const auto value = number.get<double>();
  if (std::trunc(value) != value) return std::nullopt;
  return static_cast<int64_t>(value);
}

bool pads(const json& in) { return is_op(in, "pad_across_processes") && ranks_of(in) > 1; }

void keep_dtypes(const json& in, json& out) {
  bool fits = true;
  json kept = out;
  for (int64_t rank = 0; rank < ranks_of(in); ++rank) {
    json& answer = kept.at("ranks").at(static_cast<size_t>(rank));
    if (!answer.contains("result")) return;
    for_each_changed_dtype(data_of(in, rank), answer["result"],
                           [&](const json& before, json& after) {
                             const auto dtype = before["tensor"]["dtype"].get<std::string>();
                             after["tensor"]["dtype"] = dtype;
                             for (json& number : after["tensor"]["data"]) {
                               const Model value = as_value_of(number, dtype);
                               fits = fits && value.has_value();
                               if (value) number = *value;
                             }
                           });
  }
  if (!fits) {
    const json refused = our_error({"ValueError"}, {"tensors cannot be padded with"});
    for (json& answer : kept.at("ranks")) answer = refused;
  }
  out = std::move(kept);
}

// ---- pad_input_tensors

bool fills_batches(const json& in) { return is_op(in, "pad_input_tensors"); }

// The value with fn(tensor) for each tensor.
Model map_tensors(const json& value, const std::function<Model(const json&)>& fn) {
  if (is_tensor(value)) return fn(value);
  if (!is_container(value)) return std::nullopt;
  json mapped = value;
  json& parts = is_tuple(value) ? mapped["tuple"] : is_dict(value) ? mapped["dict"] : mapped;
  for (json& part : parts) {
    json& element = is_dict(value) ? part.at(1) : part;
    const Model result = map_tensors(element, fn);
    if (!result) return std::nullopt;
    element = *result;
  }
  return mapped;
}

void repeat_last_rows(const json& in, json& out) {
  const json& args = in.at("args");
  const int64_t batch_size = int_field(args, "batch_size");
  const int64_t processes = int_field(args, "num_processes_arg");
  if (args.value("dim", 0) != 0) return;
  rewrite_ranks(in, out, {"pad_input_tensors: "}, [&](int64_t rank) {
    return map_tensors(data_of(in, rank), [&](const json& tensor) -> Model {
      if (!has_rows(tensor) || rows_of(tensor) != batch_size) return std::nullopt;
      std::vector<int64_t> indices;
      const int64_t rows = (batch_size + processes - 1) / processes * processes;
      for (int64_t row = 0; row < rows; ++row) indices.push_back(std::min(row, batch_size - 1));
      return pick_rows(tensor, indices);
    });
  });
}

// ---- find_batch_size

bool finds_batch_size(const json& in) {
  return is_op(in, "find_batch_size") || is_op(in, "ignorant_find_batch_size");
}

void find_first_rows(const json& in, json& out) {
  rewrite_ranks(in, out, {"no tensor with a batch dimension"}, [&](int64_t rank) -> Model {
    Model rows;
    any_of(data_of(in, rank), [&rows](const json& value) {
      if (has_rows(value)) rows = rows_of(value);
      return rows.has_value();
    });
    if (!rows && is_op(in, "ignorant_find_batch_size")) return json();
    return rows;
  });
}

// ---- gather_object, gather_for_metrics

bool gathers_dicts(const json& in) {
  if (ranks_of(in) == 1 || !is_dict(data_of(in, 0))) return false;
  return is_op(in, "gather_object") ||
         (is_op(in, "gather_for_metrics") &&
          (flag_of(in, "use_gather_object") || any_of(data_of(in, 0), is_other_leaf)));
}

// The ranks' values, which stand at one place, one after the other.
Model gathered(const std::vector<json>& values) {
  const json& first = values.front();
  if (is_dict(first)) {
    json all = first;
    for (size_t i = 0; i < first["dict"].size(); ++i) {
      std::vector<json> members;
      for (const json& value : values) members.push_back(value["dict"].at(i).at(1));
      const Model member = gathered(members);
      if (!member) return std::nullopt;
      all["dict"][i].at(1) = *member;
    }
    return all;
  }
  if (has_rows(first)) {
    json all = first;
    all["tensor"]["shape"][0] = rows_of(first) * static_cast<int64_t>(values.size());
    for (size_t i = 1; i < values.size(); ++i) {
      const json& data = values[i]["tensor"]["data"];
      all["tensor"]["data"].insert(all["tensor"]["data"].end(), data.begin(), data.end());
    }
    return all;
  }
  if (first.is_null()) return first;
  if (!first.is_array() && !is_tuple(first)) return std::nullopt;
  json all = json::array();
  for (const json& value : values) {
    const json& entries = is_tuple(value) ? value["tuple"] : value;
    all.insert(all.end(), entries.begin(), entries.end());
  }
  return all;
}

void gather_members(const json& in, json& out) {
  const bool by_member = is_op(in, "gather_for_metrics") && !flag_of(in, "use_gather_object");
  rewrite_ranks(in, out, {"gather_object: ", "gather_for_metrics"}, [&](int64_t /*rank*/) -> Model {
    if (!by_member) return std::nullopt;
    return gathered(in.at("data").get<std::vector<json>>());
  });
}

// ---- concatenate

// Their containers, without what is in them.
json skeleton(const json& value) {
  if (is_tensor(value)) return "tensor";
  if (is_tuple(value)) return {{"tuple", skeleton(value["tuple"])}};
  if (!is_container(value)) return "leaf";
  json bones = json::array();
  if (is_dict(value)) {
    for (const json& entry : value["dict"]) {
      bones.push_back(json::array({entry.at(0), skeleton(entry.at(1))}));
    }
    std::sort(bones.begin(), bones.end());
    return {{"dict", bones}};
  }
  for (const json& element : value) bones.push_back(skeleton(element));
  return bones;
}

bool joins_different_structures(const json& in) {
  if (!is_op(in, "concatenate") || !data_of(in, 0).is_array()) return false;
  const json& list = data_of(in, 0);
  return std::any_of(list.begin(), list.end(),
                     [&](const json& value) { return skeleton(value) != skeleton(list.front()); });
}

void refuse_to_join(const json& in, json& out) {
  rewrite_ranks(in, out, {"concatenate: "}, [](int64_t /*rank*/) -> Model { return std::nullopt; });
}

}  // namespace

std::vector<Decision> operations_rules() {
  return {
      {"operations", "splitting leaves its input alone",
       "HF Accelerate puts a rank's share into the caller's dicts; ours are never changed", &splits,
       &keep_inputs},
      {"operations", "splitting tuples with padding",
       "HF Accelerate cannot pad tuples, and fails; ours are padded like lists", &pads_tuples,
       &split_by_members},
      {"operations", "splitting nested dicts",
       "HF Accelerate splits a dict in a dict by the number of its keys, and loses entries; ours "
       "by the length of its members",
       &splits_nested_dicts, &split_by_members},
      {"operations", "padding keeps the dtype",
       "HF Accelerate's padded tensors take the dtype of tensor + pad_index on those ranks that "
       "are padded; ours keep theirs, and a pad_index that is not a value of it is an error",
       &pads, &keep_dtypes},
      {"operations", "padding batches",
       "HF Accelerate's pad_input_tensors adds zeros, and not always up to a multiple of the "
       "processes; ours repeats the last row until there is one, as its documentation says",
       &fills_batches, &repeat_last_rows},
      {"operations", "the first tensor with rows",
       "HF Accelerate looks for the batch size in the first leaf only; ours is that of the first "
       "tensor that has rows",
       &finds_batch_size, &find_first_rows},
      {"operations", "gathering dicts as objects",
       "HF Accelerate gathers the keys of a dict that is an object; ours are gathered member by "
       "member for metrics, and refused as objects",
       &gathers_dicts, &gather_members},
      {"operations", "joining different structures",
       "HF Accelerate drops what only later values have; ours must have one structure",
       &joins_different_structures, &refuse_to_join},
  };
}

}  // namespace accelerate::golden

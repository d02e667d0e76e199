#include "integration_tests/golden/nested_values.h"

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include "accelerate/tensors/tree_operations.h"
#include "integration_tests/golden/dtypes.h"
#include "integration_tests/golden/fields.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

double decode_float(const json& number) {
  if (number.is_number()) return number.get<double>();
  const std::string text = string_field(number, "float");
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  if (text == "inf") return infinity;
  if (text == "-inf") return -infinity;
  throw CaseError("float: unknown number " + text);
}

json encode_float(double number) {
  if (std::isfinite(number)) return number;
  return {{"float", std::isnan(number) ? "nan" : number > 0 ? "inf" : "-inf"}};
}

at::Tensor decode_tensor(const json& encoded) {
  const at::ScalarType dtype = dtype_of(string_field(encoded, "dtype"));
  const json& data = field(encoded, "data");
  at::Tensor flat;
  if (dtype == at::kBool) {
    std::vector<int64_t> bits;
    for (const json& bit : data) bits.push_back(bit.get<bool>() ? 1 : 0);
    flat = at::tensor(bits, at::kLong);
  } else if (c10::isIntegralType(dtype, /*includeBool=*/false)) {
    flat = at::tensor(data.get<std::vector<int64_t>>(), at::kLong);
  } else {
    std::vector<double> numbers;
    for (const json& number : data) numbers.push_back(decode_float(number));
    flat = at::tensor(numbers, at::kDouble);
  }
  return flat.to(dtype).reshape(ints_field(encoded, "shape"));
}

json encode_tensor(const at::Tensor& tensor) {
  if (is_tensor_information(tensor)) {
    return {{"dict", json::array({json::array({"shape", tensor.sizes().vec()}),
                                  json::array({"dtype", name_of(tensor.scalar_type())})})}};
  }
  json data = json::array();
  const at::Tensor host = tensor.detach().cpu().contiguous();
  if (host.scalar_type() == at::kBool) {
    for (int64_t i = 0; i < host.numel(); ++i) data.push_back(host.const_data_ptr<bool>()[i]);
  } else if (c10::isIntegralType(host.scalar_type(), /*includeBool=*/false)) {
    const at::Tensor wide = host.to(at::kLong);
    for (int64_t i = 0; i < wide.numel(); ++i) data.push_back(wide.const_data_ptr<int64_t>()[i]);
  } else {
    const at::Tensor wide = host.to(at::kDouble);
    for (int64_t i = 0; i < wide.numel(); ++i) {
      data.push_back(encode_float(wide.const_data_ptr<double>()[i]));
    }
  }
  return {{"tensor",
           {{"dtype", name_of(tensor.scalar_type())},
            {"shape", tensor.sizes().vec()},
            {"data", std::move(data)}}}};
}

c10::IValue decode_dict(const json& entries) {
  const bool by_number = !entries.empty() && entries[0].at(0).is_number_integer();
  const c10::TypePtr keys =
      by_number ? c10::TypePtr(c10::IntType::get()) : c10::TypePtr(c10::StringType::get());
  c10::impl::GenericDict dict(keys, c10::AnyType::get());
  for (const json& entry : entries) {
    dict.insert(decode_value(entry.at(0)), decode_value(entry.at(1)));
  }
  return dict;
}

c10::IValue decode_tuple(const json& elements) {
  std::vector<c10::IValue> decoded;
  for (const json& element : elements) decoded.push_back(decode_value(element));
  return c10::ivalue::Tuple::create(std::move(decoded));
}

json encode_elements(c10::ArrayRef<c10::IValue> elements) {
  json encoded = json::array();
  for (const c10::IValue& element : elements) encoded.push_back(encode_value(element));
  return encoded;
}

}  // namespace

bool is_kind(const json& encoded, const char* kind) {
  return encoded.is_object() && encoded.size() == 1 && encoded.contains(kind);
}

c10::IValue decode_value(const json& encoded) {
  if (encoded.is_null()) return {};
  if (encoded.is_boolean()) return encoded.get<bool>();
  if (encoded.is_number_integer()) return encoded.get<int64_t>();
  if (encoded.is_number_float() || is_kind(encoded, "float")) return decode_float(encoded);
  if (encoded.is_string()) return encoded.get<std::string>();
  if (is_kind(encoded, "tensor")) return decode_tensor(encoded["tensor"]);
  if (is_kind(encoded, "tuple")) return decode_tuple(encoded["tuple"]);
  if (is_kind(encoded, "dict")) return decode_dict(encoded["dict"]);
  if (!encoded.is_array()) throw CaseError("unknown value " + encoded.dump());
  c10::impl::GenericList list(c10::AnyType::get());
  for (const json& element : encoded) list.push_back(decode_value(element));
  return list;
}

json encode_value(const c10::IValue& value) {
  if (value.isNone()) return nullptr;
  if (value.isBool()) return value.toBool();
  if (value.isInt()) return value.toInt();
  if (value.isDouble()) return encode_float(value.toDouble());
  if (value.isString()) return value.toStringRef();
  if (value.isTensor()) return encode_tensor(value.toTensor());
  if (value.isTuple()) return {{"tuple", encode_elements(value.toTupleRef().elements())}};
  if (value.isList()) return encode_elements(value.toListRef());
  if (!value.isGenericDict()) throw CaseError("cannot encode a " + value.tagKind());
  json entries = json::array();
  for (const auto& entry : value.toGenericDict()) {
    entries.push_back(json::array({encode_value(entry.key()), encode_value(entry.value())}));
  }
  return {{"dict", std::move(entries)}};
}

}  // namespace accelerate::golden

/// Nested values as the operations family writes them: to c10::IValue and back.
///
/// A tensor is {tensor: {dtype, shape, data}}, a tuple {tuple: [...]}, a dict {dict: [[k, v],
/// ...]}, a float that JSON lacks {float: "inf"}; the rest is as in JSON. A tensor without data
/// (see accelerate/tensors/tree_operations.h) is the dict {shape, dtype}.
/// Errors: CaseError for what is none of these.
/// Threads: pure functions.
#pragma once

#include <ATen/core/ivalue.h>
#include <nlohmann/json.hpp>

namespace accelerate::golden {

c10::IValue decode_value(const nlohmann::json& encoded);
nlohmann::json encode_value(const c10::IValue& value);

/// Whether an encoded value is {kind: ...}, for "tensor", "tuple", "dict".
bool is_kind(const nlohmann::json& encoded, const char* kind);

}  // namespace accelerate::golden

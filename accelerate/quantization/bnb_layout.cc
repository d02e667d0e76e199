#include "accelerate/quantization/bnb_layout.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "accelerate/base/document.h"
#include "accelerate/base/enum_text.h"
#include "accelerate/base/json_text.h"
#include "accelerate/quantization/code_maps.h"
#include "accelerate/values/dtypes.h"
#include "accelerate/values/fields.h"

namespace accelerate {

using internal::blocks_of;

namespace {

constexpr char kAbsmax[] = ".absmax";
constexpr char kQuantMap[] = ".quant_map";
constexpr char kNestedAbsmax[] = ".nested_absmax";
constexpr char kNestedQuantMap[] = ".nested_quant_map";
constexpr int64_t kFourBitCodes = 16;
constexpr int64_t kDynamicCodes = 256;

constexpr char kState[] = ".quant_state.bitsandbytes__";

std::string state_name(const std::string& name, FourBitType type) {
  return absl::StrCat(name, kState, to_string(type));
}

// As Python's json module writes it.
std::string state_text(const FourBitTensor& weight) {
  std::string text =
      absl::StrCat(R"({"quant_type": ")", to_string(weight.type), R"(", "blocksize": )",
                   weight.block_size, R"(, "dtype": ")", dtype_name(weight.dtype),
                   R"(", "shape": [)", absl::StrJoin(weight.sizes, ", "), "]");
  if (weight.nested) {
    absl::StrAppend(&text, R"(, "nested_blocksize": )", weight.nested->differences.block_size,
                    R"(, "nested_dtype": "float32", "nested_offset": )",
                    json_text(static_cast<double>(weight.nested->offset)));
  }
  return absl::StrCat(text, "}");
}

const at::Tensor& entry(const TensorsByName& tensors, const std::string& name) {
  const auto found = tensors.find(name);
  TORCH_CHECK_VALUE(found != tensors.end(), "a quantised weight has no entry \"", name, "\"");
  return found->second;
}

// The entry, which must have so many values of the dtype, for the reason `why`.
at::Tensor entry(const TensorsByName& tensors, const std::string& name, at::ScalarType dtype,
                 int64_t count, const std::string& why = "") {
  const at::Tensor& tensor = entry(tensors, name);
  TORCH_CHECK_VALUE(tensor.scalar_type() == dtype && tensor.numel() == count,
                    "a quantised weight: \"", name, "\" has ", tensor.numel(), " values of ",
                    dtype_name(tensor.scalar_type()), ", not ", count, " of ", dtype_name(dtype),
                    why);
  return tensor.contiguous();
}

FourBitType type_of(const std::string& name, const TensorsByName& tensors) {
  const std::string fp4 = state_name(name, FourBitType::kFp4);
  const std::string nf4 = state_name(name, FourBitType::kNf4);
  const bool is_fp4 = tensors.contains(fp4), is_nf4 = tensors.contains(nf4);
  TORCH_CHECK_VALUE(is_fp4 != is_nf4, "a weight in 4 bits has one of the entries \"", fp4,
                    "\" and \"", nf4, "\", not ", is_fp4 ? "both" : "none");
  return is_fp4 ? FourBitType::kFp4 : FourBitType::kNf4;
}

nlohmann::ordered_json state_of(const std::string& key, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.scalar_type() == at::kByte, "a quantised weight: \"", key,
                    "\" has values of ", dtype_name(tensor.scalar_type()), ", not uint8");
  const at::Tensor host = tensor.cpu().contiguous();
  const absl::string_view text(reinterpret_cast<const char*>(host.const_data_ptr<uint8_t>()),
                               static_cast<size_t>(host.numel()));
  const absl::StatusOr<nlohmann::ordered_json> parsed = json_value(text);
  TORCH_CHECK_VALUE(parsed.ok(), "a quantised weight: \"", key, "\": ", parsed.status().message());
  return *parsed;
}

at::ScalarType dtype_of(const std::string& text, const std::string& key) {
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble}) {
    if (dtype_name(dtype) == text) return dtype;
  }
  TORCH_CHECK_VALUE(false, "a quantised weight: \"", key, "\": its dtype is \"", text,
                    "\", which is not float32, float16, bfloat16 or float64");
}

int64_t count_of(const std::vector<int64_t>& sizes, const std::string& key) {
  int64_t count = 1;
  for (const int64_t size : sizes) {
    const bool fits =
        size >= 0 && (size == 0 || count <= std::numeric_limits<int64_t>::max() / size);
    TORCH_CHECK_VALUE(fits, "a quantised weight: \"", key, "\": its shape is [",
                      absl::StrJoin(sizes, ", "), "]");
    count *= size;
  }
  return count;
}

int64_t block_size_of(const nlohmann::ordered_json& state, const char* name,
                      const std::string& key) {
  const auto size = internal::field_of<int64_t>(state, name, key);
  TORCH_CHECK_VALUE(size > 0 && size % 2 == 0, "a quantised weight: \"", key, "\": its ", name,
                    " is ", size, ", which is not even and above 0");
  return size;
}

// Behind "weight", which the name ends with.
std::string sibling(const std::string& name, const char* sibling) {
  absl::string_view prefix = name;
  const bool is_weight = absl::ConsumeSuffix(&prefix, "weight");
  TORCH_CHECK_VALUE(is_weight, "the name of a weight in 8 bits ends with \"weight\", not as \"",
                    name, "\" does");
  return absl::StrCat(prefix, sibling);
}

}  // namespace

TensorsByName to_bnb(const std::string& name, const FourBitTensor& weight) {
  TensorsByName tensors = {{name, weight.data}, {name + kQuantMap, weight.quant_map}};
  if (weight.nested) {
    const BlockwiseTensor& differences = weight.nested->differences;
    tensors[name + kAbsmax] = differences.codes;
    tensors[name + kNestedAbsmax] = differences.absmax;
    tensors[name + kNestedQuantMap] = differences.quant_map;
  } else {
    tensors[name + kAbsmax] = weight.absmax;
  }
  const std::string text = state_text(weight);
  tensors[state_name(name, weight.type)] =
      at::tensor(at::ArrayRef<uint8_t>(reinterpret_cast<const uint8_t*>(text.data()), text.size()));
  return tensors;
}

TensorsByName to_bnb(const std::string& name, const Int8Weight& weight) {
  return {{name, weight.data},
          {sibling(name, "SCB"), weight.scb},
          {sibling(name, "weight_format"), at::zeros({}, at::kByte)}};
}

std::string weight_of_state(const std::string& key) {
  const size_t begin = key.rfind(kState);
  return begin == std::string::npos ? "" : key.substr(0, begin);
}

FourBitState four_bit_state(const std::string& key, const at::Tensor& text) {
  const nlohmann::ordered_json json = state_of(key, text);
  FourBitState state;
  const auto type = internal::field_of<std::string>(json, "quant_type", key);
  const std::string weight = weight_of_state(key);
  const bool is_nf4 = key == state_name(weight, FourBitType::kNf4);
  state.type = is_nf4 ? FourBitType::kNf4 : FourBitType::kFp4;
  TORCH_CHECK_VALUE(key == state_name(weight, state.type) && type == to_string(state.type),
                    "a quantised weight: \"", key, "\": its quant_type is \"", type, "\"");
  state.dtype = dtype_of(internal::field_of<std::string>(json, "dtype", key), key);
  state.sizes = internal::field_of<std::vector<int64_t>>(json, "shape", key);
  state.block_size = block_size_of(json, "blocksize", key);
  if (!json.contains("nested_blocksize")) return state;
  state.nested_block_size = block_size_of(json, "nested_blocksize", key);
  state.nested_offset = internal::field_of<double>(json, "nested_offset", key);
  TORCH_CHECK_VALUE(std::abs(state.nested_offset) <= std::numeric_limits<float>::max(),
                    "a quantised weight: \"", key, "\": its nested_offset is ",
                    state.nested_offset);
  return state;
}

FourBitTensor four_bit_from_bnb(const std::string& name, const TensorsByName& tensors) {
  const std::string key = state_name(name, type_of(name, tensors));
  const FourBitState state = four_bit_state(key, entry(tensors, key));
  FourBitTensor weight = {.type = state.type,
                          .sizes = state.sizes,
                          .dtype = state.dtype,
                          .block_size = state.block_size};
  const int64_t count = count_of(weight.sizes, key);
  const int64_t blocks = blocks_of(count, weight.block_size);
  const std::string why =
      absl::StrCat(": its state has ", count, " values in blocks of ", weight.block_size);

  const at::Tensor& stored = entry(tensors, name);
  const auto bytes = static_cast<int64_t>(stored.nbytes());
  TORCH_CHECK_VALUE(bytes == count / 2 + count % 2, "a quantised weight: \"", name, "\" has ",
                    bytes, " bytes, which are not ", count, " values in 4 bits");
  weight.data = stored.flatten().view(at::kByte).view({bytes, 1});
  weight.quant_map = entry(tensors, name + kQuantMap, at::kFloat, kFourBitCodes);
  if (!tensors.contains(name + kNestedAbsmax)) {
    weight.absmax = entry(tensors, name + kAbsmax, at::kFloat, blocks, why);
    return weight;
  }
  TORCH_CHECK_VALUE(state.nested_block_size, "a quantised weight: \"", key,
                    "\" has no nested_blocksize, and there is a \"", name, kNestedAbsmax, "\"");
  BlockwiseTensor differences;
  differences.block_size = *state.nested_block_size;
  differences.codes = entry(tensors, name + kAbsmax, at::kByte, blocks, why);
  differences.absmax =
      entry(tensors, name + kNestedAbsmax, at::kFloat, blocks_of(blocks, differences.block_size),
            absl::StrCat(why, ", and their scales in blocks of ", differences.block_size));
  differences.quant_map = entry(tensors, name + kNestedQuantMap, at::kFloat, kDynamicCodes);
  weight.nested = NestedAbsmax{std::move(differences), static_cast<float>(state.nested_offset)};
  return weight;
}

Int8Weight int8_from_bnb(const std::string& name, const TensorsByName& tensors) {
  const at::Tensor& data = entry(tensors, name);
  TORCH_CHECK_VALUE(data.scalar_type() == at::kChar && data.dim() == 2, "a weight in 8 bits: \"",
                    name, "\" is a matrix of int8, not of ", dtype_name(data.scalar_type()),
                    " and of shape ", data.sizes());
  if (const auto found = tensors.find(sibling(name, "weight_format")); found != tensors.end()) {
    const bool has_rows = found->second.numel() == 1 && found->second.item<int64_t>() == 0;
    TORCH_CHECK_VALUE(has_rows, "a weight in 8 bits: \"", found->first,
                      "\" is not 0: its columns are in another order than rows have them");
  }
  const std::string scb = sibling(name, "SCB");
  return {.data = data.contiguous(), .scb = entry(tensors, scb, at::kFloat, data.size(0))};
}

}  // namespace accelerate

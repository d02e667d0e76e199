#include "accelerate/quantization/bnb_layout.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "accelerate/quantization/code_maps.h"
#include "accelerate/testing/value_error.h"

namespace accelerate {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using torch::Tensor;

constexpr FourBitType kTypes[] = {FourBitType::kFp4, FourBitType::kNf4};

std::vector<uint8_t> bytes_of(const Tensor& tensor) {
  const Tensor flat = tensor.contiguous();
  const auto* const data = static_cast<const uint8_t*>(flat.const_data_ptr());
  return {data, data + flat.nbytes()};
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.sizes() == b.sizes() && a.dtype() == b.dtype() && bytes_of(a) == bytes_of(b);
}

Tensor normal(at::IntArrayRef sizes) {
  torch::manual_seed(1);
  return torch::randn(sizes);
}

// ---- Names.

std::vector<std::string> names_of(const TensorsByName& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  return names;
}

std::string text_of(const Tensor& bytes) {
  const std::vector<uint8_t> data = bytes_of(bytes);
  return {data.begin(), data.end()};
}

TEST(BnbLayout, NamesThePartsOfAWeight) {
  const Tensor values = normal({8, 64}).to(at::kBFloat16);
  const TensorsByName plain = to_bnb("fc.weight", quantize_4bit(values));
  EXPECT_THAT(names_of(plain), ElementsAre("fc.weight", "fc.weight.absmax", "fc.weight.quant_map",
                                           "fc.weight.quant_state.bitsandbytes__fp4"));
  EXPECT_EQ(text_of(plain.at("fc.weight.quant_state.bitsandbytes__fp4")),
            R"({"quant_type": "fp4", "blocksize": 64, "dtype": "bfloat16", "shape": [8, 64]})");

  FourBitTensor packed =
      quantize_4bit(values, {.type = FourBitType::kNf4, .use_double_quant = true});
  packed.nested->offset = 0.25f;
  const TensorsByName nested = to_bnb("fc.weight", packed);
  EXPECT_THAT(names_of(nested),
              ElementsAre("fc.weight", "fc.weight.absmax", "fc.weight.nested_absmax",
                          "fc.weight.nested_quant_map", "fc.weight.quant_map",
                          "fc.weight.quant_state.bitsandbytes__nf4"));
  EXPECT_EQ(text_of(nested.at("fc.weight.quant_state.bitsandbytes__nf4")),
            R"({"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [8, 64], )"
            R"("nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.25})");
  EXPECT_EQ(nested.at("fc.weight.absmax").scalar_type(), at::kByte);
}

TEST(BnbLayout, GivesTheWeightBack) {
  for (const FourBitType type : kTypes) {
    for (const bool use_double_quant : {false, true}) {
      const FourBitTensor packed = quantize_4bit(
          normal({9, 35}).to(at::kHalf), {.type = type, .use_double_quant = use_double_quant});
      TensorsByName tensors = to_bnb("a.weight", packed);
      tensors["a.bias"] = torch::zeros({9});
      const FourBitTensor restored = four_bit_from_bnb("a.weight", tensors);
      EXPECT_EQ(restored.type, type);
      EXPECT_EQ(restored.dtype, at::kHalf);
      EXPECT_EQ(restored.sizes, packed.sizes);
      EXPECT_TRUE(same_bits(restored.dequantize(), packed.dequantize()));
    }
  }
}

// With quant_storage the bytes are those of another dtype's values.
TEST(BnbLayout, ReadsBytesThatAreStoredAsFloats) {
  const FourBitTensor packed = quantize_4bit(normal({8, 64}));
  TensorsByName tensors = to_bnb("weight", packed);
  tensors["weight"] = packed.data.view({-1, 2}).view(at::kBFloat16);
  EXPECT_TRUE(same_bits(four_bit_from_bnb("weight", tensors).data, packed.data));
}

TEST(BnbLayout, SaysWhichEntryIsWrong) {
  const TensorsByName good =
      to_bnb("w", quantize_4bit(normal({8, 64}), {.use_double_quant = true}));
  const std::string state = "w.quant_state.bitsandbytes__fp4";
  const auto error_with = [&](const std::string& name, const Tensor& tensor) {
    TensorsByName tensors = good;
    tensors[name] = tensor;
    return value_error_of([&] { four_bit_from_bnb("w", tensors); });
  };
  const auto error_without = [&](const std::string& name) {
    TensorsByName tensors = good;
    tensors.erase(name);
    return value_error_of([&] { four_bit_from_bnb("w", tensors); });
  };
  const auto error_with_state = [&](const std::string& text) {
    return error_with(state, torch::tensor(std::vector<uint8_t>(text.begin(), text.end())));
  };
  EXPECT_EQ(error_with("unrelated", torch::zeros({1})), "no error");
  EXPECT_THAT(error_without(state), AllOf(HasSubstr(state), HasSubstr("none")));
  EXPECT_THAT(error_without("w"), HasSubstr("\"w\""));
  EXPECT_THAT(error_without("w.quant_map"), HasSubstr("w.quant_map"));
  EXPECT_THAT(error_without("w.nested_quant_map"), HasSubstr("w.nested_quant_map"));
  // Without it the scales are not in 8 bits.
  EXPECT_THAT(error_without("w.nested_absmax"), HasSubstr("w.absmax"));
  EXPECT_THAT(error_with("w", torch::zeros({255, 1}, torch::kByte)), HasSubstr("255 bytes"));
  EXPECT_THAT(error_with("w.absmax", torch::zeros({7}, torch::kByte)),
              AllOf(HasSubstr("w.absmax"), HasSubstr("7 values"), HasSubstr("not 8")));
  EXPECT_THAT(error_with("w.quant_state.bitsandbytes__nf4", good.at(state)), HasSubstr("both"));
  EXPECT_THAT(error_with_state("{"), AllOf(HasSubstr(state), HasSubstr("not JSON")));
  EXPECT_THAT(error_with_state(R"({"quant_type": "nf4"})"), HasSubstr("nf4"));
  const auto state_with = [](const std::string& dtype, const std::string& shape) {
    return R"({"quant_type": "fp4", "blocksize": 64, "dtype": ")" + dtype + R"(", "shape": )" +
           shape + R"(, "nested_blocksize": 256, "nested_offset": 1})";
  };
  EXPECT_EQ(error_with_state(state_with("float32", "[8, 64]")), "no error");
  EXPECT_THAT(error_with_state(state_with("int8", "[8, 64]")), HasSubstr("int8"));
  EXPECT_THAT(error_with_state(state_with("float32", "[8, -64]")), HasSubstr("[8, -64]"));
  EXPECT_THAT(error_with_state(state_with("float32", "[4611686018427387904, 4]")),
              HasSubstr("its shape is"));
  EXPECT_THAT(error_with_state(state_with("float32", "[8, 65]")), HasSubstr("256 bytes"));
}

TEST(BnbLayout, NamesAWeightInEightBits) {
  const Int8Weight packed = quantize_rowwise(normal({6, 10}));
  TensorsByName tensors = to_bnb("a.fc.weight", packed);
  ASSERT_EQ(tensors.size(), 3);
  EXPECT_EQ(tensors.at("a.fc.weight_format").item<int>(), 0);
  const Int8Weight restored = int8_from_bnb("a.fc.weight", tensors);
  EXPECT_TRUE(torch::equal(restored.data, packed.data));
  EXPECT_TRUE(torch::equal(restored.scb, packed.scb));
  EXPECT_TRUE(torch::equal(tensors.at("a.fc.SCB"), packed.scb));

  tensors["a.fc.weight_format"] = torch::full({}, 2, at::kByte);
  EXPECT_THAT(value_error_of([&] { int8_from_bnb("a.fc.weight", tensors); }),
              HasSubstr("a.fc.weight_format"));
  tensors.erase("a.fc.weight_format");
  EXPECT_EQ(value_error_of([&] { int8_from_bnb("a.fc.weight", tensors); }), "no error");
  tensors["a.fc.SCB"] = torch::ones({5});
  EXPECT_THAT(value_error_of([&] { int8_from_bnb("a.fc.weight", tensors); }),
              AllOf(HasSubstr("a.fc.SCB"), HasSubstr("5 values"), HasSubstr("not 6")));
  tensors["a.fc.weight"] = torch::ones({6, 10});
  EXPECT_THAT(value_error_of([&] { int8_from_bnb("a.fc.weight", tensors); }),
              AllOf(HasSubstr("a.fc.weight"), HasSubstr("float32")));
  EXPECT_THAT(value_error_of([&] { to_bnb("a.fc.kernel", packed); }), HasSubstr("a.fc.kernel"));
}

// ---- Bytes of bitsandbytes itself: bitsandbytes_answers.json, by record_bitsandbytes.py.

constexpr char kAnswers[] = "accelerate/quantization/bitsandbytes_answers.json";

// As in record_bitsandbytes.py.
double recorded_value(int64_t i) {
  const auto whole = static_cast<double>((7 * i * i + 13 * i) % 257 - 128);
  return std::ldexp(whole / 64, static_cast<int>(i / 64 % 5) - 2);
}

at::ScalarType dtype_of(const json& answer) {
  const auto text = answer.at("dtype").get<std::string>();
  for (const at::ScalarType dtype : {at::kByte, at::kChar, at::kHalf, at::kBFloat16, at::kFloat}) {
    if (c10::getDtypeNames(dtype).first == text) return dtype;
  }
  ADD_FAILURE() << "unknown dtype " << text;
  return at::kFloat;
}

Tensor weight_of(const json& answer) {
  const auto sizes = answer.at("sizes").get<std::vector<int64_t>>();
  Tensor weight = torch::empty(sizes, at::kDouble);
  for (int64_t i = 0; i < weight.numel(); ++i) {
    weight.mutable_data_ptr<double>()[i] = recorded_value(i);
  }
  return weight.to(dtype_of(answer));
}

Tensor tensor_of(const json& raw) {
  std::string digits;
  for (const json& piece : raw.at("hex")) digits += piece.get<std::string>();
  std::string bytes;
  EXPECT_TRUE(absl::HexStringToBytes(digits, &bytes));
  Tensor tensor = torch::empty(raw.at("sizes").get<std::vector<int64_t>>(), dtype_of(raw));
  EXPECT_EQ(tensor.nbytes(), bytes.size());
  std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

struct Answer {
  explicit Answer(const char* key) {
    std::ifstream file(kAnswers);
    const json all = json::parse(file);
    answer = all.at(key);
    for (const auto& [name, raw] : answer.at("entries").items()) entries[name] = tensor_of(raw);
    weight = weight_of(answer);
    values = tensor_of(answer.at("values"));
  }

  json answer;
  TensorsByName entries;
  Tensor weight, values;
};

void expect_same_entries(const TensorsByName& ours, const TensorsByName& theirs) {
  EXPECT_EQ(names_of(ours), names_of(theirs));
  for (const auto& [name, tensor] : theirs) {
    EXPECT_TRUE(same_bits(ours.at(name), tensor)) << name;
  }
}

TEST(Bitsandbytes, HasTheSameBytesInNf4WithDoubleQuantisation) {
  const Answer recorded("nf4");
  const FourBitTensor packed =
      quantize_4bit(recorded.weight, {.type = FourBitType::kNf4, .use_double_quant = true});
  expect_same_entries(to_bnb("weight", packed), recorded.entries);
  const Tensor values = four_bit_from_bnb("weight", recorded.entries).dequantize();
  const int64_t rows = recorded.values.size(0);
  EXPECT_TRUE(same_bits(values.narrow(0, values.size(0) - rows, rows), recorded.values));
}

std::vector<uint8_t> codes_of(const FourBitTensor& packed) {
  std::vector<uint8_t> codes;
  for (const uint8_t pair : bytes_of(packed.data)) {
    codes.push_back(pair >> 4);
    codes.push_back(pair & 15);
  }
  return codes;
}

// Between two numbers that are as near ours is the one of bitsandbytes' GPU kernels. Its CPU
// kernels take the smaller one.
TEST(Bitsandbytes, HasTheSameBytesInFp4ButForTies) {
  const Answer recorded("fp4");
  const FourBitTensor packed = quantize_4bit(recorded.weight);
  const FourBitTensor theirs = four_bit_from_bnb("weight", recorded.entries);
  TensorsByName ours = to_bnb("weight", packed);
  ours["weight"] = theirs.data;
  expect_same_entries(ours, recorded.entries);
  EXPECT_TRUE(same_bits(theirs.dequantize(), recorded.values));

  const auto& map = four_bit_map(FourBitType::kFp4);
  const std::vector<uint8_t> our_codes = codes_of(packed), their_codes = codes_of(theirs);
  ASSERT_EQ(our_codes.size(), their_codes.size());
  for (size_t i = 0; i < our_codes.size(); ++i) {
    if (our_codes[i] == their_codes[i]) continue;
    const float our_number = map[our_codes[i]], their_number = map[their_codes[i]];
    EXPECT_LT(their_number, our_number) << i;
    const auto position = static_cast<int64_t>(i);
    const double quotient =
        recorded_value(position) / packed.absmax[position / kFourBitBlock].item<double>();
    EXPECT_NEAR(quotient, (our_number + their_number) / 2, 1e-6) << i;
  }
}

TEST(Bitsandbytes, HasTheSameBytesInEightBits) {
  const Answer recorded("int8");
  const Int8Weight packed = quantize_rowwise(recorded.weight);
  expect_same_entries(to_bnb("weight", packed), recorded.entries);
  const Int8Weight theirs = int8_from_bnb("weight", recorded.entries);
  // Theirs are data x scb x 1/127, with a rounding more.
  EXPECT_TRUE(torch::allclose(theirs.dequantize(at::kFloat), recorded.values, 3e-7, 0));
}

// bitsandbytes rounds the integers' part to float16, and again its sum with the outliers' part;
// ours is rounded once.
TEST(Bitsandbytes, HasTheSameProductInEightBits) {
  const Answer recorded("int8");
  const json& product = recorded.answer.at("product");
  const Int8Weight weight = int8_from_bnb("weight", recorded.entries);
  const auto output = [&weight](const Tensor& features) {
    return int8_linear(features, weight, Tensor(), 6.0).to(at::kFloat);
  };
  const Tensor input = tensor_of(product.at("input"));
  Tensor without_outliers = input.clone();
  for (const int64_t column : {5, 70}) without_outliers.select(1, column).zero_();
  const Tensor ours = output(input), theirs = tensor_of(product.at("output")).to(at::kFloat);
  const Tensor allowed =
      (output(without_outliers).abs() + ours.abs() + theirs.abs()) * std::ldexp(1.0, -11);
  EXPECT_TRUE(((ours - theirs).abs() <= allowed).all().item<bool>());
  EXPECT_GT(theirs.abs().min().item<float>(), 0);
}

}  // namespace
}  // namespace accelerate

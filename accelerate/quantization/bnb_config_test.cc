#include "accelerate/quantization/bnb_config.h"

#include <limits>
#include <string>
#include <variant>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "accelerate/testing/recorded_warnings.h"
#include "accelerate/testing/value_error.h"
#include "accelerate/values/fields.h"

namespace accelerate {
namespace {

using c10::ScalarType;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Config = BnbQuantizationConfig;
using Json = nlohmann::ordered_json;

std::string error_of(const Config& config) {
  return value_error_of([&] { resolve(config); });
}

TEST(BnbQuantizationConfig, HasThePeersDefaults) {
  const Config in_8_bits = resolve({.load_in_8bit = true});
  EXPECT_EQ(in_8_bits.llm_int8_threshold, 6.0);
  EXPECT_EQ(in_8_bits.quant_type(), FourBitType::kFp4);
  EXPECT_FALSE(in_8_bits.bnb_4bit_use_double_quant);
  EXPECT_EQ(in_8_bits.compute_dtype(), ScalarType::Half);
  EXPECT_EQ(in_8_bits.remaining_dtype(), ScalarType::Half);
  EXPECT_EQ(in_8_bits.skip_modules, std::nullopt);
  EXPECT_EQ(in_8_bits.keep_in_fp32_modules, std::nullopt);
  EXPECT_EQ(std::get<ScalarType>(in_8_bits.target_dtype()), ScalarType::Char);

  const Config in_4_bits = resolve({.load_in_4bit = true});
  EXPECT_EQ(in_4_bits.remaining_dtype(), ScalarType::Half);
  EXPECT_EQ(std::get<CustomDtype>(in_4_bits.target_dtype()), CustomDtype::kInt4);
}

TEST(BnbQuantizationConfig, TakesDtypesByNameAndAsThemselves) {
  const Config named = resolve({.load_in_4bit = true, .bnb_4bit_compute_dtype = "bf16"});
  EXPECT_EQ(named.compute_dtype(), ScalarType::BFloat16);
  EXPECT_EQ(named.remaining_dtype(), ScalarType::BFloat16);
  const Config given = resolve({.load_in_4bit = true,
                                .bnb_4bit_compute_dtype = ScalarType::Float,
                                .torch_dtype = ScalarType::Double});
  EXPECT_EQ(given.compute_dtype(), ScalarType::Float);
  EXPECT_EQ(given.remaining_dtype(), ScalarType::Double);
  EXPECT_EQ(resolve({.load_in_8bit = true, .torch_dtype = "fp32"}).remaining_dtype(),
            ScalarType::Float);
  // In 8 bits nothing is computed in the compute dtype.
  EXPECT_EQ(resolve({.load_in_8bit = true, .bnb_4bit_compute_dtype = "bf16"}).remaining_dtype(),
            ScalarType::Half);
}

TEST(BnbQuantizationConfig, StaysAsItIsWhenItIsResolvedAgain) {
  const Config config = resolve({.load_in_4bit = true,
                                 .bnb_4bit_quant_type = "nf4",
                                 .bnb_4bit_use_double_quant = true,
                                 .bnb_4bit_compute_dtype = "fp32",
                                 .skip_modules = std::vector<std::string>{"lm_head"},
                                 .keep_in_fp32_modules = std::vector<std::string>{"norm"}});
  EXPECT_EQ(config.quant_type(), FourBitType::kNf4);
  EXPECT_EQ(resolve(config), config);
}

TEST(BnbQuantizationConfig, SaysWhatIsWrong) {
  EXPECT_EQ(error_of({}), "load_in_4bit and load_in_8bit can't be both False");
  EXPECT_EQ(error_of({.load_in_8bit = true, .load_in_4bit = true}),
            "load_in_4bit and load_in_8bit can't be both True");
  EXPECT_EQ(error_of({.load_in_4bit = true, .bnb_4bit_quant_type = "NF4"}),
            "bnb_4bit_quant_type must be in ['fp4','nf4'] but found NF4");
  EXPECT_EQ(error_of({.load_in_8bit = true, .bnb_4bit_quant_type = ""}),
            "bnb_4bit_quant_type must be in ['fp4','nf4'] but found ");
  EXPECT_EQ(error_of({.load_in_4bit = true, .bnb_4bit_compute_dtype = "float16"}),
            "bnb_4bit_compute_dtype must be in ['fp32','fp16','bf16'] but found float16");
  EXPECT_EQ(error_of({.load_in_4bit = true, .bnb_4bit_compute_dtype = ScalarType::Char}),
            "bnb_4bit_compute_dtype must be in ['fp32','fp16','bf16'] but found int8");
  EXPECT_EQ(error_of({.load_in_4bit = true, .bnb_4bit_compute_dtype = ScalarType::Double}),
            "bnb_4bit_compute_dtype must be in ['fp32','fp16','bf16'] but found float64");
  EXPECT_EQ(error_of({.load_in_8bit = true, .torch_dtype = "half"}),
            "torch_dtype must be in ['fp32','fp16','bf16'] but found half");
  EXPECT_EQ(error_of({.load_in_8bit = true, .torch_dtype = ScalarType::Int}),
            "torch_dtype must be a floating-point dtype but found int32");
  EXPECT_EQ(error_of({.load_in_8bit = true, .llm_int8_threshold = -1}),
            "llm_int8_threshold must be at least 0 but found -1");
  EXPECT_THAT(error_of({.load_in_8bit = true, .llm_int8_threshold = std::nan("")}),
              HasSubstr("llm_int8_threshold"));
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(error_of({.load_in_8bit = true, .llm_int8_threshold = infinity}), "no error");
  EXPECT_EQ(error_of({.load_in_8bit = true, .llm_int8_threshold = 0}), "no error");
}

TEST(BnbQuantizationConfig, WarnsOfAThresholdWithoutEffect) {
  const RecordedWarnings warnings;
  resolve({.load_in_8bit = true, .llm_int8_threshold = 3});
  resolve({.load_in_4bit = true});
  EXPECT_THAT(warnings.texts(), IsEmpty());
  resolve({.llm_int8_threshold = 3, .load_in_4bit = true});
  EXPECT_THAT(warnings.texts(),
              ElementsAre("UserWarning: llm_int8_threshold can only be used for model loaded in "
                          "8bit"));
}

TEST(BnbQuantizationConfig, HasItsFieldsAsJson) {
  Json expected = {{"load_in_8bit", false},
                   {"llm_int8_threshold", 6.0},
                   {"load_in_4bit", true},
                   {"bnb_4bit_quant_type", "nf4"},
                   {"bnb_4bit_use_double_quant", false},
                   {"bnb_4bit_compute_dtype", "bf16"},
                   {"torch_dtype", nullptr},
                   {"skip_modules", {"lm_head", "norm"}},
                   {"keep_in_fp32_modules", nullptr}};
  const Config config = {.load_in_4bit = true,
                         .bnb_4bit_quant_type = "nf4",
                         .bnb_4bit_compute_dtype = "bf16",
                         .skip_modules = std::vector<std::string>{"lm_head", "norm"}};
  EXPECT_EQ(to_dict(config).dump(), expected.dump());
  expected["bnb_4bit_compute_dtype"] = "bfloat16";
  expected["torch_dtype"] = "bfloat16";
  EXPECT_EQ(to_dict(resolve(config)).dump(), expected.dump());
  EXPECT_EQ(to_kwargs(config), (Json{{"load_in_4bit", true},
                                     {"bnb_4bit_quant_type", "nf4"},
                                     {"bnb_4bit_compute_dtype", "bf16"},
                                     {"skip_modules", {"lm_head", "norm"}}}));
}

}  // namespace
}  // namespace accelerate

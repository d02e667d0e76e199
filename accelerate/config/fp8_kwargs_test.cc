#include "accelerate/config/kwargs_handlers.h"

#include <string>
#include <utility>

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "accelerate/values/fields.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

Environment with(std::initializer_list<std::pair<const char*, const char*>> variables) {
  Environment environment;
  for (const auto& [name, value] : variables) environment.set(name, value);
  return environment;
}

template <typename Function>
std::string error_of(Function function) {
  try {
    function();
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST(TERecipe, HasThePeersDefaults) {
  EXPECT_EQ(resolve(TERecipeKwargs{}, with({})),
            (TERecipeKwargs{.use_autocast_during_eval = false,
                            .margin = 0,
                            .interval = 1,
                            .fp8_format = "HYBRID",
                            .amax_history_len = 1024,
                            .amax_compute_algo = "most_recent",
                            .override_linear_precision = {{false, false, false}},
                            .use_mxfp8_block_scaling = false}));
}

TEST(TERecipe, TakesVariablesWhereNothingIsGiven) {
  const Environment environment = with({{"ACCELERATE_FP8_USE_AUTOCAST_DURING_EVAL", "1"},
                                        {"ACCELERATE_FP8_MARGIN", "2"},
                                        {"ACCELERATE_FP8_INTERVAL", "3"},
                                        {"ACCELERATE_FP8_FORMAT", "e4m3"},
                                        {"ACCELERATE_FP8_AMAX_HISTORY_LEN", "16"},
                                        {"ACCELERATE_FP8_AMAX_COMPUTE_ALGO", "MAX"},
                                        {"ACCELERATE_FP8_OVERRIDE_DGRAD", "true"},
                                        {"ACCELERATE_FP8_USE_MXFP8_BLOCK_SCALING", "yes"}});
  EXPECT_EQ(resolve(TERecipeKwargs{}, environment),
            (TERecipeKwargs{.use_autocast_during_eval = true,
                            .margin = 2,
                            .interval = 3,
                            .fp8_format = "E4M3",
                            .amax_history_len = 16,
                            .amax_compute_algo = "max",
                            .override_linear_precision = {{false, true, false}},
                            .use_mxfp8_block_scaling = true}));
  const TERecipeKwargs given =
      resolve(TERecipeKwargs{.margin = 5, .override_linear_precision = {{true, false, false}}},
              environment);
  EXPECT_EQ(given.margin, 5);
  EXPECT_EQ(given.override_linear_precision, (std::array<bool, 3>{true, false, false}));
}

TEST(TERecipe, SaysWhatIsWrong) {
  const auto error = [](TERecipeKwargs kwargs) {
    return error_of([&] { resolve(std::move(kwargs), with({})); });
  };
  EXPECT_THAT(error({.fp8_format = "E3M4"}), AllOf(HasSubstr("fp8_format"), HasSubstr("E3M4")));
  EXPECT_THAT(error({.fp8_format = "E5M2"}), HasSubstr("both directions"));
  EXPECT_THAT(error({.amax_compute_algo = "mean"}), HasSubstr("most_recent"));
  EXPECT_THAT(error({.margin = -1}), HasSubstr("margin"));
  EXPECT_THAT(error({.interval = 0}), HasSubstr("interval"));
  EXPECT_THAT(error({.amax_history_len = 0}), HasSubstr("amax_history_len"));
  EXPECT_THAT(error_of([] { resolve(TERecipeKwargs{}, with({{"ACCELERATE_FP8_MARGIN", "x"}})); }),
              HasSubstr("ACCELERATE_FP8_MARGIN"));
}

TEST(MsampRecipe, HasTwoLevels) {
  EXPECT_EQ(resolve(MSAMPRecipeKwargs{}, with({})).opt_level, "O2");
  EXPECT_EQ(resolve(MSAMPRecipeKwargs{}, with({{"ACCELERATE_FP8_OPT_LEVEL", "O1"}})).opt_level,
            "O1");
  EXPECT_THAT(error_of([] { resolve(MSAMPRecipeKwargs{.opt_level = "O3"}, with({})); }),
              HasSubstr("O3"));
}

TEST(AoRecipe, HasTwoFlags) {
  const AORecipeKwargs kwargs =
      resolve(AORecipeKwargs{}, with({{"ACCELERATE_FP8_ENABLE_FSDP_FLOAT8_ALL_GATHER", "false"}}));
  EXPECT_EQ(kwargs.pad_inner_dim, true);
  EXPECT_EQ(kwargs.enable_fsdp_float8_all_gather, false);
}

TEST(AoRecipe, TakesTheFlagsOfItsConfig) {
  const Environment says_true = with({{"ACCELERATE_FP8_PAD_INNER_DIM", "true"}});
  AORecipeKwargs kwargs = resolve(AORecipeKwargs{.config = Float8LinearConfig{}}, says_true);
  EXPECT_EQ(kwargs.pad_inner_dim, false);
  EXPECT_EQ(kwargs.enable_fsdp_float8_all_gather, false);
  kwargs = resolve(AORecipeKwargs{.config = Float8LinearConfig{.pad_inner_dim = true}}, with({}));
  EXPECT_EQ(kwargs.pad_inner_dim, true);
  EXPECT_EQ(to_kwargs(AORecipeKwargs{.config = Float8LinearConfig{.pad_inner_dim = true}}),
            (Json{{"config", to_dict(Float8LinearConfig{.pad_inner_dim = true})}}));
  EXPECT_THAT(error_of([] {
                resolve(AORecipeKwargs{.config = Float8LinearConfig{.recipe = "rowwise"}},
                        with({}));
              }),
              AllOf(HasSubstr("\"rowwise\""), HasSubstr("tensorwise")));
  EXPECT_THAT(error_of([] {
                resolve(AORecipeKwargs{.config = Float8LinearConfig{}, .pad_inner_dim = true},
                        with({}));
              }),
              HasSubstr("pad_inner_dim contradicts"));
}

FP8BackendType backend(const Fp8Handlers& handlers, const Environment& environment = with({})) {
  return resolve_fp8(handlers, environment).backend();
}

TEST(ResolveFp8, TakesTheHandlerThenTheVariableThenAo) {
  const Environment says_te = with({{"ACCELERATE_FP8_BACKEND", "te"}});
  EXPECT_EQ(backend({.msamp = MSAMPRecipeKwargs{}}, says_te), FP8BackendType::kMsamp);
  EXPECT_EQ(backend({.ao = AORecipeKwargs{}}, says_te), FP8BackendType::kAo);
  EXPECT_EQ(backend({.te = TERecipeKwargs{}}), FP8BackendType::kTe);
  EXPECT_EQ(backend({}, says_te), FP8BackendType::kTe);
  EXPECT_EQ(backend({}, with({{"ACCELERATE_FP8_BACKEND", "MSAMP"}})), FP8BackendType::kMsamp);
  EXPECT_EQ(backend({}, with({{"ACCELERATE_FP8_BACKEND", "NO"}})), FP8BackendType::kAo);
  EXPECT_EQ(backend({}), FP8BackendType::kAo);
  EXPECT_THAT(error_of([] { backend({}, with({{"ACCELERATE_FP8_BACKEND", "apex"}})); }),
              AllOf(HasSubstr("ACCELERATE_FP8_BACKEND"), HasSubstr("apex")));
}

TEST(ResolveFp8, RefusesTwo) {
  EXPECT_THAT(error_of([] { backend({.te = TERecipeKwargs{}, .ao = AORecipeKwargs{}}); }),
              AllOf(HasSubstr("AORecipeKwargs"), HasSubstr("TERecipeKwargs")));
}

TEST(ResolveFp8, UnderstandsTheDeprecatedHandler) {
  EXPECT_EQ(backend({.recipe = FP8RecipeKwargs{}}), FP8BackendType::kTe);
  EXPECT_EQ(backend({.recipe = FP8RecipeKwargs{.opt_level = "O1"}}), FP8BackendType::kMsamp);
  EXPECT_EQ(backend({.recipe = FP8RecipeKwargs{}}, with({{"ACCELERATE_FP8_BACKEND", "msamp"}})),
            FP8BackendType::kMsamp);
  const Fp8Plan plan =
      resolve_fp8({.recipe = FP8RecipeKwargs{.backend = "te", .margin = 4}}, with({}));
  EXPECT_EQ(std::get<TERecipeKwargs>(plan.recipe).margin, 4);
  EXPECT_THAT(error_of([] { backend({.recipe = FP8RecipeKwargs{.backend = "AO"}}); }),
              HasSubstr("TE or MSAMP"));
  EXPECT_THAT(error_of([] {
                backend({.recipe = FP8RecipeKwargs{}}, with({{"ACCELERATE_FP8_BACKEND", "AO"}}));
              }),
              HasSubstr("ACCELERATE_FP8_BACKEND"));
}

TEST(CheckFp8Handlers, NeedTheirPrecision) {
  check_fp8_handlers({}, PrecisionType::kBf16);
  check_fp8_handlers({.te = TERecipeKwargs{}}, PrecisionType::kFp8);
  EXPECT_THAT(error_of([] { check_fp8_handlers({.te = TERecipeKwargs{}}, PrecisionType::kBf16); }),
              AllOf(HasSubstr("TERecipeKwargs"), HasSubstr("bf16")));
}

TEST(Fp8Kwargs, HaveTheirFieldsAsJson) {
  EXPECT_EQ(to_kwargs(TERecipeKwargs{}), Json::object());
  EXPECT_EQ(to_kwargs(TERecipeKwargs{.fp8_format = "E4M3",
                                     .override_linear_precision = {{true, false, false}}}),
            (Json{{"fp8_format", "E4M3"}, {"override_linear_precision", {true, false, false}}}));
  EXPECT_EQ(to_kwargs(MSAMPRecipeKwargs{.opt_level = "O1"}), (Json{{"opt_level", "O1"}}));
  EXPECT_EQ(to_kwargs(AORecipeKwargs{.pad_inner_dim = false}), (Json{{"pad_inner_dim", false}}));
  EXPECT_EQ(to_kwargs(FP8RecipeKwargs{.backend = "TE", .interval = 2}),
            (Json{{"backend", "TE"}, {"interval", 2}}));
}

}  // namespace
}  // namespace accelerate

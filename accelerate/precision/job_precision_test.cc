#include "accelerate/precision/job_precision.h"

#include <cstdint>
#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/config/zero_config.h"
#include "accelerate/testing/value_error.h"

namespace accelerate {
namespace {

using ::testing::HasSubstr;

void choose(JobPrecision& precision, PrecisionType type, const KwargsHandlers& handlers = {}) {
  precision.choose(type, type == PrecisionType::kFp8, handlers, DistributedType::kNo,
                   /*group=*/nullptr, Environment());
}

KwargsHandlers scale(double init_scale) {
  KwargsHandlers handlers;
  handlers.scaler.init_scale = init_scale;
  return handlers;
}

KwargsHandlers te(int64_t margin) {
  KwargsHandlers handlers;
  handlers.fp8.te = TERecipeKwargs{.margin = margin};
  return handlers;
}

KwargsHandlers msamp(const char* opt_level) {
  KwargsHandlers handlers;
  handlers.fp8.msamp = MSAMPRecipeKwargs{.opt_level = opt_level};
  return handlers;
}

JobPrecision chosen(PrecisionType type, const KwargsHandlers& handlers = {}) {
  JobPrecision precision;
  choose(precision, type, handlers);
  return precision;
}

TEST(JobPrecision, ScalesLossesInFp16AndWithMsamp) {
  EXPECT_EQ(chosen(PrecisionType::kNo).scaler(), nullptr);
  EXPECT_EQ(chosen(PrecisionType::kBf16).scaler(), nullptr);
  EXPECT_EQ(chosen(PrecisionType::kFp8, te(0)).scaler(), nullptr);
  EXPECT_NE(chosen(PrecisionType::kFp16).scaler(), nullptr);
  EXPECT_NE(chosen(PrecisionType::kFp8, msamp("O1")).scaler(), nullptr);
  EXPECT_NE(chosen(PrecisionType::kFp8, msamp("O2")).scaler(), nullptr);
  EXPECT_FALSE(chosen(PrecisionType::kFp8, msamp("O1")).packs_moments());
  EXPECT_TRUE(chosen(PrecisionType::kFp8, msamp("O2")).packs_moments());
  EXPECT_FALSE(chosen(PrecisionType::kFp16).packs_moments());
}

TEST(JobPrecision, HasOneScalerForAllWhoAskForTheSame) {
  JobPrecision precision = chosen(PrecisionType::kFp16, scale(8));
  const std::shared_ptr<SharedScaler> scaler = precision.scaler();
  EXPECT_EQ(scaler->scaler().get_scale(), 8);
  choose(precision, PrecisionType::kFp16);
  choose(precision, PrecisionType::kFp16, scale(8));
  EXPECT_EQ(precision.scaler(), scaler);
  const std::string error =
      value_error_of([&] { choose(precision, PrecisionType::kFp16, scale(16)); });
  EXPECT_THAT(error, HasSubstr("GradScalerKwargs {\"init_scale\":16.0} contradict an earlier"));
  EXPECT_THAT(error, HasSubstr("{\"init_scale\":8.0}"));
}

// As under a deepspeed_plugin.
JobPrecision chosen_for_zero(PrecisionType type, const KwargsHandlers& handlers = {}) {
  JobPrecision precision;
  precision.choose(type, handlers.fp8.any(), handlers, DistributedType::kDeepSpeed,
                   /*group=*/nullptr, Environment());
  return precision;
}

TEST(JobPrecision, ScalesLossesAsTheFirstDeepSpeedConfigurationSays) {
  JobPrecision precision = chosen_for_zero(PrecisionType::kFp16);
  EXPECT_EQ(precision.scaler(), nullptr);
  ZeroConfig zero;
  precision.apply_zero_config(zero, nullptr);
  EXPECT_EQ(precision.scaler(), nullptr);
  zero.fp16 = {.enabled = true, .initial_scale_power = 5};
  precision.apply_zero_config(zero, nullptr);
  const std::shared_ptr<SharedScaler> scaler = precision.scaler();
  ASSERT_NE(scaler, nullptr);
  EXPECT_EQ(scaler->scaler().get_scale(), 32);
  zero.fp16.loss_scale = 8;
  precision.apply_zero_config(zero, nullptr);
  EXPECT_EQ(precision.scaler(), scaler) << "training goes on with its scale";
  EXPECT_EQ(scaler->scaler().get_scale(), 32);

  JobPrecision other = chosen_for_zero(PrecisionType::kFp16, scale(16));
  EXPECT_THAT(value_error_of([&] { other.apply_zero_config(zero, nullptr); }),
              HasSubstr("GradScalerKwargs {\"init_scale\":16.0}: with a deepspeed_plugin"));
  const JobPrecision in_fp8 = chosen_for_zero(PrecisionType::kBf16, msamp("O2"));
  EXPECT_EQ(in_fp8.scaler(), nullptr) << "where the configuration does not ask for it";
  EXPECT_TRUE(in_fp8.packs_moments());
  EXPECT_EQ(in_fp8.type(), PrecisionType::kBf16);
}

TEST(JobPrecision, HasOneRecipeForAllWhoAskForTheSame) {
  JobPrecision precision = chosen(PrecisionType::kFp8, te(0));
  EXPECT_EQ(precision.fp8_backend(), FP8BackendType::kTe);
  choose(precision, PrecisionType::kFp8);
  choose(precision, PrecisionType::kFp8, te(0));
  EXPECT_EQ(precision.fp8_backend(), FP8BackendType::kTe);
  EXPECT_THAT(value_error_of([&] { choose(precision, PrecisionType::kFp8, te(3)); }),
              HasSubstr("contradicts an earlier Accelerator"));
  JobPrecision without = chosen(PrecisionType::kBf16);
  EXPECT_EQ(without.fp8_backend(), FP8BackendType::kNo);
  EXPECT_THAT(value_error_of([&] { choose(without, PrecisionType::kFp8, te(0)); }),
              HasSubstr("fp8 contradicts an earlier Accelerator"));
}

}  // namespace
}  // namespace accelerate

#include "accelerate/precision/fp8_capability.h"

#include <string>
#include <utility>

#include <c10/core/Device.h>
#include <gtest/gtest.h>

#include "accelerate/precision/fp8_model.h"
#include "accelerate/testing/fake_runtime.h"

namespace accelerate {
namespace {

// A simulated rank, or one that owns its process, with devices of this family and model.
class Rank : public FakeRuntime {
 public:
  Rank(bool is_real, std::string family, std::string model)
      : is_real_(is_real), family_(std::move(family)), model_(std::move(model)) {}

  bool owns_process() const override { return is_real_; }
  std::string device_family() const override { return family_; }
  std::string device_name() const override { return model_; }

 private:
  const bool is_real_;
  const std::string family_;
  const std::string model_;
};

TEST(Fp8Capability, OfASimulatedGpuIsThatOfItsModel) {
  for (const char* model : {"h100", "h200", "b200", "mi300x"}) {
    EXPECT_TRUE(check_cuda_fp8_capability(Rank(false, "gpu", model))) << model;
  }
  for (const char* model : {"v100", "a100-40", "a100-80", ""}) {
    EXPECT_FALSE(check_cuda_fp8_capability(Rank(false, "gpu", model))) << model;
  }
  EXPECT_FALSE(check_cuda_fp8_capability(Rank(false, "hpu", "gaudi2"))) << "is not a CUDA device";
  EXPECT_FALSE(check_cuda_fp8_capability(Rank(false, "cpu", "h100")));
}

TEST(Fp8Capability, OfARealGpuIsWhatItCanDo) {
  // A model's name counts for nothing here: the product is tried, on the first GPU for a rank that
  // computes on the CPU.
  const bool tried = has_native_fp8_matmul(c10::Device(c10::kCUDA, 0));
  EXPECT_EQ(check_cuda_fp8_capability(Rank(true, "gpu", "h100")), tried);
  EXPECT_EQ(check_cuda_fp8_capability(Rank(true, "gpu", "v100")), tried);
  EXPECT_FALSE(check_cuda_fp8_capability(Rank(true, "cpu", "h100")));
}

}  // namespace
}  // namespace accelerate

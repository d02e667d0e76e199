#include "accelerate/precision/fp8_model.h"

#include <optional>
#include <string>
#include <utility>

#include <c10/core/Device.h>
#include <gtest/gtest.h>

#include "accelerate/testing/fake_runtime.h"

namespace accelerate {
namespace {

// A rank with devices of this family, of which its Runtime knows whether they multiply fp8 or, if
// `knows` is absent, does not.
class Rank : public FakeRuntime {
 public:
  Rank(std::optional<bool> knows, std::string family) : knows_(knows), family_(std::move(family)) {}

  std::string device_family() const override { return family_; }
  std::optional<bool> device_has(DeviceTrait trait) const override {
    return trait == DeviceTrait::kFp8Products ? knows_ : false;
  }

 private:
  const std::optional<bool> knows_;
  const std::string family_;
};

TEST(Fp8Capability, OfAGpuIsWhatItsRuntimeKnows) {
  EXPECT_TRUE(check_cuda_fp8_capability(Rank(true, "gpu")));
  EXPECT_FALSE(check_cuda_fp8_capability(Rank(false, "gpu")));
  EXPECT_FALSE(check_cuda_fp8_capability(Rank(true, "hpu"))) << "is not a CUDA device";
  EXPECT_FALSE(check_cuda_fp8_capability(Rank(true, "cpu")));
}

TEST(Fp8Capability, OfAGpuIsTriedWhereItsRuntimeDoesNotKnow) {
  // On the first GPU for a rank that computes on the CPU.
  const bool tried = has_native_fp8_matmul(c10::Device(c10::kCUDA, 0));
  EXPECT_EQ(check_cuda_fp8_capability(Rank(std::nullopt, "gpu")), tried);
  EXPECT_FALSE(check_cuda_fp8_capability(Rank(std::nullopt, "cpu")));
}

}  // namespace
}  // namespace accelerate

#include "accelerate/state/seed.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "accelerate/runtime/runtime.h"
#include "accelerate/testing/fake_runtime.h"

namespace accelerate {
namespace {

at::Generator default_generator() { return at::detail::getDefaultCPUGenerator(); }

// rnd-0293: torch seeded with 8.
TEST(SetSeed, SeedsTheDefaultGeneratorAsTorchDoes) {
  set_seed(8);
  EXPECT_EQ(default_generator().current_seed(), 8);
  EXPECT_TRUE(at::equal(at::rand({5}),
                        at::tensor({0.5979272723197937, 0.8452961444854736, 0.9464102387428284,
                                    0.2965303063392639, 0.5138018727302551},
                                   at::kFloat)));
  EXPECT_TRUE(at::allclose(
      at::randn({3}),
      at::tensor({0.27547699213027954, 0.4040798842906952, 1.070011854171753}, at::kFloat)));
}

TEST(SetSeed, GivesEachRankASeedOfItsOwnWhenAsked) {
  FakeRuntime runtime(Topology::uniform(/*rank=*/3, /*num_nodes=*/1, /*ranks_per_node=*/4));
  RuntimeScope scope(runtime);
  set_seed(40, {.device_specific = true});
  EXPECT_EQ(default_generator().current_seed(), 43);
  set_seed(40);
  EXPECT_EQ(default_generator().current_seed(), 40);
}

TEST(SetSeed, IsDeterministicWhenAsked) {
  at::Context& context = at::globalContext();
  set_seed(1);
  EXPECT_FALSE(context.deterministicAlgorithms());
  set_seed(1, {.deterministic = true});
  EXPECT_TRUE(context.deterministicAlgorithms());
  EXPECT_FALSE(context.deterministicAlgorithmsWarnOnly());
  EXPECT_TRUE(context.deterministicCuDNN());
  EXPECT_FALSE(context.benchmarkCuDNN());
  set_seed(2);
  EXPECT_TRUE(context.deterministicAlgorithms()) << "stays until it is switched off";
  context.setDeterministicAlgorithms(false, false);
  context.setDeterministicCuDNN(false);
}

}  // namespace
}  // namespace accelerate

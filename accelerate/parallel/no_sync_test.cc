#include "accelerate/parallel/no_sync.h"

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/parallel/ddp.h"
#include "accelerate/testing/fake_runtime.h"
#include "accelerate/testing/threaded_group.h"

namespace accelerate {
namespace {

using Models = c10::SmallVector<DistributedDataParallel*, 4>;

void with_model(const std::function<void(std::unique_ptr<DistributedDataParallel>)>& run) {
  run_ranks(1, [&run](const auto& group) {
    FakeRuntime runtime;
    const RuntimeScope scope(runtime);
    run(std::make_unique<DistributedDataParallel>(torch::nn::Linear(1, 1).ptr(), group,
                                                  DistributedDataParallelKwargs{}));
  });
}

TEST(NoSync, LastsAsLongAsAnyScope) {
  with_model([](const std::unique_ptr<DistributedDataParallel>& model) {
    const Models models{model.get()};
    std::optional<NoSyncScope> first, second;
    EXPECT_TRUE(model->require_sync());
    first.emplace(models);
    second.emplace(models);
    EXPECT_FALSE(model->require_sync());
    first.reset();  // although it began first
    EXPECT_FALSE(model->require_sync());
    second.reset();
    EXPECT_TRUE(model->require_sync());
    {
      const NoSyncScope twice({model.get(), model.get()});
      EXPECT_FALSE(model->require_sync());
    }
    EXPECT_TRUE(model->require_sync());
  });
}

TEST(NoSync, EndsOnceWhenItMoves) {
  with_model([](const std::unique_ptr<DistributedDataParallel>& model) {
    const NoSyncScope outer({model.get()});
    {
      NoSyncScope inner({model.get()});
      const NoSyncScope moved = std::move(inner);
    }
    EXPECT_EQ(*model->silences(), 1);
  });
}

TEST(NoSync, OutlivesItsModel) {
  with_model([](std::unique_ptr<DistributedDataParallel> model) {
    const std::weak_ptr<int> silences = model->silences();
    {
      const NoSyncScope scope({model.get()});
      model.reset();
      ASSERT_FALSE(silences.expired());
      EXPECT_EQ(*silences.lock(), 1);
    }
    EXPECT_TRUE(silences.expired());
  });
}

TEST(NoSync, LeavesSilentWhatWasSilencedForGood) {
  with_model([](const std::unique_ptr<DistributedDataParallel>& model) {
    model->silence();
    {
      const NoSyncScope scope({model.get()});
    }
    EXPECT_FALSE(model->require_sync());
  });
}

}  // namespace
}  // namespace accelerate

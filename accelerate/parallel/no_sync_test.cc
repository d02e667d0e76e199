#include "accelerate/forward/technique.h"

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
    const NoSyncScope::Counts counts{model->no_sync_count()};
    std::optional<NoSyncScope> first, second;
    EXPECT_TRUE(model->require_sync());
    first.emplace(counts);
    second.emplace(counts);
    EXPECT_FALSE(model->require_sync());
    first.reset();  // although it began first
    EXPECT_FALSE(model->require_sync());
    second.reset();
    EXPECT_TRUE(model->require_sync());
    {
      const NoSyncScope twice({model->no_sync_count(), model->no_sync_count()});
      EXPECT_FALSE(model->require_sync());
    }
    EXPECT_TRUE(model->require_sync());
  });
}

TEST(NoSync, EndsOnceWhenItMoves) {
  with_model([](const std::unique_ptr<DistributedDataParallel>& model) {
    const NoSyncScope outer({model->no_sync_count()});
    {
      NoSyncScope inner({model->no_sync_count()});
      const NoSyncScope moved = std::move(inner);
    }
    EXPECT_EQ(*model->no_sync_count(), 1);
  });
}

TEST(NoSync, OutlivesItsModel) {
  with_model([](std::unique_ptr<DistributedDataParallel> model) {
    const std::weak_ptr<int> count = model->no_sync_count();
    {
      const NoSyncScope scope({model->no_sync_count()});
      model.reset();
      ASSERT_FALSE(count.expired());
      EXPECT_EQ(*count.lock(), 1);
    }
    EXPECT_TRUE(count.expired());
  });
}

TEST(NoSync, LeavesACountThatWasNeverLowered) {
  with_model([](const std::unique_ptr<DistributedDataParallel>& model) {
    ++*model->no_sync_count();
    {
      const NoSyncScope scope({model->no_sync_count()});
    }
    EXPECT_FALSE(model->require_sync());
  });
}

}  // namespace
}  // namespace accelerate

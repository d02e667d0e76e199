#include "accelerate/parallel/replicated/join.h"

#include <memory>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/forward/prepared_model.h"
#include "accelerate/testing/fake_runtime.h"
#include "accelerate/testing/threaded_group.h"

namespace accelerate {
namespace {

using torch::Tensor;

// A technique that the library does not have: each pass adds one for every rank that makes it.
class Counting final : public Technique, public Joinable {
 public:
  explicit Counting(ProcessGroupPtr group) : group_(std::move(group)) {}

  std::string_view name() const override { return "counting"; }
  void forward(ForwardPass& pass) override {
    if (join_ != nullptr) join_->before_forward(*this, {.synchronises = true});
    pass.proceed();
    if (join_ != nullptr) join_->before_all_reduce(*this, /*slot=*/0, /*numel=*/1);
    total_ += summed(torch::ones({1}));
  }

  Joinable* joinable() override { return this; }
  void set_join(JoinListener* listener) override { join_ = listener; }
  void shadow_forward(const JoinListener::Forward& /*forward*/, int leader) override {
    leader_ = leader;
  }
  void shadow_all_reduce(int64_t /*slot*/, int64_t numel) override {
    summed(torch::zeros({numel}));
  }
  void broadcast_replica(int source) override {
    std::vector<Tensor> tensors{total_};
    c10d::BroadcastOptions options;
    options.rootRank = source;
    group_->broadcast(tensors, options)->wait();
  }
  const ProcessGroupPtr& group() const override { return group_; }
  int64_t ordinal() const override { return 0; }
  c10::Device device() const override { return c10::kCPU; }

  double total() const { return total_.item<double>(); }
  int leader() const { return leader_; }

 private:
  Tensor summed(Tensor tensor) const {
    std::vector<Tensor> tensors{std::move(tensor)};
    group_->allreduce(tensors)->wait();
    return tensors[0];
  }

  const ProcessGroupPtr group_;
  JoinListener* join_ = nullptr;
  Tensor total_ = torch::zeros({1});
  int leader_ = -1;
};

struct Joined {
  int source = -1;  // whose state the others get
  double total = 0;
  int leader = -1;
};

// A rank that makes so many passes in a join scope.
Joined joined(const ProcessGroupPtr& group, int passes) {
  FakeRuntime runtime;
  const RuntimeScope scope(runtime);
  torch::nn::Linear net(1, 1);
  const auto state = std::make_shared<ModelState>(net.ptr());
  Techniques techniques;
  techniques.push_back(std::make_unique<Counting>(group));
  state->set_techniques(std::move(techniques));
  PreparedModel<torch::nn::LinearImpl> model(net.ptr(), state);
  std::vector<Joinable*> joinables;
  state->add_joinables(joinables);
  Joined result;
  {
    const JoinScope join(joinables, /*enabled=*/true,
                         [&result](int rank) { result.source = rank; });
    for (int pass = 0; pass < passes; ++pass) model(torch::ones({1, 1}));
  }
  const auto& counting = *find_technique<Counting>(model);
  result.total = counting.total();
  result.leader = counting.leader();
  return result;
}

TEST(JoinScope, TakesInAnyTechniqueThatCanBeJoined) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    // Rank 1 makes one pass less.
    const Joined rank = joined(group, 2 - group->getRank());
    EXPECT_EQ(rank.source, 0);
    EXPECT_EQ(rank.leader, group->getRank() == 0 ? -1 : 0);
    EXPECT_EQ(rank.total, 3) << "two ranks made the first pass, and one the second";
  });
}

// By rank: how many passes it makes, and which rank's state the others get. The last of
// ranks that trained equally long is asked; where all did, nobody is.
TEST(JoinScope, TakesTheStateOfARankThatTrainedLongest) {
  struct Case {
    std::vector<int> passes;
    int source;
  };
  const std::vector<Case> cases = {{{1, 3, 2}, 1}, {{3, 1, 3}, 2},  {{2, 2, 1}, 1},
                                   {{0, 0, 1}, 2}, {{2, 2, 2}, -1}, {{0, 0, 0}, -1}};
  for (const Case& each : cases) {
    run_ranks(3, [&each](const ProcessGroupPtr& group) {
      const Joined rank = joined(group, each.passes[group->getRank()]);
      EXPECT_EQ(rank.source, each.source);
      EXPECT_EQ(rank.total, std::accumulate(each.passes.begin(), each.passes.end(), 0));
    });
  }
}

}  // namespace
}  // namespace accelerate

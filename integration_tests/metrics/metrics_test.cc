// Metrics over simulated ranks: each rank computes what one process computes of all samples, also
// where loaders repeat samples so that all ranks have batches of one size.
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "accelerate/metrics/metrics.h"
#include "simulator/cluster/cluster.h"
#include "simulator/testing/topology_suite.h"

namespace accelerate::metrics_tests {
namespace {

using metrics::F1Average;
using simulator::Cluster;
using simulator::Rank;

constexpr int64_t kClasses = 5;
constexpr int64_t kTokens = 4;
constexpr int64_t kBatch = 3;

// The model's part is a function of the sample's number.
at::Tensor predicted_of(const at::Tensor& ids) { return (ids * 7).remainder(kClasses); }
at::Tensor expected_of(const at::Tensor& ids) { return (ids * ids).remainder(kClasses); }
at::Tensor logits_of(const at::Tensor& ids) {
  const at::Tensor places = torch::arange(kTokens * kClasses, ids.options().dtype(torch::kFloat));
  return (ids.to(torch::kFloat).unsqueeze(1) + places).sin().reshape({-1, kTokens, kClasses});
}
// Rows have one to four labels.
at::Tensor labels_of(const at::Tensor& ids) {
  const at::Tensor places = torch::arange(kTokens, ids.options());
  const at::Tensor labels = (ids.unsqueeze(1) + places).remainder(kClasses);
  return labels.masked_fill(places.unsqueeze(0).gt(ids.unsqueeze(1).remainder(kTokens)), -100);
}

struct Evaluation {
  metrics::Accuracy accuracy;
  metrics::F1 macro = metrics::F1(kClasses, F1Average::kMacro);
  metrics::F1 weighted = metrics::F1(kClasses, F1Average::kWeighted);
  metrics::Perplexity perplexity;
  metrics::Mean mean;

  void add(const std::pair<at::Tensor, at::Tensor>& classes,
           const std::pair<at::Tensor, at::Tensor>& losses) {
    accuracy.add(classes.first, classes.second);
    macro.add(classes.first, classes.second);
    weighted.add(classes.first, classes.second);
    perplexity.add(losses.first, losses.second);
    mean.add(losses.first);
  }
  std::vector<double> values() const {
    return {accuracy.compute(), macro.compute(), weighted.compute(), perplexity.compute(),
            mean.compute()};
  }
};

std::pair<at::Tensor, at::Tensor> classes_of(const at::Tensor& ids) {
  return {predicted_of(ids), expected_of(ids)};
}
std::pair<at::Tensor, at::Tensor> losses_of(const at::Tensor& ids) {
  return metrics::token_losses(logits_of(ids), labels_of(ids));
}

// What ranks compute of so many samples, with loaders of this kind: those that have a batch in
// every round.
void expect_values_of_one_process(Cluster cluster, int64_t samples, bool even_batches) {
  const at::Tensor ids = torch::arange(samples);
  Evaluation whole;
  whole.add(classes_of(ids), losses_of(ids));
  const std::vector<double> expected = whole.values();
  cluster.run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator({.dataloader_config = {.even_batches = even_batches}});
    auto loader = accelerator.prepare(
        DataLoader(make_tensor_dataset(torch::arange(samples)), {.batch_size = kBatch}));
    Evaluation evaluation;
    for (auto& [own] : loader) {
      evaluation.add(accelerator.gather_for_metrics(classes_of(own)),
                     accelerator.gather_for_metrics(losses_of(own)));
    }
    if (!even_batches && rank.index() > 0) return;
    const std::vector<double> values = evaluation.values();
    for (size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], expected[i], 1e-6) << i;
  });
}

TOPOLOGY_SUITE(Metrics);

TEST_P(Metrics, AreThoseOfOneProcessWhateverIsLeftOver) {
  for (const int64_t rest : {0, 1, 2, 4}) {
    const int64_t samples = 2 * kBatch * world_size() + rest;
    expect_values_of_one_process(make_cluster({.seed = 3}), samples, /*even_batches=*/true);
  }
}

// With what every rank had, samples that come twice would count twice.
TEST_P(Metrics, WouldDifferOverRepeatedSamples) {
  if (world_size() == 1) return;
  const int64_t samples = kBatch * world_size() + 1;
  make_cluster({.seed = 3}).run_on_every_rank([&](Rank&) {
    Accelerator accelerator;
    auto loader = accelerator.prepare(
        DataLoader(make_tensor_dataset(torch::arange(samples)), {.batch_size = kBatch}));
    metrics::Mean all, once;
    for (auto& [own] : loader) {
      all.add(accelerator.gather(own));
      once.add(accelerator.gather_for_metrics(own));
    }
    EXPECT_DOUBLE_EQ(once.compute(), static_cast<double>(samples - 1) / 2);
    EXPECT_NE(all.compute(), once.compute());
  });
}

TEST_P(Metrics, AreThoseOfOneProcessWhereSomeRanksHaveNoLastBatch) {
  expect_values_of_one_process(make_cluster({.seed = 3}), 2 * kBatch * world_size() + kBatch,
                               /*even_batches=*/false);
}

}  // namespace
}  // namespace accelerate::metrics_tests

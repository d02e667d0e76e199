// The program that `accelerate test` starts: does this configuration run, and does it train right?
//
//   accelerate test
//   accelerate launch --simulate 2x4 accelerate-self-test
//
// Every check runs on all ranks; the first that fails ends the rank with a message that says what
// was expected.

#include <algorithm>
#include <iostream>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "accelerate/accelerate.h"
#include "accelerate/comm/backends/backend_registry.h"
#include "accelerate/runtime/numa_affinity.h"

namespace {

using accelerate::Accelerator;
using accelerate::DataLoader;
using accelerate::make_tensor_dataset;
using accelerate::Reduction;

constexpr int64_t kBatchSize = 4;
constexpr int kSteps = 6;

class SelfTest {
 public:
  void run() {
    check("ranks", &SelfTest::check_ranks);
    check("process control", &SelfTest::check_process_control);
    check("broadcast", &SelfTest::check_broadcast);
    check("gather", &SelfTest::check_gather);
    check("reduce", &SelfTest::check_reduce);
    check("pad_across_processes", &SelfTest::check_padding);
    check("split_between_processes", &SelfTest::check_split);
    check("triggers", &SelfTest::check_trigger);
    check("random seeds", &SelfTest::check_seeds);
    check("data loading", &SelfTest::check_loading);
    check("shuffled data loading", &SelfTest::check_shuffled_loading);
    check("training, compared with one process", &SelfTest::check_training);
    say("All checks passed on ", ranks(), ranks() == 1 ? " rank." : " ranks.");
  }

 private:
  int64_t ranks() const { return accelerator_.num_processes(); }
  int64_t rank() const { return accelerator_.process_index(); }
  at::Tensor on_device(const at::Tensor& tensor) const { return tensor.to(accelerator_.device()); }

  // Once for all machines; Accelerator::print is once for each.
  template <typename... Parts>
  void say(const Parts&... parts) {
    if (accelerator_.is_main_process()) accelerator_.print(parts...);
  }

  void check(const char* what, void (SelfTest::*body)()) {
    say("- ", what);
    try {
      (this->*body)();
    } catch (const std::exception& error) {
      throw std::runtime_error(std::string("self-test, ") + what + ": " + error.what());
    }
    accelerator_.wait_for_everyone();
  }

  template <typename T, typename U>
  static void expect_equal(const T& got, const U& wanted, const char* what) {
    TORCH_CHECK(got == wanted, what, " is ", got, " where ", wanted, " was expected");
  }

  static void expect_tensor(const at::Tensor& got, const at::Tensor& wanted, const char* what) {
    TORCH_CHECK(got.cpu().equal(wanted), what, " is ", got.cpu(), " where ", wanted,
                " was expected");
  }

  void check_ranks() {
    TORCH_CHECK(ranks() >= 1 && rank() >= 0 && rank() < ranks(), "rank ", rank(), " of ", ranks());
    expect_equal(accelerator_.is_main_process(), rank() == 0, "is_main_process");
    expect_equal(accelerator_.is_last_process(), rank() == ranks() - 1, "is_last_process");
    const at::Tensor all = accelerator_.gather(on_device(torch::tensor({rank()}, torch::kLong)));
    expect_tensor(all, torch::arange(ranks()), "the list of ranks");
    const std::string device = accelerator_.device().str();
    say("    ", ranks(), ranks() == 1 ? " rank on " : " ranks, the first on ", device);
  }

  void check_process_control() {
    int64_t calls = 0;
    accelerator_.on_main_process([&] { ++calls; })();
    accelerator_.on_last_process([&] { calls += 10; })();
    expect_equal(calls, (rank() == 0) + 10 * (rank() == ranks() - 1), "what was called");
    bool ran = false;
    accelerator_.main_process_first([&] { ran = true; });
    expect_equal(ran, true, "what main_process_first ran");
  }

  void check_broadcast() {
    const int64_t source = ranks() - 1;
    const at::Tensor mine = torch::arange(3) + 100 * rank();
    const at::Tensor got =
        accelerate::broadcast(accelerator_.state().group(), on_device(mine), source);
    expect_tensor(got, torch::arange(3) + 100 * source, "the last rank's tensor");
  }

  void check_gather() {
    const at::Tensor mine = torch::full({2, 2}, rank(), torch::kLong);
    const at::Tensor all = accelerator_.gather(on_device(mine));
    expect_tensor(all,
                  torch::arange(ranks()).repeat_interleave(2).unsqueeze(1).expand({-1, 2}).clone(),
                  "what all ranks have");
  }

  void check_reduce() {
    const at::Tensor mine = torch::tensor({1.0f, static_cast<float>(rank())});
    const float sum = static_cast<float>(ranks() * (ranks() - 1) / 2);
    const float count = static_cast<float>(ranks());
    expect_tensor(accelerator_.reduce(on_device(mine), Reduction::kSum),
                  torch::tensor({count, sum}), "the sum");
    expect_tensor(accelerator_.reduce(on_device(mine), Reduction::kMean),
                  torch::tensor({1.0f, sum / count}), "the mean");
  }

  void check_padding() {
    const at::Tensor mine = torch::ones({rank() + 1}, torch::kLong);
    const at::Tensor padded = accelerator_.pad_across_processes(on_device(mine));
    expect_tensor(padded, torch::cat({mine, torch::zeros({ranks() - rank() - 1}, torch::kLong)}),
                  "the filled-up tensor");
  }

  void check_split() {
    // One more than divides evenly: the first rank has it.
    std::vector<int64_t> all(2 * ranks() + 1);
    std::iota(all.begin(), all.end(), 0);
    const std::vector<int64_t> mine = accelerator_.split_between_processes(all);
    expect_equal(static_cast<int64_t>(mine.size()), rank() == 0 ? 3 : 2, "the share's size");
    expect_equal(mine.front(), rank() == 0 ? 0 : 2 * rank() + 1, "the share's first element");
    const std::vector<int64_t> padded = accelerator_.split_between_processes(all, true);
    expect_equal(static_cast<int64_t>(padded.size()), 3, "the padded share's size");
  }

  void check_trigger() {
    expect_equal(accelerator_.check_trigger(), false, "a trigger that nobody set");
    if (rank() == ranks() - 1) accelerator_.set_trigger();
    expect_equal(accelerator_.check_trigger(), true, "the last rank's trigger");
    expect_equal(accelerator_.check_trigger(), false, "a trigger after it was seen");
  }

  void check_seeds() {
    torch::manual_seed(7);
    const at::Tensor mine = torch::rand({4});
    const at::Tensor all = accelerator_.gather(on_device(mine.unsqueeze(0))).cpu();
    TORCH_CHECK(all.eq(mine).all().item<bool>(),
                "ranks with one seed draw different numbers: ", all);
  }

  // Every sample once, in order, a batch for each rank in turn.
  void check_loading() {
    const int64_t samples = kBatchSize * ranks() * 3;
    DataLoader data(make_tensor_dataset(torch::arange(samples)), {.batch_size = kBatchSize});
    auto loader = accelerator_.prepare(data);
    expect_equal(static_cast<int64_t>(loader.size()), 3, "the number of batches");
    std::vector<at::Tensor> seen;
    for (auto& [batch] : loader) {
      expect_equal(batch.device().type(), accelerator_.device().type(), "a batch's device");
      seen.push_back(accelerator_.gather_for_metrics(batch));
    }
    expect_tensor(torch::cat(seen), torch::arange(samples), "what all ranks read");
  }

  void check_shuffled_loading() {
    // Not divisible: the last round is padded, and the padding does not count.
    const int64_t samples = kBatchSize * ranks() * 2 + 1;
    DataLoader data(make_tensor_dataset(torch::arange(samples)),
                    {.batch_size = kBatchSize, .shuffle = true});
    auto loader = accelerator_.prepare(data);
    std::vector<at::Tensor> seen;
    for (auto& [batch] : loader) seen.push_back(accelerator_.gather_for_metrics(batch));
    expect_tensor(std::get<0>(torch::cat(seen).sort()), torch::arange(samples),
                  "what all ranks read, sorted");
  }

  // The same steps with all samples of a step in one batch, by hand, on the same device.
  std::vector<at::Tensor> train_alone(const at::Tensor& x, const at::Tensor& y) {
    torch::manual_seed(3);
    torch::nn::Linear model(2, 1);
    model->to(accelerator_.device());
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    const int64_t rows = kBatchSize * ranks();
    for (int64_t step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      const at::Tensor wanted = on_device(y.narrow(0, step * rows, rows));
      torch::mse_loss(model(on_device(x.narrow(0, step * rows, rows))), wanted).backward();
      optimizer.step();
    }
    std::vector<at::Tensor> weights;
    for (const at::Tensor& weight : model->parameters()) weights.push_back(weight.detach().cpu());
    return weights;
  }

  void check_training() {
    const int64_t samples = kBatchSize * ranks() * kSteps;
    const at::Tensor x = torch::arange(2 * samples, torch::kFloat).view({samples, 2}).sin();
    const at::Tensor y = x.mv(torch::tensor({2.0f, -3.0f})).unsqueeze(1) + 0.5;
    const std::vector<at::Tensor> wanted = train_alone(x, y);

    torch::manual_seed(3);
    torch::nn::Linear net(2, 1);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    DataLoader data(make_tensor_dataset(x, y), {.batch_size = kBatchSize});
    auto [model, optimizer, loader] = accelerator_.prepare(net, sgd, data);
    for (auto& [inputs, targets] : loader) {
      optimizer.zero_grad();
      accelerator_.backward(torch::mse_loss(model(inputs), targets));
      optimizer.step();
    }
    // Sums in another order, and 16 bits where they are asked for.
    const bool is_exact = accelerator_.mixed_precision() == accelerate::PrecisionType::kNo;
    const double tolerance = is_exact ? 1e-5 : 5e-2;
    const std::vector<at::Tensor> got = accelerator_.unwrap_model(model)->parameters();
    for (size_t i = 0; i < wanted.size(); ++i) {
      TORCH_CHECK(got[i].detach().cpu().to(torch::kFloat).allclose(wanted[i], tolerance, tolerance),
                  "weights are ", got[i], " where one process has ", wanted[i]);
      const at::Tensor all = accelerator_.gather(got[i].detach().reshape({1, -1})).cpu();
      TORCH_CHECK(all.eq(all[0]).all().item<bool>(), "ranks have different weights: ", all);
    }
  }

  Accelerator accelerator_;
};

int self_test(int argc, char** argv) {
  SelfTest().run();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  // For `accelerate --version` and `accelerate env`.
  if (argc == 2 && argv[1] == std::string("--versions")) {
    std::cout << nlohmann::json{{"libtorch", TORCH_VERSION},
                                {"backends", accelerate::backend_names()},
                                {"hwloc", accelerate::internal::hwloc_version()}}
              << "\n";
    return 0;
  }
  return accelerate::run(argc, argv, self_test);
}

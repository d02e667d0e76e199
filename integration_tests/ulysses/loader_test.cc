// Loaders of jobs in which ranks along sp divide sequences: each rank reads batches of its own, and
// the ranks of a group work through all of them, each with its part of the tokens.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "accelerate/accelerate.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/data/data_loader.h"
#include "accelerate/data/sequence_parts.h"
#include "accelerate/state/gradient_state.h"
#include "accelerate/testing/value_error.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;
using ::testing::AllOf;
using ::testing::HasSubstr;

using Values = std::vector<int64_t>;

constexpr int64_t kLength = 8;

// Sample i has the tokens 100 i, 100 i + 1, ....
struct Texts {
  int64_t count = 16;
  int64_t length = kLength;
  int64_t fails_at = -1;

  int64_t size() const { return count; }
  NamedBatch get_batch(const at::Tensor& indices) const {
    if (indices.eq(fails_at).any().item<bool>()) throw std::runtime_error("the disk is gone");
    const at::Tensor tokens = indices.unsqueeze(1) * 100 + torch::arange(length);
    return {{"input_ids", tokens}, {"labels", tokens}, {"number", indices}};
  }
};

ParallelismConfig mesh(int64_t replicas, int64_t sp) {
  return ParallelismConfig({.dp_replicate_size = replicas, .sp_size = sp});
}

Values values(const at::Tensor& tensor) {
  const at::Tensor host = tensor.cpu().contiguous();
  const int64_t* const data = host.const_data_ptr<int64_t>();
  return {data, data + host.numel()};
}

void append(Values& values, const Values& more) {
  values.insert(values.end(), more.begin(), more.end());
}

// The numbers of the samples that each rank gets, batch by batch.
std::vector<std::vector<Values>> numbers_of_ranks(int64_t replicas, int64_t sp, const Texts& texts,
                                                  const DataLoaderOptions& options,
                                                  const DataLoaderConfiguration& config = {}) {
  std::vector<std::vector<Values>> all(static_cast<size_t>(replicas * sp));
  Cluster("1x" + std::to_string(replicas * sp) + ":h100").run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator(
        {.dataloader_config = config, .parallelism_config = mesh(replicas, sp)});
    auto loader = accelerator.prepare(DataLoader(texts, options));
    for (NamedBatch& batch : loader) {
      all[static_cast<size_t>(rank.index())].push_back(values(batch.at("number")));
    }
  });
  return all;
}

TEST(UlyssesLoader, GivesEachRankItsPartOfTheBatchesOfItsGroup) {
  Cluster("1x4:h100").run_on_every_rank([](Rank& rank) {
    Accelerator accelerator({.parallelism_config = mesh(2, 2)});
    auto loader = accelerator.prepare(DataLoader(Texts(), {.batch_size = 2}));
    EXPECT_EQ(loader.size(), 4);
    EXPECT_EQ(loader.total_batch_size(), 4);
    const int group = rank.index() / 2, member = rank.index() % 2;
    // Shares 0 to 3 read samples 0-1, 2-3, 4-5 and 6-7, and then 8-9 and so on.
    const std::vector<int64_t> first = {4 * group, 4 * group + 2, 8 + 4 * group, 10 + 4 * group};
    size_t batches = 0;
    for (NamedBatch& batch : loader) {
      ASSERT_LT(batches, first.size());
      const at::Tensor numbers =
          torch::tensor({first[batches], first[batches] + 1}, batch.at("number").options());
      const at::Tensor places = torch::arange(4, numbers.options()) + 4 * member;
      EXPECT_TRUE(at::equal(batch.at("number"), numbers));
      EXPECT_TRUE(at::equal(batch.at("input_ids"), numbers.unsqueeze(1) * 100 + places));
      EXPECT_TRUE(at::equal(batch.at("position_ids"), places.expand({2, 4})));
      at::Tensor next = numbers.unsqueeze(1) * 100 + places + 1;
      if (member == 1) next.select(1, 3).fill_(-100);
      EXPECT_TRUE(at::equal(batch.at("shift_labels"), next));
      EXPECT_FALSE(batch.contains("labels"));
      ++batches;
      EXPECT_EQ(accelerator.gradient_state().end_of_dataloader(), batches == first.size());
    }
    EXPECT_EQ(batches, first.size());
  });
}

// With a last round that is padded, whoever reads.
TEST(UlyssesLoader, GivesEachSampleOnceAnEpochToMetrics) {
  for (const int64_t samples : {16, 17, 21, 23}) {
    for (const DataLoaderConfiguration& config :
         {DataLoaderConfiguration{}, DataLoaderConfiguration{.dispatch_batches = true},
          DataLoaderConfiguration{.even_batches = false}}) {
      SCOPED_TRACE(testing::Message()
                   << samples << " samples, dispatched " << config.dispatch_batches.value_or(false)
                   << ", even " << config.even_batches);
      Cluster("1x4:h100").run_on_every_rank([&](Rank&) {
        Accelerator accelerator({.dataloader_config = config, .parallelism_config = mesh(2, 2)});
        auto loader = accelerator.prepare(
            DataLoader(Texts{.count = samples}, {.batch_size = 2, .shuffle = true}));
        Values seen;
        for (NamedBatch& batch : loader) {
          append(seen, values(accelerator.gather_for_metrics(batch.at("number"))));
        }
        // Where some groups have a batch more, the others have left the loop.
        if (!config.even_batches && accelerator.state().data_share().index > 0) return;
        std::sort(seen.begin(), seen.end());
        Values all(static_cast<size_t>(samples));
        std::iota(all.begin(), all.end(), 0);
        EXPECT_EQ(seen, all);
      });
    }
  }
}

TEST(UlyssesLoader, LetsRanksWithoutABatchHelpTheOthers) {
  const auto all =
      numbers_of_ranks(1, 2, Texts{.count = 5}, {.batch_size = 1}, {.even_batches = false});
  const std::vector<Values> expected = {{0}, {1}, {2}, {3}, {4}};
  EXPECT_EQ(all[0], expected);
  EXPECT_EQ(all[1], expected);
}

// Also in the midst of a round.
TEST(UlyssesLoader, GoesOnWhereAPositionWasTaken) {
  Cluster("1x4:h100").run_on_every_rank([](Rank&) {
    const auto made = [](Accelerator& accelerator) {
      return accelerator.prepare(DataLoader(Texts(), {.batch_size = 1}));
    };
    Accelerator accelerator({.parallelism_config = mesh(2, 2)});
    std::vector<Values> whole;
    for (NamedBatch& batch : made(accelerator)) whole.push_back(values(batch.at("number")));
    ASSERT_EQ(whole.size(), 8);
    for (size_t taken = 1; taken < whole.size(); ++taken) {
      auto left = made(accelerator);
      nlohmann::json state;
      size_t batches = 0;
      for ([[maybe_unused]] NamedBatch& batch : left) {
        if (++batches < taken) continue;
        state = left.state_dict();
        break;
      }
      auto loader = made(accelerator);
      loader.load_state_dict(state);
      auto skipped = made(accelerator).skip_first(static_cast<int64_t>(taken));
      EXPECT_EQ(skipped.size(), static_cast<int64_t>(whole.size() - taken));
      const std::vector<Values> expected(whole.begin() + static_cast<std::ptrdiff_t>(taken),
                                         whole.end());
      std::vector<Values> resumed, rest;
      for (NamedBatch& batch : loader) resumed.push_back(values(batch.at("number")));
      for (NamedBatch& batch : skipped) rest.push_back(values(batch.at("number")));
      EXPECT_EQ(resumed, expected) << "after " << taken;
      EXPECT_EQ(rest, expected) << "after " << taken;
    }
  });
}

TEST(UlyssesLoader, IsTheSameByName) {
  Cluster("1x2:h100").run_on_every_rank([](Rank&) {
    Accelerator accelerator({.parallelism_config = mesh(1, 2)});
    auto model = accelerator.prepare(std::make_shared<torch::nn::LinearImpl>(2, 2));
    const DataLoader plain(Texts(), {.batch_size = 2});
    auto cut = accelerator.deepspeed_ulysses_dl_adapter(plain, model);
    EXPECT_EQ(cut.size(), 8);
    EXPECT_EQ(cut.begin()->at("input_ids").size(1), kLength / 2);
    EXPECT_EQ(accelerator.deepspeed_ulysses_dl_adapter(cut, model).size(), 8);
  });
  Cluster("1x2:h100").run_on_every_rank([](Rank&) {
    Accelerator accelerator;
    auto model = accelerator.prepare(std::make_shared<torch::nn::LinearImpl>(2, 2));
    const DataLoader plain(Texts(), {.batch_size = 2});
    EXPECT_FALSE(accelerator.deepspeed_ulysses_dl_adapter(plain, model).is_prepared());
  });
}

// What rank 1 of two says of the first batch.
std::string error_of(const Texts& texts, const std::optional<int64_t>& length = std::nullopt) {
  std::string error;
  Cluster("1x2:h100").run_on_every_rank([&](Rank& rank) {
    ParallelismOptions sizes{.sp_size = 2};
    if (length) {
      sizes.sp_handler = DeepSpeedSequenceParallelConfig{.sp_seq_length = length,
                                                         .sp_seq_length_is_variable = false};
    }
    Accelerator accelerator({.parallelism_config = ParallelismConfig(sizes)});
    auto loader = accelerator.prepare(DataLoader(texts, {.batch_size = 2}));
    const std::string own = value_error_of([&] { loader.begin(); });
    if (rank.index() == 1) error = own;
  });
  return error;
}

TEST(UlyssesLoader, RefusesLengthsThatDoNotFit) {
  EXPECT_THAT(error_of({.length = 7}),
              HasSubstr("rank 1: the sequences of a batch have 7 tokens, which do not divide "
                        "evenly among 2 ranks along sp; 6 and 8 would"));
  EXPECT_THAT(error_of({}, 16), AllOf(HasSubstr("rank 1: the sequences of a batch have 8 tokens"),
                                      HasSubstr("sp_seq_length=16")));
  EXPECT_EQ(error_of({}, kLength), "no error");
}

TEST(UlyssesLoader, EndsOnAllRanksWhereOneCannotRead) {
  std::vector<std::string> errors(2);
  Cluster("1x2:h100").run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator({.parallelism_config = mesh(1, 2)});
    auto loader = accelerator.prepare(DataLoader(Texts{.fails_at = 3}, {.batch_size = 2}));
    try {
      loader.begin();
    } catch (const std::exception& error) {
      errors[static_cast<size_t>(rank.index())] = error.what();
    }
  });
  EXPECT_THAT(errors[0], AllOf(HasSubstr("with which rank 0 divides sequences"),
                               HasSubstr("the disk is gone")));
  EXPECT_THAT(errors[1], HasSubstr("the disk is gone"));
}

}  // namespace
}  // namespace accelerate

// Rank 0 reads for all, or each rank reads a shard the dataset made: both between simulated ranks.
// A TEST has one shape: it lists the batches of each of two or three ranks.
#include <algorithm>
#include <cstdint>
#include <functional>
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

#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "integration_tests/data/draw.h"
#include "simulator/cluster/cluster.h"
#include "simulator/testing/topology_suite.h"

namespace accelerate::data_tests {
namespace {

using nlohmann::json;
using simulator::Cluster;
using simulator::Rank;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

AcceleratorOptions dispatching(const Draw& draw) {
  return {.dataloader_config = {.split_batches = draw.geometry.split,
                                .dispatch_batches = true,
                                .use_seedable_sampler = draw.order == Order::kSeedable,
                                .data_seed = 11 + draw.number}};
}

// The text of the exception that each rank's body throws; "" if there is none.
std::vector<std::string> errors_of_ranks(Cluster cluster, const std::function<void(Rank&)>& body) {
  std::vector<std::string> errors(static_cast<size_t>(cluster.world_size()));
  cluster.run_on_every_rank([&](Rank& rank) {
    try {
      body(rank);
    } catch (const std::exception& error) {
      errors[static_cast<size_t>(rank.index())] = error.what();
    }
  });
  return errors;
}

TOPOLOGY_SUITE(DispatchOnRanks, .min_ranks = 2, .hardware = simulator::Hardware::kNoTpu);
TOPOLOGY_SUITE(SelfShardingOnRanks, .min_ranks = 2, .hardware = simulator::Hardware::kNoTpu);

// ---- Going on where a loop was left

// The state of any rank does for all, also for another number of ranks.
TEST(Dispatch, GoesOnWithTheNextSampleByTheStateOfAnyRank) {
  struct Resumed {
    Draw first;
    Draw second;
    int64_t batches = 0;
    int asked = 0;
    std::string state;
    std::vector<std::vector<Values>> given;
  };
  constexpr int kFirst = 3;
  constexpr int kSecond = 2;
  std::vector<Resumed> cases;
  for (uint64_t number = 0; number < 150; ++number) {
    Dice dice(number);
    Resumed resumed{.first = draw_loader(number, kFirst), .second = draw_loader(number, kFirst)};
    resumed.first.geometry.dispatch = true;
    resumed.second.geometry = draw_geometry(dice, kSecond);
    resumed.second.geometry.dispatch = true;
    resumed.second.geometry.drop_last = false;
    const Values any(static_cast<size_t>(resumed.first.samples));
    const int64_t rounds = expected_rounds(any, resumed.first);
    if (rounds < 2) continue;
    resumed.batches = 1 + dice.below(rounds - 1);
    resumed.asked = static_cast<int>(dice.below(kFirst));
    resumed.given.resize(kSecond);
    cases.push_back(std::move(resumed));
  }
  Cluster(absl::StrCat("1x", kFirst)).run_on_every_rank([&](Rank& rank) {
    for (Resumed& resumed : cases) {
      Accelerator accelerator(dispatching(resumed.first));
      with_loader(resumed.first, [&](auto loader) {
        auto prepared = accelerator.prepare(loader);
        auto iterator = prepared.begin();
        for (int64_t i = 1; i < resumed.batches; ++i) ++iterator;
        if (rank.index() == resumed.asked) resumed.state = prepared.state_dict().dump();
      });
    }
  });
  Cluster(absl::StrCat("1x", kSecond)).run_on_every_rank([&](Rank& rank) {
    for (Resumed& resumed : cases) {
      Accelerator accelerator(dispatching(resumed.second));
      with_loader(resumed.second, [&](auto loader) {
        auto prepared = accelerator.prepare(loader);
        prepared.load_state_dict(json::parse(resumed.state));
        for (auto& batch : prepared) {
          resumed.given[static_cast<size_t>(rank.index())].push_back(values(batch));
        }
      });
    }
  });
  for (const Resumed& resumed : cases) {
    const Values order = orders(resumed.first, 1)[0];
    const int64_t taken = resumed.batches * resumed.first.geometry.round();
    for (int rank = 0; rank < kSecond; ++rank) {
      std::vector<Values> expected;
      for (const auto& batch : expected_share(order, resumed.second, rank, taken)) {
        expected.push_back(batch.samples);
      }
      EXPECT_EQ(resumed.given[static_cast<size_t>(rank)], expected)
          << resumed.first.text() << ", left after " << resumed.batches << ", by the state of rank "
          << resumed.asked << "\n  then " << resumed.second.geometry.text() << ", rank " << rank;
    }
  }
}

// Also where only rank 0, which draws the order, could know it.
TEST(Dispatch, GoesOnInAnOrderThatNobodySeededByTheStateOfAnyRank) {
  for (int asked = 0; asked < 2; ++asked) {
    Values whole;
    Values rest;
    const auto errors = errors_of_ranks(Cluster("1x2"), [&](Rank& rank) {
      torch::manual_seed(static_cast<uint64_t>(100 + rank.index()));
      Accelerator accelerator({.dataloader_config = {.dispatch_batches = true}});
      auto make = [&] {
        Values samples(40);
        std::iota(samples.begin(), samples.end(), 0);
        return accelerator.prepare(
            DataLoader(std::move(samples), {.batch_size = 2, .shuffle = true}));
      };
      auto first = make();
      for ([[maybe_unused]] auto& batch : first) {
      }
      std::string own_state;
      for (auto& batch : first) {
        const Values now = values(accelerator.gather_for_metrics(batch));
        if (rank.index() == 0) whole.insert(whole.end(), now.begin(), now.end());
        if (own_state.empty()) own_state = first.state_dict().dump();
      }
      const auto states =
          gather_object(accelerator.state().group(), std::vector<std::string>{own_state});
      auto second = make();
      second.load_state_dict(json::parse(states.at(static_cast<size_t>(asked))));
      for (auto& batch : second) {
        const Values now = values(accelerator.gather_for_metrics(batch));
        if (rank.index() == 0) rest.insert(rest.end(), now.begin(), now.end());
      }
    });
    EXPECT_THAT(errors, Each(""));
    EXPECT_EQ(rest, Values(whole.begin() + 4, whole.end())) << "by the state of rank " << asked;
  }
}

// ---- Errors

TEST_P(DispatchOnRanks, TellsAllThatThereIsNothingToHandOut) {
  for (int workers : {0, 2}) {
    EXPECT_THAT(errors_of_ranks(make_cluster(),
                                [workers](Rank&) {
                                  Accelerator accelerator(
                                      {.dataloader_config = {.dispatch_batches = true}});
                                  auto loader = accelerator.prepare(DataLoader(
                                      Values(), {.batch_size = 2, .num_workers = workers}));
                                  for ([[maybe_unused]] auto& batch : loader) {
                                  }
                                }),
                Each(HasSubstr("the dataset is empty")));
    // A sample less than a round takes.
    EXPECT_THAT(errors_of_ranks(
                    make_cluster(),
                    [workers](Rank&) {
                      Accelerator accelerator({.dataloader_config = {.dispatch_batches = true}});
                      auto loader = accelerator.prepare(
                          DataLoader(CountingStream(2 * world_size() - 1, true),
                                     {.batch_size = 2, .drop_last = true, .num_workers = workers}));
                      for ([[maybe_unused]] auto& batch : loader) {
                      }
                    }),
                Each(HasSubstr("drop_last leaves nothing of it")));
  }
}

// Sample `broken` fails the first time it is read.
struct FailsOnce {
  int64_t broken = 0;
  int64_t count = 0;
  std::shared_ptr<bool> failed = std::make_shared<bool>(false);

  int64_t size() const { return count; }
  int64_t get(size_t index) {
    if (static_cast<int64_t>(index) == broken && !std::exchange(*failed, true)) {
      throw std::runtime_error("the file is damaged");
    }
    return static_cast<int64_t>(index);
  }
};

TEST_P(DispatchOnRanks, TellsAllWhatFailedAndWhereAndCanBeginAgain) {
  // Four rounds.
  const int64_t round = 2 * world_size();
  for (int workers : {0, 2}) {
    for (int64_t broken : {int64_t{0}, 2 * round + 1, 4 * round - 1}) {
      std::vector<int64_t> after(static_cast<size_t>(world_size()));
      const auto errors = errors_of_ranks(make_cluster(), [&](Rank& rank) {
        Accelerator accelerator({.dataloader_config = {.dispatch_batches = true}});
        auto loader =
            accelerator.prepare(DataLoader(FailsOnce{.broken = broken, .count = 4 * round},
                                           {.batch_size = 2, .num_workers = workers}));
        std::string error;
        try {
          for ([[maybe_unused]] auto& batch : loader) {
          }
        } catch (const DatasetError& caught) {
          error = caught.what();
        }
        EXPECT_FALSE(accelerator.gradient_state().in_dataloader());
        for (auto& batch : loader) after[static_cast<size_t>(rank.index())] += batch.numel();
        throw std::runtime_error(error);
      });
      EXPECT_THAT(errors, Each(AllOf(HasSubstr("rank 0"), HasSubstr("the file is damaged"),
                                     HasSubstr(absl::StrCat("sample ", broken)),
                                     HasSubstr(absl::StrCat("batch ", broken / round)))));
      EXPECT_THAT(after, Each(8)) << "the next pass, after sample " << broken << " failed";
    }
  }
}

TEST_P(DispatchOnRanks, RefusesToHandOutBatchesWithoutRows) {
  EXPECT_THAT(errors_of_ranks(
                  make_cluster(),
                  [](Rank&) {
                    Accelerator accelerator({.dataloader_config = {.dispatch_batches = true}});
                    auto sum = [](const Values& samples) {
                      return at::scalar_tensor(static_cast<int64_t>(samples.size()));
                    };
                    auto loader =
                        accelerator.prepare(DataLoader(Values{1, 2, 3, 4}, {.batch_size = 2}, sum));
                    for ([[maybe_unused]] auto& batch : loader) {
                    }
                  }),
              Each(HasSubstr("without rows")));
}

TEST_P(DispatchOnRanks, RefusesBatchesThatCannotTravel) {
  struct Handle {
    std::shared_ptr<int> resource;
  };
  EXPECT_THAT(
      errors_of_ranks(make_cluster(),
                      [](Rank&) {
                        Accelerator accelerator({.dataloader_config = {.dispatch_batches = true}});
                        accelerator.prepare(DataLoader(std::vector<Handle>(4)));
                      }),
      Each(HasSubstr("cannot be sent between ranks")));
}

// ---- What is handed out

struct Labelled {
  at::Tensor image;
  std::vector<std::string> names;
};
auto tree_members(Labelled& labelled) { return std::tie(labelled.image, labelled.names); }

TEST(Dispatch, CutsTensorsAndListsByTheSameRows) {
  std::vector<std::vector<std::string>> seen(3);
  const auto errors = errors_of_ranks(Cluster("1x3"), [&](Rank& rank) {
    Accelerator accelerator({.dataloader_config = {.dispatch_batches = true}});
    auto collate = [](const Values& samples) {
      Labelled batch{torch::tensor(samples).view({-1, 1}).expand({-1, 4}), {}};
      for (int64_t sample : samples) batch.names.push_back(absl::StrCat(sample));
      return batch;
    };
    auto loader = accelerator.prepare(
        DataLoader(Values{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, {.batch_size = 2}, collate));
    for (Labelled& batch : loader) {
      TORCH_CHECK(batch.image.size(0) == static_cast<int64_t>(batch.names.size()));
      for (size_t i = 0; i < batch.names.size(); ++i) {
        const int64_t pixel = batch.image[static_cast<int64_t>(i)][3].item<int64_t>();
        TORCH_CHECK(batch.names[i] == absl::StrCat(pixel));
        seen[static_cast<size_t>(rank.index())].push_back(batch.names[i]);
      }
    }
  });
  EXPECT_THAT(errors, Each(""));
  EXPECT_EQ(seen[0], (std::vector<std::string>{"0", "1", "6", "7"}));
  EXPECT_EQ(seen[1], (std::vector<std::string>{"2", "3", "8", "9"}));
  EXPECT_EQ(seen[2], (std::vector<std::string>{"4", "5", "0", "1"}));
}

TEST(Dispatch, CutsByAFunctionOfTheUsersOwn) {
  std::vector<Values> seen(2);
  const auto errors = errors_of_ranks(Cluster("1x2"), [&](Rank& rank) {
    Accelerator accelerator({.dataloader_config = {.dispatch_batches = true}});
    // Rank r takes every other row, instead of a half.
    auto alternate = [](const at::Tensor& batch, int64_t begin, int64_t end, int r, int world) {
      TORCH_CHECK(end - begin == 2 && begin == 2 * r);
      return batch.slice(0, r, batch.size(0), world);
    };
    auto loader = accelerator.prepare_data_loader(
        DataLoader(Values{0, 1, 2, 3, 4, 5, 6, 7}, {.batch_size = 2}), std::nullopt, alternate);
    for (auto& batch : loader) {
      const Values rows = values(batch);
      Values& all = seen[static_cast<size_t>(rank.index())];
      all.insert(all.end(), rows.begin(), rows.end());
    }
  });
  EXPECT_THAT(errors, Each(""));
  EXPECT_EQ(seen[0], (Values{0, 2, 4, 6}));
  EXPECT_EQ(seen[1], (Values{1, 3, 5, 7}));
}

// Batches of any lengths: rounds of W batches, cut evenly.
TEST(Dispatch, GivesAsManyRoundsOfAListAsItSays) {
  const std::vector<std::vector<Values>> drawn = {
      {{0, 1}, {2}, {3, 4, 5}, {6}, {7}}, {{0}, {1}, {2}, {3}}, {{0, 1}, {2, 3, 4}, {5}}};
  for (const auto& lists : drawn) {
    for (const std::optional<int64_t> promise :
         {std::optional<int64_t>(), std::optional<int64_t>(2)}) {
      std::vector<Values> gathered(2);
      std::vector<int64_t> sizes(2);
      std::vector<int64_t> counts(2);
      const auto errors = errors_of_ranks(Cluster("1x2"), [&](Rank& rank) {
        const auto index = static_cast<size_t>(rank.index());
        Accelerator accelerator({.dataloader_config = {.dispatch_batches = true}});
        auto sampler = std::make_shared<ListBatchSampler>(
            lists, ListBatchSamplerOptions{.batch_size = promise});
        auto loader = accelerator.prepare(
            DataLoader(Values{0, 1, 2, 3, 4, 5, 6, 7}, {.batch_sampler = sampler}));
        sizes[index] = loader.size();
        for (auto& batch : loader) {
          ++counts[index];
          const Values now = values(accelerator.gather_for_metrics(batch));
          gathered[index].insert(gathered[index].end(), now.begin(), now.end());
        }
      });
      EXPECT_THAT(errors, Each(""));
      EXPECT_EQ(counts, sizes) << lists.size() << " lists, promise " << promise.value_or(-1);
      Values all;
      for (const Values& list : lists) all.insert(all.end(), list.begin(), list.end());
      EXPECT_EQ(gathered, (std::vector<Values>{all, all}));
    }
  }
}

// ---- Shards that a dataset makes

// Rank r reads the files r, r + W, ...
class Files {
 public:
  explicit Files(std::vector<Values> files) : files_(std::move(files)) { reset(); }
  int64_t num_shards() const { return static_cast<int64_t>(files_.size()); }
  Files shard(int64_t index, int64_t count) const {
    if (refused_ == index) throw std::runtime_error("no such file");
    std::vector<Values> own;
    for (auto i = static_cast<size_t>(index); i < files_.size(); i += static_cast<size_t>(count)) {
      own.push_back(files_[i]);
    }
    return Files(std::move(own));
  }
  void reset() {
    all_.clear();
    next_ = 0;
    for (const Values& file : files_) all_.insert(all_.end(), file.begin(), file.end());
  }
  std::optional<int64_t> next() {
    if (next_ == static_cast<int64_t>(all_.size())) return std::nullopt;
    const int64_t sample = all_[static_cast<size_t>(next_++)];
    if (sample < 0) throw std::runtime_error("the file is damaged");
    return sample;
  }
  void refuse(int64_t shard) { refused_ = shard; }

 protected:
  std::vector<Values> files_;
  Values all_;
  int64_t next_ = 0;
  int64_t refused_ = -1;
};

// The same, which can tell where it stands.
class StatefulFiles : public Files {
 public:
  using Files::Files;
  explicit StatefulFiles(Files files) : Files(std::move(files)) {}
  StatefulFiles shard(int64_t index, int64_t count) const {
    return StatefulFiles(Files::shard(index, count));
  }
  json state_dict() { return {{"next", next_}}; }
  void load_state_dict(const json& state) { next_ = state.at("next").get<int64_t>(); }
};

std::vector<Values> draw_files(Dice& dice, int count) {
  std::vector<Values> files(static_cast<size_t>(count));
  int64_t next = 0;
  for (Values& file : files) {
    file.resize(static_cast<size_t>(1 + dice.below(12)));
    for (int64_t& sample : file) sample = next++;
  }
  return files;
}

Values sorted(Values values) {
  std::sort(values.begin(), values.end());
  return values;
}

AcceleratorOptions self_sharding(bool even = true) {
  return {.dataloader_config = {.dispatch_batches = false, .even_batches = even}};
}

TEST_P(SelfShardingOnRanks, GathersEachSampleOnceAndGivesAllEquallyManyBatches) {
  const auto ranks = static_cast<size_t>(world_size());
  for (uint64_t number = 0; number < 20; ++number) {
    Dice dice(number);
    const std::vector<Values> files =
        draw_files(dice, world_size() + static_cast<int>(dice.below(5)));
    const int64_t batch_size = 1 + dice.below(4);
    const bool workers = dice.one_in(4);
    Values all;
    for (const Values& file : files) all.insert(all.end(), file.begin(), file.end());
    std::vector<Values> gathered(ranks);
    std::vector<int64_t> counts(ranks);
    std::vector<int> ends(ranks);
    const auto errors = errors_of_ranks(make_cluster({.seed = number}), [&](Rank& rank) {
      const auto index = static_cast<size_t>(rank.index());
      Accelerator accelerator(self_sharding());
      auto loader = accelerator.prepare(
          DataLoader(Files(files), {.batch_size = batch_size, .num_workers = workers ? 2 : 0}));
      for (auto& batch : loader) {
        ++counts[index];
        ends[index] += accelerator.gradient_state().end_of_dataloader() ? 1 : 0;
        const Values now = values(accelerator.gather_for_metrics(batch));
        gathered[index].insert(gathered[index].end(), now.begin(), now.end());
      }
    });
    EXPECT_THAT(errors, Each("")) << "draw " << number;
    EXPECT_THAT(counts, Each(counts[0])) << "draw " << number;
    EXPECT_THAT(ends, Each(1)) << "draw " << number;
    for (const Values& of_rank : gathered) EXPECT_EQ(sorted(of_rank), all) << "draw " << number;
  }
}

// Each rank goes on by its own state, also one whose shard had ended before others'.
template <typename Dataset>
void check_resuming_own_shards() {
  const std::vector<Values> files = {{0, 1, 2}, {10, 11, 12, 13, 14, 15, 16, 17}};
  for (int64_t left_after = 1; left_after < 4; ++left_after) {
    std::vector<Values> whole(2);
    std::vector<Values> parts(2);
    const auto errors = errors_of_ranks(Cluster("1x2"), [&](Rank& rank) {
      const auto index = static_cast<size_t>(rank.index());
      Accelerator accelerator(self_sharding());
      auto make = [&] {
        return accelerator.prepare(DataLoader(Dataset(files), {.batch_size = 2}));
      };
      auto gather_into = [&](Values& all, const at::Tensor& batch) {
        const Values now = values(accelerator.gather_for_metrics(batch));
        all.insert(all.end(), now.begin(), now.end());
      };
      auto uninterrupted = make();
      for (auto& batch : uninterrupted) gather_into(whole[index], batch);
      auto first = make();
      int64_t batches = 0;
      for (auto& batch : first) {
        gather_into(parts[index], batch);
        if (++batches == left_after) break;
      }
      auto second = make();
      second.load_state_dict(json::parse(first.state_dict().dump()));
      for (auto& batch : second) gather_into(parts[index], batch);
    });
    EXPECT_THAT(errors, Each("")) << "left after " << left_after;
    EXPECT_EQ(parts, whole) << "left after " << left_after;
  }
}

TEST(SelfSharding, GoesOnAlsoOnRanksThatHadEnded) { check_resuming_own_shards<Files>(); }
TEST(SelfSharding, GoesOnByTheDatasetsStateAlsoOnRanksThatHadEnded) {
  check_resuming_own_shards<StatefulFiles>();
}

TEST(SelfSharding, SkipsAlsoOnRanksThatHaveNoMoreBatches) {
  std::vector<Values> gathered(2);
  const auto errors = errors_of_ranks(Cluster("1x2"), [&](Rank& rank) {
    Accelerator accelerator(self_sharding());
    auto loader = accelerator.prepare(
        DataLoader(Files({{0, 1}, {10, 11, 12, 13, 14, 15}}), {.batch_size = 2}));
    for (auto& batch : skip_first_batches(loader, 2)) {
      const Values now = values(accelerator.gather_for_metrics(batch));
      gathered[static_cast<size_t>(rank.index())] = now;
    }
  });
  EXPECT_THAT(errors, Each(""));
  EXPECT_EQ(gathered, (std::vector<Values>{{14, 15}, {14, 15}}));
}

// A file of as many samples for each rank.
std::vector<Values> file_for_each_rank(int64_t samples) {
  std::vector<Values> files(static_cast<size_t>(simulator::TopologyTest::world_size()));
  int64_t next = 0;
  for (Values& file : files) {
    for (int64_t i = 0; i < samples; ++i) file.push_back(next++);
  }
  return files;
}

TEST_P(SelfShardingOnRanks, TellsAllWhichOneFailed) {
  std::vector<Values> files = file_for_each_rank(4);
  files[1][2] = -1;
  for (int workers : {0, 2}) {
    const auto errors = errors_of_ranks(make_cluster(), [&](Rank&) {
      Accelerator accelerator(self_sharding());
      auto loader =
          accelerator.prepare(DataLoader(Files(files), {.batch_size = 2, .num_workers = workers}));
      for ([[maybe_unused]] auto& batch : loader) {
      }
    });
    EXPECT_THAT(errors, Each(HasSubstr("rank 1")));
    EXPECT_THAT(errors[1], AllOf(HasSubstr("batch 1"), HasSubstr("the file is damaged")));
  }
}

// A rank that cannot even make its shard must not leave the others waiting for its first batch.
TEST_P(SelfShardingOnRanks, TellsAllWhichOneCannotBegin) {
  const auto errors = errors_of_ranks(make_cluster(), [&](Rank&) {
    Accelerator accelerator(self_sharding());
    Files files(file_for_each_rank(2));
    files.refuse(1);
    auto loader = accelerator.prepare(DataLoader(std::move(files), {.batch_size = 2}));
    for ([[maybe_unused]] auto& batch : loader) {
    }
  });
  EXPECT_THAT(errors, Each(HasSubstr("rank 1")));
  EXPECT_THAT(errors[1], HasSubstr("no such file"));
}

// A collate function that pads to the longest sample sees the samples that pad the round, too.
TEST_P(DispatchOnRanks, PadsTheLastRoundAsOneBatch) {
  auto pad = [](const std::vector<int64_t>& lengths) {
    const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
    at::Tensor batch = torch::zeros({static_cast<int64_t>(lengths.size()), longest}, torch::kLong);
    for (size_t i = 0; i < lengths.size(); ++i) {
      batch[static_cast<int64_t>(i)].slice(0, 0, lengths[i]).fill_(lengths[i]);
    }
    return batch;
  };
  // A sample less than two rounds take.
  Values samples(static_cast<size_t>(4 * world_size() - 1));
  std::iota(samples.begin(), samples.end(), 1);
  std::vector<Values> seen(static_cast<size_t>(world_size()));
  make_cluster().run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator({.dataloader_config = {.dispatch_batches = true}});
    auto loader = accelerator.prepare(DataLoader(Values(samples), {.batch_size = 2}, pad));
    for (auto& batch : loader) {
      const Values lengths =
          values(accelerator.gather_for_metrics(batch.select(1, 0).contiguous()));
      auto& own = seen[static_cast<size_t>(rank.index())];
      own.insert(own.end(), lengths.begin(), lengths.end());
    }
  });
  EXPECT_THAT(seen, Each(samples));
}

}  // namespace
}  // namespace accelerate::data_tests

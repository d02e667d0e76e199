// Loaders of ranks of which several have the same share of the data: they get the same batches, and
// the shares together have each sample once.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/ops/randint.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "accelerate/data/data_loader.h"
#include "accelerate/state/gradient_state.h"
#include "accelerate/testing/loader_passes.h"
#include "accelerate/testing/threaded_group.h"
#include "accelerate/testing/value_error.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

Values joined(const Batches& batches) {
  Values all;
  for (const Values& batch : batches) all.insert(all.end(), batch.begin(), batch.end());
  return all;
}

Values sorted(Values values) {
  std::sort(values.begin(), values.end());
  return values;
}

// Neighbours have the same share.
ShardOptions share_of(const Group& group, int num_shares) {
  return {.share = group->getRank() / (group->getSize() / num_shares),
          .num_shares = num_shares,
          .group = group};
}

// The result of each rank.
template <typename Body>
auto on_ranks(int ranks, const Body& body) {
  std::vector<decltype(body(Group()))> results(static_cast<size_t>(ranks));
  run_ranks(ranks, [&](const Group& group) {
    results[static_cast<size_t>(group->getRank())] = body(group);
  });
  return results;
}

// A stream with a generator, which draws its samples' order.
class ShuffledStream {
 public:
  ShuffledStream(int64_t count, uint64_t seed) : count_(count), generator_(seeded(seed)) {}
  std::optional<int64_t> next() {
    if (at_ == count_) return std::nullopt;
    const int64_t noise = at::randint(1000, {1}, generator_, at::kLong).item<int64_t>();
    return 1000 * at_++ + noise;
  }
  void reset() { at_ = 0; }
  at::Generator generator() const { return generator_; }

 private:
  int64_t count_;
  int64_t at_ = 0;
  at::Generator generator_;
};

// Files that a share each reads; file i has i + 1 samples.
class Files {
 public:
  explicit Files(int64_t count, int64_t first = 0) : first_(first), end_(first + count) { reset(); }
  int64_t num_shards() const { return end_ - first_; }
  Files shard(int64_t index, int64_t count) const {
    const int64_t files = num_shards() / count;
    return Files(files, first_ + index * files);
  }
  std::optional<int64_t> next() {
    while (file_ < end_ && at_ > file_) {
      ++file_;
      at_ = 0;
    }
    if (file_ == end_) return std::nullopt;
    return 100 * file_ + at_++;
  }
  void reset() {
    file_ = first_;
    at_ = 0;
  }

 private:
  int64_t first_, end_, file_ = 0, at_ = 0;
};

TEST(RanksOfOneShare, ShuffleAlikeHoweverTheyAreSeeded) {
  for (const bool defined : {false, true}) {
    for (const bool seedable : {false, true}) {
      SCOPED_TRACE(::testing::Message() << "defined " << defined << ", seedable " << seedable);
      const auto passes = on_ranks(4, [&](const Group& group) {
        ShardOptions options = share_of(group, 2);
        options.use_seedable_sampler = seedable;
        const DataLoader loader =
            DataLoader(list(12),
                       {.batch_size = 2,
                        .shuffle = true,
                        .generator = defined ? seeded(7 + group->getRank()) : at::Generator()})
                .shard(options);
        const Batches first = one_pass(loader);
        return std::pair(first, one_pass(loader));
      });
      EXPECT_EQ(passes[0], passes[1]);
      EXPECT_EQ(passes[2], passes[3]);
      Values seen = joined(passes[0].first);
      for (const int64_t sample : joined(passes[2].first)) seen.push_back(sample);
      EXPECT_EQ(sorted(seen), list(12));
      EXPECT_NE(passes[0].first, passes[0].second);
    }
  }
}

// One share is the whole: its last batch is not padded, as that of a rank by itself is not.
TEST(RanksOfOneShare, ThatIsTheOnlyOneReadEverythingInOneOrder) {
  for (const bool split : {false, true}) {
    const auto passes = on_ranks(2, [&](const Group& group) {
      ShardOptions options = share_of(group, 1);
      options.split_batches = split;
      options.rng_types = {};
      const DataLoader loader =
          DataLoader(list(7), {.batch_size = 4, .shuffle = true}).shard(options);
      EXPECT_EQ(loader.size(), 2);
      EXPECT_EQ(loader.total_batch_size(), 4);
      return one_pass(loader);
    });
    EXPECT_EQ(passes[0], passes[1]);
    EXPECT_EQ(passes[0][1].size(), 3);
    EXPECT_EQ(sorted(joined(passes[0])), list(7));
  }
}

TEST(RanksOfOneShare, ReadOneSequenceOfAStream) {
  for (const int num_shares : {1, 2}) {
    const auto passes = on_ranks(2 * num_shares, [&](const Group& group) {
      ShardOptions options = share_of(group, num_shares);
      options.dispatch_batches = false;
      const DataLoader loader =
          DataLoader(ShuffledStream(9, 1 + group->getRank()), {.batch_size = 2}).shard(options);
      return one_pass(loader);
    });
    EXPECT_EQ(passes[0], passes[1]);
    EXPECT_EQ(joined(passes[0]).size(), num_shares == 1 ? 9 : 6);
    if (num_shares == 2) {
      EXPECT_EQ(passes[2], passes[3]);
      EXPECT_NE(passes[1], passes[2]);
    }
  }
}

// Each sample is a random number from its worker's generator.
struct Augmented {
  size_t size() const { return 8; }
  int64_t get(size_t) const {
    return at::randint(1 << 30, {}, worker_info()->generator, at::kLong).item<int64_t>();
  }
};

TEST(RanksOfOneShare, AugmentAlikeAndSharesDiffer) {
  const auto passes = on_ranks(4, [](const Group& group) {
    ShardOptions options = share_of(group, 2);
    options.rng_types = {};
    const uint64_t seed = 5 + group->getRank();
    const DataLoader loader =
        DataLoader(Augmented{}, {.batch_size = 2, .generator = seeded(seed), .num_workers = 1})
            .shard(options);
    const Batches first = one_pass(loader);
    return std::pair(first, one_pass(loader));
  });
  EXPECT_EQ(passes[0], passes[1]);
  EXPECT_EQ(passes[2], passes[3]);
  EXPECT_NE(passes[0].first, passes[2].first);
  EXPECT_NE(passes[0].first, passes[0].second) << "each pass has a base seed of its own";
}

TEST(RanksOfOneShare, CutTheSameRowsOfWhatRank0Reads) {
  // A round of two shares takes 4 of 11 samples; the last one is padded with the first sample.
  const auto passes = on_ranks(4, [](const Group& group) {
    ShardOptions options = share_of(group, 2);
    options.dispatch_batches = true;
    GradientState state;
    options.gradient_state = &state;
    const DataLoader loader = DataLoader(list(11), {.batch_size = 2}).shard(options);
    Batches batches;
    Values own_rows;
    for (auto& batch : loader) {
      batches.push_back(values(batch));
      own_rows.push_back(state.round()->own_rows);
    }
    return std::pair(batches, own_rows);
  });
  EXPECT_THAT(passes[0].first, ElementsAre(Values{0, 1}, Values{4, 5}, Values{8, 9}));
  EXPECT_THAT(passes[2].first, ElementsAre(Values{2, 3}, Values{6, 7}, Values{10, 0}));
  EXPECT_THAT(passes[0].second, ElementsAre(2, 2, 2));
  EXPECT_THAT(passes[2].second, ElementsAre(2, 2, 1));
  EXPECT_EQ(passes[1], passes[0]);
  EXPECT_EQ(passes[3], passes[2]);
}

TEST(RanksOfOneShare, ThatIsTheOnlyOneGetAllThatRank0Reads) {
  const auto passes = on_ranks(2, [](const Group& group) {
    ShardOptions options = share_of(group, 1);
    options.dispatch_batches = true;
    const uint64_t seed = 3 + group->getRank();
    const DataLoader loader =
        DataLoader(list(5), {.batch_size = 2, .shuffle = true, .generator = seeded(seed)})
            .shard(options);
    return one_pass(loader);
  });
  EXPECT_EQ(passes[0], passes[1]);
  EXPECT_EQ(sorted(joined(passes[0])), list(5));
}

// Numbers whose memory has the other sign, and numbers of a dtype that Gloo does not carry.
struct FlaggedAndSmall {
  int64_t size() const { return 4; }
  std::tuple<at::Tensor, at::Tensor> get_batch(const at::Tensor& indices) const {
    return {indices.to(at::kFloat)._neg_view(), indices.to(at::kShort)};
  }
};

TEST(DispatchedBatches, HaveRank0sNumbersWhateverTheirFlagsAndDtypes) {
  const auto batches = on_ranks(2, [](const Group& group) {
    ShardOptions options = share_of(group, 2);
    options.dispatch_batches = true;
    Batches batches;
    for (auto& [flagged, small] : DataLoader(FlaggedAndSmall{}, {.batch_size = 2}).shard(options)) {
      EXPECT_EQ(small.scalar_type(), at::kShort);
      batches.push_back(values(flagged.to(at::kLong)));
      batches.push_back(values(small.to(at::kLong)));
    }
    return batches;
  });
  EXPECT_THAT(batches[0], ElementsAre(Values{0, -1}, Values{0, 1}));
  EXPECT_THAT(batches[1], ElementsAre(Values{-2, -3}, Values{2, 3}));
}

TEST(RanksOfOneShare, GiveTheirShareToTheUsersSlicing) {
  const auto calls = on_ranks(4, [](const Group& group) {
    ShardOptions options = share_of(group, 2);
    options.dispatch_batches = true;
    std::vector<Values> calls;
    const auto slice = [&calls](const at::Tensor& batch, int64_t begin, int64_t end, int share,
                                int num_shares) {
      calls.push_back({begin, end, share, num_shares});
      return batch.slice(0, begin, end);
    };
    one_pass(DataLoader(list(6), {.batch_size = 3}).shard(options, slice));
    return calls;
  });
  EXPECT_THAT(calls[1], ElementsAre(Values{0, 3, 0, 2}));
  EXPECT_THAT(calls[2], ElementsAre(Values{3, 6, 1, 2}));
  EXPECT_EQ(calls[0], calls[1]);
  EXPECT_EQ(calls[2], calls[3]);
}

TEST(RanksOfOneShare, ReadOneShardOfAStreamThatShardsItself) {
  const auto passes = on_ranks(4, [](const Group& group) {
    ShardOptions options = share_of(group, 2);
    options.dispatch_batches = false;
    GradientState state;
    options.gradient_state = &state;
    const DataLoader loader = DataLoader(Files(4), {.batch_size = 2}).shard(options);
    Batches batches;
    for (auto& batch : loader) {
      const auto all = values(batch);
      const int64_t own = state.round()->own_rows;
      batches.push_back(Values(all.begin(), own < 0 ? all.end() : all.begin() + own));
    }
    return batches;
  });
  EXPECT_EQ(joined(passes[0]), (Values{0, 100, 101}));
  EXPECT_EQ(joined(passes[2]), (Values{200, 201, 202, 300, 301, 302, 303}));
  EXPECT_EQ(passes[1], passes[0]);
  EXPECT_EQ(passes[3], passes[2]);
}

struct Broken {
  size_t size() const { return 8; }
  int64_t get(size_t index) const {
    if (index == 6) throw std::runtime_error("the file is damaged");
    return static_cast<int64_t>(index);
  }
};

TEST(RanksOfOneShare, NameTheRankThatFailed) {
  const auto errors = on_ranks(4, [](const Group& group) -> std::string {
    try {
      one_pass(DataLoader(Broken{}, {.batch_size = 2}).shard(share_of(group, 2)));
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  });
  EXPECT_EQ(errors[0], "");
  EXPECT_EQ(errors[1], "");
  EXPECT_THAT(errors[2], AllOf(HasSubstr("rank 2, batch 1"), HasSubstr("the file is damaged")));
  EXPECT_THAT(errors[3], HasSubstr("rank 3, batch 1"));
}

TEST(RanksOfOneShare, AreAsManyInEachShare) {
  const auto errors = on_ranks(3, [](const Group& group) {
    return value_error_of(
        [&] { DataLoader(list(8)).shard({.share = 0, .num_shares = 2, .group = group}); });
  });
  EXPECT_THAT(errors, Each(HasSubstr("3 ranks cannot have 2 shares of the data")));
}

// A position counts the samples of all shares, so it is the same wherever it is taken.
TEST(RanksOfOneShare, GoOnFromThePositionOfAnotherLayout) {
  const auto make = [](const Group& group, int num_shares) {
    return DataLoader(list(52),
                      {.batch_size = 2, .shuffle = true, .generator = seeded(1 + group->getRank())})
        .shard(share_of(group, num_shares));
  };
  for (const auto& [first, second] : {std::pair(4, 2), {2, 1}, {1, 4}}) {
    SCOPED_TRACE(::testing::Message() << first << " shares, then " << second);
    struct Result {
      Batches before, after;
      std::string state;
    };
    auto results = on_ranks(4, [&, first = first](const Group& group) {
      Result result;
      const auto loader = make(group, first);
      auto iterator = loader.begin();
      result.before.push_back(values(*iterator));
      result.before.push_back(values(*++iterator));
      result.state = loader.state_dict().dump();
      return result;
    });
    const nlohmann::json state = nlohmann::json::parse(results[0].state);
    EXPECT_EQ(state.at("num_shares"), first);
    EXPECT_EQ(results[3].state, results[2].state);
    const auto after = on_ranks(4, [&, second = second](const Group& group) {
      auto loader = make(group, second);
      loader.load_state_dict(state);
      return one_pass(loader);
    });
    Values seen;
    for (int share = 0; share < first; ++share) {
      for (const int64_t sample : joined(results[share * 4 / first].before)) seen.push_back(sample);
    }
    for (int share = 0; share < second; ++share) {
      for (const int64_t sample : joined(after[share * 4 / second])) seen.push_back(sample);
    }
    EXPECT_EQ(sorted(seen), list(52));
    EXPECT_EQ(after[0] == after[1], second < 4);
  }
}

// One of several shares of a stream that shards itself has a position that others cannot take.
TEST(RanksOfOneShare, TellWhosePositionAStreamsShardHas) {
  const auto errors = on_ranks(4, [](const Group& group) {
    ShardOptions options = share_of(group, 2);
    options.dispatch_batches = false;
    const auto make = [&](const ShardOptions& shard) {
      return DataLoader(Files(4), {.batch_size = 1}).shard(shard);
    };
    const auto loader = make(options);
    const auto iterator = loader.begin();
    const nlohmann::json state = loader.state_dict();
    make(options).load_state_dict(state);
    options.share = 1 - options.share;
    auto other = make(options);
    const std::string of_other = value_error_of([&] { other.load_state_dict(state); });
    options = share_of(group, 4);
    options.dispatch_batches = false;
    auto more = make(options);
    return std::pair(of_other, value_error_of([&] { more.load_state_dict(state); }));
  });
  EXPECT_THAT(errors[3].first, HasSubstr("rank 3 has share 0, the state is of share 1"));
  EXPECT_THAT(errors[0].second, HasSubstr("is of 2 data shares, here are 4"));
}

}  // namespace
}  // namespace accelerate

// A loop that is left and gone on with elsewhere, over random draws: by other ranks, in other
// batches, with workers or without, each sample still comes once, in the order of the whole run.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "integration_tests/data/draw.h"

namespace accelerate::data_tests {
namespace {

using nlohmann::json;

// As a checkpoint keeps it.
json through_text(const json& state) { return json::parse(state.dump()); }

// One rank's loop from `state` on (null: from the start), left after `batches`, -1: at its end.
struct Leg {
  std::vector<Values> batches;
  json state;
  std::vector<Values> next_pass;  // if it came to the end
};

Leg run_leg(const Draw& draw, int rank, const json& state, int64_t batches) {
  return with_loader(draw, [&](auto loader) {
    auto shard = loader.shard(shard_options(draw, rank));
    if (!state.is_null()) shard.load_state_dict(state);
    Leg leg;
    bool left = false;
    for (auto& batch : shard) {
      leg.batches.push_back(values(batch));
      if (batches < 0 || static_cast<int64_t>(leg.batches.size()) < batches) continue;
      leg.state = through_text(shard.state_dict());
      left = true;
      break;
    }
    if (left) return leg;
    leg.state = through_text(shard.state_dict());
    for (auto& batch : shard) leg.next_pass.push_back(values(batch));
    return leg;
  });
}

std::vector<Values> samples_of(const std::vector<ExpectedBatch>& batches) {
  std::vector<Values> samples;
  for (const ExpectedBatch& batch : batches) samples.push_back(batch.samples);
  return samples;
}

// Walks two passes of the draw in legs, each by a geometry of its own.
void check_chain(const Draw& whole, Dice& dice) {
  const std::vector<Values> passes = orders(whole, 2);
  std::string story = whole.text();
  json state;
  int64_t taken = 0;
  const auto legs = 2 + dice.below(4);
  for (int64_t leg = 0; leg < legs; ++leg) {
    Draw draw = whole;
    if (leg > 0 && !dice.one_in(3)) {
      const bool drop_last = draw.geometry.drop_last;
      draw.geometry = draw_geometry(dice, 0);
      draw.geometry.drop_last = drop_last;
    }
    const int64_t rounds = expected_rounds(passes[0], draw, taken);
    const bool last_leg = leg + 1 == legs || rounds < 2;
    const int64_t batches = last_leg ? -1 : 1 + dice.below(rounds - 1);
    absl::StrAppend(&story, "\n  after ", taken, ": ", draw.geometry.text(), ", ", batches,
                    " batches");
    // Uneven ranks end in different rounds; rank 0 ends in the last.
    const auto any = static_cast<int>(dice.below(draw.geometry.world_size));
    const int asked = draw.geometry.fills_up(draw.source) ? any : 0;
    json next;
    for (int rank = 0; rank < draw.geometry.world_size; ++rank) {
      std::vector<Values> expected = samples_of(expected_share(passes[0], draw, rank, taken));
      if (batches > 0) expected.resize(static_cast<size_t>(batches));
      const Leg given = run_leg(draw, rank, state, batches);
      ASSERT_EQ(given.batches, expected) << story << "\n  rank " << rank;
      if (last_leg && (!given.batches.empty() || taken > 0)) {
        ASSERT_EQ(given.next_pass, samples_of(expected_share(passes[1], draw, rank)))
            << story << "\n  rank " << rank << ", the pass after";
      }
      if (rank == asked) next = given.state;
    }
    if (last_leg) return;
    state = next;
    taken += batches * draw.geometry.round();
  }
}

TEST(Resume, GoesOnWithTheNextSampleWhoeverGoesOn) {
  for (uint64_t number = 0; number < 10000; ++number) {
    Dice dice(number + 1000000);
    check_chain(draw_loader(number), dice);
    if (HasFatalFailure()) return;
  }
}

// A pass that ended is not resumed: the state is of the next one.
TEST(Resume, BeginsTheNextPassAfterAWholeOne) {
  for (uint64_t number = 0; number < 1000; ++number) {
    Draw draw = draw_loader(number);
    if (draw.samples == 0) continue;
    draw.geometry.drop_last = false;
    const std::vector<Values> passes = orders(draw, 2);
    const auto last = static_cast<int64_t>(expected_share(passes[0], draw, 0).size());
    // Asked in the loop's last round, and after the loop.
    for (int64_t batches : {last, int64_t{-1}}) {
      for (int rank = 0; rank < draw.geometry.world_size; ++rank) {
        const Leg first = with_loader(draw, [&](auto loader) {
          auto shard = loader.shard(shard_options(draw, 0));
          Leg leg;
          for (auto& batch : shard) {
            leg.batches.push_back(values(batch));
            if (static_cast<int64_t>(leg.batches.size()) == batches) {
              leg.state = through_text(shard.state_dict());
              break;
            }
          }
          if (leg.state.is_null()) leg.state = through_text(shard.state_dict());
          return leg;
        });
        ASSERT_EQ(run_leg(draw, rank, first.state, -1).batches,
                  samples_of(expected_share(passes[1], draw, rank)))
            << draw.text() << " rank " << rank << " asked after " << batches;
      }
    }
  }
}

TEST(Resume, TellsThePositionItWasGivenUntilThePassBegins) {
  for (uint64_t number = 0; number < 1000; ++number) {
    const Draw draw = draw_loader(number);
    if (expected_rounds(Values(static_cast<size_t>(draw.samples)), draw) < 2) continue;
    const Leg leg = run_leg(draw, 0, {}, 1);
    const json again = with_loader(draw, [&](auto loader) {
      auto shard = loader.shard(shard_options(draw, 0));
      shard.load_state_dict(leg.state);
      return through_text(shard.state_dict());
    });
    ASSERT_EQ(again, leg.state) << draw.text();
  }
}

TEST(Resume, SkippingIsLeavingOutTheFirstBatches) {
  for (uint64_t number = 0; number < 3000; ++number) {
    const Draw draw = draw_loader(number);
    const Values order = orders(draw, 1)[0];
    Dice dice(number);
    const auto rank = static_cast<int>(dice.below(draw.geometry.world_size));
    std::vector<Values> expected = samples_of(expected_share(order, draw, rank));
    const int64_t count = dice.below(static_cast<int64_t>(expected.size()) + 2);
    const auto skipped = std::min(static_cast<size_t>(count), expected.size());
    expected.erase(expected.begin(), expected.begin() + static_cast<std::ptrdiff_t>(skipped));
    with_loader(draw, [&](auto loader) {
      GradientState state;
      auto shard = loader.shard(shard_options(draw, rank, &state));
      auto rest = skip_first_batches(shard, count);
      std::vector<Values> given;
      std::vector<bool> ends;
      for (auto& batch : rest) {
        given.push_back(values(batch));
        ends.push_back(state.end_of_dataloader());
      }
      ASSERT_EQ(given, expected) << draw.text() << " rank " << rank << " skip " << count;
      std::vector<bool> expected_ends(expected.size(), false);
      if (!expected.empty()) expected_ends.back() = true;
      ASSERT_EQ(ends, expected_ends) << draw.text() << " rank " << rank << " skip " << count;
      if (draw.source != Source::kUnsizedStream) {
        ASSERT_EQ(rest.size(), given.size()) << draw.text() << " skip " << count;
      }
    });
    if (HasFatalFailure()) return;
  }
}

// Leaving a skipped pass and going on is as leaving the whole one.
TEST(Resume, GoesOnAfterASkippedPassThatWasLeft) {
  for (uint64_t number = 0; number < 1500; ++number) {
    const Draw draw = draw_loader(number);
    const Values order = orders(draw, 1)[0];
    const int64_t rounds = expected_rounds(order, draw);
    if (rounds < 3) continue;
    const int64_t skip = 1 + number % static_cast<uint64_t>(rounds - 2);
    const json state = with_loader(draw, [&](auto loader) {
      auto shard = loader.shard(shard_options(draw, 0));
      auto rest = skip_first_batches(shard, skip);
      auto first = rest.begin();
      return through_text(rest.state_dict());
    });
    const int64_t taken = (skip + 1) * draw.geometry.round();
    ASSERT_EQ(run_leg(draw, 0, state, -1).batches,
              samples_of(expected_share(order, draw, 0, taken)))
        << draw.text() << " skip " << skip;
  }
}

// Batches of any lengths count as batches.
TEST(Resume, GoesOnInAListOfBatches) {
  for (uint64_t number = 0; number < 2000; ++number) {
    Dice dice(number);
    std::vector<Values> lists(static_cast<size_t>(2 + dice.below(20)));
    int64_t next = 0;
    for (Values& list : lists) {
      list.resize(static_cast<size_t>(1 + dice.below(4)));
      for (int64_t& sample : list) sample = next++;
    }
    DataLoader loader(make_tensor_dataset(at::arange(next)),
                      {.batch_sampler = std::make_shared<ListBatchSampler>(lists)});
    const int first = static_cast<int>(1 + dice.below(4));
    const int second = static_cast<int>(1 + dice.below(4));
    const int64_t rounds = (static_cast<int64_t>(lists.size()) + first - 1) / first;
    if (rounds < 2) continue;
    const int64_t batches = 1 + dice.below(rounds - 1);
    const std::string text = absl::StrCat("draw ", number, ": ", lists.size(), " lists, ", first,
                                          " ranks, after ", batches, " batches ", second);
    auto shard = loader.shard({.share = first - 1, .num_shares = first});
    auto iterator = shard.begin();
    for (int64_t i = 1; i < batches; ++i) ++iterator;
    const json state = through_text(shard.state_dict());
    std::vector<Values> given(lists.size());
    for (int rank = 0; rank < second; ++rank) {
      auto share = loader.shard({.share = rank, .num_shares = second, .even_batches = false});
      share.load_state_dict(state);
      auto place = static_cast<size_t>(batches * first + rank);
      for (auto& batch : share) {
        ASSERT_LT(place, lists.size()) << text;
        given[place] = values(batch);
        place += static_cast<size_t>(second);
      }
    }
    for (size_t i = static_cast<size_t>(batches * first); i < lists.size(); ++i) {
      ASSERT_EQ(given[i], lists[i]) << text << " list " << i;
    }
  }
}

// A sampler that is between two passes, too, says which comes next.
template <typename MakeSampler>
void check_sampler_between_passes(const MakeSampler& make) {
  auto whole = make();
  whole->indices();
  const json state = through_text(whole->state_dict());
  const at::Tensor expected = whole->indices();
  auto other = make();
  other->load_state_dict(state);
  EXPECT_TRUE(other->indices().equal(expected)) << state.dump().substr(0, 60);
}

TEST(Resume, SamplersTellTheNextPassFromTheirGenerator) {
  auto generator = [] { return at::detail::createCPUGenerator(5); };
  check_sampler_between_passes([&] {
    return std::make_unique<RandomSampler>(20, RandomSamplerOptions{.generator = generator()});
  });
  check_sampler_between_passes([&] {
    return std::make_unique<SeedableRandomSampler>(20,
                                                   SeedableRandomSamplerOptions{.data_seed = 3});
  });
  check_sampler_between_passes([&] {
    return std::make_unique<WeightedRandomSampler>(
        at::arange(1, 21), 20, WeightedRandomSamplerOptions{.generator = generator()});
  });
  check_sampler_between_passes(
      [&] { return std::make_unique<SubsetRandomSampler>(at::arange(20), generator()); });
}

// A stream that can tell where it stands is not read up to there again, but for its first block.
TEST(Resume, ReadsOnlyTheFirstBlockOfAStatefulStreamAgain) {
  DataLoader loader(StatefulStream(1000, true), {.batch_size = 5});
  auto shard = loader.shard({.share = 1, .num_shares = 2, .dispatch_batches = false});
  auto iterator = shard.begin();
  for (int i = 0; i < 80; ++i) ++iterator;
  const json state = through_text(shard.state_dict());

  StatefulStream fresh(1000, true);
  auto resumed = DataLoader(fresh, {.batch_size = 5})
                     .shard({.share = 1, .num_shares = 2, .dispatch_batches = false});
  resumed.load_state_dict(state);
  auto first = resumed.begin();
  EXPECT_EQ(values(*first), (Values{815, 816, 817, 818, 819}));
  // Three blocks: the first, the present, and the next, which exists unless the present is last.
  EXPECT_EQ(fresh.reads(), 30);
}

TEST(Resume, RefusesAStateOfAnotherLoader) {
  const Draw draw{.samples = 20, .geometry = {.batch_size = 2, .world_size = 2}};
  const json good = run_leg(draw, 0, {}, 2).state;
  Draw other = draw;
  other.samples = 21;
  EXPECT_THROW(run_leg(other, 0, good, -1), c10::ValueError);
  for (const char* key : {"epoch", "taken", "units", "batches", "version"}) {
    json bad = good;
    bad.erase(key);
    EXPECT_THROW(run_leg(draw, 0, bad, -1), c10::ValueError) << key;
  }
  for (const char* key : {"epoch", "taken", "batches", "version", "base_seed"}) {
    json bad = good;
    bad[key] = "much";
    EXPECT_THROW(run_leg(draw, 0, bad, -1), c10::ValueError) << key;
  }
  json beyond = good;
  beyond["taken"] = 21;
  EXPECT_THROW(run_leg(draw, 0, beyond, -1), c10::ValueError);
  beyond["taken"] = -1;
  EXPECT_THROW(run_leg(draw, 0, beyond, -1), c10::ValueError);
  EXPECT_THROW(run_leg(draw, 0, json(3), -1), c10::ValueError);
  EXPECT_THROW(run_leg(draw, 0, json::array(), -1), c10::ValueError);
}

// A state that was loaded before the loader was prepared is not lost.
TEST(Resume, KeepsAPositionThatWasLoadedBeforePreparing) {
  const Draw draw{.samples = 20, .geometry = {.batch_size = 2, .world_size = 2}};
  const json state = run_leg(draw, 0, {}, 2).state;
  with_loader(draw, [&](auto loader) {
    loader.load_state_dict(state);
    auto shard = loader.shard(shard_options(draw, 0));
    EXPECT_EQ(values(*shard.begin()), (Values{8, 9}));
  });
}

}  // namespace
}  // namespace accelerate::data_tests

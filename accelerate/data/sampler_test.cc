#include "accelerate/data/sampler.h"
#include "accelerate/testing/loader_passes.h"

#include <limits>
#include <memory>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace accelerate {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

using nlohmann::json;
using Values = std::vector<int64_t>;

Values values(const at::Tensor& tensor) {
  const int64_t* data = tensor.const_data_ptr<int64_t>();
  return Values(data, data + tensor.numel());
}

Values begun(Sampler& sampler) { return values(sampler.begin_pass().tensor()); }
Values whole_pass(Sampler& sampler) { return values(sampler.indices()); }

void seed_default(uint64_t seed) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  generator.set_current_seed(seed);
}

// As a checkpoint would.
json through_text(const json& state) { return json::parse(state.dump()); }

TEST(SequentialSampler, CountsUpInEveryPass) {
  SequentialSampler sampler(4);
  EXPECT_THAT(whole_pass(sampler), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(whole_pass(sampler), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(sampler.generator(), nullptr);
  EXPECT_EQ(sampler.state_dict(), json::object());
  EXPECT_EQ(SequentialSampler(0).indices().numel(), 0);
  EXPECT_THROW(SequentialSampler(-1), c10::ValueError);
}

TEST(RandomSampler, GivesTheGeneratorsPermutations) {
  RandomSampler sampler(9, {.generator = seeded(5)});
  at::Generator same = seeded(5);
  for (int pass = 0; pass < 3; ++pass) {
    EXPECT_TRUE(at::equal(sampler.indices(), at::randperm(9, same, at::kLong)));
    // PyTorch's sampler finds its end by one permutation more.
    at::randperm(9, same);
  }
}

// rnd-0166: torch's RandomSampler over 2 samples, generator seeded with 1234, two passes.
TEST(RandomSampler, GivesTorchsPassesWithAGenerator) {
  RandomSampler sampler(2, {.generator = seeded(1234)});
  EXPECT_THAT(whole_pass(sampler), ElementsAre(1, 0));
  EXPECT_THAT(whole_pass(sampler), ElementsAre(0, 1));
}

TEST(RandomSampler, DrawsTheExtraPermutationOnlyAtTheEndOfACompletePass) {
  RandomSampler left(7, {.generator = seeded(3)});
  at::Generator same = seeded(3);
  left.begin_pass();
  EXPECT_TRUE(at::equal(left.begin_pass().tensor(),
                        (at::randperm(7, same), at::randperm(7, same, at::kLong))));
  left.end_pass();
  at::randperm(7, same);
  EXPECT_TRUE(at::equal(left.begin_pass().tensor(), at::randperm(7, same, at::kLong)));
}

TEST(RandomSampler, PermutesAgainAndAgainForMoreSamplesThanThereAre) {
  for (int64_t num_samples : {2, 5, 7, 10}) {
    SCOPED_TRACE(num_samples);
    RandomSampler sampler(5, {.num_samples = num_samples, .generator = seeded(1)});
    EXPECT_EQ(sampler.size(), num_samples);
    at::Generator same = seeded(1);
    for (int pass = 0; pass < 2; ++pass) {
      std::vector<at::Tensor> permutations;
      // As torch: one more is drawn at the end, whether its first entries are needed or none.
      for (int64_t i = 0; i <= num_samples / 5; ++i) {
        permutations.push_back(at::randperm(5, same, at::kLong));
      }
      const at::Tensor expected = at::cat(permutations).narrow(0, 0, num_samples);
      EXPECT_TRUE(at::equal(sampler.indices(), expected));
    }
  }
}

// Torch draws with replacement in portions of 32.
TEST(RandomSampler, DrawsWithReplacementAsTorchDoes) {
  RandomSampler sampler(10, {.replacement = true, .num_samples = 70, .generator = seeded(11)});
  at::Generator same = seeded(11);
  for (int pass = 0; pass < 2; ++pass) {
    const at::Tensor expected =
        at::cat({at::randint(10, {32}, same, at::kLong), at::randint(10, {32}, same, at::kLong),
                 at::randint(10, {6}, same, at::kLong)});
    EXPECT_TRUE(at::equal(sampler.indices(), expected));
  }
}

TEST(RandomSampler, DrawsASeedForEachPassWithoutAGenerator) {
  seed_default(42);
  RandomSampler sampler(6);
  const Values first = whole_pass(sampler);
  const Values second = whole_pass(sampler);
  seed_default(42);
  EXPECT_EQ(values(at::randperm(6, seeded(draw_seed()), at::kLong)), first);
  EXPECT_EQ(values(at::randperm(6, seeded(draw_seed()), at::kLong)), second);
  EXPECT_FALSE(sampler.generator()->defined());
}

TEST(RandomSampler, RefusesWhatHasNothingToVisit) {
  EXPECT_THROW(RandomSampler(0), c10::ValueError);
  EXPECT_THROW(RandomSampler(3, {.num_samples = 0}), c10::ValueError);
  EXPECT_THROW(RandomSampler(3, {.num_samples = -2}), c10::ValueError);
}

// ---- States

// A sampler with the state of an open pass begins that very pass, and goes on likewise.
template <typename Make>
void expect_the_begun_pass_again(const Make& make, bool goes_on) {
  const std::unique_ptr<Sampler> one = make();
  whole_pass(*one);
  const Values pass = begun(*one);
  const json state = through_text(one->state_dict());
  one->end_pass();

  const std::unique_ptr<Sampler> other = make();
  other->load_state_dict(state);
  EXPECT_EQ(through_text(other->state_dict()), state) << "before the pass is begun again";
  EXPECT_EQ(begun(*other), pass);
  EXPECT_EQ(through_text(other->state_dict()), state) << "after it was begun again";
  other->end_pass();
  if (goes_on) {
    EXPECT_EQ(whole_pass(*other), whole_pass(*one));
  }
}

TEST(SamplerState, BeginsTheBegunPassAgain) {
  expect_the_begun_pass_again(
      [] {
        return std::make_unique<RandomSampler>(20, RandomSamplerOptions{.generator = seeded(1)});
      },
      true);
  expect_the_begun_pass_again([] { return std::make_unique<RandomSampler>(20); }, false);
  expect_the_begun_pass_again(
      [] {
        return std::make_unique<RandomSampler>(
            20, RandomSamplerOptions{.replacement = true, .generator = seeded(1)});
      },
      true);
  expect_the_begun_pass_again(
      [] {
        return std::make_unique<SeedableRandomSampler>(
            20, SeedableRandomSamplerOptions{.data_seed = UINT64_MAX});
      },
      true);
  for (bool own : {false, true}) {
    expect_the_begun_pass_again(
        [own] {
          return std::make_unique<WeightedRandomSampler>(
              at::ones({20}), 20,
              WeightedRandomSamplerOptions{.generator = own ? seeded(1) : at::Generator()});
        },
        own);
    expect_the_begun_pass_again(
        [own] {
          return std::make_unique<SubsetRandomSampler>(at::randperm(20, seeded(8)),
                                                       own ? seeded(1) : at::Generator());
        },
        own);
  }
}

// A sampler with a state taken between passes begins the pass that would have come next.
template <typename Make>
void expect_the_next_pass(const Make& make) {
  const std::unique_ptr<Sampler> one = make(seeded(1));
  whole_pass(*one);
  const json state = through_text(one->state_dict());
  const std::unique_ptr<Sampler> other = make(seeded(2));
  other->load_state_dict(state);
  EXPECT_EQ(begun(*other), begun(*one));
}

TEST(SamplerState, DescribesTheNextPassBetweenPasses) {
  expect_the_next_pass([](const at::Generator& generator) {
    return std::make_unique<RandomSampler>(20, RandomSamplerOptions{.generator = generator});
  });
  expect_the_next_pass([](const at::Generator& generator) {
    return std::make_unique<SeedableRandomSampler>(
        20, SeedableRandomSamplerOptions{.generator = generator, .data_seed = 3});
  });
  expect_the_next_pass([](const at::Generator& generator) {
    return std::make_unique<WeightedRandomSampler>(
        at::ones({20}), 20, WeightedRandomSamplerOptions{.generator = generator});
  });
  expect_the_next_pass([](const at::Generator& generator) {
    return std::make_unique<SubsetRandomSampler>(at::randperm(20, seeded(8)), generator);
  });
}

// The two may differ in having a generator, which a checkpoint does not make.
TEST(SamplerState, IsUnderstoodWithAndWithoutAGenerator) {
  for (bool between : {false, true}) {
    SCOPED_TRACE(between ? "between passes" : "in a pass");
    RandomSampler with(20, {.generator = seeded(1)});
    if (between) {
      whole_pass(with);
    } else {
      with.begin_pass();
    }
    RandomSampler without(20);
    without.load_state_dict(through_text(with.state_dict()));
    RandomSampler again(20, {.generator = seeded(9)});
    again.load_state_dict(through_text(with.state_dict()));
    EXPECT_EQ(begun(without), begun(again));
  }
  RandomSampler without(20);
  const Values pass = begun(without);
  RandomSampler with(20, {.generator = seeded(1)});
  with.load_state_dict(through_text(without.state_dict()));
  EXPECT_EQ(begun(with), pass);
}

TEST(SamplerState, LeavesTheDefaultGeneratorAloneWhenAPassIsBegunAgain) {
  RandomSampler random(20);
  WeightedRandomSampler weighted(at::ones({20}), 20);
  SubsetRandomSampler subset(at::randperm(20));
  for (Sampler* sampler : std::vector<Sampler*>{&random, &weighted, &subset}) {
    sampler->begin_pass();
    sampler->load_state_dict(sampler->state_dict());
    seed_default(6);
    sampler->begin_pass();
    const uint64_t after = draw_seed();
    seed_default(6);
    EXPECT_EQ(after, draw_seed());
  }
}

// A program that is started again may have other seeds, which the state replaces.
TEST(SamplerState, BringsItsSeedToOneThatWasMadeWithAnother) {
  SeedableRandomSampler one(20, {.data_seed = 3}), other(20, {.data_seed = 4});
  whole_pass(one);
  other.load_state_dict(through_text(one.state_dict()));
  EXPECT_EQ(other.state_dict(), one.state_dict());
  for (int pass = 0; pass < 2; ++pass) EXPECT_EQ(whole_pass(other), whole_pass(one));
}

TEST(SamplerState, ComplainsAboutWhatItCannotLoad) {
  SeedableRandomSampler seedable(5);
  try {
    seedable.load_state_dict(json{{"epoch", 3}});
    FAIL() << "no exception";
  } catch (const c10::ValueError& error) {
    EXPECT_THAT(error.what(), HasSubstr("seed"));
  }
  RandomSampler random(5);
  EXPECT_THROW(random.load_state_dict(json{{"generator", "not base64!"}}), c10::ValueError);
}

// ---- SeedableRandomSampler

TEST(SeedableRandomSampler, FollowsFromSeedAndEpochAlone) {
  // rnd-0005: data_seed 1000000 over five samples, epochs 0 and 7.
  SeedableRandomSampler sampler(5, {.data_seed = 1000000});
  EXPECT_THAT(whole_pass(sampler), ElementsAre(0, 4, 2, 1, 3));
  sampler.set_epoch(0);
  EXPECT_THAT(whole_pass(sampler), ElementsAre(0, 4, 2, 1, 3));
  sampler.set_epoch(7);
  EXPECT_THAT(whole_pass(sampler), ElementsAre(3, 2, 1, 0, 4));
  EXPECT_EQ(sampler.epoch(), 8);
}

TEST(SeedableRandomSampler, ReseedsAGivenGenerator) {
  // rnd-0137: a generator seeded with 99, data_seed 5, from epoch 3 on.
  at::Generator generator = seeded(99);
  SeedableRandomSampler sampler(10, {.generator = generator, .data_seed = 5});
  sampler.set_epoch(3);
  EXPECT_THAT(whole_pass(sampler), ElementsAre(3, 5, 0, 1, 2, 6, 4, 7, 8, 9));
  EXPECT_THAT(whole_pass(sampler), ElementsAre(0, 5, 8, 7, 6, 2, 9, 1, 4, 3));
  EXPECT_EQ(generator.current_seed(), 5 + 4);
}

TEST(SeedableRandomSampler, RepeatsAnEpochThatWasLeftEarly) {
  SeedableRandomSampler sampler(30, {.data_seed = 1});
  const Values first = begun(sampler);
  EXPECT_EQ(sampler.epoch(), 0);
  EXPECT_EQ(whole_pass(sampler), first);
  EXPECT_NE(whole_pass(sampler), first);
  EXPECT_EQ(sampler.generator(), nullptr) << "it needs no synchronisation";
}

TEST(SeedableRandomSampler, TakesTheSeedThatTheDefaultGeneratorHas) {
  seed_default(77);
  draw_seed();
  EXPECT_EQ(SeedableRandomSampler(5).initial_seed(), 77);
}

TEST(SeedableRandomSampler, DoesNotTouchTheDefaultGenerator) {
  seed_default(1);
  const uint64_t expected = draw_seed();
  seed_default(1);
  SeedableRandomSampler(100, {.data_seed = 3}).indices();
  EXPECT_EQ(draw_seed(), expected);
}

// ---- WeightedRandomSampler, SubsetRandomSampler

TEST(WeightedRandomSampler, IsMultinomial) {
  const at::Tensor weights = at::tensor({0.5, 0.0, 3.0, 1.5}, at::kDouble);
  for (bool replacement : {true, false}) {
    const int64_t count = replacement ? 20 : 3;
    WeightedRandomSampler sampler(weights.to(at::kFloat), count,
                                  {.replacement = replacement, .generator = seeded(2)});
    EXPECT_EQ(sampler.size(), count);
    at::Generator same = seeded(2);
    for (int pass = 0; pass < 2; ++pass) {
      EXPECT_TRUE(at::equal(sampler.indices(), at::multinomial(weights, count, replacement, same)));
    }
  }
  seed_default(4);
  const at::Tensor drawn = WeightedRandomSampler(weights, 9).indices();
  seed_default(4);
  EXPECT_TRUE(at::equal(drawn, at::multinomial(weights, 9, true)));
}

// Their sum is beyond the largest double.
TEST(WeightedRandomSampler, TakesWeightsOfAnySize) {
  const at::Tensor weights = at::tensor({1e308, 1e308, 0.0, 1e308}, at::kDouble);
  const at::Tensor drawn = WeightedRandomSampler(weights, 300, {.generator = seeded(1)}).indices();
  for (const int64_t sample : {0, 1, 3}) {
    EXPECT_GT(drawn.eq(sample).sum().item<int64_t>(), 50) << sample;
  }
  EXPECT_EQ(drawn.eq(2).sum().item<int64_t>(), 0);
}

TEST(WeightedRandomSampler, DrawsNoSampleWithoutAWeight) {
  const at::Tensor weights = at::tensor({0.0, 1.0, 0.0, 2.0});
  const at::Tensor both = WeightedRandomSampler(weights, 2, {.replacement = false}).indices();
  EXPECT_EQ(both.sum().item<int64_t>(), 4);
  EXPECT_EQ(both.eq(1).sum().item<int64_t>(), 1);
  EXPECT_THROW(WeightedRandomSampler(weights, 3, {.replacement = false}), c10::ValueError);
}

TEST(WeightedRandomSampler, RefusesWeightsThatAreNone) {
  for (const at::Tensor& weights :
       {at::Tensor(), at::ones({2, 2}), at::ones({0}), at::zeros({3}), -at::ones({3}),
        at::tensor({1.0, std::numeric_limits<double>::quiet_NaN()})}) {
    EXPECT_THROW(WeightedRandomSampler(weights, 1), c10::ValueError);
  }
  EXPECT_THROW(WeightedRandomSampler(at::ones({3}), 0), c10::ValueError);
  EXPECT_THROW(WeightedRandomSampler(at::ones({3}), 4, {.replacement = false}), c10::ValueError);
}

TEST(SubsetRandomSampler, PermutesTheGivenIndices) {
  SubsetRandomSampler sampler(at::tensor({7, 3, 11}, at::kInt), seeded(2));
  at::Generator same = seeded(2);
  const at::Tensor indices = at::tensor({7, 3, 11}, at::kLong);
  for (int pass = 0; pass < 3; ++pass) {
    EXPECT_TRUE(at::equal(sampler.indices(), indices.index({at::randperm(3, same, at::kLong)})));
  }
  EXPECT_THAT(whole_pass(sampler), UnorderedElementsAre(3, 7, 11));
  EXPECT_EQ(sampler.size(), 3);
  EXPECT_THROW(SubsetRandomSampler(at::ones({2, 2}, at::kLong)), c10::ValueError);
}

// ---- Seeds

TEST(DrawSeed, IsOneInt64DrawOfAGenerator) {
  seed_default(7);
  const int64_t first = at::empty({}, at::kLong).random_().item<int64_t>();
  const int64_t second = at::empty({}, at::kLong).random_().item<int64_t>();
  seed_default(7);
  EXPECT_EQ(draw_seed(), static_cast<uint64_t>(first));
  EXPECT_EQ(draw_seed(), static_cast<uint64_t>(second));
  EXPECT_EQ(draw_seed(seeded(7)), static_cast<uint64_t>(first));
}

}  // namespace
}  // namespace accelerate

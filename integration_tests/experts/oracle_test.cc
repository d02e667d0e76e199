// Training of a language model with experts, on clusters of the shape that the mesh needs: the
// losses, balance losses and norms of one process with two shares of the data, or four, and what
// each expert took, as recorded from PyTorch (data/moe.json).
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "accelerate/config/parallelism_config.h"
#include "integration_tests/experts/expert_training.h"
#include "integration_tests/tensor/first_steps.h"

namespace accelerate {
namespace {

struct Answer {
  std::vector<double> losses, balances, norms;
  std::vector<std::vector<int64_t>> taken;
};

struct Answers {
  Formula formula;
  int64_t rows = 0;
  int steps = 0;
  int64_t elements = 0;
  nlohmann::json by_name;

  Answer of(const std::string& name) const {
    const nlohmann::json& answer = by_name.at(name);
    const auto of_steps = [&](const char* what) {
      std::vector<double> all = answer.at(what).get<std::vector<double>>();
      EXPECT_GE(all.size(), static_cast<size_t>(steps)) << name;
      all.resize(static_cast<size_t>(steps));
      return all;
    };
    return {.losses = of_steps("losses"),
            .balances = of_steps("balances"),
            .norms = of_steps("norms"),
            .taken = answer.at("taken").get<std::vector<std::vector<int64_t>>>()};
  }
};

// All steps that PyTorch has computed.
Answers read_answers_of_experts() {
  std::ifstream file("integration_tests/experts/data/moe.json");
  const nlohmann::json all = nlohmann::json::parse(file);
  const nlohmann::json& formula = all.at("formula");
  Answers answers;
  answers.formula.text.clear();
  for (const nlohmann::json& piece : formula.at("text")) {
    answers.formula.text += piece.get<std::string>();
  }
  answers.formula.matrix_scale = formula.at("matrix_scale").get<double>();
  answers.formula.bias_scale = formula.at("bias_scale").get<double>();
  answers.formula.norm_scale = formula.at("norm_scale").get<double>();
  answers.rows = formula.at("rows").get<int64_t>();
  answers.steps = formula.at("steps").get<int>();
  answers.elements = all.at("elements").get<int64_t>();
  answers.by_name = all.at("answers");
  return answers;
}

// For ranks, which compute what one process does.
Answers first_answers_of_experts() {
  Answers answers = read_answers_of_experts();
  answers.steps = first_steps(answers.steps);
  return answers;
}

struct Rules {
  const char* name;  // as the answers have it
  std::optional<double> capacity_factor = std::nullopt;
  double balance_loss = 0;
};

const std::vector<Rules>& all_rules() {
  static const std::vector<Rules> rules = {{"dropless"},
                                           {"dropless, balance", std::nullopt, 0.01},
                                           {"capacity 1.25, balance", 1.25, 0.01},
                                           {"capacity 0.5, balance", 0.5, 0.01}};
  return rules;
}

ExpertTraining training_of(const Answers& answers, const Rules& rules) {
  return {.router = {.capacity_factor = rules.capacity_factor, .balance_loss = rules.balance_loss},
          .steps = answers.steps,
          .rows = answers.rows,
          .formula = answers.formula};
}

void expect_near(const std::string& beside, const std::vector<double>& actual,
                 const std::vector<double>& expected, double tolerance) {
  ASSERT_EQ(actual.size(), expected.size()) << beside;
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(actual[i], expected[i], tolerance * expected[i]) << beside << ", step " << i;
  }
}

void expect_equal(const std::string& beside, const ExpertOutcome& outcome, const Answer& answer) {
  expect_near(beside + ", loss", outcome.losses, answer.losses, 1e-6);
  expect_near(beside + ", balance", outcome.balances, answer.balances, 1e-5);
  expect_near(beside + ", norm", outcome.norms, answer.norms, 1e-5);
}

// Exactly; what is dropped is the rest.
void expect_taken(const std::string& beside, const ExpertOutcome& outcome, const Answer& answer,
                  int64_t choices) {
  EXPECT_EQ(outcome.taken, answer.taken) << beside;
  for (size_t layer = 0; layer < outcome.taken.size(); ++layer) {
    int64_t all = 0;
    for (size_t i = 0; i < outcome.taken[layer].size(); ++i) {
      all += outcome.taken[layer][i] + outcome.dropped[layer][i];
    }
    EXPECT_EQ(all, choices) << beside << ", layer " << layer;
  }
}

// Two shares are two micro-steps.
TEST(TrainingWithExperts, InOneProcessIsThatOfPyTorch) {
  const Answers answers = read_answers_of_experts();
  for (const Rules& rules : all_rules()) {
    ExpertTraining training = training_of(answers, rules);
    training.micro_steps = 2;
    const ExpertOutcome outcome = train_experts(training);
    const Answer answer = answers.of(rules.name);
    expect_equal(rules.name, outcome, answer);
    expect_taken(rules.name, outcome, answer, 4 * 128 * 2);
    EXPECT_EQ(outcome.elements, answers.elements);
  }
}

// Two shares on two ranks, each with all experts or with half of them.
TEST(TrainingWithExperts, OnTwoRanksIsThatOfOneProcess) {
  const Answers answers = first_answers_of_experts();
  for (const int64_t ep : {1, 2}) {
    for (const Rules& rules : all_rules()) {
      ExpertTraining training = training_of(answers, rules);
      training.sizes = ParallelismOptions{.dp_shard_size = 2, .ep_size = ep};
      training.cluster = "1x2:h100";
      const ExpertOutcome outcome = train_experts(training);
      const std::string beside = absl::StrCat(rules.name, ", ep ", ep);
      const Answer answer = answers.of(rules.name);
      expect_equal(beside, outcome, answer);
      expect_taken(beside, outcome, answer, 4 * 128 * 2);
    }
  }
}

// Without a balance loss and a capacity, which are each share's own, it does not matter how many
// shares there are.
TEST(TrainingWithExperts, OnFourRanksIsThatOfOneProcessWhereNothingIsOfAShare) {
  const Answers answers = first_answers_of_experts();
  for (const int64_t ep : {1, 2, 4}) {
    ExpertTraining training = training_of(answers, all_rules()[0]);
    training.sizes = ParallelismOptions{.dp_shard_size = 4, .ep_size = ep};
    training.cluster = "1x4:h100";
    expect_equal(absl::StrCat("ep ", ep), train_experts(training), answers.of("dropless"));
  }
}

// Four shares with a capacity and a balance loss, in one process and on four ranks, each with all
// experts, half of them or one.
TEST(TrainingWithExperts, OfFourSharesWithACapacityIsThatOfPyTorch) {
  constexpr char kName[] = "capacity 1.25, balance, four shares";
  const Answers all = read_answers_of_experts(), answers = first_answers_of_experts();
  const Answer answer = answers.of(kName);
  const int64_t choices = 2 * 128 * 2;
  ExpertTraining training = training_of(all, all_rules()[2]);
  training.micro_steps = 4;
  const ExpertOutcome one = train_experts(training);
  expect_equal("one process", one, all.of(kName));
  expect_taken("one process", one, answer, choices);
  EXPECT_NE(one.dropped, std::vector<std::vector<int64_t>>(4, std::vector<int64_t>(4)));
  training.micro_steps = 1;
  training.steps = answers.steps;
  training.cluster = "1x4:h100";
  for (const int64_t ep : {1, 2, 4}) {
    training.sizes = ParallelismOptions{.dp_shard_size = 4, .ep_size = ep};
    const ExpertOutcome outcome = train_experts(training);
    const std::string beside = absl::StrCat("ep ", ep);
    expect_equal(beside, outcome, answer);
    expect_taken(beside, outcome, answer, choices);
    EXPECT_EQ(outcome.dropped, one.dropped) << beside;
  }
}

// Ranks along ep are consecutive along dp_shard, cp and sp together.
TEST(TrainingWithExperts, OnRanksWithPartsOfSequencesIsThatOfOneProcess) {
  const Answers answers = first_answers_of_experts();
  for (const ParallelismOptions& sizes :
       std::vector<ParallelismOptions>{{.cp_size = 2, .ep_size = 2},
                                       {.sp_size = 2, .ep_size = 2},
                                       {.dp_shard_size = 2, .cp_size = 2, .ep_size = 2},
                                       {.dp_shard_size = 2, .cp_size = 2, .ep_size = 4},
                                       {.dp_shard_size = 2, .sp_size = 2, .ep_size = 4},
                                       {.dp_replicate_size = 2, .sp_size = 2, .ep_size = 2}}) {
    ExpertTraining training = training_of(answers, all_rules()[0]);
    training.sizes = sizes;
    const int64_t shares = sizes.dp_replicate_size.value_or(1) * sizes.dp_shard_size.value_or(1);
    const int64_t ranks = shares * sizes.cp_size.value_or(1) * sizes.sp_size.value_or(1);
    training.cluster = absl::StrCat("1x", ranks, ":h100");
    const std::string beside =
        absl::StrCat(shares, " shares, cp ", sizes.cp_size.value_or(1), ", sp ",
                     sizes.sp_size.value_or(1), ", ep ", *sizes.ep_size);
    expect_equal(beside, train_experts(training), answers.of("dropless"));
  }
}

// Beside replicas, and beside layers that ranks along tp divide.
TEST(TrainingWithExperts, BesideOtherAxesIsThatOfOneProcess) {
  const Answers answers = first_answers_of_experts();
  const auto check = [&](const std::string& beside, const Rules& rules,
                         const ParallelismOptions& sizes, const std::string& cluster) {
    ExpertTraining training = training_of(answers, rules);
    training.sizes = sizes;
    training.cluster = cluster;
    expect_equal(beside, train_experts(training), answers.of(rules.name));
  };
  check("tp 2", all_rules()[2], {.dp_shard_size = 2, .tp_size = 2, .ep_size = 2}, "1x4:h100");
  check("dp_replicate 2", all_rules()[0],
        {.dp_replicate_size = 2, .dp_shard_size = 2, .ep_size = 2}, "1x4:h100");
}

TEST(TrainingWithExperts, IsTheSameWhereBlocksAreComputedAgain) {
  const Answers answers = first_answers_of_experts();
  ExpertTraining training = training_of(answers, all_rules()[2]);
  training.computes_again = true;
  training.sizes = ParallelismOptions{.dp_shard_size = 2, .ep_size = 2};
  training.cluster = "1x2:h100";
  expect_equal("computed again", train_experts(training), answers.of(all_rules()[2].name));
}

TEST(TrainingWithExperts, IsTheSameInAnAccumulationWindow) {
  const Answers answers = first_answers_of_experts();
  ExpertTraining training = training_of(answers, all_rules()[0]);
  training.micro_steps = 2;
  training.sizes = ParallelismOptions{.dp_replicate_size = 2, .dp_shard_size = 2, .ep_size = 2};
  training.cluster = "1x4:h100";
  expect_equal("two micro-steps", train_experts(training), answers.of("dropless"));
}

// The simulator's seed decides which rank computes when.
TEST(TrainingWithExperts, IsTheSameBitForBitInEveryOrderOfRanks) {
  const Answers answers = first_answers_of_experts();
  ExpertTraining training = training_of(answers, all_rules()[2]);
  training.config = tiny_experts(/*layers=*/1);
  training.steps = 2;
  training.sizes = ParallelismOptions{.dp_shard_size = 4, .ep_size = 2};
  training.cluster = "1x4:h100";
  training.seed = 1;
  const ExpertOutcome first = train_experts(training);
  ASSERT_EQ(first.norms.size(), 2);
  const uint64_t orders = std::max<uint64_t>(10, orders_of_ranks());
  for (training.seed = 2; training.seed <= orders; ++training.seed) {
    const ExpertOutcome outcome = train_experts(training);
    EXPECT_EQ(outcome.losses, first.losses) << "seed " << training.seed;
    EXPECT_EQ(outcome.norms, first.norms) << "seed " << training.seed;
  }
}

}  // namespace
}  // namespace accelerate

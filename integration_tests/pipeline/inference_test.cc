// prepare_pippy on models of six kinds: what goes through the ranks is, bit by bit, what the whole
// model makes of the same parts of the batch.
#include "accelerate/inference/prepare_pippy.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "accelerate/config/model_parts.h"
#include "accelerate/examples/lm/config.h"
#include "accelerate/examples/lm/model.h"
#include "accelerate/inference/measure_parts.h"
#include "accelerate/state/partial_state.h"
#include "accelerate/testing/value_error.h"
#include "integration_tests/pipeline/small_pipeline.h"
#include "integration_tests/tensor/formula_model.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using torch::Tensor;

// Its head is tied to its table of words.
class TiedImpl : public torch::nn::Module, public ModelParts {
 public:
  TiedImpl()
      : words_(register_module("words", torch::nn::Embedding(11, 6))),
        first_(register_module("first", torch::nn::Linear(6, 6))),
        second_(register_module("second", torch::nn::Linear(6, 6))),
        offset_(register_buffer("offset", torch::full({6}, 0.25))) {}

  Tensor forward(const Tensor& x) { return forward_parts(0, 4, x); }
  std::vector<ModelPart> parts() const override {
    return {{.name = "words"},
            {.name = "first", .uses = {"first", "offset"}},
            {.name = "second"},
            {.name = "head", .uses = {"words"}}};
  }
  Tensor forward_parts(size_t begin, size_t end, Tensor x) override {
    for (size_t part = begin; part < end; ++part) {
      switch (part) {
        case 0: x = words_(x); break;
        case 1: x = x + first_(x).tanh() + offset_; break;
        case 2: x = second_(x).relu(); break;
        default: x = torch::linear(x, words_->weight);
      }
    }
    return x;
  }

 private:
  torch::nn::Embedding words_;
  torch::nn::Linear first_, second_;
  const Tensor offset_;
};

struct Model {
  std::shared_ptr<torch::nn::Module> module;
  std::function<Tensor(const Tensor&)> forward;
};

struct Kind {
  std::string name;
  std::function<Model()> make;
  std::function<Tensor(int64_t rows)> inputs;
};

Model of_sequential(torch::nn::Sequential layers) {
  return {layers.ptr(), [layers](const Tensor& x) mutable { return layers->forward(x); }};
}

Model of_lm(lm::Blocks blocks) {
  lm::Lm made(lm::model_config("tiny", {.blocks = blocks}));
  fill_by_formula(*made);
  return {made.ptr(), [made](const Tensor& x) mutable { return made->forward(x); }};
}

Tensor words_of(int64_t rows) { return formula_batch(0, rows, 16).first; }

std::vector<Kind> kinds() {
  return {
      {"layers", [] { return of_sequential(small_sequential()); },
       [](int64_t rows) { return small_batch(rows, 3, 1).first; }},
      {"convolutions",
       [] {
         torch::manual_seed(2);
         return of_sequential(torch::nn::Sequential(
             torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3)), torch::nn::BatchNorm2d(4),
             torch::nn::ReLU(), torch::nn::Flatten(), torch::nn::Linear(4 * 16, 5)));
       },
       [](int64_t rows) {
         return (torch::arange(rows * 3 * 36, torch::kFloat) * 0.3).sin().view({rows, 3, 6, 6});
       }},
      {"words in layers",
       [] {
         torch::manual_seed(3);
         return of_sequential(torch::nn::Sequential(
             torch::nn::Embedding(256, 8), torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})),
             torch::nn::Linear(8, 16), torch::nn::GELU(), torch::nn::Linear(16, 4)));
       },
       words_of},
      {"gpt", [] { return of_lm(lm::Blocks::kGpt); }, words_of},
      {"llama", [] { return of_lm(lm::Blocks::kLlama); }, words_of},
      {"tied parts",
       [] {
         torch::manual_seed(4);
         const auto tied = std::make_shared<TiedImpl>();
         return Model{tied, [tied](const Tensor& x) { return tied->forward(x); }};
       },
       [](int64_t rows) { return torch::arange(rows * 5).remainder(11).view({rows, 5}); }}};
}

// The whole model, on the same parts of the batch.
Tensor by_chunks(const Model& model, const Tensor& inputs, int64_t chunks) {
  const torch::NoGradGuard no_grad;
  const int64_t rows = inputs.size(0);
  chunks = std::min(chunks, rows);
  std::vector<Tensor> outputs;
  int64_t first = 0;
  for (int64_t i = 0; i < chunks; ++i) {
    const int64_t count = rows / chunks + (i < rows % chunks ? 1 : 0);
    outputs.push_back(model.forward(inputs.narrow(0, first, count)));
    first += count;
  }
  return torch::cat(outputs);
}

class Pippy : public ::testing::TestWithParam<size_t> {};

TEST_P(Pippy, GivesTheOutputsOfTheWholeModel) {
  const Kind kind = kinds()[GetParam()];
  SCOPED_TRACE(kind.name);
  for (const int ranks : {1, 2, 4}) {
    Cluster(absl::StrCat("1x", ranks, ":h100")).run_on_every_rank([&](Rank& rank) {
      const PartialState& state = PartialState::get();
      for (const int chunks : {1, 2, 4}) {
        const Model whole = kind.make(), divided = kind.make();
        whole.module->to(state.device());
        whole.module->eval();
        divided.module->eval();
        PippyModel model = prepare_pippy(divided.module, {.num_chunks = chunks});
        // Batches that divide, that do not, and one with fewer rows than parts.
        for (const int64_t rows : {8, 7, 4, 1}) {
          const Tensor inputs = kind.inputs(rows);
          const Tensor expected = by_chunks(whole, inputs.to(state.device()), chunks);
          const Tensor output = model(rank.index() == 0 ? inputs : Tensor());
          ASSERT_EQ(output.defined(), rank.index() == ranks - 1);
          if (output.defined()) EXPECT_TRUE(output.equal(expected)) << chunks << " of " << rows;
          EXPECT_FALSE(output.defined() && output.requires_grad());
        }
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Pippy, ::testing::Range(size_t{0}, kinds().size()));

TEST(PippyOutputs, AreOnAllRanksIfAsked) {
  Cluster("1x3:h100").run_on_every_rank([](Rank& rank) {
    const Model divided = of_sequential(small_sequential());
    PippyModel model = prepare_pippy(
        divided.module, {.example_args = small_batch(2, 3, 0).first, .gather_output = true});
    const Model whole = of_sequential(small_sequential());
    whole.module->to(PartialState::get().device());
    for (const int64_t rows : {6, 5}) {
      const Tensor inputs = small_batch(rows, 3, 7).first;
      // Those of other ranks are not looked at.
      const Tensor output = model(rank.index() == 0 ? inputs : torch::zeros({1}));
      EXPECT_TRUE(output.equal(by_chunks(whole, inputs.to(output.device()), 3))) << rank.index();
    }
  });
}

TEST(PippyChunks, AreAsManyAsRanksOrAsTheyAreAsked) {
  const auto rows_of_passes = [](std::optional<int> num_chunks, int64_t rows) {
    std::vector<int64_t> seen;
    Cluster("1x2:h100").run_on_every_rank([&](Rank& rank) {
      std::vector<int64_t> own;
      torch::nn::Sequential layers(torch::nn::Linear(8, 4),
                                   torch::nn::Functional([&own](const Tensor& x) {
                                     own.push_back(x.size(0));
                                     return x;
                                   }));
      PippyModel model =
          prepare_pippy(layers.ptr(), {.split_points = {"1"}, .num_chunks = num_chunks});
      model(rank.index() == 0 ? small_batch(rows, 3, 0).first : Tensor());
      if (rank.index() == 1) seen = own;
    });
    return seen;
  };
  EXPECT_THAT(rows_of_passes(std::nullopt, 8), ElementsAre(4, 4));
  EXPECT_THAT(rows_of_passes(std::nullopt, 5), ElementsAre(3, 2));
  EXPECT_THAT(rows_of_passes(3, 8), ElementsAre(3, 3, 2));
  EXPECT_THAT(rows_of_passes(1, 8), ElementsAre(8));
  EXPECT_THAT(rows_of_passes(8, 2), ElementsAre(1, 1)) << "no part is empty";
}

TEST(PippyStages, BeginWhereTheyAreToldOrAtEqualBytes) {
  Cluster("1x2:h100").run_on_every_rank([](Rank&) {
    const auto points = [](const PippyOptions& options) {
      return prepare_pippy(small_sequential().ptr(), options).split_points();
    };
    EXPECT_THAT(points({.split_points = {"3"}}), ElementsAre("3"));
    // Layers have 8 x 16, 16 x 16 twice and 16 x 3 elements: the two large layers are not in one
    // stage.
    EXPECT_THAT(points({}), ElementsAre("4"));
  });
}

class PairImpl : public torch::nn::Module {
 public:
  PairImpl()
      : first_(register_module("first", torch::nn::Linear(8, 8))),
        second_(register_module("second", torch::nn::Linear(8, 8))) {}
  Tensor forward(const Tensor& x) { return second_(first_(x)); }

 private:
  torch::nn::Linear first_, second_;
};

// Beside what the first device has there is room for the largest layer of the model, or for the
// largest module that is not divided.
TEST(PippyStages, LeaveRoomForModulesThatAreNotDivided) {
  Cluster("1x2:h100").run_on_every_rank([](Rank&) {
    const auto points = [](const PippyOptions& options) {
      torch::nn::Sequential layers;
      for (int i = 0; i < 6; ++i) layers->push_back(std::make_shared<PairImpl>());
      return prepare_pippy(layers.ptr(), options).split_points();
    };
    EXPECT_THAT(points({}), ElementsAre("3"));
    EXPECT_THAT(points({.no_split_module_classes = {"Linear"}}), ElementsAre("3"));
    EXPECT_THAT(points({.no_split_module_classes = {"Pair"}}), ElementsAre("2"));
  });
}

// Only a rank's own stage takes place on its device.
TEST(PippyStages, AreOnTheirRanksDevices) {
  Cluster("1x2:h100").run_on_every_rank([](Rank& rank) {
    const torch::nn::Sequential layers = small_sequential();
    prepare_pippy(layers.ptr(), {.split_points = {"3"}});
    const auto parameters = layers->named_parameters();
    EXPECT_EQ(parameters["first.weight"].is_cpu(), rank.index() == 1);
    EXPECT_EQ(parameters["last.weight"].is_cpu(), rank.index() == 0);
  });
}

TEST(PippyBatchSize, IsTheNumberOfRows) {
  EXPECT_EQ(find_pippy_batch_size(torch::zeros({3, 2})), 3);
  EXPECT_FALSE(find_pippy_batch_size(torch::zeros({})).has_value());
  EXPECT_FALSE(find_pippy_batch_size({}).has_value());
}

// What both of two ranks are told.
std::string told(const std::function<void()>& program) {
  std::vector<std::string> errors(2);
  Cluster("1x2:h100").run_on_every_rank([&](Rank& rank) {
    errors[static_cast<size_t>(rank.index())] = value_error_of(program);
  });
  EXPECT_EQ(errors[0], errors[1]);
  return errors[0];
}

TEST(BadPippy, HasNoInputsOnRank0) {
  const auto call = [](const std::function<Tensor()>& inputs) {
    return told([&inputs] { prepare_pippy(small_sequential().ptr())(inputs()); });
  };
  EXPECT_THAT(call([] {
                return PartialState::get().is_main_process() ? Tensor()
                                                             : small_batch(2, 3, 0).first;
              }),
              HasSubstr("rank 0 was given no inputs"));
  EXPECT_THAT(call([] { return torch::zeros({}); }), HasSubstr("could not find a batch size"));
}

TEST(BadPippy, HasStagesThatThereAreNot) {
  const auto with = [](const PippyOptions& options) {
    return told([&options] { prepare_pippy(small_sequential().ptr(), options); });
  };
  EXPECT_THAT(with({.split_points = {"lest"}}), HasSubstr("did you mean \"last\""));
  EXPECT_THAT(with({.split_points = {"1", "2"}}), HasSubstr("name 1 parts"));
  EXPECT_THAT(with({.num_chunks = 0}), HasSubstr("num_chunks is 0"));
  EXPECT_THAT(told([] { prepare_pippy(torch::nn::Sequential(torch::nn::Linear(2, 2)).ptr()); }),
              HasSubstr("cannot have 2 stages; it can have 1 at most"));
  EXPECT_THAT(told([] { prepare_pippy(torch::nn::Linear(2, 2).ptr()); }),
              HasSubstr("nothing says which parts"));
}

// Ranks measure other batches, and get the numbers of the slowest.
TEST(MeasuredParts, AreThoseOfTheSlowestRankAndLeaveTheModelAsItIs) {
  std::vector<std::vector<int64_t>> times(2);
  std::vector<int64_t> of_few_rows;
  Cluster("1x2:h100").run_on_every_rank([&](Rank& rank) {
    torch::nn::Sequential layers(torch::nn::Linear(2048, 2048), torch::nn::Tanh(),
                                 torch::nn::BatchNorm1d(2048), torch::nn::Dropout(0.5));
    layers[1]->eval();
    const Tensor weight = layers->parameters()[0].clone();
    const Tensor few = torch::ones({8, 2048}), many = torch::ones({1024, 2048});
    std::vector<int64_t>& own = times[static_cast<size_t>(rank.index())];
    own = measure_parts(layers.ptr(), rank.index() == 0 ? few : many);
    const std::vector<int64_t> of_few = measure_parts(layers.ptr(), few);
    if (rank.index() == 0) of_few_rows = of_few;
    for (const Tensor& each : layers->parameters()) EXPECT_TRUE(each.is_cpu());
    for (const Tensor& each : layers->buffers()) EXPECT_TRUE(each.is_cpu());
    EXPECT_TRUE(layers->parameters()[0].equal(weight));
    EXPECT_EQ(layers->named_buffers()["2.num_batches_tracked"].item<int64_t>(), 0);
    EXPECT_TRUE(layers[0]->is_training());
    EXPECT_FALSE(layers[1]->is_training());
    EXPECT_TRUE(layers[3]->is_training());
    // The first part takes more than all others, so that a stage has it alone.
    Accelerator accelerator(with_stages({.pp_size = 2}, {.weights = own}));
    accelerator.prepare(layers.ptr());
    EXPECT_EQ(layers->parameters()[0].size(0), rank.index() == 0 ? 2048 : 0);
    EXPECT_EQ(layers->named_parameters()["2.weight"].size(0), rank.index() == 0 ? 0 : 2048);
  });
  ASSERT_EQ(times[0].size(), 4U);
  EXPECT_EQ(times[0], times[1]);
  EXPECT_GT(times[0][0], of_few_rows[0]);
  for (size_t part = 1; part < 4; ++part) EXPECT_GT(times[0][0], times[0][part]) << part;
}

// A part that changes its input in place is computed twice, and not on what the caller has.
TEST(MeasuredParts, LeaveTheInputsAsTheyAre) {
  Cluster("1x1:h100").run_on_every_rank([](Rank&) {
    const torch::nn::Sequential layers(torch::nn::ReLU(torch::nn::ReLUOptions(/*inplace=*/true)),
                                       torch::nn::Linear(4, 4));
    const Tensor inputs =
        (torch::arange(8, torch::kFloat) - 4).view({2, 4}).to(PartialState::get().device());
    const Tensor before = inputs.clone();
    EXPECT_EQ(measure_parts(layers.ptr(), inputs).size(), 2U);
    EXPECT_TRUE(inputs.equal(before));
  });
}

TEST(MeasuredParts, AreRefusedByAllRanksWhereOneModelThrows) {
  Cluster("1x2:h100").run_on_every_rank([](Rank& rank) {
    const int64_t columns = rank.index() == 0 ? 8 : 7;
    EXPECT_THAT(
        value_error_of([&] { measure_parts(small_sequential().ptr(), torch::ones({2, columns})); }),
        HasSubstr("rank 1"));
  });
}

}  // namespace
}  // namespace accelerate

#include "accelerate/checkpoint/objects/sharded_state_dict.h"

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/files/formats/boxes.h"
#include "accelerate/forward/model_state.h"
#include "accelerate/forward/technique.h"
#include "accelerate/mesh/mesh.h"
#include "accelerate/mesh/roles.h"
#include "accelerate/optim/shared_objects.h"
#include "accelerate/parallel/layout/model_layout.h"
#include "accelerate/testing/value_error.h"

namespace accelerate {
namespace {

using enum MeshAxis;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using torch::Tensor;

// Trains a part of the rows of some parameters, and leaves the others as they are.
class RowsTechnique final : public Technique {
 public:
  explicit RowsTechnique(std::vector<TrainedParameter> trained)
      : trained_{.tensors = std::move(trained)} {}
  std::string_view name() const override { return "rows"; }
  void forward(ForwardPass& pass) override { pass.proceed(); }
  const TrainedInPlace* trained() const override { return &trained_; }

 private:
  const TrainedInPlace trained_;
};

// Rank 3 of dp_shard 2 x tp 2, with the second half of the weight's rows, and, as what is trained
// in place of the bias, the second half of those.
struct Job {
  Job() {
    const Mesh mesh({.dp_shard = 2, .tp = 2});
    layout = std::make_shared<const ModelLayout>(
        mesh, std::vector<TensorPlacement>{
                  {.name = "weight", .shape = {6, 4}, .cuts = {{.axis = kTp, .dim = 0}}},
                  {.name = "bias", .shape = {6}, .rows = {kDpShard}}});
    model->register_parameter("weight", torch::ones({3, 4}));
    model->register_parameter("bias", torch::ones({6}));
    state = std::make_shared<ModelState>(model);
    Techniques techniques;
    techniques.push_back(std::make_unique<RowsTechnique>(
        std::vector<TrainedParameter>{{"bias", model->named_parameters()["bias"], shard}}));
    state->set_techniques(std::move(techniques));
    ModelPlacements placements{
        .layout = layout,
        .is_cut = true,
        .rank = 3,
        .roles = std::make_shared<const RankRoles>(RankRoles{.shard_axes = {kDpShard}})};
    for (const TensorPlacement& each : layout->placements()) {
      placements.by_name.emplace(
          each.name, ModelPlacements::Entry{.placement = &each, .is_cut = !each.cuts.empty()});
    }
    state->set_placements(std::move(placements));
  }
  Tensor weight() const { return model->named_parameters()["weight"]; }

  std::shared_ptr<torch::nn::Module> model = std::make_shared<torch::nn::Module>("Net");
  const Tensor shard = torch::ones({3});
  std::shared_ptr<const ModelLayout> layout;
  std::shared_ptr<ModelState> state;
};

TEST(ShardPlaces, AreThoseOfPlacements) {
  const Job job;
  const ShardPlaces places({job.state});
  const ShardPlaces::Entry* bias = places.find(job.shard);
  ASSERT_NE(bias, nullptr);
  EXPECT_TRUE(bias->shard.is_same(job.shard));
  EXPECT_NE(places.find(job.model->named_parameters()["bias"]), nullptr);
  EXPECT_TRUE(bias->place.is_by_rows());
  EXPECT_THAT(bias->place.boxes(), ElementsAre(PlacedBox{row_box({6}, 3, 3), row_box({3}, 0, 3)}));
  EXPECT_EQ(places.rows(), AxisSet{kDpShard});
  EXPECT_EQ(places.num_row_parts(), 2);
  EXPECT_EQ(places.num_parts(), 4);
  EXPECT_EQ(places.part(), 3);
  EXPECT_THAT(places.cuts(), StartsWith("weight: [6, 4] Float; tp cuts dim 0"));
  EXPECT_EQ(places.find(torch::ones({3})), nullptr);
}

TEST(ShardPlaces, HaveWhatIsCutThoughNothingIsTrainedInItsPlace) {
  const Job job;
  const ShardPlaces places({job.state});
  const ShardPlaces::Entry* weight = places.find(job.weight());
  ASSERT_NE(weight, nullptr);
  EXPECT_TRUE(weight->shard.is_same(job.weight()));
  EXPECT_FALSE(weight->place.is_by_rows());
  EXPECT_EQ(weight->place.shape(), (std::vector<int64_t>{6, 4}));
  EXPECT_THAT(weight->place.boxes(),
              ElementsAre(PlacedBox{row_box({6, 4}, 3, 3), row_box({3, 4}, 0, 3)}));
}

// The weight comes first here, of which ranks do not divide rows.
TEST(ShardPlaces, HaveTheRowsThatAreDividedAmongTheMostRanks) {
  const Job job;
  job.state->set_techniques({});
  const ShardPlaces places({job.state});
  EXPECT_EQ(places.rows(), AxisSet{kDpShard});
  EXPECT_EQ(places.num_row_parts(), 2);
}

TEST(ShardPlaces, AreNoneWhereModelsAreWhole) {
  const ShardPlaces places({std::make_shared<ModelState>(std::make_shared<torch::nn::Module>())});
  EXPECT_FALSE(places.rows().has_value());
  EXPECT_EQ(places.num_row_parts(), 1);
  EXPECT_EQ(places.num_parts(), 1);
  EXPECT_EQ(places.part(), -1);
  EXPECT_EQ(places.cuts(), "");
}

TEST(PlacesOfState, FollowParametersOfTheirSizes) {
  const Job job;
  const ShardPlaces places({job.state});
  internal::SharedOptimizer shared;
  shared.optimizer = std::make_shared<torch::optim::SGD>(
      std::vector<Tensor>{job.weight(), job.shard}, torch::optim::SGDOptions(0.1));
  const auto all = places_of_state(shared, places,
                                   {{"state.0.momentum_buffer", torch::ones({3, 4})},
                                    {"state.0.step", torch::ones({})},
                                    {"state.1.momentum_buffer", torch::ones({3})}});
  ASSERT_EQ(all.size(), 3U);
  ASSERT_TRUE(all[0].has_value());
  EXPECT_EQ(all[0]->placement.name, "weight");
  EXPECT_FALSE(all[1].has_value());
  ASSERT_TRUE(all[2].has_value());
  EXPECT_EQ(all[2]->placement.name, "bias");
  // Which part of a column of sums belongs to which rank is not known.
  EXPECT_THAT(
      value_error_of([&] { places_of_state(shared, places, {{"state.0.row", torch::ones({3})}}); }),
      HasSubstr("\"state.0.row\" of an optimizer has sizes [3], and its parameter \"weight\" [3, "
                "4]"));
}

}  // namespace
}  // namespace accelerate

#include "accelerate/megatron/train_step.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include "accelerate/testing/value_error.h"

namespace accelerate {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

at::Tensor rows(const std::vector<std::vector<int64_t>>& values) {
  std::vector<at::Tensor> tensors;
  for (const auto& row : values) tensors.push_back(torch::tensor(row, at::kLong));
  return at::stack(tensors);
}

// Rows of 0 and 1, for masks.
void expect_rows(const at::Tensor& tensor, const std::vector<std::vector<int64_t>>& values) {
  EXPECT_TRUE(at::equal(tensor.to(at::kLong), rows(values))) << tensor;
}

TEST(DocumentMasks, HideWhatComesLater) {
  const DocumentMasks masks = get_ltor_masks_and_position_ids(rows({{5, 9, 6}, {1, 2, 3}}), {});
  EXPECT_EQ(masks.attention_mask.sizes(), at::IntArrayRef({1, 1, 3, 3}));
  expect_rows(masks.attention_mask[0][0], {{0, 1, 1}, {0, 0, 1}, {0, 0, 0}});
  expect_rows(masks.loss_mask, {{1, 1, 1}, {1, 1, 1}});
  expect_rows(masks.position_ids, {{0, 1, 2}, {0, 1, 2}});
}

TEST(DocumentMasks, KeepDocumentsApart) {
  const DocumentMasks masks = get_ltor_masks_and_position_ids(
      rows({{5, 9, 6, 7, 9}, {9, 9, 1, 2, 3}}), {.eod_token = 9,
                                                 .pad_token = 7,
                                                 .reset_position_ids = true,
                                                 .reset_attention_mask = true,
                                                 .eod_mask_loss = true,
                                                 .pad_mask_loss = true});
  expect_rows(masks.position_ids, {{0, 1, 0, 1, 2}, {0, 0, 0, 1, 2}});
  expect_rows(masks.loss_mask, {{1, 0, 1, 0, 0}, {0, 0, 1, 1, 1}});
  EXPECT_EQ(masks.attention_mask.sizes(), at::IntArrayRef({2, 1, 5, 5}));
  expect_rows(
      masks.attention_mask[0][0],
      {{0, 1, 1, 1, 1}, {0, 0, 1, 1, 1}, {1, 1, 0, 1, 1}, {1, 1, 0, 0, 1}, {1, 1, 0, 0, 0}});
  expect_rows(
      masks.attention_mask[1][0],
      {{0, 1, 1, 1, 1}, {1, 0, 1, 1, 1}, {1, 1, 0, 1, 1}, {1, 1, 0, 0, 1}, {1, 1, 0, 0, 0}});
}

TEST(GPTTrainStep, LabelsAreTheNextTokens) {
  const GPTTrainStep step(Json{{"padded_vocab_size", 10}});
  EXPECT_EQ(step.mask_options().eod_token, 9);
  const std::vector<at::Tensor> of_ids = step.get_batch({{"input_ids", rows({{4, 5, 6}})}});
  expect_rows(of_ids[0], {{4, 5, 6}});
  expect_rows(of_ids[1], {{5, 6, 9}});
  const std::vector<at::Tensor> of_text = step.get_batch({{"text", rows({{4, 5, 6}})}});
  expect_rows(of_text[0], {{4, 5}});
  expect_rows(of_text[1], {{5, 6}});
  EXPECT_THAT(value_error_of([&] { step.get_batch({{"ids", rows({{1}})}}); }),
              HasSubstr("the batch has no \"input_ids\""));
  EXPECT_THAT(value_error_of([] { (void)GPTTrainStep(Json::object()); }),
              HasSubstr("padded_vocab_size"));
}

TEST(GPTTrainStep, LossIsTheMeanOfWhatCounts) {
  const GPTTrainStep step(Json{{"eos_token_id", 2}, {"return_logits", true}});
  const at::Tensor logits = torch::ones({1});
  const MegatronLoss loss =
      step.loss({torch::tensor({{1., 0., 1.}}), torch::tensor({{1., 5., 4.}}), logits});
  EXPECT_EQ(loss.loss.item<double>(), 2.5);
  EXPECT_TRUE(loss.reported.at("logits").is_same(logits));
  EXPECT_THAT(value_error_of([&] { step.loss({logits, logits}); }), HasSubstr("needs 3 tensors"));
}

TEST(GPTTrainStep, LossOfNoTokensIsZero) {
  const GPTTrainStep step(Json{{"eos_token_id", 2}});
  const at::Tensor losses = torch::tensor({{1., 2.}}).requires_grad_();
  const at::Tensor loss = step.loss({torch::zeros({1, 2}), losses}).loss;
  EXPECT_EQ(loss.item<float>(), 0);
  loss.backward();
  EXPECT_TRUE(at::equal(losses.grad(), torch::zeros_like(losses)));
}

TEST(GPTTrainStep, ChecksLossesForNanWhereItIsTold) {
  const at::Tensor mask = torch::ones({1, 2});
  const at::Tensor losses = torch::tensor({{1., std::numeric_limits<double>::quiet_NaN()}});
  const GPTTrainStep usual(Json{{"eos_token_id", 2}});
  EXPECT_TRUE(usual.loss({mask, losses}).loss.isnan().item<bool>());
  const GPTTrainStep checking(Json{{"eos_token_id", 2}, {"check_for_nan_in_loss_and_grad", true}});
  EXPECT_THAT(value_error_of([&] { checking.loss({mask, losses}); }), HasSubstr("found NaN"));
  EXPECT_EQ(checking.loss({mask, torch::tensor({{1., 3.}})}).loss.item<double>(), 2);
}

TEST(BertTrainStep, TakesTheTensorsOfABatchInItsOrder) {
  const std::vector<at::Tensor> inputs = BertTrainStep(Json::object())
                                             .get_batch({{"input_ids", rows({{5, 6}})},
                                                         {"token_type_ids", rows({{0, 1}})},
                                                         {"next_sentence_label", rows({{3}})},
                                                         {"labels", rows({{-100, 7}})},
                                                         {"attention_mask", rows({{1, 0}})}});
  ASSERT_EQ(inputs.size(), 6U);
  expect_rows(inputs[0], {{5, 6}});
  expect_rows(inputs[1], {{0, 1}});
  expect_rows(inputs[2], {{3}});
  expect_rows(inputs[3], {{0, 1}});
  expect_rows(inputs[4], {{-100, 7}});
  expect_rows(inputs[5], {{1, 0}});
}

TEST(BertTrainStep, LossOfSeveralLabelsIsACrossEntropy) {
  const BertTrainStep step(Json{{"pretraining_flag", false}, {"num_labels", 2}});
  const at::Tensor logits = torch::tensor({{1., 2.}, {0., 3.}});
  const double expected =
      -(logits.log_softmax(1)[0][1] + logits.log_softmax(1)[1][0]).item<double>() / 2;
  EXPECT_NEAR(step.loss({torch::tensor({1, 0}, at::kLong), logits}).loss.item<double>(), expected,
              1e-6);
}

TEST(BertTrainStep, LossOfOneLabelIsASquareAndThatOfTruthValuesIsBinary) {
  const BertTrainStep of_one(Json{{"pretraining_flag", false}, {"num_labels", 1}});
  const MegatronLoss square = of_one.loss({torch::tensor({1., 4.}), torch::tensor({{2.}, {1.}})});
  EXPECT_NEAR(square.loss.item<double>(), 5, 1e-6);
  const BertTrainStep of_two(Json{{"pretraining_flag", false}, {"num_labels", 2}});
  const at::Tensor labels = torch::tensor({{1., 0.}, {1., 1.}});
  const at::Tensor p = torch::tensor({{0.75, 0.25}, {0.5, 0.9}});
  const at::Tensor of_truth = at::where(labels.eq(1), p, p.neg().add(1));
  const double expected = -of_truth.log().mean().item<double>();
  EXPECT_NEAR(of_two.loss({labels, p.logit()}).loss.item<double>(), expected, 1e-6);
}

TEST(TrainStep, IsThatOfTheModelsKind) {
  const std::shared_ptr<AbstractTrainStep> step = make_train_step(Json{{"model_type_name", "t5"}});
  EXPECT_STREQ(step->name(), "T5TrainStep");
  EXPECT_STREQ(make_train_step(Json{{"model_type_name", "bert"}})->name(), "BertTrainStep");
  EXPECT_THAT(value_error_of([] { make_train_step(Json{{"model_type_name", "vit"}}); }),
              HasSubstr("\"vit\""));
}

TEST(TrainStep, CallsAModelOfSeveralTensorsItself) {
  for (const auto& [model, calls] :
       {std::pair("bert", true), std::pair("t5", true), std::pair("gpt", false)}) {
    const auto step = make_train_step(Json{{"model_type_name", model}, {"padded_vocab_size", 8}});
    EXPECT_EQ(step->forward_step_func() != nullptr, calls) << model;
  }
}

TEST(MicroBatches, AreRowsInOrder) {
  const MegatronBatch batch = {{"a", at::arange(5)}, {"b", at::arange(10).view({5, 2})}};
  const std::vector<MegatronBatch> parts = micro_batches(batch, 2, 3);
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_TRUE(at::equal(parts[0].at("a"), at::arange(0, 3)));
  EXPECT_TRUE(at::equal(parts[1].at("a"), at::arange(3, 5)));
  EXPECT_EQ(parts[1].at("b").size(0), 2);
  EXPECT_EQ(micro_batches(batch, 1, 3).front().at("a").size(0), 5) << "one part is the whole";
  EXPECT_TRUE(micro_batches({}, 2, 3).empty());
  EXPECT_THAT(value_error_of([&] { micro_batches(batch, 3, 3); }), HasSubstr("5 rows"));
  EXPECT_THAT(value_error_of([] { micro_batches({{"a", at::arange(6)}}, 3, 3); }),
              HasSubstr("6 rows"))
      << "the last part would have none";
  EXPECT_EQ(micro_batches({{"a", at::arange(7)}}, 3, 3)[2].at("a").numel(), 1);
  EXPECT_THAT(value_error_of([&] { micro_batches(batch, 0, 3); }), HasSubstr("0 parts of 3 rows"));
  EXPECT_TRUE(parts[0].at("b").is_alias_of(batch.at("b"))) << "without copies";
}

}  // namespace
}  // namespace accelerate

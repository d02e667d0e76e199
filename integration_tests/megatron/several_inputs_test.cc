// Models of BERT's and T5's kinds, which take several tensors: trained as a loop of one process
// trains them.
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "accelerate/accelerate.h"
#include "accelerate/megatron/preparation.h"
#include "accelerate/megatron_lm.h"
#include "accelerate/testing/value_error.h"
#include "integration_tests/megatron/engine_training.h"
#include "integration_tests/tensor/formula_model.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kRows = 8, kLength = 6, kDecoded = 4;
constexpr int64_t kVocabulary = 32, kHidden = 8;
constexpr int kMicroBatches = 2;
constexpr int64_t kPart = 2;  // rows of a micro-batch, with two shares of the data
constexpr double kRate = 0.1, kMomentum = 0.9, kClip = 1;

// Attention with one head; `hidden` is true where a token is not seen.
class HeadImpl : public torch::nn::Module {
 public:
  at::Tensor forward(const at::Tensor& x, const at::Tensor& seen, const at::Tensor& hidden) {
    constexpr double kFar = -1e4;  // finite, since padding sees nothing at all
    const at::Tensor scores =
        query_(x).matmul(key_(seen).transpose(1, 2)) / std::sqrt(double{kHidden});
    return x + scores.masked_fill(hidden, kFar).softmax(-1).matmul(value_(seen));
  }

 private:
  torch::nn::Linear query_ = register_module("query", torch::nn::Linear(kHidden, kHidden));
  torch::nn::Linear key_ = register_module("key", torch::nn::Linear(kHidden, kHidden));
  torch::nn::Linear value_ = register_module("value", torch::nn::Linear(kHidden, kHidden));
};
TORCH_MODULE(Head);

class SmallBertImpl : public torch::nn::Module {
 public:
  // Logits of tokens, and of the order of sentences.
  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& tokens,
                                            const at::Tensor& padding_mask,
                                            const at::Tensor& types) {
    at::Tensor x = tokens_(tokens) + types_(types);
    x = head_(x, x, padding_mask.eq(0).unsqueeze(1));
    return {of_tokens_(x), of_order_(x.select(1, 0))};
  }

 private:
  torch::nn::Embedding tokens_ =
      register_module("tokens", torch::nn::Embedding(kVocabulary, kHidden));
  torch::nn::Embedding types_ = register_module("types", torch::nn::Embedding(2, kHidden));
  Head head_ = register_module("head", Head());
  torch::nn::Linear of_tokens_ =
      register_module("of_tokens", torch::nn::Linear(kHidden, kVocabulary));
  torch::nn::Linear of_order_ = register_module("of_order", torch::nn::Linear(kHidden, 2));
};
TORCH_MODULE(SmallBert);

class SmallT5Impl : public torch::nn::Module {
 public:
  at::Tensor forward(const at::Tensor& encoded, const at::Tensor& decoded,
                     const at::Tensor& encoder_mask, const at::Tensor& decoder_mask,
                     const at::Tensor& cross_mask) {
    at::Tensor x = tokens_(encoded);
    x = encoder_(x, x, encoder_mask);
    at::Tensor y = tokens_(decoded);
    y = decoder_(y, y, decoder_mask);
    return logits_(cross_(y, x, cross_mask));
  }

 private:
  torch::nn::Embedding tokens_ =
      register_module("tokens", torch::nn::Embedding(kVocabulary, kHidden));
  Head encoder_ = register_module("encoder", Head());
  Head decoder_ = register_module("decoder", Head());
  Head cross_ = register_module("cross", Head());
  torch::nn::Linear logits_ = register_module("logits", torch::nn::Linear(kHidden, kVocabulary));
};
TORCH_MODULE(SmallT5);

// ---- Batches: rows of different numbers of tokens, and of labels that count.

at::Tensor numbers(int64_t rows, int64_t length, int64_t step, int64_t end) {
  return (torch::arange(rows * length, torch::kLong) * 7 + step * 3)
      .remainder(end)
      .view({rows, length});
}

at::Tensor mask_of_padding() {
  const at::Tensor lengths = torch::arange(kRows, torch::kLong).remainder(3) + kLength - 2;
  return torch::arange(kLength, torch::kLong)
      .unsqueeze(0)
      .lt(lengths.unsqueeze(1))
      .to(torch::kLong);
}

// Row i has 1 + i % `length` labels.
at::Tensor some_labels(int64_t length, int64_t step) {
  const at::Tensor count = torch::arange(kRows, torch::kLong).remainder(length) + 1;
  return numbers(kRows, length, step + 5, kVocabulary)
      .masked_fill(torch::arange(length, torch::kLong).unsqueeze(0).ge(count.unsqueeze(1)), -100);
}

MegatronBatch bert_batch(int64_t step) {
  return {{"input_ids", numbers(kRows, kLength, step, kVocabulary)},
          {"attention_mask", mask_of_padding()},
          {"token_type_ids", numbers(kRows, kLength, step + 1, 2)},
          {"labels", some_labels(kLength, step)},
          {"next_sentence_label", numbers(kRows, 1, step, 2).view({kRows})}};
}

MegatronBatch t5_batch(int64_t step) {
  return {{"input_ids", numbers(kRows, kLength, step, kVocabulary)},
          {"attention_mask", mask_of_padding()},
          {"labels", some_labels(kDecoded, step)}};
}

MegatronBatch rows_of(const MegatronBatch& batch, int64_t first, int64_t count) {
  MegatronBatch rows;
  for (const auto& [name, tensor] : batch) rows[name] = tensor.narrow(0, first, count);
  return rows;
}

// ---- Losses of some rows by hand.

// The mean over the labels that count.
at::Tensor mean_by_hand(const at::Tensor& logits, const at::Tensor& labels) {
  const at::Tensor counts = labels.ne(-100);
  const at::Tensor chosen = logits.log_softmax(-1).gather(2, labels.clamp_min(0).unsqueeze(2));
  return -chosen.squeeze(2).masked_select(counts).mean();
}

at::Tensor bert_loss(SmallBert& net, const MegatronBatch& batch) {
  const auto [logits, order] =
      net(batch.at("input_ids"), batch.at("attention_mask"), batch.at("token_type_ids"));
  const at::Tensor of_order =
      order.log_softmax(-1).gather(1, batch.at("next_sentence_label").unsqueeze(1));
  return mean_by_hand(logits, batch.at("labels")) - of_order.mean();
}

at::Tensor t5_loss(SmallT5& net, const MegatronBatch& batch) {
  const at::Tensor is_token = batch.at("attention_mask").eq(1);
  const at::Tensor& labels = batch.at("labels");
  const int64_t rows = labels.size(0);
  const at::Tensor decoded = torch::cat(
      {torch::zeros({rows, 1}, torch::kLong), labels.narrow(1, 0, kDecoded - 1).clamp_min(0)}, 1);
  const at::Tensor later = torch::ones({kDecoded, kDecoded}, torch::kBool).triu(1);
  return mean_by_hand(net(batch.at("input_ids"), decoded,
                          is_token.unsqueeze(1).logical_and(is_token.unsqueeze(2)).logical_not(),
                          later.unsqueeze(0),
                          is_token.logical_not().unsqueeze(1).expand({rows, kDecoded, kLength})),
                      labels);
}

struct Outcome {
  std::vector<double> losses;
  std::vector<double> norms;
};

constexpr int kSteps = 3;

template <typename Net>
Outcome train_by_hand(at::Tensor (*loss_of)(Net& net, const MegatronBatch& batch),
                      MegatronBatch (*batch_of)(int64_t step)) {
  Net net;
  fill_by_formula(*net);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(kRate).momentum(kMomentum));
  Outcome outcome;
  for (int step = 0; step < kSteps; ++step) {
    sgd.zero_grad();
    double sum = 0;
    constexpr int64_t kParts = kRows / kPart;
    for (int64_t part = 0; part < kParts; ++part) {
      const at::Tensor loss = loss_of(net, rows_of(batch_of(step), part * kPart, kPart)) / kParts;
      loss.backward();
      sum += loss.item<double>();
    }
    outcome.losses.push_back(sum);
    outcome.norms.push_back(torch::nn::utils::clip_grad_norm_(net->parameters(), kClip));
    sgd.step();
  }
  return outcome;
}

// ---- By the engine.

MegatronLMPlugin plugin_of(const char* kind, const MegatronLMPlugin& degrees = {}) {
  MegatronLMPlugin plugin = degrees;
  plugin.num_micro_batches = kMicroBatches;
  plugin = plugin_of_formula(/*layers=*/1, plugin);
  plugin.other_megatron_args.value()["model_type_name"] = kind;
  return plugin;
}

void set_args(Accelerator& accelerator) {
  const nlohmann::json defaults = {{"lr", kRate}, {"momentum", kMomentum}, {"weight_decay", 0.0}};
  set_prepared_args(*accelerator.megatron_lm_plugin(),
                    {.optimizer = MegatronOptimizerFacts{"SGD", defaults},
                     .scheduler = MegatronLMDummyScheduler{},
                     .batch_sizes = {kPart}},
                    accelerator.num_processes());
}

template <typename Net>
void expect_trained(const char* kind, const Outcome& expected,
                    MegatronBatch (*batch_of)(int64_t step)) {
  Cluster("1x2:h100").run_on_every_rank([&](Rank& /*rank*/) {
    Accelerator accelerator({.megatron_lm_plugin = plugin_of(kind)});
    set_args(accelerator);
    Net net;
    fill_by_formula(*net);
    MegatronEngine engine(accelerator, net.ptr());
    const DataShare share = accelerator.state().data_share();
    ASSERT_EQ(share.count, 2);
    constexpr int64_t kOwn = kPart * kMicroBatches;
    for (int step = 0; step < kSteps; ++step) {
      const auto index = static_cast<size_t>(step);
      const MegatronStep made =
          engine.train_step(rows_of(batch_of(step), share.index * kOwn, kOwn));
      EXPECT_NEAR(made.loss.item<double>(), expected.losses[index], 1e-6 * expected.losses[index]);
      EXPECT_NEAR(made.grad_norm.value(), expected.norms[index], 1e-5 * expected.norms[index]);
    }
  });
}

TEST(BertTrainStep, TrainsAsALoopOfOneProcess) {
  const Outcome expected = train_by_hand<SmallBert>(bert_loss, bert_batch);
  EXPECT_NE(expected.losses[0], expected.losses[1]);
  expect_trained<SmallBert>("bert", expected, bert_batch);
}

TEST(T5TrainStep, TrainsAsALoopOfOneProcess) {
  const Outcome expected = train_by_hand<SmallT5>(t5_loss, t5_batch);
  EXPECT_NE(expected.losses[0], expected.losses[1]);
  expect_trained<SmallT5>("t5", expected, t5_batch);
}

TEST(BertTrainStep, DoesWithoutTypesAndOrder) {
  Cluster("1x1:h100").run_on_every_rank([](Rank& /*rank*/) {
    MegatronLMPlugin plugin = plugin_of("bert");
    plugin.return_logits = true;
    Accelerator accelerator({.megatron_lm_plugin = plugin});
    set_args(accelerator);
    SmallBert net;
    fill_by_formula(*net);
    MegatronEngine engine(accelerator, net.ptr());
    MegatronBatch batch = rows_of(bert_batch(0), 0, kPart);
    batch.erase("token_type_ids");
    batch.erase("next_sentence_label");
    const MegatronStep step = engine.eval_step(batch);
    SmallBert same;
    fill_by_formula(*same);
    const auto [logits, order] = same(batch.at("input_ids"), batch.at("attention_mask"),
                                      torch::zeros({kPart, kLength}, torch::kLong));
    EXPECT_TRUE(torch::allclose(step.logits.cpu(), logits, 1e-5, 1e-6)) << "of tokens alone";
    // One micro-batch for each of the two rows.
    const double expected =
        (mean_by_hand(logits[0].unsqueeze(0), batch.at("labels")[0].unsqueeze(0)) +
         mean_by_hand(logits[1].unsqueeze(0), batch.at("labels")[1].unsqueeze(0)))
            .item<double>() /
        2;
    EXPECT_NEAR(step.loss.item<double>(), expected, 1e-6 * expected);
  });
}

// ---- Bad input.

TEST(SeveralInputsBadInput, StagesAndPartsOfSequencesAreNamed) {
  const auto refused = [](const char* kind, const MegatronLMPlugin& degrees) {
    std::string error;
    Cluster("1x2:h100").run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator({.megatron_lm_plugin = plugin_of(kind, degrees)});
      set_args(accelerator);
      const SmallBert net;
      std::string own = value_error_of([&] { MegatronEngine(accelerator, net.ptr()); });
      if (rank.index() == 0) error = std::move(own);
    });
    return error;
  };
  EXPECT_THAT(refused("bert", {.pp_degree = 2}),
              AllOf(HasSubstr("pipeline_model_parallel_size is 2"), HasSubstr("BertTrainStep")));
  EXPECT_THAT(refused("t5", {.pp_degree = 2}), HasSubstr("T5TrainStep"));
  EXPECT_THAT(refused("bert", {.context_parallel_size = 2}),
              HasSubstr("context_parallel_size is 2"));
}

TEST(SeveralInputsBadInput, AModelOfAnotherKindIsNamed) {
  Cluster("1x1:h100").run_on_every_rank([](Rank& /*rank*/) {
    Accelerator accelerator({.megatron_lm_plugin = plugin_of("t5")});
    set_args(accelerator);
    const SmallBert net;
    MegatronEngine engine(accelerator, net.ptr());
    EXPECT_THAT(value_error_of([&] { engine.eval_step(t5_batch(0)); }),
                HasSubstr("gives the model 5 tensors"));
    MegatronBatch batch = t5_batch(0);
    batch.erase("attention_mask");
    EXPECT_THAT(value_error_of([&] { engine.eval_step(batch); }),
                HasSubstr("T5TrainStep: the batch has no \"attention_mask\""));
  });
  Cluster("1x1:h100").run_on_every_rank([](Rank& /*rank*/) {
    Accelerator accelerator({.megatron_lm_plugin = plugin_of("gpt")});
    set_args(accelerator);
    const SmallBert net;
    MegatronEngine engine(accelerator, net.ptr());
    EXPECT_THAT(value_error_of([&] { engine.eval_step(bert_batch(0)); }),
                HasSubstr("does not take one tensor"));
  });
}

}  // namespace
}  // namespace accelerate

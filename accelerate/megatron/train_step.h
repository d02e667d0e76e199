/// What models of Megatron-LM's kinds take of a batch, and their losses.
///
///     const GPTTrainStep step(plugin.megatron_lm_default_args);
///     for (const MegatronBatch& part : micro_batches(batch, num_micro_batches, micro_batch_size))
///     {
///       std::vector<at::Tensor> inputs = step.get_batch(part);
///       ...
///       MegatronLoss loss = step.loss({loss_mask, losses_of_tokens(logits, labels)});
///     }
///
/// Shapes:  tokens, labels and masks of losses are [b, s]; masks of attention are true where a
///          token is hidden.
/// Errors:  c10::ValueError naming what the batch, the arguments or the inputs lack.
/// Threads: values.
/// Local: a loss is that of this rank's tokens.
/// Mirrors: accelerate utils/megatron_lm.py, AbstractTrainStep, BertTrainStep, GPTTrainStep,
///          T5TrainStep and MegatronEngine.get_batch_data_iterator.
/// Differs: BERT's loss of several labels is computed, where HF Accelerate fails.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include "accelerate/config/megatron_lm_plugin.h"

namespace accelerate {

/// How tokens of several documents in one sequence are kept apart.
struct DocumentMaskOptions {
  int64_t eod_token = 0;
  int64_t pad_token = 0;
  /// Positions count from each document's first token.
  bool reset_position_ids = false;
  /// Tokens do not see those of documents before.
  bool reset_attention_mask = false;
  /// Ends of documents and padding are left out of the loss.
  bool eod_mask_loss = false;
  bool pad_mask_loss = false;
};

struct DocumentMasks {
  /// [b, 1, s, s], or [1, 1, s, s] without reset_attention_mask; true where hidden.
  at::Tensor attention_mask;
  /// float [b, s]: 1 where the loss counts.
  at::Tensor loss_mask;
  /// int64 [b, s].
  at::Tensor position_ids;
};

/// The masks of tokens that are read from left to right, int64 [b, s]. A document ends with
/// `eod_token`, which is part of it.
DocumentMasks get_ltor_masks_and_position_ids(const at::Tensor& tokens,
                                              const DocumentMaskOptions& options);

/// The losses of each token, [b, s], in float32 at the least, of logits [b, s, vocabulary] and
/// labels, int64 [b, s]; 0 for a label of -100.
at::Tensor losses_of_tokens(const at::Tensor& logits, const at::Tensor& labels);

/// A model's outputs for the tensors that its forward takes.
using MegatronModel = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

/// The loss of some rows of what get_batch gives, by one call of the model.
using MegatronForwardStep =
    std::function<MegatronLoss(const std::vector<at::Tensor>& batch, const MegatronModel& model)>;

class AbstractTrainStep {
 public:
  virtual ~AbstractTrainStep() = default;

  virtual const char* name() const = 0;
  /// The model's inputs and what the loss needs, in an order of its own; undefined where the batch
  /// may lack it, and does.
  virtual std::vector<at::Tensor> get_batch(const MegatronBatch& batch) const = 0;
  virtual MegatronLoss loss(const std::vector<at::Tensor>& inputs) const = 0;
  /// For models that take several tensors, or give several; it may refer to this step. Null: the
  /// model takes the first tensor of get_batch alone, and the loss gets those behind it and the
  /// model's output, so that stages of a pipeline can compute it.
  virtual MegatronForwardStep forward_step_func() const { return nullptr; }
};

/// Batches have "input_ids" and "attention_mask", and perhaps "token_type_ids", "labels" and
/// "next_sentence_label"; a label of -100 does not count. They become tokens, types, sentence
/// order, loss mask, labels, padding mask. A model takes tokens, the padding mask, which is 1 for
/// tokens and 0 for padding, and types, which are 0 where the batch has none: int64 [b, s] each. It
/// gives logits [b, s, vocabulary], and perhaps those of the order [b, 2]; without pretraining
/// logits [b, num_labels].
class BertTrainStep final : public AbstractTrainStep {
 public:
  /// Reads "pretraining_flag" (true) of `args`, and "num_labels" (2) without it.
  explicit BertTrainStep(const nlohmann::ordered_json& args);

  const char* name() const override { return "BertTrainStep"; }
  std::vector<at::Tensor> get_batch(const MegatronBatch& batch) const override;
  /// Pretraining: the loss mask, the sentence order [b], the losses of tokens [b, s], and perhaps
  /// the logits of the order [b, 2]. Else: the labels, and the logits [b, num_labels]: a mean
  /// squared error for one label, a cross entropy for whole numbers, a binary one otherwise.
  MegatronLoss loss(const std::vector<at::Tensor>& inputs) const override;
  /// The order counts where the batch has it and the model gives its logits.
  MegatronForwardStep forward_step_func() const override;

 private:
  bool is_pretraining_;
  int64_t num_labels_;
};

/// Batches have "input_ids", whose last label is an end of document, or "text" of a GPTDataset,
/// which has one token more. They become tokens, labels, loss mask, attention mask, position ids.
class GPTTrainStep final : public AbstractTrainStep {
 public:
  /// Reads "eos_token_id" of `args`, else the last of "padded_vocab_size"; "reset_position_ids",
  /// "reset_attention_mask", "eod_mask_loss", "return_logits" and
  /// "check_for_nan_in_loss_and_grad" (all false).
  explicit GPTTrainStep(const nlohmann::ordered_json& args);

  const char* name() const override { return "GPTTrainStep"; }
  std::vector<at::Tensor> get_batch(const MegatronBatch& batch) const override;
  /// The loss mask, the losses of tokens [b, s], and with return_logits the logits. Errors: also
  /// for a loss that is not a number, where the arguments say so.
  MegatronLoss loss(const std::vector<at::Tensor>& inputs) const override;

  const DocumentMaskOptions& mask_options() const { return masks_; }

 private:
  DocumentMaskOptions masks_;
  bool return_logits_;
  bool checks_nan_;
};

/// Batches have "input_ids", "attention_mask" and "labels", and perhaps "decoder_input_ids", which
/// otherwise are the labels behind a 0. They become tokens of the encoder, tokens of the decoder,
/// loss mask, labels, and the masks of encoder, decoder and between them. A model takes the two
/// kinds of tokens and the three masks, [b, s, s], that of the decoder [1, s, s], and gives logits
/// [b, decoder's s, vocabulary].
class T5TrainStep final : public AbstractTrainStep {
 public:
  const char* name() const override { return "T5TrainStep"; }
  std::vector<at::Tensor> get_batch(const MegatronBatch& batch) const override;
  /// The loss mask and the losses of tokens.
  MegatronLoss loss(const std::vector<at::Tensor>& inputs) const override;
  MegatronForwardStep forward_step_func() const override;

  /// [b, s, s] of a mask [b, s], which is 1 for tokens and 0 for padding.
  static at::Tensor attn_mask_postprocess(const at::Tensor& attention_mask);
  /// [1, s, s]
  static at::Tensor get_decoder_mask(int64_t seq_length);
  /// [b, decoder's s, encoder's s]
  static at::Tensor get_enc_dec_mask(const at::Tensor& attention_mask, int64_t dec_seq_length);
};

/// The train step of the arguments' "model_type_name": "bert", "gpt" or "t5".
std::shared_ptr<AbstractTrainStep> make_train_step(const nlohmann::ordered_json& args);

/// The batch in parts of so many rows, without copies; the whole for one part, none for a batch
/// without tensors. The last part may be short. Errors: also for a part without rows.
std::vector<MegatronBatch> micro_batches(const MegatronBatch& batch, int64_t num_micro_batches,
                                         int64_t micro_batch_size);

}  // namespace accelerate

#include "accelerate/megatron/train_step.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <tuple>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/util/Exception.h>

#include "accelerate/base/json_text.h"

namespace accelerate {
namespace {

using Json = nlohmann::ordered_json;
using Tensors = std::vector<at::Tensor>;

constexpr int64_t kIgnoredLabel = -100;

// ---- Parts of batches and arguments.

at::Tensor find(const MegatronBatch& batch, const char* name) {
  const auto found = batch.find(name);
  return found == batch.end() ? at::Tensor() : found->second.to(at::kLong);
}

at::Tensor take(const MegatronBatch& batch, const char* who, const char* name) {
  at::Tensor tensor = find(batch, name);
  TORCH_CHECK_VALUE(tensor.defined(), who, ": the batch has no \"", name, "\"");
  return tensor;
}

bool flag(const Json& args, const char* name, bool otherwise) {
  const auto found = args.find(name);
  if (found == args.end() || found->is_null()) return otherwise;
  TORCH_CHECK_VALUE(found->is_boolean(), name, ": expected a truth value, got ", json_text(*found));
  return found->get<bool>();
}

std::optional<int64_t> whole_number(const Json& args, const char* name) {
  const auto found = args.find(name);
  if (found == args.end() || found->is_null()) return std::nullopt;
  TORCH_CHECK_VALUE(found->is_number_integer(), name, ": expected a whole number, got ",
                    json_text(*found));
  return found->get<int64_t>();
}

void check_inputs(const char* who, const Tensors& inputs, size_t least) {
  const bool are_there =
      inputs.size() >= least &&
      std::all_of(inputs.begin(), inputs.begin() + static_cast<std::ptrdiff_t>(least),
                  [](const at::Tensor& each) { return each.defined(); });
  TORCH_CHECK_VALUE(are_there, who, ": a loss needs ", least, " tensors, got ", inputs.size());
}

// The mean of the losses whose mask is 1; 0 where no mask is, as in a micro-batch of padding.
at::Tensor mean_of(const at::Tensor& losses, const at::Tensor& loss_mask) {
  const at::Tensor mask = loss_mask.reshape(-1).to(at::kFloat);
  const at::Tensor count = mask.sum();
  return at::sum(losses.to(at::kFloat).reshape(-1) * mask) /
         at::where(count.eq(0), at::ones_like(count), count);
}

// Without the labels that do not count.
at::Tensor loss_mask_of(const at::Tensor& labels) {
  return labels.ne(kIgnoredLabel).to(at::kFloat);
}

// true above the diagonal: [s, s].
at::Tensor hides_later(int64_t length, const at::TensorOptions& options) {
  return at::ones({length, length}, options.dtype(at::kBool)).triu(1);
}

// The model's outputs, of which the first are logits.
Tensors outputs_of(const char* who, const MegatronModel& model, const Tensors& inputs) {
  Tensors outputs = model(inputs);
  TORCH_CHECK_VALUE(!outputs.empty() && outputs.front().defined(), who,
                    ": the model gave no logits");
  return outputs;
}

}  // namespace

at::Tensor losses_of_tokens(const at::Tensor& logits, const at::Tensor& labels) {
  TORCH_CHECK_VALUE(logits.dim() == 3 && labels.dim() == 2 && logits.size(0) == labels.size(0) &&
                        logits.size(1) == labels.size(1),
                    "losses_of_tokens: a model gives logits [rows, length, vocabulary], but for "
                    "labels ",
                    labels.sizes(), " it gave ", logits.sizes());
  const at::Tensor wide = logits.scalar_type() == at::kDouble ? logits : logits.to(at::kFloat);
  return at::cross_entropy_loss(wide.flatten(0, 1), labels.flatten(), /*weight=*/{},
                                at::Reduction::None, kIgnoredLabel)
      .view_as(labels);
}

DocumentMasks get_ltor_masks_and_position_ids(const at::Tensor& tokens,
                                              const DocumentMaskOptions& options) {
  TORCH_CHECK_VALUE(tokens.dim() == 2, "get_ltor_masks_and_position_ids: expected tokens [b, s], ",
                    "got ", tokens.dim(), " dims");
  const int64_t length = tokens.size(1);
  const at::Tensor is_end = tokens.eq(options.eod_token);
  DocumentMasks masks;
  masks.loss_mask = at::ones(tokens.sizes(), tokens.options().dtype(at::kFloat));
  if (options.eod_mask_loss) masks.loss_mask.masked_fill_(is_end, 0);
  if (options.pad_mask_loss) masks.loss_mask.masked_fill_(tokens.eq(options.pad_token), 0);

  const at::Tensor positions =
      at::arange(length, tokens.options().dtype(at::kLong)).unsqueeze(0).expand_as(tokens);
  masks.position_ids = positions;
  if (options.reset_position_ids && length > 0) {
    // A document begins behind an end: its first position, or 0 elsewhere.
    at::Tensor begins = at::zeros_like(is_end);
    begins.narrow(1, 1, length - 1).copy_(is_end.narrow(1, 0, length - 1));
    const at::Tensor first = std::get<0>((positions * begins).cummax(1));
    masks.position_ids = positions - first;
  }
  masks.attention_mask = hides_later(length, tokens.options()).view({1, 1, length, length});
  if (options.reset_attention_mask) {
    // How many documents have ended before a token.
    const at::Tensor document = is_end.cumsum(1) - is_end.to(at::kLong);
    const at::Tensor is_other = document.unsqueeze(1).ne(document.unsqueeze(2)).unsqueeze(1);
    masks.attention_mask = masks.attention_mask.logical_or(is_other);
  }
  return masks;
}

// ---- BERT

BertTrainStep::BertTrainStep(const Json& args)
    : is_pretraining_(flag(args, "pretraining_flag", true)),
      num_labels_(whole_number(args, "num_labels").value_or(2)) {}

std::vector<at::Tensor> BertTrainStep::get_batch(const MegatronBatch& batch) const {
  const at::Tensor labels = find(batch, "labels");
  return {take(batch, name(), "input_ids"),
          find(batch, "token_type_ids"),
          find(batch, "next_sentence_label"),
          labels.defined() ? loss_mask_of(labels) : at::Tensor(),
          labels,
          take(batch, name(), "attention_mask")};
}

MegatronLoss BertTrainStep::loss(const std::vector<at::Tensor>& inputs) const {
  if (!is_pretraining_) {
    check_inputs(name(), inputs, 2);
    const at::Tensor& labels = inputs[0];
    const at::Tensor& logits = inputs[1];
    at::Tensor loss;
    if (num_labels_ == 1) {
      loss = at::mse_loss(logits.reshape(-1), labels.reshape(-1).to(logits.scalar_type()));
    } else if (!labels.is_floating_point()) {
      loss = at::cross_entropy_loss(logits.reshape({-1, num_labels_}),
                                    labels.reshape(-1).to(at::kLong));
    } else {
      loss = at::binary_cross_entropy_with_logits(logits, labels);
    }
    return {.loss = loss, .reported = {{"loss", loss.detach()}}};
  }
  TORCH_CHECK_VALUE(inputs.size() >= 3 && inputs[0].defined() && inputs[2].defined(), name(),
                    ": a loss needs 3 tensors, got ", inputs.size());
  const at::Tensor of_tokens = mean_of(inputs[2], inputs[0]);
  if (inputs.size() < 4 || !inputs[1].defined() || !inputs[3].defined()) {
    return {.loss = of_tokens, .reported = {{"lm loss", of_tokens.detach()}}};
  }
  constexpr int64_t kNoOrder = -1;
  const at::Tensor of_order = at::cross_entropy_loss(inputs[3].reshape({-1, 2}).to(at::kFloat),
                                                     inputs[1].reshape(-1).to(at::kLong),
                                                     /*weight=*/{}, at::Reduction::Mean, kNoOrder);
  return {.loss = of_tokens + of_order,
          .reported = {{"lm loss", of_tokens.detach()}, {"sop loss", of_order.detach()}}};
}

MegatronForwardStep BertTrainStep::forward_step_func() const {
  return [this](const Tensors& batch, const MegatronModel& model) {
    const at::Tensor& tokens = batch[0];
    const at::Tensor& order = batch[2];
    const at::Tensor& labels = batch[4];
    TORCH_CHECK_VALUE(labels.defined(), name(), ": the batch has no \"labels\"");
    const at::Tensor types = batch[1].defined() ? batch[1] : at::zeros_like(tokens);
    const Tensors outputs = outputs_of(name(), model, {tokens, batch[5], types});
    if (!is_pretraining_) return loss({labels, outputs[0]});
    Tensors inputs = {batch[3], order, losses_of_tokens(outputs[0], labels)};
    if (order.defined() && outputs.size() > 1) inputs.push_back(outputs[1]);
    return loss(inputs);
  };
}

// ---- GPT

GPTTrainStep::GPTTrainStep(const Json& args)
    : return_logits_(flag(args, "return_logits", false)),
      checks_nan_(flag(args, "check_for_nan_in_loss_and_grad", false)) {
  const std::optional<int64_t> end = whole_number(args, "eos_token_id");
  const std::optional<int64_t> vocabulary = whole_number(args, "padded_vocab_size");
  TORCH_CHECK_VALUE(end || vocabulary,
                    "GPTTrainStep: the arguments have neither \"eos_token_id\" nor "
                    "\"padded_vocab_size\", so the end of a document is not known");
  masks_.eod_token = end ? *end : *vocabulary - 1;
  masks_.pad_token = masks_.eod_token;
  masks_.reset_position_ids = flag(args, "reset_position_ids", false);
  masks_.reset_attention_mask = flag(args, "reset_attention_mask", false);
  masks_.eod_mask_loss = flag(args, "eod_mask_loss", false);
  masks_.pad_mask_loss = true;
}

std::vector<at::Tensor> GPTTrainStep::get_batch(const MegatronBatch& batch) const {
  at::Tensor text = find(batch, "text");
  const char* const source = text.defined() ? "text" : "input_ids";
  if (!text.defined()) text = take(batch, name(), source);
  TORCH_CHECK_VALUE(text.dim() == 2, name(), ": \"", source, "\" has ", text.dim(),
                    " dims, but sequences are rows");
  if (!batch.contains("text")) {
    text = at::cat({text, at::full({text.size(0), 1}, masks_.eod_token, text.options())}, 1);
  }
  const int64_t length = text.size(1) - 1;
  TORCH_CHECK_VALUE(length >= 0, name(), ": \"text\" has rows without tokens");
  const at::Tensor tokens = text.narrow(1, 0, length).contiguous();
  DocumentMasks masks = get_ltor_masks_and_position_ids(tokens, masks_);
  return {tokens, text.narrow(1, 1, length).contiguous(), std::move(masks.loss_mask),
          std::move(masks.attention_mask), std::move(masks.position_ids)};
}

MegatronLoss GPTTrainStep::loss(const std::vector<at::Tensor>& inputs) const {
  check_inputs(name(), inputs, return_logits_ ? 3 : 2);
  MegatronLoss loss = {.loss = mean_of(inputs[1], inputs[0])};
  TORCH_CHECK_VALUE(!checks_nan_ || !loss.loss.isnan().item<bool>(), name(),
                    ": found NaN in local forward loss calculation");
  loss.reported["lm loss"] = loss.loss.detach();
  if (return_logits_) loss.reported["logits"] = inputs[2];
  return loss;
}

// ---- T5

at::Tensor T5TrainStep::attn_mask_postprocess(const at::Tensor& attention_mask) {
  return (attention_mask.unsqueeze(1) * attention_mask.unsqueeze(2)).lt(0.5);
}

at::Tensor T5TrainStep::get_decoder_mask(int64_t seq_length) {
  return hides_later(seq_length, at::TensorOptions()).unsqueeze(0);
}

at::Tensor T5TrainStep::get_enc_dec_mask(const at::Tensor& attention_mask, int64_t dec_seq_length) {
  return attention_mask.unsqueeze(1)
      .lt(0.5)
      .expand({attention_mask.size(0), dec_seq_length, attention_mask.size(1)})
      .contiguous();
}

std::vector<at::Tensor> T5TrainStep::get_batch(const MegatronBatch& batch) const {
  const at::Tensor labels = take(batch, name(), "labels");
  const at::Tensor mask = take(batch, name(), "attention_mask");
  at::Tensor decoder = find(batch, "decoder_input_ids");
  if (!decoder.defined()) {
    decoder = at::zeros_like(labels);
    const int64_t rest = labels.size(-1) - 1;
    if (rest > 0) decoder.narrow(-1, 1, rest).copy_(labels.narrow(-1, 0, rest));
    decoder.masked_fill_(decoder.eq(kIgnoredLabel), 0);
  }
  return {take(batch, name(), "input_ids"),
          decoder,
          loss_mask_of(labels),
          labels,
          attn_mask_postprocess(mask),
          get_decoder_mask(decoder.size(1)).to(labels.device()),
          get_enc_dec_mask(mask, decoder.size(1))};
}

MegatronLoss T5TrainStep::loss(const std::vector<at::Tensor>& inputs) const {
  check_inputs(name(), inputs, 2);
  const at::Tensor loss = mean_of(inputs[1], inputs[0]);
  return {.loss = loss, .reported = {{"lm loss", loss.detach()}}};
}

MegatronForwardStep T5TrainStep::forward_step_func() const {
  return [this](const Tensors& batch, const MegatronModel& model) {
    const Tensors outputs =
        outputs_of(name(), model, {batch[0], batch[1], batch[4], batch[5], batch[6]});
    return loss({batch[2], losses_of_tokens(outputs[0], batch[3])});
  };
}

std::shared_ptr<AbstractTrainStep> make_train_step(const Json& args) {
  const auto type = args.find("model_type_name");
  const std::string kind = type != args.end() && type->is_string() ? type->get<std::string>() : "";
  if (kind == "bert") return std::make_shared<BertTrainStep>(args);
  if (kind == "gpt") return std::make_shared<GPTTrainStep>(args);
  TORCH_CHECK_VALUE(kind == "t5", "Unsupported model type: \"", kind,
                    "\" is none of bert, gpt and t5");
  return std::make_shared<T5TrainStep>();
}

std::vector<MegatronBatch> micro_batches(const MegatronBatch& batch, int64_t num_micro_batches,
                                         int64_t micro_batch_size) {
  TORCH_CHECK_VALUE(num_micro_batches >= 1 && micro_batch_size >= 1,
                    "micro_batches: ", num_micro_batches, " parts of ", micro_batch_size,
                    " rows: both are at least 1");
  if (batch.empty()) return {};
  if (num_micro_batches == 1) return {batch};
  std::vector<MegatronBatch> parts(static_cast<size_t>(num_micro_batches));
  for (const auto& [name, tensor] : batch) {
    const int64_t rows = tensor.dim() == 0 ? 0 : tensor.size(0);
    TORCH_CHECK_VALUE(rows > (num_micro_batches - 1) * micro_batch_size, "micro_batches: \"", name,
                      "\" has ", rows, " rows, which are no ", num_micro_batches, " parts of ",
                      micro_batch_size);
    for (int64_t i = 0; i < num_micro_batches; ++i) {
      const int64_t begin = i * micro_batch_size;
      parts[static_cast<size_t>(i)][name] =
          tensor.narrow(0, begin, std::min(micro_batch_size, rows - begin));
    }
  }
  return parts;
}

}  // namespace accelerate

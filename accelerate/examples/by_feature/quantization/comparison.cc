#include "accelerate/examples/by_feature/quantization/comparison.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include <ATen/core/Reduction.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "accelerate/accelerate.h"
#include "accelerate/base/number_text.h"
#include "accelerate/base/status.h"
#include "accelerate/examples/by_feature/quantization/adapted_lm.h"
#include "accelerate/examples/common/watched_memory.h"
#include "accelerate/optim/fused_optimizers.h"

namespace quantization {
namespace {

using accelerate::Accelerator;
using accelerate::binary_byte_text;
using accelerate::BnbDeviceMap;
using accelerate::BnbQuantizationConfig;
using accelerate::Runtime;
using Model = accelerate::Dispatched<AdaptedLmImpl>;

constexpr int64_t kBatch = 8;

std::string dtype_text(c10::ScalarType dtype) {
  if (dtype == at::kBFloat16) return "bf16";
  return dtype == at::kHalf ? "fp16" : "fp32";
}

std::string name_of(const BnbQuantizationConfig& config) {
  if (config.load_in_8bit) return "int8";
  return config.bnb_4bit_quant_type + (config.bnb_4bit_use_double_quant ? ", double" : "");
}

// Once in the job, where Accelerator::print is for each machine.
void print(const Accelerator& accelerator, const std::string& line) {
  if (accelerator.is_main_process()) accelerator.print(line);
}

// Sequences of bytes and the byte after each, uint8 [n, sequence_length + 1].
struct Text {
  at::Tensor training;    // overlap
  at::Tensor evaluation;  // of the last tenth
};

Text read_text(Runtime& runtime, const lm::Options& options) {
  std::string text = accelerate::value_or_throw(read_file(runtime.files(), options.data));
  const auto size = static_cast<int64_t>(text.size());
  const int64_t length = options.config.sequence_length + 1, tenth = size / 10;
  TORCH_CHECK_VALUE(tenth >= length, options.data, " has ", size, " bytes, fewer than the ",
                    10 * length, " that sequences of ", length - 1, " tokens need");
  const at::Tensor bytes = at::from_blob(text.data(), {size}, at::kByte).clone();
  return {.training = bytes.narrow(0, 0, size - tenth).unfold(0, length, 16),
          .evaluation = bytes.narrow(0, size - tenth, tenth).unfold(0, length, length)};
}

AdaptedLm empty_model(const lm::Config& config) {
  const accelerate::EmptyInit empty = accelerate::init_empty_weights();
  return AdaptedLm(config);
}

// The sum over the sequences' tokens. Shapes: sequences [batch, length + 1].
template <typename AnyModel>
at::Tensor loss_of(AnyModel& model, const at::Tensor& sequences,
                   at::Reduction::Reduction reduction) {
  const at::Tensor tokens = sequences.to(at::kLong);
  const int64_t length = tokens.size(1) - 1;
  const at::Tensor logits = model(tokens.narrow(1, 0, length)).to(at::kFloat);
  return at::cross_entropy_loss(logits.flatten(0, 1),
                                tokens.narrow(1, 1, length).flatten().to(logits.device()),
                                /*weight=*/{}, reduction);
}

// Each rank has every nth sequence.
template <typename AnyModel>
double evaluate(Accelerator& accelerator, AnyModel& model, const at::Tensor& sequences) {
  double sum = 0;
  int64_t count = 0;
  const int64_t n = accelerator.num_processes(), stride = n * kBatch;
  for (int64_t i = accelerator.process_index(); i < sequences.size(0); i += stride) {
    const int64_t end = std::min(i + stride, sequences.size(0));
    const at::Tensor batch = sequences.slice(0, i, end, n).to(accelerator.device());
    sum += loss_of(model, batch, at::Reduction::Sum).template item<double>();
    count += batch.size(0) * (batch.size(1) - 1);
  }
  const at::Tensor all = accelerator.reduce(
      at::tensor({sum, static_cast<double>(count)}, at::kDouble).to(accelerator.device()));
  return all[0].item<double>() / all[1].item<double>();
}

// Greedily, without a cache of keys and values: each token is a pass over the whole text.
std::string generate(Accelerator& accelerator, Model& model, const Options& options, Row& row) {
  Runtime& runtime = accelerator.runtime();
  std::string text = options.prompt;
  at::Tensor tokens = at::from_blob(text.data(), {1, static_cast<int64_t>(text.size())}, at::kByte)
                          .to(accelerator.device(), at::kLong);
  absl::Time begin = runtime.now();
  for (int64_t i = 0; i < options.generate; ++i) {
    const int64_t length = std::min(tokens.size(1), options.training.config.sequence_length);
    const at::Tensor logits = model(tokens.narrow(1, tokens.size(1) - length, length));
    const at::Tensor next = logits.select(1, -1).argmax(-1, /*keepdim=*/true);
    tokens = at::cat({tokens, next}, 1);
    text += static_cast<char>(next.item<int64_t>());
    // The first pass of an offloaded model learns its order.
    if (i == 0) begin = runtime.now();
  }
  row.token_seconds = absl::ToDoubleSeconds(runtime.now() - begin) /
                      static_cast<double>(std::max<int64_t>(1, options.generate - 1));
  return text;
}

// `load` is called with an empty model and returns the handle of the loaded one.
template <typename Load>
Row measure(Accelerator& accelerator, const Options& options, const Text& text, std::string name,
            const Load& load) {
  Row row{.name = std::move(name)};
  const torch::NoGradGuard no_grad;
  const auto memory = std::make_shared<examples::WatchedMemory>(accelerator.device().type());
  const c10::DebugInfoGuard watched(c10::DebugInfoKind::PROFILER_STATE, memory);
  Model model = load(empty_model(options.training.config));
  row.held_bytes = memory->in_use();
  memory->forget_peak();
  row.text = generate(accelerator, model, options, row);
  row.peak_bytes = memory->peak();
  row.loss = evaluate(accelerator, model, text.evaluation);
  return row;
}

std::string table_row(const Row& row, const Row& plain) {
  return absl::StrFormat(
      "%-12s %12s %6.1f %% %12s %9.4f %11.4f %12.3f", row.name, binary_byte_text(row.held_bytes),
      100 * static_cast<double>(row.held_bytes) /
          static_cast<double>(std::max<int64_t>(1, plain.held_bytes)),
      binary_byte_text(row.peak_bytes), row.loss, std::exp(row.loss), 1e3 * row.token_seconds);
}

void print_table(Accelerator& accelerator, const std::vector<Row>& rows) {
  print(accelerator, absl::StrFormat("%-12s %12s %8s %12s %9s %11s %12s", "weights", "held", "",
                                     "peak", "loss", "perplexity", "token, ms"));
  for (const Row& row : rows) print(accelerator, table_row(row, rows.front()));
  for (const Row& row : rows) {
    print(accelerator, absl::StrCat(row.name, ": \"", absl::CEscape(row.text), "\""));
  }
}

// Returns the loss of the evaluation afterwards.
double train_adapters(Accelerator& accelerator, const Options& options, const Text& text,
                      Model& quantized) {
  const std::vector<at::Tensor> trained =
      quantized->add_adapters(options.adapter_rank, quantized.main_device());
  int64_t count = 0;
  for (const at::Tensor& each : trained) count += each.numel();
  print(accelerator, absl::StrCat("adapters of rank ", options.adapter_rank, ": ", count,
                                  " parameters are trained"));
  const auto adam = std::make_shared<accelerate::optim::AdamW>(
      trained, torch::optim::AdamWOptions(options.adapter_learning_rate));
  accelerate::DataLoader data(accelerate::make_tensor_dataset(text.training),
                              {.batch_size = kBatch, .shuffle = true, .drop_last = true});
  auto [model, optimizer, loader] = accelerator.prepare(quantized, adam, data);
  TORCH_CHECK_VALUE(loader.size() > 0, options.training.data,
                    " has too few sequences for a step of all ranks");
  const int64_t every = std::max<int64_t>(1, options.train_adapters / 5);
  double sum = 0;
  int64_t step = 0, summed = 0;
  while (step < options.train_adapters) {
    for (auto& [sequences] : loader) {
      const at::Tensor loss = loss_of(model, sequences, at::Reduction::Mean);
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      sum += accelerator.reduce(loss.detach(), accelerate::Reduction::kMean).item<double>();
      ++summed;
      if (++step % every == 0 || step == options.train_adapters) {
        print(accelerator,
              absl::StrFormat("step %4d  loss %.4f", step, sum / static_cast<double>(summed)));
        sum = 0;
        summed = 0;
      }
      if (step == options.train_adapters) break;
    }
  }
  const torch::NoGradGuard no_grad;
  return evaluate(accelerator, model, text.evaluation);
}

}  // namespace

Result compare(const Options& options) {
  std::string checkpoint = options.checkpoint;
  const BnbQuantizationConfig config = accelerate::resolve(options.config);
  std::optional<BnbDeviceMap> device_map;
  if (options.device_map.starts_with("{")) {
    device_map = accelerate::value_or_throw(accelerate::DeviceMap::parse(options.device_map));
  } else if (!options.device_map.empty()) {
    device_map = options.device_map;
  }
  std::optional<accelerate::MaxMemory> max_memory;
  if (!options.max_memory.empty()) {
    max_memory = accelerate::value_or_throw(accelerate::parse_max_memory(options.max_memory));
  }
  if (checkpoint.empty()) {
    lm::train(options.training);
    checkpoint = options.training.output_dir + "/model";
  }

  Accelerator accelerator;
  Runtime& runtime = accelerator.runtime();
  Text text = read_text(runtime, options.training);
  text.evaluation =
      text.evaluation.narrow(0, 0, std::min(options.evaluation_sequences, text.evaluation.size(0)));
  const std::string folder =
      absl::StrCat(options.offload_folder, "/rank", accelerator.process_index());
  const auto load_quantized = [&](const AdaptedLm& net) {
    return load_and_quantize_model(net, config,
                                   {.weights_location = checkpoint,
                                    .device_map = device_map,
                                    .no_split_module_classes = {"Block"},
                                    .max_memory = max_memory,
                                    .offload_folder = folder + "/quantized"});
  };
  const auto load_plain = [&](const AdaptedLm& net) {
    return load_checkpoint_and_dispatch(
        runtime.files(), net, checkpoint,
        {.device_map =
             device_map ? *device_map : BnbDeviceMap(get_quantized_model_device_map(*net, config)),
         .max_memory = max_memory,
         .no_split_module_classes = {"Block"},
         .offload_folder = folder + "/plain",
         .dtype = config.remaining_dtype()});
  };
  Result result;
  if (options.compares) {
    result.rows.push_back(
        measure(accelerator, options, text, dtype_text(config.remaining_dtype()), load_plain));
  }
  result.rows.push_back(measure(accelerator, options, text, name_of(config), load_quantized));
  print_table(accelerator, result.rows);

  if (options.save.empty() && options.train_adapters == 0) return result;
  Model quantized = load_quantized(empty_model(options.training.config));
  if (!options.save.empty() && accelerator.is_main_process()) {
    save_model(runtime.files(), get_state_dict_offloaded_model(*quantized), options.save);
  }
  if (options.train_adapters > 0) {
    result.adapter_loss = train_adapters(accelerator, options, text, quantized);
    print(accelerator, absl::StrFormat("evaluation loss %.4f before, %.4f after",
                                       result.rows.back().loss, *result.adapter_loss));
  }
  accelerator.wait_for_everyone();
  return result;
}

}  // namespace quantization

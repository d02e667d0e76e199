#include "accelerate/prepare_megatron_lm.h"

#include <vector>

#include <torch/nn/module.h>

#include "accelerate/runtime/runtime.h"

namespace accelerate::internal {
namespace {

using Json = nlohmann::ordered_json;

// Absent unless it is a whole number of at least 1.
std::optional<int64_t> count_of(const Json& args, const char* name) {
  const auto found = args.find(name);
  const bool is_count = found != args.end() && found->is_number_integer();
  if (!is_count || found->get<int64_t>() < 1) return std::nullopt;
  return found->get<int64_t>();
}

// Rounded up, so that ranks along tp can divide the embedding.
void pad_vocabulary(Json& args) {
  constexpr int64_t kUnit = 128;
  const std::optional<int64_t> size = count_of(args, "orig_vocab_size");
  if (!size || count_of(args, "padded_vocab_size")) return;
  const int64_t unit = count_of(args, "make_vocab_size_divisible_by").value_or(kUnit) *
                       count_of(args, "tensor_model_parallel_size").value_or(1);
  args["padded_vocab_size"] = (*size + unit - 1) / unit * unit;
}

}  // namespace

MegatronPreparation::MegatronPreparation(Accelerator& accelerator)
    : accelerator_(accelerator), plugin_(megatron_plugin_of(accelerator)) {
  objects.models_before = MegatronCore::num_models(accelerator);
}

void MegatronPreparation::set_args() {
  TORCH_CHECK_VALUE(objects.models_before == 0,
                    "You can't use same `Accelerator()` instance with multiple models when using "
                    "Megatron-LM");
  MegatronLMPlugin prepared = plugin_;
  set_prepared_args(prepared, objects, accelerator_.num_processes());
  Json& args = prepared.megatron_lm_default_args;
  if (objects.dummy_loader) args.update(objects.dummy_loader->dataset_args);
  pad_vocabulary(args);
  plugin_ = std::move(prepared);
}

std::shared_ptr<torch::nn::Module> MegatronPreparation::model(
    std::shared_ptr<torch::nn::Module> given) const {
  const MegatronModelProvider& provider = plugin_.custom_model_provider_function;
  if (plugin_.custom_prepare_model_function) {
    const std::vector<std::shared_ptr<torch::nn::Module>> parts =
        plugin_.custom_prepare_model_function(provider);
    TORCH_CHECK_VALUE(parts.size() == 1 && parts.front() != nullptr,
                      "custom_prepare_model_function: expected one model, which the engine divides "
                      "into stages, got ",
                      parts.size());
    return parts.front();
  }
  if (!provider) return given;
  std::shared_ptr<torch::nn::Module> made = provider(/*pre_process=*/true, /*post_process=*/true);
  TORCH_CHECK_VALUE(made != nullptr, "custom_model_provider_function has made no model");
  return made;
}

MegatronDataLoader MegatronPreparation::next_loader() {
  constexpr std::array<const char*, 3> kParts = {"training", "validation", "test"};
  TORCH_CHECK_VALUE(next_ < kParts.size(),
                    "prepare_megatron_lm: a fourth MegatronLMDummyDataLoader, but there are "
                    "training, validation and test");
  if (!datasets_) {
    const Json& args = plugin_.megatron_lm_default_args;
    const auto& provider = plugin_.custom_megatron_datasets_provider_function;
    datasets_ = provider
                    ? provider(gpt_dataset_samples(args))
                    : make_gpt_datasets(accelerator_.runtime().files(), gpt_dataset_options(args));
  }
  const size_t part = next_++;
  std::shared_ptr<MegatronDataset> dataset = (*datasets_)[part];
  TORCH_CHECK_VALUE(dataset != nullptr, "MegatronLMDummyDataLoader: there are no samples of ",
                    kParts[part], "; see \"split\" and the numbers of iterations");
  const MegatronDataLoader loader(MegatronSamples(std::move(dataset)),
                                  {.batch_size = batch_size(), .drop_last = true});
  const MegatronDataLoader share = accelerator_.prepare_data_loader(loader);
  if (!plugin_.consumed_samples) return share;
  const int64_t consumed = (*plugin_.consumed_samples)[part];
  TORCH_CHECK_VALUE(consumed % *plugin_.global_batch_size == 0, "consumed_samples of ",
                    kParts[part], " are ", consumed, ", not a multiple of the global batch size, ",
                    *plugin_.global_batch_size);
  return accelerator_.skip_first_batches(share, consumed / *plugin_.global_batch_size);
}

}  // namespace accelerate::internal

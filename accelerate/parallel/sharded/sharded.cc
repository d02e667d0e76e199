#include "accelerate/parallel/sharded/sharded.h"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include "absl/strings/str_cat.h"
#include "accelerate/base/checksum.h"
#include "accelerate/comm/agree.h"
#include "accelerate/comm/operations.h"
#include "accelerate/config/fsdp_plugin.h"
#include "accelerate/config/zero_config.h"
#include "accelerate/mesh/axis_set.h"
#include "accelerate/modules/value_at_use.h"
#include "accelerate/operators/construction_record.h"
#include "accelerate/operators/deferred_values.h"
#include "accelerate/operators/operator_mode.h"
#include "accelerate/parallel/layout/model_layout.h"
#include "accelerate/parallel/replicate.h"
#include "accelerate/parallel/residency/shard.h"
#include "accelerate/parallel/sharded/calls.h"
#include "accelerate/parallel/sharded/options.h"
#include "accelerate/parallel/sharded/units.h"
#include "accelerate/plan/plan.h"
#include "accelerate/precision/fp8_gradients.h"
#include "accelerate/precision/fp8_model.h"
#include "accelerate/precision/fp8_quantize.h"
#include "accelerate/precision/job_precision.h"
#include "accelerate/precision/techniques.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/tensors/tensor_memory.h"
#include "accelerate/tensors/tree_operations.h"

namespace accelerate {
namespace {

// The module's buffers, on the device. Running statistics keep their dtype, because LibTorch's
// kernels want them in float32.
std::vector<at::Tensor> moved_buffers(const torch::nn::Module& module, c10::Device device,
                                      std::optional<at::ScalarType> dtype) {
  at::NoGradGuard no_grad;
  for (const auto& part : module.modules()) {
    const auto own = part->named_buffers(/*recurse=*/false);
    for (const auto& item : own) {
      const at::Tensor& buffer = item.value();
      const bool casts = dtype && !own.contains("running_mean");
      buffer.set_data((casts ? internal::with_dtype(buffer, *dtype) : buffer).to(device));
      tag_memory(buffer, MemoryKind::kBuffer);
    }
  }
  return module.buffers();
}

void move_parameters(const torch::nn::Module& module, const std::vector<std::string>& names,
                     c10::Device device) {
  if (names.empty()) return;
  at::NoGradGuard no_grad;
  const auto parameters = module.named_parameters();
  for (const std::string& name : names) {
    const at::Tensor& parameter = parameters[name];
    parameter.set_data(parameter.to(device));
  }
}

// Statistics of quantised parameters, whose codes are divided, are whole on each rank.
void move_statistics(const torch::nn::Module& module, const ProcessGroupPtr& all,
                     c10::Device device) {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> statistics;
  for (const at::Tensor& parameter : module.parameters()) {
    if (find_maker(parameter) == nullptr) continue;
    for (const KeptTensor& each : kept_tensors("weight", parameter)) {
      if (each.is_values) continue;
      if (each.tensor.device() != device) internal::rebind(each.tensor, each.tensor.to(device));
      statistics.push_back(each.tensor);
    }
    update_device_from_kept(parameter);
  }
  broadcast_tensors(all, statistics, 0);
}

// Once on the first rank.
void warn_of_widened(const torch::nn::Module& module, const ProcessGroupPtr& all) {
  const std::vector<std::string> names = parameters_to_widen(module);
  if (!names.empty() && rank_of(all) == 0) TORCH_WARN(widening_text(names));
}

bool needs_gradient(const at::Tensor& output) { return output.defined() && output.requires_grad(); }

}  // namespace

ShardedModel::ShardedModel(const torch::nn::Module& module, ShardGroups groups, c10::Device device,
                           const ShardingOptions& options, const ShardedPrecision& precision,
                           bool broadcast_buffers)
    : all_((check_same_model(groups.all, module), groups.all)),
      precision_(precision),
      reduces_each_pass_(options.reduces_each_pass),
      parameters_(std::make_shared<ShardedParameters>(module, std::move(groups), device, options)),
      refresh_(moved_buffers(module, device, precision.buffer_dtype), broadcast_buffers) {
  move_parameters(module, options.ignored, device);
  broadcast_tensors(all_, refresh_.buffers(), 0);
  move_statistics(module, all_, device);
  trained_.shards = parameters_->group();
  trained_.on_disk = {
      .disk = parameters_->disk(), .updated = parameters_->keeps_rows(), .group = all_};
  trained_.overwriting_scopes = residency()->writers();
  trained_.set_gradient = [parameters = parameters_](size_t place, at::Tensor gradient) {
    const at::NoGradGuard no_grad;
    parameters->gradients().set_gradient(place, std::move(gradient));
  };
  trained_.has_all_rows = [residency = residency()] { return residency->is_whole(); };
  for (const ShardedParameters::Shard& each : parameters_->shards()) {
    trained_.tensors.push_back({each.name, each.parameter, each.shard});
  }
}

void ShardedModel::compare_replicas(RanksAlong replicas, bool gathers) {
  replicas_ = std::move(replicas);
  gathers_ = gathers;
  compared_.clear();
  for (const TrainedParameter& each : trained_.tensors) {
    compared_.emplace_back(each.name, each.trained);
  }
}

void ShardedModel::check_replicas() const {
  if (!replicas_ || parameters_->disk() != nullptr) return;
  check_equal_along(*replicas_, "values", compared_, Runtime::current(), gathers_);
}

void ShardedModel::forward(ForwardPass& pass) {
  const bool grad = at::GradMode::is_enabled();
  const bool synchronises = *no_sync_count_ == 0;
  parameters_->begin_step();
  if (grad && synchronises) check_replicas();
  if (refresh_.is_due()) {
    broadcast_tensors(all_, refresh_.buffers(), 0);
    refresh_.copied();
  }
  parameters_->refresh_packed();
  pass.set_synchronises(synchronises);
  pass.set_input_dtype(precision_.input_dtype);
  {
    Residency::Pass scope(*residency());
    pass.proceed();
    if (grad && std::ranges::none_of(pass.outputs(), &needs_gradient)) scope.expect_no_backward();
  }
  parameters_->check_reads();
  if (precision_.output_dtype) {
    std::vector<at::Tensor> outputs = pass.outputs();
    for (at::Tensor& output : outputs) {
      output = internal::with_dtype(output, *precision_.output_dtype);
    }
    pass.set_outputs(std::move(outputs));
  }
  if (!grad) return;
  parameters_->set_synchronises(synchronises);
  if (synchronises) refresh_.set_may_differ(true);
  if (refresh_.is_used()) refresh_.wait_for_backward(pass.outputs());
}

StateDict ShardedModel::state_dict() const {
  StateDict state;
  for (size_t i = 0; i < trained_.tensors.size(); ++i) {
    at::Tensor sum = parameters_->gradients().partial_sum(i);
    if (sum.defined()) state.tensors.emplace_back(trained_.tensors[i].name, std::move(sum));
  }
  return state;
}

// They are those of this very shard, or of no use.
void ShardedModel::load_state_dict(const StateDict& state, bool same_ranks) {
  const std::map<std::string, at::Tensor> saved(state.tensors.begin(), state.tensors.end());
  for (size_t i = 0; i < trained_.tensors.size(); ++i) {
    const auto found = saved.find(trained_.tensors[i].name);
    const bool has = same_ranks && found != saved.end();
    parameters_->gradients().set_partial_sum(
        i, has ? found->second.to(trained_.tensors[i].parameter.device()) : at::Tensor());
  }
}

void internal::check_not_cut(const ModelState& model, const char* caller,
                             const std::vector<at::Tensor>* only) {
  const ModelPlacements& placements = model.placements();
  if (!placements.is_cut) return;
  const auto parameters = model.module()->named_parameters();
  const auto is_meant = [&](const std::string& name) {
    if (only == nullptr) return true;
    const at::Tensor* const own = parameters.find(name);
    return own != nullptr && std::ranges::any_of(*only, [own](const at::Tensor& parameter) {
             return parameter.is_same(*own);
           });
  };
  for (const TensorPlacement& each : placements.layout->placements()) {
    const AxisSet axes = placements.layout->mesh().several(each.cut_axes() - each.rows);
    TORCH_CHECK_VALUE(axes.empty() || !is_meant(each.name), caller, ": parameter \"", each.name,
                      "\" is cut along ", axes.to_string(), ", and rank ", placements.rank,
                      " has a part of it, but only rows that sharding has divided are put together "
                      "here; get_state_dict gathers the others");
  }
}

const ShardedModel* GatheredParameters::shards_of(const ModelState& model,
                                                  const std::vector<at::Tensor>& parameters,
                                                  const GatheredParametersOptions& options) {
  if (options.enabled) internal::check_not_cut(model, "GatheredParameters", &parameters);
  return model.find_technique<ShardedModel>();
}

GatheredParameters::GatheredParameters(const ShardedModel* model,
                                       std::vector<at::Tensor> parameters,
                                       GatheredParametersOptions options)
    : parameters_(std::move(parameters)),
      modifier_rank_(options.enabled ? options.modifier_rank : std::nullopt),
      all_(model != nullptr ? model->job() : nullptr),
      exceptions_(std::uncaught_exceptions()),
      whole_(model != nullptr && options.enabled && !parameters_.empty() ? model->residency()
                                                                         : nullptr,
             {.writeback = modifier_rank_.has_value(), .only = parameters_}) {}

GatheredParameters::~GatheredParameters() noexcept(false) {
  if (!modifier_rank_ || all_ == nullptr || std::uncaught_exceptions() > exceptions_) return;
  const at::NoGradGuard no_grad;
  broadcast_tensors(all_, parameters_, *modifier_rank_);
}

namespace {

bool values_are_sent(const FullyShardedDataParallelPlugin* plugin, const ProcessGroupPtr& all) {
  return plugin != nullptr && all != nullptr &&
         (plugin->cpu_ram_efficient_loading.value_or(false) ||
          plugin->sync_module_states.value_or(false));
}

// A module's own parameters and buffers.
std::vector<at::Tensor> own_tensors(const torch::nn::Module& module) {
  std::vector<at::Tensor> tensors = module.parameters(/*recurse=*/false);
  for (const at::Tensor& buffer : module.buffers(/*recurse=*/false)) tensors.push_back(buffer);
  return tensors;
}

// The values that a model has before it is divided: its own, or for tensors on "meta" those of the
// recorded construction, of a checkpoint that they wait for (operators/deferred_values.h), of the
// plugin's param_init_fn, or of rank 0.
// Mirrors: accelerate utils/fsdp_utils.py, what fsdp2_prepare_model does for
//          cpu_ram_efficient_loading; param_init_fn of torch.distributed.fsdp, which makes the
//          memory as well.
class InitialValues {
 public:
  // `plugin` is resolved, or null; `all` are the ranks that begin with its rank 0's values.
  InitialValues(std::shared_ptr<torch::nn::Module> module,
                const FullyShardedDataParallelPlugin* plugin, const ProcessGroupPtr& all,
                c10::Device device)
      : module_(std::move(module)),
        init_(plugin != nullptr ? plugin->param_init_fn : nullptr),
        all_(all),
        are_sent_(values_are_sent(plugin, all)),
        from_rank_0_(are_sent_ && all->getRank() != 0),
        device_(device) {
    for (const auto& part : module_->modules()) {
      for (const at::Tensor& tensor : own_tensors(*part)) {
        // A tied tensor belongs to the first module that has it.
        if (tensor.defined()) owners_.try_emplace(tensor.unsafeGetTensorImpl(), part.get());
      }
    }
  }

  // Collective. Errors: c10::ValueError, on all ranks, naming the ranks and a parameter or buffer
  // of theirs that has no values and no way to them; or a rank that waits for other values than
  // rank 0.
  void check() {
    const std::vector<internal::RankOutcome> ranks = internal::agree(all_, "prepare", [&]() {
      const auto check_all = [&](const auto& named, const char* kind) {
        for (const auto& item : named) {
          TORCH_CHECK_VALUE(
              !item.value().defined() || can_be_made(item.value()), kind, " \"", item.key(),
              "\" has no values to be divided among ranks: it is on \"meta\" and was not made in "
              "init_empty_weights; load a checkpoint into it, make it there, or give a "
              "param_init_fn");
        }
      };
      check_all(module_->named_parameters(), "parameter");
      check_all(module_->named_buffers(), "buffer");
      return deferred_text();
    });
    // Where it is may differ, as on disks of their own.
    const auto what = [&](size_t rank) {
      const std::string& text = ranks[rank].text;
      return text.substr(std::min(text.find('\n'), text.size()));
    };
    bool is_on_all = true;
    for (size_t rank = 1; rank < ranks.size(); ++rank) {
      if (what(rank) == what(0)) continue;
      is_on_all = false;
      const auto text_of = [&](size_t each) {
        const std::string& text = ranks[each].text;
        return absl::StrCat("rank ", each, " waits for ",
                            text.empty() ? "none" : text.substr(0, text.find('\n')));
      };
      TORCH_CHECK_VALUE(ranks[rank].text.empty(),
                        "prepare: ranks wait for different values of the "
                        "model: ",
                        text_of(0), ", and ", text_of(rank),
                        "; load the same checkpoint with `lazy` on all ranks, or on rank 0 alone");
    }
    if (ranks.front().text.empty()) return;
    deferred_ = is_on_all ? DeferredReads::kOwnRows : DeferredReads::kFromRank0;
  }

  // Who has the values that parameters wait for. After check().
  DeferredReads deferred() const { return deferred_; }

  // Gives tensors on "meta", parameters or buffers of the module, memory on the device, and what
  // param_init_fn makes of their module; that is called once, when all the module's own tensors
  // have memory. Recorded tensors are left alone, but for a rank whose values do not count
  // (cpu_ram_efficient_loading, or version 1's sync_module_states, on another rank than 0; what
  // waits for a checkpoint of which rank 0 sends the values), where memory is as it comes. They
  // stay the same tensors, so ties stay.
  void materialise(const std::vector<at::Tensor>& tensors) {
    const at::NoGradGuard no_grad;
    const auto give_memory = [&](const at::Tensor& tensor) {
      internal::rebind(tensor, at::empty(tensor.sizes(), tensor.options().device(device_)));
    };
    for (const at::Tensor& tensor : tensors) {
      if (!tensor.is_meta()) continue;
      const bool is_sent = deferred_ == DeferredReads::kFromRank0 && all_->getRank() != 0 &&
                           deferred_values(tensor) != nullptr;
      if (from_rank_0_ || is_sent) {
        give_memory(tensor);
      } else if (!is_recorded(tensor)) {
        torch::nn::Module& owner = *owners_.at(tensor.unsafeGetTensorImpl());
        if (!initialised_.insert(&owner).second) continue;
        for (const at::Tensor& own : own_tensors(owner)) {
          if (own.is_meta() && !is_recorded(own)) give_memory(own);
        }
        init_(owner);
      }
    }
  }

  // What to call when all tensors have their values; before they have any. Where rank 0 sends them
  // the ranks' generators stay as they are, and so alike.
  std::function<void()> end() const {
    if (are_sent_ || deferred_ == DeferredReads::kFromRank0) return [] {};
    std::vector<at::Tensor> tensors = module_->parameters();
    for (const at::Tensor& buffer : module_->buffers()) tensors.push_back(buffer);
    return end_of_construction(tensors);
  }

  // The same for all buffers, and for those that were recorded their values. Collective where some
  // wait for a checkpoint. Errors: those of reading, on all ranks.
  void materialise_buffers() {
    std::vector<at::Tensor> buffers = module_->buffers();
    std::erase_if(buffers,
                  [](const at::Tensor& buffer) { return !buffer.defined() || !buffer.is_meta(); });
    materialise(buffers);
    std::erase_if(buffers, [](const at::Tensor& buffer) { return !buffer.is_meta(); });
    const auto make = [&]() -> std::string {
      if (!buffers.empty()) replay_construction(buffers, device_);
      return "";
    };
    if (deferred_ == DeferredReads::kNone) {
      make();
    } else {
      internal::agree(all_, "prepare", make);
    }
  }

 private:
  bool can_be_made(const at::Tensor& tensor) const {
    return !tensor.is_meta() || from_rank_0_ || init_ != nullptr || is_recorded(tensor);
  }

  // What this rank's tensors wait for: where that is, and in a line of its own what ranks compare.
  // Nothing if none waits.
  std::string deferred_text() const {
    size_t count = 0;
    std::string place, names;
    const auto add = [&](const auto& named) {
      for (const auto& item : named) {
        const DeferredValues* const values = deferred_values(item.value());
        if (values == nullptr) continue;
        if (count++ == 0) place = values->place();
        absl::StrAppend(&names, item.key(), " ", item.value().scalar_type(), " ",
                        values->description(), "\n");
      }
    };
    add(module_->named_parameters());
    add(module_->named_buffers());
    if (count == 0) return "";
    return absl::StrCat(count, " tensors of ", place, "\n", sha256(names));
  }

  const std::shared_ptr<torch::nn::Module> module_;
  const std::function<void(torch::nn::Module&)> init_;  // may be null
  const ProcessGroupPtr all_;
  const bool are_sent_, from_rank_0_;
  const c10::Device device_;
  DeferredReads deferred_ = DeferredReads::kNone;
  std::unordered_map<const c10::TensorImpl*, torch::nn::Module*> owners_;
  std::unordered_set<const torch::nn::Module*> initialised_;
};

// The weights of layers in fp8 whose shards are gathered in 8 bits.
//
// A weight has one scale, from its largest value on all ranks, so that the gathered weight has the
// bits of one that was quantised whole. The scales of all weights are one small all-reduce, in the
// first pass after shards have changed. Only current scaling (torchao's recipe) has such weights: a
// delayed scale needs the values of past steps, and blocks cross shards.
// Mirrors: torchao.float8, enable_fsdp_float8_all_gather and
//          precompute_float8_dynamic_scale_for_fsdp.
class Fp8Shards final : public PackedParameters {
 public:
  // `model`: its weights are the parameters' tensors; those that a module other than a Linear has
  // as well are left alone.
  Fp8Shards(const torch::nn::Module& module, std::shared_ptr<Fp8Model> model)
      : model_(std::move(model)) {
    for (const at::Tensor& weight : model_->weights()) {
      weights_.emplace(weight.unsafeGetTensorImpl(), Weight());
    }
    // One that is tied to an embedding is needed in high precision as well.
    for (const auto& part : module.modules()) {
      if (dynamic_cast<const torch::nn::LinearImpl*>(part.get()) != nullptr) continue;
      for (const at::Tensor& parameter : part->parameters(/*recurse=*/false)) {
        if (parameter.defined()) weights_.erase(parameter.unsafeGetTensorImpl());
      }
    }
  }

  at::ScalarType dtype() const override { return kE4M3; }

  bool packs(const at::Tensor& parameter) const override {
    return weights_.contains(parameter.unsafeGetTensorImpl());
  }

  void set_values(const at::Tensor& parameter, at::Tensor values) override {
    weights_.at(parameter.unsafeGetTensorImpl()).values = std::move(values);
  }

  at::Tensor pack(const at::Tensor& parameter, const at::Tensor& rows) override {
    return fp8_cast(rows, weights_.at(parameter.unsafeGetTensorImpl()).scale, kE4M3);
  }

  void refresh(const std::vector<ParameterShard>& shards, const ProcessGroupPtr& group) override {
    int64_t versions = 0;
    for (const auto& each : shards) {
      if (packs(each.parameter)) versions += each.shard._version();
    }
    if (weights_.empty() || versions == versions_) return;
    const at::NoGradGuard no_grad;
    const OperatorModeScope plain{OperatorHandlers()};
    std::vector<at::Tensor> largest;
    std::vector<const at::Tensor*> parameters;
    for (const auto& each : shards) {
      if (!packs(each.parameter)) continue;
      largest.push_back(fp8_amax(each.shard));
      parameters.push_back(&each.parameter);
    }
    if (parameters.empty()) return;
    const at::Tensor amax =
        amax_of_ranks(at::stack(largest).to(parameters.front()->device()), group.get());
    const at::Tensor scales = fp8_scale(amax, kE4M3);
    // amax - amax is 0, or NaN where amax is not finite.
    const at::Tensor inverse = scales.reciprocal().add_(amax - amax);
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto place = static_cast<int64_t>(i);
      Weight& weight = weights_.at(parameters[i]->unsafeGetTensorImpl());
      weight.scale = scales.select(0, place);
      model_->set_gathered_weight(*parameters[i], {weight.values, inverse.select(0, place)});
    }
    versions_ = versions;
  }

 private:
  struct Weight {
    at::Tensor values;
    at::Tensor scale;
  };

  const std::shared_ptr<Fp8Model> model_;
  std::unordered_map<const at::TensorImpl*, Weight> weights_;
  // The sum over the shards that the scales are of; versions only grow.
  int64_t versions_ = -1;
};

// The weights whose shards are gathered in 8 bits, as the recipe says; null for none. The option is
// FSDP's: ZeRO gathers parameters in the dtype of its configuration.
std::shared_ptr<PackedParameters> gathered_in_fp8(const TechniqueContext& context) {
  if (context.plan.zero != nullptr) return nullptr;
  const std::optional<Fp8Plan>& plan = context.plan.precision.fp8();
  const auto* technique = find_technique<Fp8Technique>(context.made);
  const auto* ao = plan ? std::get_if<AORecipeKwargs>(&plan->recipe) : nullptr;
  if (technique == nullptr || ao == nullptr || !*ao->enable_fsdp_float8_all_gather) return nullptr;
  return std::make_shared<Fp8Shards>(*context.model.module(), technique->model());
}

// What MS-AMP does with gradients before ranks reduce them; empty for nothing.
std::function<void(const std::vector<at::Tensor>&, const std::vector<at::Tensor>&)>
gradients_in_fp8(const TechniqueContext& context) {
  const ModelPlan& plan = context.plan;
  const auto* technique = find_technique<Fp8Technique>(context.made);
  if (technique == nullptr || plan.precision.fp8_backend() != FP8BackendType::kMsamp ||
      size_of(plan.roles.shards) == 1) {
    return {};
  }
  return [rounding = std::make_shared<const Fp8GradientRounding>(technique->model()->weights()),
          group = plan.roles.shards](const std::vector<at::Tensor>& parameters,
                                     const std::vector<at::Tensor>& gradients) {
    rounding->round(parameters, gradients, group.get());
  };
}

}  // namespace

void check_sharded_technique(const TechniqueContext& context) {
  const ModelPlan& plan = context.plan;
  if (!is_sharded(context)) return;
  TORCH_CHECK_VALUE(plan.handlers.ddp.comm_hook == DDPCommunicationHookType::kNo &&
                        plan.handlers.ddp.comm_wrapper == DDPCommunicationHookType::kNo,
                    "dp_shard: comm_hook and comm_wrapper are for the gradients of replicas, and "
                    "those of shards are sent as they are; leave both out");
  const bool is_msamp = plan.precision.fp8_backend() == FP8BackendType::kMsamp;
  TORCH_CHECK_VALUE(!is_msamp || (plan.zero != nullptr && plan.zero->stage < 3),
                    "dp_shard: MS-AMP is for models whose parameters are whole on each rank; "
                    "choose the recipe AO or TE for a sharded model in fp8, or stage 1 or 2 of a "
                    "deepspeed_plugin");
  if (plan.fsdp != nullptr) check_trained_alike(*context.model.module(), *plan.fsdp);
}

std::unique_ptr<Technique> make_sharded_technique(const TechniqueContext& context) {
  const ModelPlan& plan = context.plan;
  if (!is_sharded(context)) return nullptr;
  const torch::nn::Module& module = *context.model.module();
  const ProcessGroupPtr& all = plan.roles.same_part;
  const auto values =
      std::make_shared<InitialValues>(context.model.module(), plan.fsdp, all, plan.device);
  values->check();
  ShardingOptions options = sharding_options(module, plan);
  options.deferred = values->deferred();
  options.initialise = [values](const std::vector<at::Tensor>& parameters) {
    values->materialise(parameters);
  };
  options.packed = gathered_in_fp8(context);
  options.before_reduction = gradients_in_fp8(context);
  const std::function<void()> end_of_values = values->end();
  values->materialise_buffers();
  if (options.param_dtype) warn_of_widened(module, all);
  auto sharded = std::make_unique<ShardedModel>(module,
                                                ShardGroups{.shards = plan.roles.shards,
                                                            .replicas = plan.roles.replicas,
                                                            .all = all,
                                                            .after_forward = plan.after_forward},
                                                plan.device, options, sharded_precision(plan),
                                                plan.handlers.ddp.broadcast_buffers);
  end_of_values();
  internal::bind_marked_units(module, sharded->parameters());
  if (plan.roles.replicas != nullptr) {
    const MeshAxis axis = MeshAxis::kDpReplicate;
    sharded->compare_replicas(
        {.axis = axis, .group = plan.roles.replicas, .ranks = plan.mesh.group(plan.rank, axis)},
        plan.compares_ranks);
  }
  return sharded;
}

}  // namespace accelerate

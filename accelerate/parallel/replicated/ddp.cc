#include "accelerate/parallel/replicated/ddp.h"

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>
#include <nlohmann/json.hpp>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/base/mesh_axis.h"
#include "accelerate/comm/operations.h"
#include "accelerate/comm/watch/collective_call.h"
#include "accelerate/mesh/axis_set.h"
#include "accelerate/mesh/mesh.h"
#include "accelerate/modules/value_at_use.h"
#include "accelerate/parallel/replicate.h"
#include "accelerate/parallel/replicated/communication_hook.h"
#include "accelerate/parallel/replicated/gradients_in_buckets.h"
#include "accelerate/parallel/replicated/reducer_group.h"
#include "accelerate/parallel/replicated/trained_set.h"
#include "accelerate/plan/plan.h"
#include "accelerate/precision/fp8_model.h"
#include "accelerate/precision/job_precision.h"
#include "accelerate/precision/techniques.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/runtime/shared_objects.h"
#include "accelerate/tensors/libtorch_releases.h"
#include "accelerate/tensors/state_dict.h"
#include "accelerate/values/fields.h"

namespace accelerate {
namespace {

constexpr size_t kMebibyte = 1024 * 1024;
// As in PyTorch: a small first bucket starts the communication early.
constexpr size_t kFirstBucketBytes = kMebibyte;
constexpr double kMaxBucketMebibytes = 1 << 30;  // so that a size_t holds the bytes
constexpr int kMain = 0;

constexpr char kStateOf[] = "the state of a replicated model";
constexpr char kBuffer[] = "buffer.";
constexpr char kHookTensor[] = "hook.";
constexpr char kRefreshesBuffers[] = "refreshes_buffers";
constexpr char kUsed[] = "used";
constexpr char kOptions[] = "options";
constexpr char kBuckets[] = "buckets";
constexpr char kReady[] = "ready";
constexpr char kHook[] = "hook";

// ---- The Reducer.

// How many models were made on a Runtime, by the name of their group.
struct ModelCounts : std::map<std::string, int64_t> {};

int64_t next_ordinal(const std::string& group) {
  auto& counts =
      Runtime::current().shared<ModelCounts>([] { return std::make_unique<ModelCounts>(); });
  return counts[group]++;
}

// What a Reducer is given as the outputs of a pass whose graph ends with that node: it finds unused
// parameters by walking the graph from there. Null: the end is unknown.
std::vector<at::Tensor> outputs_of(internal::NodePointer end) {
  std::vector<at::Tensor> outputs;
  if (!end) return outputs;
  torch::autograd::impl::set_gradient_edge(outputs.emplace_back(at::empty({0})),
                                           {std::move(end), 0});
  return outputs;
}

}  // namespace

struct DistributedDataParallel::Reducer : internal::GradientsInBuckets {
  using GradientsInBuckets::GradientsInBuckets;

  static constexpr int64_t kNotReached = std::numeric_limits<int64_t>::min();

  // Prepares for a backward pass from `outputs`.
  void prepare(const std::vector<at::Tensor>& outputs) {
    if (static_graph_ && !first_pass_reduced) {
      // Earlier passes only accumulated, and must not be counted.
      num_bwd_calls_ = 0;
      first_autograd_hook_called_ = false;
      numGradHooksTriggeredMap_.clear();
    }
    // The order of the last backward pass before buckets are rebuilt counts.
    if (should_rebuild_buckets()) set_ready_order({});
    std::fill(backward_stats_.begin(), backward_stats_.end(), kNotReached);
    count_pass();
    prepare_for_backward(outputs);
  }
  // Prepares for the backward pass that has begun, unless a forward pass has done so since the last
  // one. Any of the engine's threads.
  void prepare_begun(const internal::WeakNodePointer& sink) {
    const std::lock_guard<std::mutex> lock(begins_);
    const auto is_prepared = [this] {
      const std::lock_guard<std::mutex> reads(mutex_);
      return expect_autograd_hooks_;
    };
    if (!is_prepared()) prepare(outputs_of(sink.lock()));
  }
  // The group of the coming all-reduces, which may name passes: those from here on, since ranks
  // have made more of them than others where they were not named.
  void use_group(ProcessGroupPtr group, bool names_passes) {
    group_ = std::move(group);
    if (names_passes && !names_passes_) passes_ = {};
    names_passes_ = names_passes;
    update_process_group(names_passes ? passes_.named(group_) : group_);
  }
  // As NamedPasses.
  std::string purpose() const { return names_passes_ ? passes_.purpose() : std::string(); }
  // With static_graph the first pass counts how often each parameter is reached, and reduces at its
  // end. All later passes must equal it.
  bool first_pass_reduced = false;
  // The end of the last forward pass's graph, with find_unused_parameters.
  internal::WeakNodePointer last_sink{internal::NodePointer()};

  // The indices of the parameters that the last backward pass should have reached and missed.
  std::vector<size_t> missing() const {
    std::vector<size_t> indices;
    for (size_t i = 0; require_finalize_ && i < params_.size(); ++i) {
      if (backward_stats_[i] == kNotReached) indices.push_back(i);
    }
    return indices;
  }

  bool will_rebuild_buckets() const { return should_rebuild_buckets() && !rebuilt_params_.empty(); }

  // The slot of the all-reduce that is about to start with `tensor`. The caller's thread holds the
  // Reducer's mutex.
  int64_t slot_of(const at::Tensor& tensor) const {
    return static_cast<int64_t>(tensor.is_same(local_used_map_dev_) ? buckets_.size()
                                                                    : next_bucket_);
  }

  bool is_bucket(int64_t slot) const { return slot < static_cast<int64_t>(buckets_.size()); }

  // The zeros that a rank without data contributes in that slot.
  at::Tensor zeros_for(int64_t slot) const {
    if (!is_bucket(slot)) return at::zeros_like(local_used_map_dev_);
    const Bucket& bucket = buckets_.at(slot);
    if (!bucket.expect_sparse_gradient) return at::zeros_like(bucket.gradients);
    // The gradient of an embedding holds some rows of a table; here, none.
    const at::Tensor& table = bucket.variables.at(0);
    std::vector<int64_t> rows = table.sizes().vec();
    rows[0] = 0;
    return at::sparse_coo_tensor(at::empty({1, 0}, table.options().dtype(at::kLong)),
                                 at::empty(rows, table.options()), table.sizes());
  }

  // The bucket that a hook is given in that slot.
  c10d::GradBucket bucket_of(int64_t slot, const at::Tensor& gradients) const {
    const Bucket& bucket = buckets_.at(slot);
    return c10d::GradBucket(slot, buckets_.size(), gradients, bucket.offsets, bucket.lengths,
                            bucket.sizes_vec, bucket.variables, std::nullopt);
  }

  // The parameters of each bucket; absent until buckets were rebuilt in the order of readiness.
  std::optional<Buckets> final_buckets() const {
    if (!has_rebuilt_bucket_) return std::nullopt;
    Buckets buckets;
    for (const Bucket& bucket : buckets_) buckets.push_back(bucket.variable_indices);
    return buckets;
  }
  void set_final_buckets(Buckets buckets) {
    has_rebuilt_bucket_ = true;
    rebuilt_params_.clear();
    rebuilt_param_indices_.clear();
    initialize_buckets(std::move(buckets));
  }
  // The order in which gradients became ready in the first backward pass.
  std::vector<size_t> ready_order() const {
    return {rebuilt_param_indices_.begin(), rebuilt_param_indices_.end()};
  }
  void set_ready_order(const std::vector<size_t>& order) {
    rebuilt_params_.clear();
    rebuilt_param_indices_.clear();
    for (const size_t parameter : order) push_rebuilt_params(parameter);
  }
  // The parameters used since the last synchronising pass, with find_unused_parameters.
  std::vector<size_t> used() const {
    std::vector<size_t> parameters;
    for (int64_t i = 0; local_used_map_.defined() && i < local_used_map_.numel(); ++i) {
      if (local_used_map_[i].item<int>() != 0) parameters.push_back(static_cast<size_t>(i));
    }
    return parameters;
  }
  void set_used(const std::vector<size_t>& parameters) {
    if (!local_used_map_.defined()) return;
    local_used_map_.zero_();
    for (const size_t parameter : parameters) local_used_map_[static_cast<int64_t>(parameter)] = 1;
  }
  // Whether these parameters may share a bucket.
  bool can_be_bucket(const std::vector<size_t>& bucket) const {
    return !bucket.empty() && std::ranges::all_of(bucket, [&](size_t parameter) {
      return params_[parameter].options().type_equal(params_[bucket[0]].options()) &&
             (bucket.size() == 1 || !expect_sparse_gradients_[parameter]);
    });
  }

  // Ranks rebuild their buckets together, in rank 0's order, so a rank without data must act as if
  // a backward pass had reached all parameters. If this is rank 0, it uses the reverse order of the
  // parameters, because the gradients of the last layer are ready first.
  void pretend_all_were_ready(int64_t slot) {
    if (slot + 1 != static_cast<int64_t>(buckets_.size())) return;
    if (!should_rebuild_buckets() || !rebuilt_params_.empty()) return;
    for (size_t i = params_.size(); i-- > 0;) push_rebuilt_params(i);
  }

 private:
  // A prepared pass is reduced once no hook is expected any more.
  void count_pass() {
    if (passes_.prepare(optimizer_steps(), !expect_autograd_hooks_) && names_passes_) {
      update_process_group(passes_.named(group_));
    }
  }

  std::mutex begins_;
  ProcessGroupPtr group_;
  bool names_passes_ = false;
  internal::NamedPasses passes_;
};

// Runs our hook in place of the Reducer's all-reduce.
class DistributedDataParallel::HookOfReducer final : public c10d::CommHookInterface {
 public:
  explicit HookOfReducer(DistributedDataParallel& ddp) : ddp_(ddp) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    if (ddp_.join_ != nullptr) {
      const auto slot = static_cast<int64_t>(bucket.getIndex());
      ddp_.join_->before_all_reduce(ddp_, slot, bucket.getBuffer().numel());
    }
    const std::string purpose = ddp_.reducer_->purpose();
    const CollectivePurpose named(purpose);
    return ddp_.hook_->reduce(ddp_.group_, bucket);
  }
  at::Tensor parseHookResult(const c10::IValue& result) override { return result.toTensor(); }

 private:
  DistributedDataParallel& ddp_;
};

// The node that all outputs pass through. A backward pass from any output reaches everything that
// the outputs were computed from, with undefined gradients for outputs that the loss does not use.
class DistributedDataParallel::Sink final : public torch::autograd::Node {
 public:
  explicit Sink(std::weak_ptr<Reducer> reducer) : reducer_(std::move(reducer)) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    const auto reducer = reducer_.lock();
    if (reducer && !reducer->first_pass_reduced) {
      reducer->first_pass_reduced = true;
      torch::autograd::Engine::get_default_engine().queue_callback([weak = reducer_] {
        if (const auto alive = weak.lock()) alive->delay_all_reduce();
      });
    }
    return std::move(gradients);
  }

 private:
  const std::weak_ptr<Reducer> reducer_;  // empty: no callback is queued
};

void check_ddp_options(const DistributedDataParallelKwargs& options) {
  TORCH_CHECK_VALUE(
      options.dim == 0,
      "DistributedDataParallelKwargs: batches are split along dim 0 only, got dim=", options.dim);
  TORCH_CHECK_VALUE(options.bucket_cap_mb > 0 && options.bucket_cap_mb <= kMaxBucketMebibytes,
                    "bucket_cap_mb must be positive and at most ", kMaxBucketMebibytes, ", got ",
                    options.bucket_cap_mb);
  make_communication_hook(options);  // checks comm_hook, comm_wrapper and comm_state_option
}

DistributedDataParallel::DistributedDataParallel(std::shared_ptr<torch::nn::Module> module,
                                                 ProcessGroupPtr group,
                                                 const DistributedDataParallelKwargs& options)
    : DistributedDataParallel(std::move(module), std::move(group), options,
                              make_communication_hook(options)) {}

DistributedDataParallel::DistributedDataParallel(std::shared_ptr<torch::nn::Module> module,
                                                 ProcessGroupPtr group,
                                                 const DistributedDataParallelKwargs& options,
                                                 std::unique_ptr<CommunicationHook> hook)
    : module_(std::move(module)),
      group_(std::move(group)),
      options_(options),
      ordinal_(next_ordinal(group_->getGroupName())),
      refresh_(module_->buffers(), options.broadcast_buffers),
      replicas_name_(absl::StrCat("the model in group \"", group_->getGroupName(), "\"")),
      hook_(std::move(hook)) {
  check_ddp_options(options_);
  replicate(group_, *module_);
  make_reducer();
}

void DistributedDataParallel::make_reducer() {
  replicas_.clear();
  trained_.set(*module_);
  internal::TrainedSet::Parameters parameters = internal::TrainedSet::parameters(*module_);
  if (parameters.tensors.empty()) return;  // Nothing to reduce; buffers still follow rank 0.
  for (size_t i = 0; i < parameters.tensors.size(); ++i) {
    replicas_.emplace_back(parameters.names.at(i), parameters.tensors[i]);
  }
  const auto cap = static_cast<size_t>(options_.bucket_cap_mb * kMebibyte);
  auto [buckets, limits] = c10d::compute_bucket_assignment_by_size(
      parameters.tensors, {kFirstBucketBytes, cap}, parameters.sparse);
  // Gradients become ready roughly from the last layer to the first.
  std::ranges::reverse(buckets);
  std::ranges::reverse(limits);
  // Buckets hold the gradients themselves where that saves a copy.
  const bool in_buckets = !options_.gradient_as_bucket_view && !options_.find_unused_parameters &&
                          !options_.static_graph && !hook_;
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters.tensors) gradients.push_back(parameter.grad());
  reducer_ = internal::make_reducer<Reducer>(
      parameters.tensors, std::move(buckets), limits, group_, parameters.sparse,
      static_cast<int64_t>(cap), options_.find_unused_parameters,
      in_buckets || options_.gradient_as_bucket_view, std::move(parameters.names),
      static_cast<int64_t>(kFirstBucketBytes));
  reducer_->use_group(group_, /*names_passes=*/true);
  if (in_buckets) {
    Reducer::start(reducer_);
    // The Reducer has replaced the gradients that were there by views of its buckets.
    for (size_t i = 0; i < gradients.size(); ++i) {
      parameters.tensors[i].mutable_grad() = gradients[i];
    }
  }
  logger_ = std::make_shared<c10d::Logger>(reducer_);
  reducer_->set_logger(logger_);
  if (options_.static_graph) reducer_->set_static_graph();
  if (!hook_) return;
  const auto found = std::ranges::find(parameters.sparse, true);
  TORCH_CHECK_VALUE(found == parameters.sparse.end(),
                    "comm_hook and comm_wrapper need dense gradients, but those of parameter \"",
                    replicas_[found - parameters.sparse.begin()].first, "\" are sparse");
  reducer_->register_comm_hook(std::make_unique<HookOfReducer>(*this));
}

void DistributedDataParallel::refresh_trained() {
  if (!trained_.has_changed(options_.find_unused_parameters)) return;
  TORCH_CHECK_VALUE(join_ == nullptr,
                    "join_uneven_inputs: parameters were frozen or unfrozen inside of the scope, "
                    "where ranks without data do not follow; do it outside");
  if (reducer_) check_finished();
  check_same_model(group_, *module_);
  logger_.reset();
  reducer_.reset();
  make_reducer();
}

DistributedDataParallel::~DistributedDataParallel() = default;

std::unique_ptr<Technique> make_ddp_technique(const TechniqueContext& context) {
  const ModelPlan& plan = context.plan;
  if (context.group == nullptr || plan.roles.shards != nullptr) return nullptr;
  const DistributedDataParallelKwargs& options = plan.handlers.ddp;
  std::unique_ptr<CommunicationHook> hook = make_communication_hook(options);
  if (plan.zero != nullptr) hook = zero_communication_hook(*plan.zero, std::move(hook));
  const auto* fp8 = find_technique<Fp8Technique>(context.made);
  if (fp8 != nullptr && plan.precision.fp8_backend() == FP8BackendType::kMsamp) {
    if (hook == nullptr) hook = std::make_unique<MeanHook>();
    hook = std::make_unique<Fp8GradientHook>(fp8->model()->weights(), std::move(hook));
  }
  auto replicas = std::make_unique<DistributedDataParallel>(context.model.module(), context.group,
                                                            options, std::move(hook));
  if (plan.compares_ranks) {
    const AxisSet axes = plan.roles.token_axes;
    const bool is_plain = plan.mesh.several(axes) == AxisSet{MeshAxis::kDpReplicate};
    replicas->compare_by_gathering({.axis = is_plain ? MeshAxis::kDpReplicate : MeshAxis::kDpCpSp,
                                    .group = context.group,
                                    .ranks = plan.mesh.group(plan.rank, axes)});
  }
  return replicas;
}

c10::Device DistributedDataParallel::device() const {
  if (!replicas_.empty()) return replicas_.front().second.device();
  const std::vector<at::Tensor> state = replica();
  return state.empty() ? c10::Device(c10::kCPU) : state.front().device();
}

std::vector<at::Tensor> DistributedDataParallel::replica() const {
  std::vector<at::Tensor> state = kept_parameters(*module_);
  state.insert(state.end(), refresh_.buffers().begin(), refresh_.buffers().end());
  return state;
}

// The Reducer checks the same, but knows the parameters' names only in its debug mode.
void DistributedDataParallel::check_finished() const {
  const std::vector<size_t> missing = reducer_->missing();
  TORCH_CHECK(missing.empty(), "the last backward pass on rank ", group_->getRank(),
              " did not reach these parameters, whose gradients the other ranks wait for: ",
              absl::StrJoin(names_of(missing), ", "), ". ",
              options_.static_graph
                  ? "With static_graph every pass uses the same parameters as the first one."
                  : "If not every pass uses them, set find_unused_parameters; if outputs of the "
                    "model are left out of the loss, that helps as well.");
}

void DistributedDataParallel::forward(ForwardPass& pass) {
  before_forward();
  // Inside a join scope only some ranks make the pass.
  pass.set_synchronises(require_sync() && !joined());
  pass.proceed();
  std::vector<at::Tensor> outputs = pass.outputs();
  if (refresh_.is_used() && at::GradMode::is_enabled()) refresh_.wait_for_backward(outputs);
  outputs = after_forward(std::move(outputs));
  if (needs_outputs()) pass.set_outputs(std::move(outputs));
}

void DistributedDataParallel::before_forward() {
  const bool grad = at::GradMode::is_enabled();
  // The first pass would be reduced at the end of the recomputation's own backward pass.
  TORCH_CHECK(!grad || !options_.static_graph || torch::autograd::get_current_graph_task_id() < 0,
              "static_graph: a backward pass computes the model again, as checkpoint() around it "
              "makes it; call checkpoint() inside of the model, or leave static_graph out");
  // Ranks whose data has ended do not shadow evaluation, so it must stay local.
  if (join_ != nullptr && !grad) return;
  if (grad) refresh_trained();
  const bool refresh_buffers = refresh_.is_due();
  JoinListener::Peers peers{.leader = kMain};
  if (join_ != nullptr) {
    peers = join_->before_forward(*this,
                                  {.synchronises = require_sync(),
                                   .rebuilds_buckets = reducer_ && reducer_->will_rebuild_buckets(),
                                   .broadcasts_buffers = refresh_buffers});
  }
  if (reducer_ && grad) check_finished();
  if (reducer_ && grad && require_sync()) reducer_->prepare_for_forward();
  if (reducer_ && grad) reducer_->rebuild_buckets();
  // After check_finished(): its error explains an unfinished reduction better than replicas that
  // differ as a result.
  if (reducer_ && grad && require_sync()) {
    // The replicas of ranks whose data has ended are outdated, so only the other ranks compare
    // theirs. The check counts ranks by name: the name must be the same on these ranks alone.
    const std::string name = peers.ended.empty() ? replicas_name_
                                                 : absl::StrCat(replicas_name_, ", without ranks ",
                                                                absl::StrJoin(peers.ended, ", "));
    const bool compared = Runtime::current().check_replicas(name, group_, peers.ended, replicas_);
    const bool is_inside = torch::autograd::get_current_graph_task_id() >= 0;
    if (gathering_ && !compared && join_ == nullptr && !is_inside) {
      accelerate::compare_by_gathering(*gathering_, "values", replicas_);
    }
  }
  if (!refresh_buffers) return;
  broadcast_tensors(group_, refresh_.buffers(), peers.leader);
  refresh_.copied();
}

bool DistributedDataParallel::needs_outputs() const {
  return reducer_ != nullptr && (options_.static_graph || options_.find_unused_parameters);
}

std::vector<at::Tensor> DistributedDataParallel::drain(std::vector<at::Tensor> outputs) {
  std::vector<at::Tensor*> differentiable;
  torch::autograd::edge_list edges;
  for (at::Tensor& output : outputs) {
    if (!output.defined() || !output.requires_grad()) continue;
    differentiable.push_back(&output);
    edges.push_back(torch::autograd::impl::gradient_edge(output));
  }
  if (edges.empty()) return outputs;
  const auto sink = internal::make_node<Sink>(
      options_.static_graph ? std::weak_ptr<Reducer>(reducer_) : std::weak_ptr<Reducer>());
  sink->set_next_edges(std::move(edges));
  reducer_->last_sink = internal::NodePointer(sink);
  for (at::Tensor* output : differentiable) {
    *output = output->detach();
    // Code may change the shape of an output in place, as of any tensor.
    output->unsafeGetTensorImpl()->set_allow_tensor_metadata_change(true);
    torch::autograd::create_gradient_edge(*output, sink);
  }
  return outputs;
}

std::vector<at::Tensor> DistributedDataParallel::after_forward(std::vector<at::Tensor> outputs) {
  const bool grad = at::GradMode::is_enabled();
  if (join_ != nullptr && !grad) return outputs;
  const bool synchronises = grad && require_sync();
  if (synchronises) refresh_.set_may_differ(true);
  if (reducer_ && synchronises) reducer_->prepare(outputs);
  const bool drains = needs_outputs() && (synchronises || !options_.static_graph);
  if (grad && drains) outputs = drain(std::move(outputs));
  if (reducer_ && synchronises) {
    // A forward pass prepares for one backward pass. There may be several, as of two losses, or of
    // several forward passes one after the other.
    call_before_backward(outputs, [weak = std::weak_ptr(reducer_), sink = reducer_->last_sink] {
      if (const auto alive = weak.lock()) alive->prepare_begun(sink);
    });
  }
  return outputs;
}

void DistributedDataParallel::trigger_sync_in_backward() {
  if (reducer_) prepare_late(outputs_of(reducer_->last_sink.lock()));
}

void DistributedDataParallel::begin_adding(at::TensorList reduced) {
  if (!reducer_ || reduced.empty()) return;
  torch::autograd::edge_list edges;
  for (const at::Tensor& parameter : reduced) {
    edges.push_back(torch::autograd::impl::gradient_edge(parameter));
  }
  const auto sink = internal::make_node<Sink>(std::weak_ptr<Reducer>());
  sink->set_next_edges(std::move(edges));
  prepare_late(outputs_of(internal::NodePointer(sink)));
}

void DistributedDataParallel::prepare_late(const std::vector<at::Tensor>& outputs) {
  TORCH_CHECK(!options_.static_graph || reducer_->first_pass_reduced,
              "trigger_sync_in_backward: with static_graph the first pass that synchronises "
              "must do so from its forward pass on");
  reducer_->prepare(outputs);
  refresh_.set_may_differ(true);
}

void DistributedDataParallel::set_join(JoinListener* listener) {
  TORCH_CHECK_VALUE(listener == nullptr || !options_.static_graph,
                    "join_uneven_inputs: a rank without data cannot follow the first pass of a "
                    "model with static_graph; leave that option off");
  join_ = listener;
  // Ranks shadowed different numbers of passes, so all of them refresh their buffers next.
  if (listener == nullptr) {
    refresh_.set_may_differ(true);
    refresh_.stop_waiting();
  }
  if (!reducer_) return;
  if (listener == nullptr) return reducer_->use_group(group_, /*names_passes=*/true);
  // The order of all-reduces is known only during the backward pass. Ranks without data shadow them
  // and do not count passes.
  reducer_->use_group(
      c10::make_intrusive<internal::ReducerGroup>(
          group_,
          [this](std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) {
            join_->before_all_reduce(*this, reducer_->slot_of(tensors[0]), tensors[0].numel());
            return group_->allreduce(tensors, options);
          }),
      /*names_passes=*/false);
}

void DistributedDataParallel::shadow_forward(const JoinListener::Forward& forward, int leader) {
  if (reducer_) {
    TORCH_CHECK(reducer_->will_rebuild_buckets() == forward.rebuilds_buckets,
                "join_uneven_inputs: rank ", leader,
                forward.rebuilds_buckets ? " rebuilds" : " does not rebuild",
                " its gradient buckets now, unlike rank ", group_->getRank(),
                ", whose data has ended: their earlier backward passes were not the same");
    reducer_->rebuild_buckets();
  }
  if (forward.broadcasts_buffers) broadcast_tensors(group_, refresh_.buffers(), leader);
}

void DistributedDataParallel::shadow_all_reduce(int64_t slot, int64_t numel) {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> zeros{reducer_->zeros_for(slot)};
  TORCH_CHECK(zeros[0].numel() == numel, "join_uneven_inputs: bucket ", slot, " has ",
              zeros[0].numel(), " elements on rank ", group_->getRank(),
              ", whose data has ended, and ", numel, " where training goes on");
  if (hook_ && reducer_->is_bucket(slot)) {
    c10d::GradBucket bucket = reducer_->bucket_of(slot, zeros[0]);
    hook_->reduce(group_, bucket)->waitAndThrow();
  } else {
    group_->allreduce(zeros)->wait();
  }
  reducer_->pretend_all_were_ready(slot);
}

void DistributedDataParallel::broadcast_replica(int source) {
  broadcast_tensors(group_, replica(), source);
}

std::vector<std::string> DistributedDataParallel::names_of(
    const std::vector<size_t>& parameters) const {
  std::vector<std::string> names;
  for (const size_t parameter : parameters) names.push_back(replicas_[parameter].first);
  return names;
}

std::vector<size_t> DistributedDataParallel::parameters_of(
    const std::vector<std::string>& names) const {
  std::unordered_map<std::string, size_t> known;
  for (size_t i = 0; i < replicas_.size(); ++i) known.emplace(replicas_[i].first, i);
  std::vector<size_t> parameters;
  for (const std::string& name : names) {
    const auto found = known.find(name);
    TORCH_CHECK_VALUE(found != known.end(), kStateOf, " has a parameter \"", name,
                      "\", which is not trained here, or has it twice");
    parameters.push_back(found->second);
    known.erase(found);
  }
  return parameters;
}

StateDict DistributedDataParallel::state_dict() const {
  StateDict state;
  state.values[kRefreshesBuffers] = refresh_.may_differ();
  if (group_->getRank() != kMain && !(refresh_.may_differ() && options_.broadcast_buffers)) {
    for (const auto& item : module_->named_buffers()) {
      if (item.value().defined()) {
        state.tensors.emplace_back(kBuffer + item.key(), item.value().detach());
      }
    }
  }
  if (!reducer_) return state;
  state.values[kUsed] = names_of(reducer_->used());
  state.values[kOptions] = bucket_options();
  nlohmann::ordered_json& buckets = state.values[kBuckets];
  if (const auto indices = reducer_->final_buckets()) {
    buckets = nlohmann::ordered_json::array();
    for (const std::vector<size_t>& bucket : *indices) buckets.push_back(names_of(bucket));
  }
  state.values[kReady] = names_of(reducer_->ready_order());
  if (!hook_) return state;
  StateDict hook = hook_->state_dict();
  state.values[kHook] = std::move(hook.values);
  for (auto& [name, tensor] : hook.tensors) {
    state.tensors.emplace_back(kHookTensor + name, std::move(tensor));
  }
  return state;
}

std::string DistributedDataParallel::bucket_options() const {
  return nlohmann::ordered_json(
             {{"bucket_cap_mb", options_.bucket_cap_mb},
              {"find_unused_parameters", options_.find_unused_parameters},
              {"static_graph", options_.static_graph},
              {"comm_hook", to_string(options_.comm_hook)},
              {"matrix_approximation_rank", options_.comm_state_option.matrix_approximation_rank}})
      .dump();
}

void DistributedDataParallel::load_state_dict(const StateDict& state, bool same_ranks) {
  using internal::field_of;
  if (!same_ranks || state.values.is_null()) return;
  at::NoGradGuard no_grad;
  const auto refreshes = field_of<bool>(state.values, kRefreshesBuffers, kStateOf);
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  StateDict of_hook;
  const auto named_buffers = module_->named_buffers();
  for (const auto& [name, tensor] : state.tensors) {
    if (name.starts_with(kHookTensor)) {
      of_hook.tensors.emplace_back(name.substr(sizeof(kHookTensor) - 1), tensor);
      continue;
    }
    const at::Tensor* buffer =
        name.starts_with(kBuffer) ? named_buffers.find(name.substr(sizeof(kBuffer) - 1)) : nullptr;
    TORCH_CHECK_VALUE(buffer != nullptr && tensor.defined() && tensor.sizes() == buffer->sizes(),
                      kStateOf, " has \"", name,
                      "\", which is not a buffer of this model with that shape");
    copies.emplace_back(*buffer, tensor);
  }
  if (reducer_) {
    const auto parameters_in = [&](const char* key) {
      return parameters_of(field_of<std::vector<std::string>>(state.values, key, kStateOf));
    };
    const auto used = parameters_in(kUsed), ready = parameters_in(kReady);
    std::optional<Reducer::Buckets> buckets;
    const nlohmann::ordered_json saved = internal::json_member(state.values, kBuckets, kStateOf);
    if (!saved.is_null()) {
      using Names = std::vector<std::vector<std::string>>;
      std::vector<std::string> all;
      buckets.emplace();
      for (const auto& names : field_of<Names>(state.values, kBuckets, kStateOf)) {
        TORCH_CHECK_VALUE(reducer_->can_be_bucket(buckets->emplace_back(parameters_of(names))),
                          kStateOf, " has a bucket of parameters that cannot share one");
        all.insert(all.end(), names.begin(), names.end());
      }
      TORCH_CHECK_VALUE(parameters_of(all).size() == replicas_.size(), kStateOf, " has ",
                        all.size(), " parameters, here are ", replicas_.size());
    }
    const bool same = field_of<std::string>(state.values, kOptions, kStateOf) == bucket_options();
    if (same && hook_) {
      of_hook.values = internal::json_member(state.values, kHook, kStateOf);
      hook_->load_state_dict(of_hook);
    }
    if (same && buckets) reducer_->set_final_buckets(*std::move(buckets));
    if (same && reducer_->should_rebuild_buckets()) reducer_->set_ready_order(ready);
    reducer_->set_used(used);
  }
  for (auto& [buffer, saved] : copies) buffer.copy_(saved);
  refresh_.set_may_differ(refreshes);
}

}  // namespace accelerate

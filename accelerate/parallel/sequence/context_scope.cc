#include "accelerate/parallel/sequence/context_scope.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <unordered_set>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/function.h>

#include "absl/strings/str_cat.h"
#include "accelerate/comm/differentiable.h"
#include "accelerate/mesh/device_mesh.h"
#include "accelerate/operators/operator_mode.h"
#include "accelerate/operators/random_streams.h"
#include "accelerate/plan/plan.h"
#include "accelerate/runtime/shared_objects.h"
#include "accelerate/tensors/tensor_memory.h"

namespace accelerate {
namespace {

constexpr int64_t kIgnored = -100;  // the label of a token that does not count

bool is_integral(const at::Tensor& x) {
  return at::isIntegralType(x.scalar_type(), /*includeBool=*/false);
}

bool is_true(const at::Tensor& truth) { return truth.all().item<bool>(); }

at::Tensor tokens_last(const at::Tensor& x, int64_t dim) { return x.movedim(dim, -1); }

// Whether sequences count from 0, and begin again at 0 where several are packed in one.
bool counts_from_zero(const at::Tensor& x) {
  const int64_t rest = x.size(-1) - 1;
  const at::Tensor later = x.narrow(-1, 1, rest);
  return is_true(x.narrow(-1, 0, 1) == 0) &&
         is_true((later == x.narrow(-1, 0, rest) + 1) | (later == 0));
}

// Whether `labels` are the tokens of the same places, and not those of the next.
bool are_of_same_places(const at::Tensor& labels, const at::Tensor& tokens) {
  const at::Tensor ignored = labels == kIgnored;
  if (is_true(labels <= 1) || is_true(ignored) || !is_true((labels == tokens) | ignored)) {
    return false;
  }
  const int64_t rest = labels.size(-1) - 1;
  return !is_true((labels.narrow(-1, 0, rest) == tokens.narrow(-1, 1, rest)) |
                  ignored.narrow(-1, 0, rest));
}

std::string on_rank(const Runtime& runtime) {
  return absl::StrCat("rank ", runtime.topology().rank, ": maybe_context_parallel");
}

bool is_among(const std::vector<at::Tensor>& tensors, const at::Tensor& one) {
  return std::ranges::any_of(tensors, [&one](const at::Tensor& each) { return each.is_same(one); });
}

// As the operator gets it where automatic mixed precision is on, which would act after the handler.
at::Tensor as_computed(const at::Tensor& x) {
  const c10::DeviceType device = x.device().type();
  if (!at::autocast::is_autocast_enabled(device)) return x;
  return at::autocast::cached_cast(at::autocast::get_autocast_dtype(device), x, device);
}

// [batch, length, size] is one head.
at::Tensor with_heads(const at::Tensor& x) { return x.dim() == 3 ? x.unsqueeze(1) : x; }

}  // namespace

at::Tensor ContextHandler::attention(c10::ArrayRef<c10::IValue> arguments) {
  const auto check = [this](bool is_fine, const auto&... why) {
    TORCH_CHECK_VALUE(is_fine, on_this_rank(),
                      "scaled_dot_product_attention inside maybe_context_parallel ", why...);
  };
  const at::Tensor& given = arguments[0].toTensor();
  check(arguments[3].isNone(),
        "has a mask, which ranks that have some tokens of a sequence do not divide; let "
        "is_causal=true say that tokens see those before them, and leave the mask out");
  const double dropout = arguments[4].toDouble();
  check(dropout == 0, "has a dropout of ", dropout, ", which must be 0");
  const at::Tensor queries = as_computed(with_heads(given));
  const at::Tensor keys = as_computed(with_heads(arguments[1].toTensor()));
  const at::Tensor values = as_computed(with_heads(arguments[2].toTensor()));
  check(queries.dim() == 4 && keys.dim() == 4 && values.sizes() == keys.sizes() &&
            queries.size(0) == keys.size(0) && queries.size(3) == keys.size(3),
        "needs [batch, heads, tokens, size of a head], and keys and values of one shape, but has ",
        queries.sizes(), ", ", keys.sizes(), " and ", values.sizes());
  check(
      queries.scalar_type() == keys.scalar_type() && queries.scalar_type() == values.scalar_type(),
      "has queries, keys and values of ", queries.scalar_type(), ", ", keys.scalar_type(), " and ",
      values.scalar_type(), ", which must be one dtype");
  const int64_t heads = queries.size(1), shared = keys.size(1);
  const bool shares = arguments[7].toBool();
  check(heads == shared || (shares && shared > 0 && heads % shared == 0), "has ", heads,
        " heads of queries and ", shared, " of keys; with enable_gqa as many queries share each");
  const int64_t length = queries.size(2);
  check(length == keys.size(2) && (tokens() == 0 || length == tokens()), "has ", length,
        " queries and ", keys.size(2), " keys, but each rank along cp has ",
        tokens() == 0 ? "as many of both" : absl::StrCat(tokens(), " tokens of a sequence"),
        "; generate tokens, and attend to other sequences, outside of the scope");
  const at::Tensor output = ring_attention(
      queries, keys, values,
      {.is_causal = arguments[5].toBool(), .scale = arguments[6].toOptional<double>()}, ring_);
  return given.dim() == 3 ? output.squeeze(1) : output;
}

ContextParallelScope::ContextParallelScope(Runtime& runtime, const ContextRing& ring,
                                           const ContextBuffers& buffers)
    : live_(std::make_unique<Live>(runtime, ring, buffers)) {}

ContextParallelScope::ContextParallelScope(ContextParallelScope&&) noexcept = default;
ContextParallelScope::~ContextParallelScope() = default;

at::Tensor ContextParallelScope::positions() const { return live_->positions(); }

int64_t ContextParallelScope::num_attention_calls() const {
  return live_->handler() != nullptr ? live_->handler()->num_calls() : 0;
}

ContextParallelScope::Live::Live(Runtime& runtime, const ContextRing& ring,
                                 const ContextBuffers& buffers)
    : runtime_(runtime),
      live_(runtime.shared<LiveContext>([] { return std::make_unique<LiveContext>(); })),
      place_{.rank = rank_of(ring.group), .ranks = size_of(ring.group), .order = ring.order} {
  check(buffers);
  for (size_t i = 0; i < buffers.buffers.size(); ++i) {
    const at::Tensor& buffer = buffers.buffers[i];
    buffers_.push_back({.part = buffer,
                        .whole = buffer.detach(),
                        .dim = buffers.seq_dims[i],
                        .is_restored = !is_among(buffers.no_restore, buffer)});
    length_ = buffer.size(buffers.seq_dims[i]);
  }
  if (place_.ranks > 1) {
    check_labels_are_shifted();
    const at::NoGradGuard no_grad;
    for (Buffer& each : buffers_) {
      internal::rebind(each.part, part_of_sequence(each.whole, each.dim, place_));
      // Integers are asked whether they are positions.
      if (!each.is_restored && !is_integral(each.whole)) each.whole = at::Tensor();
    }
    handler_ =
        std::make_shared<ContextHandler>(ring, runtime.topology().rank, length_ / place_.ranks);
  } else if (!std::exchange(live_.has_warned, true) && runtime.topology().rank == 0) {
    TORCH_WARN(
        "Context parallel training is not enabled. This context manager will have no effect. To "
        "enable it, pass `parallelism_config` with `cp_size > 1` to the `Accelerator` "
        "constructor.");
  }
  live_.scope = this;
}

ContextParallelScope::Live::~Live() {
  live_.scope = nullptr;
  if (handler_ == nullptr) return;
  live_.ended_passes.clear();
  bool restores = false;
  for (const Buffer& each : buffers_) {
    if (!each.is_restored) continue;
    internal::rebind(each.part, each.whole);
    restores = true;
  }
  if (restores) live_.ended_passes = std::move(passes_);
}

void ContextParallelScope::Live::add_pass(const std::vector<at::Tensor>& outputs) {
  for (const at::Tensor& each : outputs) {
    if (each.defined() && each.grad_fn()) passes_.emplace_back(each.grad_fn());
  }
}

bool LiveContext::has_ended_before_backward(const at::Tensor& loss) const {
  using torch::autograd::Node;
  std::unordered_set<const Node*> ended, seen;
  for (const internal::WeakNodePointer& each : ended_passes) {
    if (const internal::NodePointer node = each.lock()) ended.insert(node.get());
  }
  if (ended.empty()) return false;
  std::vector<const Node*> open = {loss.grad_fn().get()};
  while (!open.empty()) {
    const Node* const node = open.back();
    open.pop_back();
    if (node == nullptr || !seen.insert(node).second) continue;
    if (ended.contains(node)) return true;
    for (const torch::autograd::Edge& edge : node->next_edges()) {
      open.push_back(edge.function.get());
    }
  }
  return false;
}

at::Tensor ContextParallelScope::Live::positions() {
  TORCH_CHECK_VALUE(length_ > 0, on_rank(runtime_),
                    ": without buffers nothing says how long sequences are; give positions");
  has_asked_for_positions_ = true;
  const at::Tensor all =
      at::arange(length_, at::TensorOptions(buffers_.front().part.device()).dtype(at::kLong));
  return part_of_sequence(all, 0, place_);
}

at::Tensor ContextParallelScope::Live::gathered(const at::Tensor& part, int64_t dim) const {
  if (handler_ == nullptr) return part;
  return whole_sequence(all_gather_along(part, dim, handler_->ring().group), dim, place_);
}

bool ContextParallelScope::Live::gives_positions(const std::vector<at::Tensor>& inputs) const {
  // Without buffers the program itself has divided what it gives.
  if (has_asked_for_positions_ || buffers_.empty()) return true;
  size_t num_integral = 0;
  for (const Buffer& each : buffers_) {
    const bool is_given = std::ranges::any_of(inputs, [&each](const at::Tensor& input) {
      return input.defined() && input.has_storage() && input.is_alias_of(each.part);
    });
    if (!is_given || !is_integral(each.part)) continue;
    ++num_integral;
    if (has_values() && counts_from_zero(tokens_last(each.whole, each.dim))) return true;
  }
  // Without values one of two may be positions.
  return !has_values() && num_integral > 1;
}

void ContextParallelScope::Live::check(const ContextBuffers& given) const {
  const auto check = [this](bool is_fine, const auto&... why) {
    TORCH_CHECK_VALUE(is_fine, on_rank(runtime_), ": ", why...);
  };
  const std::vector<at::Tensor>& buffers = given.buffers;
  check(live_.scope == nullptr, "there is such a scope already, and they do not nest");
  check(buffers.size() == given.seq_dims.size(),
        "buffers and buffer_seq_dims need as many entries, "
        "but there are ",
        buffers.size(), " and ", given.seq_dims.size());
  int64_t length = 0;
  for (size_t i = 0; i < buffers.size(); ++i) {
    const at::Tensor& buffer = buffers[i];
    const int64_t dim = given.seq_dims[i];
    check(buffer.defined() && -buffer.dim() <= dim && dim < buffer.dim(), "buffer ", i,
          " has no dim ", dim);
    check(!buffer.requires_grad(), "buffer ", i,
          " requires a gradient; give what a model gets, and "
          "not what it computes");
    check(std::ranges::count_if(
              buffers, [&buffer](const at::Tensor& each) { return each.is_same(buffer); }) == 1,
          "buffer ", i, " is given twice");
    if (i == 0) length = buffer.size(dim);
    check(buffer.size(dim) == length, "buffer ", i, " has ", buffer.size(dim), " tokens along dim ",
          dim, ", but buffer 0 has ", length);
  }
  for (const at::Tensor& each : given.no_restore) {
    check(is_among(buffers, each), "no_restore_buffers has a tensor that is not among the buffers");
  }
  const int64_t parts = place_.parts();
  const int64_t rest = length % parts;
  check(rest == 0, "sequences have ", length, " tokens, but ", place_.ranks,
        " ranks along cp take ", parts, " parts of one length; pad them to ", length - rest + parts,
        " tokens, or cut them to ", length - rest);
  check(buffers.empty() || length > 0, "the buffers have no tokens");
}

void ContextParallelScope::Live::check_labels_are_shifted() const {
  if (!has_values() || length_ < 2) return;
  for (size_t i = 0; i < buffers_.size(); ++i) {
    const Buffer& labels = buffers_[i];
    // Reading values of a device makes the host wait for it, so that is done once.
    if (!is_integral(labels.whole) || (live_.has_checked_labels && !labels.whole.is_cpu()))
      continue;
    const at::Tensor values = tokens_last(labels.whole, labels.dim);
    for (size_t j = 0; j < buffers_.size(); ++j) {
      const at::Tensor tokens = tokens_last(buffers_[j].whole, buffers_[j].dim);
      if (i == j || !is_integral(tokens) || tokens.sizes() != values.sizes() ||
          tokens.device() != values.device()) {
        continue;
      }
      TORCH_CHECK_VALUE(
          counts_from_zero(values) || !are_of_same_places(values, tokens), on_rank(runtime_),
          ": buffer ", i, " has the values of buffer ", j,
          ", so these are labels that are not shifted, and the label of a part's last token is on "
          "another rank; let label i be token i + 1 before the scope, and the last one ",
          kIgnored);
    }
  }
  live_.has_checked_labels = !buffers_.empty();
}

bool ContextParallelScope::Live::has_values() const { return !has_shapes_alone(runtime_); }

namespace {

class ContextParallelTechnique final : public Technique {
 public:
  // `has_stages`: passes are those of stages of a pipeline, which may have no attention.
  ContextParallelTechnique(Runtime& runtime, std::shared_ptr<RandomStreams> streams,
                           bool has_stages)
      : runtime_(runtime), streams_(std::move(streams)), has_stages_(has_stages) {}

  std::string_view name() const override { return kContextParallelTechnique; }

  void forward(ForwardPass& pass) override {
    const auto* const live = runtime_.find_shared<LiveContext>();
    ContextParallelScope::Live* const scope = live != nullptr ? live->scope : nullptr;
    if (live == nullptr) count_undivided_pass();
    if (scope == nullptr || scope->handler() == nullptr) return pass.proceed();
    std::vector<at::Tensor> inputs;
    if (!knows_positions_) inputs = pass.inputs();
    const int64_t calls = scope->handler()->num_calls();
    {
      const OperatorModeScope attention(scope->handler()), draws(streams_);
      pass.proceed();
    }
    if (at::GradMode::is_enabled()) scope->add_pass(pass.outputs());
    const int rank = runtime_.topology().rank;
    const int64_t divided = scope->handler()->num_calls() - calls;
    num_attention_calls_ += divided;
    TORCH_CHECK_VALUE(divided > 0 || has_stages_, "rank ", rank,
                      ": a model called no scaled_dot_product_attention inside "
                      "maybe_context_parallel, so that its tokens see those of this rank at most; "
                      "let it call that operator, or call the model outside of the scope");
    if (knows_positions_) return;
    TORCH_CHECK_VALUE(
        scope->gives_positions(inputs), "rank ", rank,
        ": a model inside maybe_context_parallel was given no positions, so that it counts this "
        "rank's tokens from 0; give positions to the scope as one of the buffers and to the model "
        "as an input, or ask the scope for positions() if the model needs none");
    knows_positions_ = true;
  }

  std::string passes_text() const override {
    return divided_attention_text(MeshAxis::kCp, num_attention_calls_);
  }

 private:
  void count_undivided_pass() {
    if (!at::GradMode::is_enabled() || ++num_undivided_passes_ != 2) return;
    if (runtime_.topology().rank != 0) return;
    TORCH_WARN(
        "Ranks along cp compute whole sequences, alike on each of them: a model was trained, and "
        "the program has not entered maybe_context_parallel. To divide sequences, call the model "
        "and backward inside of Accelerator::maybe_context_parallel.");
  }

  Runtime& runtime_;
  int64_t num_attention_calls_ = 0;
  int64_t num_undivided_passes_ = 0;  // with gradients, before the program's first scope
  const std::shared_ptr<RandomStreams> streams_;
  const bool has_stages_;
  bool knows_positions_ = false;
};

}  // namespace

std::unique_ptr<Technique> make_context_parallel_technique(const TechniqueContext& context) {
  const ModelPlan& plan = context.plan;
  if (plan.device_mesh == nullptr || plan.mesh.size(MeshAxis::kCp) == 1) return nullptr;
  return std::make_unique<ContextParallelTechnique>(
      Runtime::current(), RandomStreams::along(plan.device_mesh->group(MeshAxis::kCp)),
      /*has_stages=*/plan.mesh.size(MeshAxis::kPp) > 1);
}

}  // namespace accelerate

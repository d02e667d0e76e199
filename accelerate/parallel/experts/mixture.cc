#include "accelerate/parallel/experts/mixture.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <string>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include "accelerate/comm/differentiable.h"
#include "accelerate/comm/watch/collective_call.h"
#include "accelerate/parallel/tensor/sequence_shards.h"

namespace accelerate {
namespace {

const MixtureOptions& checked(const MixtureOptions& options) {
  check_router(options.router);
  TORCH_CHECK_VALUE(
      options.hidden >= 1 && options.intermediate >= 1 && options.shared_intermediate >= 0,
      "a mixture of experts with hidden ", options.hidden, ", intermediate ", options.intermediate,
      " and shared_intermediate ", options.shared_intermediate);
  TORCH_CHECK_VALUE(!options.gates_shared || options.shared_intermediate > 0,
                    "gates_shared: the mixture has no shared expert; set shared_intermediate");
  return options;
}

// As a Linear layer's of so many inputs.
at::Tensor drawn(at::IntArrayRef sizes, int64_t inputs) {
  const at::NoGradGuard no_grad;
  const double bound = 1 / std::sqrt(static_cast<double>(inputs));
  return at::empty(sizes).uniform_(-bound, bound);
}

torch::nn::Linear matrix(int64_t in, int64_t out) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false));
}

// The sums of neighbours, `each` at a time.
std::vector<int64_t> sums_of(const std::vector<int64_t>& numbers, int64_t each) {
  std::vector<int64_t> sums;
  for (auto it = numbers.begin(); it != numbers.end(); it += each) {
    sums.push_back(std::accumulate(it, it + each, int64_t{0}));
  }
  return sums;
}

// A table, row after row, column after column.
template <typename T>
std::vector<T> transposed(const std::vector<T>& table, int64_t columns) {
  std::vector<T> result;
  const auto width = static_cast<size_t>(columns);
  for (size_t column = 0; column < width; ++column) {
    for (size_t i = column; i < table.size(); i += width) result.push_back(table[i]);
  }
  return result;
}

// Rows in blocks, row after row of a table of blocks, as column after column.
at::Tensor transposed_blocks(const at::Tensor& rows, const std::vector<int64_t>& sizes,
                             int64_t columns) {
  return at::cat(transposed(rows.split_with_sizes(sizes, 0), columns), 0);
}

const std::string kDispatch = "experts, dispatch";
const std::string kCombine = "experts, combine";

RowExchange sent(const std::string& purpose, const at::Tensor& rows,
                 const std::vector<int64_t>& give, const std::vector<int64_t>& take,
                 const ProcessGroupPtr& group) {
  const CollectivePurpose scope(purpose);
  return RowExchange(rows, give, take, group);
}

std::vector<int64_t> on_host(const at::Tensor& numbers) {
  const at::Tensor host = numbers.cpu().contiguous();
  const int64_t* const begin = host.const_data_ptr<int64_t>();
  return {begin, begin + host.numel()};
}

// The numbers of the choices that are taken, of those in the order of experts.
at::Tensor without_dropped(const at::Tensor& order, const std::vector<int64_t>& taken,
                           const std::vector<int64_t>& dropped) {
  if (std::ranges::all_of(dropped, [](int64_t count) { return count == 0; })) return order;
  std::vector<at::Tensor> pieces;
  int64_t first = 0;
  for (size_t i = 0; i < taken.size(); ++i) {
    pieces.push_back(order.narrow(0, first, taken[i]));
    first += taken[i] + dropped[i];
  }
  return at::cat(pieces);
}

}  // namespace

ExpertRouterImpl::ExpertRouterImpl(int64_t hidden, int64_t experts)
    : weight_(register_parameter("weight", drawn({experts, hidden}, hidden))) {}

ExpertsImpl::ExpertsImpl(int64_t hidden, int64_t intermediate, int64_t experts)
    : gate_(register_parameter("gate", drawn({experts, intermediate, hidden}, hidden))),
      up_(register_parameter("up", drawn({experts, intermediate, hidden}, hidden))),
      down_(register_parameter("down", drawn({experts, hidden, intermediate}, intermediate))) {}

// One node of autograd for each tensor, however many experts there are, so that an expert without
// rows has a gradient of zeros.
at::Tensor ExpertsImpl::forward(const at::Tensor& rows, const std::vector<int64_t>& counts) {
  const at::ScalarType dtype = rows.scalar_type();
  const std::vector<at::Tensor> gates = gate_.to(dtype).unbind(0);
  const std::vector<at::Tensor> ups = up_.to(dtype).unbind(0);
  const std::vector<at::Tensor> downs = down_.to(dtype).unbind(0);
  // Ranks with parts of the inside have as many rows.
  const ProcessGroupPtr inside = rows.size(0) > 0 ? inside_ : nullptr;
  const std::vector<at::Tensor> parts =
      identity_forward_all_reduce_backward(rows, inside).split_with_sizes(counts, 0);
  std::vector<at::Tensor> results;
  for (size_t i = 0; i < parts.size(); ++i) {
    const at::Tensor features =
        at::silu(at::linear(parts[i], gates[i])) * at::linear(parts[i], ups[i]);
    results.push_back(at::linear(features, downs[i]));
  }
  return all_reduce_forward_identity_backward(at::cat(results, 0), inside);
}

SharedExpertImpl::SharedExpertImpl(int64_t hidden, int64_t intermediate)
    : gate_(register_module("gate", matrix(hidden, intermediate))),
      up_(register_module("up", matrix(hidden, intermediate))),
      down_(register_module("down", matrix(intermediate, hidden))) {}

at::Tensor SharedExpertImpl::forward(const at::Tensor& x) {
  return down_(at::silu(gate_(x)) * up_(x));
}

MixtureOfExpertsImpl::MixtureOfExpertsImpl(const MixtureOptions& options)
    : options_(checked(options)),
      router_(register_module("router", ExpertRouter(options.hidden, options.router.experts))),
      experts_(register_module(
          "experts", Experts(options.hidden, options.intermediate, options.router.experts))) {
  if (options.shared_intermediate == 0) return;
  shared_ = register_module("shared", SharedExpert(options.hidden, options.shared_intermediate));
  if (options.gates_shared) {
    shared_gate_ = register_module("shared_gate", matrix(options.hidden, 1));
  }
}

at::Tensor MixtureOfExpertsImpl::shared_part(const at::Tensor& x) {
  if (!shared_) return {};
  const at::Tensor result = shared_(x);
  return shared_gate_ ? result * shared_gate_(x).sigmoid() : result;
}

std::vector<int64_t> MixtureOfExpertsImpl::count_rows(const Routed& routed, int64_t capacity) {
  const int64_t experts = options_.router.experts;
  const int ranks = size_of(group_);
  std::vector<int64_t> counts = routed.known_counts;
  std::vector<int64_t> of_ranks;
  const bool asks = counts.empty() && ranks > 1;
  if (asks) {
    at::Tensor own = routed.counts.clamp_max(capacity), others = at::empty_like(own);
    std::vector<int64_t> equal;
    group_->alltoall_base(others, own, equal, equal)->wait();
    of_ranks = on_host(at::cat({routed.counts, others}));
    counts.assign(of_ranks.begin(), of_ranks.begin() + experts);
    of_ranks.erase(of_ranks.begin(), of_ranks.begin() + experts);
  } else if (counts.empty()) {
    counts = on_host(routed.counts);
  }
  taken_.clear();
  dropped_.clear();
  for (const int64_t count : counts) {
    taken_.push_back(std::min(count, capacity));
    dropped_.push_back(count - taken_.back());
  }
  if (asks) return of_ranks;
  // All ranks have as many for an expert.
  const int64_t each = experts / ranks;
  const auto own = taken_.begin() + rank_of(group_) * each;
  for (int rank = 0; rank < ranks; ++rank) of_ranks.insert(of_ranks.end(), own, own + each);
  return of_ranks;
}

at::Tensor MixtureOfExpertsImpl::forward(const at::Tensor& input) {
  const int64_t each = experts_->count(), top_k = options_.router.top_k;
  const int ranks = size_of(group_);
  TORCH_CHECK(each * ranks == options_.router.experts, "a mixture of ", options_.router.experts,
              " experts has ", each, " of them on each of ", ranks,
              " ranks; only a prepared model has experts on other ranks");
  const at::Tensor whole = whole_sequence(input);
  const bool is_part = !whole.is_same(input);
  const at::Tensor x = whole.reshape({-1, options_.hidden});
  Routed routed = route(x, router_->weight(), options_.router);
  router_loss_ = std::move(routed.loss);
  const std::vector<int64_t> of_ranks = count_rows(routed, capacity_of(x.size(0), options_.router));
  const at::Tensor order = without_dropped(routed.order, taken_, dropped_);
  const at::Tensor token = order.floor_divide(top_k);
  const at::Tensor chosen = x.index_select(0, token);
  // Layers of the shared expert take parts of sequences as other layers do.
  const at::Tensor& of_shared = is_part ? input : x;
  at::Tensor shared, results;
  if (group_ == nullptr) {
    results = experts_(chosen, taken_);
    shared = shared_part(of_shared);
  } else {
    const std::vector<int64_t> give = sums_of(taken_, each), take = sums_of(of_ranks, each);
    RowExchange dispatch = sent(kDispatch, chosen, give, take, group_);
    shared = shared_part(of_shared);
    const std::vector<int64_t> by_expert = transposed(of_ranks, each);
    const at::Tensor rows = transposed_blocks(dispatch.finish(), of_ranks, each);
    results = transposed_blocks(experts_(rows, sums_of(by_expert, ranks)), by_expert, ranks);
    results = sent(kCombine, results, take, give, group_).finish();
  }
  const at::Tensor weights = routed.weights.index_select(0, order).to(results.scalar_type());
  at::Tensor sum = at::zeros({x.size(0), options_.hidden}, results.options())
                       .index_add(0, token, results * weights.unsqueeze(1));
  if (is_part) {
    const at::Tensor part = shard_sequence(sum.view(whole.sizes()));
    return shared.defined() ? part + shared : part;
  }
  if (shared.defined()) sum = sum + shared;
  return sum.view(input.sizes());
}

at::Tensor MixtureOfExpertsImpl::take_router_loss() {
  return std::exchange(router_loss_, at::Tensor());
}

}  // namespace accelerate

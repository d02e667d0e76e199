#include "accelerate/comm/differentiable.h"

#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include "absl/strings/str_cat.h"
#include "accelerate/comm/operations.h"
#include "accelerate/comm/watch/collective_call.h"
#include "accelerate/tensors/tensor_memory.h"

namespace accelerate {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

enum class Move { kNone, kSum, kGather, kSumAndSplit, kSplit, kTrade, kTradeBack };

struct Verb {
  const char* name;
  Move forward, backward;
};
constexpr Verb kIdentityAllReduce{"identity_forward_all_reduce_backward", Move::kNone, Move::kSum};
constexpr Verb kAllReduceIdentity{"all_reduce_forward_identity_backward", Move::kSum, Move::kNone};
constexpr Verb kAllGather{"all_gather_along", Move::kGather, Move::kSumAndSplit};
constexpr Verb kReduceScatter{"reduce_scatter_along", Move::kSumAndSplit, Move::kGather};
constexpr Verb kGatherSplit{"gather_along_split_backward", Move::kGather, Move::kSplit};
constexpr Verb kSplitGather{"split_along_gather_backward", Move::kSplit, Move::kGather};
constexpr Verb kAllToAll{"all_to_all_along", Move::kTrade, Move::kTradeBack};

// Whether the tensor's memory may be written to, because its holder gives it away and no other
// tensor has it; what autograd has saved counts as another one.
bool is_last_use(const at::Tensor& tensor) {
  return tensor.use_count() == 1 && tensor.storage().use_count() == 1 && tensor.is_contiguous();
}

// What the backward pass of one call needs.
struct Call : torch::CustomClassHolder {
  Call(const Verb& its_verb, int64_t its_dim, ProcessGroupPtr its_group, int64_t its_other_dim)
      : verb(its_verb), dim(its_dim), other_dim(its_other_dim), group(std::move(its_group)) {}

  // A backend's thread lets go of what it was given some time after the call. It gets aliases: when
  // the caller's tensor, the result and their graph end must not depend on that thread, because
  // what ranks send later may depend on them. The result is never a view, which could not be
  // changed in place.
  at::Tensor moved(Move move, const at::Tensor& tensor, bool in_place) const {
    if (move == Move::kNone) return tensor;
    return sent(move, internal::without_flags(tensor.tensor_data()), in_place).tensor_data();
  }

  const Verb& verb;
  const int64_t dim, other_dim;
  const ProcessGroupPtr group;
  std::string purpose_of_gradient = {};

 private:
  at::Tensor sent(Move move, const at::Tensor& tensor, bool in_place) const {
    switch (move) {
      case Move::kNone: return tensor;
      case Move::kSum: return sum(tensor, in_place);
      case Move::kGather: return gathered(tensor);
      case Move::kSumAndSplit: return part_of_sum(tensor);
      case Move::kSplit: {
        const int64_t size = tensor.size(dim) / group->getSize();
        return tensor.narrow(dim, group->getRank() * size, size)
            .clone(at::MemoryFormat::Contiguous);
      }
      case Move::kTrade: return traded(tensor, dim, other_dim);
      case Move::kTradeBack: return traded(tensor, other_dim, dim);
    }
    return tensor;
  }

  at::Tensor sum(const at::Tensor& tensor, bool in_place) const {
    std::vector<at::Tensor> total{in_place ? tensor : tensor.clone(at::MemoryFormat::Contiguous)};
    group->allreduce(total)->wait();
    return total[0];
  }

  // Copies once more where ranks' parts do not follow each other.
  at::Tensor gathered(const at::Tensor& part) const {
    const at::Tensor parts = gather_tensor(group, part);
    if (dim == 0) return parts;
    return parts.unflatten(0, {group->getSize(), part.size(0)})
        .movedim(0, dim)
        .flatten(dim, dim + 1);
  }

  // The input, if it is contiguous and divided along dim 0, is sent from where it is.
  at::Tensor part_of_sum(const at::Tensor& whole) const {
    const int64_t ranks = group->getSize();
    at::Tensor parts =
        whole.unflatten(dim, {ranks, whole.size(dim) / ranks}).movedim(dim, 0).contiguous();
    at::Tensor sum = at::empty(parts.sizes().slice(1), parts.options());
    group->_reduce_scatter_base(sum, parts)->wait();
    return sum;
  }

  // For the other ranks' parts along `split` their parts along `joined` of this rank's own.
  at::Tensor traded(const at::Tensor& tensor, int64_t split, int64_t joined) const {
    const int64_t ranks = group->getSize();
    at::Tensor given =
        tensor.unflatten(split, {ranks, tensor.size(split) / ranks}).movedim(split, 0).contiguous();
    at::Tensor taken = at::empty(given.sizes(), given.options());
    std::vector<int64_t> equal_parts;
    group->alltoall_base(taken, given, equal_parts, equal_parts)->wait();
    return taken.movedim(0, joined).flatten(joined, joined + 1).contiguous();
  }
};

struct Exchange : torch::autograd::Function<Exchange> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& tensor,
                            const c10::intrusive_ptr<Call>& call, bool in_place) {
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    return call->moved(call->verb.forward, tensor, in_place);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto call =
        c10::static_intrusive_pointer_cast<Call>(context->saved_data.at("call").toCapsule());
    TORCH_CHECK(!at::GradMode::is_enabled(), call->verb.name,
                " has no second derivative (backward with create_graph)");
    std::optional<CollectivePurpose> purpose;
    if (!call->purpose_of_gradient.empty()) purpose.emplace(call->purpose_of_gradient);
    const at::Tensor& gradient = gradients[0];
    return {call->moved(call->verb.backward, gradient, is_last_use(gradient)), at::Tensor(),
            at::Tensor()};
  }
};

// Rows that ranks send each other in one call.
struct RowsMoved : torch::CustomClassHolder {
  RowsMoved(std::vector<int64_t> gives, std::vector<int64_t> takes, ProcessGroupPtr its_group)
      : give(std::move(gives)), take(std::move(takes)), group(std::move(its_group)) {}

  // `sent` lives until the work is done. The backend gets aliases, as in Call::moved.
  static at::Tensor begin(const at::Tensor& sent, std::vector<int64_t> give,
                          std::vector<int64_t> take, const ProcessGroupPtr& group,
                          c10::intrusive_ptr<c10d::Work>& work) {
    std::vector<int64_t> sizes = sent.sizes().vec();
    sizes[0] = std::accumulate(take.begin(), take.end(), int64_t{0});
    at::Tensor received = at::empty(sizes, sent.options());
    at::Tensor input = sent.tensor_data();
    work = group->alltoall_base(received, input, take, give);
    return received.tensor_data();
  }

  const std::vector<int64_t> give, take;
  const ProcessGroupPtr group;
  std::string purpose_of_gradient = {};
  c10::intrusive_ptr<c10d::Work> work;  // of the forward pass
};

struct MoveRows : torch::autograd::Function<MoveRows> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows,
                            const c10::intrusive_ptr<RowsMoved>& call) {
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    return RowsMoved::begin(rows, call->give, call->take, call->group, call->work);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto call =
        c10::static_intrusive_pointer_cast<RowsMoved>(context->saved_data.at("call").toCapsule());
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "RowExchange has no second derivative (backward with create_graph)");
    std::optional<CollectivePurpose> purpose;
    if (!call->purpose_of_gradient.empty()) purpose.emplace(call->purpose_of_gradient);
    const at::Tensor gradient = internal::without_flags(gradients[0]).contiguous();
    c10::intrusive_ptr<c10d::Work> work;
    at::Tensor back = RowsMoved::begin(gradient, call->take, call->give, call->group, work);
    work->wait();
    return {std::move(back), at::Tensor()};
  }
};

void check_rows(const char* what, const std::vector<int64_t>& numbers,
                const ProcessGroupPtr& group) {
  TORCH_CHECK_VALUE(static_cast<int>(numbers.size()) == size_of(group), "RowExchange: rank ",
                    rank_of(group), " of ", size_of(group), " ", what, " rows of ", numbers.size(),
                    " ranks");
}

at::Tensor exchange(const Verb& verb, const at::Tensor& tensor, int64_t dim,
                    const ProcessGroupPtr& group, bool in_place = false, int64_t other_dim = 0) {
  const auto call = c10::make_intrusive<Call>(verb, dim, group, other_dim);
  if (!at::GradMode::is_enabled() || !tensor.requires_grad()) {
    return call->moved(verb.forward, tensor, in_place);
  }
  const std::string purpose = CollectivePurpose::current();
  if (!purpose.empty()) call->purpose_of_gradient = absl::StrCat("gradient of ", purpose);
  return Exchange::apply(tensor, call, in_place);
}

int64_t from_front(const Verb& verb, const at::Tensor& tensor, int64_t dim) {
  TORCH_CHECK_VALUE(-tensor.dim() <= dim && dim < tensor.dim(), verb.name, ": a tensor of sizes ",
                    tensor.sizes(), " has no dim ", dim);
  return dim < 0 ? dim + tensor.dim() : dim;
}

at::Tensor exchange_along(const Verb& verb, const at::Tensor& tensor, int64_t dim,
                          const ProcessGroupPtr& group, int64_t other_dim = 0) {
  if (!group) return tensor;
  const int64_t own_dim = from_front(verb, tensor, dim);
  const int64_t size = tensor.size(own_dim);
  const int64_t ranks = group->getSize();
  const int64_t rest = verb.forward == Move::kGather ? 0 : size % ranks;
  TORCH_CHECK_VALUE(rest == 0, verb.name, ": dim ", dim, " of a tensor of sizes ", tensor.sizes(),
                    " has ", size, " elements, which do not divide evenly among ", ranks,
                    " ranks; ", size + ranks - rest, " would");
  return exchange(verb, tensor, own_dim, group, /*in_place=*/false, other_dim);
}

}  // namespace

at::Tensor identity_forward_all_reduce_backward(const at::Tensor& tensor,
                                                const ProcessGroupPtr& group) {
  return group ? exchange(kIdentityAllReduce, tensor, 0, group) : tensor;
}

at::Tensor all_reduce_forward_identity_backward(at::Tensor tensor, const ProcessGroupPtr& group) {
  return group ? exchange(kAllReduceIdentity, tensor, 0, group, is_last_use(tensor)) : tensor;
}

at::Tensor all_gather_along(const at::Tensor& part, int64_t dim, const ProcessGroupPtr& group) {
  return exchange_along(kAllGather, part, dim, group);
}

at::Tensor reduce_scatter_along(const at::Tensor& whole, int64_t dim,
                                const ProcessGroupPtr& group) {
  return exchange_along(kReduceScatter, whole, dim, group);
}

at::Tensor gather_along_split_backward(const at::Tensor& part, int64_t dim,
                                       const ProcessGroupPtr& group) {
  return exchange_along(kGatherSplit, part, dim, group);
}

at::Tensor split_along_gather_backward(const at::Tensor& whole, int64_t dim,
                                       const ProcessGroupPtr& group) {
  return exchange_along(kSplitGather, whole, dim, group);
}

at::Tensor all_to_all_along(const at::Tensor& tensor, int64_t split, int64_t join,
                            const ProcessGroupPtr& group) {
  if (!group) return tensor;
  const int64_t joined = from_front(kAllToAll, tensor, join);
  TORCH_CHECK_VALUE(joined != from_front(kAllToAll, tensor, split), kAllToAll.name, ": dim ", join,
                    " of a tensor of sizes ", tensor.sizes(), " is both split and joined");
  return exchange_along(kAllToAll, tensor, split, group, joined);
}

at::Tensor mean_over_tokens(const at::Tensor& mean, const at::Tensor& tokens,
                            const ProcessGroupPtr& group) {
  TORCH_CHECK_VALUE(mean.dim() == 0 && mean.is_floating_point() && tokens.dim() == 0 &&
                        at::isIntegralType(tokens.scalar_type(), /*includeBool=*/false),
                    "mean_over_tokens: ", mean.scalar_type(), " of sizes ", mean.sizes(),
                    " over a number of tokens that is ", tokens.scalar_type(), " of sizes ",
                    tokens.sizes(), "; give a mean, and an integer, without dims");
  if (!group) return mean;
  const at::ScalarType dtype = at::promote_types(mean.scalar_type(), at::kFloat);
  const at::Tensor own = tokens.to(mean.device(), at::kLong);
  const at::Tensor all =
      reduce_tensor(group, own.reshape({1}), Reduction::kSum).reshape({}).clamp_min(1);
  const at::Tensor part =
      mean.to(dtype).masked_fill(own.eq(0), 0).mul(own.to(dtype).div(all.to(dtype)));
  return all_gather_along(part.reshape({1}), 0, group).sum();
}

RowExchange::RowExchange(const at::Tensor& rows, std::vector<int64_t> give,
                         std::vector<int64_t> take, const ProcessGroupPtr& group) {
  check_rows("gives", give, group);
  check_rows("takes", take, group);
  const int64_t given = std::accumulate(give.begin(), give.end(), int64_t{0});
  TORCH_CHECK_VALUE(rows.dim() > 0 && rows.size(0) == given, "RowExchange: rank ", rank_of(group),
                    " gives ", given, " rows of a tensor of sizes ", rows.sizes());
  if (!group) {
    rows_ = rows;
    return;
  }
  sent_ = internal::without_flags(rows).contiguous();
  const auto call = c10::make_intrusive<RowsMoved>(std::move(give), std::move(take), group);
  if (!at::GradMode::is_enabled() || !rows.requires_grad()) {
    rows_ = RowsMoved::begin(sent_, call->give, call->take, group, work_);
    return;
  }
  const std::string purpose = CollectivePurpose::current();
  if (!purpose.empty()) call->purpose_of_gradient = absl::StrCat("gradient of ", purpose);
  rows_ = MoveRows::apply(sent_, call);
  work_ = std::exchange(call->work, nullptr);
}

at::Tensor RowExchange::finish() {
  if (work_ != nullptr) work_->wait();
  work_.reset();
  sent_.reset();
  return std::exchange(rows_, at::Tensor());
}

}  // namespace accelerate

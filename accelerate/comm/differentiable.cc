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

namespace accelerate {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

enum class Move { kNone, kSum, kGather, kSumAndSplit, kSplit };

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

// Whether the tensor's memory may be written to, because its holder gives it away and no other
// tensor has it; what autograd has saved counts as another one.
bool is_last_use(const at::Tensor& tensor) {
  return tensor.use_count() == 1 && tensor.storage().use_count() == 1 && tensor.is_contiguous();
}

// What the backward pass of one call needs.
struct Call : torch::CustomClassHolder {
  Call(const Verb& its_verb, int64_t its_dim, ProcessGroupPtr its_group)
      : verb(its_verb), dim(its_dim), group(std::move(its_group)) {}

  at::Tensor moved(Move move, const at::Tensor& tensor, bool in_place) const {
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
    }
    return tensor;
  }

  const Verb& verb;
  const int64_t dim;
  const ProcessGroupPtr group;
  std::string purpose_of_gradient = {};

 private:
  at::Tensor sum(const at::Tensor& tensor, bool in_place) const {
    std::vector<at::Tensor> total{in_place ? tensor.tensor_data()
                                           : tensor.clone(at::MemoryFormat::Contiguous)};
    group->allreduce(total)->wait();
    return total[0];
  }

  // Copies once more where ranks' parts do not follow each other. Not a view: what a function
  // returns could not be changed in place.
  at::Tensor gathered(const at::Tensor& part) const {
    const at::Tensor parts = gather_tensor(group, part);
    if (dim == 0) return parts;
    return parts.unflatten(0, {group->getSize(), part.size(0)})
        .movedim(0, dim)
        .flatten(dim, dim + 1)
        .tensor_data();
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

  // `sent` lives until the work is done.
  static at::Tensor begin(const at::Tensor& sent, std::vector<int64_t> give,
                          std::vector<int64_t> take, const ProcessGroupPtr& group,
                          c10::intrusive_ptr<c10d::Work>& work) {
    std::vector<int64_t> sizes = sent.sizes().vec();
    sizes[0] = std::accumulate(take.begin(), take.end(), int64_t{0});
    at::Tensor received = at::empty(sizes, sent.options());
    at::Tensor input = sent;
    work = group->alltoall_base(received, input, take, give);
    return received;
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
    const at::Tensor gradient = gradients[0].contiguous();
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
                    const ProcessGroupPtr& group, bool in_place = false) {
  const auto call = c10::make_intrusive<Call>(verb, dim, group);
  if (!at::GradMode::is_enabled() || !tensor.requires_grad()) {
    return call->moved(verb.forward, tensor, in_place);
  }
  const std::string purpose = CollectivePurpose::current();
  if (!purpose.empty()) call->purpose_of_gradient = absl::StrCat("gradient of ", purpose);
  return Exchange::apply(tensor, call, in_place);
}

at::Tensor exchange_along(const Verb& verb, const at::Tensor& tensor, int64_t dim,
                          const ProcessGroupPtr& group) {
  if (!group) return tensor;
  TORCH_CHECK_VALUE(-tensor.dim() <= dim && dim < tensor.dim(), verb.name, ": a tensor of sizes ",
                    tensor.sizes(), " has no dim ", dim);
  const int64_t from_front = dim < 0 ? dim + tensor.dim() : dim;
  const int64_t size = tensor.size(from_front);
  const int64_t ranks = group->getSize();
  const int64_t rest = verb.forward == Move::kGather ? 0 : size % ranks;
  TORCH_CHECK_VALUE(rest == 0, verb.name, ": dim ", dim, " of a tensor of sizes ", tensor.sizes(),
                    " has ", size, " elements, which do not divide evenly among ", ranks,
                    " ranks; ", size + ranks - rest, " would");
  return exchange(verb, tensor, from_front, group);
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
  sent_ = rows.contiguous();
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

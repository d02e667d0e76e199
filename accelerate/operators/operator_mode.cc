#include "accelerate/operators/operator_mode.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/library.h>

#include "accelerate/tensors/libtorch_releases.h"

namespace accelerate {
namespace {

// PyTorch gives this key no meaning of its own, and no tensor has it.
constexpr c10::DispatchKey kKey = c10::DispatchKey::TESTING_ONLY_GenericMode;
constexpr c10::DispatchKeySet kBelow(c10::DispatchKeySet::FULL_AFTER, kKey);

constexpr c10::DebugInfoKind kKind = internal::operator_handlers_kind();

OperatorHandlers with(std::shared_ptr<OperatorHandler> handler) {
  OperatorHandlers handlers = current_operator_handlers();
  // in_order keeps it before others of its order.
  if (handler) handlers.insert(handlers.begin(), std::move(handler));
  return handlers;
}

OperatorHandlers in_order(OperatorHandlers handlers) {
  std::stable_sort(handlers.begin(), handlers.end(),
                   [](const auto& a, const auto& b) { return a->order() < b->order(); });
  return handlers;
}

// The matrix that `matrix` is the plain transpose of; undefined if there is none.
at::Tensor transposed_of(const at::Tensor& matrix) {
  if (matrix.dim() != 2) return {};
  // Nothing says of which tensor an inference tensor is a view; but it may be the transpose of all
  // that its memory holds.
  if (matrix.is_inference()) {
    const bool is_transpose = matrix.layout() == at::kStrided && matrix.stride(0) == 1 &&
                              matrix.stride(1) == matrix.size(0) && matrix.storage_offset() == 0 &&
                              matrix.has_storage() && matrix.storage().nbytes() == matrix.nbytes();
    return is_transpose ? matrix.t() : at::Tensor();
  }
  if (!matrix.is_view()) return {};
  const at::Tensor base(matrix._base());
  const bool is_transpose = base.dim() == 2 && base.size(0) == matrix.size(1) &&
                            base.size(1) == matrix.size(0) && base.stride(0) == matrix.stride(1) &&
                            base.stride(1) == matrix.stride(0) &&
                            base.storage_offset() == matrix.storage_offset() &&
                            base.scalar_type() == matrix.scalar_type();
  return is_transpose ? base : at::Tensor();
}

}  // namespace

// A scope's handlers in the part of a thread's state that LibTorch hands on to other threads,
// together with the dispatch keys.
class OperatorModeScope::Carried final : public c10::DebugInfoBase,
                                         public std::enable_shared_from_this<Carried> {
 public:
  explicit Carried(OperatorHandlers handlers) : handlers_(std::move(handlers)), outer_(find()) {}

  void end() { ended_ = true; }

  // This thread's innermost scope that has not ended; null outside of all scopes. A state that was
  // kept, as by DDP's Reducer, may be that of a scope that has ended.
  static const Carried* innermost() {
    const auto* carried = static_cast<const Carried*>(c10::ThreadLocalDebugInfo::get(kKind));
    while (carried != nullptr && carried->ended_) carried = carried->outer_.get();
    return carried;
  }

  const OperatorHandlers& handlers() const { return handlers_; }
  int backward() const { return backward_; }

 private:
  static std::shared_ptr<const Carried> find() {
    const auto* carried = static_cast<const Carried*>(c10::ThreadLocalDebugInfo::get(kKind));
    return carried != nullptr ? carried->shared_from_this() : nullptr;
  }

  const OperatorHandlers handlers_;
  const std::shared_ptr<const Carried> outer_;
  const int backward_ = torch::autograd::get_current_graph_task_id();
  std::atomic<bool> ended_ = false;
};

void OperatorCall::proceed() const {
  if (next_ == end_) {
    op_.redispatchBoxed(keys_, &stack_);
  } else {
    (*next_)->call(OperatorCall(op_, keys_, stack_, next_ + 1, end_));
  }
}

const OperatorHandlers& current_operator_handlers() {
  static const OperatorHandlers none;
  const auto* const scope = OperatorModeScope::Carried::innermost();
  return scope != nullptr ? scope->handlers() : none;
}

bool is_backward_of_operator_scope() {
  const int backward = torch::autograd::get_current_graph_task_id();
  if (backward < 0) return false;
  const auto* const scope = OperatorModeScope::Carried::innermost();
  return scope != nullptr && scope->backward() != backward;
}

OperatorModeScope::OperatorModeScope(std::shared_ptr<OperatorHandler> handler)
    : OperatorModeScope(with(std::move(handler))) {}

OperatorModeScope::OperatorModeScope(OperatorHandlers handlers)
    : carried_(std::make_shared<Carried>(in_order(std::move(handlers)))),
      in_thread_(kKind, carried_),
      was_included_(c10::impl::tls_is_dispatch_key_included(kKey)) {
  c10::impl::tls_set_dispatch_key_included(kKey, !current_operator_handlers().empty());
}

OperatorModeScope OperatorModeScope::without(OperatorOrder order) {
  OperatorHandlers handlers = current_operator_handlers();
  std::erase_if(handlers, [order](const auto& handler) { return handler->order() == order; });
  return OperatorModeScope(std::move(handlers));
}

OperatorModeScope::~OperatorModeScope() {
  carried_->end();
  c10::impl::tls_set_dispatch_key_included(kKey, was_included_);
}

// There may be no handlers here: other code can include the key, and a state with the key can
// outlive its scope.
void show_operator(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                   torch::jit::Stack* stack) {
  const OperatorHandlers& handlers = current_operator_handlers();
  OperatorCall(op, keys & kBelow, *stack, handlers.begin(), handlers.end()).proceed();
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&show_operator>());
}

std::optional<LinearProduct> linear_product(const OperatorCall& call) {
  static const c10::OperatorHandle linear = find_operator("aten::linear");
  static const c10::OperatorHandle matmul = find_operator("aten::matmul");
  static const c10::OperatorHandle addmm = find_operator("aten::addmm");
  const auto argument = [&call](size_t i, size_t count) -> const c10::IValue& {
    return torch::jit::peek(call.stack(), i, count);
  };
  const c10::OperatorHandle& op = call.op();
  if (op == linear) {
    const c10::IValue& bias = argument(2, 3);
    return LinearProduct{argument(0, 3).toTensor(), argument(1, 3).toTensor(),
                         bias.isNone() ? at::Tensor() : bias.toTensor()};
  }
  LinearProduct product;
  if (op == matmul) {
    product = {argument(0, 2).toTensor(), transposed_of(argument(1, 2).toTensor()), {}};
  } else if (op == addmm) {
    const at::Tensor& self = argument(0, 5).toTensor();
    const bool is_layer =
        self.dim() == 1 && argument(3, 5).toScalar().equal(1) && argument(4, 5).toScalar().equal(1);
    if (!is_layer) return std::nullopt;
    product = {argument(1, 5).toTensor(), transposed_of(argument(2, 5).toTensor()), self};
  }
  return product.weight.defined() ? std::optional(std::move(product)) : std::nullopt;
}

void LinearHandler::call(const OperatorCall& call) {
  if (const auto product = linear_product(call)) {
    if (auto output = linear(product->input, product->weight, product->bias)) {
      torch::jit::drop(call.stack(), call.op().schema().arguments().size());
      torch::jit::push(call.stack(), *std::move(output));
      return;
    }
  }
  call.proceed();
}

}  // namespace accelerate

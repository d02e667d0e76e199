#include "accelerate/operators/operator_mode.h"

#include <algorithm>
#include <utility>

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

namespace accelerate {
namespace {

// PyTorch gives this key no meaning of its own, and no tensor has it.
constexpr c10::DispatchKey kKey = c10::DispatchKey::TESTING_ONLY_GenericMode;
constexpr c10::DispatchKeySet kBelow(c10::DispatchKeySet::FULL_AFTER, kKey);

// Those of the innermost scope; null outside of all scopes.
thread_local const OperatorHandlers* innermost = nullptr;

OperatorHandlers with(std::shared_ptr<OperatorHandler> handler) {
  OperatorHandlers handlers = current_operator_handlers();
  if (!handler) return handlers;
  const auto place = std::find_if(
      handlers.begin(), handlers.end(),
      [&handler](const auto& installed) { return installed->order() >= handler->order(); });
  handlers.insert(place, std::move(handler));
  return handlers;
}

OperatorHandlers in_order(OperatorHandlers handlers) {
  std::stable_sort(handlers.begin(), handlers.end(),
                   [](const auto& a, const auto& b) { return a->order() < b->order(); });
  return handlers;
}

}  // namespace

void OperatorCall::proceed() const {
  if (next_ == end_) {
    op_.redispatchBoxed(keys_, &stack_);
  } else {
    (*next_)->call(OperatorCall(op_, keys_, stack_, next_ + 1, end_));
  }
}

const OperatorHandlers& current_operator_handlers() {
  static const OperatorHandlers none;
  return innermost != nullptr ? *innermost : none;
}

OperatorModeScope::OperatorModeScope(std::shared_ptr<OperatorHandler> handler)
    : OperatorModeScope(with(std::move(handler))) {}

OperatorModeScope::OperatorModeScope(OperatorHandlers handlers)
    : handlers_(in_order(std::move(handlers))),
      previous_(std::exchange(innermost, &handlers_)),
      was_included_(c10::impl::tls_is_dispatch_key_included(kKey)) {
  c10::impl::tls_set_dispatch_key_included(kKey, !handlers_.empty());
}

OperatorModeScope OperatorModeScope::without(OperatorOrder order) {
  OperatorHandlers handlers = current_operator_handlers();
  std::erase_if(handlers, [order](const auto& handler) { return handler->order() == order; });
  return OperatorModeScope(std::move(handlers));
}

OperatorModeScope::~OperatorModeScope() {
  c10::impl::tls_set_dispatch_key_included(kKey, was_included_);
  innermost = previous_;
}

// LibTorch carries dispatch keys over to the threads of a backward pass, but no handlers: there may
// be none here.
void show_operator(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                   torch::jit::Stack* stack) {
  const OperatorHandlers& handlers = current_operator_handlers();
  OperatorCall(op, keys & kBelow, *stack, handlers.begin(), handlers.end()).proceed();
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&show_operator>());
}

}  // namespace accelerate

#include "accelerate/operators/construction_record.h"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <mutex>
#include <string>
#include <utility>

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/List.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>
#include <c10/util/intrusive_ptr.h>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "accelerate/operators/call_arguments.h"
#include "accelerate/operators/default_device.h"
#include "accelerate/operators/deferred_values.h"
#include "accelerate/operators/recorded_steps.h"
#include "accelerate/tensors/tensor_memory.h"

namespace accelerate {

namespace {

using internal::Deferred;
using internal::deferred_of;
using internal::deferred_together;
using internal::read_deferred;
using internal::construction::copied_to;
using internal::construction::Index;
using internal::construction::is_about_meta;
using internal::construction::is_random;
using internal::construction::lies_on;
using internal::construction::PlainOperators;
using internal::construction::Record;
using internal::construction::RecordPtr;
using internal::construction::replays;
using internal::construction::Slot;
using internal::construction::slot_of;
using internal::construction::Step;
using internal::construction::text_of;
using internal::construction::View;
using internal::construction::WeakTensor;

}  // namespace

// ---- The scope.

class ConstructionScope::Handler final : public OperatorHandler {
 public:
  explicit Handler(c10::Device device)
      : OperatorHandler(OperatorOrder::kConstruction),
        device_(device),
        elsewhere_(internal::default_device()) {
    if (!device_.is_meta()) return;
    for (const auto& handler : current_operator_handlers()) {
      const auto* const outer = dynamic_cast<const Handler*>(handler.get());
      if (outer != nullptr && outer->record_) record_ = outer->record_;
    }
    is_outermost_ = !record_;
    const std::lock_guard lock(replays());
    if (is_outermost_) record_ = c10::make_intrusive<Record>();
    begin_ = record_->num_known();
  }

  // The current handlers with this one in front; it replaces the handlers of the same record.
  static OperatorHandlers with(const std::shared_ptr<Handler>& handler) {
    OperatorHandlers handlers = current_operator_handlers();
    if (handler->record_) {
      std::erase_if(handlers, [](const auto& each) {
        const auto* const outer = dynamic_cast<const Handler*>(each.get());
        return outer != nullptr && outer->record_;
      });
    }
    handlers.insert(handlers.begin(), handler);
    return handlers;
  }

  void call(const OperatorCall& call) override {
    const c10::Device target = record_ ? elsewhere() : device_;
    c10::IValue* const device = internal::open_device(call, target.type());
    const OperatorModeScope inside = OperatorModeScope::without(OperatorOrder::kConstruction);
    if (!record_) return make_on_device(call, device);
    if (device != nullptr || reads_recorded(call)) {
      record(call, device);
      return;
    }
    if (is_random(call.op())) {
      const std::lock_guard lock(replays());
      Record::draw_all_recorded();
    }
    call.proceed();
  }

  void undo(const std::function<bool(const at::Tensor&)>& wants) {
    const std::lock_guard lock(replays());
    const OperatorModeScope inside = OperatorModeScope::without(OperatorOrder::kConstruction);
    if (record_) {
      std::vector<at::Tensor> tensors = record_->known(begin_);
      // A tensor that others are views of lives as long as they do, and shares their memory.
      absl::flat_hash_set<const c10::StorageImpl*> kept;
      for (const at::Tensor& tensor : tensors) {
        if (!wants(tensor)) kept.insert(tensor.storage().unsafeGetStorageImpl());
      }
      std::erase_if(tensors, [&kept](const at::Tensor& tensor) {
        return kept.contains(tensor.storage().unsafeGetStorageImpl());
      });
      replay_construction(tensors);
    } else {
      move_back(wants);
    }
  }

  void end() {
    if (!record_ || !is_outermost_) return;
    const std::lock_guard lock(replays());
    const OperatorModeScope inside = OperatorModeScope::without(OperatorOrder::kConstruction);
    record_->unmark();
    if (std::uncaught_exceptions() == exceptions_ && record_->is_done()) {
      record_->advance_generators();
    }
  }

 private:
  // Where tensors would be without the scope.
  c10::Device elsewhere() const { return elsewhere_.is_meta() ? c10::kCPU : elsewhere_; }

  static bool reads_recorded(const OperatorCall& call) {
    bool found = false;
    for_each_tensor(arguments_of(call), [&found](const at::Tensor& tensor) {
      found = found || slot_of(tensor) != nullptr;
    });
    return found;
  }

  void record(const OperatorCall& call, c10::IValue* device) {
    const c10::FunctionSchema& schema = call.op().schema();
    const size_t count = schema.arguments().size();
    Step step{call.op()};
    if (device != nullptr) *device = elsewhere();
    const auto on_stack = call.stack().end() - static_cast<ptrdiff_t>(count);
    step.arguments.assign(on_stack, call.stack().end());
    c10::Device result_device = elsewhere();
    if (const auto position = schema.argumentIndexWithName("device")) {
      c10::IValue& named = *(on_stack + *position);
      if (named.isDevice()) {
        result_device = named.toDevice();
        named = c10::Device(c10::kMeta);
      }
    }
    c10::SmallVector<const c10::TensorImpl*, 4> inputs;
    bool reads_floats = false;
    for (size_t i = 0; i < count; ++i) {
      const c10::IValue value = *(on_stack + static_cast<ptrdiff_t>(i));
      for_each_tensor(value, [&](const at::Tensor& tensor, int element) {
        inputs.push_back(tensor.unsafeGetTensorImpl());
        reads_floats |= !at::isIntegralType(tensor.scalar_type(), true) &&
                        !tensor.unsafeGetTensorImpl()->is_wrapped_number();
        describe(step, i, element, tensor, *(on_stack + static_cast<ptrdiff_t>(i)));
      });
    }
    proceed(call);
    const auto outputs = torch::jit::last(call.stack(), schema.returns().size());
    fix_dtype(step, outputs, device != nullptr, reads_floats);
    const std::lock_guard lock(replays());
    record_->append(std::move(step), outputs, result_device);
    for_each_tensor(outputs, [&](const at::Tensor& tensor) {
      const bool is_input =
          std::find(inputs.begin(), inputs.end(), tensor.unsafeGetTensorImpl()) != inputs.end();
      if (!is_input && slot_of(tensor) != nullptr) record_->know(tensor);
    });
  }

  // Writes down the dtype of what a factory made; where the default dtype decides it otherwise,
  // that.
  static void fix_dtype(Step& step, c10::ArrayRef<c10::IValue> outputs, bool is_factory,
                        bool reads_floats) {
    if (outputs.empty() || !outputs[0].isTensor() || !outputs[0].toTensor().defined()) return;
    const at::ScalarType dtype = outputs[0].toTensor().scalar_type();
    const auto position = step.op.schema().argumentIndexWithName("dtype");
    if (is_factory && position) {
      c10::IValue& argument = step.arguments[static_cast<size_t>(*position)];
      if (argument.isNone()) argument = dtype;
    } else if (!reads_floats && !at::isIntegralType(dtype, /*includeBool=*/true)) {
      step.default_dtype = c10::get_default_dtype();
    }
  }

  // Notes one tensor among the arguments, and gives the operator one without memory.
  void describe(Step& step, size_t argument, int element, const at::Tensor& tensor,
                c10::IValue& on_stack) const {
    const c10::AliasInfo* const alias = step.op.schema().arguments()[argument].alias_info();
    const bool writes = alias != nullptr && alias->isWrite();
    if (const Slot* const slot = slot_of(tensor)) {
      TORCH_CHECK(!tensor.is_conj() && !tensor.is_neg(), text_of(step.op),
                  " on a lazily conjugated or negated tensor cannot be recorded");
      const bool is_own = slot->record == record_;
      TORCH_CHECK(is_own || !writes, text_of(step.op),
                  " writes to a model that was built empty before; models are built and "
                  "initialised in one scope");
      put_tensor(step.arguments[argument], element, at::Tensor());
      step.operands.push_back({static_cast<Index>(argument), element, View(tensor), slot->index,
                               is_own ? RecordPtr() : slot->record, slot->record->num_steps()});
      return;
    }
    if (tensor.is_meta()) return;
    if (writes) fail(step.op, "writes values of the empty model to a tensor that has memory");
    step.constants.push_back({tensor, tensor.is_inference() ? 0 : tensor._version()});
    const bool is_number = tensor.dim() == 0 && tensor.is_cpu();
    if (!is_number && tensor.has_storage()) {
      put_tensor(
          on_stack, element,
          at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(c10::kMeta)));
    }
  }

  void proceed(const OperatorCall& call) const {
    try {
      call.proceed();
    } catch (const c10::Error& error) {
      if (!is_about_meta(error)) throw;
      // The first sentence of LibTorch's advice says it.
      std::string reason = error.what_without_backtrace();
      reason = reason.substr(0, std::min(reason.find('\n'), reason.find(". ")));
      fail(call.op(), absl::StrCat("cannot run on tensors without values (", reason, ")"));
    }
  }

  [[noreturn]] void fail(const c10::OperatorHandle& op, const std::string& what) const {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "building an empty model: ", text_of(op), " ", what, ", ",
                                record_->text(),
                                "; build the module that calls it inside init_on_device(cpu)");
  }

  // `device`: the operator's argument, if it was left open.
  void make_on_device(const OperatorCall& call, c10::IValue* device) {
    const c10::FunctionSchema& schema = call.op().schema();
    bool is_made = device != nullptr;
    if (is_made) {
      *device = device_;
    } else if (!names_a_device(call)) {
      // What is computed from the scope's tensors would lie beside them elsewhere.
      const std::lock_guard lock(replays());
      for_each_tensor(arguments_of(call), [&](const at::Tensor& tensor) {
        is_made |=
            tensor.has_storage() && made_memory_.contains(tensor.storage().unsafeGetStorageImpl());
      });
    }
    call.proceed();
    if (!is_made) return;
    const std::lock_guard lock(replays());
    const auto outputs = torch::jit::last(call.stack(), schema.returns().size());
    for_each_tensor(outputs, [this](const at::Tensor& tensor) {
      if (!tensor.has_storage()) return;
      if (tensor.device().type() != device_.type()) return;
      c10::StorageImpl* const memory = tensor.storage().unsafeGetStorageImpl();
      made_memory_.try_emplace(memory,
                               c10::weak_intrusive_ptr<c10::StorageImpl>(
                                   c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(memory)));
      made_.emplace_back(tensor.getIntrusivePtr());
    });
  }

  static bool names_a_device(const OperatorCall& call) {
    const c10::FunctionSchema& schema = call.op().schema();
    const auto position = schema.argumentIndexWithName("device");
    return position &&
           torch::jit::peek(call.stack(), static_cast<size_t>(*position), schema.arguments().size())
               .isDevice();
  }

  // Moves what was made on a device with memory.
  void move_back(const std::function<bool(const at::Tensor&)>& wants) {
    const PlainOperators plain;
    absl::flat_hash_set<const c10::TensorImpl*> seen;
    std::vector<std::pair<c10::Storage, c10::Storage>> moved;
    std::vector<std::pair<at::Tensor, at::Tensor>> values;
    for (const WeakTensor& weak : made_) {
      auto impl = weak.lock();
      if (!impl || !seen.insert(impl.get()).second) continue;
      const at::Tensor tensor(std::move(impl));
      if (!tensor.has_storage() || tensor.device().type() != device_.type() ||
          !made_memory_.contains(tensor.storage().unsafeGetStorageImpl()) ||
          lies_on(tensor.storage(), elsewhere()) || !wants(tensor)) {
        continue;
      }
      const c10::Storage& from = tensor.storage();
      auto found = std::find_if(moved.begin(), moved.end(),
                                [&from](const auto& pair) { return pair.first.is_alias_of(from); });
      if (found == moved.end()) {
        found = moved.insert(found, {from, copied_to(from, elsewhere())});
      }
      values.emplace_back(tensor, View(tensor).of(found->second));
    }
    for (const auto& [tensor, value] : values) internal::rebind(tensor, value);
  }

  const c10::Device device_, elsewhere_;
  RecordPtr record_;
  bool is_outermost_ = true;
  const int exceptions_ = std::uncaught_exceptions();
  size_t begin_ = 0;  // of the record's known tensors
  // On a device with memory: the tensors that were made, and their memory, whose addresses are not
  // others' meanwhile.
  std::vector<WeakTensor> made_;
  absl::flat_hash_map<const c10::StorageImpl*, c10::weak_intrusive_ptr<c10::StorageImpl>>
      made_memory_;
};

ConstructionScope::ConstructionScope(c10::Device device)
    : handler_(std::make_shared<Handler>(device)), in_thread_(Handler::with(handler_)) {}

ConstructionScope::~ConstructionScope() noexcept(false) { handler_->end(); }

void ConstructionScope::undo(const std::function<bool(const at::Tensor&)>& wants) {
  handler_->undo(wants);
}

// ---- Replays.

namespace {

// The tensors of one record.
struct Group {
  RecordPtr record;
  std::vector<Index> slots = {};                      // without repetition
  absl::flat_hash_map<Index, size_t> positions = {};  // of the slots
  std::vector<c10::Storage> memory = {};
};

using DeferredMemory = absl::flat_hash_map<const Deferred*, c10::Storage>;

// Not under replays(): a simulated disk gives other ranks their turn.
DeferredMemory read_deferred_of(const std::vector<at::Tensor>& tensors,
                                std::optional<c10::Device> device) {
  const PlainOperators plain;
  DeferredMemory memory;
  for (const at::Tensor& tensor : tensors) {
    const Deferred* const deferred = deferred_of(tensor);
    if (deferred == nullptr || memory.contains(deferred)) continue;
    memory.emplace(deferred, read_deferred(*deferred, device.value_or(c10::kCPU)));
  }
  return memory;
}

struct Groups {
  Groups(const std::vector<at::Tensor>& tensors, std::optional<c10::Device> device,
         DeferredMemory read)
      : deferred(std::move(read)) {
    for (const at::Tensor& tensor : tensors) {
      if (deferred_of(tensor) != nullptr) continue;
      const Slot* const slot = slot_of(tensor);
      TORCH_CHECK_VALUE(slot != nullptr,
                        "a tensor has no recorded values: it was not made inside "
                        "init_empty_weights or init_on_device(meta), or was replaced afterwards");
      auto group = std::ranges::find(groups, slot->record, &Group::record);
      if (group == groups.end()) group = groups.insert(group, {.record = slot->record});
      const bool is_new = group->positions.try_emplace(slot->index, group->slots.size()).second;
      if (is_new) group->slots.push_back(slot->index);
    }
    for (Group& group : groups) {
      group.memory = group.record->replay(group.slots, group.record->num_steps(), device);
    }
  }

  // Null for a tensor whose memory was not asked for.
  const c10::Storage* memory(const at::Tensor& tensor) const {
    if (const auto found = deferred.find(deferred_of(tensor)); found != deferred.end()) {
      return &found->second;
    }
    const Slot* const slot = slot_of(tensor);
    if (slot == nullptr) return nullptr;
    const auto group = std::ranges::find(groups, slot->record, &Group::record);
    if (group == groups.end()) return nullptr;
    const auto found = group->positions.find(slot->index);
    return found != group->positions.end() ? &group->memory[found->second] : nullptr;
  }

  std::vector<Group> groups;
  const DeferredMemory deferred;
};

}  // namespace

bool is_recorded(const at::Tensor& tensor) {
  return slot_of(tensor) != nullptr || deferred_of(tensor) != nullptr;
}

std::vector<at::Tensor> recorded_values(const std::vector<at::Tensor>& tensors,
                                        std::optional<c10::Device> device) {
  DeferredMemory deferred = read_deferred_of(tensors, device);
  const std::lock_guard lock(replays());
  const Groups groups(tensors, device, std::move(deferred));
  const PlainOperators plain;
  std::vector<at::Tensor> values;
  values.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    values.push_back(View(tensor).of(*groups.memory(tensor)));
  }
  return values;
}

void replay_construction(const std::vector<at::Tensor>& tensors, std::optional<c10::Device> device,
                         bool is_last) {
  DeferredMemory deferred = read_deferred_of(tensors, device);
  const std::lock_guard lock(replays());
  const Groups groups(tensors, device, std::move(deferred));
  const PlainOperators plain;
  std::vector<std::pair<at::Tensor, at::Tensor>> values;
  absl::flat_hash_set<const c10::TensorImpl*> seen;
  const auto add = [&](const at::Tensor& tensor) {
    const c10::Storage* const memory = groups.memory(tensor);
    if (memory != nullptr && seen.insert(tensor.unsafeGetTensorImpl()).second) {
      values.emplace_back(tensor, View(tensor).of(*memory));
    }
  };
  for (const at::Tensor& tensor : tensors) add(tensor);
  // The tensors that share memory with these, and that the module need not hold.
  for (const Group& group : groups.groups) {
    for (const at::Tensor& tensor : group.record->known()) add(tensor);
  }
  // Only added to `values`, whose order does not matter.
  for (const auto& [deferred, memory] : groups.deferred) {
    for (const at::Tensor& tensor : deferred_together(*deferred)) add(tensor);
  }
  for (const auto& [tensor, value] : values) internal::rebind(tensor, value);
  for (const Group& group : groups.groups) {
    if (is_last || group.record->is_done()) group.record->advance_generators();
  }
}

std::function<void()> end_of_construction(const std::vector<at::Tensor>& tensors) {
  std::vector<RecordPtr> records;
  for (const at::Tensor& tensor : tensors) {
    const DeferredValues* const deferred = deferred_values(tensor);
    const Slot* const slot = slot_of(deferred != nullptr ? deferred->recorded() : tensor);
    if (slot != nullptr && std::ranges::find(records, slot->record) == records.end()) {
      records.push_back(slot->record);
    }
  }
  return [records = std::move(records)] {
    const std::lock_guard lock(replays());
    const PlainOperators plain;
    for (const RecordPtr& record : records) record->advance_generators();
  };
}

}  // namespace accelerate

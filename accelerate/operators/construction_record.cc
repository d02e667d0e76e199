#include "accelerate/operators/construction_record.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <mutex>
#include <string>
#include <utility>

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/List.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
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
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/comm/random.h"
#include "accelerate/operators/default_device.h"
#include "accelerate/tensors/tensor_memory.h"

namespace accelerate {
namespace {

using Index = uint32_t;
using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

class Record;
using RecordPtr = c10::intrusive_ptr<Record>;

// Records and the generators that they set are shared by threads.
std::recursive_mutex& replays() {
  static std::recursive_mutex mutex;
  return mutex;
}

// ---- Storages of recorded tensors.

// What such a storage holds in place of memory.
struct Slot {
  Slot(RecordPtr of, Index at);
  ~Slot();
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;

  const RecordPtr record;
  const Index index;
};

void lose_slot(void* slot) { delete static_cast<Slot*>(slot); }

const Slot* slot_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_meta() || !tensor.has_storage()) return nullptr;
  const c10::DataPtr& data = tensor.storage().data_ptr();
  return data.get_deleter() == &lose_slot ? static_cast<const Slot*>(data.get_context()) : nullptr;
}

// How a tensor sees its storage.
struct View {
  explicit View(const at::Tensor& tensor)
      : offset(tensor.storage_offset()),
        sizes(tensor.sizes()),
        strides(tensor.strides()),
        dtype(tensor.scalar_type()) {}

  at::Tensor of(const c10::Storage& storage) const {
    return at::empty({0}, at::TensorOptions(storage.device()).dtype(dtype))
        .set_(storage, offset, sizes, strides);
  }

  bool fits(const at::Tensor& tensor) const {
    return tensor.storage_offset() == offset && tensor.sizes() == at::IntArrayRef(sizes) &&
           tensor.strides() == at::IntArrayRef(strides);
  }

  int64_t offset;
  c10::SmallVector<int64_t, 4> sizes, strides;
  at::ScalarType dtype;
};

c10::Storage copied_to(const c10::Storage& storage, c10::Device device) {
  const auto bytes = static_cast<int64_t>(storage.nbytes());
  const at::Tensor all = at::empty({0}, at::TensorOptions(storage.device()).dtype(at::kByte))
                             .set_(storage, 0, {bytes}, {1});
  const at::Tensor copy = at::empty({bytes}, at::TensorOptions(device).dtype(at::kByte));
  copy.copy_(all);
  return copy.storage();
}

bool lies_on(const c10::Storage& storage, c10::Device device) {
  return storage.device().type() == device.type() &&
         (!device.has_index() || storage.device().index() == device.index());
}

// ---- Arguments and results.

// Calls visit(tensor, its position in the list or -1) for the tensors in a value.
template <typename Visit>
void for_each_tensor(const c10::IValue& value, Visit&& visit) {
  if (value.isTensor()) {
    visit(value.toTensor(), -1);
  } else if (value.isTensorList() || value.isOptionalTensorList()) {
    int element = 0;
    for (const c10::IValue& each : value.toListRef()) {
      if (each.isTensor()) visit(each.toTensor(), element);
      ++element;
    }
  }
}

// Lists are shared by values, so they are replaced by copies.
void put(c10::IValue& value, int element, const at::Tensor& tensor) {
  if (element < 0) {
    value = tensor;
  } else if (value.isTensorList()) {
    auto list = value.toTensorList().copy();
    list.set(element, tensor);
    value = std::move(list);
  } else {
    auto list = value.toOptionalTensorList().copy();
    list.set(element, tensor);
    value = std::move(list);
  }
}

bool is_random(const c10::OperatorHandle& op) {
  return op.hasTag(at::Tag::nondeterministic_seeded);
}

std::string text_of(const c10::OperatorHandle& op) {
  const std::string& overload = op.schema().overload_name();
  return overload.empty() ? op.schema().name() : absl::StrCat(op.schema().name(), ".", overload);
}

// Whether LibTorch refused an operator because there are no values.
bool is_about_meta(const c10::Error& error) {
  return dynamic_cast<const c10::NotImplementedError*>(&error) != nullptr ||
         absl::StrContains(absl::AsciiStrToLower(error.what_without_backtrace()), "meta");
}

// A tensor that the record has no values of.
struct Operand {
  Index argument;
  int element;
  View view;
  Index slot;
  RecordPtr other;  // whose slot it is; null for the record itself
  Index time = 0;   // how many steps of the other record came before
};

// A tensor that existed, or that the constructor made elsewhere.
struct Constant {
  at::Tensor tensor;
  int64_t version;
};

// A storage that a step made.
struct Result {
  Index output;
  int element;
  View view;
  Index slot;
};

struct Step {
  c10::OperatorHandle op;
  std::vector<c10::IValue> arguments;  // without the operands
  c10::SmallVector<Operand, 1> operands;
  c10::SmallVector<Constant, 0> constants;
  c10::SmallVector<Result, 1> results;
  caffe2::TypeMeta default_dtype = c10::get_default_dtype();
  // Of a random operator: of which generator it is which draw.
  int generator = -1;
  Index draw = 0;
};

// ---- Random numbers.

bool are_equal(const at::Tensor& state, const at::Tensor& other) {
  return state.nbytes() == other.nbytes() &&
         std::memcmp(state.const_data_ptr(), other.const_data_ptr(), state.nbytes()) == 0;
}

// What one generator would have drawn.
//
// While a scope records, the generator stands in a state that nothing else puts it into. So a
// constructor that seeds it is noticed, even if it seeds with what was there before.
class Draws {
 public:
  explicit Draws(at::Generator generator) : generator_(std::move(generator)) {
    at::Generator other = generator_.clone();
    other.set_current_seed(0xacce1e7a7e);
    marker_ = other.get_state();
  }

  const at::Generator& generator() const { return generator_; }
  size_t size() const { return draws_.size(); }
  Index step(size_t draw) const { return draws_[draw].step; }

  Index add(Index step) {
    const at::Tensor state = generator_state(generator_);
    const bool goes_on = are_equal(state, marker_) && !draws_.empty();
    if (!goes_on) {
      before_ = state;
      set(marker_);
    }
    draws_.push_back({step, goes_on ? at::Tensor() : state});
    end_ = at::Tensor();
    return static_cast<Index>(draws_.size() - 1);
  }

  // The state before a draw, or after all of them; undefined while it is not known.
  const at::Tensor& state(size_t draw) const {
    return draw < draws_.size() ? draws_[draw].state : end_;
  }
  void keep_state(size_t draw) {
    at::Tensor& state = draw < draws_.size() ? draws_[draw].state : end_;
    if (!state.defined()) state = generator_state(generator_);
  }

  bool is_marked() const { return are_equal(generator_state(generator_), marker_); }
  void mark() { set(marker_); }
  // The generator has really drawn them.
  void catch_up() {
    set(end_);
    caught_up_ = draws_.size();
  }
  void unmark() {
    if (is_marked()) set(before_);
  }
  // Whether the generator is as the scope left it.
  bool is_behind() const {
    return draws_.size() > caught_up_ && are_equal(generator_state(generator_), before_);
  }

  void set(const at::Tensor& state) {
    const std::lock_guard lock(generator_.mutex());
    generator_.set_state(state);
  }

 private:
  struct Draw {
    Index step;
    at::Tensor state;
  };

  at::Generator generator_;
  at::Tensor marker_, before_, end_;
  std::vector<Draw> draws_;
  size_t caught_up_ = 0;
};

// ---- The record.

class Record final : public c10::intrusive_ptr_target {
 public:
  // Whether values were given, and no more are wanted.
  bool is_done() const { return slots_alive == 0 && was_replayed_; }
  Index num_steps() const { return static_cast<Index>(steps_.size()); }

  // Appends the step that made `outputs`. Those without a slot get one.
  void append(Step step, c10::ArrayRef<c10::IValue> outputs, c10::Device device);

  // A tensor that an operator returned.
  void know(const at::Tensor& tensor) { known_.emplace_back(tensor.getIntrusivePtr()); }
  size_t num_known() const { return known_.size(); }
  // Those that live and have a slot of this record, beginning with the nth.
  std::vector<at::Tensor> known(size_t n = 0) const;

  // The memory of slots as after so many steps.
  std::vector<c10::Storage> replay(const std::vector<Index>& slots, Index time,
                                   std::optional<c10::Device> device);

  // Lets the generators really draw what was recorded.
  void catch_up();
  // Leaves the generators as they were.
  void unmark() {
    for (Draws& draws : draws_) draws.unmark();
  }
  // After the last replay: leaves the generators as the construction would have.
  void advance_generators();

  std::string text() const {
    return absl::StrCat("after ", steps_.size(), " recorded operators",
                        last_.empty() ? "" : ", the last of which made a tensor of ", last_);
  }

  std::atomic<int> slots_alive = 0;

 private:
  class Run;

  Draws& draws_of(const at::Generator& generator, int& index);
  at::Generator generator_of(const Step& step, c10::Device device) const;
  std::vector<Index> plan(std::vector<std::pair<Index, Index>> wanted,
                          std::vector<Index> wanted_steps) const;
  void ensure_end(size_t generator);

  std::vector<Step> steps_;
  std::vector<c10::SmallVector<Index, 2>> writers_;  // by slot, the steps that write to it
  std::vector<c10::Device> devices_;                 // by slot, where it would have been
  std::vector<Draws> draws_;
  std::vector<WeakTensor> known_;
  std::string last_;
  bool was_replayed_ = false;
};

Slot::Slot(RecordPtr of, Index at) : record(std::move(of)), index(at) { ++record->slots_alive; }
Slot::~Slot() { --record->slots_alive; }

Draws& Record::draws_of(const at::Generator& generator, int& index) {
  for (index = 0; index < static_cast<int>(draws_.size()); ++index) {
    if (draws_[index].generator() == generator) return draws_[index];
  }
  return draws_.emplace_back(generator);
}

at::Generator Record::generator_of(const Step& step, c10::Device device) const {
  for (const c10::IValue& argument : step.arguments) {
    if (!argument.isGenerator()) continue;
    const at::Generator generator = argument.toGenerator();
    if (generator.defined()) return generator;
  }
  return at::globalContext().defaultGenerator(device);
}

void Record::append(Step step, c10::ArrayRef<c10::IValue> outputs, c10::Device device) {
  const auto index = static_cast<Index>(steps_.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    for_each_tensor(outputs[i], [&](const at::Tensor& tensor, int element) {
      if (!tensor.defined() || !tensor.is_meta() || !tensor.has_storage()) return;
      if (slot_of(tensor) != nullptr) return;
      const auto slot = static_cast<Index>(writers_.size());
      writers_.push_back({index});
      devices_.push_back(device);
      tensor.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
          {nullptr, new Slot(RecordPtr::reclaim_copy(this), slot), &lose_slot, c10::kMeta});
      step.results.push_back({static_cast<Index>(i), element, View(tensor), slot});
      last_ = absl::StrCat("[", absl::StrJoin(tensor.sizes(), ", "), "]");
    });
  }
  bool writes = false;
  const auto& arguments = step.op.schema().arguments();
  for (const Operand& operand : step.operands) {
    const c10::AliasInfo* const alias = arguments[operand.argument].alias_info();
    if (alias == nullptr || !alias->isWrite()) continue;
    writes = true;
    auto& writers = writers_[operand.slot];
    if (writers.empty() || writers.back() != index) writers.push_back(index);
  }
  // Views are kept by those who use them.
  if (!writes && step.results.empty()) return;
  if (is_random(step.op)) {
    const c10::Device drawn_on = !step.operands.empty() && !step.operands[0].other
                                     ? devices_[step.operands[0].slot]
                                     : device;
    step.draw = draws_of(generator_of(step, drawn_on), step.generator).add(index);
  }
  steps_.push_back(std::move(step));
}

std::vector<at::Tensor> Record::known(size_t n) const {
  std::vector<at::Tensor> alive;
  for (; n < known_.size(); ++n) {
    auto impl = known_[n].lock();
    if (!impl) continue;
    at::Tensor tensor(std::move(impl));
    const Slot* const slot = slot_of(tensor);
    if (slot != nullptr && slot->record.get() == this) alive.push_back(std::move(tensor));
  }
  return alive;
}

// The steps that slots depend on, each slot as before a step, and all that must be drawn before.
std::vector<Index> Record::plan(std::vector<std::pair<Index, Index>> wanted,
                                std::vector<Index> wanted_steps) const {
  absl::flat_hash_set<Index> steps;
  absl::flat_hash_map<Index, Index> reached;  // by slot, up to where its writers are in
  while (!wanted.empty() || !wanted_steps.empty()) {
    if (wanted_steps.empty()) {
      const auto [slot, end] = wanted.back();
      wanted.pop_back();
      Index& begin = reached[slot];
      for (const Index step : writers_[slot]) {
        if (step >= begin && step < end) wanted_steps.push_back(step);
      }
      begin = std::max(begin, end);
      continue;
    }
    const Index index = wanted_steps.back();
    wanted_steps.pop_back();
    if (!steps.insert(index).second) continue;
    const Step& step = steps_[index];
    for (const Operand& operand : step.operands) {
      if (!operand.other) wanted.emplace_back(operand.slot, index);
    }
    if (step.generator < 0) continue;
    const Draws& draws = draws_[step.generator];
    if (!draws.state(step.draw).defined()) wanted_steps.push_back(draws.step(step.draw - 1));
  }
  std::vector<Index> in_order(steps.begin(), steps.end());
  std::sort(in_order.begin(), in_order.end());
  return in_order;
}

// Executes steps in the way of a construction without the record.
class Record::Run {
 public:
  Run(Record& record, std::vector<Index> steps, const std::vector<Index>& targets,
      std::optional<c10::Device> device)
      : record_(record),
        steps_(std::move(steps)),
        targets_(targets.begin(), targets.end()),
        device_(device) {
    for (const Index step : steps_) {
      for (const Operand& operand : record_.steps_[step].operands) {
        if (!operand.other) last_use_[operand.slot] = step;
      }
      for (const Result& result : record_.steps_[step].results) last_use_[result.slot] = step;
    }
    for (const Draws& draws : record_.draws_) found_.push_back(generator_state(draws.generator()));
    next_draw_.assign(found_.size(), -1);
  }

  ~Run() {
    for (size_t i = 0; i < found_.size(); ++i) {
      if (next_draw_[i] >= 0) record_.draws_[i].set(found_[i]);
    }
    if (dtype_ != c10::get_default_dtype()) c10::set_default_dtype(dtype_);
  }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  void execute() {
    for (position_ = 0; position_ < steps_.size(); ++position_) {
      const Step& step = record_.steps_[steps_[position_]];
      torch::jit::Stack stack = arguments(step);
      if (step.generator >= 0) begin_draw(step);
      if (step.default_dtype != c10::get_default_dtype()) {
        c10::set_default_dtype(step.default_dtype);
      }
      step.op.callBoxed(stack);
      if (step.generator >= 0) end_draw(step);
      for (const Result& result : step.results) take(result, stack);
      for (const Operand& operand : step.operands) {
        if (!operand.other) leave(operand.slot);
      }
      for (const Result& result : step.results) leave(result.slot);
    }
  }

  const c10::Storage& memory(Index slot) const { return memory_.at(slot); }

 private:
  torch::jit::Stack arguments(const Step& step) {
    for (const Constant& constant : step.constants) {
      TORCH_CHECK_VALUE(
          constant.tensor.is_inference() || constant.tensor._version() == constant.version,
          "a model that was built empty cannot get its values: a tensor of [",
          absl::StrJoin(constant.tensor.sizes(), ", "), "] that its constructor read (",
          text_of(step.op), ") has been changed since");
    }
    torch::jit::Stack stack(step.arguments.begin(), step.arguments.end());
    for (const Operand& operand : step.operands) {
      const c10::Storage storage =
          operand.other ? operand.other->replay({operand.slot}, operand.time, std::nullopt).front()
                        : memory_.at(operand.slot);
      put(stack[operand.argument], operand.element, operand.view.of(storage));
    }
    return stack;
  }

  void begin_draw(const Step& step) {
    Draws& draws = record_.draws_[step.generator];
    int64_t& next = next_draw_[step.generator];
    const at::Tensor& state = draws.state(step.draw);
    if (state.defined()) {
      draws.set(state);
    } else {
      TORCH_INTERNAL_ASSERT(next == step.draw);
    }
    next = step.draw + 1;
  }

  // What is drawn next is known from here on, unless this run is about to use it up.
  void end_draw(const Step& step) {
    Draws& draws = record_.draws_[step.generator];
    const size_t next = step.draw + 1;
    if (next < draws.size() && is_for_target(record_.steps_[draws.step(next)])) return;
    draws.keep_state(next);
  }

  bool is_for_target(const Step& step) const {
    const auto is_target = [this](const auto& part) { return targets_.contains(part.slot); };
    return std::any_of(step.operands.begin(), step.operands.end(), is_target) ||
           std::any_of(step.results.begin(), step.results.end(), is_target);
  }

  void take(const Result& result, const torch::jit::Stack& stack) {
    const size_t first =
        stack.size() - record_.steps_[steps_[position_]].op.schema().returns().size();
    const c10::IValue& value = stack[first + result.output];
    const at::Tensor made =
        result.element < 0 ? value.toTensor() : value.toListRef()[result.element].toTensor();
    if (result.view.fits(made)) {
      memory_[result.slot] = made.storage();
      return;
    }
    // A kernel may lay out its result in another way than without memory.
    TORCH_CHECK(made.sizes() == at::IntArrayRef(result.view.sizes) && result.view.offset == 0,
                text_of(record_.steps_[steps_[position_]].op),
                " made a tensor of another size than without memory");
    const at::Tensor laid_out =
        at::empty_strided(result.view.sizes, result.view.strides, made.options());
    laid_out.copy_(made);
    memory_[result.slot] = laid_out.storage();
  }

  void leave(Index slot) {
    if (last_use_.at(slot) != steps_[position_]) return;
    const auto found = memory_.find(slot);
    if (found == memory_.end()) return;
    if (!targets_.contains(slot)) {
      memory_.erase(found);
    } else if (device_ && !lies_on(found->second, *device_)) {
      found->second = copied_to(found->second, *device_);
    }
  }

  Record& record_;
  const std::vector<Index> steps_;
  const absl::flat_hash_set<Index> targets_;
  const std::optional<c10::Device> device_;
  absl::flat_hash_map<Index, Index> last_use_;  // by slot
  absl::flat_hash_map<Index, c10::Storage> memory_;
  const caffe2::TypeMeta dtype_ = c10::get_default_dtype();
  std::vector<at::Tensor> found_;   // by generator, its state
  std::vector<int64_t> next_draw_;  // by generator; -1 before the first
  size_t position_ = 0;
};

// Operators that neither handlers nor autograd nor automatic mixed precision see.
struct PlainOperators {
  const OperatorModeScope no_handlers{OperatorHandlers()};
  const c10::InferenceMode no_inference{false};
  const at::NoGradGuard no_grad;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
};

std::vector<c10::Storage> Record::replay(const std::vector<Index>& slots, Index time,
                                         std::optional<c10::Device> device) {
  const PlainOperators plain;
  std::vector<std::pair<Index, Index>> wanted;
  for (const Index slot : slots) wanted.emplace_back(slot, time);
  Run run(*this, plan(std::move(wanted), {}), slots, device);
  run.execute();
  was_replayed_ = true;
  std::vector<c10::Storage> memory;
  for (const Index slot : slots) memory.push_back(run.memory(slot));
  return memory;
}

void Record::ensure_end(size_t generator) {
  const Draws& draws = draws_[generator];
  if (draws.state(draws.size()).defined()) return;
  const PlainOperators plain;
  Run(*this, plan({}, {draws.step(draws.size() - 1)}), {}, std::nullopt).execute();
}

void Record::catch_up() {
  for (size_t i = 0; i < draws_.size(); ++i) {
    if (!draws_[i].is_marked()) continue;
    ensure_end(i);
    draws_[i].catch_up();
  }
}

void Record::advance_generators() {
  for (size_t i = 0; i < draws_.size(); ++i) {
    if (!draws_[i].is_behind()) continue;
    ensure_end(i);
    draws_[i].catch_up();
  }
}

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
    if (is_outermost_) record_ = c10::make_intrusive<Record>();
    begin_ = record_->num_known();
  }

  // Those around the scope, and this one: it replaces those that fill the same record.
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
    if (!record_) {
      if (device != nullptr) *device = device_;
      call.proceed();
      know(torch::jit::last(call.stack(), call.op().schema().returns().size()));
      return;
    }
    if (device != nullptr || reads_recorded(call)) {
      record(call, device);
      return;
    }
    if (is_random(call.op())) {
      const std::lock_guard lock(replays());
      record_->catch_up();
    }
    call.proceed();
  }

  void undo(const std::function<bool(const at::Tensor&)>& wants) {
    const std::lock_guard lock(replays());
    const OperatorModeScope inside = OperatorModeScope::without(OperatorOrder::kConstruction);
    if (record_) {
      std::vector<at::Tensor> tensors = record_->known(begin_);
      std::erase_if(tensors, [&wants](const at::Tensor& tensor) { return !wants(tensor); });
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
    const size_t count = call.op().schema().arguments().size();
    for (const c10::IValue& argument : torch::jit::last(call.stack(), count)) {
      for_each_tensor(argument, [&found](const at::Tensor& tensor, int) {
        found = found || slot_of(tensor) != nullptr;
      });
    }
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
    for (size_t i = 0; i < count; ++i) {
      const c10::IValue value = *(on_stack + static_cast<ptrdiff_t>(i));
      for_each_tensor(value, [&](const at::Tensor& tensor, int element) {
        inputs.push_back(tensor.unsafeGetTensorImpl());
        describe(step, i, element, tensor, *(on_stack + static_cast<ptrdiff_t>(i)));
      });
    }
    proceed(call);
    const auto outputs = torch::jit::last(call.stack(), schema.returns().size());
    const std::lock_guard lock(replays());
    record_->append(std::move(step), outputs, result_device);
    for (const c10::IValue& output : outputs) {
      for_each_tensor(output, [&](const at::Tensor& tensor, int) {
        const bool is_input =
            std::find(inputs.begin(), inputs.end(), tensor.unsafeGetTensorImpl()) != inputs.end();
        if (!is_input && slot_of(tensor) != nullptr) record_->know(tensor);
      });
    }
  }

  // Notes one tensor among the arguments, and gives the operator one without memory.
  void describe(Step& step, size_t argument, int element, const at::Tensor& tensor,
                c10::IValue& on_stack) const {
    if (!tensor.defined()) return;
    const c10::AliasInfo* const alias = step.op.schema().arguments()[argument].alias_info();
    const bool writes = alias != nullptr && alias->isWrite();
    if (const Slot* const slot = slot_of(tensor)) {
      TORCH_CHECK(!tensor.is_conj() && !tensor.is_neg(), text_of(step.op),
                  " on a lazily conjugated or negated tensor cannot be recorded");
      const bool is_own = slot->record == record_;
      TORCH_CHECK(is_own || !writes, text_of(step.op),
                  " writes to a model that was built empty before; models are built and "
                  "initialised in one scope");
      put(step.arguments[argument], element, at::Tensor());
      step.operands.push_back({static_cast<Index>(argument), element, View(tensor), slot->index,
                               is_own ? RecordPtr() : slot->record, slot->record->num_steps()});
      return;
    }
    if (tensor.is_meta()) return;
    if (writes) fail(step.op, "writes values of the empty model to a tensor that has memory");
    step.constants.push_back({tensor, tensor.is_inference() ? 0 : tensor._version()});
    const bool is_number = tensor.dim() == 0 && tensor.is_cpu();
    if (!is_number && tensor.has_storage()) {
      put(on_stack, element,
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

  void know(c10::ArrayRef<c10::IValue> outputs) {
    const std::lock_guard lock(replays());
    for (const c10::IValue& output : outputs) {
      for_each_tensor(output, [this](const at::Tensor& tensor, int) {
        if (tensor.defined() && tensor.device().type() == device_.type()) {
          made_.emplace_back(tensor.getIntrusivePtr());
        }
      });
    }
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
  size_t begin_ = 0;              // of the record's known tensors
  std::vector<WeakTensor> made_;  // on a device with memory
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
  std::vector<Index> slots;  // without repetition
  std::vector<c10::Storage> memory;
};

struct Groups {
  Groups(const std::vector<at::Tensor>& tensors, std::optional<c10::Device> device) {
    for (const at::Tensor& tensor : tensors) {
      const Slot* const slot = slot_of(tensor);
      TORCH_CHECK_VALUE(slot != nullptr,
                        "a tensor has no recorded values: it was not made inside "
                        "init_empty_weights or init_on_device(meta), or was replaced afterwards");
      if (positions_[slot->record.get()].contains(slot->index)) continue;
      Group& group = of(slot->record);
      positions_[slot->record.get()][slot->index] = group.slots.size();
      group.slots.push_back(slot->index);
    }
    for (Group& group : groups) {
      group.memory = group.record->replay(group.slots, group.record->num_steps(), device);
    }
  }

  // Null for a tensor whose memory was not asked for.
  const c10::Storage* memory(const at::Tensor& tensor) const {
    const Slot* const slot = slot_of(tensor);
    if (slot == nullptr) return nullptr;
    const auto in_record = positions_.find(slot->record.get());
    if (in_record == positions_.end()) return nullptr;
    const auto found = in_record->second.find(slot->index);
    if (found == in_record->second.end()) return nullptr;
    for (const Group& group : groups) {
      if (group.record == slot->record) return &group.memory[found->second];
    }
    return nullptr;
  }

  std::vector<Group> groups;

 private:
  Group& of(const RecordPtr& record) {
    for (Group& group : groups) {
      if (group.record == record) return group;
    }
    return groups.emplace_back(Group{record, {}, {}});
  }

  absl::flat_hash_map<const Record*, absl::flat_hash_map<Index, size_t>> positions_;
};

}  // namespace

bool is_recorded(const at::Tensor& tensor) { return slot_of(tensor) != nullptr; }

std::vector<at::Tensor> recorded_values(const std::vector<at::Tensor>& tensors,
                                        std::optional<c10::Device> device) {
  const std::lock_guard lock(replays());
  const Groups groups(tensors, device);
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
  const std::lock_guard lock(replays());
  const Groups groups(tensors, device);
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
  for (const auto& [tensor, value] : values) internal::rebind(tensor, value);
  for (const Group& group : groups.groups) {
    if (is_last || group.record->is_done()) group.record->advance_generators();
  }
}

}  // namespace accelerate

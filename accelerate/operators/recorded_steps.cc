#include "accelerate/operators/recorded_steps.h"

#include "absl/cleanup/cleanup.h"
#include "accelerate/operators/call_arguments.h"

namespace accelerate::internal::construction {

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
      if (!tensor.is_meta() || !tensor.has_storage()) return;
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
    const at::Generator generator = generator_of(step, drawn_on);
    draw_recorded(generator, this);
    step.draw = draws_of(generator, step.generator).add(index);
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

// A draw needs its tensor's values and so the steps before, unless it overwrites them.
Record::Planned Record::for_draw_of(Index step) const {
  static const auto* const overwriting = new absl::flat_hash_set<std::string>{
      "aten::bernoulli_",  "aten::cauchy_", "aten::exponential_", "aten::geometric_",
      "aten::log_normal_", "aten::normal_", "aten::random_",      "aten::uniform_"};
  const Step& drawing = steps_[step];
  return {step, drawing.operands.size() == 1 && overwriting->contains(drawing.op.schema().name())};
}

// The steps that slots depend on, each slot as before a step, and all that must be drawn before.
std::vector<Record::Planned> Record::plan(std::vector<std::pair<Index, Index>> wanted,
                                          std::vector<Planned> wanted_steps) const {
  absl::flat_hash_map<Index, bool> steps;     // whether each is there for its draw alone
  absl::flat_hash_map<Index, Index> reached;  // by slot, up to where its writers are in
  while (!wanted.empty() || !wanted_steps.empty()) {
    if (wanted_steps.empty()) {
      const auto [slot, end] = wanted.back();
      wanted.pop_back();
      Index& begin = reached[slot];
      for (const Index step : writers_[slot]) {
        if (step >= begin && step < end) wanted_steps.push_back({step, false});
      }
      begin = std::max(begin, end);
      continue;
    }
    const auto [index, is_draw_alone] = wanted_steps.back();
    wanted_steps.pop_back();
    const auto [known, is_new] = steps.try_emplace(index, is_draw_alone);
    if (!is_new && (is_draw_alone || !known->second)) continue;
    known->second = is_draw_alone;
    const Step& step = steps_[index];
    if (!is_draw_alone) {
      for (const Operand& operand : step.operands) {
        if (!operand.other) wanted.emplace_back(operand.slot, index);
      }
    }
    if (step.generator < 0 || !is_new) continue;
    const Draws& draws = draws_[step.generator];
    if (!draws.state(step.draw).defined()) {
      wanted_steps.push_back(for_draw_of(draws.step(step.draw - 1)));
    }
  }
  std::vector<Planned> in_order;
  for (const auto& [step, is_draw_alone] : steps) in_order.push_back({step, is_draw_alone});
  std::ranges::sort(in_order, {}, &Planned::step);
  return in_order;
}

// Executes steps in the way of a construction without the record.
class Record::Run {
 public:
  Run(Record& record, std::vector<Planned> steps, const std::vector<Index>& targets,
      std::optional<c10::Device> device)
      : record_(record),
        steps_(std::move(steps)),
        targets_(targets.begin(), targets.end()),
        device_(device) {
    for (const auto& [step, is_draw_alone] : steps_) {
      if (is_draw_alone) continue;
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
  }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  void execute() {
    for (position_ = 0; position_ < steps_.size(); ++position_) {
      const Step& step = now();
      torch::jit::Stack stack = arguments(step);
      if (step.generator >= 0) begin_draw(step);
      call(step, stack);
      if (step.generator >= 0) end_draw(step);
      if (steps_[position_].is_draw_alone) continue;
      for (const Result& result : step.results) take(result, stack);
      for (const Operand& operand : step.operands) {
        if (!operand.other) leave(operand.slot);
      }
      for (const Result& result : step.results) leave(result.slot);
    }
  }

  const c10::Storage& memory(Index slot) const { return memory_.at(slot); }

 private:
  const Step& now() const { return record_.steps_[steps_[position_].step]; }

  // The default dtype is the process's.
  static void call(const Step& step, torch::jit::Stack& stack) {
    const caffe2::TypeMeta before = c10::get_default_dtype();
    const bool changes = step.default_dtype && *step.default_dtype != before;
    if (changes) c10::set_default_dtype(*step.default_dtype);
    const absl::Cleanup restore = [&] {
      if (changes) c10::set_default_dtype(before);
    };
    step.op.callBoxed(stack);
  }

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
      if (steps_[position_].is_draw_alone) {
        const at::TensorOptions options(record_.devices_[operand.slot]);
        put_tensor(stack[operand.argument], operand.element,
                   at::empty_strided(operand.view.sizes, operand.view.strides,
                                     options.dtype(operand.view.dtype)));
        continue;
      }
      const c10::Storage storage =
          operand.other ? operand.other->replay({operand.slot}, operand.time, std::nullopt).front()
                        : memory_.at(operand.slot);
      put_tensor(stack[operand.argument], operand.element, operand.view.of(storage));
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
    draws.save_state(next);
  }

  bool is_for_target(const Step& step) const {
    const auto is_target = [this](const auto& part) { return targets_.contains(part.slot); };
    return std::any_of(step.operands.begin(), step.operands.end(), is_target) ||
           std::any_of(step.results.begin(), step.results.end(), is_target);
  }

  void take(const Result& result, const torch::jit::Stack& stack) {
    const size_t first = stack.size() - now().op.schema().returns().size();
    const c10::IValue& value = stack[first + result.output];
    const at::Tensor made =
        result.element < 0 ? value.toTensor() : value.toListRef()[result.element].toTensor();
    if (result.view.fits(made)) {
      memory_[result.slot] = made.storage();
      return;
    }
    // A kernel may lay out its result in another way than without memory.
    TORCH_CHECK(made.sizes() == at::IntArrayRef(result.view.sizes) && result.view.offset == 0,
                text_of(now().op), " made a tensor of another size than without memory");
    const at::Tensor laid_out =
        at::empty_strided(result.view.sizes, result.view.strides, made.options());
    laid_out.copy_(made);
    memory_[result.slot] = laid_out.storage();
  }

  void leave(Index slot) {
    if (last_use_.at(slot) != steps_[position_].step) return;
    const auto found = memory_.find(slot);
    if (found == memory_.end()) return;
    if (!targets_.contains(slot)) {
      memory_.erase(found);
    } else if (device_ && !lies_on(found->second, *device_)) {
      found->second = copied_to(found->second, *device_);
    }
  }

  Record& record_;
  const std::vector<Planned> steps_;
  const absl::flat_hash_set<Index> targets_;
  const std::optional<c10::Device> device_;
  absl::flat_hash_map<Index, Index> last_use_;  // by slot
  absl::flat_hash_map<Index, c10::Storage> memory_;
  std::vector<at::Tensor> found_;   // by generator, its state
  std::vector<int64_t> next_draw_;  // by generator; -1 before the first
  size_t position_ = 0;
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
  Run(*this, plan({}, {for_draw_of(draws.step(draws.size() - 1))}), {}, std::nullopt).execute();
}

void Record::draw_all_recorded() {
  for (const Record* const record : recording()) {
    for (const Draws& draws : record->draws_) draw_recorded(draws.generator(), nullptr);
  }
}

void Record::draw_recorded(const at::Generator& generator, const Record* but_for) {
  for (Record* const record : recording()) {
    if (record == but_for) continue;
    for (size_t i = 0; i < record->draws_.size(); ++i) {
      if (record->draws_[i].generator() != generator || !record->draws_[i].is_marked()) continue;
      record->ensure_end(i);
      record->draws_[i].advance_generator();
    }
  }
}

void Record::advance_generators() {
  for (size_t i = 0; i < draws_.size(); ++i) {
    if (!draws_[i].is_behind()) continue;
    ensure_end(i);
    draws_[i].advance_generator();
  }
}

}  // namespace accelerate::internal::construction

/// The record of a construction: the operators that made tensors, what each of them read, the
/// random numbers that they draw, and their replay. See construction_record.h, whose parts these
/// are.
///
/// Threads: under replays().
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
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

namespace accelerate::internal::construction {

using Index = uint32_t;
using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

class Record;
using RecordPtr = c10::intrusive_ptr<Record>;

// Records and the generators that they set are shared by threads.
inline std::recursive_mutex& replays() {
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

inline void lose_slot(void* slot) { delete static_cast<Slot*>(slot); }

inline const Slot* slot_of(const at::Tensor& tensor) {
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

inline c10::Storage copied_to(const c10::Storage& storage, c10::Device device) {
  const auto bytes = static_cast<int64_t>(storage.nbytes());
  const at::Tensor all = at::empty({0}, at::TensorOptions(storage.device()).dtype(at::kByte))
                             .set_(storage, 0, {bytes}, {1});
  const at::Tensor copy = at::empty({bytes}, at::TensorOptions(device).dtype(at::kByte));
  copy.copy_(all);
  return copy.storage();
}

inline bool lies_on(const c10::Storage& storage, c10::Device device) {
  return storage.device().type() == device.type() &&
         (!device.has_index() || storage.device().index() == device.index());
}

// ---- Arguments and results.

inline bool is_random(const c10::OperatorHandle& op) {
  return op.hasTag(at::Tag::nondeterministic_seeded);
}

inline std::string text_of(const c10::OperatorHandle& op) {
  return c10::toString(op.operator_name());
}

// Whether LibTorch refused an operator because there are no values.
inline bool is_about_meta(const c10::Error& error) {
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
  // Where it decides the dtype of the result, as in a quotient of integers.
  std::optional<caffe2::TypeMeta> default_dtype = {};
  // For a random operator: of which generator it is which draw.
  int generator = -1;
  Index draw = 0;
};

// ---- Random numbers.

inline bool are_equal(const at::Tensor& state, const at::Tensor& other) {
  return state.nbytes() == other.nbytes() &&
         std::memcmp(state.const_data_ptr(), other.const_data_ptr(), state.nbytes()) == 0;
}

// What one generator would have drawn.
//
// While a scope records, the generator stands in a state that nothing else puts it into, another
// record neither. So a constructor that seeds it is noticed, even if it seeds with what was there
// before, and so are other threads that record.
class Draws {
 public:
  explicit Draws(at::Generator generator) : generator_(std::move(generator)) {
    static uint64_t records = 0;
    at::Generator other = generator_.clone();
    other.set_current_seed(0xacce1e7a7e + records++);
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
  void save_state(size_t draw) {
    at::Tensor& state = draw < draws_.size() ? draws_[draw].state : end_;
    if (!state.defined()) state = generator_state(generator_);
  }

  bool is_marked() const { return are_equal(generator_state(generator_), marker_); }
  // Sets the generator to its state after all draws.
  void advance_generator() {
    set(end_);
    num_drawn_ = draws_.size();
  }
  void unmark() {
    if (is_marked()) set(before_);
  }
  // Whether the generator is as the scope left it.
  bool is_behind() const {
    return draws_.size() > num_drawn_ && are_equal(generator_state(generator_), before_);
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
  size_t num_drawn_ = 0;
};

// ---- The record.

class Record final : public c10::intrusive_ptr_target {
 public:
  Record() { recording().push_back(this); }
  ~Record() override {
    if (is_recording_) end_recording();
  }

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

  // Lets the generators really draw what this record, and those of other threads, have recorded.
  static void draw_all_recorded();
  // The end of the recording: leaves the generators as they were.
  void unmark() {
    for (Draws& draws : draws_) draws.unmark();
    end_recording();
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
  // A step of a replay. Nothing wants the tensor of a step that is there for its draw alone.
  struct Planned {
    Index step;
    bool is_draw_alone;
  };

  // Records of scopes that have not ended.
  static std::vector<Record*>& recording() {
    static auto* const records = new std::vector<Record*>();
    return *records;
  }

  void end_recording() {
    const std::lock_guard lock(replays());
    std::erase(recording(), this);
    is_recording_ = false;
  }

  // The generator really draws what others than `but_for` have recorded of it.
  static void draw_recorded(const at::Generator& generator, const Record* but_for);
  Draws& draws_of(const at::Generator& generator, int& index);
  at::Generator generator_of(const Step& step, c10::Device device) const;
  Planned for_draw_of(Index step) const;
  std::vector<Planned> plan(std::vector<std::pair<Index, Index>> wanted,
                            std::vector<Planned> wanted_steps) const;
  void ensure_end(size_t generator);

  std::vector<Step> steps_;
  std::vector<c10::SmallVector<Index, 2>> writers_;  // by slot, the steps that write to it
  std::vector<c10::Device> devices_;                 // by slot, where it would have been
  std::vector<Draws> draws_;
  std::vector<WeakTensor> known_;
  std::string last_;
  bool is_recording_ = true;
  bool was_replayed_ = false;
};

// Operators that neither handlers nor autograd nor automatic mixed precision see.
struct PlainOperators {
  const OperatorModeScope no_handlers{OperatorHandlers()};
  const c10::InferenceMode no_inference{false};
  const at::NoGradGuard no_grad;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
};

}  // namespace accelerate::internal::construction

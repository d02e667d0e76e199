#include "simulator/c10d/held_buffers.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"
#include "simulator/device/host_memory.h"

namespace accelerate::simulator {
namespace {

// The value of a result until the wait: a signalling NaN, which even an addition changes; an odd
// number for integers. Complex numbers are pairs of floating-point numbers.
uint64_t poison_bits(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBool: return 1;
    case at::kHalf:
    case at::kComplexHalf: return 0x7D25;
    case at::kBFloat16: return 0x7FA5;
    case at::kFloat:
    case at::kComplexFloat: return 0x7FA5A5A5;
    case at::kDouble:
    case at::kComplexDouble: return 0x7FF4A5A5A5A5A5A5;
    default: return 0xA5A5A5A5A5A5A5A5;
  }
}

size_t poison_bytes(const at::Tensor& tensor) {
  return tensor.is_complex() ? tensor.itemsize() / 2 : std::min<size_t>(tensor.itemsize(), 8);
}

char* bytes_of(const at::Tensor& tensor) { return static_cast<char*>(tensor.mutable_data_ptr()); }

bool overlap(const at::Tensor& a, const at::Tensor& b) {
  return bytes_of(a) < bytes_of(b) + b.nbytes() && bytes_of(b) < bytes_of(a) + a.nbytes();
}

void poison(const at::Tensor& tensor) {
  const uint64_t bits = poison_bits(tensor.scalar_type());
  char* bytes = bytes_of(tensor);
  size_t filled = poison_bytes(tensor);
  std::memcpy(bytes, &bits, filled);
  while (filled < tensor.nbytes()) {
    const size_t more = std::min(filled, tensor.nbytes() - filled);
    std::memcpy(bytes + filled, bytes, more);
    filled += more;
  }
}

bool is_poison(const at::Tensor& tensor) {
  const uint64_t bits = poison_bits(tensor.scalar_type());
  const char* bytes = bytes_of(tensor);
  const size_t size = poison_bytes(tensor);
  // The first element is poison, and every other element equals the one before it.
  return std::memcmp(bytes, &bits, size) == 0 &&
         std::memcmp(bytes, bytes + size, tensor.nbytes() - size) == 0;
}

bool writes_inputs(const Call& call, int member) {
  switch (call.fingerprint.op) {
    case c10d::OpType::ALLREDUCE:
    case c10d::OpType::ALLREDUCE_COALESCED: return true;
    case c10d::OpType::BROADCAST: return call.fingerprint.root != member;
    case c10d::OpType::REDUCE: return call.fingerprint.root == member;
    default: return false;
  }
}

}  // namespace

std::shared_ptr<HeldBuffers> HeldBuffers::take(Call& call, SimDevice* device, int member,
                                               std::shared_ptr<const Communicator> communicator) {
  std::shared_ptr<HeldBuffers> held(new HeldBuffers(device, member, std::move(communicator)));
  held->fingerprint_ = call.fingerprint;
  held->fingerprint_.sequence = held->communicator_->sequence(member);
  at::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  const ChargeScope uncharged(nullptr, nullptr);
  // All copies are made before anything is poisoned: inputs and outputs may overlap.
  held->hold(call.inputs, writes_inputs(call, member));
  held->hold(call.outputs, true);
  if (device != nullptr) return held;
  for (const Held& buffer : held->held_) {
    if (buffer.written) poison(buffer.program);
  }
  return held;
}

void HeldBuffers::hold(std::vector<at::Tensor>& tensors, bool written) {
  for (at::Tensor& tensor : tensors) {
    // A sparse tensor has no storage of its own.
    if (!tensor.has_storage() || tensor.numel() == 0) continue;
    if (device_ == nullptr) {
      held_.push_back({tensor, tensor.clone(), written});
      tensor = held_.back().copy;
      continue;
    }
    const char* begin = static_cast<const char*>(tensor.storage().data()) +
                        tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize());
    device_->take_off({c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(
                           tensor.storage().unsafeGetStorageImpl()),
                       begin, begin + tensor.nbytes(), written, shared_from_this()});
    if (written) {
      device_->memory().mark(block_of(tensor.storage().data_ptr()), MemoryCategory::kBuckets);
    }
  }
}

std::string HeldBuffers::describe() const {
  return absl::StrCat(fingerprint_.to_string(), " of group \"", communicator_->name(), "\"");
}

void HeldBuffers::check(const Held& held) const {
  if (held.written) {
    TORCH_CHECK(is_poison(held.program), "rank ", communicator_->rank(member_),
                " wrote to the result of ", describe(), " before it had waited for it");
    return;
  }
  // An input that shares memory with a result was checked there.
  for (const Held& other : held_) {
    if (other.written && overlap(other.program, held.program)) return;
  }
  TORCH_CHECK(std::memcmp(bytes_of(held.program), bytes_of(held.copy), held.program.nbytes()) == 0,
              "rank ", communicator_->rank(member_), " changed the input of ", describe(),
              " before it had waited for it");
}

void HeldBuffers::give_back() {
  if (device_ != nullptr) {
    device_->land(this);
    return;
  }
  for (const Held& held : held_) check(held);
  abandon();
}

void HeldBuffers::abandon() {
  if (device_ != nullptr) device_->land(this);
  for (const Held& held : std::exchange(held_, {})) {
    if (held.written) {
      std::memcpy(bytes_of(held.program), bytes_of(held.copy), held.program.nbytes());
    }
  }
}

}  // namespace accelerate::simulator

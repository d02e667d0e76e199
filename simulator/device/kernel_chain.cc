#include "simulator/device/kernel_chain.h"

#include <algorithm>
#include <utility>

namespace accelerate::simulator {

KernelChain::Entry& KernelChain::entry(c10::StorageImpl* storage) {
  const auto found = entries_.find(storage);
  if (found != entries_.end()) return found->second;
  using Owner = c10::intrusive_ptr<c10::StorageImpl>;
  c10::weak_intrusive_ptr<c10::StorageImpl> weak(Owner::reclaim_copy(storage));
  return entries_.emplace(storage, Entry{.storage = std::move(weak)}).first->second;
}

void KernelChain::add_results(const std::vector<TensorUse>& uses) {
  for (const TensorUse& use : uses) {
    Entry& each = entry(use.storage);
    if (!use.written) continue;
    each.changed = true;
    each.written = true;
    each.is_result |= use.fresh;
    each.bytes = use.bytes;
  }
}

void KernelChain::begin(Fusion fusion, const std::vector<TensorUse>& uses, const KernelWork& work) {
  entries_.clear();
  is_open_ = fusion != Fusion::kNone;
  if (!is_open_) return;
  has_rows_ = fusion == Fusion::kRows;
  total_ = work;
  passed_ = work.bytes;
  add_results(uses);
}

bool KernelChain::extend(Fusion fusion, const std::vector<TensorUse>& uses, KernelWork& work) {
  if (!is_open_ || fusion == Fusion::kNone || (fusion == Fusion::kRows && has_rows_)) return false;
  double largest = 0;
  double shared = 0;
  bool takes_result = false;
  for (const TensorUse& use : uses) {
    largest = std::max(largest, use.bytes);
    if (use.written && use.fresh) continue;
    const auto found = entries_.find(use.storage);
    if (found == entries_.end()) continue;
    shared = std::max(shared, use.bytes);
    takes_result |= found->second.changed;
  }
  constexpr double kSmall = 0.25;  // a cast from eight to two bytes still shares its tensor
  if (!takes_result || shared < kSmall * largest) return false;

  const bool is_norm = work.kind == KernelWork::Kind::kNorm;
  double read = 0;
  double written = 0;
  for (const TensorUse& use : uses) {
    const auto found = entries_.find(use.storage);
    const bool is_known = found != entries_.end();
    if (use.written) {
      if (use.fresh || !is_known || !found->second.written) written += use.bytes;
      continue;
    }
    if (!is_known) {
      read += use.bytes;
    } else if (!is_norm && found->second.is_result && found->second.written) {
      written -= found->second.bytes;
      found->second.written = false;
    }
  }
  add_results(uses);
  has_rows_ |= fusion == Fusion::kRows;
  total_.bytes += read + written;
  total_.written_bytes += written;
  total_.flops += work.flops;
  if (is_norm) total_.kind = work.kind;
  total_.launches = std::max(total_.launches, work.launches);
  work.bytes = std::max(0.0, total_.bytes - passed_);
  passed_ = std::max(passed_, total_.bytes);
  work.written_bytes = std::clamp(written, 0.0, work.bytes);
  return true;
}

}  // namespace accelerate::simulator

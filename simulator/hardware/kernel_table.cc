#include "simulator/hardware/kernel_table.h"

namespace accelerate::simulator {

double KernelTable::memory_share(double written_share) const {
  constexpr double kAdd = 1.0 / 3;
  constexpr double kCopy = 1.0 / 2;
  if (written_share >= kCopy) return copy.value;
  if (written_share >= kAdd) {
    return add.value + (copy.value - add.value) * (written_share - kAdd) / (kCopy - kAdd);
  }
  return read.value + (add.value - read.value) * written_share / kAdd;
}

}  // namespace accelerate::simulator

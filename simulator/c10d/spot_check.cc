#include "simulator/c10d/spot_check.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"
#include "accelerate/base/number_text.h"

namespace accelerate::simulator {
namespace {

std::string text_of(const CollectiveFingerprint& call, int group_size) {
  if (call.op == c10d::OpType::UNKNOWN) return "the end of the program";
  return absl::StrCat(call.to_string(), " among ", group_size, " ranks");
}

// The task at that place, as text.
std::string text_of(const std::vector<DeviceTask>& tasks, size_t index) {
  if (index >= tasks.size()) return "nothing more";
  const DeviceTask& task = tasks[index];
  return absl::StrCat(task.name, " (", task.flops, " FLOPs, ", task.bytes, " bytes)");
}

bool same(const DeviceTask& a, const DeviceTask& b) {
  return std::string_view(a.name) == b.name && a.flops == b.flops && a.bytes == b.bytes;
}

}  // namespace

SpotCheck::SpotCheck(const ExecutedRanks& executed)
    : executed_(executed),
      calls_(executed.num_tasks(), -1),
      devices_(executed.num_tasks()),
      classes_(executed.num_classes()) {
  for (int rank : executed.ranks()) ++classes_[executed.class_of(rank)].executed;
  for (int rank : executed.ranks()) {
    if (classes_[executed.class_of(rank)].executed > 1) calls_[executed.task_of(rank)] = 0;
  }
}

void SpotCheck::set_devices(int rank, absl::Span<SimDevice* const> devices) {
  devices_[executed_.task_of(rank)].assign(devices.begin(), devices.end());
  for (SimDevice* device : devices) device->record_tasks(watches(rank));
}

void SpotCheck::compare(int rank, const CollectiveFingerprint& call, int group_size) {
  if (!watches(rank)) return;
  const int64_t number = calls_[executed_.task_of(rank)]++;
  Stretch own{.rank = rank, .call = call, .group_size = group_size};
  for (SimDevice* device : devices_[executed_.task_of(rank)]) {
    std::ranges::move(device->take_recorded_tasks(), std::back_inserter(own.tasks));
    const AllocationCount allocated = device->memory().allocated();
    own.allocated.blocks += allocated.blocks;
    own.allocated.bytes += allocated.bytes;
  }
  Class& all = classes_[executed_.class_of(rank)];
  const auto position = static_cast<size_t>(number - all.first);
  if (position == all.stretches.size()) {
    own.seen = 1;
    all.stretches.push_back(std::move(own));
    return;
  }
  Stretch& other = all.stretches[position];
  const std::string whose =
      absl::StrCat("rank ", rank, " does not do what rank ", other.rank,
                   " does, but with folding they count as one (", executed_.to_string(), "): ");
  const auto [mine, theirs] = std::mismatch(own.tasks.begin(), own.tasks.end(), other.tasks.begin(),
                                            other.tasks.end(), same);
  const std::string before =
      absl::StrCat(" before its call ", number + 1, ", ", text_of(call, group_size));
  if (mine != own.tasks.end() || theirs != other.tasks.end()) {
    const auto index = static_cast<size_t>(mine - own.tasks.begin());
    TORCH_CHECK(false, whose, "its device does ", text_of(own.tasks, index), " as operation ",
                index + 1, before, ", and that of rank ", other.rank, " does ",
                text_of(other.tasks, index));
  }
  const std::optional<std::string> difference = other.call.difference(call);
  TORCH_CHECK(!difference && other.group_size == group_size, whose, "its call ", number + 1, " is ",
              text_of(call, group_size), ", that of rank ", other.rank, " is ",
              text_of(other.call, other.group_size));
  TORCH_CHECK(own.allocated == other.allocated, whose, "it has allocated ", own.allocated.blocks,
              " blocks of ", binary_byte_text(own.allocated.bytes), " in all", before,
              ", and rank ", other.rank, " ", other.allocated.blocks, " of ",
              binary_byte_text(other.allocated.bytes));
  if (++other.seen < all.executed) return;
  // The ranks reach calls in order, so it is the first.
  all.stretches.pop_front();
  ++all.first;
}

}  // namespace accelerate::simulator

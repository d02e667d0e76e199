#include "accelerate/runtime/device_cache.h"

#include <algorithm>
#include <exception>
#include <map>
#include <utility>

#include "accelerate/runtime/runtime.h"

namespace accelerate {
namespace {

std::map<c10::DeviceType, std::function<void()>>& ways() {
  static auto* by_type = new std::map<c10::DeviceType, std::function<void()>>();
  return *by_type;
}

// Ways to ask a device of a type, by its index.
template <typename Answer>
using Ways = std::map<c10::DeviceType, std::function<Answer(int index)>>;

Ways<int64_t>& free_memory_ways() {
  static auto* by_type = new Ways<int64_t>();
  return *by_type;
}

Ways<bool>& shared_memory_ways() {
  static auto* by_type = new Ways<bool>();
  return *by_type;
}

Ways<DeviceMemoryUse>& memory_use_ways() {
  static auto* by_type = new Ways<DeviceMemoryUse>();
  return *by_type;
}

template <typename Answer>
std::optional<Answer> answer(const Ways<Answer>& ways, c10::Device device) {
  const auto found = ways.find(device.type());
  if (found == ways.end()) return std::nullopt;
  try {
    return found->second(std::max<int>(device.index(), 0));
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

}  // namespace

bool register_device_cache(c10::DeviceType type, std::function<void()> empty) {
  ways()[type] = std::move(empty);
  return true;
}

bool release_device_cache(c10::DeviceType type) {
  const auto found = ways().find(type);
  if (found == ways().end()) return false;
  found->second();
  return true;
}

bool register_free_memory(c10::DeviceType type, std::function<int64_t(int index)> free) {
  free_memory_ways()[type] = std::move(free);
  return true;
}

std::optional<int64_t> free_device_memory(c10::Device device) {
  return answer(free_memory_ways(), device);
}

bool register_shared_memory(c10::DeviceType type, std::function<bool(int index)> shares) {
  shared_memory_ways()[type] = std::move(shares);
  return true;
}

bool has_memory_of_host(c10::Device device) {
  return answer(shared_memory_ways(), device).value_or(false);
}

bool register_device_memory(c10::DeviceType type, std::function<DeviceMemoryUse(int index)> use) {
  memory_use_ways()[type] = std::move(use);
  return true;
}

std::optional<DeviceMemoryUse> used_device_memory(c10::Device device) {
  return answer(memory_use_ways(), device);
}

}  // namespace accelerate

#include "accelerate/runtime/device_cache.h"

#include <algorithm>
#include <exception>
#include <map>
#include <utility>

#include "accelerate/runtime/runtime.h"

namespace accelerate {
namespace {

// Ways to ask a device of a type, by its index.
template <typename Answer>
std::map<c10::DeviceType, std::function<Answer(int index)>>& ways() {
  static auto* by_type = new std::map<c10::DeviceType, std::function<Answer(int index)>>();
  return *by_type;
}

template <typename Answer>
std::optional<Answer> answer(c10::Device device) {
  const auto found = ways<Answer>().find(device.type());
  if (found == ways<Answer>().end()) return std::nullopt;
  try {
    return found->second(std::max<int>(device.index(), 0));
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

}  // namespace

bool register_device_cache(c10::DeviceType type, std::function<void()> empty) {
  ways<void>()[type] = [empty = std::move(empty)](int /*index*/) { empty(); };
  return true;
}

bool release_device_cache(c10::DeviceType type) {
  const auto found = ways<void>().find(type);
  if (found == ways<void>().end()) return false;
  found->second(/*index=*/0);
  return true;
}

bool register_free_memory(c10::DeviceType type, std::function<int64_t(int index)> free) {
  ways<int64_t>()[type] = std::move(free);
  return true;
}

std::optional<int64_t> free_device_memory(c10::Device device) { return answer<int64_t>(device); }

bool register_shared_memory(c10::DeviceType type, std::function<bool(int index)> shares) {
  ways<bool>()[type] = std::move(shares);
  return true;
}

bool has_memory_of_host(c10::Device device) { return answer<bool>(device).value_or(false); }

bool register_device_memory(c10::DeviceType type, std::function<DeviceMemoryUse(int index)> use) {
  ways<DeviceMemoryUse>()[type] = std::move(use);
  return true;
}

std::optional<DeviceMemoryUse> used_device_memory(c10::Device device) {
  return answer<DeviceMemoryUse>(device);
}

}  // namespace accelerate

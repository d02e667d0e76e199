#include "accelerate/runtime/device_cache.h"

#include <algorithm>
#include <exception>
#include <map>
#include <utility>

namespace accelerate {
namespace {

std::map<c10::DeviceType, std::function<void()>>& ways() {
  static auto* by_type = new std::map<c10::DeviceType, std::function<void()>>();
  return *by_type;
}

std::map<c10::DeviceType, std::function<int64_t(int)>>& free_memory_ways() {
  static auto* by_type = new std::map<c10::DeviceType, std::function<int64_t(int)>>();
  return *by_type;
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
  const auto found = free_memory_ways().find(device.type());
  if (found == free_memory_ways().end()) return std::nullopt;
  try {
    return found->second(std::max<int>(device.index(), 0));
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

}  // namespace accelerate

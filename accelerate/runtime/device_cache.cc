#include "accelerate/runtime/device_cache.h"

#include <map>
#include <utility>

namespace accelerate {
namespace {

std::map<c10::DeviceType, std::function<void()>>& ways() {
  static auto* by_type = new std::map<c10::DeviceType, std::function<void()>>();
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

}  // namespace accelerate

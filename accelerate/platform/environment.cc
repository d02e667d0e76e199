#include "accelerate/platform/environment.h"

#include <unistd.h>

#include <cstdlib>
#include <utility>

namespace accelerate {

std::optional<std::string> Environment::get(std::string_view name) const {
  if (auto found = overlay_.find(name); found != overlay_.end()) return found->second;
  const char* value = std::getenv(std::string(name).c_str());
  if (value == nullptr) return std::nullopt;
  return std::string(value);
}

std::string Environment::get_or(std::string_view name, std::string_view fallback) const {
  std::optional<std::string> value = get(name);
  return value && !value->empty() ? *std::move(value) : std::string(fallback);
}

std::map<std::string, std::string> Environment::variables() const {
  std::map<std::string, std::string> all;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    // If a name comes twice, getenv returns the first.
    all.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  for (const auto& [name, value] : overlay_) {
    if (value) {
      all.insert_or_assign(name, *value);
    } else {
      all.erase(name);
    }
  }
  return all;
}

void Environment::set(std::string_view name, std::string value) {
  overlay_.insert_or_assign(std::string(name), std::move(value));
}

void Environment::unset(std::string_view name) {
  overlay_.insert_or_assign(std::string(name), std::nullopt);
}

}  // namespace accelerate

#include "accelerate/comm/backends/backend_registry.h"

#include <map>
#include <utility>

#include "absl/log/absl_check.h"
#include "absl/strings/str_join.h"

namespace accelerate {
namespace {

std::map<std::string, BackendFactory>& registry() {
  static auto* factories = new std::map<std::string, BackendFactory>();
  return *factories;
}

}  // namespace

bool register_backend(std::string name, BackendFactory factory) {
  const bool inserted = registry().emplace(name, std::move(factory)).second;
  ABSL_CHECK(inserted) << "backend \"" << name << "\" is registered twice";
  return true;
}

c10::intrusive_ptr<c10d::Backend> make_backend(const std::string& name,
                                               const BackendOptions& options) {
  auto found = registry().find(name);
  TORCH_CHECK_VALUE(found != registry().end(), "unknown backend \"", name,
                    "\"; linked in: ", absl::StrJoin(backend_names(), ", "));
  return found->second(options);
}

std::vector<std::string> backend_names() {
  std::vector<std::string> names;
  for (const auto& [name, factory] : registry()) names.push_back(name);
  return names;
}

}  // namespace accelerate

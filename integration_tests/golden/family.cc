#include "integration_tests/golden/family.h"

#include <map>

namespace accelerate::golden {
namespace {

// Made at the first registration, whichever source file's that is.
std::map<std::string, RunCase>& families() {
  static auto* const families = new std::map<std::string, RunCase>();
  return *families;
}

}  // namespace

FamilyRegistration::FamilyRegistration(const std::string& name, RunCase run) {
  families()[name] = run;
}

RunCase find_family(const std::string& name) {
  auto found = families().find(name);
  return found == families().end() ? nullptr : found->second;
}

std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const auto& [name, run] : families()) names.push_back(name);
  return names;
}

}  // namespace accelerate::golden

#include "integration_tests/golden/family.h"

#include <map>
#include <utility>

namespace accelerate::golden {
namespace {

// Made at the first registration, whichever source file's that is.
std::map<std::string, Family>& families() {
  static auto* const families = new std::map<std::string, Family>();
  return *families;
}

}  // namespace

FamilyRegistration::FamilyRegistration(const std::string& name, RunCase run, ToleranceOf tolerance,
                                       std::vector<std::string> ordered_fields) {
  families()[name] = {run, tolerance, std::move(ordered_fields)};
}

const Family* find_family(const std::string& name) {
  auto found = families().find(name);
  return found == families().end() ? nullptr : &found->second;
}

std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const auto& [name, family] : families()) names.push_back(name);
  return names;
}

}  // namespace accelerate::golden

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
                                       std::vector<std::string> ordered_fields,
                                       TakeFacts take_facts) {
  families()[name] = {run, tolerance, std::move(ordered_fields), take_facts};
}

FamilyRegistration::FamilyRegistration(const std::string& name, RunCase run, TakeFacts take_facts)
    : FamilyRegistration(
          name, run, [](const nlohmann::json& /*in*/) { return Tolerance(); }, {}, take_facts) {}

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

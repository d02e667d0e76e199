#include "accelerate/comm/backends/rendezvous.h"

#include <map>
#include <utility>

namespace accelerate {
namespace {

std::map<std::string, TellAll>& registry() {
  static auto* meetings = new std::map<std::string, TellAll>();
  return *meetings;
}

}  // namespace

bool register_meeting(std::string launcher, TellAll tell_all) {
  return registry().emplace(std::move(launcher), std::move(tell_all)).second;
}

const TellAll* find_meeting(const std::string& launcher) {
  const auto found = registry().find(launcher);
  return found == registry().end() ? nullptr : &found->second;
}

}  // namespace accelerate

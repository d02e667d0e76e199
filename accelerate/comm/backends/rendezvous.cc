#include "accelerate/comm/backends/rendezvous.h"

#include <map>
#include <utility>

namespace accelerate {
namespace {

std::map<std::string, RendezvousExchange>& registry() {
  static auto* exchanges = new std::map<std::string, RendezvousExchange>();
  return *exchanges;
}

}  // namespace

bool register_rendezvous(std::string launcher, RendezvousExchange publish) {
  return registry().emplace(std::move(launcher), std::move(publish)).second;
}

const RendezvousExchange* find_rendezvous(const std::string& launcher) {
  const auto found = registry().find(launcher);
  return found == registry().end() ? nullptr : &found->second;
}

}  // namespace accelerate

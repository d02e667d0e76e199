#include "accelerate/comm/backends/backend_registry.h"

#include <algorithm>
#include <map>
#include <utility>

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include "absl/log/absl_check.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace accelerate {
namespace {

template <typename Entry>
std::map<std::string, Entry>& registry() {
  static auto* entries = new std::map<std::string, Entry>();
  return *entries;
}

c10::DeviceType device_of(const std::string& name, const std::string& choice) {
  try {
    return c10::Device(name).type();
  } catch (const c10::Error&) {
    TORCH_CHECK_VALUE(false, "backend \"", choice, "\": \"", name, "\" is not a device type");
  }
}

std::vector<DeviceBackend> parse(const std::string& choice) {
  std::vector<DeviceBackend> pairs;
  for (const auto part : absl::StrSplit(choice, ',')) {
    const std::vector<std::string> words = absl::StrSplit(absl::StripAsciiWhitespace(part), ':');
    TORCH_CHECK_VALUE(words.size() == 2 && !words[0].empty() && !words[1].empty(), "backend \"",
                      choice, "\" is neither a name nor a list as \"cpu:gloo,cuda:nccl\"");
    const c10::DeviceType device = device_of(words[0], choice);
    for (const DeviceBackend& pair : pairs) {
      TORCH_CHECK_VALUE(pair.device != device, "backend \"", choice, "\" names two for ", words[0]);
    }
    pairs.push_back({.device = device, .backend = words[1]});
  }
  return pairs;
}

}  // namespace

bool register_backend(std::string name, BackendFactory factory) {
  const bool inserted = registry<BackendFactory>().emplace(name, std::move(factory)).second;
  ABSL_CHECK(inserted) << "backend \"" << name << "\" is registered twice";
  return true;
}

c10::intrusive_ptr<c10d::Backend> make_backend(const std::string& name,
                                               const BackendOptions& options) {
  auto found = registry<BackendFactory>().find(name);
  TORCH_CHECK_VALUE(found != registry<BackendFactory>().end(), "unknown backend \"", name,
                    "\"; linked in: ", absl::StrJoin(backend_names(), ", "));
  return found->second(options);
}

std::vector<std::string> backend_names() {
  std::vector<std::string> names;
  for (const auto& [name, factory] : registry<BackendFactory>()) names.push_back(name);
  return names;
}

std::vector<DeviceBackend> backends_by_device(const std::string& choice, c10::DeviceType device) {
  std::vector<DeviceBackend> pairs{{.device = device, .backend = choice}};
  if (choice.find_first_of(":,") != std::string::npos) pairs = parse(choice);
  auto find = [&](c10::DeviceType type) {
    return std::ranges::find(pairs, type, &DeviceBackend::device);
  };
  const auto own = find(device);
  TORCH_CHECK_VALUE(own != pairs.end(), "backend \"", choice, "\" names none for ",
                    c10::DeviceTypeName(device, /*lower_case=*/true),
                    ", on which this rank computes");
  std::vector<DeviceBackend> needed{*own};
  if (device == c10::kCPU) return needed;
  const auto cpu = find(c10::kCPU);
  // The device's own where it carries CPU tensors.
  std::string for_cpu = own->backend == "mpi" ? "mpi" : "gloo";
  if (cpu != pairs.end()) for_cpu = cpu->backend;
  needed.push_back({.device = c10::kCPU, .backend = std::move(for_cpu)});
  return needed;
}

bool register_rendezvous(std::string launcher, RendezvousExchange publish) {
  return registry<RendezvousExchange>().emplace(std::move(launcher), std::move(publish)).second;
}

const RendezvousExchange* find_rendezvous(const std::string& launcher) {
  const auto found = registry<RendezvousExchange>().find(launcher);
  return found == registry<RendezvousExchange>().end() ? nullptr : &found->second;
}

}  // namespace accelerate

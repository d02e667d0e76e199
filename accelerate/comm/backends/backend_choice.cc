#include "accelerate/comm/backends/backend_choice.h"

#include <algorithm>

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"

namespace accelerate {
namespace {

bool carries_cpu_tensors(const std::string& backend) {
  return backend == "gloo" || backend == "mpi";
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

std::vector<DeviceBackend> backends_by_device(const std::string& choice, c10::DeviceType device) {
  std::vector<DeviceBackend> pairs{{.device = device, .backend = choice}};
  if (choice.find_first_of(":,") != std::string::npos) pairs = parse(choice);
  auto find = [&](c10::DeviceType type) {
    return std::find_if(pairs.begin(), pairs.end(),
                        [type](const DeviceBackend& pair) { return pair.device == type; });
  };
  const auto own = find(device);
  TORCH_CHECK_VALUE(own != pairs.end(), "backend \"", choice, "\" names none for ",
                    c10::DeviceTypeName(device, /*lower_case=*/true),
                    ", on which this rank computes");
  std::vector<DeviceBackend> needed{*own};
  if (device == c10::kCPU) return needed;
  const auto cpu = find(c10::kCPU);
  std::string for_cpu = carries_cpu_tensors(own->backend) ? own->backend : "gloo";
  if (cpu != pairs.end()) for_cpu = cpu->backend;
  needed.push_back({.device = c10::kCPU, .backend = std::move(for_cpu)});
  return needed;
}

}  // namespace accelerate

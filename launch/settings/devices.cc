#include "launch/settings/devices.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "launch/process/environment_words.h"

namespace accelerate::launch::settings {
namespace {

namespace fs = std::filesystem;

// Kinds of devices by the names of their files in /dev: the prefix, then a number.
constexpr std::pair<const char*, const char*> kDeviceFiles[] = {
    {"gpu", "nvidia"},  {"npu", "davinci"}, {"mlu", "cambricon_dev"}, {"sdaa", "tcaicard"},
    {"musa", "mtgpu."}, {"hpu", "hl"},      {"neuron", "neuron"},     {"tpu", "accel"},
};

constexpr std::pair<const char*, const char*> kVisibleDevices[] = {
    {"xpu", "ZE_AFFINITY_MASK"},           {"npu", "ASCEND_RT_VISIBLE_DEVICES"},
    {"mlu", "MLU_VISIBLE_DEVICES"},        {"sdaa", "SDAA_VISIBLE_DEVICES"},
    {"musa", "MUSA_VISIBLE_DEVICES"},      {"hpu", "HABANA_VISIBLE_MODULES"},
    {"neuron", "NEURON_RT_VISIBLE_CORES"},
};

constexpr char kIntel[] = "0x8086";

// Names in the folder that are the prefix and a number.
std::vector<std::string> numbered(const fs::path& folder, absl::string_view prefix) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    absl::string_view number = name;
    if (absl::ConsumePrefix(&number, prefix) && !number.empty() &&
        std::all_of(number.begin(), number.end(), absl::ascii_isdigit)) {
      names.push_back(name);
    }
  }
  return names;
}

// All makers' graphics have the same names; only their vendors tell them apart.
int count_intel(const fs::path& root) {
  int count = 0;
  for (const std::string& name : numbered(root / "dev/dri", "renderD")) {
    std::string vendor;
    std::ifstream(root / "sys/class/drm" / name / "device/vendor") >> vendor;
    count += vendor == kIntel;
  }
  return count;
}

}  // namespace

Devices find_devices(const std::string& root, absl::Span<const std::string> environment) {
  Devices devices;
  for (const auto& [kind, prefix] : kDeviceFiles) {
    devices.installed = static_cast<int>(numbered(fs::path(root) / "dev", prefix).size());
    devices.kind = kind;
    if (devices.installed > 0) break;
  }
  if (devices.installed == 0) {
    devices.installed = count_intel(root);
    devices.kind = "xpu";
  }
  const std::optional<std::string> ids =
      process::find_in_environment(environment, visible_devices_variable(devices.kind));
  devices.visible = ids ? count_visible(devices.installed, *ids) : devices.installed;
  if (devices.visible == 0) devices.kind = "cpu";
  return devices;
}

int count_visible(int installed, absl::string_view ids) {
  std::set<absl::string_view> visible;
  for (absl::string_view id : absl::StrSplit(ids, ',', absl::SkipWhitespace())) {
    id = absl::StripAsciiWhitespace(id);
    int64_t number = 0;
    if (absl::SimpleAtoi(id, &number) && (number < 0 || number >= installed)) break;
    visible.insert(id);
  }
  return installed == 0 ? 0 : static_cast<int>(visible.size());
}

const char* visible_devices_variable(absl::string_view kind) {
  for (const auto& [name, variable] : kVisibleDevices) {
    if (kind == name) return variable;
  }
  return "CUDA_VISIBLE_DEVICES";
}

}  // namespace accelerate::launch::settings

#include "launch/commands/release.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "accelerate/base/json_text.h"
#include "launch/commands/probe.h"
#include "launch/settings/machine.h"

namespace accelerate::launcher::commands {
namespace {

namespace fs = std::filesystem;

// The numbers of "2.6.0+cu124" or "2.7.0a0".
std::vector<std::string> numbers_of(absl::string_view version) {
  std::vector<std::string> numbers;
  for (const absl::string_view part : absl::StrSplit(version, '.')) {
    numbers.emplace_back(part.substr(0, part.find_first_not_of("0123456789")));
    if (numbers.back().size() < part.size()) break;
  }
  return numbers;
}

// Files of a distribution have fewer numbers in their names: "2.6" for 2.6.0.
bool is_same_version(absl::string_view one, absl::string_view other) {
  const std::vector<std::string> ours = numbers_of(one);
  const std::vector<std::string> theirs = numbers_of(other);
  for (size_t i = 0; i < std::min(ours.size(), theirs.size()); ++i) {
    if (ours[i] != theirs[i]) return false;
  }
  return true;
}

// The C++ ABI of the LibTorch that has the library, where its CMake package tells.
std::optional<int> abi_of(const fs::path& library) {
  const fs::path root = library.parent_path().parent_path();
  const std::string text =
      settings::read_text(root / "share/cmake/Torch/TorchConfig.cmake").value_or("");
  for (const int abi : {0, 1}) {
    if (absl::StrContains(text, absl::StrCat("_GLIBCXX_USE_CXX11_ABI=", abi))) return abi;
  }
  return std::nullopt;
}

std::string libtorch_text(absl::string_view version, std::optional<int> abi) {
  return absl::StrCat("LibTorch ", version, abi ? absl::StrCat(" (C++11 ABI: ", *abi, ")") : "");
}

}  // namespace

absl::Status check_libtorch(const std::string& executable, const std::string& program) {
  const fs::path root = fs::path(executable).parent_path().parent_path();
  const nlohmann::json release = accelerate::internal::parse_json(
      settings::read_text(root / "share/accelerate-cpp/release.json").value_or(""),
      /*allow_exceptions=*/false);
  if (!release.is_object()) return absl::OkStatus();
  const std::string wanted = release.value("libtorch", std::string());
  const int wanted_abi = release.value("cxx11_abi", 1);
  const std::string library = linked_library(program, "libtorch_cpu.so");
  if (wanted.empty() || library.empty()) return absl::OkStatus();
  const std::string found = libtorch_version(library);
  const std::optional<int> found_abi = abi_of(library);
  const bool is_known = !found.empty();
  const bool is_same_abi = found_abi.value_or(wanted_abi) == wanted_abi;
  if ((!is_known || is_same_version(found, wanted)) && is_same_abi) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "Accelerate was built with ", libtorch_text(wanted, wanted_abi), ", and ",
      libtorch_text(is_known ? found : "of an unknown version", found_abi), " was found: ", library,
      ". Take the release of Accelerate for this LibTorch, or put the folder of the other one "
      "first in LD_LIBRARY_PATH"));
}

}  // namespace accelerate::launcher::commands

// Any text is either refused, or a manifest of files in its own folder that can be written again.
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/log/absl_check.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "accelerate/files/formats/manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const auto files = accelerate::parse_manifest_files(text);
  if (files.ok()) {
    for (const auto& [name, file] : *files) {
      ABSL_CHECK(!name.empty() && name.front() != '/');
      ABSL_CHECK(("/" + name + "/").find("/../") == std::string::npos);
      ABSL_CHECK_GE(file.size, 0);
    }
    const auto again = accelerate::parse_manifest_files(accelerate::manifest_files_text(*files));
    ABSL_CHECK_OK(again.status());
    ABSL_CHECK(*again == *files);
  }
  const absl::StatusOr<accelerate::Manifest> manifest = accelerate::parse_manifest(text);
  if (!manifest.ok()) return 0;
  const absl::StatusOr<accelerate::Manifest> again =
      accelerate::parse_manifest(accelerate::manifest_text(*manifest));
  ABSL_CHECK_OK(again.status());
  ABSL_CHECK(*again == *manifest);
  return 0;
}

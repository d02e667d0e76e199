/// What this library makes of each name of a compiler: the one table that the launcher, the plug-in
/// and the pages read. The names themselves are those of DynamoBackend.
///
/// Threads: constant data.
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "accelerate/base/enums.h"

namespace accelerate {

struct CompileBackendRow {
  DynamoBackend backend;
  bool works;
  /// What the backend does; where it does not work, why.
  const char* says;
  /// The nearest one that works, for one that does not.
  DynamoBackend nearest = DynamoBackend::kNo;
};

/// How HF Accelerate's flag spells TORCHXLA_TRACE_ONCE, in small letters.
inline constexpr char kMisspeltTraceOnce[] = "torhchxla_trace_once";

/// In the order of DynamoBackend.
absl::Span<const CompileBackendRow> compile_backend_rows();
const CompileBackendRow& compile_backend_row(DynamoBackend backend);

/// The member of a name in any case, the misspelt one included; absent for any other text.
std::optional<DynamoBackend> find_compile_backend(absl::string_view name);

/// Why the backend does not work, and which one is nearest; empty for one that works.
std::string compile_backend_refusal(DynamoBackend backend);

}  // namespace accelerate

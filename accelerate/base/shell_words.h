/// Words as a POSIX shell reads them back.
///
/// Threads: pure functions.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace accelerate {

/// `word` itself where every character is literal to a shell, else between single quotes.
std::string shell_quoted(absl::string_view word);

/// A command line: the quoted words with blanks between them.
std::string shell_line(absl::Span<const std::string> words);

}  // namespace accelerate

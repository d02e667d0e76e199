/// Colours of text on a terminal: whether a stream shows them, and the escape codes.
///
/// Threads: any.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "accelerate/platform/environment.h"

namespace accelerate::launcher::process {

/// Whether text for `fd` may have escape codes: if it is a terminal and TERM is set and not "dumb".
/// NO_COLOR turns colours off wherever the text goes; otherwise CLICOLOR_FORCE turns them on there.
/// Both count if they are set and not empty, CLICOLOR_FORCE unless it is "0".
bool shows_colour(int fd, const Environment& environment = {});

/// `text` in bold red if `has_colour`, else as it is.
std::string as_error(absl::string_view text, bool has_colour);

/// What stands before each line of a rank's output, "[rank 3] ". Neighbouring ranks have different
/// colours.
std::string rank_prefix(int rank, bool has_colour);

}  // namespace accelerate::launcher::process

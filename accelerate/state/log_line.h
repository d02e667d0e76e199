/// Lines of the library's own loggers, for sources that need nothing else of logger.h.
///
/// Where there is no PartialState it is unknown which rank logs, and nothing is written.
/// Threads: the rank's thread.
#pragma once

#include <string>
#include <string_view>

namespace accelerate::internal {

void log_warning(std::string_view logger, const std::string& text);
void log_info(std::string_view logger, const std::string& text);

}  // namespace accelerate::internal

#include "simulator/report/json_text.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace accelerate::simulator {

std::string json_string(absl::string_view text) {
  const std::string quoted =
      nlohmann::json(std::string(text))
          .dump(-1, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace);
  return absl::StrReplaceAll(quoted, {{"<", "\\u003c"}});
}

std::string json_number(double value) { return nlohmann::json(value).dump(); }

std::string microseconds(int64_t ns) { return absl::StrFormat("%d.%03d", ns / 1000, ns % 1000); }

}  // namespace accelerate::simulator

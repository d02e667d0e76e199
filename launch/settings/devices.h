/// The accelerators of a machine, counted by the files that the system shows for them; no driver's
/// library is asked.
/// Errors:  none; what cannot be read is not there.
/// Threads: any.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace accelerate::launch::settings {

struct Devices {
  /// "gpu", "npu", "mlu", "sdaa", "musa", "hpu", "neuron", "tpu", "xpu"; "cpu" where there are
  /// none, or none is visible.
  std::string kind = "cpu";
  int installed = 0;
  /// Those that the kind's variable leaves.
  int visible = 0;
};

/// The devices of the system whose files are below `root`, "/" for this one. `environment` holds
/// `NAME=value` words.
Devices find_devices(const std::string& root, absl::Span<const std::string> environment);

/// How many devices a list such as "0,2" shows of `installed` ones. The first that is not there
/// ends it, as it does for CUDA; those that have names instead of numbers are believed.
int count_visible(int installed, absl::string_view ids);

/// The variable that limits which devices of a kind a process sees.
const char* visible_devices_variable(absl::string_view kind);

}  // namespace accelerate::launch::settings

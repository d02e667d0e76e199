#include "accelerate/config/kwargs_handlers.h"

#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"
#include "accelerate/runtime/env.h"

namespace accelerate {
namespace {

constexpr char kNccl[] = "nccl";
constexpr absl::Duration kNcclTimeout = absl::Minutes(10);
constexpr absl::Duration kTimeout = absl::Minutes(30);

}  // namespace

absl::Duration InitProcessGroupKwargs::effective_timeout() const {
  return timeout.value_or(backend == kNccl ? kNcclTimeout : kTimeout);
}

void check_init_method(const InitProcessGroupKwargs& kwargs, const Environment& environment) {
  if (!kwargs.init_method || *kwargs.init_method == "env://") return;
  const std::string host = environment.get_or(env::kMasterAddr, "");
  const std::string port = environment.get_or(env::kMasterPort, "");
  const bool is_tcp = kwargs.init_method->starts_with("tcp://");
  if (is_tcp && host.empty() && port.empty()) return;
  const std::string address = absl::StrCat("tcp://", host, ":", port);
  if (is_tcp && *kwargs.init_method == address) return;
  TORCH_CHECK_VALUE(false, "InitProcessGroupKwargs: init_method \"", *kwargs.init_method,
                    "\" is not how the ranks of this job meet; leave it out, or give \"env://\" or "
                    "the address that ",
                    env::kMasterAddr, " and ", env::kMasterPort, " say",
                    host.empty() && port.empty() ? "" : absl::StrCat(" (\"", address, "\")"));
}

KwargsHandlers KwargsHandlers::from_list(const std::vector<KwargsHandler>& list) {
  KwargsHandlers handlers;
  bool seen_ddp = false;
  bool seen_init = false;
  bool seen_profile = false;
  auto once = [](bool& seen, const char* name) {
    TORCH_CHECK_VALUE(!seen, "kwargs_handlers: only one ", name, " can be given");
    seen = true;
  };
  for (const KwargsHandler& handler : list) {
    if (const auto* ddp = std::get_if<DistributedDataParallelKwargs>(&handler)) {
      once(seen_ddp, "DistributedDataParallelKwargs");
      handlers.ddp = *ddp;
    } else if (const auto* init = std::get_if<InitProcessGroupKwargs>(&handler)) {
      once(seen_init, "InitProcessGroupKwargs");
      handlers.init = *init;
    } else {
      once(seen_profile, "ProfileKwargs");
      handlers.profile = std::get<ProfileKwargs>(handler);
    }
  }
  return handlers;
}

}  // namespace accelerate

#include "accelerate/config/kwargs_handlers.h"

#include <c10/util/Exception.h>

namespace accelerate {

KwargsHandlers KwargsHandlers::from_list(const std::vector<KwargsHandler>& list) {
  KwargsHandlers handlers;
  bool seen_ddp = false;
  bool seen_init = false;
  auto once = [](bool& seen, const char* name) {
    TORCH_CHECK_VALUE(!seen, "kwargs_handlers: only one ", name, " can be given");
    seen = true;
  };
  for (const KwargsHandler& handler : list) {
    if (const auto* ddp = std::get_if<DistributedDataParallelKwargs>(&handler)) {
      once(seen_ddp, "DistributedDataParallelKwargs");
      handlers.ddp = *ddp;
    } else {
      once(seen_init, "InitProcessGroupKwargs");
      handlers.init = std::get<InitProcessGroupKwargs>(handler);
    }
  }
  return handlers;
}

}  // namespace accelerate

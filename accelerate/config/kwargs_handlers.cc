#include "accelerate/config/kwargs_handlers.h"

#include <array>
#include <utility>

#include <c10/util/Exception.h>

#include "absl/functional/overload.h"
#include "absl/strings/str_cat.h"
#include "accelerate/platform/env.h"

namespace accelerate {
namespace {

constexpr char kNccl[] = "nccl";
constexpr absl::Duration kNcclTimeout = absl::Minutes(10);
constexpr absl::Duration kTimeout = absl::Minutes(30);

// In the order of KwargsHandler.
constexpr std::array<const char*, std::variant_size_v<KwargsHandler>> kNames = {
    "DistributedDataParallelKwargs",
    "InitProcessGroupKwargs",
    "ProfileKwargs",
    "AutocastKwargs",
    "GradScalerKwargs",
    "TERecipeKwargs",
    "MSAMPRecipeKwargs",
    "AORecipeKwargs",
    "FP8RecipeKwargs",
};

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
                    "\" is not the rendezvous of this job; leave it out, or give \"env://\" or "
                    "the address that ",
                    env::kMasterAddr, " and ", env::kMasterPort, " say",
                    host.empty() && port.empty() ? "" : absl::StrCat(" (\"", address, "\")"));
}

KwargsHandlers KwargsHandlers::from_list(const std::vector<KwargsHandler>& list) {
  KwargsHandlers handlers;
  const auto keep = absl::Overload{
      [&](const DistributedDataParallelKwargs& ddp) { handlers.ddp = ddp; },
      [&](const InitProcessGroupKwargs& init) { handlers.init = init; },
      [&](const ProfileKwargs& profile) { handlers.profile = profile; },
      [&](const AutocastKwargs& autocast) { handlers.autocast = autocast; },
      [&](const GradScalerKwargs& scaler) { handlers.scaler = scaler; },
      [&](const TERecipeKwargs& te) { handlers.fp8.te = te; },
      [&](const MSAMPRecipeKwargs& msamp) { handlers.fp8.msamp = msamp; },
      [&](const AORecipeKwargs& ao) { handlers.fp8.ao = ao; },
      [&](const FP8RecipeKwargs& recipe) { handlers.fp8.recipe = recipe; },
  };
  std::array<bool, std::variant_size_v<KwargsHandler>> seen{};
  for (const KwargsHandler& handler : list) {
    TORCH_CHECK_VALUE(!std::exchange(seen[handler.index()], true), "kwargs_handlers: only one ",
                      kNames[handler.index()], " can be given");
    std::visit(keep, handler);
  }
  return handlers;
}

}  // namespace accelerate

#include "accelerate/process/ucx_signals.h"

#include <dlfcn.h>

#include <csignal>

namespace accelerate::internal {

void restore_sighup_action(const Environment& environment) {
  if (environment.get("UCX_DEBUG_SIGNO")) return;
  struct sigaction action = {};
  if (sigaction(SIGHUP, nullptr, &action) != 0) return;
  if (action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN) return;
  Dl_info handler = {};
  if (dladdr(reinterpret_cast<void*>(action.sa_handler), &handler) == 0) return;
  void* library = dlopen(handler.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return;
  // UCX warns if the signal is not its own, so only the library of the handler is asked.
  void* function = dlsym(library, "ucs_debug_disable_signal");
  Dl_info owner = {};
  if (function != nullptr && dladdr(function, &owner) != 0 &&
      owner.dli_fbase == handler.dli_fbase) {
    reinterpret_cast<void (*)(int signal)>(function)(SIGHUP);
  }
  dlclose(library);
}

}  // namespace accelerate::internal

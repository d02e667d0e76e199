#include "accelerate/comm/backends/mpi/members.h"

#include <string>
#include <vector>

#include <c10/util/Exception.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "accelerate/base/rank_text.h"
#include "accelerate/comm/backends/mpi/mpi_engine.h"
#include "accelerate/comm/backends/rendezvous.h"

namespace accelerate::internal {
namespace {

std::string key_of(int member) { return absl::StrCat("mpi/rank/", member); }

std::vector<std::string> read_all(c10d::Store& store, const std::vector<std::string>& keys) {
  std::vector<std::string> texts;
  if (store.hasExtendedApi()) {
    for (const auto& bytes : store.multiGet(keys)) texts.emplace_back(bytes.begin(), bytes.end());
  } else {
    for (const std::string& key : keys) texts.push_back(store.get_to_str(key));
  }
  return texts;
}

void check_started_together(int ranks) {
  const int started = MpiEngine::get().size();
  TORCH_CHECK_VALUE(ranks <= started, "MPI has started ", started, " process(es) together, and ",
                    ranks, " are to talk by it; start the program with `mpirun -n ", ranks,
                    "` or `srun --mpi=pmix`, or take the backend gloo");
}

const bool registered = register_rendezvous(
    "Open MPI",
    [](const std::string& text, int, int world_size, std::chrono::milliseconds timeout) {
      check_started_together(world_size);
      return MpiEngine::get().publish(text, timeout);
    });

}  // namespace

std::shared_ptr<MpiGroup> make_group(const BackendOptions& options) {
  check_started_together(options.size);
  MpiEngine& engine = MpiEngine::get();
  c10d::Store& store = *options.store;
  store.set(key_of(options.rank), absl::StrCat(engine.rank()));
  std::vector<std::string> keys;
  for (int member = 0; member < options.size; ++member) keys.push_back(key_of(member));
  try {
    store.wait(keys, options.timeout);
  } catch (const c10::DistNetworkError&) {
    throw;
  } catch (const c10::DistStoreError&) {
    std::vector<int> missing;
    for (int member = 0; member < options.size; ++member) {
      if (!store.check({keys[member]})) missing.push_back(member);
    }
    throw c10::DistBackendError(absl::StrCat("waited in vain for ", rank_list(missing),
                                             " of the group to make it, for ",
                                             options.timeout.count(), " ms"));
  }
  std::vector<int> members;
  for (const std::string& text : read_all(store, keys)) {
    int rank = -1;
    TORCH_CHECK(absl::SimpleAtoi(text, &rank), "a member of the group wrote \"", text,
                "\" where its rank in the MPI job should be");
    members.push_back(rank);
  }
  return engine.make_group(std::move(members), options.timeout);
}

}  // namespace accelerate::internal

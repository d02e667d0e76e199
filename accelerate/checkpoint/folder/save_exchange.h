/// How ranks that save a checkpoint together tell each other how it went: in rounds, in each of
/// which every rank says one word and hears all.
///
/// Threads: one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "accelerate/comm/operations.h"

namespace accelerate {

struct SaveWord {
  bool ok = true;
  std::string text;
};

class SaveExchange {
 public:
  virtual ~SaveExchange() = default;

  virtual void tell(int round, const SaveWord& word) = 0;

  /// All ranks' words, by rank; nothing while one is missing. What a rank that failed said is there
  /// for all; what others said, for those that were made to read it.
  virtual std::optional<std::vector<SaveWord>> hear(int round) = 0;

  /// Says that this rank is still at work. Threads: any. And how often any rank did.
  virtual void beat() {}
  virtual int64_t beats() { return 0; }

  /// When all ranks have left the save: nothing of it is kept anywhere. For rank 0.
  virtual void forget() {}
};

/// By a collective: hear() waits for all ranks. A null group stands for one rank.
std::unique_ptr<SaveExchange> make_group_exchange(ProcessGroupPtr group);

struct StoreExchangeOptions {
  int rank = 0;
  int world_size = 1;
  /// Whose words this rank reads; others' only where they failed.
  std::vector<int> reads;
  /// The same on all ranks, and another one for each save.
  std::string id;
};

/// By the job's store, so that nobody waits and no collective disturbs those of training.
std::unique_ptr<SaveExchange> make_store_exchange(c10::intrusive_ptr<c10d::Store> store,
                                                  StoreExchangeOptions options);

}  // namespace accelerate

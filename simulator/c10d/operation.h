/// A collective or a message of a simulated process group on its way.
///
/// Threads: only the rank that holds the baton may use it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "simulator/c10d/collectives.h"

namespace accelerate::simulator {

class Communicator;

/// A collective or a message in flight. Members hold it through their Work.
struct Operation {
  std::vector<Call> calls;  ///< a collective: by executed member; a message: sender, receiver
  int joined = 0;
  bool done = false;
  bool failed = false;       ///< done; Communicator::failure() is the reason
  std::vector<int> waiting;  ///< tasks blocked on it
  int source = -1;           ///< a message: the sender's member number, once known
  int64_t end_ns = 0;        ///< once done: its end in virtual time
  // A collective's.
  Communicator* communicator = nullptr;
  const std::vector<int>* tasks = nullptr;  ///< of its executed members, ascending
  bool carried_out = false;  ///< members have their results, but perhaps not yet the time
  bool is_stuck = false;     ///< carried out, and no link carries it to its end
  int64_t ready_ns = 0;      ///< once carried out: the last member's data is ready
  int64_t awaited_from_ns = INT64_MAX;  ///< the first clock of a host that waits for it
  int64_t bytes = 0;                    ///< of the result; see Network::collective
  std::vector<int64_t> sent;            ///< an all-to-all: to the other members, by executed member
  int64_t start_ns = 0;                 ///< once done
  int channels = 0;                     ///< each of which takes a multiprocessor of every member
  int num_first = 0;                    ///< the members that have no earlier call without a time
  int64_t number_of_call = -1;          ///< of the lowest executed member
  /// The members that have not joined, as text for reports, when `described` had joined.
  std::string missing_ranks = {};
  int described = -1;
};

}  // namespace accelerate::simulator

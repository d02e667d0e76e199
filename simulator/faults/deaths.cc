#include "simulator/faults/deaths.h"

#include <utility>

namespace accelerate::simulator {
namespace {

// A program whose operations were refused this often is in a loop, not in a destructor.
constexpr int kRefusals = 10'000;

}  // namespace

Deaths::Deaths(int world_size) : deaths_(world_size) {}

void Deaths::kill(int rank, std::string how, bool is_cause) {
  if (!is_dead(rank)) deaths_[rank] = {.how = std::move(how), .is_cause = is_cause};
}

void Deaths::check_alive(int rank) const {
  if (is_dead(rank)) throw RankKilled(deaths_[rank].how, deaths_[rank].is_cause);
}

std::exception_ptr Deaths::death(int rank) const {
  return std::make_exception_ptr(RankKilled(deaths_[rank].how, deaths_[rank].is_cause));
}

absl::Status Deaths::refuse(int rank) {
  // During unwinding an exception out of a destructor would end the program.
  if (++deaths_[rank].refused > kRefusals && std::uncaught_exceptions() == 0) check_alive(rank);
  return absl::AbortedError(deaths_[rank].how);
}

}  // namespace accelerate::simulator

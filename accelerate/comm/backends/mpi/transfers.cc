#include "accelerate/comm/backends/mpi/transfers.h"

#include <algorithm>
#include <array>

#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"

namespace accelerate::internal {
namespace {

std::string mpi_error(int code) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  return std::string(text.data(), static_cast<size_t>(length));
}

}  // namespace

void check_mpi(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  throw c10::DistBackendError(absl::StrCat(what, ": ", mpi_error(code)));
}

void Transfers::send(const void* data, size_t bytes, int to) {
  start(static_cast<char*>(const_cast<void*>(data)), bytes, to, /*receives=*/false);
}

void Transfers::receive(void* data, size_t bytes, int from) {
  TORCH_CHECK_VALUE(from != MPI_ANY_SOURCE || bytes <= max_message_, "a receive from any rank of ",
                    bytes, " bytes; at most ", max_message_, " are possible: name the rank");
  start(static_cast<char*>(data), bytes, from, /*receives=*/true);
}

void Transfers::start(char* data, size_t bytes, int peer, bool receives) {
  const auto begin = receives ? MPI_Irecv : MPI_Isend;
  do {
    const int part = static_cast<int>(std::min(bytes, max_message_));
    messages_.push_back({.peer = peer, .bytes = part, .receives = receives});
    requests_.push_back(MPI_REQUEST_NULL);
    check_mpi(begin(data, part, MPI_BYTE, peer, tag_, communicator_, &requests_.back()),
              receives ? "MPI_Irecv" : "MPI_Isend");
    data += part;
    bytes -= static_cast<size_t>(part);
  } while (bytes > 0);
}

bool Transfers::done() {
  if (requests_.empty()) return true;
  statuses_.resize(requests_.size());
  int all = 0;
  const int code =
      MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &all, statuses_.data());
  if (code != MPI_SUCCESS && !cancelled_) {
    for (size_t i = 0; code == MPI_ERR_IN_STATUS && i < statuses_.size(); ++i) {
      const int error = statuses_[i].MPI_ERROR;
      if (error == MPI_SUCCESS || error == MPI_ERR_PENDING) continue;
      throw c10::DistBackendError(
          absl::StrCat(messages_[i].receives ? "receiving from" : "sending to", " rank ",
                       messages_[i].peer, ": ", mpi_error(error)));
    }
    check_mpi(code, "MPI_Testall");
  }
  if (code == MPI_SUCCESS && all == 0) return false;
  if (!cancelled_) check_lengths();
  requests_.clear();
  messages_.clear();
  return true;
}

void Transfers::check_lengths() {
  for (size_t i = 0; i < messages_.size(); ++i) {
    if (!messages_[i].receives) continue;
    int bytes = 0;
    MPI_Get_count(&statuses_[i], MPI_BYTE, &bytes);
    source_ = statuses_[i].MPI_SOURCE;
    if (bytes == messages_[i].bytes) continue;
    throw c10::DistBackendError(absl::StrCat("rank ", source_, " of the group sent ", bytes,
                                             " bytes where this rank expects ", messages_[i].bytes,
                                             ": their calls differ"));
  }
}

std::vector<int> Transfers::missing() {
  std::vector<int> ranks;
  for (size_t i = 0; i < requests_.size(); ++i) {
    int done = 0;
    // What is done stays in the list, as a null request, which counts as done.
    if (MPI_Request_get_status(requests_[i], &done, MPI_STATUS_IGNORE) == MPI_SUCCESS &&
        done == 0 && messages_[i].peer >= 0) {
      ranks.push_back(messages_[i].peer);
    }
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

void Transfers::cancel() {
  cancelled_ = true;
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (messages_[i].receives && requests_[i] != MPI_REQUEST_NULL) MPI_Cancel(&requests_[i]);
  }
}

}  // namespace accelerate::internal

/// Messages in flight between this rank and others of a communicator: what a schedule waits for.
///
/// Units:   bytes; ranks within the communicator.
/// Errors:  c10::DistBackendError for what MPI reports, and for a message that is not as long as
///          the receiver expects, which is how ranks whose calls differ find out.
/// Threads: none of its own; every call into MPI is made under the engine's lock.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <c10/util/SmallVector.h>
#include <mpi.h>

namespace accelerate::internal {

/// Throws unless `code` is MPI_SUCCESS.
void check_mpi(int code, const char* what);

class Transfers {
 public:
  /// One message holds at most `max_message` bytes; what is longer travels in several. MPI counts
  /// in int, and system calls below it stop at two gigabytes.
  Transfers(MPI_Comm communicator, int tag, size_t max_message = kMaxMessage)
      : communicator_(communicator), tag_(tag), max_message_(max_message) {}
  Transfers(Transfers&&) = default;
  Transfers(const Transfers&) = delete;
  Transfers& operator=(const Transfers&) = delete;

  void send(const void* data, size_t bytes, int to);
  /// `from` may be MPI_ANY_SOURCE for what fits one message.
  void receive(void* data, size_t bytes, int from);

  /// Whether all of them have arrived. Never blocks.
  bool done();

  /// The ranks that have not sent or taken what they were to, ascending.
  std::vector<int> missing();
  /// Where the last message that was received came from.
  int source() const { return source_; }
  /// Takes receives back, as far as that is possible; done() tells when nothing is in flight.
  void cancel();

  static constexpr size_t kMaxMessage = size_t{1} << 30;

 private:
  struct Message {
    int peer;
    int bytes;
    bool receives;
  };
  void start(char* data, size_t bytes, int peer, bool receives);
  void check_lengths();

  const MPI_Comm communicator_;
  const int tag_;
  const size_t max_message_;
  bool cancelled_ = false;
  int source_ = -1;
  c10::SmallVector<MPI_Request, 4> requests_;
  c10::SmallVector<Message, 4> messages_;
  std::vector<MPI_Status> statuses_;
};

}  // namespace accelerate::internal

/// The collectives, written over messages between two ranks.
///
/// A sum is always taken in the order of ranks, whatever its size and way: results are the same
/// on all ranks, from run to run, for any cut of the tensors into buckets, and equal to the
/// simulator's bit for bit.
///
/// MPI's own collectives are not used: the blocking ones can neither be given a time-out nor left,
/// and one thread that blocks in one group's would hold up the others'; the non-blocking ones take
/// three times as long for large tensors (accelerate/docs/performance.md).
///
/// Buffers that are passed have to stay valid until the schedule has ended. A schedule is a
/// collective of the link's group.
/// Units: bytes, unless named otherwise.
/// Errors: what the coroutine throws comes out of Schedule::advance().
/// Threads: one at a time.
#pragma once

#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include <c10/core/ScalarType.h>
#include <c10/util/SmallVector.h>
#include <mpi.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace accelerate::internal {

/// A part of memory.
struct Bytes {
  char* data = nullptr;
  size_t size = 0;
};

/// Throws unless `code` is MPI_SUCCESS.
void check_mpi(int code, const char* what);

/// Messages in flight between this rank and others of a communicator: what a schedule waits for.
///
/// Units:   bytes; ranks within the communicator.
/// Errors:  c10::DistBackendError for what MPI reports, and for a message that is not as long as
///          the receiver expects, which is how ranks whose calls differ find out.
/// Threads: none of its own; every call into MPI is made under the engine's lock.
class Transfers {
 public:
  /// One message holds at most `max_message` bytes; what is longer travels in several. MPI counts
  /// in int, and system calls below it stop at two gigabytes.
  Transfers(MPI_Comm communicator, int tag, size_t max_message = kMaxMessage)
      : communicator_(communicator), tag_(tag), max_message_(max_message) {}
  Transfers(Transfers&&) = default;

  void send(Bytes data, int to) { start(data, to, /*receives=*/false); }
  /// `from` may be MPI_ANY_SOURCE for what fits one message.
  void receive(Bytes data, int from) { start(data, from, /*receives=*/true); }

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
  void start(Bytes data, int peer, bool receives);
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

/// A collective as a coroutine: it starts transfers, waits for them with co_await, and computes in
/// between. Nothing blocks: any thread may drive a schedule at any time.
///
///   Schedule ping(Transfers to, Transfers from, char* byte) {
///     to.send({byte, 1}, 1);
///     co_await to;
///     from.receive({byte, 1}, 1);
///     co_await from;
///   }
///
/// A schedule may co_await another one. What a coroutine refers to has to outlive it.
class Schedule {
 public:
  struct promise_type;
  using Handle = std::coroutine_handle<promise_type>;

  struct promise_type {
    struct AwaitTransfers {
      Transfers& transfers;
      bool await_ready() const { return transfers.done(); }
      void await_suspend(Handle self) const {
        self.promise().root->awaited = &transfers;
        self.promise().root->innermost = self;
      }
      void await_resume() const {}
    };
    struct ReturnToParent {
      bool await_ready() const noexcept { return false; }
      std::coroutine_handle<> await_suspend(Handle self) const noexcept {
        if (self.promise().parent) return self.promise().parent;
        return std::noop_coroutine();
      }
      void await_resume() const noexcept {}
    };

    Schedule get_return_object() { return Schedule(Handle::from_promise(*this)); }
    std::suspend_always initial_suspend() const noexcept { return {}; }
    ReturnToParent final_suspend() const noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { error = std::current_exception(); }
    AwaitTransfers await_transform(Transfers& transfers) { return {transfers}; }
    const Schedule& await_transform(const Schedule& schedule) { return schedule; }

    promise_type* root = this;  // the outermost schedule
    Handle parent;
    std::exception_ptr error;
    // Used in the root only:
    Transfers* awaited = nullptr;
    Handle innermost;
  };

  Schedule() = default;
  Schedule(Schedule&& other) noexcept : handle_(std::exchange(other.handle_, {})) {}
  Schedule& operator=(Schedule&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Schedule() {
    if (handle_) handle_.destroy();
  }

  /// Whether it can go on: what it waits for has arrived. Errors: those of the transfers.
  bool ready() const { return awaited() == nullptr || awaited()->done(); }

  /// Goes on to its next wait. Returns whether it has come to its end. \pre ready().
  bool advance() {
    promise_type& promise = handle_.promise();
    const bool begun = std::exchange(promise.awaited, nullptr) != nullptr;
    (begun ? promise.innermost : handle_).resume();
    if (promise.error) std::rethrow_exception(promise.error);
    return handle_.done();
  }

  /// The transfers it waits for; null before the first and after the last wait.
  Transfers* awaited() const { return handle_ ? handle_.promise().awaited : nullptr; }

  // These make a schedule awaitable for another one.
  bool await_ready() const { return false; }
  Handle await_suspend(Handle parent) const {
    handle_.promise().parent = parent;
    handle_.promise().root = parent.promise().root;
    return handle_;
  }
  void await_resume() const {
    if (handle_.promise().error) std::rethrow_exception(handle_.promise().error);
  }

 private:
  explicit Schedule(Handle handle) : handle_(handle) {}

  Handle handle_;
};

/// Memory that a group's operations use one after the other, kept because fresh pages cost as much
/// as the transfer into them.
class Staging {
 public:
  char* at_least(size_t bytes) {
    if (bytes > bytes_) {
      memory_.reset();  // Not both at once.
      memory_ = std::make_unique_for_overwrite<char[]>(bytes);
      bytes_ = bytes;
    }
    return memory_.get();
  }

 private:
  std::unique_ptr<char[]> memory_;
  size_t bytes_ = 0;
};

/// One operation's view of its group: the members to talk to, a tag of its own, and a buffer for
/// received bytes that are not added up yet.
struct Link {
  MPI_Comm communicator = MPI_COMM_NULL;
  int rank = 0;
  int size = 1;
  int tag = 0;
  std::shared_ptr<Staging> staging;
  /// All that the operation has opened, so that it can be taken back.
  std::vector<std::unique_ptr<Transfers>> opened;

  Transfers& open() { return *opened.emplace_back(std::make_unique<Transfers>(communicator, tag)); }
};

/// Reduces memory by LibTorch's own kernels, so that every dtype and operator gives what it gives
/// on tensors, and what the simulator gives. The caller checks that the dtype can be reduced
/// (check_call).
struct Reduction {
  c10d::ReduceOp::RedOpType op = c10d::ReduceOp::SUM;
  at::ScalarType dtype = at::kFloat;

  size_t element_size() const { return c10::elementSize(dtype); }
  /// total = total (op) value, element by element.
  void add(char* total, const char* value, int64_t numel) const;
  /// Makes the sum of `count` ranks an average, if that is what is wanted.
  void finish(char* total, int64_t numel, int count) const;
};

Schedule barrier(Link& link);
Schedule broadcast(Link& link, Bytes data, int root);

/// sends[r] goes to rank r, and what rank r sends comes to receives[r]. Both parts have the same
/// size; two ranks without anything for each other do not talk.
Schedule exchange(Link& link, std::vector<Bytes> sends, std::vector<Bytes> receives);
/// mine comes to every rank's outputs[this rank].
Schedule all_gather(Link& link, Bytes mine, std::vector<Bytes> outputs);

/// In place.
Schedule all_reduce(Link& link, Reduction reduction, Bytes data);
/// In place on the root; other ranks' data is left alone.
Schedule reduce(Link& link, Reduction reduction, Bytes data, int root);
/// inputs[r] is this rank's term of rank r's sum, of the same size on all ranks. `output` may be
/// inputs[this rank].
Schedule reduce_scatter(Link& link, Reduction reduction, std::vector<Bytes> inputs, char* output);

}  // namespace accelerate::internal

/// The shared state of one process group: it matches the members' calls, checks that they agree,
/// carries the operation out and wakes the waiting ranks.
///
/// A collective runs when its last member has joined, so results do not depend on the order of
/// calls. A point-to-point message is copied when both sides have called (rendezvous, as in Gloo
/// and NCCL for large messages), so programs that rely on buffering fail.
///
/// Time: a collective starts when the last member's data is ready and takes the time of the network
/// model, longer where collectives of other groups use the same links; see CallOrder and
/// SharedLinks. A message becomes a flow that shares links with others, and is done when it ends.
///
/// After the first error in a group (mismatch, time-out, stall) the group has failed: pending and
/// later operations throw c10::DistBackendError with the report of that error.
///
/// Folded members (see FoldPlan) make no calls. Each counts as the lowest executed member of its
/// class: it has joined when that one has, at the same time and with the same values. A message
/// starts those of the folded ranks that count as its sender.
///
/// Threads: only the rank that holds the baton may call in.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/time/time.h"
#include "accelerate/base/mesh_axis.h"
#include "accelerate/comm/watch/collective_call.h"
#include "simulator/c10d/collectives.h"
#include "simulator/c10d/fabric.h"
#include "simulator/c10d/link_record.h"
#include "simulator/c10d/semantics.h"

namespace accelerate::simulator {

/// The time limit of a member's wait for an operation.
struct WaitLimit {
  absl::Duration timeout;  ///< from `since`
  absl::Duration since;    ///< virtual time of the call
  bool asked_for = false;  ///< the caller of this wait named the limit; it is not a default
};

class Communicator {
 public:
  /// `axis` is GroupOptions::axis; `semantics` that of the library that the group names, or else
  /// the run's.
  /// Errors: c10::ValueError if a folded member has no executed member of its class in the group.
  Communicator(Fabric& fabric, std::string name, std::vector<int> ranks,
               std::optional<MeshAxis> axis, Semantics semantics);

  int size() const { return static_cast<int>(ranks_.size()); }
  /// Global rank of each member.
  const std::vector<int>& ranks() const { return ranks_; }
  /// The axis of the mesh that the group belongs to, if any.
  std::optional<MeshAxis> axis() const { return axis_; }
  /// What members of the group notice of each other.
  Semantics semantics() const { return semantics_; }

  /// Joins the member's next collective. Errors: DistBackendError if the group has failed.
  std::shared_ptr<Operation> join(int member, Call call);

  /// Global rank of a member.
  int rank(int member) const { return ranks_[member]; }
  const std::string& name() const { return name_; }
  /// The rank that made it, as the first member.
  int made_by() const { return made_by_; }
  /// How many members are executed, besides those of these numbers.
  int num_executed(const std::vector<int>& without) const;
  /// What it takes of each member's device from its first collective on.
  int64_t device_bytes() const { return device_bytes_; }

  /// Sends or receives a message. `call.fingerprint.peer` is -1 for a receive from any rank.
  /// Errors: DistBackendError if the group has failed; NotImplementedError if ranks are folded and
  ///         FoldPlan does not allow the message.
  std::shared_ptr<Operation> post(int member, Call call);

  /// Blocks member's rank until the operation is done.
  /// Errors: DistBackendError with the group's failure.
  void wait(int member, const std::shared_ptr<Operation>& operation, const WaitLimit& limit);

  /// The same for a rank that has called the collective, with the time limit of its call. Does
  /// nothing for tensors of the host, and for a collective that is done.
  void await_on_device(int rank, const std::shared_ptr<Operation>& collective);

  /// Whether the operation is done. If not, other ranks run, so that callers may poll in a loop.
  /// A time-out fails the group, and then the operation is done.
  bool poll(int member, const std::shared_ptr<Operation>& operation, const WaitLimit& limit);

  /// The next collective's number for this member.
  uint64_t sequence(int member) const { return next_sequence_[members_.call_of[member]]; }

  /// Gives each collective whose turn has come its time, and wakes who waits for it.
  static void set_times(CallOrder& order);

  /// Fails the group for all members.
  void abort(int member);

  /// The reason for the group's failure; empty if it has not failed.
  const std::string& failure() const { return failure_; }

  std::optional<std::string> unnoticed_failure() const;

 private:
  struct Message {
    int sender;  // -1: the receiver accepts any sender
    int receiver;
    int tag;
    std::shared_ptr<Operation> operation;
  };

  void set_time(Operation& operation);
  void check_usable() {
    if (!failure_.empty()) raise();
  }
  void check_peer(int member, const Call& call) const;
  int num_executed() const { return static_cast<int>(members_.of_call.size()); }
  // The global rank of the member that makes a collective's call of that index.
  int caller(int call) const { return ranks_[members_.of_call[call]]; }
  std::vector<int> awaited_ranks(const Operation& operation) const;
  void check_connections(int member, Operation& operation);
  [[noreturn]] void raise();
  void fail_one(const std::shared_ptr<Operation>& operation);
  void fail(const std::shared_ptr<Operation>& operation, std::string report);
  void fail(std::string report);
  // Where time-outs take their time, other members get the failure no earlier.
  void fail_now(std::string report) {
    if (fabric_.waits_for_time_outs()) failed_ns_ = fabric_.scheduler().now_ns();
    fail(std::move(report));
  }
  std::vector<int> close(Operation& operation);
  void complete(Operation& operation);
  void run_collective(const std::shared_ptr<Operation>& operation);
  void deliver(const std::shared_ptr<Operation>& operation);
  void finish_message(Operation& operation, int64_t start_ns, int64_t end_ns,
                      int64_t trace_operation);
  std::optional<std::string> late_member(Operation& operation) const;
  bool share_links(Operation& operation, const CollectiveTime& alone);
  int64_t record_collective(const Operation& operation, const CollectiveTime& alone);
  std::optional<std::string> unlike_values(const Operation& operation) const;
  void record(const Operation& operation, const Call& call, int member, int64_t start_ns,
              int64_t trace_operation);
  void time_out(int member, Operation& operation, absl::Duration timeout);
  std::optional<std::string> mismatch(const Operation& operation) const;
  std::string describe_wait(int member, Operation& operation) const;
  std::string describe_send(const Message& message) const;
  std::string describe_receive(const Message& message) const;
  std::string progress_of_ranks() const;
  const std::string& missing_ranks(Operation& operation) const;

  Fabric& fabric_;
  const std::string name_;
  const std::vector<int> ranks_;
  const std::optional<MeshAxis> axis_;
  const Semantics semantics_;
  const int made_by_;
  const Members members_;
  const std::vector<int> tasks_;
  const int number_;  // of the run's groups
  const int64_t device_bytes_;
  const Beside beside_;
  std::vector<uint64_t> next_sequence_;  // by executed member
  // Pending collectives. Members join in order, so collectives also complete in order.
  std::deque<std::shared_ptr<Operation>> collectives_;
  uint64_t first_sequence_ = 0;  // the number of collectives_.front()
  std::vector<Message> sends_;
  std::vector<Message> receives_;
  // For the recorder: the groups of folded ranks that count as this one, and its number of axis_.
  std::vector<std::vector<int>> copies_;
  int recorded_axis_ = -1;
  GroupLinks links_;
  std::vector<SharedLinks::Member> on_links_;  // scratch
  std::string failure_;
  int64_t failed_ns_ = 0;  // of fail_now
  int closed_ = -1;        // the rank whose closed connection is the failure
  bool noticed_ = false;   // a rank has got the failure as an exception
};

}  // namespace accelerate::simulator

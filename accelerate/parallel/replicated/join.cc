#include "accelerate/parallel/replicated/join.h"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <string>
#include <unordered_set>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include "accelerate/runtime/runtime.h"

namespace accelerate {
namespace {

enum class Event : int64_t { kEnded, kOpened, kForward, kAllReduce };

// What a rank does next. The meaning of the numbers depends on the event.
struct Announcement {
  Event event = Event::kEnded;
  int64_t model = 0;   // opened: how many
  int64_t detail = 0;  // ended: announcements made before; opened: enabled; forward: bits;
                       // all-reduce: slot
  int64_t extra = 0;   // opened: fingerprint of the models; all-reduce: elements

  bool operator==(const Announcement&) const = default;
};
constexpr int64_t kNumbers = 4;

// The bits of a forward pass's flags.
constexpr int64_t kSynchronises = 1;
constexpr int64_t kRebuildsBuckets = 2;
constexpr int64_t kBroadcastsBuffers = 4;

int64_t flags_of(const JoinListener::Forward& forward) {
  return (forward.synchronises ? kSynchronises : 0) |
         (forward.rebuilds_buckets ? kRebuildsBuckets : 0) |
         (forward.broadcasts_buffers ? kBroadcastsBuffers : 0);
}

JoinListener::Forward forward_of(int64_t flags) {
  return {.synchronises = (flags & kSynchronises) != 0,
          .rebuilds_buckets = (flags & kRebuildsBuckets) != 0,
          .broadcasts_buffers = (flags & kBroadcastsBuffers) != 0};
}

std::string describe(const Announcement& announced) {
  switch (announced.event) {
    case Event::kEnded: return "has no more data";
    case Event::kOpened:
      return c10::str("opens a scope for ", announced.model,
                      announced.model == 1 ? " model" : " models", " (fingerprint ",
                      announced.extra, "), joining ", announced.detail ? "on" : "off");
    case Event::kForward: {
      const JoinListener::Forward forward = forward_of(announced.detail);
      return c10::str("begins a forward pass of model ", announced.model, " that ",
                      forward.synchronises ? "synchronises" : "only accumulates", " gradients",
                      forward.rebuilds_buckets ? ", rebuilds buckets" : "",
                      forward.broadcasts_buffers ? ", refreshes buffers" : "");
    }
    case Event::kAllReduce:
      return c10::str("reduces bucket ", announced.detail, " of model ", announced.model, ", ",
                      announced.extra, " elements");
  }
  return "announces an unknown event";
}

const char* hint(Event event) {
  switch (event) {
    case Event::kOpened:
      return "All ranks pass the same models, in the same order, and the same even_batches.";
    case Event::kForward:
      return "Ranks that have data run the same passes in the same order; when one with less data "
             "synchronises at its last batch, accumulate in a number of steps that divides the "
             "number of batches of each rank, or leave the end of the data out of account.";
    default: return "Ranks that have data run the same passes in the same order.";
  }
}

// Equal on all ranks that have the same models in the same order.
int64_t fingerprint(const std::vector<Joinable*>& techniques) {
  uint64_t hash = 0;
  for (const Joinable* technique : techniques) {
    hash = hash * 1000003 + static_cast<uint64_t>(technique->ordinal()) + 1;
  }
  return static_cast<int64_t>(hash);
}

// Whether a Runtime is inside a join scope.
struct JoinState {
  bool inside = false;
};

// The highest rank that has data, or -1. Errors: c10::Error naming a rank that deviates from it.
int leader_of(const std::vector<Announcement>& table) {
  int leader = static_cast<int>(table.size()) - 1;
  while (leader >= 0 && table[leader].event == Event::kEnded) --leader;
  for (int rank = 0; rank < leader; ++rank) {
    TORCH_CHECK(table[rank].event == Event::kEnded || table[rank] == table[leader],
                "join_uneven_inputs: rank ", rank, " ", describe(table[rank]), "; rank ", leader,
                " ", describe(table[leader]), ". ", hint(table[leader].event));
  }
  return leader;
}

}  // namespace

class JoinScope::Session final : public JoinListener {
 public:
  Session(std::vector<Joinable*> techniques, CatchUp catch_up)
      : techniques_(std::move(techniques)),
        group_(techniques_.front()->group()),
        device_(techniques_.front()->device()),
        catch_up_(std::move(catch_up)) {}
  ~Session() override { leave(); }

  void open(bool enabled) {
    JoinState& state =
        Runtime::current().shared<JoinState>([] { return std::make_unique<JoinState>(); });
    TORCH_CHECK(!state.inside, "join_uneven_inputs: rank ", group_->getRank(),
                " is in such a scope already; these scopes do not nest");
    std::unordered_set<const void*> seen;
    for (Joinable* technique : techniques_) {
      TORCH_CHECK_VALUE(technique->group() == group_,
                        "join_uneven_inputs: the models belong to different process groups");
      TORCH_CHECK_VALUE(seen.insert(technique).second,
                        "join_uneven_inputs: a model was passed twice");
    }
    leader_of(exchange({.event = Event::kOpened,
                        .model = static_cast<int64_t>(techniques_.size()),
                        .detail = enabled,
                        .extra = fingerprint(techniques_)}));
    if (!enabled) return;
    state_ = &state;
    state_->inside = true;
    for (Joinable* technique : techniques_) technique->set_join(this);
  }

  // Whether an exception leaves the scope.
  bool unwinding() const { return std::uncaught_exceptions() > exceptions_; }

  // Shadows the other ranks' collectives until all ranks have ended.
  void shadow() {
    for (;;) {
      const Table table = exchange({.event = Event::kEnded, .detail = announced_});
      const int leader = leader_of(table);
      if (leader < 0) return equalise(table);
      const Announcement& announced = table[leader];
      switch (announced.event) {
        case Event::kForward:
          techniques_.at(announced.model)->shadow_forward(forward_of(announced.detail), leader);
          break;
        case Event::kAllReduce:
          techniques_.at(announced.model)->shadow_all_reduce(announced.detail, announced.extra);
          break;
        default:
          TORCH_CHECK(false, "join_uneven_inputs: rank ", leader, " ", describe(announced),
                      ", but rank ", group_->getRank(), " is still in the last scope");
      }
    }
  }

  Peers before_forward(Joinable& technique, const Forward& forward) override {
    const Table table = exchange(
        {.event = Event::kForward, .model = index_of(technique), .detail = flags_of(forward)});
    ++announced_;
    Peers peers{.leader = leader_of(table)};
    for (int rank = 0; rank < group_->getSize(); ++rank) {
      if (table[rank].event == Event::kEnded) peers.ended.push_back(rank);
    }
    return peers;
  }

  void before_all_reduce(Joinable& technique, int64_t slot, int64_t numel) override {
    // Not waited for: only shadowing ranks read it, and the reduction overlaps the backward pass.
    pending_.push_back(announce({.event = Event::kAllReduce,
                                 .model = index_of(technique),
                                 .detail = slot,
                                 .extra = numel}));
    ++announced_;
  }

 private:
  using Table = std::vector<Announcement>;  // by rank

  // An announcement whose all-gather may still run.
  struct Pending {
    at::Tensor host;  // `mine` may still be copied from it
    at::Tensor mine;
    at::Tensor all;
    c10::intrusive_ptr<c10d::Work> work;
  };

  Pending announce(const Announcement& mine) const {
    at::NoGradGuard no_grad;
    Pending pending;
    pending.host = at::tensor(
        {static_cast<int64_t>(mine.event), mine.model, mine.detail, mine.extra}, at::kLong);
    // A blocking copy would make the host wait for the kernels of the backward pass.
    pending.mine = pending.host.to(device_, at::kLong, /*non_blocking=*/true);
    pending.all = at::empty({group_->getSize() * kNumbers}, pending.mine.options());
    pending.work = group_->_allgather_base(pending.all, pending.mine);
    return pending;
  }

  Table exchange(const Announcement& mine) {
    // These all-gathers were started earlier, so they end earlier.
    for (Pending& pending : std::exchange(pending_, {})) pending.work->wait();
    const Pending pending = announce(mine);
    pending.work->wait();
    const at::Tensor host = pending.all.cpu();
    const int64_t* numbers = host.const_data_ptr<int64_t>();
    Table table;
    for (int rank = 0; rank < group_->getSize(); ++rank, numbers += kNumbers) {
      table.push_back({.event = static_cast<Event>(numbers[0]),
                       .model = numbers[1],
                       .detail = numbers[2],
                       .extra = numbers[3]});
    }
    return table;
  }

  void equalise(const Table& ended) {
    leave();
    // Training ranks announce the same events, so the rank that announced most trained longest.
    auto less = [](const Announcement& a, const Announcement& b) { return a.detail < b.detail; };
    const auto [least, most] = std::minmax_element(ended.begin(), ended.end(), less);
    // minmax_element finds the last of the greatest.
    if (least->detail == most->detail) return;
    const int source = static_cast<int>(most - ended.begin());
    for (Joinable* technique : techniques_) technique->broadcast_replica(source);
    if (catch_up_) catch_up_(source);
  }

  void leave() {
    if (state_ == nullptr) return;
    std::exchange(state_, nullptr)->inside = false;
    for (Joinable* technique : techniques_) technique->set_join(nullptr);
  }

  int64_t index_of(const Joinable& technique) const {
    return std::find(techniques_.begin(), techniques_.end(), &technique) - techniques_.begin();
  }

  const std::vector<Joinable*> techniques_;
  const ProcessGroupPtr group_;
  const c10::Device device_;
  const CatchUp catch_up_;
  const int exceptions_ = std::uncaught_exceptions();
  JoinState* state_ = nullptr;  // null: not in the scope
  std::vector<Pending> pending_;
  int64_t announced_ = 0;
};

JoinScope::JoinScope(std::vector<Joinable*> techniques, bool enabled, CatchUp catch_up) {
  if (techniques.empty()) return;
  for (Joinable* technique : techniques) {
    TORCH_CHECK_VALUE(technique != nullptr, "join_uneven_inputs: a model is not replicated");
  }
  auto session = std::make_unique<Session>(std::move(techniques), std::move(catch_up));
  session->open(enabled);
  if (enabled) session_ = std::move(session);
}

JoinScope::JoinScope(JoinScope&& other) noexcept = default;

JoinScope::~JoinScope() noexcept(false) {
  if (session_ && !session_->unwinding()) session_->shadow();
}

}  // namespace accelerate

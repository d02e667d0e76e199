#include "simulator/cluster/fault_actor.h"

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <utility>

#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"
#include "simulator/cluster/link_faults.h"
#include "simulator/trace/recorder.h"

namespace accelerate::simulator {
namespace {

constexpr int64_t kUsualNoticeNs = 30'000'000'000;

// Files return a status, and destructors release memory.
bool may_throw_at(Site site) { return site != Site::kFile && site != Site::kFree; }

bool is_communication(Site site) {
  return site == Site::kCollective || site == Site::kSend || site == Site::kRecv;
}

}  // namespace

FaultActor::FaultActor(FaultRules plan, FaultGrounds grounds, Surroundings surroundings)
    : run_(std::move(plan), std::move(grounds)),
      to_(std::move(surroundings)),
      ends_ns_(run_.grounds().world_size, kNever),
      ends_by_(run_.grounds().world_size),
      notes_steps_(run_.grounds().world_size) {
  begin_timed_link_faults();
}

// Links change exactly at the time, which is known before the run.
void FaultActor::begin_timed_link_faults() {
  const ClusterSpec& spec = to_.fabric.network().spec();
  for (size_t number = 0; number < run_.plan().rules.size(); ++number) {
    const FaultRule& rule = run_.plan().rules[number];
    const bool is_timed = rule.where.place == FaultPlace::kLink &&
                          rule.when.form == FaultWhen::Form::kAt &&
                          rule.when.point.kind == FaultPoint::Kind::kTime;
    if (!is_timed) continue;
    const auto from_ns = static_cast<double>(rule.when.point.number);
    for (const std::vector<int>& ranks : run_.units(number)) {
      for (const FaultEffect& effect : rule.effects) {
        const bool is_over = effect.lasts.kind == FaultSpan::Kind::kTime;
        const double until_ns =
            is_over ? from_ns + static_cast<double>(effect.lasts.number) : LinkSpeeds::kNever;
        const size_t change = to_.fabric.link_speeds().add(
            link_change(spec, rule, number, effect, ranks, from_ns, until_ns));
        link_faults_.push_back({.effect = &effect, .ranks = ranks, .change = change});
      }
    }
  }
}

void FaultActor::change_links(const SiteFault& fault) {
  const FaultRun::Lasting& lasting = run_.latest_of(fault);
  auto known = std::ranges::find_if(link_faults_, [&](const LinkFault& each) {
    return each.effect == fault.effect && each.ranks == fault.ranks && each.counts_as < 0;
  });
  if (known == link_faults_.end()) {
    const FaultRule& rule = run_.plan().rules[fault.rule];
    const bool is_over = lasting.until_ns != FaultRun::Lasting::kNever;
    const size_t change = to_.fabric.link_speeds().add(
        link_change(to_.fabric.network().spec(), rule, fault.rule, *fault.effect, fault.ranks,
                    static_cast<double>(lasting.from_ns),
                    is_over ? static_cast<double>(lasting.until_ns) : LinkSpeeds::kNever));
    known = link_faults_.insert(link_faults_.end(),
                                {.effect = fault.effect, .ranks = fault.ranks, .change = change});
  }
  known->counts_as = lasting.counts_as;
  known->until_step = lasting.until_step;
}

// Those that last for a number of steps.
void FaultActor::end_link_faults() {
  std::erase_if(link_faults_, [&](const LinkFault& each) {
    if (each.counts_as < 0 || run_.counts(each.counts_as).steps < each.until_step) return false;
    to_.fabric.link_speeds().end(each.change, static_cast<double>(to_.fabric.scheduler().now_ns()));
    return true;
  });
}

std::string FaultActor::by(const SiteFault& fault) const {
  return absl::StrCat("by the fault \"", run_.text(fault), "\"");
}

// Ends the rank where the run differs from the log that it follows.
void FaultActor::witness(int rank, absl::string_view words, bool is_work, bool may_throw) {
  if (to_.witness == nullptr) return;
  to_.witness->site(rank, words, to_.fabric.scheduler().now_ns(), is_work);
  if (!may_throw || to_.witness->difference().empty()) return;
  throw std::runtime_error(
      absl::StrCat("the run differs from its log: ", to_.witness->difference()));
}

// Tells the log and the trace. A rule of several effects is one in the trace.
void FaultActor::record_fired(int rank, const std::vector<SiteFault>& faults) {
  if (faults.empty()) return;
  const int64_t now_ns = to_.fabric.scheduler().now_ns();
  Recorder* const recorder = to_.fabric.recorder();
  std::optional<size_t> before;
  for (const SiteFault& fault : faults) {
    const std::string rule = run_.text(fault);
    if (to_.witness != nullptr) {
      to_.witness->note(RunLog::Kind::kFault, rank, rule, 0, now_ns);
    }
    if (recorder != nullptr && before != fault.rule) recorder->fault(rank, rule, now_ns);
    before = fault.rule;
  }
}

// What unwinds has no faults: an exception out of a destructor would end the program.
bool FaultActor::is_open(int rank, bool may_throw) const {
  return !to_.deaths->is_dead(rank) && (!may_throw || std::uncaught_exceptions() == 0);
}

std::vector<SiteFault> FaultActor::reach(int rank, Site site, absl::string_view words,
                                         absl::Span<const int> peers) {
  const bool may_throw = may_throw_at(site);
  if (!is_open(rank, may_throw)) return {};
  if (to_.witness != nullptr) {
    const bool is_work = site == Site::kOp || site == Site::kAlloc || site == Site::kFree;
    witness(rank, absl::StrCat(accelerate::to_string(site), " ", words), is_work, may_throw);
  }
  if (site == Site::kOp) count_updates(rank);
  std::vector<SiteFault> fired = run_.reach(rank, site, words, to_.fabric.scheduler().now_ns());
  record_fired(rank, fired);
  std::vector<SiteFault> faults = act(rank, std::move(fired), may_throw);
  kill_at_its_end(rank);
  if (!to_.deaths->is_dead(rank)) {
    if (site == Site::kStore) wait_for_store(rank);
    if (is_communication(site)) wait_for_peers(rank, peers);
  }
  if (may_throw) to_.deaths->check_alive(rank);
  return faults;
}

std::optional<SiteFault> FaultActor::lasting(int rank, FaultKind kind) {
  const auto found = run_.lasting(kind, rank, to_.fabric.scheduler().now_ns());
  if (found.empty()) return std::nullopt;
  return found.front()->fault;
}

void FaultActor::progress(int rank, FaultPoint::Kind kind) {
  if (!is_open(rank, /*may_throw=*/true)) return;
  if (kind == FaultPoint::Kind::kStep) notes_steps_[rank] = true;
  witness(rank, accelerate::to_string(kind), /*is_work=*/false, /*may_throw=*/true);
  advance(rank, kind);
  kill_at_its_end(rank);
  to_.deaths->check_alive(rank);
}

void FaultActor::advance(int rank, FaultPoint::Kind kind) {
  const std::vector<SiteFault> faults = run_.progress(rank, kind, to_.fabric.scheduler().now_ns());
  record_fired(rank, faults);
  end_link_faults();
  act(rank, faults, /*may_throw=*/true);
}

// Where the program does not say when it steps, its device's updates tell.
void FaultActor::count_updates(int rank) {
  const auto devices = to_.devices_of(rank);
  if (notes_steps_[rank] || devices.empty()) return;
  const int64_t steps = devices[0]->memory().step();
  while (run_.counts(rank).steps < steps) {
    advance(rank, FaultPoint::Kind::kStep);
    to_.deaths->check_alive(rank);
  }
}

bool FaultActor::batch(int rank) {
  bool may_give = true;
  for (const SiteFault& fault : reach(rank, Site::kBatch, "")) {
    if (fault.effect->kind != FaultKind::kShort) continue;
    touched(fault, 1);
    may_give = false;
  }
  return may_give;
}

std::optional<absl::Duration> FaultActor::termination(int rank) const {
  if (ends_ns_[rank] == kNever) return std::nullopt;
  return absl::Nanoseconds(ends_ns_[rank]);
}

std::vector<SiteFault> FaultActor::act(int rank, std::vector<SiteFault> faults, bool may_throw) {
  std::vector<SiteFault> rest;
  for (SiteFault& fault : faults) {
    if (to_.deaths->is_dead(rank)) return {};
    if (act_on_ranks(rank, fault) || act_on_rank(rank, fault)) continue;
    rest.push_back(std::move(fault));
  }
  if (may_throw) to_.deaths->check_alive(rank);
  return rest;
}

// What all ranks of the fault have at once.
bool FaultActor::act_on_ranks(int rank, const SiteFault& fault) {
  const FaultEffect& effect = *fault.effect;
  if (run_.plan().rules[fault.rule].where.place == FaultPlace::kLink) {
    change_links(fault);
    return true;
  }
  switch (effect.kind) {
    case FaultKind::kCrash:
    case FaultKind::kLost: {
      const bool is_lost = effect.kind == FaultKind::kLost;
      std::string how = is_lost               ? "was lost with its node"
                        : effect.word.empty() ? "was killed"
                                              : absl::StrCat("died of ", effect.word);
      if (is_lost && effect.lasts.kind == FaultSpan::Kind::kTime) {
        absl::StrAppend(&how, ", which is back for the job's next life after ",
                        duration_text(effect.lasts.number), ",");
      }
      kill(rank, fault, how);
      return true;
    }
    case FaultKind::kTerminate:
      for (const int each : fault.ranks) {
        const int64_t notice_ns = effect.duration_ns > 0 ? effect.duration_ns : kUsualNoticeNs;
        ends_ns_[each] = std::min(ends_ns_[each], to_.fabric.scheduler().now_ns() + notice_ns);
        ends_by_[each] = absl::StrCat("rank ", each, " was ended after a notice of ",
                                      duration_text(notice_ns), " ", by(fault));
        touched(fault, 1);
      }
      return true;
    case FaultKind::kShrink: shrink(fault); return true;
    case FaultKind::kSkew: touched(fault, static_cast<int64_t>(fault.ranks.size())); return true;
    // FaultRun keeps these.
    case FaultKind::kSlow:
    case FaultKind::kPartition:
    case FaultKind::kSilent:
    case FaultKind::kFull:
    case FaultKind::kIoError: return true;
    default: return false;
  }
}

// What the rank that came to the site has. Returns false where the site is to do it.
bool FaultActor::act_on_rank(int rank, SiteFault& fault) {
  const FaultEffect& effect = *fault.effect;
  switch (effect.kind) {
    case FaultKind::kExit:
      touched(fault, 1);
      to_.deaths->kill(rank,
                       absl::StrCat("rank ", rank, " exited with code ", effect.count.value_or(1),
                                    " ", run_.place_of(rank), " ", by(fault)),
                       /*is_cause=*/true);
      return true;
    case FaultKind::kException:
    case FaultKind::kFail: {
      touched(fault, 1);
      const bool loads = effect.kind == FaultKind::kFail;
      throw std::runtime_error(absl::StrCat(
          effect.word.empty() ? (loads ? "the loader failed" : "the program failed") : effect.word,
          " (rank ", rank, " ", run_.place_of(rank), ", ", by(fault), ")"));
    }
    case FaultKind::kHang: hang(rank, fault); return true;
    case FaultKind::kDelay: {
      const auto choices = static_cast<uint64_t>(effect.longest_ns - effect.duration_ns + 1);
      pause(fault, effect.duration_ns + static_cast<int64_t>(fault.random.below(choices)));
      return true;
    }
    case FaultKind::kStall:
    case FaultKind::kSlowStart: pause(fault, effect.duration_ns); return true;
    case FaultKind::kGone: gone_ = fault; return true;
    default: return false;
  }
}

void FaultActor::kill(int rank, const SiteFault& fault, absl::string_view how) {
  const auto kill_one = [&](int each, bool is_cause) {
    if (to_.deaths->is_dead(each)) return;
    to_.deaths->kill(
        each,
        absl::StrCat("rank ", each, " ", how, " ",
                     is_cause ? absl::StrCat(run_.place_of(rank), " ") : "", by(fault)),
        is_cause);
    touched(fault, 1);
  };
  kill_one(rank, /*is_cause=*/true);
  for (const int each : fault.ranks) kill_one(each, /*is_cause=*/false);
  if (fault.ranks.size() > 1) to_.wake_all();
}

void FaultActor::kill_at_its_end(int rank) {
  if (to_.fabric.scheduler().now_ns() < ends_ns_[rank]) return;
  to_.deaths->kill(rank, absl::StrCat(ends_by_[rank], " ", run_.place_of(rank)),
                   /*is_cause=*/true);
}

void FaultActor::shrink(const SiteFault& fault) {
  for (const int rank : fault.ranks) {
    if (!to_.fabric.executed().is_executed(rank)) continue;
    for (SimDevice* device : to_.devices_of(rank)) {
      device->memory().shrink(*fault.effect->count);
      touched(fault, 1);
    }
  }
}

void FaultActor::pause(const SiteFault& fault, int64_t ns) {
  touched(fault, 1);
  if (ns > 0) to_.fabric.sleep_for(absl::Nanoseconds(ns));
}

void FaultActor::hang(int rank, const SiteFault& fault) {
  touched(fault, 1);
  Scheduler& scheduler = to_.fabric.scheduler();
  const FaultSpan& lasts = fault.effect->lasts;
  Deadline deadline;
  if (lasts.kind == FaultSpan::Kind::kTime) {
    deadline = {.at = scheduler.now() + absl::Nanoseconds(lasts.number),
                .counts_as_progress = true};
  }
  auto describe = [&] { return absl::StrCat("hanging ", run_.place_of(rank), " ", by(fault)); };
  for (;;) {
    const Wake wake = scheduler.block(describe, deadline);
    if (wake == Wake::kDeadline || to_.deaths->is_dead(rank)) return;
    if (wake != Wake::kStalled) continue;
    to_.deaths->kill(rank,
                     absl::StrCat("rank ", rank, " hung ", run_.place_of(rank), " ", by(fault),
                                  ", until no rank could go on"),
                     /*is_cause=*/true);
    return;
  }
}

bool FaultActor::wait_for_end(const FaultRun::Lasting& lasting, absl::string_view what) {
  Scheduler& scheduler = to_.fabric.scheduler();
  touched(lasting.fault, 1);
  if (lasting.until_ns != FaultRun::Lasting::kNever) {
    to_.fabric.sleep_for(absl::Nanoseconds(lasting.until_ns - scheduler.now_ns()));
    return true;
  }
  auto describe = [&] { return absl::StrCat("waiting for ", what, ", ", by(lasting.fault)); };
  const int rank = to_.fabric.running_rank();
  for (;;) {
    const Wake wake = scheduler.block(describe);
    if (to_.deaths->is_dead(rank)) return true;
    if (wake == Wake::kStalled) return false;
  }
}

void FaultActor::wait_for_store(int rank) {
  Scheduler& scheduler = to_.fabric.scheduler();
  if (gone_) {
    touched(*gone_, 1);
    throw c10::DistStoreError(
        absl::StrCat("rank ", rank, " lost the connection to the store ", by(*gone_)));
  }
  const auto wait = [&](const FaultRun::Lasting& lasting, absl::string_view what) {
    if (!wait_for_end(lasting, what)) throw c10::DistStoreError(scheduler.stall_report());
  };
  for (const auto* each : run_.lasting(FaultKind::kSilent, rank, scheduler.now_ns())) {
    wait(*each, "the silent store");
  }
  // The store is on the node of rank 0.
  for (const auto* each : run_.lasting(FaultKind::kPartition, -1, scheduler.now_ns())) {
    const FaultRun::Lasting& lasting = *each;
    if (lasting.fault.effect->word == "data") continue;
    if (lasting.fault.has(rank) != lasting.fault.has(0)) wait(lasting, "the store");
  }
}

void FaultActor::wait_for_peers(int rank, absl::Span<const int> peers) {
  Scheduler& scheduler = to_.fabric.scheduler();
  for (const auto* each : run_.lasting(FaultKind::kPartition, -1, scheduler.now_ns())) {
    const FaultRun::Lasting& lasting = *each;
    if (lasting.fault.effect->word == "store") continue;
    const bool side = lasting.fault.has(rank);
    const bool crosses =
        std::ranges::any_of(peers, [&](int peer) { return lasting.fault.has(peer) != side; });
    if (crosses && !wait_for_end(lasting, "ranks behind the partition")) {
      throw c10::DistBackendError(scheduler.stall_report());
    }
  }
}

}  // namespace accelerate::simulator

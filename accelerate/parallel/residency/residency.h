/// Parameters that are in memory only while operators use them, in any torch::nn::Module.
///
/// A Residency manages some parameters of one model, in groups. A group's values are elsewhere:
/// divided among ranks, on the host, on disk. When an operator of a forward or a backward pass is
/// about to use a parameter, the group's Source makes the values; when memory is to be freed, the
/// group lets them go. The parameters stay the same tensors, so the module, its ties, views of
/// parameters and what autograd saves need no change. See operators/managed_storage.h.
///
/// Two groups are in memory at a time, more only if one operator uses more. A group may also stay
/// beside the two that take turns: from its use in a forward pass until its gradients are made
/// (finish_backward), or as long as its values are current. All others go when a backward pass
/// ends, and when a forward pass without gradients does. Values are used in forward passes (Pass),
/// in backward passes, and in a WholeParameters scope.
///
/// While it is managed, a parameter may have another dtype than the values that its source keeps:
/// the one that operators compute in. A WholeParameters scope shows the values as they are kept.
///
/// The first step records the order in which it uses groups; the least recently used one goes
/// first. Later steps know what comes: when a group is about to be used, the others go, and the
/// values of the next one begin to be made. A step that uses groups in another order drops what is
/// on its way and is recorded anew. Steps with and without gradients have a record each. See
/// use_trace.h.
///
/// Values are those that the source has when a pass begins, forward or backward: what was made
/// before the source changed, as by an optimizer's step, is let go, or made again in a
/// WholeParameters scope without writeback.
///
/// Collective wherever the sources are: ranks must use the same groups in the same order.
/// Errors:  c10::Error naming the parameter if an operator uses a parameter outside of these, or
///          writes to one in a pass. Those of the sources reach the caller of the operator.
/// Threads: the rank's thread, and LibTorch's backward threads while it waits for them.
/// Mirrors: nothing; PyTorch's FSDP hooks modules instead of operators.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/util/intrusive_ptr.h>

#include "accelerate/parallel/residency/sharding_options.h"
#include "accelerate/parallel/residency/use_trace.h"

namespace accelerate {

/// Where the values of one group's parameters come from.
class ParameterSource {
 public:
  virtual ~ParameterSource() = default;

  /// Begins to make the values. finish() or drop() follows before the next begin().
  virtual void begin() = 0;
  /// begin() will probably come next, or after that of the group whose values were asked for last:
  /// what is local and takes long may begin.
  virtual void expect() {}
  /// Returns memory with the values for each parameter in the group's order, contiguous, on the
  /// parameter's device and at least of its size; the current stream may use it.
  virtual std::vector<c10::DataPtr> finish() = 0;
  /// The values that begin() asked for are not used. Waits for them, except while an exception
  /// passes. Throws nothing.
  virtual void drop() = 0;
  /// Whether the values of the last begin() are those that it would begin to make now.
  virtual bool is_current() const { return true; }
  /// The values go, and a backward pass may need them again: the source may keep what makes them
  /// faster until drop_kept_for_backward(). `values`: by parameter, contiguous. Called while they
  /// are in memory, and not always.
  virtual void save_for_backward(const std::vector<at::Tensor>& /*values*/) {}
  virtual void drop_kept_for_backward() {}
  /// A scope begins, or ends, in which code may change the parameters' values.
  virtual void set_writable(bool writable) {}
  /// Before store(): throws if what it would replace has changed since begin().
  virtual void check_store() const {}
  /// Takes over the values that the parameters have now. Called while they are in memory, at the
  /// end of scopes that write back.
  virtual void store();
  /// The values as the source keeps them, contiguous, on the parameters' device. Only for a group
  /// with `shows_copies`.
  virtual std::vector<at::Tensor> kept_values();
};

struct ManagedParameter {
  std::string name;  ///< for messages
  at::Tensor tensor;
  /// What it has while it is managed; absent: its own.
  std::optional<at::ScalarType> dtype = std::nullopt;
  /// Gets a tensor of the same sizes and `packed_dtype` that has the values in passes in the
  /// parameter's place. Null: the parameter has them.
  std::function<void(at::Tensor values)> packed = nullptr;
  at::ScalarType packed_dtype = at::kByte;
};

/// How long a group's values stay in memory once an operator has used them.
enum class Retention : uint8_t {
  kInTurn,         ///< until other groups need the memory
  kUntilGradient,  ///< from a forward pass with gradients until finish_backward()
  kWhileCurrent,   ///< until the source has other values, between passes as well
};

class Residency : public std::enable_shared_from_this<Residency> {
 public:
  struct Group {
    std::vector<ManagedParameter> parameters;
    std::unique_ptr<ParameterSource> source;
    Retention retention = Retention::kInTurn;
    /// Whether a WholeParameters scope shows copies of what the source keeps: where parameters have
    /// another dtype in passes, or share memory with the source.
    bool shows_copies = false;
  };

  struct Options {
    /// Whether the next group's values begin to be made while a group is used in a forward pass.
    bool prefetch = true;
    /// The same in a backward pass.
    GatherAhead prefetch_in_backward = GatherAhead::kBeforeGradient;
    /// A group whose parameters are used again within so many elements of other groups' stays as
    /// kUntilGradient, if at most `max_live` elements are in memory with it. Known from the second
    /// step on. 0: two groups take turns.
    int64_t max_reuse_distance = 0;
    int64_t max_live = std::numeric_limits<int64_t>::max();
    /// Called in the first step of each kind with the group that it is about to use, as a number in
    /// the order of `add`, or UseTrace::kNone when it ends; throws if ranks differ in it.
    std::function<void(int next)> compare_use = nullptr;
  };

  /// Manages nothing yet.
  explicit Residency(Options options);
  Residency() : Residency(Options()) {}
  /// The parameters are absent afterwards: code that still uses them gets an error.
  ~Residency();

  /// Makes the parameters of a group absent, on `device`; what they have in memory is freed. A
  /// parameter that is not contiguous becomes so. None is managed already.
  void add(Group group, c10::Device device);

  /// While a Pass lives, operators may use the parameters: it surrounds a forward pass. Passes
  /// nest.
  class Pass {
   public:
    explicit Pass(Residency& residency);
    /// Errors: those of Options::compare_use.
    ~Pass() noexcept(false);
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;

    /// No backward pass can follow, as where no output needs gradients: the groups go.
    void expect_no_backward() { expects_backward_ = false; }

   private:
    Residency& residency_;
    const int exceptions_;
    bool expects_backward_ = true;
  };

  /// A backward pass has reached a parameter: for passes that use no values, such as those of a
  /// last layer's weights. They end like others. Outside of backward passes it does nothing.
  /// Errors: c10::ValueError inside of a scope with rank0_only or offload_to_cpu.
  void on_backward();

  /// A backward pass has made the gradients of the group with this number, in the order of `add`.
  /// A group that stayed until then goes, unless a running operator uses it.
  void finish_backward(int group);

  /// How long the values of that group stay from their next use on.
  void set_retention(int group, Retention retention);

  /// Which groups' values begin to be made, in this order, when that group is used in a forward
  /// pass or a backward pass, in place of the next one's. So many more are in memory.
  void set_ahead(int group, bool in_backward, std::vector<int> groups);

  /// Brings the values of that group, which operators may use outside of passes as well. They stay
  /// until reshard(), or until a pass has used them; a WholeParameters scope ends that, too.
  /// Errors: c10::ValueError inside of a pass or a WholeParameters scope.
  void unshard(int group);
  /// Lets go of them, unless a running operator uses them.
  void reshard(int group);

  /// What steps with and without gradients have used.
  UseTrace& with_gradients() { return with_gradients_; }
  UseTrace& without_gradients() { return without_gradients_; }

  /// Lets go of all groups that no running operator uses and that do not stay while they are
  /// current, and of those on their way.
  void release_all();

  /// Bytes of parameters that are in memory now, as the parameters count them.
  int64_t bytes_in_memory() const;
  /// How many WholeParameters scopes write back when they end.
  std::shared_ptr<const int> writers() const { return writers_; }
  /// Whether a WholeParameters scope lives, the same on all ranks.
  bool is_whole() const { return whole_ > 0 || values_are_away_; }
  /// How often a source has made a group's values.
  int64_t times_brought() const { return times_brought_; }

 private:
  friend class WholeParameters;
  class ManagedGroup;

  // Before an operator uses a parameter of the group.
  void use(ManagedGroup& group, const at::Tensor& tensor, const char* op, bool writes);
  void change_to(ManagedGroup& group);
  Retention stay_now(const ManagedGroup& group);
  void gather(ManagedGroup& group);
  void end_hold(ManagedGroup& group);
  void release_until(size_t count);
  void drop_kept_for_backward();
  void release_in_memory(bool all = false);
  void prefetch(int next);
  void prefetch_listed(const std::vector<int>& groups);
  void expect(const UseTrace& trace, size_t after);
  void cancel_prefetched();
  void renew();
  void compare_use(UseTrace& trace, int next);
  void end_step(UseTrace& trace);
  void release_after_backward(int backward);
  UseTrace& pass_trace() { return has_gradients_ ? with_gradients_ : without_gradients_; }
  UseTrace* trace();

  const Options options_;
  std::vector<c10::intrusive_ptr<ManagedGroup>> groups_;
  std::vector<ManagedGroup*> in_memory_;  // the last one was used last
  std::vector<ManagedGroup*> coming_;     // whose values are being made
  bool shows_copies_ = false;             // some group does
  UseTrace with_gradients_, without_gradients_;
  bool has_gradients_ = true;  // the outermost Pass
  int passes_ = 0;             // Pass and WholeParameters scopes
  int whole_ = 0;              // WholeParameters scopes
  const std::shared_ptr<int> writers_ = std::make_shared<int>(0);  // those that write back
  bool values_are_away_ = false;  // in a WholeParameters scope that has no passes
  int64_t times_brought_ = 0;
  // The backward passes that have used groups and have not ended, each inside of the one before.
  std::vector<int> backwards_;
};

struct WholeParametersOptions {
  /// Whether what code changes in the scope stays: the sources take over the values at its end.
  bool writeback = true;
  /// Only the first rank of the job gets the values, without writeback. On the others parameters
  /// stay absent; they take part in making the values, one group at a time.
  bool rank0_only = false;
  /// The parameters are tensors of the CPU, filled group by group, so that their device needs
  /// memory for one group only.
  bool offload_to_cpu = false;
  /// Only the groups that have these parameters; empty: all.
  std::vector<at::Tensor> only = {};
};

/// While it lives, the parameters of the Residency, or of some of its groups, are in memory, and
/// operators may read them.
/// With `writeback` they may change them as well, and the sources take over the values at the
/// scope's end, unless an exception ends it; also those of parameters that were given other memory,
/// as torch::load and torch::nn::Module::to do. Without writeback, a pass inside sees what sources
/// have when it begins, so that a model can be trained in the scope. Without a Residency it does
/// nothing. Collective where the sources are.
/// The parameters show the values as their sources keep them, also where they have another dtype in
/// passes; there are no passes in such a scope either, nor where parameters share memory with their
/// sources, whose values a scope may have to leave as they are.
/// Errors: c10::ValueError for rank0_only with writeback; for passes, backward ones included, and
///         scopes inside of one with rank0_only or offload_to_cpu, and for such a scope inside of
///         those. At the scope's end, c10::ValueError naming a parameter that was replaced by one
///         of another dtype or other sizes, and those of ParameterSource::check_store; nothing is
///         changed then.
class WholeParameters {
 public:
  explicit WholeParameters(std::shared_ptr<Residency> residency,
                           WholeParametersOptions options = {});
  ~WholeParameters() noexcept(false);
  WholeParameters(const WholeParameters&) = delete;
  WholeParameters& operator=(const WholeParameters&) = delete;

 private:
  bool allows_passes() const {
    return !options_.rank0_only && !options_.offload_to_cpu && !residency_->shows_copies_;
  }
  void set_writable(bool writable);
  void gather();
  void write_back();
  void end();

  const std::shared_ptr<Residency> residency_;
  const WholeParametersOptions options_;
  const bool in_place_;  // the values are where operators use them
  const int exceptions_;
  std::vector<Residency::ManagedGroup*> groups_;
  size_t held_ = 0;  // of these groups, in their order
};

}  // namespace accelerate

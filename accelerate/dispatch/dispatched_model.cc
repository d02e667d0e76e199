#include "accelerate/dispatch/dispatched_model.h"

#include <algorithm>
#include <exception>
#include <map>
#include <set>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "absl/strings/str_cat.h"
#include "accelerate/big_model/infer_device_map.h"
#include "accelerate/big_model/load_plan.h"
#include "accelerate/comm/checkpoint_error.h"
#include "accelerate/files/formats/offload_index.h"
#include "accelerate/modules/module_state_dict.h"
#include "accelerate/modules/module_tensors.h"
#include "accelerate/modules/value_at_use.h"
#include "accelerate/operators/managed_storage.h"
#include "accelerate/tensors/tensor_memory.h"
#include "accelerate/values/module_class.h"

namespace accelerate {

using internal::ModuleSlot;

namespace {

// The models of one Runtime.
struct LiveModels {
  std::vector<std::weak_ptr<DispatchedModel>> models;
};

enum class Home : uint8_t { kDevice, kHost, kDisk };

const void* storage_of(const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }

// An accelerator without an index is its current one.
c10::Device with_index(c10::Device device) {
  if (device.is_cpu() || device.is_meta() || device.has_index()) return device;
  return c10::impl::VirtualGuardImpl(device.type()).getDevice();
}

}  // namespace

at::Tensor DispatchedModel::Offloaded::values() const {
  const at::NoGradGuard no_grad;
  return home.defined() ? home.detach().clone() : stored->values(tensor);
}

// Checks everything first, then moves tensors.
class DispatchedModel::Builder {
 public:
  Builder(DispatchedModel& model, DispatchOptions options)
      : model_(model),
        options_(std::move(options)),
        files_(model.runtime_->files()),
        slots_(internal::module_slots(*model.module_)) {}

  void build() {
    const at::NoGradGuard no_grad;
    check_map();
    choose_main_device();
    place();
    check_views();
    find_values();
    move();
    manage();
    follow();
  }

 private:
  // A tensor of the module, under all its names.
  struct Target {
    std::vector<size_t> slots;
    Home home = Home::kDevice;
    c10::Device device = c10::kCPU;        // where it is used
    std::vector<c10::Device> others = {};  // where it has copies
    bool goes_back = false;                // a buffer that is there for an offloaded module
    // In host memory, to be moved or the home.
    at::Tensor values = {};
    std::optional<internal::StoredWeight> stored = {};
  };

  const ModuleSlot& slot(const Target& target) const { return slots_[target.slots.front()]; }
  static std::string quoted(const std::string& name) { return absl::StrCat("\"", name, "\""); }

  void check_map() {
    check_device_map(*model_.module_, model_.device_map_);
    for (const DevicePlacement& each : model_.device_map_.placements()) {
      std::optional<c10::Device> device = internal::device_of(each);
      TORCH_CHECK_VALUE(!device || !device->is_meta(),
                        "dispatch_model: the device map names \"meta\", where nothing computes");
      if (device) device = with_index(*device);
      devices_.emplace(each, device);
    }
  }

  void choose_main_device() {
    c10::Device& main = model_.main_device_;
    if (options_.main_device) {
      main = with_index(*options_.main_device);
      TORCH_CHECK_VALUE(!main.is_meta(), "dispatch_model: main_device cannot be \"meta\"");
    } else {
      for (const auto& [placement, device] : devices_) {
        if (placement.is_offloaded()) continue;
        main = *device;
        break;
      }
    }
    offloads_host_ = !main.is_cpu() && !main.is_mps();
    const bool is_single = devices_.size() == 1 && !devices_.begin()->first.is_disk();
    // All on one device, or on the CPU where that is the main device.
    model_.has_hooks_ =
        options_.force_hooks || !is_single || (devices_.begin()->first.is_cpu() && offloads_host_);
    // Without hooks inputs go where the model is.
    if (!model_.has_hooks_) main = devices_.begin()->second.value_or(main);
    model_.skip_keys_ = options_.skip_keys;
  }

  // Tied tensors are one target.
  void place() {
    const std::set<std::string> no_state =
        get_non_persistent_buffers(*model_.module_, /*recurse=*/true, /*fqns=*/true);
    absl::flat_hash_map<const void*, std::vector<size_t>> by_storage;
    for (size_t i = 0; i < slots_.size(); ++i) {
      const at::Tensor& tensor = slots_[i].tensor;
      std::vector<size_t>& sharing = by_storage[storage_of(tensor)];
      const auto tied = std::ranges::find_if(sharing, [&](size_t each) {
        return internal::are_identical_views(slot(targets_[each]).tensor, tensor);
      });
      const bool is_new = tied == sharing.end();
      if (is_new) sharing.push_back(targets_.size());
      Target* const target = is_new ? &targets_.emplace_back() : &targets_[*tied];
      target->slots.push_back(i);
      const DevicePlacement* const placement = model_.device_map_.find(slots_[i].placed_name());
      const std::optional<c10::Device> device =
          placement == nullptr ? model_.main_device_ : devices_.at(*placement);
      const bool is_kept =
          slots_[i].is_buffer && (!options_.offload_buffers || no_state.contains(slots_[i].name));
      Home home = !device                                                         ? Home::kDisk
                  : placement != nullptr && placement->is_cpu() && offloads_host_ ? Home::kHost
                                                                                  : Home::kDevice;
      const c10::Device used_on = home == Home::kDevice ? *device : model_.main_device_;
      const bool goes_back = is_kept && home != Home::kDevice;
      if (is_kept) home = Home::kDevice;
      target->goes_back = goes_back && (is_new || target->goes_back);
      // A device before the host before the disk.
      if (is_new || home < target->home) {
        target->home = home;
        target->device = used_on;
      } else if (home == Home::kDevice && used_on != target->device &&
                 std::ranges::count(target->others, used_on) == 0) {
        target->others.push_back(used_on);
      }
    }
  }

  bool changes_memory(const Target& target) const {
    const at::Tensor& tensor = slot(target).tensor;
    return target.home != Home::kDevice || tensor.device() != target.device;
  }

  // What a view shows would be another memory than the parameter's.
  void check_views() const {
    absl::flat_hash_map<const void*, std::set<const c10::TensorImpl*>> own;
    for (const ModuleSlot& each : slots_) {
      own[storage_of(each.tensor)].insert(each.tensor.unsafeGetTensorImpl());
    }
    for (const Target& target : targets_) {
      const at::Tensor& tensor = slot(target).tensor;
      TORCH_CHECK_VALUE(storage_owner(tensor) == nullptr,
                        "dispatch_model: ", quoted(slot(target).name),
                        " is in memory only while it is used already, as in a model that ranks "
                        "divide");
      const at::Tensor& made = slot(target).made_parameter;
      TORCH_CHECK_VALUE(!made.defined() || !made.requires_grad() || target.home == Home::kDevice,
                        "dispatch_model: ", quoted(slot(target).name),
                        " is stored in another dtype and cannot be trained where it is offloaded: "
                        "let it not require gradients, or end its layerwise casting");
      if (tensor.is_meta() || !changes_memory(target)) continue;
      const size_t holders = tensor.storage().use_count();
      TORCH_CHECK_VALUE(
          holders <= own[storage_of(tensor)].size(), "dispatch_model: ", quoted(slot(target).name),
          " moves to other memory, and a view of it is alive, which would keep the old one: free "
          "views, state dicts and graphs of earlier passes first");
    }
  }

  void find_values() {
    const std::map given(options_.state_dict.begin(), options_.state_dict.end());
    NamedTensors to_write;
    std::vector<Target*> written;
    for (Target& target : targets_) {
      const at::Tensor& tensor = slot(target).tensor;
      const bool is_given = target.home != Home::kDevice && find_given(target, given);
      if (target.home == Home::kDisk) {
        // Values in memory come before those in a folder, which another model may have left.
        const bool looks = !is_given && (tensor.is_meta() || options_.offload_index);
        if (looks && find_stored(target)) continue;
        if (is_given || !tensor.is_meta()) {
          TORCH_CHECK_VALUE(!options_.offload_dir.empty(), "dispatch_model: the device map puts ",
                            quoted(slot(target).name),
                            " on the disk: an offload_dir or an offload_index is needed");
          const at::Tensor& values = is_given ? target.values : tensor;
          to_write.emplace_back(slot(target).name, values.to(tensor.scalar_type()));
          written.push_back(&target);
          continue;
        }
      } else if (!is_given && !tensor.is_meta()) {
        target.values = tensor;
        continue;
      } else if (is_given || find_stored(target)) {
        continue;
      }
      TORCH_CHECK_VALUE(false, "dispatch_model: ", quoted(slot(target).name),
                        " is on the meta device and has no values: load a checkpoint with "
                        "load_checkpoint_and_dispatch, or materialize() it");
    }
    if (to_write.empty()) return;
    const OffloadIndex index = internal::offload_tensors(files_, options_.offload_dir, to_write);
    for (size_t i = 0; i < written.size(); ++i) {
      const auto& [name, entry] = index[i];
      written[i]->stored.emplace(files_, options_.offload_dir, name, entry,
                                 slot(*written[i]).tensor.sizes());
    }
  }

  // Once, by the first tensor that may be in it.
  void read_index() {
    if (std::exchange(has_read_index_, true)) return;
    OffloadIndex index;
    if (options_.offload_index) {
      index = *options_.offload_index;
    } else if (!options_.offload_dir.empty() &&
               internal::value_or_throw(
                   exists(files_, join_path(options_.offload_dir, kOffloadIndexName)))) {
      index = internal::value_or_throw(read_offload_index(files_, options_.offload_dir));
    }
    for (auto& [name, entry] : index) index_by_name_.emplace(name, std::move(entry));
  }

  bool find_stored(Target& target) {
    for (const size_t each : target.slots) {
      const ModuleSlot& slot = slots_[each];
      if (!options_.offload_index) {
        target.stored = internal::StoredWeight::find(slot.tensor, slot.name, options_.offload_dir);
      }
      if (!target.stored) {
        read_index();
        const auto found = index_by_name_.find(slot.name);
        if (found == index_by_name_.end()) continue;
        target.stored.emplace(files_, options_.offload_dir, slot.name, found->second,
                              slot.tensor.sizes());
      }
      target.stored->check_becomes(slot.tensor.scalar_type());
      return true;
    }
    return false;
  }

  bool find_given(Target& target, const std::map<std::string, at::Tensor>& given) {
    for (const size_t each : target.slots) {
      const auto found = given.find(slots_[each].name);
      if (found == given.end() || found->second.is_meta()) continue;
      TORCH_CHECK_VALUE(found->second.sizes() == slots_[each].tensor.sizes(),
                        "dispatch_model: the state_dict has ", quoted(found->first), " with sizes ",
                        found->second.sizes(), ", and the model has ", slots_[each].tensor.sizes());
      target.values = found->second;
      return true;
    }
    return false;
  }

  // Those that stay in memory: first the memory of all, so that a device without room is found
  // before anything has moved.
  void move() {
    std::vector<std::pair<Target*, at::Tensor>> moved;
    for (Target& target : targets_) {
      if (target.home != Home::kDevice || !changes_memory(target)) continue;
      const at::Tensor values =
          target.values.defined() ? target.values : target.stored->values(slot(target).tensor);
      moved.emplace_back(&target, values.to(target.device));
      tag_memory(moved.back().second,
                 slot(target).is_buffer ? MemoryKind::kBuffer : MemoryKind::kParameter);
    }
    for (auto& [target, values] : moved) {
      target->values = at::Tensor();
      const c10::Device before = slot(*target).tensor.device();
      BorrowedBuffer borrowed{.home = before, .device = values.device()};
      for (const size_t each : target->slots) {
        internal::rebind(slots_[each].tensor, values);
        borrowed.tensors.push_back(slots_[each].tensor);
      }
      if (target->goes_back && !before.is_meta()) model_.borrowed_.push_back(std::move(borrowed));
    }
  }

  // Host memory from which copies go on beside the host.
  at::Tensor home_of(const Target& target) {
    const at::Tensor& tensor = slot(target).tensor;
    const at::Tensor values =
        target.values.defined() ? target.values.detach() : target.stored->values(tensor);
    const bool pins = !model_.main_device_.is_cpu() && !model_.main_device_.is_mps();
    const bool is_its_own = tensor.is_alias_of(values) || !target.values.defined();
    if (!pins && is_its_own && values.is_cpu() && values.is_contiguous()) return values;
    at::Tensor home =
        at::empty(values.sizes(),
                  at::TensorOptions(at::kCPU).dtype(tensor.scalar_type()).pinned_memory(pins));
    home.copy_(values);
    return home;
  }

  void manage() {
    model_.places_ = std::make_shared<internal::ModelPlaces>();
    for (Target& target : targets_) {
      target.values = target.home == Home::kDevice ? at::Tensor() : target.values;
      if (target.home == Home::kDevice) model_.places_->add(slot(target).tensor, target.others);
    }
    if (std::ranges::all_of(targets_,
                            [](const Target& each) { return each.home == Home::kDevice; })) {
      return;
    }
    place_of_sources_ = {
        .device = model_.main_device_,
        .copies = std::make_shared<internal::SideStream>(model_.main_device_),
        .make_room = [&model = model_] { model.release_others(); },
        .free_unused =
            [&model = model_] {
              model.release_others();
              model.residency_->release_all();
            },
    };
    model_.reading_ = std::make_unique<internal::FileReading>(*model_.runtime_, place_of_sources_);
    model_.residency_ = std::make_shared<Residency>();
    for (const std::vector<Target*>& group : groups()) manage(group);
  }

  int64_t bytes(const Target& target) const {
    return static_cast<int64_t>(slot(target).tensor.numel() *
                                static_cast<int64_t>(slot(target).tensor.element_size()));
  }

  // Modules that own tensors, or whose class is to be in memory as a whole, in the order of the
  // model; as many of them in a group as have the bytes of the largest and a little more, so that
  // copying one group takes as long as copying the next.
  std::vector<std::vector<Target*>> groups() {
    std::map<std::string, std::vector<Target*>> by_unit;
    std::vector<std::string> order;
    std::vector<std::string> whole;
    if (!options_.preload_module_classes.empty()) {
      for (const auto& each : model_.module_->named_modules()) {
        if (std::ranges::count(options_.preload_module_classes, module_class_name(*each.value())) >
            0) {
          whole.push_back(each.key());
        }
      }
    }
    for (Target& target : targets_) {
      if (target.home == Home::kDevice) continue;
      const std::string& name = slot(target).name;
      std::string unit = name.substr(0, name.find_last_of('.') + 1);
      for (const std::string& each : whole) {
        const std::string prefix = each.empty() ? "" : absl::StrCat(each, ".");
        if (name.starts_with(prefix)) {
          unit = prefix;
          break;
        }
      }
      unit += target.home == Home::kHost ? 'h' : 'd';
      if (by_unit[unit].empty()) order.push_back(unit);
      by_unit[unit].push_back(&target);
    }
    std::vector<int64_t> sizes;
    for (const std::string& unit : order) {
      int64_t sum = 0;
      for (const Target* each : by_unit[unit]) sum += bytes(*each);
      sizes.push_back(sum);
    }
    const int64_t largest = *std::ranges::max_element(sizes);
    const int64_t limit = largest + largest / 8;
    std::vector<std::vector<Target*>> groups;
    int64_t in_group = 0;
    for (size_t i = 0; i < order.size(); ++i) {
      std::vector<Target*>& unit = by_unit[order[i]];
      if (groups.empty() || in_group + sizes[i] > limit ||
          groups.back().front()->home != unit.front()->home) {
        groups.emplace_back();
        in_group = 0;
      }
      groups.back().insert(groups.back().end(), unit.begin(), unit.end());
      in_group += sizes[i];
    }
    return groups;
  }

  void manage(const std::vector<Target*>& group) {
    const bool is_host = group.front()->home == Home::kHost;
    std::vector<at::Tensor> homes;
    std::vector<internal::StoredWeight> stored;
    std::vector<internal::OffloadedTensorPlan> plans;
    // Before anything is freed: memory may run out here, and then all values are where they were.
    for (Target* target : group) {
      if (is_host) homes.push_back(home_of(*target).detach());
    }
    for (Target* target : group) {
      const ModuleSlot& first = slot(*target);
      Offloaded offloaded{.name = first.name, .tensor = first.tensor, .is_buffer = first.is_buffer};
      plans.push_back({first.tensor.sizes().vec(), first.tensor.scalar_type()});
      if (is_host) {
        target->values = at::Tensor();
        // One that has no gradients yet, and perhaps another place than the parameter.
        offloaded.home = homes[plans.size() - 1];
        if (!first.is_buffer) offloaded.home.set_requires_grad(first.tensor.requires_grad());
      } else {
        offloaded.stored = std::make_shared<internal::StoredWeight>(*target->stored);
        stored.push_back(*std::move(target->stored));
      }
      free(*target);
      model_.offloaded_.push_back(std::move(offloaded));
    }
    Residency::Group managed;
    for (Target* target : group) {
      managed.parameters.push_back({.name = slot(*target).name, .tensor = slot(*target).tensor});
    }
    managed.source = is_host ? internal::make_host_source(std::move(homes), place_of_sources_)
                             : model_.reading_->make_source(std::move(stored), std::move(plans));
    model_.residency_->add(std::move(managed), model_.main_device_);
    for (size_t i = 0; i < group.size(); ++i) {
      adopt(*group[i], model_.offloaded_.size() - group.size() + i);
    }
  }

  // On "meta", from where the engine makes it absent on another device.
  void free(const Target& target) {
    const at::Tensor& first = slot(target).tensor;
    const at::Tensor nothing =
        at::empty(first.sizes(), at::TensorOptions(at::kMeta).dtype(first.scalar_type()));
    for (const size_t each : target.slots) internal::rebind(slots_[each].tensor, nothing);
  }

  void adopt(const Target& target, size_t number) {
    const Offloaded& offloaded = model_.offloaded_[number];
    for (const size_t each : target.slots) {
      const at::Tensor& tensor = slots_[each].tensor;
      // Tied tensors that are not the same one.
      if (!tensor.is_same(offloaded.tensor)) internal::rebind(tensor, offloaded.tensor);
      if (!model_.offloaded_by_tensor_.emplace(tensor.unsafeGetTensorImpl(), number).second) {
        continue;
      }
      model_.managed_.emplace_back(tensor, number);
      model_.offloaded_by_storage_.emplace(storage_of(tensor), number);
      model_.places_->add(tensor);
      // A frozen one may be trained later.
      if (offloaded.is_buffer || !tensor.is_floating_point()) continue;
      internal::set_gradient_home(tensor, offloaded.name, offloaded.home);
    }
  }

  // Parameters whose values are made of what has moved.
  void follow() {
    model_.operators_ = std::move(options_.operators);
    for (const ModuleSlot& each : slots_) {
      if (!each.made_parameter.defined()) continue;
      update_device_from_kept(each.made_parameter);
      if (model_.made_.empty() || !model_.made_.back().is_same(each.made_parameter)) {
        model_.made_.push_back(each.made_parameter);
        model_.places_->add(each.made_parameter);
      }
    }
  }

  DispatchedModel& model_;
  DispatchOptions options_;
  FileSystem& files_;
  const std::vector<ModuleSlot> slots_;
  std::map<DevicePlacement, std::optional<c10::Device>> devices_;
  bool offloads_host_ = false;
  std::vector<Target> targets_;
  std::map<std::string, OffloadedTensor> index_by_name_;
  bool has_read_index_ = false;
  internal::SourcePlace place_of_sources_{c10::kCPU};
};

// Around the calls of a handle, and of the hooks that were added to it.
class DispatchedModel::PassHook final : public ModelHook {
 public:
  explicit PassHook(DispatchedModel& model) : model_(model) {}

  void pre_forward(torch::nn::Module& /*module*/, ForwardValues& arguments) override {
    // Inputs of a model without a map stay.
    const std::optional<c10::Device> main =
        model_.device_map_.empty() ? std::nullopt : std::optional(model_.main_device_);
    Running running = {.inputs = main ? arguments.find_device() : std::nullopt,
                       .pass = std::make_unique<Pass>(model_)};
    if (main) arguments.send_to_device(*main, {.skip_keys = model_.skip_keys()});
    running_.push_back(std::move(running));
  }
  void post_forward(torch::nn::Module& /*module*/, ForwardValues& output) override {
    const Running running = take();
    bool has_gradient = false;
    output.for_each_tensor([&has_gradient](const at::Tensor& tensor) {
      has_gradient |= tensor.defined() && tensor.requires_grad();
    });
    if (!has_gradient) running.pass->expect_no_backward();
    if (running.inputs) {
      output.send_to_device(*running.inputs, {.skip_keys = model_.skip_keys()});
    }
    running.pass->end();
  }
  void forward_failed(torch::nn::Module& /*module*/) noexcept override { take(); }

 private:
  struct Running {
    std::optional<c10::Device> inputs;
    std::unique_ptr<Pass> pass;
  };

  Running take() {
    Running last = std::move(running_.back());
    running_.pop_back();
    return last;
  }

  DispatchedModel& model_;
  std::vector<Running> running_;  // a model may call itself
};

DispatchedModel::DispatchedModel(std::shared_ptr<torch::nn::Module> module, DeviceMap device_map)
    : module_(std::move(module)),
      device_map_(std::move(device_map)),
      runtime_(&Runtime::current()),
      hooks_(HookSlot::of(module_)),
      pass_hook_(std::make_shared<PassHook>(*this)) {}

std::shared_ptr<DispatchedModel> DispatchedModel::make(std::shared_ptr<torch::nn::Module> module,
                                                       DeviceMap device_map,
                                                       DispatchOptions options) {
  TORCH_CHECK_VALUE(module != nullptr, "dispatch_model: the model is null");
  TORCH_CHECK_VALUE(internal::find_dispatched(*module) == nullptr,
                    "dispatch_model: the model is dispatched already; free the result of that "
                    "call first");
  std::shared_ptr<DispatchedModel> model(
      new DispatchedModel(std::move(module), std::move(device_map)));
  Builder(*model, std::move(options)).build();
  auto& models =
      model->runtime_->shared<LiveModels>([] { return std::make_shared<LiveModels>(); }).models;
  std::erase_if(models, [](const auto& each) { return each.expired(); });
  models.push_back(model);
  announce_tensors_elsewhere(*model->runtime_, model);
  return model;
}

std::shared_ptr<DispatchedModel> DispatchedModel::make_undispatched(
    std::shared_ptr<torch::nn::Module> module) {
  return std::shared_ptr<DispatchedModel>(new DispatchedModel(std::move(module), DeviceMap()));
}

DispatchedModel::~DispatchedModel() {
  residency_.reset();
  reading_.reset();
  const at::NoGradGuard no_grad;
  for (const auto& [tensor, number] : managed_) {
    const Offloaded& each = offloaded_[number];
    if (!each.is_buffer && tensor.is_floating_point()) internal::end_gradient_home(tensor);
    const at::TensorOptions without_memory =
        at::TensorOptions(at::kMeta).dtype(tensor.scalar_type());
    internal::rebind(tensor, each.home.defined() ? each.home.detach()
                                                 : at::empty(tensor.sizes(), without_memory));
    if (each.home.defined()) {
      tensor.mutable_grad() = each.home.grad();
    } else if (each.stored->file() != nullptr) {
      internal::register_offloaded(tensor, each.stored->file());
    }
  }
  for (const BorrowedBuffer& each : borrowed_) {
    const at::Tensor& first = each.tensors.front();
    // The program may have moved it since.
    if (first.device() != each.device) continue;
    try {
      const at::Tensor values = first.detach().to(each.home);
      for (const at::Tensor& tensor : each.tensors) internal::rebind(tensor, values);
    } catch (...) {
      // It stays where it is: the end of a model is not the place to report a device's error.
    }
  }
  for (const at::Tensor& each : made_) update_device_from_kept(each);
}

const DispatchedModel::Offloaded* DispatchedModel::find_offloaded(const at::Tensor& tensor) const {
  const auto found = offloaded_by_tensor_.find(tensor.unsafeGetTensorImpl());
  return found == offloaded_by_tensor_.end() ? nullptr : &offloaded_[found->second];
}

std::optional<ValuesElsewhere> DispatchedModel::values_elsewhere(const at::Tensor& tensor) const {
  const auto found = offloaded_by_storage_.find(storage_of(tensor));
  if (found == offloaded_by_storage_.end()) return std::nullopt;
  const Offloaded& offloaded = offloaded_[found->second];
  if (offloaded.home.defined()) return ValuesElsewhere{.home = offloaded.home};
  return ValuesElsewhere{.read = [stored = offloaded.stored, dtype = tensor.scalar_type()] {
    return stored->map().to(dtype);
  }};
}

void DispatchedModel::zero_grad(bool set_to_none) {
  module_->zero_grad(set_to_none);
  for (Offloaded& each : offloaded_) {
    if (!each.home.defined() || !each.home.grad().defined()) continue;
    if (set_to_none) {
      each.home.mutable_grad() = at::Tensor();
    } else {
      each.home.mutable_grad().zero_();
    }
  }
}

void DispatchedModel::begin_pass() {
  places_->refresh();
  release_others();
  for (const Offloaded& each : offloaded_) {
    if (each.is_buffer || !each.home.defined()) continue;
    if (each.home.requires_grad() != each.tensor.requires_grad()) {
      each.home.set_requires_grad(each.tensor.requires_grad());
    }
  }
  if (reading_ != nullptr) reading_->set_reads_ahead(!at::GradMode::is_enabled());
}

// Two groups of all models of a device are in memory, not of each.
void DispatchedModel::release_others() {
  for (const auto& other : internal::dispatched_models(runtime_)) {
    if (other.get() != this && other->residency_ != nullptr &&
        other->main_device_ == main_device_) {
      other->residency_->release_all();
    }
  }
}

DispatchedModel::Pass::Pass(DispatchedModel& model)
    : model_(model),
      exceptions_(std::uncaught_exceptions()),
      placement_(model.has_hooks_ ? std::make_shared<internal::ActivationPlacement>(
                                        model.places_, model.main_device_)
                                  : nullptr) {
  if (model_.operators_ != nullptr) operators_.emplace(model_.operators_);
  if (placement_ == nullptr) return;
  model_.begin_pass();
  if (model_.residency_ != nullptr) pass_ = std::make_unique<Residency::Pass>(*model_.residency_);
  scope_.emplace(placement_);
  model_.placement_ = placement_;
}

DispatchedModel::Pass::~Pass() noexcept(false) { end(); }

void DispatchedModel::Pass::end() {
  if (std::exchange(has_ended_, true)) return;
  scope_.reset();
  operators_.reset();
  if (placement_ == nullptr) return;
  placement_->end();
  const bool failed = std::uncaught_exceptions() > exceptions_;
  pass_.reset();
  if (model_.reading_ != nullptr && !failed) model_.reading_->end_pass();
}

void DispatchedModel::Pass::expect_no_backward() {
  if (pass_ != nullptr) pass_->expect_no_backward();
}

namespace internal {

std::vector<std::shared_ptr<DispatchedModel>> dispatched_models(const Runtime* runtime) {
  std::vector<std::shared_ptr<DispatchedModel>> alive;
  const auto* const models = runtime != nullptr ? runtime->find_shared<LiveModels>() : nullptr;
  if (models == nullptr) return alive;
  for (const auto& each : models->models) {
    if (auto model = each.lock()) alive.push_back(std::move(model));
  }
  return alive;
}

std::shared_ptr<DispatchedModel> find_dispatched(const torch::nn::Module& module) {
  for (auto& each : dispatched_models()) {
    if (each->module().get() == &module) return std::move(each);
  }
  return nullptr;
}

}  // namespace internal
}  // namespace accelerate

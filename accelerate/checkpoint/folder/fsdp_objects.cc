#include "accelerate/checkpoint/folder/fsdp_objects.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "accelerate/base/constants.h"
#include "accelerate/checkpoint/folder/checkpoint_folder.h"
#include "accelerate/checkpoint/folder/checkpoint_parts.h"
#include "accelerate/checkpoint/folder/save_load.h"
#include "accelerate/checkpoint/folder/sharded_parts.h"
#include "accelerate/checkpoint/folder/state_saver.h"
#include "accelerate/checkpoint/objects/sharded_state_dict.h"
#include "accelerate/comm/agree.h"
#include "accelerate/comm/checkpoint_error.h"
#include "accelerate/files/stored_tensors.h"
#include "accelerate/optim/shared_objects.h"

namespace accelerate::internal {
namespace {

using nlohmann::ordered_json;

// Which save a rank's own part is of.
constexpr char kId[] = "id";

enum class Form { kDivided, kWhole, kOwnPart };

// A model or an optimizer, and the names of its files. In a checkpoint of save_state, a whole one
// has a name of its own.
struct Kind {
  const char* caller;
  std::string name;
  std::string name_in_checkpoint;
  bool is_model = true;
};

Kind model_kind(const char* caller) { return {caller, kFsdpModelName, kSafeModelName, true}; }
Kind optimizer_kind(const char* caller) { return {caller, kOptimizerName, kOptimizerName, false}; }

std::string numbered(const std::string& name, int64_t index) {
  return index == 0 ? name : absl::StrCat(name, "_", index);
}

Form form_of(const FsdpObjectOptions& options, bool is_model) {
  switch (options.state_dict_type) {
    case StateDictType::kFullStateDict: return Form::kWhole;
    case StateDictType::kLocalStateDict: return is_model ? Form::kOwnPart : Form::kDivided;
    case StateDictType::kShardedStateDict: break;
  }
  return options.use_dcp ? Form::kDivided : Form::kOwnPart;
}

// The name of a rank's own part, by itself. That of a LOCAL_STATE_DICT has no number 0.
std::string own_part_name(const Kind& kind, const FsdpObjectOptions& options, int rank) {
  const bool is_local = options.state_dict_type == StateDictType::kLocalStateDict;
  return absl::StrCat(
      is_local ? numbered(kind.name, options.index) : absl::StrCat(kind.name, "_", options.index),
      "_rank", rank);
}

// A state without tensors is JSON.
constexpr const char* kExtensions[] = {".safetensors", ".json"};

bool is_there(FileSystem& files, const std::string& path) {
  return value_or_throw(exists(files, path));
}

std::vector<std::shared_ptr<ModelState>> one(const std::shared_ptr<ModelState>& model) {
  return {model};
}

// ---- Saving.

// In place of what was there under this name.
void save_file(FileSystem& files, const CheckpointPart& part, const std::string& folder) {
  const bool has_tensors = !part.state.tensors.empty();
  const std::string path = join_path(folder, part.name);
  save(files, part.state, path + kExtensions[has_tensors ? 0 : 1]);
  const std::string other = path + kExtensions[has_tensors ? 1 : 0];
  if (is_there(files, other)) check_ok(files.remove(other));
}

void save_object(StateSaver& saver, const Kind& kind, ShardedObject object,
                 const std::string& output_dir, const FsdpObjectOptions& options) {
  const std::string folder = saver.expanded(output_dir);
  TORCH_CHECK_VALUE(!folder.empty(), kind.caller, " needs an output_dir");
  const Form form = form_of(options, kind.is_model);
  if (form == Form::kDivided) {
    const std::string own = join_path(folder, sharded_folder(kind.name, options.index));
    return saver.save_parts(kind.caller, own, [&](const TrainingParts& parts) {
      const RankShardPlan plan(parts.disks, parts.runtime.topology().rank,
                               ShardPlaces(parts.training.models));
      return sharded_parts(object, plan, saver.writes_shared());
    });
  }
  saver.wait();
  const TrainingParts parts = saver.parts();
  const int rank = parts.runtime.topology().rank;
  if (form == Form::kWhole) {
    const std::string name = numbered(kind.name, options.index);
    const CheckpointPart whole = parts.whole_part(object, name, saver.writes_shared());
    agree(saver.group(), kind.caller, [&]() -> std::string {
      if (saver.writes_shared()) save_file(parts.runtime.files(), whole, folder);
      return "";
    });
    return;
  }
  const auto ids = agree(saver.group(), kind.caller, [&] {
    return absl::StrCat(absl::Hex(parts.runtime.random_bits(), absl::kZeroPad16));
  });
  CheckpointPart own = parts.own_part(std::move(object), own_part_name(kind, options, rank),
                                      ShardPlaces(parts.training.models));
  own.state.values[kId] = ids.front().text;
  agree(saver.group(), kind.caller, [&] {
    save_file(parts.runtime.files(), own, folder);
    return "";
  });
}

// ---- Loading.

// What there is to load.
struct Source {
  Form form = Form::kDivided;
  std::string name;                        // in the checkpoint
  std::string path;                        // for messages; of a file by itself
  std::optional<CheckpointReader> reader;  // absent for a file by itself
  std::string id;                          // of the save
};

class Finder {
 public:
  Finder(FileSystem& files, const Kind& kind, const FsdpObjectOptions& options, int rank)
      : files_(files), kind_(kind), options_(options), rank_(rank) {}

  // Errors: c10::ValueError if there is nothing.
  Source find(const std::string& folder) {
    TORCH_CHECK_VALUE(is_there(files_, folder), kind_.caller, ": there is no folder ", folder);
    if (is_checkpoint(folder)) return find_in(folder);
    // The folder of an object's shards in a checkpoint.
    if (is_there(files_, join_path(folder, kShardedMetadataFile)) &&
        is_checkpoint(parent_path(folder))) {
      return in_checkpoint(Form::kDivided, parent_path(folder),
                           folder.substr(folder.rfind('/') + 1));
    }
    return find_by_itself(folder);
  }

 private:
  bool is_checkpoint(const std::string& folder) {
    return is_there(files_, join_path(folder, kManifestName));
  }

  // The form that the options name first.
  std::vector<Form> forms() const {
    std::vector<Form> forms = {Form::kDivided, Form::kWhole, Form::kOwnPart};
    const auto first = std::ranges::find(forms, form_of(options_, kind_.is_model));
    std::rotate(forms.begin(), first, first + 1);
    return forms;
  }

  Source in_checkpoint(Form form, const std::string& folder, const std::string& name) {
    Manifest manifest = internal::value_or_throw(check_checkpoint(files_, folder));
    std::string id = manifest.id;
    return {.form = form,
            .name = name,
            .path = name.empty() ? folder : join_path(folder, name),
            .reader = CheckpointReader(files_, folder, std::move(manifest)),
            .id = std::move(id)};
  }

  // `folder` is what this library has saved an object's shards in, or a checkpoint of save_state.
  Source find_in(const std::string& folder) {
    const CheckpointReader reader(files_, folder,
                                  internal::value_or_throw(check_checkpoint(files_, folder)));
    if (reader.is_divided("")) return in_checkpoint(Form::kDivided, folder, "");
    for (const Form form : forms()) {
      const std::string name =
          form == Form::kDivided ? sharded_folder(kind_.name, options_.index)
          : form == Form::kWhole
              ? numbered(kind_.name_in_checkpoint, options_.index)
              : absl::StrCat(numbered(kind_.name, options_.index), "_rank", rank_);
      const bool has =
          form == Form::kDivided ? reader.is_divided(name) : reader.find(name).has_value();
      if (has) return in_checkpoint(form, folder, name);
    }
    TORCH_CHECK_VALUE(false, kind_.caller, ": the checkpoint ", folder, " has no ",
                      kind_.name_in_checkpoint, " number ", options_.index);
  }

  Source find_by_itself(const std::string& folder) {
    std::vector<std::string> missing;
    for (const Form form : forms()) {
      if (form == Form::kDivided) {
        const std::string own = join_path(folder, sharded_folder(kind_.name, options_.index));
        if (is_checkpoint(own)) return in_checkpoint(form, own, "");
        missing.push_back(own);
        continue;
      }
      const std::string name = form == Form::kWhole ? numbered(kind_.name, options_.index)
                                                    : own_part_name(kind_, options_, rank_);
      for (const char* extension : kExtensions) {
        std::string path = join_path(folder, name) + extension;
        if (is_there(files_, path)) return {.form = form, .name = name, .path = std::move(path)};
      }
      missing.push_back(join_path(folder, name) + kExtensions[0]);
    }
    TORCH_CHECK_VALUE(false, kind_.caller, ": there is none of ", absl::StrJoin(missing, ", "));
  }

  FileSystem& files_;
  const Kind& kind_;
  const FsdpObjectOptions& options_;
  const int rank_;
};

StoredTensors open(FileSystem& files, const Source& source) {
  if (!source.reader) return StoredTensors(files, StoredFile{.path = source.path});
  return source.form == Form::kDivided ? source.reader->open_divided(source.name)
                                       : source.reader->open(source.name);
}

// Finds what all ranks load, and calls `read` for it.
void load_object(StateSaver& saver, const Kind& kind, const std::string& input_dir,
                 const FsdpObjectOptions& options,
                 const std::function<void(const Source&, const TrainingParts&)>& read) {
  saver.wait();
  const TrainingParts parts = saver.parts();
  FileSystem& files = parts.runtime.files();
  const std::string folder = saver.expanded(input_dir);
  // Before any rank looks.
  agree(saver.group(), kind.caller, [&] {
    if (saver.writes_shared()) {
      check_ok(
          recover_checkpoint(files, join_path(folder, sharded_folder(kind.name, options.index))));
    }
    return "";
  });
  std::optional<Source> source;
  const auto found = agree(saver.group(), kind.caller, [&] {
    source.emplace(Finder(files, kind, options, parts.runtime.topology().rank).find(folder));
    if (source->form == Form::kOwnPart && !source->reader) {
      const ordered_json values =
          source->path.ends_with(kExtensions[1])
              ? load(files, source->path).values
              : parse_state_values(open(files, *source).values(), source->path);
      source->id = values.value(kId, "");
    }
    return absl::StrCat(static_cast<int>(source->form), " ", source->id, " ", source->path);
  });
  // Where ranks would load different things, none has begun.
  const auto save_of = [](const RankOutcome& rank) {
    return absl::string_view(rank.text).substr(0, rank.text.find(' ', 2));
  };
  for (size_t rank = 1; rank < found.size(); ++rank) {
    TORCH_CHECK_VALUE(save_of(found[rank]) == save_of(found[0]), kind.caller, ": rank ", rank,
                      " would load ", found[rank].text.substr(save_of(found[rank]).size() + 1),
                      ", which is not of the same save as rank 0's ",
                      found[0].text.substr(save_of(found[0]).size() + 1));
  }
  agree(saver.group(), kind.caller, [&] {
    read(*source, parts);
    return "";
  });
}

std::string text_of(const Source& source) {
  return source.form == Form::kOwnPart ? absl::StrCat(source.path, " is a rank's own part")
                                       : source.path;
}

}  // namespace

void save_fsdp_model(StateSaver& saver, const std::shared_ptr<ModelState>& model,
                     const std::string& output_dir, const FsdpObjectOptions& options) {
  const Kind kind = model_kind("save_fsdp_model");
  NamedTensors weights = trained_state_dict(*model);
  if (options.wanted) {
    std::erase_if(weights, [&](const auto& each) { return !options.wanted(each.first); });
    TORCH_CHECK_VALUE(!weights.empty(), kind.caller, ": adapter_only chooses no tensor of the ",
                      model->module()->name());
  }
  save_object(saver, kind, saver.parts().model_object(weights, ShardPlaces(one(model))), output_dir,
              options);
}

void load_fsdp_model(StateSaver& saver, const std::shared_ptr<ModelState>& model,
                     const std::string& input_dir, const FsdpObjectOptions& options) {
  load_object(saver, model_kind("load_fsdp_model"), input_dir, options,
              [&](const Source& source, const TrainingParts& parts) {
                StoredTensors stored = open(parts.runtime.files(), source);
                if (source.form == Form::kOwnPart) {
                  ordered_json values = parse_state_values(stored.values(), source.path);
                  parts.check_own_part(values, text_of(source), ShardPlaces(parts.training.models));
                  return read_own_part(stored, *model);
                }
                parts.read_model(stored, text_of(source), *model->module(), ShardPlaces(one(model)),
                                 {.wanted = options.wanted});
              });
}

void save_fsdp_optimizer(StateSaver& saver, SharedOptimizer& optimizer,
                         const std::shared_ptr<ModelState>& model, const std::string& output_dir,
                         const FsdpObjectOptions& options) {
  TrainingParts parts = saver.parts();
  // A rank's own part has nothing of other stages.
  if (form_of(options, /*is_model=*/false) == Form::kOwnPart) parts.stages = nullptr;
  save_object(
      saver, optimizer_kind("save_fsdp_optimizer"),
      parts.optimizer_object(optimizer, trained_parameters(one(model)), ShardPlaces(one(model))),
      output_dir, options);
}

void load_fsdp_optimizer(StateSaver& saver, SharedOptimizer& optimizer,
                         const std::shared_ptr<ModelState>& model, const std::string& input_dir,
                         const FsdpObjectOptions& options) {
  load_object(
      saver, optimizer_kind("load_fsdp_optimizer"), input_dir, options,
      [&](const Source& source, const TrainingParts& parts) {
        // A checkpoint has the names of all models.
        const bool is_of_training = source.reader && !source.name.empty();
        const NamedTensors parameters = is_of_training ? trained_parameters(parts.training.models)
                                                       : trained_parameters(one(model));
        const std::string file = source.reader && source.form != Form::kDivided
                                     ? *source.reader->find(source.name)
                                     : source.path;
        if (source.form != Form::kOwnPart && !file.ends_with(kExtensions[1])) {
          StoredTensors stored = open(parts.runtime.files(), source);
          return parts.read_optimizer(stored, file, optimizer, parameters, ShardPlaces(one(model)),
                                      parts.device);
        }
        StateDict state = source.reader ? source.reader->read(source.name)
                                        : load(parts.runtime.files(), source.path);
        if (source.form == Form::kOwnPart) {
          parts.check_own_part(state.values, text_of(source), ShardPlaces(parts.training.models));
          state.values.erase(kId);
        }
        optimizer.load_state_dict(std::move(state), {.parameters = parameters});
      });
}

}  // namespace accelerate::internal

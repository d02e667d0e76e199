/// How models get their techniques, from a list that has all that there are.
///
/// The list says two orders. Its rows are in the order in which techniques are *made*: a technique
/// may depend on those that were made before, and finds the module as they left it. The depth of a
/// row says which techniques *surround* which in a forward pass. The orders differ where they must:
/// fp8 is made before the reductions of gradients, which ask for its layers, but is inside of them
/// in a pass. All models are cut before the first technique is made, so that the row of a technique
/// that cuts can have any place, as far as cuts are concerned.
///
/// A technique that cuts a model says so before the model's plan is made: from the layout
/// (parallel/layout/model_layout.h) follow the groups of the plan and the ranks that begin with
/// equal values. It makes the cuts after all checks and before anything is made, so that techniques
/// find this rank's parts. Only rows are divided later, by sharding when it is made.
///
/// Threads: the rank's thread.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "accelerate/base/enums.h"
#include "accelerate/config/kwargs_handlers.h"
#include "accelerate/forward/model_state.h"
#include "accelerate/mesh/mesh.h"
#include "accelerate/plan/plan.h"

namespace accelerate {

/// A technique that models can have. Functions that are null do nothing.
struct TechniqueRow {
  /// Technique::name().
  std::string_view name;
  /// A technique surrounds those of the same model that are deeper.
  int depth = 0;
  /// Checks the options of a job as far as no model and no group is needed. Local.
  void (*check_options)(const KwargsHandlers& handlers, PrecisionType precision) = nullptr;
  /// The layout of a whole model that this technique cuts, the same on every rank, which keeps the
  /// cuts of the rows before; null for a model that it leaves as they do. Called the first time
  /// that a model is prepared, for every row, before the ranks have groups for it. Local.
  std::shared_ptr<const ModelLayout> (*layout)(const LayoutContext& context) = nullptr;
  /// Whether a model can be prepared as far as this technique knows. Called before anything is
  /// changed, for every row and each time that a model is prepared; `made` is empty. Local.
  void (*check)(const TechniqueContext& context) = nullptr;
  /// Leaves the module this rank's parts of those parameters that this technique cuts in the plan's
  /// layout. They remain the same tensors with other data, so that optimizers keep them. Called
  /// once for a model that has a layout, for every row, after all checks and before the model moves
  /// and ranks give each other its values. Local.
  void (*cut)(const TechniqueContext& context) = nullptr;
  /// Whether this technique brings the model to the job's device in place of move_prepared_model:
  /// now, or when it is made. Local.
  bool (*moves)(const TechniqueContext& context) = nullptr;
  /// Null for a model that does without it.
  std::unique_ptr<Technique> (*make)(const TechniqueContext& context) = nullptr;
};

/// In the order in which techniques are made. The rows outlive every user of the list.
using TechniqueList = std::span<const TechniqueRow>;

struct ApplyOptions {
  /// Whether the model is to be trained.
  bool trains = true;
  /// Whether the model goes to the job's device; see move_prepared_model.
  bool moves = false;
};

/// The layout that the rows give a model, for its plan; null: each rank has all of the model. That
/// of a model that was prepared stays as it is. Local.
/// Errors: as those of the rows' functions; c10::ValueError naming a parameter that does not have
///         the shape of the layout's whole one, as in a module that was cut before.
std::shared_ptr<const ModelLayout> layout_of(TechniqueList list, const ModelState& model,
                                             const Mesh& mesh, const KwargsHandlers& handlers);

/// Gives the model its techniques: checks all, cuts the model as the plan's layout says, moves it,
/// and makes them. A model that has them already is checked again, and changes only when it is to
/// be trained for the first time, which is when ranks begin to train it together. Collective where
/// several ranks train it.
/// \pre The plan's layout is that of layout_of.
/// Errors: as those of the rows' functions. After one of a check nothing has changed; after a later
///         one a model with a layout is cut, and cannot be prepared any more.
void apply_techniques(TechniqueList list, ModelState& model, const ModelPlan& plan,
                      const ApplyOptions& options = {});

/// Brings a model that is prepared to the job's device. This is the one rule that decides who does
/// that: a technique whose row `moves` the model, which are
///   - sharding, because a whole model may not fit the device that is to have a shard of it;
///   - dispatch, because what a device map has placed stays there, and only the rest moves;
/// else all of its tensors move here, before the techniques are made. The parts of a cut model get
/// deferred values on that device. Local.
void move_prepared_model(TechniqueList list, const TechniqueContext& context);

/// Gives a prepared model one more technique, inside of those that the list lets surround it.
/// Local. \pre The list has a row of its name.
void add_technique(TechniqueList list, ModelState& model, std::unique_ptr<Technique> technique);

/// Whether there is a technique of this name; a checkpoint may have its state for a model that does
/// without it here.
bool is_technique(TechniqueList list, std::string_view name);

/// Checks the options of all techniques as far as no model and no group is needed. Local.
/// Errors: c10::ValueError naming an option that is out of range, or contradicts another or the
///         job's precision.
void check_technique_options(TechniqueList list, const KwargsHandlers& handlers,
                             PrecisionType precision);

}  // namespace accelerate

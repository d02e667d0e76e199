// Operations on nested values, on each rank of a world.
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "accelerate/accelerator.h"
#include "accelerate/comm/objects.h"
#include "accelerate/comm/operations.h"
#include "accelerate/platform/environment.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/state/job_operations.h"
#include "accelerate/tensors/to_ivalue.h"
#include "accelerate/tensors/tree_operations.h"
#include "integration_tests/golden/answers.h"
#include "integration_tests/golden/family.h"
#include "integration_tests/golden/fields.h"
#include "integration_tests/golden/nested_values.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

// The arguments of an operation: keywords, which must all be known to it, and the ranks. An
// argument that a case may leave out is left to the library's default.
class Call {
 public:
  Call(const json& args, const Accelerator& accelerator) : args_(args), accelerator_(accelerator) {
    if (!args_.is_object()) throw CaseError("args: expected an object");
  }

  const ProcessGroupPtr& group() const { return accelerator_.state().group(); }
  const Accelerator& accelerator() const { return accelerator_; }

  void expect(std::initializer_list<const char*> names) const { expect_fields(args_, names); }
  bool has(const char* name) const { return args_.contains(name); }
  bool flag(const char* name) const { return bool_field(args_, name); }
  int64_t integer(const char* name) const { return int_field(args_, name); }
  double number(const char* name) const { return double_field(args_, name); }
  c10::Scalar scalar(const char* name) const {
    const c10::IValue value = decode_value(field(args_, name));
    if (!value.isScalar()) throw CaseError(std::string(name) + ": expected a number");
    return value.toScalar();
  }
  Reduction reduction() const {
    static const auto* const names =
        new std::map<std::string, Reduction>{{"sum", Reduction::kSum},
                                             {"mean", Reduction::kMean},
                                             {"max", Reduction::kMax},
                                             {"none", Reduction::kNone}};
    auto found = names->find(string_field(args_, "reduction"));
    if (found == names->end()) throw CaseError("unknown reduction");
    return found->second;
  }

 private:
  const json& args_;
  const Accelerator& accelerator_;
};

// Gives the result; what it does to its input stays there.
using Operation = c10::IValue (*)(const Call& call, c10::IValue& data);

c10::IValue split(const Call& call, c10::IValue& data) {
  call.expect({"apply_padding"});
  return call.accelerator().split_between_processes(data, call.flag("apply_padding"));
}

c10::IValue pad(const Call& call, c10::IValue& data) {
  call.expect({"dim", "pad_index", "pad_first"});
  PadAcrossProcessesOptions options;
  if (call.has("dim")) options.dim = call.integer("dim");
  if (call.has("pad_index")) options.pad_index = call.scalar("pad_index");
  if (call.has("pad_first")) options.pad_first = call.flag("pad_first");
  return call.accelerator().pad_across_processes(data, options);
}

// Calls reduce(data), reduce(data, reduction) or reduce(data, reduction, scale).
template <typename Reduce>
c10::IValue reduce_with(const Call& call, const c10::IValue& data, const Reduce& reduce) {
  call.expect({"reduction", "scale"});
  if (call.has("scale")) return reduce(data, call.reduction(), call.number("scale"));
  return call.has("reduction") ? reduce(data, call.reduction()) : reduce(data);
}

c10::IValue reduce_by_function(const Call& call, c10::IValue& data) {
  return reduce_with(call, data,
                     [](const auto&... arguments) { return accelerate::reduce(arguments...); });
}

c10::IValue reduce_by_method(const Call& call, c10::IValue& data) {
  return reduce_with(call, data, [&call](const auto&... arguments) {
    return call.accelerator().reduce(arguments...);
  });
}

c10::IValue broadcast_objects(const Call& call, c10::IValue& data) {
  call.expect({"from_process"});
  if (!data.isList()) throw CaseError("broadcast_object_list: expected a list");
  std::vector<c10::IValue> list = data.toListRef().vec();
  broadcast_object_list(call.group(), list, static_cast<int>(call.integer("from_process")));
  c10::impl::GenericList entries(c10::AnyType::get());
  for (const c10::IValue& entry : list) entries.push_back(entry);
  data = entries;
  return data;
}

c10::IValue concatenate_list(const Call& call, c10::IValue& data) {
  call.expect({"dim"});
  if (!data.isTuple() && !data.isList()) throw CaseError("concatenate: expected a list");
  return concatenate(data.isTuple() ? data.toTupleRef().elements().vec() : data.toListRef().vec(),
                     call.integer("dim"));
}

const std::map<std::string, Operation>& operations() {
  static const auto* const table = new std::map<std::string, Operation>{
      {"split_between_processes", &split},
      {"pad_across_processes", &pad},
      {"reduce", &reduce_by_function},
      {"accelerator_reduce", &reduce_by_method},
      {"broadcast_object_list", &broadcast_objects},
      {"concatenate", &concatenate_list},
      {"gather",
       [](const Call& call, c10::IValue& data) {
         call.expect({});
         return call.accelerator().gather(data);
       }},
      {"broadcast",
       [](const Call& call, c10::IValue& data) {
         call.expect({"from_process"});
         return accelerate::broadcast(call.group(), data,
                                      static_cast<int>(call.integer("from_process")));
       }},
      {"gather_object",
       [](const Call& call, c10::IValue& data) {
         call.expect({});
         return gather_object(call.group(), data);
       }},
      {"gather_for_metrics",
       [](const Call& call, c10::IValue& data) {
         call.expect({"use_gather_object"});
         return call.accelerator().gather_for_metrics(data, call.flag("use_gather_object"));
       }},
      {"slice_tensors",
       [](const Call& call, c10::IValue& data) {
         call.expect({"start", "stop"});
         return slice_tensors(data, {.start = call.integer("start"), .stop = call.integer("stop")});
       }},
      {"pad_input_tensors",
       [](const Call& call, c10::IValue& data) {
         call.expect({"batch_size", "num_processes_arg", "dim"});
         const int64_t rows = call.integer("batch_size");
         const auto processes = static_cast<int>(call.integer("num_processes_arg"));
         if (!call.has("dim")) return pad_input_tensors(data, rows, processes);
         return pad_input_tensors(data, rows, processes, call.integer("dim"));
       }},
      {"find_batch_size",
       [](const Call& call, c10::IValue& data) {
         call.expect({});
         return c10::IValue(find_batch_size(data));
       }},
      {"ignorant_find_batch_size",
       [](const Call& call, c10::IValue& data) {
         call.expect({});
         return c10::IValue(ignorant_find_batch_size(data));
       }},
      {"listify",
       [](const Call& call, c10::IValue& data) {
         call.expect({});
         return listify(data);
       }},
      {"convert_to_fp32",
       [](const Call& call, c10::IValue& data) {
         call.expect({});
         return convert_to_fp32(data);
       }},
      {"get_shape",
       [](const Call& call, c10::IValue& data) {
         call.expect({});
         return get_shape(data);
       }},
      {"get_data_structure", [](const Call& call, c10::IValue& data) {
         call.expect({});
         return get_data_structure(data);
       }}};
  return *table;
}

json run_case(const json& in) {
  expect_fields(in, {"op", "num_processes", "data", "args", "debug"});
  auto found = operations().find(string_field(in, "op"));
  if (found == operations().end()) throw CaseError("unknown op " + in["op"].dump());
  const int ranks = ranks_field(in, "num_processes");
  const json& data = field(in, "data");
  if (!data.is_array() || data.size() != static_cast<size_t>(ranks)) {
    throw CaseError("data: expected a value per rank");
  }
  return {{"ranks", ask_ranks(ranks, [&](int rank) -> json {
             if (bool_field_or(in, "debug", false)) {
               Runtime::current().environment().set(env::kDebugMode, "1");
             }
             Accelerator accelerator;
             c10::IValue input = decode_value(data[static_cast<size_t>(rank)]);
             const json before = encode_value(input);
             const Call call(field(in, "args"), accelerator);
             json answer = {{"result", encode_value(found->second(call, input))}};
             const json after = encode_value(input);
             if (after != before) answer["input_after"] = after;
             return answer;
           })}};
}

const FamilyRegistration kRegistration("operations", &run_case);

}  // namespace
}  // namespace accelerate::golden

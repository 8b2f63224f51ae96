// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// The typed-FFI face of all operations: decodes attributes once when an executable is built, and on
// each call posts the arrival of one rank and returns a future. The attributes are the contract
// with strata_jax/hlo/bind.py.
#include "handlers/collective.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/collective.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace strata::handlers {
namespace {

// XLA keeps one per custom call and executable.
struct State {
  static ffi::TypeId id;
  std::unique_ptr<core::Collective> collective;
};
ffi::TypeId State::id = {};
ffi::TypeInfo kStateInfo = ffi::MakeTypeInfo<State>();

std::optional<core::DType> ToDType(ffi::DataType dtype) {
  using core::DType;
  switch (dtype) {
    case ffi::PRED:
      return DType::kPred;
    case ffi::S2:
      return DType::kS2;
    case ffi::U2:
      return DType::kU2;
    case ffi::S4:
      return DType::kS4;
    case ffi::U4:
      return DType::kU4;
    case ffi::S8:
      return DType::kS8;
    case ffi::U8:
      return DType::kU8;
    case ffi::S16:
      return DType::kS16;
    case ffi::U16:
      return DType::kU16;
    case ffi::S32:
      return DType::kS32;
    case ffi::U32:
      return DType::kU32;
    case ffi::S64:
      return DType::kS64;
    case ffi::U64:
      return DType::kU64;
    case ffi::F8E5M2:
      return DType::kF8E5M2;
    case ffi::F8E4M3FN:
      return DType::kF8E4M3FN;
    case ffi::F8E4M3B11FNUZ:
      return DType::kF8E4M3B11FNUZ;
    case ffi::F8E4M3FNUZ:
      return DType::kF8E4M3FNUZ;
    case ffi::F8E5M2FNUZ:
      return DType::kF8E5M2FNUZ;
    case ffi::F8E4M3:
      return DType::kF8E4M3;
    case ffi::F8E3M4:
      return DType::kF8E3M4;
    case ffi::F4E2M1FN:
      return DType::kF4E2M1FN;
    case ffi::F8E8M0FNU:
      return DType::kF8E8M0FNU;
    case ffi::F16:
      return DType::kF16;
    case ffi::BF16:
      return DType::kBF16;
    case ffi::F32:
      return DType::kF32;
    case ffi::F64:
      return DType::kF64;
    case ffi::C64:
      return DType::kC64;
    case ffi::C128:
      return DType::kC128;
    default:
      return std::nullopt;
  }
}

ffi::Error ToError(const core::Failure& failure) {
  ffi::ErrorCode code = ffi::ErrorCode::kInternal;
  switch (failure.code) {
    case core::FailureCode::kInvalidArgument:
      code = ffi::ErrorCode::kInvalidArgument;
      break;
    case core::FailureCode::kDeadlineExceeded:
      code = ffi::ErrorCode::kDeadlineExceeded;
      break;
    case core::FailureCode::kCancelled:
      code = ffi::ErrorCode::kCancelled;
      break;
    case core::FailureCode::kInternal:
      break;
  }
  return ffi::Error(code, failure.message);
}

ffi::Unexpected<ffi::Error> Refuse(ffi::ErrorCode code, const core::Operation& operation,
                                   const std::string& text) {
  return ffi::Unexpected<ffi::Error>(
      ffi::Error(code, "strata_" + std::string(operation.name) + ": " + text));
}

using Integers = ffi::Span<const int64_t>;

// Reads one list a group from lists that are filled up to equal lengths with `padding`.
template <typename T>
std::vector<std::vector<T>> Unflatten(const Integers& flat, int64_t group_size, int64_t padding) {
  std::vector<std::vector<T>> lists;
  for (size_t i = 0; i < flat.size(); ++i) {
    if (i % group_size == 0) lists.emplace_back();
    if (flat[i] != padding) lists.back().push_back(static_cast<T>(flat[i]));
  }
  return lists;
}

// The blocks of each buffer: `num_loops`, `runs`, `in_steps`, `out_steps` have an element for each,
// `loops` three (count, stride in the operand, stride in the result) for each loop of each.
bool ReadBlocks(const ffi::Dictionary& attrs, std::vector<core::Block>* blocks) {
  auto num_loops = attrs.get<Integers>("num_loops"), loops = attrs.get<Integers>("loops");
  auto runs = attrs.get<Integers>("runs");
  auto in_steps = attrs.get<Integers>("in_steps"), out_steps = attrs.get<Integers>("out_steps");
  if (!num_loops || !loops || !runs || !in_steps || !out_steps) return false;
  const size_t num_parts = num_loops->size();
  if (runs->size() != num_parts || in_steps->size() != num_parts ||
      out_steps->size() != num_parts) {
    return false;
  }
  size_t at = 0;
  for (size_t part = 0; part < num_parts; ++part) {
    core::Block block;
    for (int64_t i = 0; i < (*num_loops)[part]; ++i, at += 3) {
      if (at + 3 > loops->size()) return false;
      block.rows.loops.push_back({(*loops)[at], (*loops)[at + 1], (*loops)[at + 2]});
    }
    block.rows.run = (*runs)[part];
    block.in_step = (*in_steps)[part];
    block.out_step = (*out_steps)[part];
    if (!block.rows.Measure() || block.in_step < 0 || block.out_step < 0) return false;
    blocks->push_back(std::move(block));
  }
  return at == loops->size();
}

bool ReadSpec(const ffi::Dictionary& attrs, core::CollectiveSpec* spec) {
  auto op = attrs.get<int64_t>("op"), finish = attrs.get<int64_t>("finish");
  auto fingerprint = attrs.get<int64_t>("fp"), kind = attrs.get<int64_t>("kind");
  auto groups = attrs.get<Integers>("groups"), sources = attrs.get<Integers>("sources");
  auto group_size = attrs.get<int64_t>("group_size");
  auto devices = attrs.get<Integers>("devices"), ragged = attrs.get<Integers>("ragged");
  auto is_tuple = attrs.get<int64_t>("is_tuple");
  auto module_name = attrs.get<std::string_view>("module");
  auto name = attrs.get<std::string_view>("name");
  if (!op || !finish || !fingerprint || !kind || !groups || !sources || !group_size || !devices ||
      !ragged || !is_tuple || !module_name || !name) {
    return false;
  }
  if (*group_size <= 0 || *kind < 0 || *kind >= core::kNumReduceKinds || *finish < 0 ||
      *finish > static_cast<int64_t>(core::Finish::kLane) ||
      (ragged->size() != 0 && ragged->size() != 3)) {
    return false;
  }
  spec->finish = static_cast<core::Finish>(*finish);
  spec->devices.assign(devices->begin(), devices->end());
  spec->op_index = *op;
  spec->fingerprint = *fingerprint;
  spec->module_name = *module_name;
  spec->name = *name;
  spec->groups = Unflatten<int64_t>(*groups, *group_size, -1);
  spec->sources = Unflatten<int>(*sources, *group_size, -2);
  spec->details.kind = static_cast<core::ReduceKind>(*kind);
  spec->details.is_tuple = *is_tuple != 0;
  if (ragged->size() == 3) {
    spec->details.in_rows = (*ragged)[0];
    spec->details.out_rows = (*ragged)[1];
    spec->details.row_elements = (*ragged)[2];
  }
  return ReadBlocks(attrs, &spec->details.blocks);
}

template <const core::Operation& operation>
ffi::ErrorOr<std::unique_ptr<State>> Instantiate(ffi::Dictionary attrs) {
  if (auto error = attrs.get<std::string_view>("error")) {
    return Refuse(ffi::ErrorCode::kFailedPrecondition, operation, std::string(*error));
  }
  if (!attrs.contains("op")) {
    return Refuse(ffi::ErrorCode::kFailedPrecondition, operation,
                  "this program was lowered for strata_jax but compiled where its compile hook is "
                  "not active; call strata_jax.init() before compiling it, or lower it again");
  }
  core::CollectiveSpec spec;
  spec.operation = &operation;
  if (!ReadSpec(attrs, &spec)) {
    return Refuse(ffi::ErrorCode::kInvalidArgument, operation,
                  "missing or bad attributes; the executable was built by another version of "
                  "strata_jax, compile it again");
  }
  const std::string name = spec.name;
  std::string error;
  auto state = std::make_unique<State>();
  state->collective = core::Collective::Create(std::move(spec), core::TheFabric(), &error);
  if (state->collective == nullptr) {
    return Refuse(ffi::ErrorCode::kInvalidArgument, operation, name + ": " + error);
  }
  return state;
}

void CompletePromise(void* context, const core::Failure* failure) {
  std::unique_ptr<ffi::Promise> promise(static_cast<ffi::Promise*>(context));
  if (failure == nullptr) {
    promise->SetAvailable();
  } else {
    promise->SetError(ToError(*failure));
  }
}

void Schedule(void* pool, std::function<void()> task) {
  static_cast<ffi::ThreadPool*>(pool)->Schedule(std::move(task));
}

// A few elements without an allocation.
template <typename T>
class SmallArray {
 public:
  explicit SmallArray(size_t size) : more_(size > kFew ? new T[size] : nullptr) {}
  T* data() { return more_ != nullptr ? more_.get() : few_; }

 private:
  static constexpr size_t kFew = 8;
  T few_[kFew];
  std::unique_ptr<T[]> more_;
};

ffi::Future Execute(State* state, ffi::RunId run_id, ffi::ThreadPool pool, ffi::RemainingArgs args,
                    ffi::RemainingRets rets) {
  auto promise = std::make_unique<ffi::Promise>();
  ffi::Future future(*promise);
  auto refuse = [&](const char* which, size_t index, ffi::DataType type) {
    promise->SetError(ffi::Error(
        ffi::ErrorCode::kInternal,
        "strata: " + std::string(which) + " " + std::to_string(index) + " has XLA element type " +
            std::to_string(static_cast<int>(type)) + ", which no operation here takes"));
    return std::move(future);
  };
  const size_t num_in = args.size() - 1, num_out = rets.size();
  SmallArray<core::Part> parts(num_in + num_out);
  SmallArray<const void*> inputs(num_in);
  SmallArray<void*> outputs(num_out);
  // Pointers and counts only: dimensions live in a call frame that XLA uses again.
  auto read = [&](size_t at, const ffi::AnyBuffer& buffer) {
    const auto dtype = ToDType(buffer.element_type());
    parts.data()[at] = {dtype.value_or(core::DType::kPred),
                        static_cast<int64_t>(buffer.element_count())};
    return dtype.has_value();
  };
  for (size_t i = 0; i < num_in; ++i) {
    auto operand = args.get<ffi::AnyBuffer>(i);
    if (!read(i, *operand)) return refuse("operand", i, operand->element_type());
    inputs.data()[i] = operand->untyped_data();
  }
  for (size_t i = 0; i < num_out; ++i) {
    auto result = rets.get<ffi::AnyBuffer>(i);
    if (!read(num_in + i, **result)) return refuse("result", i, (*result)->element_type());
    outputs.data()[i] = (*result)->untyped_data();
  }
  auto partition = args.get<ffi::AnyBuffer>(num_in);
  const uint32_t partition_id = *static_cast<const uint32_t*>(partition->untyped_data());
  core::Arrival arrival{static_cast<int>(num_in),
                        static_cast<int>(num_out),
                        parts.data(),
                        parts.data() + num_in,
                        inputs.data(),
                        outputs.data(),
                        core::Completion(CompletePromise, promise.release())};
  const core::ThreadPool core_pool{&pool, Schedule};
  state->collective->Arrive(partition_id, run_id.run_id, std::move(arrival), core_pool);
  return future;
}

}  // namespace

XLA_FFI_DEFINE_HANDLER(kExecute, Execute,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::State<State>>()
                           .Ctx<ffi::RunId>()
                           .Ctx<ffi::ThreadPool>()
                           .RemainingArgs()    // operands, then the partition id
                           .RemainingRets());  // results

#define STRATA_INSTANTIATE(symbol, operation) \
  XLA_FFI_DEFINE_HANDLER(symbol, Instantiate<operation>, ffi::Ffi::BindInstantiate().Attrs())
STRATA_INSTANTIATE(kInstantiateAllReduce, core::kAllReduce);
STRATA_INSTANTIATE(kInstantiateAllGather, core::kAllGather);
STRATA_INSTANTIATE(kInstantiateReduceScatter, core::kReduceScatter);
STRATA_INSTANTIATE(kInstantiateAllToAll, core::kAllToAll);
STRATA_INSTANTIATE(kInstantiateCollectivePermute, core::kCollectivePermute);
STRATA_INSTANTIATE(kInstantiateCollectiveBroadcast, core::kCollectiveBroadcast);
STRATA_INSTANTIATE(kInstantiateRaggedAllToAll, core::kRaggedAllToAll);
#undef STRATA_INSTANTIATE

const std::vector<Target>& Targets() {
  auto pointer = [](auto* handler) { return reinterpret_cast<void*>(handler); };
  static const std::vector<Target>& targets = *new std::vector<Target>{
      {"strata_all_reduce", core::kAllReduce, pointer(kInstantiateAllReduce), pointer(kExecute)},
      {"strata_all_gather", core::kAllGather, pointer(kInstantiateAllGather), pointer(kExecute)},
      {"strata_reduce_scatter", core::kReduceScatter, pointer(kInstantiateReduceScatter),
       pointer(kExecute)},
      {"strata_all_to_all", core::kAllToAll, pointer(kInstantiateAllToAll), pointer(kExecute)},
      {"strata_collective_permute", core::kCollectivePermute,
       pointer(kInstantiateCollectivePermute), pointer(kExecute)},
      {"strata_collective_broadcast", core::kCollectiveBroadcast,
       pointer(kInstantiateCollectiveBroadcast), pointer(kExecute)},
      {"strata_ragged_all_to_all", core::kRaggedAllToAll, pointer(kInstantiateRaggedAllToAll),
       pointer(kExecute)},
  };
  return targets;
}

void* CollectiveTypeId() { return &State::id; }
void* CollectiveTypeInfo() { return &kStateInfo; }

}  // namespace strata::handlers

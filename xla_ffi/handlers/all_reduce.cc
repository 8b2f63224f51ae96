// Copyright 2026 The strata_jax Authors. SPDX-License-Identifier: Apache-2.0
//
// The typed-FFI face of all-reduce: decodes attributes once when an executable is built, and on
// each call posts the arrival of one rank and returns a future.
#include "handlers/all_reduce.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

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

ffi::Unexpected<ffi::Error> Refuse(ffi::ErrorCode code, std::string text) {
  return ffi::Unexpected<ffi::Error>(ffi::Error(code, "strata_all_reduce: " + std::move(text)));
}

ffi::ErrorOr<std::unique_ptr<State>> Instantiate(ffi::Dictionary attrs) {
  if (auto error = attrs.get<std::string_view>("error")) {
    return Refuse(ffi::ErrorCode::kFailedPrecondition, std::string(*error));
  }
  auto op = attrs.get<int64_t>("op");
  if (!op) {
    return Refuse(ffi::ErrorCode::kFailedPrecondition,
                  "this program was lowered for strata_jax but compiled where its compile hook is "
                  "not active; call strata_jax.init() before compiling it, or lower it again");
  }
  auto kind = attrs.get<int64_t>("kind");
  auto groups = attrs.get<ffi::Span<const int64_t>>("groups");
  auto group_size = attrs.get<int64_t>("group_size");
  auto devices = attrs.get<ffi::Span<const int64_t>>("devices");
  auto finish = attrs.get<int64_t>("finish");
  auto fingerprint = attrs.get<int64_t>("fp");
  auto module_name = attrs.get<std::string_view>("module");
  auto name = attrs.get<std::string_view>("name");
  if (!kind || !groups || !group_size || !devices || !finish || !fingerprint || !module_name ||
      !name || *group_size <= 0 || *kind < 0 || *kind >= core::kNumReduceKinds || *finish < 0 ||
      *finish > static_cast<int64_t>(core::Finish::kLane)) {
    return Refuse(ffi::ErrorCode::kInvalidArgument,
                  "missing or bad attributes; the executable was built by another version of "
                  "strata_jax, compile it again");
  }
  core::CollectiveSpec spec;
  spec.kind = static_cast<core::ReduceKind>(*kind);
  spec.finish = static_cast<core::Finish>(*finish);
  spec.devices.assign(devices->begin(), devices->end());
  spec.op_index = *op;
  spec.fingerprint = *fingerprint;
  spec.module_name = *module_name;
  spec.name = *name;
  for (size_t i = 0; i < groups->size(); ++i) {
    if (i % *group_size == 0) spec.groups.emplace_back();
    if ((*groups)[i] >= 0) spec.groups.back().push_back((*groups)[i]);  // -1 pads uneven groups
  }
  std::string error;
  auto state = std::make_unique<State>();
  state->collective = core::Collective::Create(std::move(spec), &error);
  if (state->collective == nullptr) {
    return Refuse(ffi::ErrorCode::kInvalidArgument, std::string(*name) + ": " + error);
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
  static constexpr size_t kFew = 4;
  T few_[kFew];
  std::unique_ptr<T[]> more_;
};

ffi::Future Execute(State* state, ffi::RunId run_id, ffi::ThreadPool pool, ffi::RemainingArgs args,
                    ffi::RemainingRets rets) {
  auto promise = std::make_unique<ffi::Promise>();
  ffi::Future future(*promise);
  auto refuse = [&](std::string text) {
    promise->SetError(ffi::Error(ffi::ErrorCode::kInternal, "strata_all_reduce: " + text));
    return std::move(future);
  };
  const size_t num_parts = rets.size();
  if (args.size() != num_parts + 1) {
    return refuse(std::to_string(args.size()) + " operands for " + std::to_string(num_parts) +
                  " results; one more operand than results, the partition id, is needed");
  }
  SmallArray<core::Part> parts(num_parts);
  SmallArray<const void*> inputs(num_parts);
  SmallArray<void*> outputs(num_parts);
  for (size_t i = 0; i < num_parts; ++i) {
    auto in = args.get<ffi::AnyBuffer>(i);
    auto out = rets.get<ffi::AnyBuffer>(i);
    auto dtype = ToDType(in->element_type());
    if (!dtype) {
      return refuse("operand " + std::to_string(i) + " has XLA element type " +
                    std::to_string(static_cast<int>(in->element_type())) +
                    ", which this operation does not reduce");
    }
    // Pointers and counts only: dimensions live in a call frame that XLA uses again.
    parts.data()[i] = {*dtype, static_cast<int64_t>(in->element_count())};
    inputs.data()[i] = in->untyped_data();
    outputs.data()[i] = (*out)->untyped_data();
  }
  auto partition = args.get<ffi::AnyBuffer>(num_parts);
  const uint32_t partition_id = *static_cast<const uint32_t*>(partition->untyped_data());
  core::Arrival arrival{static_cast<int>(num_parts), parts.data(), inputs.data(), outputs.data(),
                        core::Completion(CompletePromise, promise.release())};
  const core::ThreadPool core_pool{&pool, Schedule};
  state->collective->Arrive(partition_id, run_id.run_id, std::move(arrival), core_pool);
  return future;
}

}  // namespace

XLA_FFI_DEFINE_HANDLER(kInstantiate, Instantiate, ffi::Ffi::BindInstantiate().Attrs());
XLA_FFI_DEFINE_HANDLER(kExecute, Execute,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::State<State>>()
                           .Ctx<ffi::RunId>()
                           .Ctx<ffi::ThreadPool>()
                           .RemainingArgs()    // buffers, then the partition id
                           .RemainingRets());  // as many buffers

void* AllReduceInstantiate() { return reinterpret_cast<void*>(kInstantiate); }
void* AllReduceExecute() { return reinterpret_cast<void*>(kExecute); }
void* CollectiveTypeId() { return &State::id; }
void* CollectiveTypeInfo() { return &kStateInfo; }

}  // namespace strata::handlers

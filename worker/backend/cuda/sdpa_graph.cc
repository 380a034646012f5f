#include "worker/backend/cuda/sdpa_graph.h"

#include "worker/backend/cuda/errors.h"

namespace telar::backend::cuda {
namespace {

constexpr cudnnDataType_t kMathType = CUDNN_DATA_FLOAT;

// By their values, as the names are marked deprecated. The device descriptor that replaces the handle makes plans that
// are only documented to be stored and reloaded.
constexpr auto kGraphHandle = static_cast<cudnnBackendAttributeName_t>(800);  // CUDNN_ATTR_OPERATIONGRAPH_HANDLE
constexpr auto kPlanHandle = static_cast<cudnnBackendAttributeName_t>(400);   // CUDNN_ATTR_EXECUTION_PLAN_HANDLE

}  // namespace

struct SdpaGraph::Attribute {
  cudnnBackendAttributeName_t name;
  cudnnBackendAttributeType_t type;
  int64_t count;
  const void* value;

  Attribute(cudnnBackendAttributeName_t the_name, cudnnBackendAttributeType_t the_type, const void* the_value,
            int64_t the_count = 1)
      : name(the_name), type(the_type), count(the_count), value(the_value) {}
  Attribute(cudnnBackendAttributeName_t the_name, const Tensor* descriptors, int64_t the_count = 1)
      : Attribute(the_name, CUDNN_TYPE_BACKEND_DESCRIPTOR, descriptors, the_count) {}
  // An optional attribute that is not there.
  bool absent() const {
    if (value == nullptr) return true;
    return type == CUDNN_TYPE_BACKEND_DESCRIPTOR && *static_cast<const Tensor*>(value) == nullptr;
  }
};

SdpaGraph::~SdpaGraph() {
  for (auto it = owned_.rbegin(); it != owned_.rend(); ++it) cudnnBackendDestroyDescriptor(*it);
}

// A descriptor that could not be finalized is still the caller's.
cudnnStatus_t SdpaGraph::try_make(cudnnBackendDescriptorType_t kind, std::initializer_list<Attribute> attributes,
                                  Tensor* made) {
  *made = nullptr;
  cudnnStatus_t status = cudnnBackendCreateDescriptor(kind, made);
  for (const Attribute& attribute : attributes) {
    if (status != CUDNN_STATUS_SUCCESS) return status;
    if (attribute.absent()) continue;
    status = cudnnBackendSetAttribute(*made, attribute.name, attribute.type, attribute.count, attribute.value);
  }
  return status == CUDNN_STATUS_SUCCESS ? cudnnBackendFinalize(*made) : status;
}

SdpaGraph::Tensor SdpaGraph::make(cudnnBackendDescriptorType_t kind, std::initializer_list<Attribute> attributes) {
  if (!error_.ok()) return nullptr;
  Tensor made = nullptr;
  const cudnnStatus_t status = try_make(kind, attributes, &made);
  if (made != nullptr) owned_.push_back(made);
  if (status == CUDNN_STATUS_SUCCESS) return made;
  error_ = to_status(status, "cuDNN descriptor " + std::to_string(static_cast<int>(kind)));
  return nullptr;
}

SdpaGraph::Tensor SdpaGraph::tensor(cudnnDataType_t type, const Extents& dims, const Extents& strides, int64_t uid,
                                    bool by_value) {
  const bool is_virtual = uid == kVirtual;
  const int64_t id = is_virtual ? next_virtual_uid_++ : uid, alignment = 16;
  if (!is_virtual) uids_.push_back(uid);
  return make(CUDNN_BACKEND_TENSOR_DESCRIPTOR,
              {{CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, &type},
               {CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, dims.data(), static_cast<int64_t>(dims.size())},
               {CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, strides.data(), static_cast<int64_t>(strides.size())},
               {CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, &id},
               {CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, &alignment},
               {CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, &is_virtual},
               {CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, by_value ? &by_value : nullptr}});
}

SdpaGraph::Tensor SdpaGraph::matmul(Tensor a, Tensor b, Tensor c) {
  Tensor how = make(CUDNN_BACKEND_MATMUL_DESCRIPTOR, {{CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, &kMathType}});
  ops_.push_back(make(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, {{CUDNN_ATTR_OPERATION_MATMUL_ADESC, &a},
                                                                  {CUDNN_ATTR_OPERATION_MATMUL_BDESC, &b},
                                                                  {CUDNN_ATTR_OPERATION_MATMUL_CDESC, &c},
                                                                  {CUDNN_ATTR_OPERATION_MATMUL_DESC, &how}}));
  return c;
}

SdpaGraph::Tensor SdpaGraph::pointwise(cudnnPointwiseMode_t mode, Tensor x, Tensor b, Tensor y, Tensor t,
                                       int64_t axis) {
  Tensor how = make(CUDNN_BACKEND_POINTWISE_DESCRIPTOR,
                    {{CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, &mode},
                     {CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, &kMathType},
                     {CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, axis < 0 ? nullptr : &axis}});
  ops_.push_back(
      make(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, {{CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, &how},
                                                          {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, &x},
                                                          {CUDNN_ATTR_OPERATION_POINTWISE_BDESC, &b},
                                                          {CUDNN_ATTR_OPERATION_POINTWISE_TDESC, &t},
                                                          {CUDNN_ATTR_OPERATION_POINTWISE_YDESC, &y}}));
  return y;
}

SdpaGraph::Tensor SdpaGraph::reduce(cudnnReduceTensorOp_t kind, Tensor x, Tensor y) {
  Tensor how = make(CUDNN_BACKEND_REDUCTION_DESCRIPTOR,
                    {{CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, &kind},
                     {CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, &kMathType}});
  ops_.push_back(make(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, {{CUDNN_ATTR_OPERATION_REDUCTION_XDESC, &x},
                                                                     {CUDNN_ATTR_OPERATION_REDUCTION_YDESC, &y},
                                                                     {CUDNN_ATTR_OPERATION_REDUCTION_DESC, &how}}));
  return y;
}

SdpaGraph::Tensor SdpaGraph::reshape(Tensor x, Tensor y) {
  ops_.push_back(make(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR,
                      {{CUDNN_ATTR_OPERATION_RESHAPE_XDESC, &x}, {CUDNN_ATTR_OPERATION_RESHAPE_YDESC, &y}}));
  return y;
}

// The heuristic's engine configurations, best first.
absl::StatusOr<std::vector<SdpaGraph::Tensor>> SdpaGraph::configurations(cudnnHandle_t handle) {
  const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
  Tensor graph = make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR,
                      {{CUDNN_ATTR_OPERATIONGRAPH_OPS, ops_.data(), static_cast<int64_t>(ops_.size())},
                       {kGraphHandle, CUDNN_TYPE_HANDLE, &handle}});
  Tensor heuristic = make(
      CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR,
      {{CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, &graph}, {CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, &mode}});
  if (!error_.ok()) return error_;
  const auto get = [&](int64_t capacity, int64_t* count, Tensor* to) {
    return to_status(cudnnBackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                              capacity, count, to),
                     "cuDNN heuristic");
  };
  int64_t count = 0;
  TELAR_RETURN_IF_ERROR(get(0, &count, nullptr));
  std::vector<Tensor> found(count);
  for (Tensor& configuration : found) {
    TELAR_RETURN_IF_ERROR(to_status(cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &configuration),
                                    "cuDNN configuration"));
    owned_.push_back(configuration);
  }
  TELAR_RETURN_IF_ERROR(get(count, &count, found.data()));
  found.resize(count);
  return found;
}

absl::Status SdpaGraph::build(cudnnHandle_t handle) {
  const absl::StatusOr<std::vector<Tensor>> found = configurations(handle);
  if (!found.ok()) return found.status();
  absl::Status last = absl::UnimplementedError("cuDNN has no engine for this graph");
  for (const Tensor& configuration : *found) {
    Tensor plan = nullptr;
    const cudnnStatus_t status = try_make(
        CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR,
        {{kPlanHandle, CUDNN_TYPE_HANDLE, &handle}, {CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, &configuration}}, &plan);
    if (plan != nullptr) owned_.push_back(plan);
    last = to_status(status, "cuDNN plan");
    if (!last.ok()) continue;
    int64_t bytes = 0, count = 0;
    TELAR_RETURN_IF_ERROR(to_status(
        cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count, &bytes),
        "cuDNN workspace size"));
    plan_ = plan;
    workspace_bytes_ = static_cast<size_t>(bytes);
    return absl::OkStatus();
  }
  return last;
}

absl::Status SdpaGraph::execute(cudnnHandle_t handle, const Bindings& bindings, void* workspace) const {
  std::vector<void*> addresses;
  for (int64_t uid : uids_) addresses.push_back(bindings.at(uid));
  const auto count = static_cast<int64_t>(uids_.size());
  Tensor pack = nullptr;
  cudnnStatus_t status =
      try_make(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR,
               {{CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, uids_.data(), count},
                {CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, addresses.data(), count},
                {CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, &workspace}},
               &pack);
  if (status == CUDNN_STATUS_SUCCESS) status = cudnnBackendExecute(handle, plan_, pack);
  if (pack != nullptr) cudnnBackendDestroyDescriptor(pack);
  return to_status(status, "cuDNN attention");
}

}  // namespace telar::backend::cuda

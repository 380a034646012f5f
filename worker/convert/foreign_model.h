// Other people's weights, as a rank or a conversion reads them.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "telar/v1/spec.pb.h"
#include "worker/backend/dtype.h"
#include "worker/checkpoint/file_system.h"
#include "worker/checkpoint/weight_source.h"
#include "worker/convert/tensor_map.h"

namespace telar::convert {

// Where the bytes of a stored tensor are.
struct Place {
  size_t file = 0;      // Index.
  uint64_t offset = 0;  // Of its first byte in the file.
  backend::DType dtype = backend::DType::kF32;
};

class ForeignModel : public checkpoint::WeightSource {
 public:
  // `kind` is for messages: "Hugging Face model". A place for each tensor. Every tensor lies inside its file.
  ForeignModel(std::string kind, std::string path, v1::ModelSpec model,
               std::vector<std::unique_ptr<checkpoint::ReadableFile>> files, std::vector<StoredTensor> tensors,
               std::vector<Place> places);

  const std::string& path() const override { return path_; }
  const v1::ModelSpec& model() const { return model_; }      // Complete: no field is left to its default.
  backend::DType dtype() const { return places_[0].dtype; }  // Of the embeddings.
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  // Weights have no moments: only kMaster and kWeight, which are the same.
  absl::Status read_values(std::string_view name, checkpoint::TensorKind kind, std::span<const parallel::Box> boxes,
                           std::span<float> out) const override;

 private:
  struct Where {
    size_t tensor, part;
  };
  const std::string kind_, path_;
  const v1::ModelSpec model_;
  const std::vector<std::unique_ptr<checkpoint::ReadableFile>> files_;
  const std::vector<StoredTensor> tensors_;
  const std::vector<Place> places_;
  std::map<std::string, Where, std::less<>> index_;  // By logical name.
};

}  // namespace telar::convert

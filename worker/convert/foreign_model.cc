#include "worker/convert/foreign_model.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/convert/slices.h"

namespace telar::convert {

ForeignModel::ForeignModel(std::string kind, std::string path, v1::ModelSpec model,
                           std::vector<std::unique_ptr<checkpoint::ReadableFile>> files,
                           std::vector<StoredTensor> tensors, std::vector<Place> places)
    : kind_(std::move(kind)),
      path_(std::move(path)),
      model_(std::move(model)),
      files_(std::move(files)),
      tensors_(std::move(tensors)),
      places_(std::move(places)) {
  for (size_t tensor = 0; tensor < tensors_.size(); ++tensor) {
    for (size_t part = 0; part < tensors_[tensor].parts.size(); ++part) {
      index_[tensors_[tensor].parts[part].name] = {tensor, part};
    }
  }
}

absl::Status ForeignModel::read_values(std::string_view name, checkpoint::TensorKind kind,
                                       std::span<const parallel::Box> boxes, std::span<float> out) const {
  const auto found = index_.find(name);
  const bool weights = kind == checkpoint::TensorKind::kMaster || kind == checkpoint::TensorKind::kWeight;
  if (found == index_.end() || !weights) {
    return absl::NotFoundError(
        absl::StrCat(kind_, " ", path_, ": has no ", checkpoint::name_of(kind), " ", std::string(name)));
  }
  const StoredTensor& tensor = tensors_[found->second.tensor];
  const Place& place = places_[found->second.tensor];
  const auto read = [&](uint64_t first_byte, std::span<std::byte> bytes) {
    return files_[place.file]->read(place.offset + first_byte, bytes);
  };
  auto status = read_boxes(tensor, tensor.parts[found->second.part], place.dtype, read, boxes, out);
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(kind_, " ", path_, ": ", std::string(name), " in ", tensor.name, ": ",
                                                  status.message()));
}

}  // namespace telar::convert

#include "worker/checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/crc32c.h"

namespace telar::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "the format and this code are little-endian");

using HeaderJson = nlohmann::json;  // Its objects look keys up in a tree: a header of a million tensors stays quick.

constexpr uint64_t kLengthBytes = 8;
constexpr std::string_view kMetadataKey = "__metadata__";

struct NamedBits {
  std::string_view name;
  int bits;
};
constexpr std::array kDtypes = {
    NamedBits{"BOOL", 8},        NamedBits{"U8", 8},          NamedBits{"I8", 8},      NamedBits{"F8_E5M2", 8},
    NamedBits{"F8_E4M3", 8},     NamedBits{"F8_E8M0", 8},     NamedBits{"I16", 16},    NamedBits{"U16", 16},
    NamedBits{"F16", 16},        NamedBits{"BF16", 16},       NamedBits{"I32", 32},    NamedBits{"U32", 32},
    NamedBits{"F32", 32},        NamedBits{"F64", 64},        NamedBits{"I64", 64},    NamedBits{"U64", 64},
    NamedBits{"C64", 64},        NamedBits{"F4", 4},          NamedBits{"F6_E2M3", 6}, NamedBits{"F6_E3M2", 6},
    NamedBits{"F8_E4M3FNUZ", 8}, NamedBits{"F8_E5M2FNUZ", 8},
};

absl::Status bad(const std::string& path, const std::string& why) {
  return absl::DataLossError(absl::StrCat("safetensors file ", path, ": ", why));
}

// Parses an object in which no key stands twice, at any depth; `why` says what is wrong otherwise.
HeaderJson parse_unique(const std::string& text, std::string& why) {
  std::vector<std::set<std::string>> keys;
  const auto watch = [&](int, HeaderJson::parse_event_t event, HeaderJson& value) {
    if (event == HeaderJson::parse_event_t::object_start) keys.emplace_back();
    if (event == HeaderJson::parse_event_t::object_end) keys.pop_back();
    if (event == HeaderJson::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second &&
        why.empty()) {
      why = absl::StrCat("header has the key \"", value.get<std::string>(), "\" twice");
    }
    return true;
  };
  try {
    return HeaderJson::parse(text, watch);
  } catch (const HeaderJson::exception& error) {
    why = absl::StrCat("header is no JSON: ", error.what());
    return HeaderJson();
  }
}

// Empty when `value` is an array of unsigned integers below 2^63, appended to `numbers`.
std::string read_numbers(const HeaderJson& entry, const char* key, std::vector<int64_t>& numbers) {
  const auto found = entry.find(key);
  if (found == entry.end() || !found->is_array()) return absl::StrCat("has no array ", key);
  for (const HeaderJson& one : *found) {
    if (!one.is_number_unsigned() || one.get<uint64_t>() > INT64_MAX) {
      return absl::StrCat(key, " holds ", one.dump(), ", not a size");
    }
    numbers.push_back(one.get<int64_t>());
  }
  return "";
}

// Reads one entry of the header; the result says what is wrong, or nothing.
std::string read_entry(const HeaderJson& entry, TensorInfo& tensor) {
  if (!entry.is_object()) return "is not an object";
  const auto dtype = entry.find("dtype");
  if (dtype == entry.end() || !dtype->is_string()) return "has no string dtype";
  tensor.dtype = dtype->get<std::string>();
  std::vector<int64_t> offsets;
  if (auto why = read_numbers(entry, "shape", tensor.shape); !why.empty()) return why;
  if (auto why = read_numbers(entry, "data_offsets", offsets); !why.empty()) return why;
  if (offsets.size() != 2) return absl::StrCat("data_offsets has ", offsets.size(), " entries, not 2");
  tensor.begin = static_cast<uint64_t>(offsets[0]);
  tensor.end = static_cast<uint64_t>(offsets[1]);
  const auto bytes = bytes_of(tensor.dtype, tensor.shape);
  if (!bytes.ok()) return std::string(bytes.status().message());
  if (tensor.end < tensor.begin || tensor.end - tensor.begin != *bytes) {
    return absl::StrCat("data_offsets [", tensor.begin, ", ", tensor.end, ") are not the ", *bytes,
                        " bytes of its shape");
  }
  return "";
}

// The JSON header, padded. Written by hand but for the strings: the order of the keys is part of how files look.
absl::StatusOr<std::string> header_text(const std::vector<TensorInfo>& tensors,
                                        const std::map<std::string, std::string>& metadata, uint64_t& data_bytes) {
  std::string text = "{";
  std::set<std::string> names = {std::string(kMetadataKey)};
  try {
    if (!metadata.empty()) absl::StrAppend(&text, "\"", std::string(kMetadataKey), "\":", HeaderJson(metadata).dump());
    for (const TensorInfo& tensor : tensors) {
      const auto bytes = bytes_of(tensor.dtype, tensor.shape);
      if (!bytes.ok() || !names.insert(tensor.name).second) {
        const std::string why = bytes.ok() ? "name is taken" : std::string(bytes.status().message());
        return absl::InvalidArgumentError(absl::StrCat("tensor ", tensor.name, ": ", why));
      }
      absl::StrAppend(&text, text.size() > 1 ? "," : "", HeaderJson(tensor.name).dump(), ":{\"dtype\":\"", tensor.dtype,
                      "\",\"shape\":", HeaderJson(tensor.shape).dump(), ",\"data_offsets\":[", data_bytes, ",",
                      data_bytes + *bytes, "]}");
      data_bytes += *bytes;
    }
  } catch (const HeaderJson::exception& error) {  // A name that is not UTF-8.
    return absl::InvalidArgumentError(error.what());
  }
  text += "}";
  text.resize((text.size() + kLengthBytes - 1) / kLengthBytes * kLengthBytes, ' ');
  if (text.size() > kMostHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat("header of ", text.size(), " bytes"));
  }
  return text;
}

}  // namespace

int bits_of_dtype(std::string_view dtype) {
  const auto found = std::find_if(kDtypes.begin(), kDtypes.end(), [&](const NamedBits& d) { return d.name == dtype; });
  return found == kDtypes.end() ? 0 : found->bits;
}

std::string dtype_name(backend::DType dtype) {
  switch (dtype) {
    case backend::DType::kF32:
      return "F32";
    case backend::DType::kBF16:
      return "BF16";
    case backend::DType::kF16:
      return "F16";
    case backend::DType::kI32:
      return "I32";
    case backend::DType::kU8:
      return "U8";
    case backend::DType::kF8E4M3:
      return "F8_E4M3";
    case backend::DType::kF8E5M2:
      return "F8_E5M2";
  }
  return "?";
}

absl::StatusOr<uint64_t> bytes_of(std::string_view dtype, std::span<const int64_t> shape) {
  const int bits = bits_of_dtype(dtype);
  if (bits == 0) return absl::InvalidArgumentError(absl::StrCat("unknown dtype \"", std::string(dtype), "\""));
  uint64_t total = static_cast<uint64_t>(bits);
  for (const int64_t extent : shape) {
    if (extent < 0) return absl::InvalidArgumentError(absl::StrCat("extent ", extent, " is negative"));
    if (__builtin_mul_overflow(total, static_cast<uint64_t>(extent), &total)) {
      return absl::InvalidArgumentError("shape overflows 64 bits");
    }
  }
  if (total % 8 != 0) return absl::InvalidArgumentError(absl::StrCat(total, " bits do not fill the last byte"));
  return total / 8;
}

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::open(FileSystem& files, const std::string& path) {
  auto file = files.open(path);
  if (!file.ok()) return file.status();
  const uint64_t size = (*file)->size();
  if (size < kLengthBytes) return bad(path, absl::StrCat(size, " bytes, shorter than the 8 of the header length"));
  uint64_t length = 0;
  if (auto status = (*file)->read(0, std::as_writable_bytes(std::span(&length, 1))); !status.ok()) return status;
  if (length > kMostHeaderBytes) {
    return bad(path, absl::StrCat("header length ", length, " is more than ", kMostHeaderBytes));
  }
  if (length > size - kLengthBytes) {
    return bad(path, absl::StrCat("header of ", length, " bytes in a file of ", size));
  }
  std::string header(length, '\0');
  if (auto status = (*file)->read(kLengthBytes, std::as_writable_bytes(std::span(header))); !status.ok()) {
    return status;
  }
  std::unique_ptr<SafetensorsFile> opened(new SafetensorsFile);
  opened->path_ = path;
  opened->file_ = *std::move(file);
  opened->data_offset_ = kLengthBytes + length;
  if (auto status = opened->parse(header, size - kLengthBytes - length); !status.ok()) return status;
  return opened;
}

absl::Status SafetensorsFile::parse(const std::string& header, uint64_t data_bytes) {
  if (header.empty() || header[0] != '{') return bad(path_, "header does not begin with {");
  std::string why;
  const HeaderJson json = parse_unique(header, why);
  if (!why.empty()) return bad(path_, why);
  for (const auto& [name, entry] : json.items()) {
    if (name == kMetadataKey) {
      if (!entry.is_object()) return bad(path_, "__metadata__ is not an object");
      for (const auto& [key, value] : entry.items()) {
        if (!value.is_string()) return bad(path_, absl::StrCat("__metadata__ \"", key, "\" is not a string"));
        metadata_[key] = value.get<std::string>();
      }
      continue;
    }
    TensorInfo tensor{.name = name};
    if (why = read_entry(entry, tensor); !why.empty()) return bad(path_, absl::StrCat("tensor ", name, " ", why));
    tensors_.push_back(std::move(tensor));
  }
  std::sort(tensors_.begin(), tensors_.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t at = 0;
  for (const TensorInfo& tensor : tensors_) {
    if (tensor.begin != at) {
      return bad(path_, absl::StrCat("tensor ", tensor.name, " begins at offset ", tensor.begin, " of the data, but ",
                                     at, " is where the one before it ends"));
    }
    at = tensor.end;
    index_[tensor.name] = index_.size();
  }
  if (at != data_bytes) {
    return bad(path_, absl::StrCat("the tensors end at offset ", at, " of the data, the file at ", data_bytes,
                                   tensors_.empty() ? "" : absl::StrCat("; the last is ", tensors_.back().name)));
  }
  return absl::OkStatus();
}

const TensorInfo* SafetensorsFile::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

absl::Status SafetensorsFile::read(const TensorInfo& tensor, uint64_t first_byte, std::span<std::byte> out) const {
  const uint64_t bytes = tensor.end - tensor.begin;
  if (first_byte > bytes || out.size() > bytes - first_byte) {
    return absl::OutOfRangeError(absl::StrCat("safetensors file ", path_, ": tensor ", tensor.name, " has ", bytes,
                                              " bytes, asked for [", first_byte, ", ", first_byte, " + ", out.size(),
                                              ")"));
  }
  return file_->read(data_offset_ + tensor.begin + first_byte, out);
}

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::create(
    FileSystem& files, const std::string& path, std::vector<TensorInfo> tensors,
    const std::map<std::string, std::string>& metadata) {
  uint64_t data_bytes = 0;
  const auto text = header_text(tensors, metadata, data_bytes);
  if (!text.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("safetensors file ", path, ": ", std::string(text.status().message())));
  }
  auto file = files.create(path);
  if (!file.ok()) return file.status();
  std::unique_ptr<SafetensorsWriter> writer(new SafetensorsWriter);
  writer->path_ = path;
  writer->file_ = *std::move(file);
  const uint64_t length = text->size();
  std::string head(kLengthBytes, '\0');
  std::memcpy(head.data(), &length, kLengthBytes);
  head += *text;
  writer->left_ = head.size();
  if (auto status = writer->append(std::as_bytes(std::span(head))); !status.ok()) return status;
  writer->left_ = data_bytes;
  return writer;
}

absl::Status SafetensorsWriter::append(std::span<const std::byte> bytes) {
  if (bytes.size() > left_) {
    return absl::FailedPreconditionError(
        absl::StrCat("safetensors file ", path_, ": ", bytes.size(), " bytes where ", left_, " are declared"));
  }
  left_ -= bytes.size();
  written_.bytes += bytes.size();
  written_.crc32c = crc32c(bytes, written_.crc32c);
  return file_->append(bytes);
}

absl::StatusOr<SafetensorsWriter::Finished> SafetensorsWriter::finish() {
  if (left_ != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("safetensors file ", path_, ": ", left_, " declared bytes are missing"));
  }
  if (auto status = file_->sync(); !status.ok()) return status;
  if (auto status = file_->close(); !status.ok()) return status;
  return written_;
}

}  // namespace telar::checkpoint

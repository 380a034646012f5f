#include "client/spec/explain.h"

#include <cstddef>
#include <sstream>
#include <vector>

#include "absl/strings/ascii.h"
#include "client/spec/problem.h"
#include "client/spec/suggest.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"

namespace telar::client {

extern const unsigned char kSpecDescriptor[];
extern const size_t kSpecDescriptorSize;

namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;

// The pool of generated code has no comments; this one is built from the .proto with them.
const Descriptor* spec_type() {
  static const DescriptorPool* const pool = [] {
    auto* built = new DescriptorPool;  // Lives as long as the program, like the descriptors handed out.
    google::protobuf::FileDescriptorSet files;
    files.ParseFromArray(kSpecDescriptor, static_cast<int>(kSpecDescriptorSize));
    for (const auto& file : files.file()) built->BuildFile(file);
    return built;
  }();
  return pool->FindMessageTypeByName("telar.v1.JobSpec");
}

// A declaration's comments, the one before it and the one beside it, as one paragraph.
template <typename Declaration>
std::string comment_of(const Declaration* declaration) {
  google::protobuf::SourceLocation location;
  if (!declaration->GetSourceLocation(&location)) return "";
  std::istringstream words(location.leading_comments + " " + location.trailing_comments);
  std::string text;
  for (std::string word; words >> word;) text += (text.empty() ? "" : " ") + word;
  return text;
}

std::string type_of(const FieldDescriptor* field) {
  std::string type = field->type_name();
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) type = "group";
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_ENUM) type = "choice";
  return field->is_repeated() ? "list of " + type : type;
}

std::string padded(const std::string& text, size_t width) {
  return text + std::string(text.size() < width ? width - text.size() : 1, ' ');
}

std::string row(const std::string& name, const std::string& type, const std::string& comment) {
  std::string line = "  " + padded(name, 24) + padded(type, type.empty() ? 0 : 16) + comment;
  absl::StripTrailingAsciiWhitespace(&line);
  return line + "\n";
}

std::string fields_page(const Descriptor* type) {
  std::string page;
  for (int i = 0; i < type->field_count(); ++i) {
    page += row(type->field(i)->name(), type_of(type->field(i)), comment_of(type->field(i)));
  }
  return page;
}

std::string values_page(const EnumDescriptor* type) {
  std::string page;
  for (int i = 0; i < type->value_count(); ++i) {
    if (type->value(i)->number() == 0) continue;
    page += row(absl::AsciiStrToLower(type->value(i)->name()), "", comment_of(type->value(i)));
  }
  return page;
}

std::string field_page(const std::string& path, const FieldDescriptor* field) {
  std::string page = path + " (" + type_of(field) + ")\n";
  if (const std::string comment = comment_of(field); !comment.empty()) page += "  " + comment + "\n";
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_ENUM) page += "Values:\n" + values_page(field->enum_type());
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
    if (const std::string comment = comment_of(field->message_type()); !comment.empty()) page += "  " + comment + "\n";
    page += "Fields:\n" + fields_page(field->message_type());
  }
  return page;
}

}  // namespace

absl::StatusOr<std::string> explain(const std::string& path) {
  const Descriptor* type = spec_type();
  if (path.empty()) {
    return "A job spec (YAML, JSON or textproto)\n  " + comment_of(type) + "\nFields:\n" + fields_page(type);
  }
  std::istringstream names(path);
  const FieldDescriptor* field = nullptr;
  for (std::string name; std::getline(names, name, '.');) {
    if (field != nullptr) {
      if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
        return absl::NotFoundError(path + ": '" + field->name() + "' has no fields");
      }
      type = field->message_type();
    }
    field = type->FindFieldByName(name);
    if (field == nullptr) {
      return absl::NotFoundError(path + ": unknown field " + quote(name) + suggest_field(name, type, spec_type()));
    }
  }
  return field_page(path, field);
}

}  // namespace telar::client

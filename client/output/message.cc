#include "client/output/message.h"

#include <charconv>
#include <cmath>
#include <cstdio>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/timestamp.pb.h"
#include "google/protobuf/util/json_util.h"
#include "google/protobuf/util/time_util.h"

namespace telar::client {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Timestamp;

// Words that YAML 1.1 readers take for a bool or null.
bool is_reserved(const std::string& text) {
  const std::string word = absl::AsciiStrToLower(text);
  for (const char* one : {"true", "false", "yes", "no", "on", "off", "y", "n", "null"}) {
    if (word == one) return true;
  }
  return false;
}

// Starts with a letter or '/' and holds nothing that YAML gives a meaning to.
bool is_plain(const std::string& text) {
  if (text.empty() || is_reserved(text)) return false;
  if (!absl::ascii_isalpha(static_cast<unsigned char>(text[0])) && text[0] != '/') return false;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (!absl::ascii_isalnum(byte) && c != '_' && c != '-' && c != '.' && c != '/') return false;
  }
  return true;
}

std::string scalar(const Message& message, const FieldDescriptor* field, int index) {
  const auto* r = message.GetReflection();
  const bool repeated = index >= 0;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return std::to_string(repeated ? r->GetRepeatedInt32(message, field, index) : r->GetInt32(message, field));
    case FieldDescriptor::CPPTYPE_INT64:
      return std::to_string(repeated ? r->GetRepeatedInt64(message, field, index) : r->GetInt64(message, field));
    case FieldDescriptor::CPPTYPE_UINT32:
      return std::to_string(repeated ? r->GetRepeatedUInt32(message, field, index) : r->GetUInt32(message, field));
    case FieldDescriptor::CPPTYPE_UINT64:
      return std::to_string(repeated ? r->GetRepeatedUInt64(message, field, index) : r->GetUInt64(message, field));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return yaml_number(repeated ? r->GetRepeatedDouble(message, field, index) : r->GetDouble(message, field));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return yaml_number(repeated ? r->GetRepeatedFloat(message, field, index) : r->GetFloat(message, field));
    case FieldDescriptor::CPPTYPE_BOOL:
      return (repeated ? r->GetRepeatedBool(message, field, index) : r->GetBool(message, field)) ? "true" : "false";
    case FieldDescriptor::CPPTYPE_ENUM: {
      const int value = repeated ? r->GetRepeatedEnumValue(message, field, index) : r->GetEnumValue(message, field);
      const auto* known = field->enum_type()->FindValueByNumber(value);  // A newer server may know more values.
      return known == nullptr ? std::to_string(value) : yaml_scalar(absl::AsciiStrToLower(known->name()));
    }
    case FieldDescriptor::CPPTYPE_STRING:
      return yaml_scalar(repeated ? r->GetRepeatedString(message, field, index) : r->GetString(message, field));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      break;
  }
  return "";
}

void write(const Message& message, const std::string& indent, std::string& out);

// A nested message below "name:" or behind "- ".
void write_nested(const Message& nested, const std::string& indent, bool in_list, std::string& out) {
  if (const auto* time = dynamic_cast<const Timestamp*>(&nested)) {
    absl::StrAppend(&out, " ", yaml_scalar(google::protobuf::util::TimeUtil::ToString(*time)), "\n");
    return;
  }
  std::string body;
  write(nested, indent + "  ", body);
  if (body.empty()) {
    out += " {}\n";
  } else if (in_list) {
    out += body.substr(indent.size() + 1);  // The first field stands in the line of the "-".
  } else {
    absl::StrAppend(&out, "\n", body);
  }
}

void write(const Message& message, const std::string& indent, std::string& out) {
  std::vector<const FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  const auto* reflection = message.GetReflection();
  for (const FieldDescriptor* field : fields) {
    const bool nested = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    out += indent + field->name() + ":";
    if (!field->is_repeated()) {
      if (nested) {
        write_nested(reflection->GetMessage(message, field), indent, false, out);
      } else {
        absl::StrAppend(&out, " ", scalar(message, field, -1), "\n");
      }
      continue;
    }
    out += "\n";
    for (int i = 0; i < reflection->FieldSize(message, field); ++i) {
      out += indent + "-";
      if (nested) {
        write_nested(reflection->GetRepeatedMessage(message, field, i), indent, true, out);
      } else {
        absl::StrAppend(&out, " ", scalar(message, field, i), "\n");
      }
    }
  }
}

}  // namespace

std::string yaml_scalar(const std::string& text) {
  if (is_plain(text)) return text;
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += std::string("\\") + c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      char code[8];
      std::snprintf(code, sizeof code, "\\x%02x", byte);
      out += code;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string yaml_number(double value) {
  if (std::isnan(value)) return ".nan";
  if (std::isinf(value)) return value > 0 ? ".inf" : "-.inf";
  char buffer[64];
  const double size = std::fabs(value);
  const bool fixed = size == 0 || (size >= 1e-5 && size < 1e15);
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value,
                                 fixed ? std::chars_format::fixed : std::chars_format::scientific);
  std::string text(buffer, end.ptr);
  const size_t exponent = text.find('e');
  if (exponent != std::string::npos && text.find('.') == std::string::npos) text.insert(exponent, ".0");
  return text;
}

std::string to_json(const Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.preserve_proto_field_names = true;
  std::string text;
  const auto status = google::protobuf::util::MessageToJsonString(message, &text, options);
  if (!status.ok()) return "{}\n";  // Only Timestamps out of range cannot be printed; the coordinator makes none.
  if (text.empty() || text.back() != '\n') text += '\n';
  return text;
}

std::string to_yaml(const Message& message) {
  std::string text;
  write(message, "", text);
  return text.empty() ? "{}\n" : text;
}

}  // namespace telar::client

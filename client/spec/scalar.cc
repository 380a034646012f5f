#include "client/spec/scalar.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "client/spec/suggest.h"

namespace telar::client {
namespace {

using google::protobuf::EnumDescriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr Wide kWidest = Wide{1} << 100;  // Room for a suffix and one more digit below 2^127.

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// 10^3n or 2^10n; 0 for no suffix of ours.
Wide multiplier(const std::string& suffix) {
  if (suffix.empty()) return 1;
  if (suffix == "k") return 1'000;
  if (suffix == "M") return 1'000'000;
  if (suffix == "G") return 1'000'000'000;
  if (suffix == "Ki") return Wide{1} << 10;
  if (suffix == "Mi") return Wide{1} << 20;
  if (suffix == "Gi") return Wide{1} << 30;
  return 0;
}

std::string decimal(Wide value) {
  const bool negative = value < 0;
  if (negative) value = -value;
  std::string digits;
  do {
    digits += static_cast<char>('0' + static_cast<int>(value % 10));
    value /= 10;
  } while (value > 0);
  if (negative) digits += '-';
  std::reverse(digits.begin(), digits.end());
  return digits;
}

template <typename Integer>
std::optional<Integer> in_range(const std::string& text) {
  const std::optional<Wide> value = parse_integer(text);
  if (!value || *value < Wide{std::numeric_limits<Integer>::min()} ||
      *value > Wide{std::numeric_limits<Integer>::max()}) {
    return std::nullopt;
  }
  return static_cast<Integer>(*value);
}

template <typename Integer>
std::string want_integer() {
  return "want an integer from " + decimal(Wide{std::numeric_limits<Integer>::min()}) + " to " +
         decimal(Wide{std::numeric_limits<Integer>::max()}) + " (suffixes k M G Ki Mi Gi)";
}

// Every kind of field is set in the same way, through a pair of reflection methods.
template <typename Value, typename Argument>
void store(Message& message, const FieldDescriptor* field, Value value,
           void (Reflection::*set)(Message*, const FieldDescriptor*, Argument) const,
           void (Reflection::*add)(Message*, const FieldDescriptor*, Argument) const) {
  const Reflection* reflection = message.GetReflection();
  (reflection->*(field->is_repeated() ? add : set))(&message, field, std::move(value));
}

std::optional<bool> parse_bool(const std::string& text) {
  const std::string word = absl::AsciiStrToLower(text);
  if (word == "true" || word == "yes" || word == "on") return true;
  if (word == "false" || word == "no" || word == "off") return false;
  return std::nullopt;
}

std::optional<double> parse_double(const std::string& text) {
  double value = 0;
  if (text.empty() || !absl::SimpleAtod(text, &value) || !std::isfinite(value)) return std::nullopt;
  return value;
}

const EnumValueDescriptor* parse_enum(const EnumDescriptor* type, const std::string& text) {
  std::string name = absl::AsciiStrToUpper(text);
  std::replace(name.begin(), name.end(), '-', '_');
  const EnumValueDescriptor* value = type->FindValueByName(name);
  return value != nullptr && value->number() != 0 ? value : nullptr;
}

std::vector<std::string> enum_names(const EnumDescriptor* type) {
  std::vector<std::string> names;
  for (int i = 0; i < type->value_count(); ++i) {
    if (type->value(i)->number() != 0) names.push_back(absl::AsciiStrToLower(type->value(i)->name()));
  }
  return names;
}

std::string want_enum(const EnumDescriptor* type, const std::string& text) {
  const std::string best = nearest(text, enum_names(type));
  return "want one of " + enum_values(type) + (best.empty() ? "" : "; did you mean '" + best + "'?");
}

}  // namespace

std::optional<Wide> parse_integer(const std::string& text) {
  size_t at = 0;
  const bool negative = !text.empty() && text[0] == '-';
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) ++at;
  Wide value = 0;
  int exponent = 0;
  bool any = false, point = false;
  for (; at < text.size() && (is_digit(text[at]) || (text[at] == '.' && !point)); ++at) {
    if (text[at] == '.') {
      point = true;
      continue;
    }
    any = true;
    value = value * 10 + (text[at] - '0');
    exponent -= point ? 1 : 0;
    if (value > kWidest) return std::nullopt;
  }
  if (!any) return std::nullopt;
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    size_t end = at + 1;
    if (end < text.size() && (text[end] == '-' || text[end] == '+')) ++end;
    const size_t first = end;
    while (end < text.size() && is_digit(text[end])) ++end;
    if (end == first || end - first > 3) return std::nullopt;
    exponent += std::stoi(text.substr(at + 1, end - at - 1));
    at = end;
  }
  const Wide scale = multiplier(text.substr(at));
  if (scale == 0) return std::nullopt;
  if (value > kWidest / scale) return std::nullopt;
  value *= scale;
  for (; exponent > 0 && value > 0; --exponent) {
    if (value > kWidest) return std::nullopt;
    value *= 10;
  }
  for (; exponent < 0 && value > 0; ++exponent) {
    if (value % 10 != 0) return std::nullopt;
    value /= 10;
  }
  if (value > kWidest) return std::nullopt;
  return negative ? -value : value;
}

std::string enum_values(const EnumDescriptor* type) { return absl::StrJoin(enum_names(type), ", "); }

std::string set_scalar(Message& message, const FieldDescriptor* field, const std::string& text) {
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32: {
      const auto value = in_range<int32_t>(text);
      if (!value) return want_integer<int32_t>();
      store(message, field, *value, &Reflection::SetInt32, &Reflection::AddInt32);
      return "";
    }
    case FieldDescriptor::CPPTYPE_INT64: {
      const auto value = in_range<int64_t>(text);
      if (!value) return want_integer<int64_t>();
      store(message, field, *value, &Reflection::SetInt64, &Reflection::AddInt64);
      return "";
    }
    case FieldDescriptor::CPPTYPE_UINT32: {
      const auto value = in_range<uint32_t>(text);
      if (!value) return want_integer<uint32_t>();
      store(message, field, *value, &Reflection::SetUInt32, &Reflection::AddUInt32);
      return "";
    }
    case FieldDescriptor::CPPTYPE_UINT64: {
      const auto value = in_range<uint64_t>(text);
      if (!value) return want_integer<uint64_t>();
      store(message, field, *value, &Reflection::SetUInt64, &Reflection::AddUInt64);
      return "";
    }
    case FieldDescriptor::CPPTYPE_DOUBLE:
    case FieldDescriptor::CPPTYPE_FLOAT: {
      const auto value = parse_double(text);
      if (!value) return "want a finite number";
      if (field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE) {
        store(message, field, *value, &Reflection::SetDouble, &Reflection::AddDouble);
      } else {
        store(message, field, static_cast<float>(*value), &Reflection::SetFloat, &Reflection::AddFloat);
      }
      return "";
    }
    case FieldDescriptor::CPPTYPE_BOOL: {
      const auto value = parse_bool(text);
      if (!value) return "want true or false";
      store(message, field, *value, &Reflection::SetBool, &Reflection::AddBool);
      return "";
    }
    case FieldDescriptor::CPPTYPE_ENUM: {
      const EnumValueDescriptor* value = parse_enum(field->enum_type(), text);
      if (value == nullptr) return want_enum(field->enum_type(), text);
      store(message, field, value, &Reflection::SetEnum, &Reflection::AddEnum);
      return "";
    }
    case FieldDescriptor::CPPTYPE_STRING:
      store(message, field, text, &Reflection::SetString, &Reflection::AddString);
      return "";
    case FieldDescriptor::CPPTYPE_MESSAGE:
      break;
  }
  return "want a mapping";
}

}  // namespace telar::client

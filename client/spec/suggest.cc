#include "client/spec/suggest.h"

#include <algorithm>
#include <cctype>

namespace telar::client {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

constexpr size_t kLongestWord = 64;  // Beyond it nothing is a typing mistake, and the table below stays small.

std::string folded(const std::string& word) {
  std::string result;
  for (const char c : word) {
    if (c != '_' && c != '-') result += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return result;
}

// "optimizer.learning_rate" for "learningRate"; "" when no field below `message` has that name.
std::string path_of(const std::string& word, const Descriptor* message) {
  for (int i = 0; i < message->field_count(); ++i) {
    const FieldDescriptor* field = message->field(i);
    if (folded(field->name()) == word) return field->name();
  }
  for (int i = 0; i < message->field_count(); ++i) {
    const FieldDescriptor* field = message->field(i);
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    const std::string below = path_of(word, field->message_type());
    if (!below.empty()) return field->name() + "." + below;
  }
  return "";
}

}  // namespace

int edit_distance(const std::string& a, const std::string& b) {
  const size_t width = b.size() + 1;
  std::vector<int> before(width), last(width), row(width);
  for (size_t j = 0; j < width; ++j) last[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j < width; ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

std::string nearest(const std::string& word, const std::vector<std::string>& candidates) {
  if (word.empty() || word.size() > kLongestWord) return "";
  const std::string wanted = folded(word);
  std::string best;
  int best_distance = std::max(1, static_cast<int>(wanted.size() + 1) / 3) + 1;
  for (const std::string& candidate : candidates) {
    const int distance = edit_distance(wanted, folded(candidate));
    if (distance >= best_distance) continue;
    best_distance = distance;
    best = candidate;
  }
  // One letter of two is no likeness.
  return best_distance < static_cast<int>(wanted.size()) ? best : "";
}

std::string suggest_field(const std::string& key, const Descriptor* message, const Descriptor* root) {
  std::vector<std::string> names;
  for (int i = 0; i < message->field_count(); ++i) names.push_back(message->field(i)->name());
  std::string best = nearest(key, names);
  // A field of exactly this name elsewhere beats a field of about this name here.
  if (best.empty() || folded(best) != folded(key)) {
    const std::string elsewhere = key.size() <= kLongestWord ? path_of(folded(key), root) : "";
    if (!elsewhere.empty()) best = elsewhere;
  }
  return best.empty() ? "" : "; did you mean '" + best + "'?";
}

}  // namespace telar::client

#include "server/auth/limits.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace telar::server::auth {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr size_t kMostString = 4096;
constexpr int kMostEntries = 4096;
constexpr size_t kMostFound = 100;
constexpr std::chrono::milliseconds kStreamRetry{5'000};

size_t most_characters(const FieldDescriptor& field) {
  if (field.full_name() == "telar.v1.ParallelSpec.schedule_text") return 128 << 10;
  if (field.full_name() == "telar.v1.SampleSpec.prompt") return 64 << 10;
  return kMostString;
}

int most_entries(const FieldDescriptor& field) {
  return field.full_name() == "telar.v1.ArrayParameter.values" ? 10'000 : kMostEntries;
}

class Walk {
 public:
  std::vector<Violation> take(const Message& message) {
    visit(message, "");
    return std::move(found_);
  }

 private:
  void visit(const Message& message, const std::string& prefix) {
    const Reflection& reflection = *message.GetReflection();
    std::vector<const FieldDescriptor*> fields;
    reflection.ListFields(message, &fields);
    for (const FieldDescriptor* field : fields) {
      const std::string path = absl::StrCat(prefix, field->name());
      const int count = field->is_repeated() ? reflection.FieldSize(message, field) : 1;
      if (count > most_entries(*field)) {
        add(path, absl::StrCat(count, " entries; at most ", most_entries(*field)));
        continue;
      }
      for (int i = 0; i < count && found_.size() < kMostFound; ++i) visit_value(message, *field, path, i);
    }
  }
  void visit_value(const Message& message, const FieldDescriptor& field, const std::string& path, int index) {
    const Reflection& reflection = *message.GetReflection();
    const std::string place = field.is_repeated() ? absl::StrCat(path, "[", index, "]") : path;
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      visit(field.is_repeated() ? reflection.GetRepeatedMessage(message, &field, index)
                                : reflection.GetMessage(message, &field),
            absl::StrCat(place, "."));
    } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      std::string scratch;
      const std::string& text = field.is_repeated()
                                    ? reflection.GetRepeatedStringReference(message, &field, index, &scratch)
                                    : reflection.GetStringReference(message, &field, &scratch);
      if (text.size() > most_characters(field)) {
        add(place, absl::StrCat(text.size(), " bytes; at most ", most_characters(field)));
      } else if (field.type() == FieldDescriptor::TYPE_STRING && text.find('\0') != std::string::npos) {
        add(place, "must not have a NUL character in it");
      }
    }
  }
  void add(const std::string& path, const std::string& text) { found_.push_back({path, text}); }

  std::vector<Violation> found_;
};

}  // namespace

absl::Status RateLimit::take(const std::string& user) {
  const Clock::Steady now = clock_->now();
  std::lock_guard<std::mutex> hold(mutex_);
  Bucket& bucket = buckets_.try_emplace(user, Bucket{burst_, now}).first->second;
  bucket.calls =
      std::min(burst_, bucket.calls + per_second_ * std::chrono::duration<double>(now - bucket.time).count());
  bucket.time = now;
  if (bucket.calls >= 1) {
    bucket.calls -= 1;
    return absl::OkStatus();
  }
  const std::chrono::milliseconds wait(static_cast<int64_t>(std::ceil((1 - bucket.calls) / per_second_ * 1000)));
  return exhausted("RATE_LIMIT",
                   absl::StrCat("user ", user, " makes more than ", per_second_, " calls a second; try again in ",
                                wait.count(), " ms"),
                   wait);
}

absl::Status StreamLimit::open(const std::string& user) {
  std::lock_guard<std::mutex> hold(mutex_);
  int& count = open_[user];
  if (count >= most_) {
    return exhausted("STREAM_LIMIT",
                     absl::StrCat("user ", user, " has ", count, " streams open (watch, logs), the most there may be"),
                     kStreamRetry);
  }
  ++count;
  return absl::OkStatus();
}

void StreamLimit::close(const std::string& user) {
  std::lock_guard<std::mutex> hold(mutex_);
  if (--open_[user] <= 0) open_.erase(user);
}

std::vector<Violation> find_oversize(const Message& request) { return Walk().take(request); }

}  // namespace telar::server::auth

#include "worker/plan/resolve_data.h"

#include <charconv>
#include <cmath>
#include <set>
#include <string>

namespace telar::plan {
namespace {

using Paths = google::protobuf::RepeatedPtrField<std::string>;

constexpr double kMostWeight = 1e12;

class DataResolver {
 public:
  DataResolver(v1::JobSpec& spec, Problems& problems) : spec_(spec), data_(*spec.mutable_data()), problems_(problems) {}

  void run() {
    if (data_.sources().empty()) {
      if (data_.train().empty()) problems_.add("data.train", "no file given");
      absolute("data.train", data_.train());
      absolute("data.eval", data_.eval());
    } else {
      sources();
    }
    split();
    rows();
    documents();
  }

 private:
  void absolute(const std::string& field, const Paths& paths) {
    for (const std::string& path : paths) {
      if (path.empty() || path[0] != '/') problems_.add(field, "'{}' must be an absolute path on the workers", path);
    }
  }

  static bool is_name(const std::string& name) {
    for (const char c : name) {
      if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-')) return false;
    }
    return !name.empty();
  }

  void sources() {
    if (!data_.train().empty()) problems_.add("data.train", "does not go with data.sources; use data.sources[].train");
    if (!data_.eval().empty()) problems_.add("data.eval", "does not go with data.sources; use data.sources[].eval");
    std::set<std::string> names;
    for (int i = 0; i < data_.sources_size(); ++i) {
      v1::DataSource& source = *data_.mutable_sources(i);
      const std::string field = fmt::format("data.sources[{}].", i);
      if (source.name().empty()) source.set_name(fmt::format("source-{}", i));
      if (!is_name(source.name())) {
        problems_.add(field + "name", "'{}' must be of a-z, 0-9 and '-'", source.name().substr(0, 80));
      }
      if (!names.insert(source.name()).second) {
        problems_.add(field + "name", "'{}' is another source's name, too", source.name());
      }
      if (source.train().empty()) problems_.add(field + "train", "no file given");
      absolute(field + "train", source.train());
      absolute(field + "eval", source.eval());
      if (source.weight() == 0) source.set_weight(1);
      if (!(source.weight() > 0 && source.weight() <= kMostWeight)) {
        problems_.add(field + "weight", "{} is not above 0 and at most {}", source.weight(), kMostWeight);
      }
    }
  }

  // Whether evaluation files leave anything to be held out.
  bool holds_out() const {
    if (data_.sources().empty()) return data_.eval().empty();
    for (const v1::DataSource& source : data_.sources()) {
      if (source.eval().empty()) return true;
    }
    return false;
  }

  void split() {
    if (data_.split() == v1::DataSpec::SPLIT_UNSPECIFIED) data_.set_split(v1::DataSpec::TAIL);
    if (holds_out() && data_.eval_fraction() == 0) data_.set_eval_fraction(0.02);
    problems_.within("data.eval_fraction", data_.eval_fraction(), 0, 0.5);
  }

  void rows() {
    if (data_.rows() == v1::DataSpec::ROWS_UNSPECIFIED) data_.set_rows(v1::DataSpec::PACKED);
  }

  // Token ids alone do not say where documents end; all other formats do.
  void documents() {
    const v1::TokenizerSpec& tokenizer = spec_.tokenizer();
    const std::string& end = tokenizer.end_of_document();
    const bool by_number = tokenizer.kind() == v1::TokenizerSpec::NONE;
    if (by_number && !end.empty()) {
      uint32_t id = 0;
      const auto parsed = std::from_chars(end.data(), end.data() + end.size(), id);
      const uint32_t vocab = spec_.model().vocab() > 0 ? spec_.model().vocab() : INT32_MAX;
      if (parsed.ec != std::errc() || parsed.ptr != end.data() + end.size() || id >= vocab) {
        problems_.add("tokenizer.end_of_document",
                      "'{}' must be a token's number below the vocabulary of {}, as the data is ids already", end,
                      vocab);
      }
    }
    if (data_.format() != v1::DataSpec::LLMC_BIN || !by_number || !end.empty()) return;
    const auto need = [&](bool asked, const char* field, const char* value) {
      if (!asked) return;
      problems_.add(field,
                    "{} needs to know where documents end, which llm.c shards do not tell; "
                    "give tokenizer.end_of_document, the number of the token between them",
                    value);
    };
    need(data_.split() == v1::DataSpec::DOCUMENTS && holds_out(), "data.split", "documents");
    need(data_.rows() == v1::DataSpec::DOCUMENT, "data.rows", "document");
    need(data_.reset_at_documents(), "data.reset_at_documents", "true");
    need(data_.mask_document_starts(), "data.mask_document_starts", "true");
  }

  v1::JobSpec& spec_;
  v1::DataSpec& data_;
  Problems& problems_;
};

}  // namespace

void resolve_data(v1::JobSpec& spec, Problems& problems) { DataResolver(spec, problems).run(); }

}  // namespace telar::plan

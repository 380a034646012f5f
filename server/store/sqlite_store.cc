#include <fcntl.h>
#include <sqlite3.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "common/fault_point.h"
#include "server/store/group_writer.h"
#include "server/store/store.h"

namespace telar::server::store {
namespace {

constexpr int kSchema = 2;
constexpr const char* kTables = R"(
CREATE TABLE jobs (id TEXT PRIMARY KEY, blob BLOB NOT NULL);
CREATE TABLE events (job TEXT NOT NULL, sequence INTEGER NOT NULL, step INTEGER NOT NULL, blob BLOB NOT NULL,
                     PRIMARY KEY (job, sequence)) WITHOUT ROWID;
CREATE TABLE streams (job TEXT NOT NULL, epoch INTEGER NOT NULL, rank INTEGER NOT NULL, next_line INTEGER NOT NULL,
                      PRIMARY KEY (job, epoch, rank)) WITHOUT ROWID;
CREATE TABLE answers (request TEXT PRIMARY KEY, blob BLOB NOT NULL);
)";
// What each later schema has more; [0] is what schema 2 adds to 1.
constexpr const char* kSteps[] = {
    "CREATE TABLE settings (key TEXT PRIMARY KEY, blob BLOB NOT NULL) WITHOUT ROWID;",
};
// Commits that share a transaction at most: what comes later would wait long for its turn otherwise.
constexpr size_t kMostGroup = 512;

absl::Status failure(sqlite3* database, const std::string& path, const std::string& doing) {
  const int code = sqlite3_extended_errcode(database);
  const std::string text = absl::StrCat("store ", path, ": cannot ", doing, ": ", sqlite3_errmsg(database));
  switch (code & 0xff) {
    case SQLITE_FULL:
      return absl::ResourceExhaustedError(text);
    case SQLITE_READONLY:
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
      return absl::PermissionDeniedError(text);
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return absl::UnavailableError(text);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::DataLossError(text);
    default:
      return absl::InternalError(text);
  }
}

struct FileLock {
  ~FileLock() {
    if (file >= 0) close(file);
  }
  int file = -1;
};

// One connection and the statements that it has prepared. Used by one thread at a time: whoever holds `mutex`.
class Connection {
 public:
  ~Connection() {
    for (auto& [sql, handle] : statements_) sqlite3_finalize(handle);
    sqlite3_close(database);
  }
  // `sql` must be a literal: statements are kept by its address.
  sqlite3_stmt* prepared(const char* sql) {
    sqlite3_stmt*& handle = statements_[sql];
    if (handle == nullptr) sqlite3_prepare_v2(database, sql, -1, &handle, nullptr);
    return handle;
  }

  std::mutex mutex;
  sqlite3* database = nullptr;

 private:
  std::map<const char*, sqlite3_stmt*> statements_;
};

// One use of a prepared statement; bind in order, then step. What is bound must outlive it.
class Statement {
 public:
  Statement(Connection& connection, const char* sql) : handle_(connection.prepared(sql)) {}
  ~Statement() {
    if (handle_ == nullptr) return;
    sqlite3_reset(handle_);
    sqlite3_clear_bindings(handle_);
  }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  Statement& text(const std::string& value) {
    sqlite3_bind_text(handle_, ++bound_, value.data(), static_cast<int>(value.size()), SQLITE_STATIC);
    return *this;
  }
  Statement& blob(const std::string& value) {
    // An empty blob needs an address, or SQLite stores NULL.
    sqlite3_bind_blob64(handle_, ++bound_, value.empty() ? "" : value.data(), value.size(), SQLITE_STATIC);
    return *this;
  }
  Statement& number(uint64_t value) {
    sqlite3_bind_int64(handle_, ++bound_, static_cast<sqlite3_int64>(value));
    return *this;
  }
  int step() { return handle_ == nullptr ? SQLITE_ERROR : sqlite3_step(handle_); }
  uint64_t column_number(int index) { return static_cast<uint64_t>(sqlite3_column_int64(handle_, index)); }
  std::string column(int index) {
    const auto* bytes = static_cast<const char*>(sqlite3_column_blob(handle_, index));
    return bytes == nullptr ? "" : std::string(bytes, static_cast<size_t>(sqlite3_column_bytes(handle_, index)));
  }

 private:
  sqlite3_stmt* const handle_;
  int bound_ = 0;
};

// Commits of several threads become one transaction. Reads have a connection of their own, so that they wait for no
// disk.
class SqliteStore final : public Store {
 public:
  explicit SqliteStore(SqliteOptions options) : options_(std::move(options)) {}

  absl::Status open();
  absl::Status commit(const Batch& batch) override { return commit_rows(&batch, 1); }
  absl::Status commit_all(const std::vector<Batch>& batches) override {
    return commit_rows(batches.data(), batches.size());
  }
  absl::StatusOr<std::vector<JobRow>> jobs() override;
  absl::StatusOr<std::vector<EventRow>> events(const std::string& job, uint64_t after, int limit) override;
  absl::StatusOr<uint64_t> next_line(const std::string& job, uint64_t epoch, uint32_t rank) override;
  absl::StatusOr<std::vector<SettingRow>> settings(const std::string& prefix) override;
  absl::StatusOr<std::optional<std::string>> answer(const std::string& request) override;

 private:
  struct Commit {
    const Batch* batches;
    size_t count;
    absl::Status status;
  };
  using Group = GroupWriter<Commit>::Group;

  absl::Status commit_rows(const Batch* batches, size_t count);
  absl::Status lock();
  absl::Status connect(Connection& connection);
  absl::Status create_or_check_schema();
  absl::Status run(const char* sql, const char* doing) {
    if (sqlite3_exec(writer_.database, sql, nullptr, nullptr, nullptr) == SQLITE_OK) return absl::OkStatus();
    return failure(writer_.database, options_.path, doing);
  }
  absl::Status finish(Statement& statement, const char* doing) {
    if (statement.step() == SQLITE_DONE) return absl::OkStatus();
    return failure(writer_.database, options_.path, doing);
  }
  absl::Status write(const Batch& batch);
  absl::Status write_events(const Batch& batch);
  absl::Status write_settings(const Batch& batch);
  void commit_group(const Group& group);
  absl::Status transact(const Group& group);  // All of them, or none.
  void reach(const char* point) {
    if (options_.failpoint) options_.failpoint(point);
    fault_point("coordinator.store", point).IgnoreError();
  }

  const SqliteOptions options_;
  FileLock lock_file_;  // Given up behind all else.
  Connection writer_;
  Connection own_reader_;
  Connection* reader_ = &own_reader_;  // A database in memory has one connection only.

  GroupWriter<Commit> groups_{1, [](const Group& group, const Commit&) { return group.size() < kMostGroup; },
                              [this](const Group& group) { commit_group(group); }};
};

absl::Status SqliteStore::lock() {
  if (options_.path == ":memory:") return absl::OkStatus();
  const std::string path = options_.path + ".lock";
  lock_file_.file = ::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644);
  if (lock_file_.file < 0) {
    return absl::PermissionDeniedError(absl::StrCat("store ", path, ": cannot open: ", std::strerror(errno)));
  }
  if (flock(lock_file_.file, LOCK_EX | LOCK_NB) == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("store ", options_.path, ": another coordinator uses it (", path,
                                             " is locked); stop that one or choose another --data"));
}

absl::Status SqliteStore::connect(Connection& connection) {
  if (sqlite3_open(options_.path.c_str(), &connection.database) != SQLITE_OK) {
    return failure(connection.database, options_.path, "open");
  }
  sqlite3_extended_result_codes(connection.database, 1);
  sqlite3_busy_timeout(connection.database, 2000);  // A person looking at it with the sqlite3 shell.
  return absl::OkStatus();
}

absl::Status SqliteStore::open() {
  if (absl::Status status = lock(); !status.ok()) return status;
  if (absl::Status status = connect(writer_); !status.ok()) return status;
  if (absl::Status status = run("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;", "use the write-ahead log");
      !status.ok()) {
    return status;
  }
  if (absl::Status status = create_or_check_schema(); !status.ok()) return status;
  if (options_.path == ":memory:") {
    reader_ = &writer_;
    return absl::OkStatus();
  }
  return connect(own_reader_);
}

absl::Status SqliteStore::create_or_check_schema() {
  if (absl::Status status =
          run("BEGIN IMMEDIATE; CREATE TABLE IF NOT EXISTS schema (version INTEGER NOT NULL);", "write");
      !status.ok()) {
    return status;
  }
  uint64_t version = 0;
  {
    Statement query(writer_, "SELECT version FROM schema");
    const int result = query.step();
    if (result == SQLITE_ROW) version = query.column_number(0);
    if (result != SQLITE_ROW && result != SQLITE_DONE) {
      return failure(writer_.database, options_.path, "read the schema");
    }
  }
  if (version > kSchema) {
    (void)run("ROLLBACK", "roll back");
    return absl::FailedPreconditionError(absl::StrCat("store ", options_.path, " has schema ", version,
                                                      "; this program knows at most ", kSchema,
                                                      ": run the newer program, or restore a copy from before it"));
  }
  if (version == 0) {
    if (absl::Status status = run(kTables, "create tables"); !status.ok()) return status;
    if (absl::Status status = run("INSERT INTO schema VALUES (1)", "write the schema version"); !status.ok()) {
      return status;
    }
    version = 1;
  }
  for (; version < kSchema; ++version) {
    if (absl::Status status = run(kSteps[version - 1], "create tables"); !status.ok()) return status;
    if (absl::Status status = run("UPDATE schema SET version=version+1", "write the schema version"); !status.ok()) {
      return status;
    }
  }
  return run("COMMIT", "commit");
}

absl::Status SqliteStore::write_events(const Batch& batch) {
  const std::string& job = batch.job->id;
  if (batch.step_stride) {
    Statement thin(writer_, "DELETE FROM events WHERE job=? AND step>0 AND step%?!=0");
    thin.text(job).number(*batch.step_stride);
    if (absl::Status status = finish(thin, "thin out events"); !status.ok()) return status;
  }
  for (uint64_t sequence : batch.erase_events) {
    Statement erase(writer_, "DELETE FROM events WHERE job=? AND sequence=?");
    erase.text(job).number(sequence);
    if (absl::Status status = finish(erase, "erase an event"); !status.ok()) return status;
  }
  for (const EventRow& event : batch.events) {
    Statement insert(writer_, "INSERT INTO events VALUES (?,?,?,?)");
    insert.text(job).number(event.sequence).number(event.step).blob(event.blob);
    if (absl::Status status = finish(insert, "write an event"); !status.ok()) return status;
  }
  if (!batch.stream) return absl::OkStatus();
  Statement stream(writer_, "INSERT OR REPLACE INTO streams VALUES (?,?,?,?)");
  stream.text(job).number(batch.stream->epoch).number(batch.stream->rank).number(batch.stream->next_line);
  return finish(stream, "write an offset");
}

absl::Status SqliteStore::write_settings(const Batch& batch) {
  for (const SettingRow& setting : batch.settings) {
    Statement write(writer_,
                    setting.blob ? "INSERT OR REPLACE INTO settings VALUES (?,?)" : "DELETE FROM settings WHERE key=?");
    write.text(setting.key);
    if (setting.blob) write.blob(*setting.blob);
    if (absl::Status status = finish(write, "write a setting"); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status SqliteStore::write(const Batch& batch) {
  if (batch.job) {
    Statement job(writer_, "INSERT OR REPLACE INTO jobs VALUES (?,?)");
    job.text(batch.job->id).blob(batch.job->blob);
    if (absl::Status status = finish(job, "write a job"); !status.ok()) return status;
    if (absl::Status status = write_events(batch); !status.ok()) return status;
  }
  if (absl::Status status = write_settings(batch); !status.ok()) return status;
  if (!batch.answer) return absl::OkStatus();
  Statement answer(writer_, "INSERT INTO answers VALUES (?,?)");
  answer.text(batch.answer->request).blob(batch.answer->blob);
  return finish(answer, "write an answer");
}

absl::Status SqliteStore::transact(const Group& group) {
  std::lock_guard<std::mutex> hold(writer_.mutex);
  if (absl::Status status = fault_point("coordinator.store"); !status.ok()) return status;
  if (absl::Status status = run("BEGIN IMMEDIATE", "begin"); !status.ok()) return status;
  reach("begin");
  absl::Status status;
  for (const Commit* one : group) {
    for (size_t i = 0; i < one->count && status.ok(); ++i) status = write(one->batches[i]);
  }
  reach("written");
  if (status.ok()) status = run("COMMIT", "commit");
  if (!status.ok()) {
    // SQLite may have rolled back by itself (disk full); then this fails, and rightly so.
    sqlite3_exec(writer_.database, "ROLLBACK", nullptr, nullptr, nullptr);
    return status;
  }
  reach("committed");
  if (options_.on_transaction) options_.on_transaction();
  return absl::OkStatus();
}

void SqliteStore::commit_group(const Group& group) {
  const absl::Status status = transact(group);
  const bool blame_each = !status.ok() && group.size() > 1;  // Only who is at fault may fail.
  for (Commit* one : group) one->status = blame_each ? transact({one}) : status;
}

absl::Status SqliteStore::commit_rows(const Batch* batches, size_t count) {
  const auto start = std::chrono::steady_clock::now();
  Commit mine{batches, count, {}};
  groups_.run(mine);
  if (mine.status.ok() && options_.on_commit) {
    options_.on_commit(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return mine.status;
}

absl::StatusOr<std::vector<JobRow>> SqliteStore::jobs() {
  std::lock_guard<std::mutex> hold(reader_->mutex);
  std::vector<JobRow> rows;
  Statement query(*reader_, "SELECT id, blob FROM jobs");
  int result = query.step();
  for (; result == SQLITE_ROW; result = query.step()) rows.push_back({query.column(0), query.column(1)});
  if (result != SQLITE_DONE) return failure(reader_->database, options_.path, "read jobs");
  return rows;
}

absl::StatusOr<std::vector<EventRow>> SqliteStore::events(const std::string& job, uint64_t after, int limit) {
  std::lock_guard<std::mutex> hold(reader_->mutex);
  std::vector<EventRow> rows;
  Statement query(*reader_,
                  "SELECT sequence, step, blob FROM events WHERE job=? AND sequence>? ORDER BY sequence LIMIT ?");
  query.text(job).number(after).number(static_cast<uint64_t>(limit));
  int result = query.step();
  for (; result == SQLITE_ROW; result = query.step()) {
    rows.push_back({query.column_number(0), query.column_number(1), query.column(2)});
  }
  if (result != SQLITE_DONE) return failure(reader_->database, options_.path, "read events");
  return rows;
}

absl::StatusOr<uint64_t> SqliteStore::next_line(const std::string& job, uint64_t epoch, uint32_t rank) {
  std::lock_guard<std::mutex> hold(reader_->mutex);
  Statement query(*reader_, "SELECT next_line FROM streams WHERE job=? AND epoch=? AND rank=?");
  query.text(job).number(epoch).number(rank);
  const int result = query.step();
  if (result == SQLITE_ROW) return query.column_number(0);
  if (result == SQLITE_DONE) return 0;
  return failure(reader_->database, options_.path, "read an offset");
}

absl::StatusOr<std::vector<SettingRow>> SqliteStore::settings(const std::string& prefix) {
  std::lock_guard<std::mutex> hold(reader_->mutex);
  std::vector<SettingRow> rows;
  // No LIKE: a prefix may hold its wildcards, and letters must not be folded.
  Statement query(*reader_, "SELECT key, blob FROM settings WHERE substr(key, 1, length(?1))=?1 ORDER BY key");
  query.text(prefix);
  int result = query.step();
  for (; result == SQLITE_ROW; result = query.step()) rows.push_back({query.column(0), query.column(1)});
  if (result != SQLITE_DONE) return failure(reader_->database, options_.path, "read settings");
  return rows;
}

absl::StatusOr<std::optional<std::string>> SqliteStore::answer(const std::string& request) {
  std::lock_guard<std::mutex> hold(reader_->mutex);
  Statement query(*reader_, "SELECT blob FROM answers WHERE request=?");
  query.text(request);
  const int result = query.step();
  if (result == SQLITE_ROW) return std::optional<std::string>(query.column(0));
  if (result == SQLITE_DONE) return std::optional<std::string>();
  return failure(reader_->database, options_.path, "read an answer");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> open_sqlite(SqliteOptions options) {
  auto store = std::make_unique<SqliteStore>(std::move(options));
  if (absl::Status status = store->open(); !status.ok()) return status;
  return std::unique_ptr<Store>(std::move(store));
}

}  // namespace telar::server::store

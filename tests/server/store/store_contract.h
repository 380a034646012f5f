// What every store must do. Instantiate StoreContract with a factory in the test of each.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>

#include "server/store/store.h"

namespace telar::server::store {

// One database, which can be closed and opened again.
class Database {
 public:
  virtual ~Database() = default;
  // Why not, in a word, if there is no such database on this machine.
  virtual std::string missing() const { return ""; }
  // The store of before must be gone.
  virtual absl::StatusOr<std::unique_ptr<Store>> open() = 0;
  // Around the life of a store: it may need something that lives longer.
  virtual void close() {}
};

using MakeDatabase = std::function<std::unique_ptr<Database>()>;

class StoreContract : public testing::TestWithParam<MakeDatabase> {
 protected:
  void SetUp() override;
  void reopen();

  std::unique_ptr<Database> database_;
  std::unique_ptr<Store> store_;
};

Batch batch_of(const std::string& job, const std::string& blob, uint64_t sequence, const std::string& request);

}  // namespace telar::server::store

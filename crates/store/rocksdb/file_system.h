// RocksDB's file system over a store of Weir.
#ifndef WEIR_FILE_SYSTEM_H
#define WEIR_FILE_SYSTEM_H

#include <rocksdb/file_system.h>

#include <chrono>
#include <memory>
#include <string>

#include "weir_store.h"

namespace weir {

// The files of an open store, which is closed with the last who uses them.
std::shared_ptr<rocksdb::FileSystem> FileSystemOf(weir_store* store);

// As long as it is there, this thread's reads of the units may take so long together. RocksDB reads footers, indexes and filters
// without the time that a reader gave it.
class Patience {
 public:
  explicit Patience(std::chrono::microseconds time);
  ~Patience();
  Patience(const Patience&) = delete;
  Patience& operator=(const Patience&) = delete;

  // The same time once more, from now on.
  void Renew();

 private:
  const std::chrono::microseconds time_;
};

}  // namespace weir

#endif

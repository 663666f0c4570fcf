// RocksDB's file system over a store of Weir.
#ifndef WEIR_FILE_SYSTEM_H
#define WEIR_FILE_SYSTEM_H

#include <rocksdb/file_system.h>

#include <memory>
#include <string>

#include "weir_store.h"

namespace weir {

// The files of an open store, which is closed with the last who uses them.
std::shared_ptr<rocksdb::FileSystem> FileSystemOf(weir_store* store);

}  // namespace weir

#endif

// To read what is left of a store that misses raw blocks: an SST that is not all there looks like one without keys, so that
// RocksDB opens the rest.
#ifndef WEIR_LEFT_H
#define WEIR_LEFT_H

#include <rocksdb/env.h>
#include <rocksdb/file_system.h>
#include <rocksdb/options.h>
#include <rocksdb/sst_file_writer.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>

namespace weir {

// An SST's last bytes, which say by its first ones where all else is.
constexpr size_t kFooterBytes = 53;
// No key of the store's lies beyond: each begins with a letter.
const char* const kBehindAllKeys = "\xff";

// An SST without keys. It deletes what is older in the range of the file that it stands for, for nobody knows whether that is
// what was written last; with `older` it deletes nothing.
inline rocksdb::Status HollowTable(rocksdb::Options options, bool older, std::string* bytes) {
  const std::unique_ptr<rocksdb::Env> memory(rocksdb::NewMemEnv(rocksdb::Env::Default()));
  options.env = memory.get();
  rocksdb::SstFileWriter writer(rocksdb::EnvOptions(), options);
  rocksdb::Status status = writer.Open("/hollow");
  // RocksDB cuts the range to that of the file, as its manifest has it.
  const rocksdb::Slice none("\0", 1);
  if (status.ok()) status = writer.DeleteRange(none, older ? rocksdb::Slice("\0\0", 2) : kBehindAllKeys);
  if (status.ok()) status = writer.Finish();
  if (status.ok()) status = rocksdb::ReadFileToString(memory.get(), "/hollow", bytes);
  return status;
}

// Such a table of another size: its last bytes at the end, and zeroes before them, to which nothing leads.
class HollowFile : public rocksdb::FSRandomAccessFile {
 public:
  HollowFile(std::string table, uint64_t size) : table_(std::move(table)), size_(size) {}

  rocksdb::IOStatus Read(uint64_t offset, size_t n, const rocksdb::IOOptions&, rocksdb::Slice* result,
                         char* scratch, rocksdb::IODebugContext*) const override {
    const uint64_t count = offset < size_ ? std::min<uint64_t>(n, size_ - offset) : 0;
    memset(scratch, 0, count);
    const size_t head = table_.size() - kFooterBytes;
    Lay(table_.data(), head, 0, offset, count, scratch);
    Lay(table_.data() + head, kFooterBytes, size_ - kFooterBytes, offset, count, scratch);
    *result = rocksdb::Slice(scratch, count);
    return rocksdb::IOStatus::OK();
  }

 private:
  // What of `bytes`, which lie at `at`, is within the part that is read.
  static void Lay(const char* bytes, uint64_t count, uint64_t at, uint64_t offset, uint64_t wanted,
                  char* into) {
    const uint64_t from = std::max(at, offset), to = std::min(at + count, offset + wanted);
    if (from < to) memcpy(into + (from - offset), bytes + (from - at), to - from);
  }

  const std::string table_;
  const uint64_t size_;
};

// The files of a store, those that are missing hollow.
class WhatIsLeft : public rocksdb::FileSystemWrapper {
 public:
  WhatIsLeft(const std::shared_ptr<rocksdb::FileSystem>& target, std::map<std::string, std::string> missing,
             std::string table)
      : FileSystemWrapper(target), missing_(std::move(missing)), table_(std::move(table)) {}

  static const char* kClassName() { return "weir-left"; }
  const char* Name() const override { return kClassName(); }

  rocksdb::IOStatus NewRandomAccessFile(const std::string& path, const rocksdb::FileOptions& options,
                                        std::unique_ptr<rocksdb::FSRandomAccessFile>* result,
                                        rocksdb::IODebugContext* debug) override {
    const auto missing = missing_.find(path);
    if (missing == missing_.end()) {
      return FileSystemWrapper::NewRandomAccessFile(path, options, result, debug);
    }
    uint64_t size = 0;
    const rocksdb::IOStatus found = GetFileSize(path, options.io_options, &size, debug);
    if (!found.ok()) return found;
    if (size < table_.size()) return rocksdb::IOStatus::Corruption(path, "weir: " + missing->second);
    result->reset(new HollowFile(table_, size));
    return rocksdb::IOStatus::OK();
  }

 private:
  // Their paths, and what is known of each.
  const std::map<std::string, std::string> missing_;
  const std::string table_;
};

}  // namespace weir

#endif

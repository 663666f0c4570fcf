// To read what is left of a store that misses raw blocks, or holds damaged ones: an SST that cannot be opened looks like one
// without keys, and what cannot be read of a log like zeroes, so that RocksDB opens the rest.
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

// What is known of files that are not whole, by their paths.
using Damages = std::map<std::string, std::string>;

// A log, of which what cannot be read is zeroes: RocksDB goes on behind them.
class LeftLog : public rocksdb::FSSequentialFile {
 public:
  LeftLog(std::unique_ptr<rocksdb::FSRandomAccessFile> file, uint64_t size, std::string* damage)
      : file_(std::move(file)), size_(size), damage_(damage) {}

  rocksdb::IOStatus Read(size_t n, const rocksdb::IOOptions& options, rocksdb::Slice* result, char* scratch,
                         rocksdb::IODebugContext* debug) override {
    const uint64_t count = at_ < size_ ? std::min<uint64_t>(n, size_ - at_) : 0;
    for (uint64_t done = 0; done < count;) {
      // Up to the end of a block of the volume, which is read as a whole or not at all.
      const uint64_t now = std::min(count - done, kBlockBytes - (at_ + done) % kBlockBytes);
      rocksdb::Slice read;
      const rocksdb::IOStatus status = file_->Read(at_ + done, now, options, &read, scratch + done, debug);
      const size_t there = status.ok() ? read.size() : 0;
      if (there > 0 && read.data() != scratch + done) memcpy(scratch + done, read.data(), there);
      memset(scratch + done + there, 0, now - there);
      if (there < now && damage_->empty()) *damage_ = status.ok() ? "it ends early" : status.ToString();
      done += now;
    }
    at_ += count;
    *result = rocksdb::Slice(scratch, count);
    return rocksdb::IOStatus::OK();
  }

  rocksdb::IOStatus Skip(uint64_t n) override {
    at_ += n;
    return rocksdb::IOStatus::OK();
  }

 private:
  static constexpr uint64_t kBlockBytes = 4096;

  const std::unique_ptr<rocksdb::FSRandomAccessFile> file_;
  const uint64_t size_;
  std::string* const damage_;
  uint64_t at_ = 0;
};

// The files of a store, those that are missing hollow, and with `older` what can be read of damaged logs.
class WhatIsLeft : public rocksdb::FileSystemWrapper {
 public:
  WhatIsLeft(const std::shared_ptr<rocksdb::FileSystem>& target, Damages missing, std::string table, bool older)
      : FileSystemWrapper(target), missing_(std::move(missing)), table_(std::move(table)), older_(older) {}

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

  rocksdb::IOStatus NewSequentialFile(const std::string& path, const rocksdb::FileOptions& options,
                                      std::unique_ptr<rocksdb::FSSequentialFile>* result,
                                      rocksdb::IODebugContext* debug) override {
    const bool is_log = path.size() > 4 && path.compare(path.size() - 4, 4, ".log") == 0;
    if (!older_ || !is_log) return FileSystemWrapper::NewSequentialFile(path, options, result, debug);
    uint64_t size = 0;
    const rocksdb::IOStatus found = GetFileSize(path, options.io_options, &size, debug);
    if (!found.ok()) return found;
    std::unique_ptr<rocksdb::FSRandomAccessFile> file;
    const rocksdb::IOStatus opened = FileSystemWrapper::NewRandomAccessFile(path, options, &file, debug);
    if (opened.ok()) result->reset(new LeftLog(std::move(file), size, &logs_[path]));
    return opened;
  }

  // The logs that were read, and what is damaged of each. Not while one is being read.
  const Damages& Logs() const { return logs_; }

 private:
  const Damages missing_;
  const std::string table_;
  const bool older_;
  Damages logs_;
};

}  // namespace weir

#endif

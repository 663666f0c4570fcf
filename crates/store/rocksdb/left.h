// To read what is left of a store that misses raw blocks, or holds damaged ones: an SST that cannot be opened looks like one
// without keys, and what cannot be read of a log like zeroes, so that RocksDB opens the rest.
#ifndef WEIR_LEFT_H
#define WEIR_LEFT_H

#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/file_system.h>
#include <rocksdb/options.h>
#include <rocksdb/sst_file_reader.h>
#include <rocksdb/sst_file_writer.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "file_system.h"
#include "weir_store.h"

namespace weir {

// An SST's last bytes, which say by its first ones where all else is.
constexpr size_t kFooterBytes = 53;
// Bytes of a file in a block of the small volume (crates/store/src/tail.rs), which is read as a whole or not at all.
constexpr uint64_t kPayloadBytes = 4064;
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
      const uint64_t now = std::min(count - done, kPayloadBytes - (at_ + done) % kPayloadBytes);
      rocksdb::IOStatus status;
      const uint64_t there = ReadFirst(at_ + done, now, options, scratch + done, debug, &status);
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
  // Reads what can be of some bytes of a block, and says how many these are: an older copy of it has only the first of them.
  uint64_t ReadFirst(uint64_t at, uint64_t count, const rocksdb::IOOptions& options, char* into, rocksdb::IODebugContext* debug,
                     rocksdb::IOStatus* status) {
    const auto read = [&](uint64_t wanted) {
      rocksdb::Slice found;
      *status = file_->Read(at, wanted, options, &found, into, debug);
      const uint64_t there = status->ok() ? found.size() : 0;
      if (there > 0 && found.data() != into) memcpy(into, found.data(), there);
      return there;
    };
    uint64_t there = read(count);
    if (status->ok()) return there;
    const rocksdb::IOStatus why = *status;
    for (uint64_t beyond = count; beyond - there > 1;) {
      const uint64_t middle = there + (beyond - there) / 2;
      (read(middle) == middle ? there : beyond) = middle;
    }
    if (there > 0) there = read(there);
    *status = why;
    return there;
  }

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
    if (!older_ || !rocksdb::Slice(path).ends_with(".log")) return FileSystemWrapper::NewSequentialFile(path, options, result, debug);
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

// A part of an SST that cannot be read: why, and from which key on its file can be again.
struct Torn {
  std::string name, why, next;
};

// Places at which something that can be read is searched for between two keys, time and again while there is.
constexpr uint64_t kPlaces = 64;

// Some key between two, so many of kPlaces behind the first by the first bytes in which they differ.
inline std::string Between(const std::string& low, const std::string& high, uint64_t place) {
  size_t same = 0;
  while (same < std::min(low.size(), high.size()) && low[same] == high[same]) same++;
  constexpr size_t kBytes = 7;
  const auto number = [same](const std::string& key) {
    uint64_t value = 0;
    for (size_t at = same; at < same + kBytes; at++) value = value << 8 | (at < key.size() ? uint8_t(key[at]) : 0);
    return value;
  };
  const uint64_t from = number(low);
  const uint64_t wanted = from + (number(high) - from) * place / kPlaces;
  std::string key = low.substr(0, same);
  for (size_t left = kBytes; left > 0; left--) key.push_back(static_cast<char>(wanted >> (8 * (left - 1))));
  return key;
}

// The first part of a file that cannot be read from `at` on; one without a name if all can be, or all up to a key that is seen.
inline Torn TornPart(const rocksdb::LiveFileMetaData& file, const rocksdb::Options& options, const std::string& at, Patience* patience,
                     const std::function<bool(const rocksdb::Slice&)>& is_seen) {
  const auto is_torn = [](const rocksdb::Status& status) { return !status.ok() && !status.IsTimedOut(); };
  patience->Renew();
  rocksdb::SstFileReader reader(options);
  Torn torn = {file.relative_filename, "", file.largestkey + '\0'};
  const rocksdb::Status opened = reader.Open(file.db_path + file.name);
  if (is_torn(opened)) torn.why = opened.ToString();
  if (!opened.ok()) return is_torn(opened) ? torn : Torn();
  const std::unique_ptr<rocksdb::Iterator> forth(reader.NewIterator(rocksdb::ReadOptions()));
  for (forth->Seek(at); forth->Valid() && !is_seen(forth->key()); forth->Next()) patience->Renew();
  if (!is_torn(forth->status())) return Torn();
  torn.why = forth->status().ToString();
  const std::unique_ptr<rocksdb::Iterator> back(reader.NewIterator(rocksdb::ReadOptions()));
  // From there back to the last key of which it can be told that nothing newer of it lies before.
  const auto goes_on_before = [&](const std::string& key) {
    bool found = false;
    for (back->SeekForPrev(key); back->Valid() && back->key().compare(at) > 0; back->Prev(), found = true) {
      torn.next = back->key().ToString();
      patience->Renew();
    }
    return found;
  };
  goes_on_before(file.largestkey);
  // There may be another such part, and what lies between can be read: its keys are not known, so they are searched for.
  for (uint64_t place = 1; place < kPlaces; place++) {
    const std::string middle = Between(at, torn.next, place);
    patience->Renew();
    if (middle > at && middle < torn.next && goes_on_before(middle)) place = 0;
  }
  return torn;
}

// Such a part of any SST of a column family, where an iterator that was at `at` could not go on; one without a name if there is
// none.
inline Torn TornBehind(rocksdb::DB* db, rocksdb::ColumnFamilyHandle* family, const rocksdb::Options& options, const std::string& at,
                       Patience* patience) {
  std::vector<rocksdb::LiveFileMetaData> files;
  db->GetLiveFilesMetaData(&files);
  // Within a level one after the other; any of those of level 0.
  const auto is_before = [](const rocksdb::LiveFileMetaData& one, const rocksdb::LiveFileMetaData& other) {
    return std::tie(one.level, one.smallestkey) < std::tie(other.level, other.smallestkey);
  };
  std::sort(files.begin(), files.end(), is_before);
  // What is hidden by a newer deletion is passed over, as the iterator did; it has not come to what lies behind a key that is not.
  int read_up_to = -1;
  for (const rocksdb::LiveFileMetaData& file : files) {
    if (file.column_family_name != family->GetName() || file.largestkey < at || file.level == read_up_to) continue;
    const auto is_seen = [&](const rocksdb::Slice& key) {
      rocksdb::PinnableSlice value;
      const bool seen = db->Get(rocksdb::ReadOptions(), family, key, &value).ok();
      if (seen && file.level > 0) read_up_to = file.level;
      return seen;
    };
    const Torn torn = TornPart(file, options, at, patience, is_seen);
    if (!torn.name.empty() && torn.next > at) return torn;
  }
  return Torn();
}

// Keys of a part of a range, of memory or of one SST as far as that can be read. Of each only what a get finds counts.
class Keys {
 public:
  // Of memory.
  Keys(rocksdb::DB* db, rocksdb::ColumnFamilyHandle* family) {
    rocksdb::ReadOptions memory;
    memory.read_tier = rocksdb::kMemtableTier;
    keys_.reset(db->NewIterator(memory, family));
  }

  // Of an SST; none of one that cannot be opened.
  Keys(const rocksdb::Options& options, const std::string& path) : reader_(std::make_unique<rocksdb::SstFileReader>(options)) {
    status_ = reader_->Open(path);
    if (status_.ok()) keys_.reset(reader_->NewIterator(rocksdb::ReadOptions()));
  }

  void Seek(const std::string& from) {
    if (keys_ != nullptr) keys_->Seek(from);
  }

  bool HasBefore(const std::string& to) const { return keys_ != nullptr && keys_->Valid() && keys_->key().compare(to) < 0; }
  rocksdb::Slice Key() const { return keys_->key(); }
  void Next() { keys_->Next(); }
  bool IsTimedOut() const { return status_.IsTimedOut() || (keys_ != nullptr && keys_->status().IsTimedOut()); }

 private:
  // Before what reads from it.
  std::unique_ptr<rocksdb::SstFileReader> reader_;
  std::unique_ptr<rocksdb::Iterator> keys_;
  rocksdb::Status status_;
};

// Gives in order what a get finds from `from` to before `to`, where a part of an SST cannot be read: what is newer than that, and what it
// has not. Ends early when `each` says so.
inline rocksdb::Status EachBesideTorn(rocksdb::DB* db, rocksdb::ColumnFamilyHandle* family, const rocksdb::Options& options,
                                      const std::string& from, const std::string& to, Patience* patience,
                                      const std::function<bool(const rocksdb::Slice&, const rocksdb::Slice&)>& each) {
  std::vector<rocksdb::LiveFileMetaData> files;
  db->GetLiveFilesMetaData(&files);
  std::vector<Keys> all;
  all.emplace_back(db, family);
  for (const rocksdb::LiveFileMetaData& file : files) {
    const bool is_there = file.smallestkey < to && file.largestkey >= from;
    if (is_there && file.column_family_name == family->GetName()) all.emplace_back(options, file.db_path + file.name);
  }
  const auto is_behind = [](const Keys* first, const Keys& other) { return first == nullptr || other.Key().compare(first->Key()) < 0; };
  for (Keys& keys : all) keys.Seek(from);
  for (;;) {
    const Keys* first = nullptr;
    for (const Keys& keys : all) {
      if (keys.IsTimedOut()) return rocksdb::Status::TimedOut();
      if (keys.HasBefore(to) && is_behind(first, keys)) first = &keys;
    }
    if (first == nullptr) return rocksdb::Status::OK();
    const std::string key = first->Key().ToString();
    for (Keys& keys : all) {
      if (keys.HasBefore(to) && keys.Key() == key) keys.Next();
    }
    patience->Renew();
    rocksdb::PinnableSlice value;
    const rocksdb::Status found = db->Get(rocksdb::ReadOptions(), family, key, &value);
    if (found.IsTimedOut()) return found;
    if (found.ok() && !each(key, value)) return found;
  }
}

}  // namespace weir

#endif

// Small files of the database of `weir store`: what says where all else is, and how it is made anew where other files say the same.
#ifndef WEIR_SMALL_H
#define WEIR_SMALL_H

#include <rocksdb/convenience.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/sst_file_reader.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace weir {

const char* const kPath = "/store";
const char* const kCurrent = "/store/CURRENT";
const char* const kIdentity = "/store/IDENTITY";
const char* const kManifest = "MANIFEST-";

// What kind of small file an error is of.
enum class Small { kOther, kSaidElsewhere, kManifest };

inline Small SmallOf(const rocksdb::Status& status) {
  const std::string told = status.ToString();
  const auto names = [&told](const char* what) { return told.find(what) != std::string::npos; };
  if (names(kCurrent) || names("CURRENT file") || names(kIdentity)) return Small::kSaidElsewhere;
  return names("MANIFEST") ? Small::kManifest : Small::kOther;
}

inline bool IsThere(rocksdb::Env* env, const std::string& path) { return env->FileExists(path).ok(); }

// In one step, and durable.
inline rocksdb::Status Replace(rocksdb::Env* env, const std::string& path, const std::string& text) {
  const std::string beside = path + ".dbtmp";
  rocksdb::Status status = WriteStringToFile(env, text, beside, true);
  if (status.ok()) status = env->RenameFile(beside, path);
  std::unique_ptr<rocksdb::Directory> folder;
  if (status.ok()) status = env->NewDirectory(kPath, &folder);
  return status.ok() ? folder->Fsync() : status;
}

// The names in the folder that begin, or end, so.
inline rocksdb::Status Named(rocksdb::Env* env, const char* first, const char* last, std::vector<std::string>* names) {
  std::vector<std::string> all;
  const rocksdb::Status listed = env->GetChildren(kPath, &all);
  for (const std::string& name : all) {
    if (rocksdb::Slice(name).starts_with(first) && rocksdb::Slice(name).ends_with(last)) names->push_back(name);
  }
  return listed;
}

using EachMended = std::function<void(const std::string&)>;

// CURRENT has the name of the manifest, and so has the folder.
inline rocksdb::Status RepairCurrent(rocksdb::Env* env, const EachMended& told) {
  std::string text;
  const rocksdb::Status read = ReadFileToString(env, kCurrent, &text);
  if (!read.ok() && !read.IsCorruption() && !read.IsNotFound()) return read;
  const bool names_one = rocksdb::Slice(text).starts_with(kManifest) && text.back() == '\n';
  if (read.ok() && names_one && IsThere(env, std::string(kPath) + "/" + text.substr(0, text.size() - 1))) return read;
  std::vector<std::string> manifests;
  const rocksdb::Status listed = Named(env, kManifest, "", &manifests);
  if (!listed.ok() && !listed.IsNotFound()) return listed;
  if (manifests.size() != 1) {
    return rocksdb::Status::Corruption(kCurrent, "which of " + std::to_string(manifests.size()) +
                                                     " manifests it named is not known: restore the small volume from a copy, or "
                                                     "read what SSTs and logs have, which may be older than what was written last: weir "
                                                     "store serve --damaged=older");
  }
  const rocksdb::Status made = Replace(env, kCurrent, manifests.front() + "\n");
  if (made.ok()) told(std::string(kCurrent) + ": names " + manifests.front() + ", which is the only one that is there");
  return made;
}

// IDENTITY has what every SST has, too.
inline rocksdb::Status RepairIdentity(const rocksdb::Options& options, const EachMended& told) {
  rocksdb::Env* env = options.env;
  std::string text;
  const rocksdb::Status read = ReadFileToString(env, kIdentity, &text);
  if (read.ok() && !text.empty()) return read;
  // That of damage is an I/O error (file_system.cc).
  if (!read.ok() && !IsThere(env, kIdentity) && !read.IsNotFound()) return read;
  std::vector<std::string> tables;
  const rocksdb::Status listed = Named(env, "", ".sst", &tables);
  if (!listed.ok()) return listed;
  std::string identity;
  for (const std::string& name : tables) {
    rocksdb::SstFileReader reader(options);
    if (!reader.Open(std::string(kPath) + "/" + name).ok()) continue;
    identity = reader.GetTableProperties()->db_id;
    if (!identity.empty()) break;
  }
  // Without SSTs nothing has it, and RocksDB draws another.
  if (identity.empty()) identity = env->GenerateUniqueId();
  const rocksdb::Status made = Replace(env, kIdentity, identity);
  if (made.ok()) told(std::string(kIdentity) + ": is " + identity);
  return made;
}

}  // namespace weir

#endif

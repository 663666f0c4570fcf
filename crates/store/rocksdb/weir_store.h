// Weir's store for C: crates/store/src/abi.rs. Functions that return a pointer return null when they fail, those that
// return a code something other than WEIR_OK; weir_store_error then has the reason, for this thread.
#ifndef WEIR_STORE_H
#define WEIR_STORE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
  WEIR_OK = 0,
  WEIR_NOT_FOUND = 1,
  WEIR_FULL = 2,
  WEIR_OWNED = 3,    // another process has the store
  WEIR_DAMAGED = 4,  // what lies there is not what was written
  WEIR_IO = 5,
  WEIR_INVALID = 6,
  WEIR_UNREACHABLE = 7,  // the server of the units does not answer
};

// How a store is opened; their sum.
enum {
  WEIR_NEW = 1,      // one may be made beside raw blocks of others
  WEIR_READ_LEFT = 2,  // to read what is left of one: nothing is changed
};

typedef struct weir_store weir_store;
typedef struct weir_writer weir_writer;
typedef struct weir_reader weir_reader;

typedef struct {
  int folder;  // 1 for a folder, 0 for a file
  uint64_t size;
  uint64_t modified;  // seconds since 1970
} weir_found;

const char* weir_store_error(void);

// The raw units by their NBD address, the control socket (or address and token) of their server, and the NBD
// address of the small volume. Takes the store, or makes one on a volume that was never written. `how` is a sum of the above.
weir_store* weir_store_open(const char* units, const char* control, const char* token,
                            const char* volume, int how);
void weir_store_close(weir_store* store);
// Every file of which raw blocks were missing when the store was opened, and one of those.
void weir_store_missing(const weir_store* store,
                        void (*each)(void* context, const char* path, const char* why), void* context);

int weir_store_find(const weir_store* store, const char* path, weir_found* into);
int weir_store_children(const weir_store* store, const char* path,
                        void (*each)(void* context, const char* name), void* context);
int weir_store_create_folder(const weir_store* store, const char* path);
int weir_store_delete_folder(const weir_store* store, const char* path);
int weir_store_rename(const weir_store* store, const char* from, const char* to);
int weir_store_delete(const weir_store* store, const char* path);
int weir_store_truncate(const weir_store* store, const char* path, uint64_t size);
// Every change of names is durable when this returns, and so are the tables of this folder that this thread, or one that has ended,
// synced or closed. It fails if one did, whosever it was, until that is deleted or written anew.
int weir_store_sync(const weir_store* store, const char* folder);
// The same for names alone: it waits for no table.
int weir_store_sync_names(const weir_store* store);
uint64_t weir_store_free_small_bytes(const weir_store* store);
// What the store has done since it was opened: raw_blocks_put, table_bytes_put (in these), raw_blocks_erased, reads and read_bytes (of raw blocks); how
// many units there are: units; how many puts may be under way: puts_max; raw blocks of the store that are newer than all that
// its small volume knew when it was opened: newer_raw_blocks. 0 for any other name.
uint64_t weir_store_count(const weir_store* store, const char* name);
// Bytes of a raw block.
uint64_t weir_store_block_bytes(const weir_store* store);

// A new file instead of what has the name, or with go_on the end of what is there.
weir_writer* weir_store_writer(const weir_store* store, const char* path, int go_on);
int weir_writer_append(weir_writer* writer, const void* bytes, size_t count);
int weir_writer_push(weir_writer* writer);  // outlives this process
// A small file outlives a power cut then. A table does after weir_store_sync of its folder.
int weir_writer_sync(weir_writer* writer);
uint64_t weir_writer_size(const weir_writer* writer);
int weir_writer_close(weir_writer* writer);
void weir_writer_free(weir_writer* writer);

weir_reader* weir_store_reader(const weir_store* store, const char* path);
// The units may take so many microseconds to answer; 0 for the store's own bound, which is long.
int weir_reader_read(const weir_reader* reader, uint64_t offset, void* into, size_t count,
                     uint64_t micros, size_t* done);

typedef struct {
  uint64_t offset;
  void* into;
  size_t count;
  size_t done;  // less than count at the end of the file
  int code;
} weir_read;

// Reads many parts at a time, from as many units as they lie on. weir_store_error has the reason of the last that failed.
void weir_reader_read_many(const weir_reader* reader, weir_read* reads, size_t count, uint64_t micros);
uint64_t weir_reader_unique(const weir_reader* reader);
void weir_reader_free(weir_reader* reader);

#ifdef __cplusplus
}
#endif

#endif

// Package redis keeps records in Redis 7.0 or later, or Valkey: a single server, a server behind Sentinel, or a
// Cluster. It is the fastest of the stores, and guarantees only what the server guarantees: with appendonly yes and
// appendfsync always a crash loses nothing; with everysec or without an append-only file it loses records; and a
// fail-over to a replica can lose acknowledged writes, even with [WithReplicas]. An operation whose record is lost may
// be executed a second time. [Open] reads these settings and logs once what they can lose. If that is not acceptable,
// use a database, perhaps with Redis in front of it for replays (package tiered).
//
// It has every capability of package store except transactions, so recovery points, background work and operators work
// as on any store, and the outbox does not. The server removes expired records, a minute after their expiry: the
// janitor only sweeps.
//
// # Keys
//
// A record is one key, PREFIX:{BUCKET}:h:HASH, where the hash is the hash of its ID, as logs show it, in sixteen bytes,
// and the bucket is one of 1024 by the hash. Records with a provider's id are also in a sorted set for that id. The
// bucket is the hash tag: the record, the index of records in progress and the index of unknown records are in one
// slot, and one script changes them together. On a single server one index holds all records in progress, so keys
// cannot be copied from there to a cluster. Only a settled record has a time to live. Hashes are binary, so names look
// odd in redis-cli.
//
// Records in progress and unknown records are listed by the indexes. Settled records are found by SCAN: [Store.List]
// without a state and [Store.Stats] scan all keys of the database. Stats scans within the server, by a script that
// takes the names of keys from SCAN instead of its arguments.
//
// # What the server needs
//
// maxmemory-policy must be noeviction: every other policy removes records, and Open refuses it unless [WithEviction]
// accepts it. A full server then refuses new operations, while the answers of operations in progress are still stored,
// and operators can act. A user of the server needs the permissions ~PREFIX:* &PREFIX:* and +@read +@write +@scripting
// +@pubsub +@connection +@transaction +info +role +time +wait +waitaof (from 7.2 on) +cluster|slots +cluster|shards,
// and +config|get for Open to see everything. A proxy that spreads commands over servers is not supported.
//
// The clock is the server's. Attempt tokens are its microseconds with a random part of up to a second, and always
// larger than the stored token: a clock that steps back by less than a record is kept does no harm. In a cluster each
// node uses its own clock, and after a fail-over the replica's is used: keep them within a fraction of the lease of
// each other.
package redis

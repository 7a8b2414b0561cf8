// Package redis keeps records in Redis 7.0 or later, or Valkey: a single server, one behind Sentinel, or a Cluster. It
// is the fastest of the stores, and promises what the server promises: with appendonly yes and appendfsync always a
// crash loses nothing; with everysec or without an append-only file it loses records; and a fail-over to a replica can
// forget what was acknowledged, with [WithReplicas] too. An operation whose record is lost may be executed a second
// time. [Open] reads these settings and says once what they can lose. Where that cannot be borne, use a database,
// perhaps with Redis in front of it for replays (package tiered).
//
// It has every capability of package store but transactions, so recovery points, background work and operators work as
// on any store, and the outbox does not. The server removes what has expired, a minute after its expiry: the janitor
// only sweeps.
//
// # Keys
//
// A record is one key, PREFIX:{BUCKET}:h:HASH, where the hash is that of its ID, as logs show it, in sixteen bytes, and
// the bucket is one of 1024 by the hash. Records that carry a provider's id are also in a sorted set of that. The
// bucket is the hash tag: the record, the index of what is in progress and that of what is unknown are in one slot, and
// one script changes them together. On a single server one index holds all that is in progress, so keys cannot be
// copied from there to a cluster. Only a settled record has a time to live. Hashes are binary, so names in redis-cli
// look odd.
//
// Records that are in progress or unknown are listed by the indexes. Settled ones are found by SCAN: [Store.List]
// without a state and [Store.Stats] walk all keys of the database, the latter within the server, by a script that takes
// the names of keys from SCAN instead of being told them.
//
// # What the server needs
//
// maxmemory-policy must be noeviction: every other one removes records, and Open refuses it unless [WithEviction]
// accepts that. A full server then refuses new operations, while the answers of those under way are still stored, and
// operators can act. A user of the server needs the permissions ~PREFIX:* &PREFIX:* and +@read +@write +@scripting
// +@pubsub +@connection +@transaction +info +role +time +wait +waitaof (from 7.2 on) +cluster|slots +cluster|shards,
// and +config|get for Open to see everything. A proxy that spreads commands over servers is not supported.
//
// The clock is the server's. Attempt tokens are its microseconds, and always larger than the one that is stored: a
// clock that steps back by less than a record is kept does no harm. In a cluster each node counts by its own clock, and
// after a fail-over the replica's counts: keep them within a fraction of the lease of each other.
package redis
